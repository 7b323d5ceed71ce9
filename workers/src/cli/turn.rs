//! A turn: one process of the CLI, from the prompt to the answer.
//!
//! The thread hears what the CLI prints, what the client orders and how time passes, in one loop. A turn is complete
//! only when the CLI has said so; an exit code of zero says nothing. One that is cancelled is answered when the
//! process and everything that it started is gone.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::argv::{self, Values};
use super::conversation::{self, Questions};
use super::format::{self, Format, is_auth};
use super::house::House;
use super::process::{Process, Start};
use super::record::{Entry, Record, condensed};
use super::runtimes::Delivery;
use super::session::{News, Orders, Running, Session, State};
use super::told::{End, Told};
use super::{log, shapes};
use crate::out::Waiter;

/// Between two looks at whether the process has ended.
const TICK: Duration = Duration::from_millis(20);
/// How long it may take to end after an interrupt, and then after SIGTERM.
const INTERRUPTED: Duration = Duration::from_secs(2);
const TERMINATED: Duration = Duration::from_secs(3);
/// Each of them when the worker itself must leave.
const HURRIED: Duration = Duration::from_millis(500);
/// How long one of stdout and the process may live without the other: a tool may still hold the pipe.
const APART: Duration = Duration::from_millis(500);
/// How long it may say nothing after its result.
const LINGERING: Duration = Duration::from_secs(60);
/// Lines that wait to be read; a CLI that is faster than the client waits.
const LINES: usize = 256;

/// The words say why it did not begin.
pub(super) fn begin(
    house: &Arc<House>,
    session: &Arc<Session>,
    state: &mut State,
    waiter: Waiter,
    prompt: String,
) -> io::Result<()> {
    let (sender, news) = mpsc::sync_channel(LINES);
    let orders = Arc::new(Orders::default());
    let asked = acp::ContentChunk::new(acp::ContentBlock::from(prompt.clone()));
    let asked = acp::SessionUpdate::UserMessageChunk(asked);
    house.keep(&session.name, &mut state.record, Entry::Update(Box::new(asked)));
    let record = state.record.clone();
    let mcp_servers = state.mcp_servers.clone();
    let turn = (house.clone(), session.clone(), orders.clone(), sender.clone());
    state.turn = Some(Running { waiter, orders, news: sender });
    let body = move || {
        let (house, session, orders, sender) = turn;
        let mut told = Told::new(record.cwd.as_ref(), record.total);
        told.turn = record.updates.len();
        let mut turn = Turning {
            told,
            format: format::of(house.turn.format),
            said: Vec::new(),
            questions: Questions::default(),
            house: &house,
            session: &session,
            orders: &orders,
        };
        let mcp_config = McpConfig::write(&house, &mcp_servers);
        let end = match turn.start(&record, &prompt, mcp_config.as_ref(), sender) {
            Ok(process) => turn.listen(process, &news),
            Err(message) => End::Fault { is_auth: false, message },
        };
        drop(mcp_config);
        turn.finish(end);
    };
    let spawned = thread::Builder::new().name("turn".to_owned()).spawn(body);
    if spawned.is_err() {
        state.turn = None;
    }
    spawned.map(|_| ())
}

struct Turning<'a> {
    house: &'a House,
    session: &'a Arc<Session>,
    orders: &'a Orders,
    told: Told,
    format: Box<dyn Format>,
    /// All that the client was told, to be kept.
    said: Vec<acp::SessionUpdate>,
    questions: Questions,
}

/// What is being done to end the process.
#[derive(PartialEq)]
enum Ladder {
    Running,
    Interrupted(Instant),
    Terminated(Instant),
}

