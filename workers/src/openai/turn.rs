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

use super::convert::{agent_text, agent_thought};
use super::fault::Fault;
use super::history::to_send;
use super::house::House;
use super::http::{Answer, Watchdog, read_fault};
use super::record::{Entry, Mode};
use super::reply::{Finish, Reply, Usage};
use super::retry;
use super::session::{Gone, News, Running, Session, State};
use super::sse::Parser;
use super::think::Piece;
use super::tools::{self, Hands};
use super::url::shown;
use super::wire::{Message, Request};
use super::{Errors, log};
use crate::out::Waiter;

/// After the answer is complete: how long to wait for its usage and for the end of the stream, without which the
/// connection cannot be used again.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// The largest answer that comes as one JSON object.
const BODY_BYTES: u64 = 64 << 20;

pub(super) struct Turn {
    pub(super) house: Arc<House>,
    pub(super) session: Arc<Session>,
    pub(super) number: u64,
    news: Receiver<News>,
    to_news: Sender<News>,
    http: ureq::Agent,
    /// How long the history was before the prompt.
    before: usize,
    usage: Option<Usage>,
    has_said: bool,
}

/// Why a turn ends before its time.
pub(super) enum End {
    /// Somebody else has ended and answered it.
    Gone,
    /// The client wants no more of it.
    Cancelled,
    Fault(Fault),
}

impl From<Gone> for End {
    fn from(_: Gone) -> End {
        End::Gone
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Fault(fault)
    }
}

/// What a turn needs to know of its session for one request.
struct Scene {
    model: String,
    cwd: PathBuf,
    hands: Hands,
    messages: Vec<Message>,
}

/// Begins the turn of a prompt that stands in the history already, at this place.
pub(super) fn begin(
    house: &Arc<House>,
    session: &Arc<Session>,
    state: &mut State,
    waiter: Waiter,
    before: usize,
) -> Result<(), String> {
    let (to_news, news) = channel();
    let (number, http) = (house.next_turn(), house.http.take());
    let turn = Turn {
        house: house.clone(),
        session: session.clone(),
        number,
        news,
        to_news: to_news.clone(),
        http: http.clone(),
        before,
        usage: None,
        has_said: false,
    };
    let thread = thread::Builder::new().name(session.name.clone()).spawn(move || turn.run());
    thread.map_err(|error| format!("no thread for the prompt: {error}"))?;
    // The thread says nothing before it has had the lock, which is held here.
    state.turn = Some(Running { number, waiter, news: to_news, http });
    Ok(())
}

impl Turn {
    fn run(mut self) {
        // One that is gone has been answered by whoever ended it.
        let _ = match self.converse() {
            Ok(reason) => self.finish(reason),
            Err(End::Cancelled) => self.finish(acp::StopReason::Cancelled),
            Err(End::Fault(fault)) => self.fail(&fault),
            Err(End::Gone) => Err(Gone),
        };
    }

    fn converse(&mut self) -> Result<acp::StopReason, End> {
        for step in 0..self.house.config.max_steps {
            let mut reply = self.complete()?;
            self.tell_usage(reply.usage)?;
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
            self.house.keep(&self.session.name, &mut state.record, Entry::Rewind(self.before));
            return Ok(acp::StopReason::Refusal);
        }
        if !reply.text.is_empty() {
            self.keep(vec![Message::Assistant { content: Some(reply.text), tool_calls: Vec::new() }])?;
        }
        Ok(if finish == Finish::Length { acp::StopReason::MaxTokens } else { acp::StopReason::EndTurn })
    }

