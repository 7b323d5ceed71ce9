//! One turn: from the prompt to its answer, through as many requests to the model as it takes.
//!
//! Runs on a thread of its own and may block: in the network, for the client's answers, in a pause between two tries.
//! Whoever ends the turn wakes it, and it finds at its next word that it is gone. Only whole steps are kept.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::api_error::ApiError;
use super::convert::{agent_text, agent_thought};
use super::history::to_send;
use super::http::{Answer, Watchdog, read_fault};
use super::record::{Entry, Mode};
use super::reply::{Finish, Reply, Usage};
use super::retry;
use super::session::{Running, Session, State, TurnEnded, TurnEvent};
use super::shared::Shared;
use super::sse::Parser;
use super::think::Piece;
use super::tools::{self, ClientTools};
use super::url::shown;
use super::wire::{Message, Request};
use super::{Errors, log};
use crate::acp::writer::OwnedCaller;

/// After the answer is complete: how long to wait for its usage and for the end of the stream, without which the
/// connection cannot be used again.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// The largest answer that comes as one JSON object.
const BODY_BYTES: u64 = 64 << 20;

pub(super) struct Turn {
    pub(super) shared: Arc<Shared>,
    pub(super) session: Arc<Session>,
    pub(super) number: u64,
    events: Receiver<TurnEvent>,
    event_tx: Sender<TurnEvent>,
    http: ureq::Agent,
    /// How long the history was before the prompt.
    before: usize,
    usage: Option<Usage>,
    has_said: bool,
}

/// Why a turn ends before its time.
pub(super) enum End {
    /// Somebody else has ended and answered it.
    TurnEnded,
    /// The client wants no more of it.
    Cancelled,
    ApiError(ApiError),
}

impl From<TurnEnded> for End {
    fn from(_: TurnEnded) -> End {
        End::TurnEnded
    }
}

impl From<ApiError> for End {
    fn from(fault: ApiError) -> End {
        End::ApiError(fault)
    }
}

/// What a turn needs to know of its session for one request.
struct Scene {
    model: String,
    cwd: PathBuf,
    client_tools: ClientTools,
    messages: Vec<Message>,
}

/// Begins the turn of a prompt that stands in the history already, at this place.
pub(super) fn begin(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    state: &mut State,
    caller: OwnedCaller,
    before: usize,
) -> Result<(), String> {
    let (event_tx, events) = channel();
    let (number, http) = (shared.next_turn(), shared.http.take());
    let turn = Turn {
        shared: shared.clone(),
        session: session.clone(),
        number,
        events,
        event_tx: event_tx.clone(),
        http: http.clone(),
        before,
        usage: None,
        has_said: false,
    };
    let thread = thread::Builder::new().name(session.id.clone()).spawn(move || turn.run());
    thread.map_err(|error| format!("no thread for the prompt: {error}"))?;
    // The thread says nothing before it has had the lock, which is held here.
    state.turn = Some(Running { number, caller, events: event_tx, http });
    Ok(())
}

impl Turn {
    fn run(mut self) {
        // One that is gone has been answered by whoever ended it.
        let _ = match self.run_steps() {
            Ok(reason) => self.finish(reason),
            Err(End::Cancelled) => self.finish(acp::StopReason::Cancelled),
            Err(End::ApiError(fault)) => self.fail(&fault),
            Err(End::TurnEnded) => Err(TurnEnded),
        };
    }

    fn run_steps(&mut self) -> Result<acp::StopReason, End> {
        for step in 0..self.shared.config.max_steps {
            let mut reply = self.complete()?;
            self.report_usage(reply.usage)?;
            let calls = reply.take_calls();
            // Calls that were cut off are no calls.
            if calls.is_empty() || reply.finish() == Finish::Length {
                return self.conclude(reply);
            }
            let text = Some(reply.text).filter(|text| !text.is_empty());
            let mut messages = vec![Message::Assistant { content: text, tool_calls: calls.clone() }];
            for (at, call) in calls.iter().enumerate() {
                let id = format!("call-{}-{step}-{at}", self.number);
                let content = self.perform(&id, call)?;
                messages.push(Message::Tool { tool_call_id: call.id.clone(), content });
            }
            self.keep(messages)?;
        }
        Ok(acp::StopReason::MaxTurnRequests)
    }

    fn conclude(&self, reply: Reply) -> Result<acp::StopReason, End> {
        let finish = reply.finish();
        if finish == Finish::Refusal {
            // What is refused is not to be seen by the model again.
            let mut state = self.session.lock_for(self.number)?;
            self.shared.keep(&self.session.id, &mut state.record, Entry::Rewind(self.before));
            return Ok(acp::StopReason::Refusal);
        }
        if !reply.text.is_empty() {
            self.keep(vec![Message::Assistant { content: Some(reply.text), tool_calls: Vec::new() }])?;
        }
        Ok(if finish == Finish::Length { acp::StopReason::MaxTokens } else { acp::StopReason::EndTurn })
    }