impl Turning<'_> {
    fn start(
        &self,
        record: &Record,
        prompt: &str,
        mcp_config: Option<&McpConfig>,
        news: mpsc::SyncSender<News>,
    ) -> Result<Process, String> {
        let house = self.house;
        let program = house.program()?;
        let mode = shapes::mode_of(house, record);
        let args = argv::arguments(
            &house.turn,
            &Values {
                cwd: &record.cwd,
                session: record.cli.as_deref(),
                model: shapes::model_of(house, record),
                effort: record.effort.as_deref().filter(|effort| *effort != shapes::USUAL),
                mode: Some(&mode),
                mcp_config: mcp_config.map(|config| config.path.as_path()),
                prompt,
            },
        )?;
        let mark = format!("{}.{}.{}", process::id(), self.session.name, house.next_turn());
        let start = Start { program: &program, args: &args, env: &house.turn.env, cwd: &record.cwd, mark };
        let mut process = Process::start(start, news)
            .map_err(|error| format!("{} did not start: {error}", program.display()))?;
        match house.turn.prompt {
            Delivery::Conversation => process.say(conversation::prompt(prompt)),
            Delivery::Stdin => {
                process.say(prompt.to_owned());
                process.hang_up();
            }
            Delivery::Argument => process.hang_up(),
        }
        Ok(process)
    }

    /// Hears the CLI until it is gone.
    fn listen(&mut self, mut process: Process, news: &Receiver<News>) -> End {
        let began = Instant::now();
        let (mut heard, mut silent_since, mut exited) = (None, None, None);
        let mut ladder = Ladder::Running;
        let mut silence = None;
        loop {
            match news.recv_timeout(TICK) {
                Ok(News::Line(line)) => {
                    heard = Some(Instant::now());
                    self.format.line(&line, &mut self.told);
                    self.tell();
                    self.converse(&line, &mut process);
                }
                Ok(News::Silence) => silent_since = Some(Instant::now()),
                Ok(News::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the session has a sender"),
            }
            let now = Instant::now();
            self.pass_on_answers(&process);
            if !self.questions.is_empty() {
                // It waits for a person, and says nothing meanwhile.
                heard = Some(now);
            }
            if exited.is_none() {
                exited = process.exited().map(|status| (status, now));
            }
            if let Some((status, since)) = exited {
                if silent_since.is_some() || now > since + APART {
                    self.format.ends(status.code(), &mut self.told);
                    let is_good = ladder == Ladder::Running && self.told.end.is_some();
                    if !is_good {
                        process.kill_all();
                    }
                    return self.conclude(status.to_string(), &process, silence);
                }
                continue;
            }
            if silence.is_none() && ladder == Ladder::Running {
                silence = self.silence(began, heard.max(process.muttered()), now);
            }
            // One that has closed its stdout and does not leave is not waited for; one that has told its result may
            // still have tasks in the background.
            let has_ended = self.told.end.is_some() && heard.is_some_and(|heard| now > heard + LINGERING);
            let hangs = has_ended || silent_since.is_some_and(|since| now > since + INTERRUPTED);
            let is_over = self.orders.is_cancelled() || silence.is_some() || hangs;
            ladder = self.step(ladder, is_over, &mut process, now);
        }
    }

    /// What is said on a stdin that stays open: it may ask, and with its result it is hung up.
    fn converse(&mut self, line: &[u8], process: &mut Process) {
        if self.house.turn.prompt != Delivery::Conversation {
            return;
        }
        if let Some(answer) = self.questions.hear(line, self.house, self.session) {
            process.say(answer);
        }
        if self.told.end.is_some() {
            process.hang_up();
        }
    }

    fn pass_on_answers(&mut self, process: &Process) {
        let answers = std::mem::take(&mut *self.orders.answers.lock().expect("nobody panics with it"));
        for (id, result) in answers {
            if let Some(decision) = self.questions.answer(id, &result) {
                process.say(decision);
            }
        }
    }

    fn step(&self, ladder: Ladder, is_over: bool, process: &mut Process, now: Instant) -> Ladder {
        let wait = |usual: Duration| now + if self.orders.is_in_a_hurry() { HURRIED } else { usual };
        match ladder {
            Ladder::Running if is_over => {
                match self.house.turn.prompt {
                    Delivery::Conversation => process.say(conversation::interrupt()),
                    _ => process.signal(Signal::SIGINT),
                }
                Ladder::Interrupted(wait(INTERRUPTED))
            }
            Ladder::Interrupted(until) if now > until.min(wait(INTERRUPTED)) => {
                process.signal(Signal::SIGTERM);
                Ladder::Terminated(wait(TERMINATED))
            }
            Ladder::Terminated(until) if now > until.min(wait(TERMINATED)) => {
                process.kill_all();
                Ladder::Terminated(until)
            }
            ladder => ladder,
        }
    }

    /// Why it is taken for dead. Only silence counts, never how long a turn takes.
    fn silence(&self, began: Instant, heard: Option<Instant>, now: Instant) -> Option<String> {
        let options = &self.house.options;
        let (since, limit) = match heard {
            None => (began, options.first_output),
            Some(heard) => (heard, options.silence),
        };
        let is_over = !limit.is_zero() && now.saturating_duration_since(since) > limit;
        is_over.then(|| format!("it said nothing for {} s and was ended", limit.as_secs()))
    }

    fn conclude(&mut self, status: String, process: &Process, silence: Option<String>) -> End {
        if self.orders.is_cancelled() {
            return End::Stop(acp::StopReason::Cancelled);
        }
        if let Some(message) = silence {
            return End::Fault { is_auth: false, message };
        }
        if let Some(end) = self.told.end.take() {
            return end;
        }
        let words = process.last_words();
        let message = match words.is_empty() {
            true => format!("it ended without a result ({status})"),
            false => format!("it ended without a result ({status}): {words}"),
        };
        End::Fault { is_auth: is_auth(&words), message }
    }

    fn tell(&mut self) {
        for update in self.told.updates.drain(..) {
            self.house.out.update(&self.session.name, update.clone());
            self.said.push(update);
        }
    }

    fn finish(mut self, end: End) {
        self.told.close_open_calls();
        self.tell();
        self.questions.forget(self.house);
        if self.told.unknown > 0 {
            let (name, unknown) = (&self.session.name, self.told.unknown);
            log(format_args!("session {name}: {unknown} lines or events were not understood"));
        }
        let mut state = self.session.lock();
        self.remember(&mut state.record);
        let Some(running) = state.turn.take() else { return };
        let ordered = self.orders.error.lock().expect("nobody panics with it").take();
        match (ordered, end) {
            (Some(error), _) => self.house.out.answer_waiter(&running.waiter, Err::<&Value, _>(&error)),
            (None, End::Stop(reason)) => {
                let usage = self.told.tokens.map(|tokens| tokens.usage());
                let mut answer = json!(acp::PromptResponse::new(reason).usage(usage));
                if let Some(id) = &state.record.cli {
                    answer["_meta"] = json!({ "cliSessionId": id });
                }
                self.house.out.answer_waiter(&running.waiter, Ok(&answer));
            }
            (None, End::Fault { is_auth, message }) => {
                let error = self.house.error(is_auth, &message);
                self.house.out.answer_waiter(&running.waiter, Err::<&Value, _>(&error));
            }
        }
    }

    fn remember(&mut self, record: &mut Record) {
        let name = &self.session.name;
        if let Some(id) = self.told.session.take().filter(|id| argv::is_session(id))
            && record.cli.as_ref() != Some(&id)
        {
            self.house.keep(name, record, Entry::Cli(id));
        }
        if record.total != self.told.total {
            self.house.keep(name, record, Entry::Total(self.told.total));
        }
        for update in condensed(std::mem::take(&mut self.said)) {
            self.house.keep(name, record, Entry::Update(Box::new(update)));
        }
    }
}