    /// One answer of the model: asked for, tried again where that may help, and said as it comes.
    fn complete(&mut self) -> Result<Reply, End> {
        let house = self.house.clone();
        let url = match &house.config.endpoint {
            Ok(endpoint) => endpoint.chat(),
            Err(why) => return Err(Fault::Network { message: why.clone() }.into()),
        };
        let scene = self.scene()?;
        let tools = tools::offered(scene.hands, &scene.cwd);
        let request = Request {
            model: &scene.model,
            messages: &scene.messages,
            max_tokens: house.config.max_tokens,
            temperature: house.config.temperature,
            tools: &tools,
            extra: &house.config.extra_body,
        };
        let mut made = 0;
        loop {
            let quirks = house.quirks(&scene.model);
            made += 1;
            let failure = match house.http.post(&self.http, &url, &request.body(quirks)) {
                Ok(answer) => return self.listen(answer),
                Err(failure) => failure,
            };
            self.still_runs()?;
            let mut status = None;
            if let Fault::Status { status: code, message } = &failure.fault {
                status = Some(*code);
                if let Some(learned) = request.learn(quirks, *code, message) {
                    house.learn(&scene.model, learned);
                    made -= 1;
                    continue;
                }
            } else {
                // A connection that was kept too long may be what failed.
                self.renew_http()?;
            }
            let pause = retry::pause(house.config.patience, made, status, &failure.wish, house.chance());
            let Some(pause) = pause else { return Err(failure.fault.into()) };
            let text = house.config.redact(&failure.fault.text(&shown(&url)));
            log(format_args!("{} (trying again in {pause:.1?})", text.replace('\n', " ")));
            self.rest(pause)?;
        }
    }

    fn scene(&self) -> Result<Scene, Gone> {
        let config = &self.house.config;
        let state = self.session.lock_for(self.number)?;
        let record = &state.record;
        Ok(Scene {
            model: record.model.clone().unwrap_or_else(|| config.model.clone()),
            cwd: PathBuf::from(&record.cwd),
            hands: self.house.hands(record.mode),
            messages: to_send(config.system_prompt.as_deref(), &record.history, config.history_tokens),
        })
    }