    /// One answer of the model: asked for, tried again where that may help, and said as it comes.
    fn complete(&mut self) -> Result<Reply, End> {
        let shared = self.shared.clone();
        let url = match &shared.config.endpoint {
            Ok(endpoint) => endpoint.chat(),
            Err(why) => return Err(ApiError::Network { message: why.clone() }.into()),
        };
        let scene = self.scene()?;
        let tools = tools::offered(scene.client_tools, &scene.cwd);
        let request = Request {
            model: &scene.model,
            messages: &scene.messages,
            max_tokens: shared.config.max_tokens,
            temperature: shared.config.temperature,
            tools: &tools,
            extra: &shared.config.extra_body,
        };
        let mut made = 0;
        loop {
            let quirks = shared.quirks(&scene.model);
            made += 1;
            let failure = match shared.http.post(&self.http, &url, &request.body(quirks)) {
                Ok(answer) => return self.listen(answer),
                Err(failure) => failure,
            };
            self.check_running()?;
            let mut status = None;
            if let ApiError::Status { status: code, message } = &failure.fault {
                status = Some(*code);
                if let Some(learned) = request.learn(quirks, *code, message) {
                    shared.learn(&scene.model, learned);
                    made -= 1;
                    continue;
                }
            } else {
                // A connection that was kept too long may be what failed.
                self.renew_http()?;
            }
            let pause = retry::pause(shared.config.patience, made, status, &failure.hint, shared.chance());
            let Some(pause) = pause else { return Err(failure.fault.into()) };
            let text = shared.config.redact(&failure.fault.text(&shown(&url)));
            log(format_args!("{} (trying again in {pause:.1?})", text.replace('\n', " ")));
            self.rest(pause)?;
        }
    }

    fn scene(&self) -> Result<Scene, TurnEnded> {
        let config = &self.shared.config;
        let state = self.session.lock_for(self.number)?;
        let record = &state.record;
        Ok(Scene {
            model: record.model.clone().unwrap_or_else(|| config.model.clone()),
            cwd: PathBuf::from(&record.cwd),
            client_tools: self.shared.client_tools(record.mode),
            messages: to_send(config.system_prompt.as_deref(), &record.history, config.history_tokens),
        })
    }

