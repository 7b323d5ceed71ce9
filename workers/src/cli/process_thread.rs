//! The thread that keeps a session's process open and runs every prompt of the session on it.
//!
//! The thread lives as long as the process: from the opening of the session, or its next prompt, until the session is
//! closed, the process exits, or no prompt comes for a long time. Only this thread answers the session's prompts. The
//! next prompt starts the process again, and the process then resumes the session.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::bridge::{self, Bridge, Effects, Opening};
use super::fault::Fault;
use super::launch::{Launch, launch};
use super::log::log;
use super::mcp::McpConfig;
use super::process::{self, Process, ProcessEvent};
use super::record::Entry;
use super::session::{Cancellation, CloseReason, Opened, QueuedPrompt, RunningTurn, Session, State, Waiting};
use super::settings::{Reported, Settings};
use super::shared::Shared;
use super::turn_events::{End, TurnEvents};
use super::turn_report::TurnReport;
use super::watch::{Observation, Tick, Watch};
use super::{models, responses};
use crate::acp::session_list::title_from_prompt;

/// How often a process is started for one prompt.
const ATTEMPTS: u32 = 3;
/// The longest wait for an event where no idle time is set.
const LONG_WAIT: Duration = Duration::from_secs(3600);
/// The shortest wait for an event.
const SHORT_WAIT: Duration = Duration::from_millis(20);

/// Wakes the session's process thread, or starts it. The thread finds its work in `state`.
pub(super) fn wake_or_spawn(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    state: &mut State,
) -> io::Result<SyncSender<ProcessEvent>> {
    if let Some(inbox) = &state.process_thread {
        state.wake();
        return Ok(inbox.clone());
    }
    // The inbox of the process replaces this one as soon as there is a process.
    let (sender, _) = mpsc::sync_channel(0);
    let (shared, session) = (shared.clone(), session.clone());
    let body = move || {
        let report = TurnReport::new(&shared, &session);
        let thread = ProcessThread {
            report,
            connection: None,
            questions: HashMap::new(),
            session_unknown: false,
            exited_unheard: false,
        };
        thread.run();
    };
    thread::Builder::new().name("process".to_owned()).spawn(body)?;
    state.process_thread = Some(sender.clone());
    Ok(sender)
}

/// Gives a prompt to the session's process thread, which makes it a turn.
pub(super) fn begin(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    state: &mut State,
    waiting: Waiting,
) -> io::Result<()> {
    let inbox = wake_or_spawn(shared, session, state)?;
    make_turn(shared, session, state, waiting, inbox);
    Ok(())
}

fn make_turn(
    shared: &Shared,
    session: &Session,
    state: &mut State,
    waiting: Waiting,
    inbox: SyncSender<ProcessEvent>,
) {
    shared.note_prompt(session, state, &waiting.prompt.text(), waiting.blocks);
    let cancellation = Arc::new(Cancellation::default());
    state.queued_prompt = Some(QueuedPrompt { prompt: waiting.prompt, cancellation: cancellation.clone() });
    state.turn = Some(RunningTurn { reply_to: waiting.reply_to, cancellation, inbox });
}

struct ProcessThread<'a> {
    report: TurnReport<'a>,
    connection: Option<Connection>,
    /// The client's open questions: their ids, and the bridge's keys.
    questions: HashMap<u64, String>,
    /// The CLI has answered this prompt with an error: it does not know the session.
    session_unknown: bool,
    /// The process has exited and printed nothing since the prompt.
    exited_unheard: bool,
}

/// A process and the state of its protocol.
struct Connection {
    process: Process,
    bridge: Box<dyn Bridge>,
    inbox: Receiver<ProcessEvent>,
    settings: Settings,
    /// Fixed when the process starts.
    cwd: String,
    /// Fixed when the process starts.
    opened: Opened,
    /// The next prompt needs a new process.
    needs_restart: bool,
    has_output: bool,
    /// Whether the CLI's id of the session was saved.
    id_is_saved: bool,
    /// The CLI may read the file at any time.
    _mcp_config: Option<McpConfig>,
}

