//! The thread that holds the process of a session, where one is kept open.
//!
//! It lives as long as the process: from the opening of the session, or its next prompt, until the session is closed,
//! the process ends by itself, or no prompt has come for long. It alone answers the session's prompts. A process that
//! is gone is started again by the next prompt and told to go on with the session.

use std::collections::HashMap;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::bridge::{self, Bridge, Opening, Settings, Wire};
use super::house::House;
use super::ladder::{self, INTERRUPTED, Ladder};
use super::mcp::McpConfig;
use super::process::Process;
use super::record::Entry;
use super::session::{Leave, News, Next, Orders, Session, State};
use super::telling::Telling;
use super::told::{End, Told};
use super::turn::{self, APART, LINES, TICK};
use super::{log, shapes};

/// How often a process is started for one prompt.
const ATTEMPTS: u32 = 3;
/// Between two looks of one that waits and is never too long idle.
const LONG: Duration = Duration::from_secs(3600);

/// Wakes the thread that holds the session's process, or starts it. What it is to do stands in `state`.
pub(super) fn rouse(
    house: &Arc<House>,
    session: &Arc<Session>,
    state: &mut State,
) -> io::Result<SyncSender<News>> {
    if let Some(news) = &state.holder {
        state.wake();
        return Ok(news.clone());
    }
    // Replaced by that of the process as soon as there is one.
    let (sender, _) = mpsc::sync_channel(0);
    let (house, session) = (house.clone(), session.clone());
    let body = move || {
        let telling = Telling::new(&house, &session);
        Holder { telling, line: None, questions: HashMap::new(), is_lost: false, was_dying: false }.live();
    };
    thread::Builder::new().name("holder".to_owned()).spawn(body)?;
    state.holder = Some(sender.clone());
    Ok(sender)
}

struct Holder<'a> {
    telling: Telling<'a>,
    line: Option<Line>,
    /// What the client was asked and has not answered: the id, and the bridge's key.
    questions: HashMap<u64, String>,
    /// The CLI has just said that it does not know the session.
    is_lost: bool,
    /// The process has just ended and had not said a word since the prompt.
    was_dying: bool,
}

/// The process, and what is spoken with it.
struct Line {
    process: Process,
    bridge: Box<dyn Bridge>,
    news: Receiver<News>,
    settings: Settings,
    /// What it was started with and cannot be told later.
    cwd: String,
    mcp_servers: Vec<acp::McpServer>,
    /// The next prompt needs a new process.
    is_stale: bool,
    has_spoken: bool,
    /// Whether what the CLI calls the session was kept.
    is_named: bool,
    /// Read by the CLI when it starts, or later.
    _mcp_config: Option<McpConfig>,
}