    fn listen(&mut self, answer: Answer) -> Result<Reply, End> {
        let mut reply = Reply::new(self.shared.config.has_think_tags);
        if !answer.is_stream {
            return self.listen_once(answer, reply);
        }
        let (mut parser, mut events, mut pieces) = (Parser::default(), Vec::new(), Vec::new());
        let (mut reader, mut buffer) = (answer.into_reader(), vec![0; 16 << 10]);
        let (mut watchdog, mut has_come, mut is_over) = (None, false, false);
        while !is_over {
            let count = match reader.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) if reply.is_done() || reply.has_finished() => {
                    self.renew_http()?;
                    break;
                }
                Err(error) => {
                    self.check_running()?;
                    return Err(read_fault(&error).into());
                }
            };
            is_over = count == 0;
            has_come |= count > 0;
            if is_over {
                std::mem::take(&mut parser).finish(&mut events);
            } else if parser.push(&buffer[..count], &mut events).is_err() {
                return Err(ApiError::Broken { message: "an event of it has no end".to_owned() }.into());
            }
            for event in events.drain(..) {
                if !reply.is_done()
                    && let Some(words) = reply.event(&event, &mut pieces)?
                {
                    log(format_args!("{words}"));
                }
            }
            self.say_pieces(&mut pieces)?;
            if watchdog.is_none() && (reply.is_done() || reply.has_finished()) {
                watchdog = Some(Watchdog::new(self.http.clone(), AFTERWARDS));
            }
        }
        drop(watchdog);
        // A stream that was shut down looks like one that is over.
        self.check_running()?;
        let whole = reply.end(&mut pieces);
        self.say_pieces(&mut pieces)?;
        if !has_come {
            return Err(ApiError::NoBody.into());
        }
        whole?;
        Ok(reply)
    }

    /// A server that does not stream, though it was asked to.
    fn listen_once(&mut self, answer: Answer, mut reply: Reply) -> Result<Reply, End> {
        let (mut body, mut pieces) = (Vec::new(), Vec::new());
        let read = answer.into_reader().take(BODY_BYTES).read_to_end(&mut body);
        self.check_running()?;
        read.map_err(|error| read_fault(&error))?;
        if body.trim_ascii().is_empty() {
            return Err(ApiError::NoBody.into());
        }
        let Ok(whole) = serde_json::from_slice::<Value>(&body) else {
            return Err(ApiError::Broken { message: "it is no JSON".to_owned() }.into());
        };
        reply.chunk(&whole, &mut pieces)?;
        let ended = reply.end(&mut pieces);
        self.say_pieces(&mut pieces)?;
        ended?;
        Ok(reply)
    }

    /// Waits, unless the turn ends meanwhile.
    fn rest(&self, pause: Duration) -> Result<(), TurnEnded> {
        let until = Instant::now() + pause;
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Ok(TurnEvent::Response(..)) => {}
                Ok(TurnEvent::Ended) | Err(RecvTimeoutError::Disconnected) => return Err(TurnEnded),
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

    /// Asks the client and waits. The inner error is what the client, or the wait, says.
    pub(super) fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        patience: Option<Duration>,
    ) -> Result<Result<T, String>, TurnEnded> {
        let id = {
            let _state = self.session.lock_for(self.number)?;
            let id = self.shared.await_answer(self.event_tx.clone());
            self.shared.writer.request(id, method, params);
            id
        };
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            let events = match until {
                None => self.events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.events.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match events {
                Ok(TurnEvent::Response(answered, outcome)) if answered == id => {
                    let read = |result: Box<serde_json::value::RawValue>| {
                        serde_json::from_str(result.get()).map_err(|error| format!("{method}: {error}"))
                    };
                    return Ok(outcome.and_then(read));
                }
                Ok(TurnEvent::Response(..)) => {}
                Ok(TurnEvent::Ended) | Err(RecvTimeoutError::Disconnected) => {
                    self.shared.forget_answer(id);
                    return Err(TurnEnded);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.shared.forget_answer(id);
                    return Ok(Err(format!("{method}: no answer in time")));
                }
            }
        }
    }

    fn check_running(&self) -> Result<(), TurnEnded> {
        self.session.lock_for(self.number).map(|_| ())
    }

    pub(super) fn say(&self, update: acp::SessionUpdate) -> Result<(), TurnEnded> {
        let _state = self.session.lock_for(self.number)?;
        self.shared.writer.update(&self.session.id, update);
        Ok(())
    }

    pub(super) fn client_tools(&self) -> Result<(ClientTools, Mode, PathBuf), TurnEnded> {
        let state = self.session.lock_for(self.number)?;
        let mode = state.record.mode;
        Ok((self.shared.client_tools(mode), mode, Path::new(&state.record.cwd).to_owned()))
    }

    /// What came at once is said at once, and in as few words.
    fn say_pieces(&mut self, pieces: &mut Vec<Piece>) -> Result<(), TurnEnded> {
        let mut pieces = pieces.drain(..).peekable();
        while let Some(mut piece) = pieces.next() {
            while let Some(more) =
                pieces.next_if(|next| std::mem::discriminant(next) == std::mem::discriminant(&piece))
            {
                let (Piece::Text(text) | Piece::Thought(text)) = &mut piece;
                let (Piece::Text(more) | Piece::Thought(more)) = more;
                text.push_str(&more);
            }
            self.say(match &piece {
                Piece::Text(text) => agent_text(text),
                Piece::Thought(text) => agent_thought(text),
            })?;
            self.has_said |= matches!(piece, Piece::Text(_));
        }
        Ok(())
    }

    fn keep(&self, messages: Vec<Message>) -> Result<(), TurnEnded> {
        let mut state = self.session.lock_for(self.number)?;
        for message in messages {
            self.shared.keep(&self.session.id, &mut state.record, Entry::Message(message));
        }
        Ok(())
    }

    fn report_usage(&mut self, usage: Option<Usage>) -> Result<(), TurnEnded> {
        let Some(usage) = usage else { return Ok(()) };
        let sum = self.usage.get_or_insert_default();
        sum.add(usage);
        let state = self.session.lock_for(self.number)?;
        let config = &self.shared.config;
        let model = state.record.model.as_deref().unwrap_or(&config.model);
        let size = self.shared.models().context_tokens(model).unwrap_or(config.context_tokens);
        let update = acp::UsageUpdate::new(usage.total, size);
        self.shared.writer.update(&self.session.id, acp::SessionUpdate::UsageUpdate(update));
        Ok(())
    }

    fn finish(&self, reason: acp::StopReason) -> Result<(), TurnEnded> {
        let usage = self.usage.map(|usage| {
            acp::Usage::new(usage.total, usage.input, usage.output)
                .thought_tokens(Some(usage.thought).filter(|count| *count > 0))
                .cached_read_tokens(Some(usage.cached).filter(|count| *count > 0))
        });
        self.answer(Ok(&acp::PromptResponse::new(reason).usage(usage)))
    }

    fn fail(&self, fault: &ApiError) -> Result<(), TurnEnded> {
        let config = &self.shared.config;
        let url =
            config.endpoint.as_ref().map_or_else(|_| "OPENAI_BASE_URL".to_owned(), |url| shown(&url.chat()));
        let text = config.redact(&fault.text(&url));
        log(format_args!("{}", text.replace('\n', " ")));
        if self.shared.options.errors == Errors::Rpc {
            let mut error = fault.rpc(&url);
            error["message"] = Value::String(text);
            return self.answer(Err::<&(), _>(&error));
        }
        // Apart from what the model had said so far.
        let gap = if self.has_said { "\n\n" } else { "" };
        self.say(agent_text(&format!("{gap}{text}")))?;
        self.finish(acp::StopReason::EndTurn)
    }

    fn answer(&self, outcome: Result<&impl Serialize, &Value>) -> Result<(), TurnEnded> {
        let mut state = self.session.lock_for(self.number)?;
        let running = state.turn.take().expect("the lock is only had while it runs");
        // Before the answer, so that the next prompt finds the connection.
        self.shared.http.give_back(running.http);
        self.shared.writer.respond_later(&running.caller, outcome);
        Ok(())
    }
}
