//! One turn: from the prompt to its response, through as many requests to the model as it takes.
//!
//! It runs on its own thread and may block: in the network, for a response of the client, or between two tries. If
//! another thread ends the turn, it wakes this one, which finds out at its next lock. Only whole steps are stored.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use rpc::{OwnedReplyTo, RpcError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api_error::{ApiError, TURN_MIB_MAX, is_refusal, needs_user};
use super::convert::{agent_text, agent_thought};
use super::history::answered_length;
use super::http::{Answer, Watchdog};
use super::log::log;
use super::options::Errors;
use super::record::{Entry, Mode};
use super::reply::{Finish, Reply, Usage};
use super::reply_stream::{Next, ReplyStream, parse_body, read_body};
use super::retry;
use super::session::{RunningTurn, Session, State, TurnEnded, TurnEvent};
use super::shared::Shared;
use super::think_tags::{Piece, joined};
use super::url::without_secrets;
use super::wire::Message;

/// After a reply is complete, the turn waits this long for its usage and for the end of the stream, without which the
/// connection cannot be used again.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(1);

/// What clients are told of a window whose size nobody knows.
const UNKNOWN_WINDOW_TOKENS: u64 = 128_000;
pub(super) struct Turn {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Arc<Session>,
    pub(super) number: u64,
    pub(super) events: Receiver<TurnEvent>,
    pub(super) event_tx: Sender<TurnEvent>,
    http: ureq::Agent,
    /// The length of the history before the prompt.
    history_before: usize,
    /// The length of the history that the server is known to take: what follows may be refused, also prompts of earlier
    /// turns that failed.
    history_accepted: usize,
    usage: Option<Usage>,
    has_sent_text: bool,
    /// A longer request, by estimate, was too long for the server.
    pub(super) limit_tokens: Option<u64>,
    /// The client knows that results of tools are left out.
    pub(super) has_shortened: bool,
    /// How many bytes the model may still say.
    bytes_left: usize,
}

/// Why a turn stops early.
pub(super) enum Stop {
    /// Another thread has ended the turn and responded.
    Ended,
    /// The user has cancelled it.
    Cancelled,
    Failed(ApiError),
}

impl From<TurnEnded> for Stop {
    fn from(_: TurnEnded) -> Stop {
        Stop::Ended
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Stop {
        Stop::Failed(error)
    }
}

/// Why a request to the client, or a tool call that needs it, has no result.
pub(super) enum CallError {
    /// The text is for the model.
    Failed(String),
    Stop(Stop),
}

impl From<TurnEnded> for CallError {
    fn from(_: TurnEnded) -> CallError {
        CallError::Stop(Stop::Ended)
    }
}

impl From<String> for CallError {
    fn from(why: String) -> CallError {
        CallError::Failed(why)
    }
}

/// Starts the turn of a prompt. The prompt is already in the history, at `history_before`.
pub(super) fn begin(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    state: &mut State,
    reply_to: OwnedReplyTo,
    history_before: usize,
) -> Result<(), String> {
    let (event_tx, events) = channel();
    let turn = Turn {
        shared: shared.clone(),
        session: session.clone(),
        number: shared.next_turn(),
        events,
        event_tx,
        http: shared.http.take(),
        history_before,
        history_accepted: answered_length(&state.record.history),
        usage: None,
        has_sent_text: false,
        limit_tokens: None,
        has_shortened: false,
        bytes_left: TURN_MIB_MAX << 20,
    };
    let running =
        RunningTurn { number: turn.number, reply_to, events: turn.event_tx.clone(), http: turn.http.clone() };
    let thread = thread::Builder::new().name(session.id.clone()).spawn(move || turn.run());
    thread.map_err(|error| format!("no thread for the prompt: {error}"))?;
    // The thread sends nothing before it gets the session's lock, which the caller holds.
    state.turn = Some(running);
    Ok(())
}

impl Turn {
    fn run(mut self) {
        // `TurnEnded` needs no handling: the thread that ended the turn has responded.
        let _ = match self.run_steps() {
            Ok(reason) => self.respond_stopped(reason),
            Err(Stop::Cancelled) => self.respond_stopped(acp::StopReason::Cancelled),
            Err(Stop::Failed(error)) => {
                self.take_back_refused(&error).and_then(|()| self.respond_failed(&error))
            }
            Err(Stop::Ended) => Err(TurnEnded),
        };
    }