/// The MCP servers of a turn, in a file that only the user can read: they may have secrets in them.
struct McpConfig {
    path: PathBuf,
}

impl McpConfig {
    /// `None`: there are none, or the CLI takes none.
    fn write(house: &House, servers: &[acp::McpServer]) -> Option<McpConfig> {
        let takes =
            house.turn.args.iter().flat_map(|arg| arg.words()).any(|word| word.contains("{mcp_config}"));
        if servers.is_empty() {
            return None;
        }
        let folder = house.folder.as_deref().filter(|_| takes);
        let Some(folder) = folder else {
            log(format_args!("{} MCP servers are not used: {} takes none", servers.len(), house.row.id));
            return None;
        };
        let path = folder.join(format!("mcp.{}.{}.json", process::id(), house.next_turn()));
        let text = json!({ "mcpServers": mcp_servers(servers) }).to_string();
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        match open.and_then(|mut file| file.write_all(text.as_bytes())) {
            Ok(()) => Some(McpConfig { path }),
            Err(error) => {
                log(format_args!("{}: {error}", path.display()));
                None
            }
        }
    }
}

impl Drop for McpConfig {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn mcp_servers(servers: &[acp::McpServer]) -> serde_json::Map<String, Value> {
    let pairs = |list: &Value| -> Value {
        let pair = |one: &Value| Some((one["name"].as_str()?.to_owned(), one["value"].clone()));
        Value::Object(list.as_array().into_iter().flatten().filter_map(pair).collect())
    };
    let mut all = serde_json::Map::new();
    for server in servers {
        let mut shape = json!(server);
        let name = shape["name"].as_str().unwrap_or_default().to_owned();
        for key in ["env", "headers"] {
            if shape[key].is_array() {
                shape[key] = pairs(&shape[key]);
            }
        }
        if let Some(object) = shape.as_object_mut() {
            object.remove("name");
        }
        all.insert(name, shape);
    }
    all
}