impl ProcessThread<'_> {
    fn run(mut self) {
        if self.report.session.lock().queued_prompt.is_none()
            && let Err(why) = self.open()
        {
            // The next prompt tries again and reports the reason to the client.
            log(format_args!("session {}: {why}", self.report.session.id));
        }
        while let Some(next) = self.wait_for_prompt() {
            let end = self.run_prompt(&next);
            self.drop_questions();
            self.report.finish(&next.cancellation, end);
            self.begin_next();
        }
    }

    /// Makes the next prompt that waits a turn of this thread.
    fn begin_next(&mut self) {
        let TurnReport { shared, session, .. } = self.report;
        let mut state = session.lock();
        if let (None, Some(inbox)) = (&state.turn, state.process_thread.clone())
            && let Some(next) = state.waiting.pop_front()
        {
            make_turn(shared, session, &mut state, next, inbox);
        }
    }

    /// Reports what the CLI says between prompts. Returns `None` once the process is gone and no prompt waits.
    fn wait_for_prompt(&mut self) -> Option<QueuedPrompt> {
        let since = Instant::now();
        let idle_limit = self.report.shared.options.idle;
        loop {
            let mut state = self.report.session.lock();
            if let Some(next) = state.queued_prompt.take() {
                return Some(next);
            }
            let Some(connection) = &self.connection else {
                // Still under the lock, so that a new prompt sees that this thread is gone and starts another.
                self.report.save(&mut state.record);
                state.process_thread = None;
                return None;
            };
            let is_closed = state.close.is_some();
            drop(state);
            let idle = since.elapsed();
            if is_closed || (!idle_limit.is_zero() && idle >= idle_limit) {
                self.close();
                continue;
            }
            let wait = if idle_limit.is_zero() { LONG_WAIT } else { idle_limit.saturating_sub(idle) };
            match connection.inbox.recv_timeout(wait.max(SHORT_WAIT)) {
                Ok(ProcessEvent::Line(line)) => {
                    self.on_line(&line);
                    // A result between prompts belongs to background work and ends no turn.
                    self.report.events.end = None;
                }
                Ok(ProcessEvent::StdoutClosed) | Err(RecvTimeoutError::Disconnected) => self.close(),
                Ok(ProcessEvent::Wake) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.forward_answers();
            self.apply_settings();
        }
    }

    fn run_prompt(&mut self, next: &QueuedPrompt) -> End {
        let mut attempt = 0;
        loop {
            attempt += 1;
            if next.cancellation.is_cancelled() {
                return End::Stop(acp::StopReason::Cancelled);
            }
            if let Err(message) = self.ensure_process() {
                return End::Fault { fault: Fault::Runtime, message };
            }
            // These may still be set by the last process.
            self.report.events.end = None;
            self.report.events.session = None;
            self.session_unknown = false;
            self.exited_unheard = false;
            self.with_bridge(|bridge, events, effects| bridge.prompt(&next.prompt, events, effects));
            let end = self.watch(&next.cancellation);
            // A process that printed nothing has not read the prompt, since the CLIs acknowledge one at once. It was
            // about to exit, or could not start beside another: all codex processes create one database.
            let may_retry = self.exited_unheard || self.session_unknown;
            if !may_retry || attempt == ATTEMPTS {
                return end;
            }
            if self.session_unknown {
                self.close();
                let mut state = self.report.session.lock();
                if state.record.has_answer {
                    let message = "the CLI no longer knows this session; begin a new one".to_owned();
                    return End::Fault { fault: Fault::Runtime, message };
                }
                // The CLI was stopped before it saved anything, so a new session loses nothing.
                let name = &self.report.session.id;
                self.report.shared.store.append(name, &mut state.record, Entry::Cli(String::new()));
            }
        }
    }

    /// Makes sure that a process with the current settings runs.
    fn ensure_process(&mut self) -> Result<(), String> {
        self.apply_settings();
        if let Some(connection) = &mut self.connection {
            let state = self.report.session.lock();
            let has_moved = connection.cwd != state.record.cwd || connection.opened != state.opened;
            drop(state);
            if has_moved || connection.needs_restart || connection.process.exit_status().is_some() {
                self.close();
            }
        }
        if self.connection.is_none() { self.open() } else { Ok(()) }
    }

    fn open(&mut self) -> Result<(), String> {
        let TurnReport { shared, session, .. } = self.report;
        let mut bridge = bridge::new(shared.turn.format).expect("the table was checked");
        let (sender, inbox) = process::inbox();
        let mut state = session.lock();
        state.process_thread = Some(sender.clone());
        if let Some(turn) = &mut state.turn {
            turn.inbox = sender.clone();
        }
        let record = state.record.clone();
        let opened = state.opened.clone();
        drop(state);
        let mcp_config = McpConfig::write(shared, &opened.mcp_servers);
        let start = Launch {
            record: &record,
            add_dirs: &opened.directories,
            mcp_config: mcp_config.as_ref(),
            prompt: "",
            images: &[],
        };
        let process = launch(shared, session, &start, sender)?;
        let settings = responses::settings_of(shared, &record);
        let mut effects = Effects::default();
        let opening = Opening {
            cwd: record.cwd.as_ref(),
            session: record.cli_session.as_deref(),
            fork: record.fork_source(),
            settings: &settings,
            opened: &opened,
            has_forms: shared.client.shows_forms(),
        };
        bridge.open(&opening, &mut effects);
        self.connection = Some(Connection {
            process,
            bridge,
            inbox,
            settings,
            cwd: record.cwd,
            opened,
            needs_restart: false,
            has_output: false,
            id_is_saved: false,
            _mcp_config: mcp_config,
        });
        self.carry_out(effects);
        Ok(())
    }

    /// Ends the process, if there is one, with everything that it started.
    fn close(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        let session = self.report.session;
        connection.process.close(|| {
            let state = session.lock();
            state.close == Some(CloseReason::AgentExits)
                || state.turn.as_ref().is_some_and(|turn| turn.cancellation.is_urgent())
        });
        self.drop_questions();
    }

    /// Reports what the CLI says until the turn is over.
    fn watch(&mut self, cancellation: &Cancellation) -> End {
        let is_ready = self.connection.as_ref().is_some_and(|connection| connection.has_output);
        let mut watch = Watch::new(self.report.shared.silence_limits(), Instant::now(), is_ready);
        loop {
            let Some(connection) = &self.connection else { unreachable!("only this loop ends it") };
            if let Some(event) = process::next_event(&connection.inbox) {
                watch.on(&event, Instant::now());
                if let ProcessEvent::Line(line) = event {
                    self.on_line(&line);
                }
            }
            self.forward_answers();
            self.apply_settings();
            if self.report.events.end.is_some()
                && let Some(end) = self.report.take_end(cancellation, &watch)
            {
                return end;
            }
            let awaits_client = !self.questions.is_empty();
            let Some(connection) = &mut self.connection else { unreachable!("only this loop ends it") };
            let seen = self.report.observe(cancellation, &mut connection.process);
            let mut must_interrupt = false;
            match watch.tick(Instant::now(), &Observation { awaits_client, ..seen }) {
                Tick::Stop(step) => connection.process.apply(step, |_| must_interrupt = true),
                Tick::Ended => return self.end_after_exit(cancellation, &watch),
            }
            if must_interrupt {
                self.with_bridge(|bridge, events, effects| bridge.interrupt(events, effects));
            }
        }
    }

    fn end_after_exit(&mut self, cancellation: &Cancellation, watch: &Watch) -> End {
        let mut connection = self.connection.take().expect("a turn has a process");
        connection.process.kill_all();
        self.exited_unheard = !watch.has_output() && !watch.is_stopping();
        let status = connection.process.exit_status().expect("the watch saw the exit");
        self.report.end_after_exit(cancellation, watch, &connection.process, status)
    }

    fn on_line(&mut self, line: &[u8]) {
        if line.trim_ascii().is_empty() {
            return;
        }
        if let Some(connection) = &mut self.connection {
            connection.has_output = true;
        }
        match serde_json::from_slice::<Value>(line) {
            Ok(message) => {
                self.with_bridge(|bridge, events, effects| bridge.on_message(&message, events, effects));
            }
            Err(_) => self.report.events.unknown += 1,
        }
        self.report.send_updates();
        if let Some(connection) = &mut self.connection
            && !connection.id_is_saved
            && self.report.events.session.is_some()
        {
            connection.id_is_saved = true;
            // Saved at once, so that the session is found again even if the agent is killed.
            self.report.save(&mut self.report.session.lock().record);
        }
    }

    /// Sends the session's settings to the process if they have changed.
    fn apply_settings(&mut self) {
        let settings = responses::settings_of(self.report.shared, &self.report.session.lock().record);
        let Some(connection) = &mut self.connection else { return };
        if connection.settings == settings {
            return;
        }
        let mut effects = Effects::default();
        connection.needs_restart |= !connection.bridge.apply_settings(&settings, &mut effects);
        connection.settings = settings;
        self.carry_out(effects);
    }

    fn forward_answers(&mut self) {
        let answers = std::mem::take(&mut self.report.session.lock().answers);
        for (id, result) in answers {
            if let Some(key) = self.questions.remove(&id) {
                self.with_bridge(|bridge, events, effects| bridge.on_answer(&key, &result, events, effects));
            }
        }
    }

    fn with_bridge(&mut self, act: impl FnOnce(&mut dyn Bridge, &mut TurnEvents, &mut Effects)) {
        let Some(connection) = &mut self.connection else { return };
        let mut effects = Effects::default();
        act(connection.bridge.as_mut(), &mut self.report.events, &mut effects);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Effects) {
        let Some(connection) = &mut self.connection else { return };
        let TurnReport { shared, session, .. } = self.report;
        for message in effects.messages {
            connection.process.send(format!("{message}\n"));
        }
        connection.needs_restart |= effects.needs_restart;
        if let Some(message) = &effects.logged_out {
            self.report.events.fail(Fault::Authentication, message);
        }
        self.session_unknown |= effects.session_unknown;
        // The client must know of a tool call before it is asked about it.
        self.report.send_updates();
        for question in effects.questions {
            let call = self.report.terminals.show_update(question.call);
            let params = acp::RequestPermissionRequest::new(session.id.clone(), call, question.options);
            let id = shared.ask(session, "session/request_permission", &params);
            self.questions.insert(id, question.key);
        }
        for form in effects.forms {
            let mut params = json!({ "mode": "form", "sessionId": session.id, "message": form.message });
            params["requestedSchema"] = form.schema;
            if let Some(call) = form.call {
                params["toolCallId"] = json!(call);
            }
            let id = shared.ask(session, "elicitation/create", &params);
            self.questions.insert(id, form.key);
        }
        for key in effects.withdrawn {
            self.questions.retain(|id, asked| {
                if *asked == key {
                    shared.drop_question(*id);
                }
                *asked != key
            });
        }
        if let Some(listed) = effects.models {
            models::update(shared, listed);
        }
        if let Some(name) = effects.default_model {
            models::name_default(shared, name);
        }
        if let Some(mode) = effects.mode {
            self.mode_changed(mode);
        }
        for (id, reported) in effects.reports {
            self.option_reported(id, reported);
        }
        for (id, value) in effects.choices {
            self.option_chosen(id, value);
        }
        if let Some(title) = effects.title.as_deref().and_then(title_from_prompt) {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            shared.writer.update(&session.id, acp::SessionUpdate::SessionInfoUpdate(info));
            shared.store.append(&session.id, &mut session.lock().record, Entry::Title(title));
        }
    }

    /// Saves and reports a mode that the CLI has entered by itself.
    fn mode_changed(&mut self, mode: String) {
        let TurnReport { shared, session, .. } = self.report;
        if shared.turn.modes.iter().all(|known| known.id != mode) {
            return;
        }
        let mut state = session.lock();
        shared.store.append(&session.id, &mut state.record, Entry::Mode(mode.clone()));
        let settings = responses::settings_of(shared, &state.record);
        let options = responses::config_options_update(shared, &state);
        drop(state);
        if let Some(connection) = &mut self.connection {
            connection.settings = settings;
        }
        let mode = acp::SessionUpdate::CurrentModeUpdate(acp::CurrentModeUpdate::new(mode));
        shared.writer.update(&session.id, mode);
        shared.writer.update(&session.id, options);
    }

    /// Notes what the CLI says about one of its own options. Where it does not do as was chosen, that is saved.
    fn option_reported(&mut self, id: &'static str, reported: Reported) {
        let TurnReport { shared, session, .. } = self.report;
        let mut state = session.lock();
        let before = responses::config_options(shared, &state);
        if let Some(value) = &reported.value
            && let Some(connection) = &mut self.connection
            && let Some(chosen) = connection.settings.options.get_mut(id)
            // A newer choice that the CLI has not been given yet is left alone.
            && state.record.options.get(id) == Some(chosen)
            && chosen != value
        {
            chosen.clone_from(value);
            let entry = Entry::Option(id.to_owned(), value.clone());
            shared.store.append(&session.id, &mut state.record, entry);
        }
        state.reports.insert(id, reported);
        let has_changed = responses::config_options(shared, &state) != before;
        let update = responses::config_options_update(shared, &state);
        drop(state);
        if has_changed {
            shared.writer.update(&session.id, update);
        }
    }

    /// Saves and reports a choice that was made in the conversation.
    fn option_chosen(&mut self, id: &str, value: &str) {
        let TurnReport { shared, session, .. } = self.report;
        let mut state = session.lock();
        let entry = Entry::Option(id.to_owned(), value.to_owned());
        shared.store.append(&session.id, &mut state.record, entry);
        let update = responses::config_options_update(shared, &state);
        drop(state);
        if let Some(connection) = &mut self.connection {
            connection.settings.options.insert(id.to_owned(), value.to_owned());
        }
        shared.writer.update(&session.id, update);
    }

    fn drop_questions(&mut self) {
        for (id, _) in self.questions.drain() {
            self.report.shared.drop_question(id);
        }
    }
}