    fn run_steps(&mut self) -> Result<acp::StopReason, Stop> {
        self.wait_for_mcp()?;
        for step in 0..self.shared.config.max_steps {
            self.tell_mcp_news()?;
            let history_sent = self.session.lock_for(self.number)?.record.history.len();
            let mut reply = self.complete()?;
            self.history_accepted = history_sent;
            self.report_usage(reply.usage)?;
            let calls = reply.take_calls();
            // Calls that were cut off cannot be made.
            if calls.is_empty() || reply.finish() == Finish::Length {
                return self.conclude(reply);
            }
            let content = if reply.text.is_empty() { None } else { Some(reply.text) };
            let mut messages = vec![Message::Assistant { content, tool_calls: calls.clone() }];
            for (at, call) in calls.iter().enumerate() {
                let id = format!("call-{}-{step}-{at}", self.number);
                let content = self.perform(&id, call)?;
                messages.push(Message::Tool { tool_call_id: call.id.clone(), content });
            }
            self.store_messages(messages)?;
        }
        Ok(acp::StopReason::MaxTurnRequests)
    }

    fn conclude(&self, reply: Reply) -> Result<acp::StopReason, Stop> {
        let finish = reply.finish();
        if finish == Finish::Refusal {
            // The model must not see a refused prompt again.
            self.rewind(self.history_before)?;
            return Ok(acp::StopReason::Refusal);
        }
        if !reply.text.is_empty() {
            let message = Message::Assistant { content: Some(reply.text), tool_calls: Vec::new() };
            self.store_messages(vec![message])?;
        }
        Ok(if finish == Finish::Length { acp::StopReason::MaxTokens } else { acp::StopReason::EndTurn })
    }

    /// Takes back what the server refuses, the last step, or the prompt and those before it that have no answer: it
    /// would refuse every later request too. Images are refused with other statuses as well, and a body that is too
    /// large by a server that just hangs up. A prompt that no key or account stands behind is taken back alone: the
    /// user says it again after a login. What the tools of its turn have done already stays.
    fn take_back_refused(&self, error: &ApiError) -> Result<(), TurnEnded> {
        let status = error.status().unwrap_or_default();
        let has_image = {
            let state = self.session.lock_for(self.number)?;
            state.record.history[self.history_accepted..].iter().any(Message::has_image)
        };
        let is_cut_off = matches!(error, ApiError::CutOff { .. });
        if is_refusal(status) || (status >= 500 && has_image) || is_cut_off {
            self.rewind(self.history_accepted)?;
        } else if needs_user(status) && self.history_accepted <= self.history_before {
            self.rewind(self.history_before)?;
        }
        Ok(())
    }

    fn rewind(&self, length: usize) -> Result<(), TurnEnded> {
        let mut state = self.session.lock_for(self.number)?;
        self.shared.store.append(&self.session.id, &mut state.record, Entry::Rewind(length));
        Ok(())
    }