    fn listen(&mut self, answer: Answer) -> Result<Reply, End> {
        let mut reply = Reply::new(self.house.config.has_think_tags);
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
                    self.still_runs()?;
                    return Err(read_fault(&error).into());
                }
            };
            is_over = count == 0;
            has_come |= count > 0;
            if is_over {
                std::mem::take(&mut parser).finish(&mut events);
            } else if parser.push(&buffer[..count], &mut events).is_err() {
                return Err(Fault::Broken { message: "an event of it has no end".to_owned() }.into());
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
        self.still_runs()?;
        let whole = reply.end(&mut pieces);
        self.say_pieces(&mut pieces)?;
        if !has_come {
            return Err(Fault::NoBody.into());
        }
        whole?;
        Ok(reply)
    }

    /// A server that does not stream, though it was asked to.
    fn listen_once(&mut self, answer: Answer, mut reply: Reply) -> Result<Reply, End> {
        let (mut body, mut pieces) = (Vec::new(), Vec::new());
        let read = answer.into_reader().take(BODY_BYTES).read_to_end(&mut body);
        self.still_runs()?;
        read.map_err(|error| read_fault(&error))?;
        if body.trim_ascii().is_empty() {
            return Err(Fault::NoBody.into());
        }
        let Ok(whole) = serde_json::from_slice::<Value>(&body) else {
            return Err(Fault::Broken { message: "it is no JSON".to_owned() }.into());
        };
        reply.chunk(&whole, &mut pieces)?;
        let ended = reply.end(&mut pieces);
        self.say_pieces(&mut pieces)?;
        ended?;
        Ok(reply)
    }

    /// Waits, unless the turn ends meanwhile.
    fn rest(&self, pause: Duration) -> Result<(), Gone> {
        let until = Instant::now() + pause;
        loop {
            match self.news.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Ok(News::Answer(..)) => {}
                Ok(News::Over) | Err(RecvTimeoutError::Disconnected) => return Err(Gone),
            }
        }
    }

    fn renew_http(&mut self) -> Result<(), Gone> {
        let fresh = self.house.http.take();
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
    ) -> Result<Result<T, String>, Gone> {
        let id = {
            let _state = self.session.lock_for(self.number)?;
            let id = self.house.await_answer(self.to_news.clone());
            self.house.out.ask(id, method, params);
            id
        };
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            let news = match until {
                None => self.news.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => self.news.recv_timeout(until.saturating_duration_since(Instant::now())),
            };
            match news {
                Ok(News::Answer(answered, outcome)) if answered == id => {
                    let read = |result: Box<serde_json::value::RawValue>| {
                        serde_json::from_str(result.get()).map_err(|error| format!("{method}: {error}"))
                    };
                    return Ok(outcome.and_then(read));
                }
                Ok(News::Answer(..)) => {}
                Ok(News::Over) | Err(RecvTimeoutError::Disconnected) => {
                    self.house.forget_answer(id);
                    return Err(Gone);
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.house.forget_answer(id);
                    return Ok(Err(format!("{method}: no answer in time")));
                }
            }
        }
    }

    fn still_runs(&self) -> Result<(), Gone> {
        self.session.lock_for(self.number).map(|_| ())
    }

    pub(super) fn say(&self, update: acp::SessionUpdate) -> Result<(), Gone> {
        let _state = self.session.lock_for(self.number)?;
        self.house.out.update(&self.session.name, update);
        Ok(())
    }

    pub(super) fn hands(&self) -> Result<(Hands, Mode, PathBuf), Gone> {
        let state = self.session.lock_for(self.number)?;
        let mode = state.record.mode;
        Ok((self.house.hands(mode), mode, Path::new(&state.record.cwd).to_owned()))
    }

    /// What came at once is said at once, and in as few words.
    fn say_pieces(&mut self, pieces: &mut Vec<Piece>) -> Result<(), Gone> {
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

    fn keep(&self, messages: Vec<Message>) -> Result<(), Gone> {
        let mut state = self.session.lock_for(self.number)?;
        for message in messages {
            self.house.keep(&self.session.name, &mut state.record, Entry::Message(message));
        }
        Ok(())
    }

    fn tell_usage(&mut self, usage: Option<Usage>) -> Result<(), Gone> {
        let Some(usage) = usage else { return Ok(()) };
        let sum = self.usage.get_or_insert_default();
        sum.add(usage);
        let state = self.session.lock_for(self.number)?;
        let config = &self.house.config;
        let model = state.record.model.as_deref().unwrap_or(&config.model);
        let size = self.house.models().context_tokens(model).unwrap_or(config.context_tokens);
        let update = acp::UsageUpdate::new(usage.total, size);
        self.house.out.update(&self.session.name, acp::SessionUpdate::UsageUpdate(update));
        Ok(())
    }

    fn finish(&self, reason: acp::StopReason) -> Result<(), Gone> {
        let usage = self.usage.map(|usage| {
            acp::Usage::new(usage.total, usage.input, usage.output)
                .thought_tokens(Some(usage.thought).filter(|count| *count > 0))
                .cached_read_tokens(Some(usage.cached).filter(|count| *count > 0))
        });
        self.answer(Ok(&acp::PromptResponse::new(reason).usage(usage)))
    }

    fn fail(&self, fault: &Fault) -> Result<(), Gone> {
        let config = &self.house.config;
        let url =
            config.endpoint.as_ref().map_or_else(|_| "OPENAI_BASE_URL".to_owned(), |url| shown(&url.chat()));
        let text = config.redact(&fault.text(&url));
        log(format_args!("{}", text.replace('\n', " ")));
        if self.house.options.errors == Errors::Rpc {
            let mut error = fault.rpc(&url);
            error["message"] = Value::String(text);
            return self.answer(Err::<&(), _>(&error));
        }
        // Apart from what the model had said so far.
        let gap = if self.has_said { "\n\n" } else { "" };
        self.say(agent_text(&format!("{gap}{text}")))?;
        self.finish(acp::StopReason::EndTurn)
    }

    fn answer(&self, outcome: Result<&impl Serialize, &Value>) -> Result<(), Gone> {
        let mut state = self.session.lock_for(self.number)?;
        let running = state.turn.take().expect("the lock is only had while it runs");
        // Before the answer, so that the next prompt finds the connection.
        self.house.http.give_back(running.http);
        self.house.out.answer_waiter(&running.waiter, outcome);
        Ok(())
    }
}