impl Holder<'_> {
    fn live(mut self) {
        if self.telling.session.lock().next.is_none()
            && let Err(why) = self.open()
        {
            // Whoever prompts will be told.
            log(format_args!("session {}: {why}", self.telling.session.name));
        }
        while let Some(next) = self.rest() {
            let end = self.play(&next);
            self.forget_questions();
            self.telling.finish(&next.orders, end);
        }
    }

    /// Waits for the next prompt, and hears what the CLI says meanwhile. `None`: the process is gone, and nobody waits.
    fn rest(&mut self) -> Option<Next> {
        let since = Instant::now();
        let idle = Some(self.telling.house.options.idle).filter(|idle| !idle.is_zero()).unwrap_or(LONG);
        let ends = !self.telling.house.options.idle.is_zero();
        loop {
            let mut state = self.telling.session.lock();
            if let Some(next) = state.next.take() {
                return Some(next);
            }
            let is_closed = state.leave.is_some();
            let Some(line) = &mut self.line else {
                // Under the lock, so that a prompt that comes now finds that nobody holds a process.
                self.telling.remember(&mut state.record);
                state.holder = None;
                return None;
            };
            drop(state);
            if is_closed || (ends && since.elapsed() >= idle) {
                self.close();
                continue;
            }
            match line.news.recv_timeout(idle.saturating_sub(since.elapsed()).max(TICK)) {
                Ok(News::Line(bytes)) => {
                    self.hear(&bytes);
                    // Of something that it did in the background.
                    self.telling.told.end = None;
                }
                Ok(News::Silence) | Err(RecvTimeoutError::Disconnected) => self.close(),
                Ok(News::Look) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.pass_on_answers();
            self.tune();
        }
    }

    fn play(&mut self, next: &Next) -> End {
        let mut attempt = 1;
        loop {
            if next.orders.is_cancelled() {
                return End::Stop(acp::StopReason::Cancelled);
            }
            if let Err(message) = self.make_ready() {
                return End::Fault { is_auth: false, message };
            }
            // Neither may be of the process before.
            (self.telling.told.end, self.telling.told.session) = (None, None);
            (self.is_lost, self.was_dying) = (false, false);
            self.with_bridge(|bridge, _, wire| bridge.prompt(&next.prompt, wire));
            let end = self.listen(&next.orders);
            let is_last = attempt == ATTEMPTS;
            attempt += 1;
            if self.was_dying && !is_last {
                // The prompt was not read, since the CLIs say at once that they have one. It was as good as gone, or
                // could not start beside another that starts: codex makes one database for all of them.
                continue;
            }
            if !self.is_lost || is_last {
                return end;
            }
            self.close();
            let mut state = self.telling.session.lock();
            if state.record.is_answered {
                let message = "the CLI no longer knows this session; begin a new one".to_owned();
                return End::Fault { is_auth: false, message };
            }
            // It was ended before it had kept anything, so nothing is lost by beginning again.
            self.telling.house.keep(&self.telling.session.name, &mut state.record, Entry::Cli(String::new()));
        }
    }

    /// Sees to it that there is a process with the right settings.
    fn make_ready(&mut self) -> Result<(), String> {
        self.tune();
        if let Some(line) = &mut self.line {
            let state = self.telling.session.lock();
            let has_moved = line.cwd != state.record.cwd || line.mcp_servers != state.mcp_servers;
            drop(state);
            if has_moved || line.is_stale || line.process.exited().is_some() {
                self.close();
            }
        }
        if self.line.is_none() { self.open() } else { Ok(()) }
    }

    fn open(&mut self) -> Result<(), String> {
        let (house, session) = (self.telling.house, self.telling.session);
        let mut bridge = bridge::of(house.turn.format).expect("the table was checked");
        let (sender, news) = mpsc::sync_channel(LINES);
        let mut state = session.lock();
        state.holder = Some(sender.clone());
        if let Some(running) = &mut state.turn {
            running.news = sender.clone();
        }
        let (record, mcp_servers) = (state.record.clone(), state.mcp_servers.clone());
        drop(state);
        let mcp_config = McpConfig::write(house, &mcp_servers);
        let process = turn::start(house, session, &record, "", mcp_config.as_ref(), sender)?;
        let settings = shapes::settings_of(house, &record);
        let mut wire = Wire::default();
        let opening = Opening {
            cwd: record.cwd.as_ref(),
            session: record.cli.as_deref(),
            fork: record.fork.as_deref().filter(|_| record.cli.is_none()),
            settings: &settings,
            mcp_servers: &mcp_servers,
        };
        bridge.open(&opening, &mut wire);
        self.line = Some(Line {
            process,
            bridge,
            news,
            settings,
            cwd: record.cwd,
            mcp_servers,
            is_stale: false,
            has_spoken: false,
            is_named: false,
            _mcp_config: mcp_config,
        });
        self.flush(wire);
        Ok(())
    }

    /// Ends the process, if there is one, with all that it started.
    fn close(&mut self) {
        let Some(line) = self.line.take() else { return };
        let session = self.telling.session;
        let is_hurried = || {
            let state = session.lock();
            let turn = state.turn.as_ref().is_some_and(|running| running.orders.is_in_a_hurry());
            turn || state.leave == Some(Leave::Now)
        };
        ladder::close(line.process, is_hurried);
        self.forget_questions();
    }

    /// Hears the CLI until the turn is over.
    fn listen(&mut self, orders: &Orders) -> End {
        let began = Instant::now();
        // One that has started is not given the time of a start.
        let mut heard = self.line.as_ref().is_some_and(|line| line.has_spoken).then_some(began);
        let (mut silent_since, mut exited) = (None, None::<(ExitStatus, Instant)>);
        let mut ladder = Ladder::Running;
        let mut silent = None;
        let mut has_spoken = false;
        loop {
            let Some(line) = &mut self.line else { unreachable!("the turn ends it itself") };
            match line.news.recv_timeout(TICK) {
                Ok(News::Line(bytes)) => {
                    heard = Some(Instant::now());
                    has_spoken = true;
                    self.hear(&bytes);
                }
                Ok(News::Silence) => silent_since = Some(Instant::now()),
                Ok(News::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the session has a sender"),
            }
            self.pass_on_answers();
            self.tune();
            if let Some(end) = self.telling.told.end.take() {
                return match silent {
                    _ if orders.is_cancelled() => End::Stop(acp::StopReason::Cancelled),
                    Some(message) => End::Fault { is_auth: false, message },
                    None => end,
                };
            }
            let now = Instant::now();
            if !self.questions.is_empty() {
                // It waits for a person, and says nothing meanwhile.
                heard = Some(now);
            }
            let Some(line) = &mut self.line else { unreachable!("the turn ends it itself") };
            exited = exited.or_else(|| line.process.exited().map(|status| (status, now)));
            if let Some((status, since)) = exited {
                if silent_since.is_some() || now > since + APART {
                    line.process.kill_all();
                    let end = self.telling.conclude(orders, silent, &line.process, &status.to_string());
                    self.line = None;
                    self.was_dying = !has_spoken && ladder == Ladder::Running;
                    return end;
                }
                continue;
            }
            if silent.is_none() && ladder == Ladder::Running {
                silent = turn::silence(self.telling.house, began, heard.max(line.process.muttered()));
            }
            let hangs = silent_since.is_some_and(|since| now > since + INTERRUPTED);
            let is_over = orders.is_cancelled() || silent.is_some() || hangs;
            let mut interrupts = false;
            let hurry = orders.is_in_a_hurry();
            ladder = ladder.step(hurry, is_over, &mut line.process, |_| interrupts = true);
            if interrupts {
                self.with_bridge(|bridge, told, wire| bridge.interrupt(told, wire));
            }
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        if bytes.trim_ascii().is_empty() {
            return;
        }
        if let Some(line) = &mut self.line {
            line.has_spoken = true;
        }
        match serde_json::from_slice::<Value>(bytes) {
            Ok(message) => self.with_bridge(|bridge, told, wire| bridge.hear(&message, told, wire)),
            Err(_) => self.telling.told.unknown += 1,
        }
        self.telling.tell();
        if let Some(line) = &mut self.line
            && !line.is_named
            && self.telling.told.session.is_some()
        {
            line.is_named = true;
            // At once: should the agent be killed, the session is still found.
            self.telling.remember(&mut self.telling.session.lock().record);
        }
    }

    /// Tells the process how the session is set now, if that has changed.
    fn tune(&mut self) {
        let house = self.telling.house;
        let settings = shapes::settings_of(house, &self.telling.session.lock().record);
        let Some(line) = self.line.as_mut().filter(|line| line.settings != settings) else { return };
        line.settings = settings.clone();
        let mut wire = Wire::default();
        line.is_stale |= !line.bridge.tune(&settings, &mut wire);
        self.flush(wire);
    }

    fn pass_on_answers(&mut self) {
        let answers = std::mem::take(&mut self.telling.session.lock().answers);
        for (id, result) in answers {
            if let Some(key) = self.questions.remove(&id) {
                self.with_bridge(|bridge, _, wire| bridge.answer(&key, &result, wire));
            }
        }
    }

    fn with_bridge(&mut self, act: impl FnOnce(&mut dyn Bridge, &mut Told, &mut Wire)) {
        let Some(line) = &mut self.line else { return };
        let mut wire = Wire::default();
        act(line.bridge.as_mut(), &mut self.telling.told, &mut wire);
        self.flush(wire);
    }

    fn flush(&mut self, wire: Wire) {
        let Some(line) = &mut self.line else { return };
        let (house, session) = (self.telling.house, self.telling.session);
        for message in wire.says {
            line.process.say(format!("{message}\n"));
        }
        line.is_stale |= wire.is_stale;
        self.is_lost |= wire.is_lost;
        // What the client was told of a call must come before the question about it.
        self.telling.tell();
        for question in wire.asks {
            let asked =
                acp::RequestPermissionRequest::new(session.name.clone(), question.call, question.options);
            let id = house.ask(session, "session/request_permission", &asked);
            self.questions.insert(id, question.key);
        }
        for key in wire.taken_back {
            self.questions.retain(|id, asked| {
                if *asked == key {
                    house.forget_question(*id);
                }
                *asked != key
            });
        }
        if let Some(models) = wire.models {
            house.learn(models);
        }
        if let Some(mode) = wire.mode {
            self.mode_is(mode);
        }
    }

    /// The CLI has changed its mode by itself.
    fn mode_is(&mut self, mode: String) {
        let (house, session) = (self.telling.house, self.telling.session);
        if house.turn.modes.iter().all(|known| known.id != mode) {
            return;
        }
        let mut state = session.lock();
        house.keep(&session.name, &mut state.record, Entry::Mode(mode.clone()));
        let (settings, options) =
            (shapes::settings_of(house, &state.record), shapes::config_options(house, &state.record));
        drop(state);
        if let Some(line) = &mut self.line {
            line.settings = settings;
        }
        let mode = acp::SessionUpdate::CurrentModeUpdate(acp::CurrentModeUpdate::new(mode));
        house.out.update(&session.name, mode);
        let options = acp::SessionUpdate::ConfigOptionUpdate(acp::ConfigOptionUpdate::new(options));
        house.out.update(&session.name, options);
    }

    fn forget_questions(&mut self) {
        for (id, _) in self.questions.drain() {
            self.telling.house.forget_question(id);
        }
    }
}