    /// Asks the model for one reply, retries where that may help, and streams the reply to the client.
    fn complete(&mut self) -> Result<Reply, Stop> {
        let shared = self.shared.clone();
        let url = match &shared.config.endpoint {
            Ok(endpoint) => endpoint.chat(),
            Err(why) => return Err(ApiError::Network { message: why.clone() }.into()),
        };
        let mut context = self.request_context()?;
        let mut attempts = 0;
        loop {
            let quirks = shared.quirks(&context.model);
            let request = context.request(&shared.config);
            let failure = match shared.http.post(&self.http, &url, &request.body(&quirks)) {
                Ok(answer) => return self.receive(answer),
                Err(failure) => failure,
            };
            self.check_running()?;
            let status = failure.error.status();
            if let Some(status) = status {
                if let Some(shorter) = self.shorter_context(&context, status, &failure.refusal)? {
                    context = shorter;
                    continue;
                }
                if let Some(learned) = request.learn(&quirks, status, &failure.refusal) {
                    shared.add_quirks(&context.model, learned);
                    continue;
                }
            } else {
                // The connection may have failed because it was idle for too long.
                self.renew_http()?;
            }
            attempts += 1;
            let jitter = shared.random_fraction();
            let delay = retry::delay(shared.config.retry_policy, attempts, status, &failure.hint, jitter);
            let Some(delay) = delay else { return Err(failure.error.into()) };
            let text = shared.config.redact(&failure.error.text(&without_secrets(&url)));
            log(format_args!("{} (trying again in {delay:.1?})", text.replace('\n', " ")));
            self.sleep(delay)?;
        }
    }

    /// Reads the answer and sends its pieces to the client as they come.
    fn receive(&mut self, answer: Answer) -> Result<Reply, Stop> {
        let reply = Reply::new(self.shared.config.has_think_tags, self.bytes_left);
        let (pieces, reply) = if answer.is_stream {
            let mut stream = ReplyStream::new(answer, reply);
            self.receive_stream(&mut stream)?;
            stream.finish()
        } else {
            let body = read_body(answer);
            self.check_running()?;
            parse_body(&body?, reply)?
        };
        self.send_pieces(pieces)?;
        let reply = reply?;
        self.bytes_left = reply.bytes_left();
        Ok(reply)
    }

    fn receive_stream(&mut self, stream: &mut ReplyStream) -> Result<(), Stop> {
        let mut watchdog = None;
        let is_broken = loop {
            match stream.next() {
                Ok(Next::Pieces(pieces)) => self.send_pieces(pieces)?,
                Ok(Next::End { is_broken }) => break is_broken,
                Err(error) => {
                    self.check_running()?;
                    return Err(error.into());
                }
            }
            if watchdog.is_none() && stream.is_complete() {
                watchdog = Some(Watchdog::new(self.http.clone(), STREAM_END_TIMEOUT));
            }
        };
        drop(watchdog);
        if is_broken {
            self.renew_http()?;
        }
        // The shutdown of an ended turn looks like the end of the stream.
        Ok(self.check_running()?)
    }

    /// Sleeps, unless the turn ends meanwhile.
    fn sleep(&self, time: Duration) -> Result<(), TurnEnded> {
        let deadline = Instant::now() + time;
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Ok(TurnEvent::Ended) | Err(RecvTimeoutError::Disconnected) => return Err(TurnEnded),
                Ok(_) => {}
            }
        }
    }

    fn renew_http(&mut self) -> Result<(), TurnEnded> {
        let fresh = self.shared.http.take();
        let mut state = self.session.lock_for(self.number)?;
        if let Some(running) = &mut state.turn {
            running.http = fresh.clone();
        }
        self.http = fresh;
        Ok(())
    }

    /// Sends a request to the client and waits for the response.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<T, CallError> {
        let state = self.session.lock_for(self.number)?;
        let id = self.shared.expect_response(self.event_tx.clone());
        self.shared.writer.request(id, method, params);
        drop(state);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let event = match deadline {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(deadline) => {
                    self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
            };
            match event {
                Ok(TurnEvent::Response(answered, outcome)) if answered == id => {
                    let result = serde_json::from_str(outcome?.get());
                    return Ok(result.map_err(|error| format!("{method}: {error}"))?);
                }
                Ok(TurnEvent::Response(..) | TurnEvent::Called(..) | TurnEvent::Settled) => {}
                Ok(TurnEvent::Ended) | Err(RecvTimeoutError::Disconnected) => {
                    self.shared.forget_response(id);
                    return Err(TurnEnded.into());
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.shared.forget_response(id);
                    return Err(format!("{method}: no answer in time").into());
                }
            }
        }
    }

    fn check_running(&self) -> Result<(), TurnEnded> {
        self.session.lock_for(self.number).map(|_| ())
    }

    pub(super) fn send(&self, update: acp::SessionUpdate) -> Result<(), TurnEnded> {
        let _state = self.session.lock_for(self.number)?;
        self.shared.writer.update(&self.session.id, update);
        Ok(())
    }

    pub(super) fn mode_and_cwd(&self) -> Result<(Mode, PathBuf), TurnEnded> {
        let state = self.session.lock_for(self.number)?;
        Ok((state.record.mode, PathBuf::from(&state.record.cwd)))
    }

    fn send_pieces(&mut self, pieces: Vec<Piece>) -> Result<(), TurnEnded> {
        for piece in joined(pieces) {
            match piece {
                Piece::Text(text) => {
                    self.send(agent_text(&text))?;
                    self.has_sent_text = true;
                }
                Piece::Thought(text) => self.send(agent_thought(&text))?,
            }
        }
        Ok(())
    }

    fn store_messages(&self, messages: Vec<Message>) -> Result<(), TurnEnded> {
        let mut state = self.session.lock_for(self.number)?;
        for message in messages {
            self.shared.store.append(&self.session.id, &mut state.record, Entry::Message(message));
        }
        Ok(())
    }

    fn report_usage(&mut self, usage: Option<Usage>) -> Result<(), TurnEnded> {
        let Some(usage) = usage else { return Ok(()) };
        self.usage.get_or_insert_default().add(usage);
        let state = self.session.lock_for(self.number)?;
        let model = self.shared.model_of(&state.record);
        let size = self.shared.window_tokens(&model).unwrap_or(UNKNOWN_WINDOW_TOKENS);
        let update = acp::UsageUpdate::new(usage.total, size);
        self.shared.writer.update(&self.session.id, acp::SessionUpdate::UsageUpdate(update));
        Ok(())
    }

    fn respond_stopped(&self, reason: acp::StopReason) -> Result<(), TurnEnded> {
        let above_zero = |count: u64| if count > 0 { Some(count) } else { None };
        let usage = self.usage.map(|usage| {
            acp::Usage::new(usage.total, usage.input, usage.output)
                .thought_tokens(above_zero(usage.thought))
                .cached_read_tokens(above_zero(usage.cached))
        });
        self.respond(Ok(&acp::PromptResponse::new(reason).usage(usage)))
    }

    fn respond_failed(&self, error: &ApiError) -> Result<(), TurnEnded> {
        let config = &self.shared.config;
        let url = match &config.endpoint {
            Ok(endpoint) => without_secrets(&endpoint.chat()),
            Err(_) => "OPENAI_BASE_URL".to_owned(),
        };
        let text = config.redact(&error.text(&url));
        log(format_args!("{}", text.replace('\n', " ")));
        if self.shared.options.errors == Errors::Rpc {
            let error = RpcError { message: text, ..error.rpc(&url) };
            return self.respond(Err::<&(), _>(&error));
        }
        // A blank line keeps the error apart from the model's text.
        let gap = if self.has_sent_text { "\n\n" } else { "" };
        self.send(agent_text(&format!("{gap}{text}")))?;
        self.respond_stopped(acp::StopReason::EndTurn)
    }

    fn respond(&self, outcome: Result<&impl Serialize, &RpcError>) -> Result<(), TurnEnded> {
        let mut state = self.session.lock_for(self.number)?;
        let running = state.turn.take().expect("the lock is held only while the turn runs");
        // This comes before the response, so that the next prompt finds the connection.
        self.shared.http.give_back(running.http);
        self.shared.writer.respond(running.reply_to.as_ref(), outcome);
        Ok(())
    }
}
