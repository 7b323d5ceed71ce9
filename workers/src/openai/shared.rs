//! What all threads of the agent share.
//!
//! Locks are taken in this order: the table of sessions, one session, then any of the small ones (models,
//! quirks, asked, stdout), which are never held while another is taken.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use agent_client_protocol_schema::v1 as acp;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::config::Config;
use super::http::Http;
use super::models::{self, Models};
use super::record::{Entry, Mode, Record};
use super::session::{Session, State, TurnEvent};
use super::tools::ClientTools;
use super::url::shown;
use super::wire::Quirks;
use super::{Options, log, responses};
use crate::acp::error::CANCELLED;
use crate::acp::session_files::{EventSourced, SessionFiles, list_sessions};
use crate::acp::session_id::SessionIds;
use crate::acp::session_list::SessionSummary;
use crate::acp::writer::Writer;

const PREFIX: &str = "openai-";

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) options: Options,
    pub(super) writer: Writer,
    pub(super) http: Http,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    client: Mutex<acp::ClientCapabilities>,
    models: Mutex<Models>,
    /// By model, since one endpoint may have many kinds behind it.
    quirks: Mutex<HashMap<String, Quirks>>,
    /// Requests to the client that are not yet answered.
    asked: Mutex<HashMap<u64, Sender<TurnEvent>>>,
    next_id: AtomicU64,
    next_turn: AtomicU64,
    /// `None`: sessions live as long as the process.
    disk: Option<SessionFiles<Record>>,
    names: Mutex<SessionIds>,
    seed: RandomState,
}

impl Shared {
    pub(super) fn new(
        config: Config,
        options: Options,
        folder: Option<&Path>,
        writer: Writer,
    ) -> io::Result<Shared> {
        let http = Http::new(&config);
        let models = Mutex::new(Models::fixed(&config.models));
        Ok(Shared {
            config,
            options,
            writer,
            http,
            sessions: Mutex::default(),
            client: Mutex::default(),
            models,
            quirks: Mutex::default(),
            asked: Mutex::default(),
            next_id: AtomicU64::new(1),
            next_turn: AtomicU64::new(1),
            disk: folder.map(|folder| SessionFiles::open(folder, PREFIX)).transpose()?,
            names: Mutex::new(SessionIds::new(PREFIX)),
            seed: RandomState::new(),
        })
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        lock(&self.sessions)
    }

    pub(super) fn models(&self) -> MutexGuard<'_, Models> {
        lock(&self.models)
    }

    pub(super) fn client(&self) -> MutexGuard<'_, acp::ClientCapabilities> {
        lock(&self.client)
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.next_turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Somewhere in 0..1.
    pub(super) fn chance(&self) -> f64 {
        let random = self.seed.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed));
        (random >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn quirks(&self, model: &str) -> Quirks {
        lock(&self.quirks).get(model).copied().unwrap_or_default()
    }

    pub(super) fn learn(&self, model: &str, quirks: Quirks) {
        log(format_args!("{model} does not take everything, and is asked without it: {quirks:?}"));
        lock(&self.quirks).entry(model.to_owned()).or_default().add(quirks);
    }

    /// With what a model may do things in a session of this mode.
    pub(super) fn client_tools(&self, mode: Mode) -> ClientTools {
        if self.config.has_tools { ClientTools::new(&self.client(), mode) } else { ClientTools::default() }
    }

    /// An id for a request whose answer these are told.
    pub(super) fn await_answer(&self, events: Sender<TurnEvent>) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.asked).insert(id, events);
        id
    }

    pub(super) fn forget_answer(&self, id: u64) {
        lock(&self.asked).remove(&id);
    }

    /// A request whose answer nobody needs.
    pub(super) fn ask_in_passing(&self, method: &str, params: &Value) {
        self.writer.request(self.next_id.fetch_add(1, Ordering::Relaxed), method, params);
    }

    /// An id that nobody waits for is that of a turn that was cancelled meanwhile.
    pub(super) fn answered(&self, id: &RawValue, outcome: Result<Box<RawValue>, String>) {
        let Some(id) = id.get().parse().ok() else { return };
        if let Some(events) = lock(&self.asked).remove(&id) {
            let _ = events.send(TurnEvent::Response(id, outcome));
        }
    }

    /// Ends the session's turn, if it has one: `None`: as cancelled; else with this error.
    pub(super) fn end_turn(&self, state: &mut State, error: Option<&Value>) {
        let Some(running) = state.turn.take() else { return };
        let cancelled = acp::PromptResponse::new(acp::StopReason::Cancelled);
        self.writer.respond_later(&running.caller, error.map_or(Ok(&cancelled), Err));
        running.wake();
    }

    /// Ends the turn whose prompt has this id, because the client takes it back.
    pub(super) fn cancel_request(&self, id: &RawValue) {
        let error = json!({ "code": CANCELLED, "message": "Request cancelled" });
        for session in self.sessions().values() {
            let mut state = session.lock();
            if state.turn.as_ref().is_some_and(|running| running.caller.id.get() == id.get()) {
                self.end_turn(&mut state, Some(&error));
            }
        }
    }

    pub(super) fn end_all_turns(&self) {
        for session in self.sessions().values() {
            self.end_turn(&mut session.lock(), None);
        }
    }

    pub(super) fn create(&self, record: &Record) -> io::Result<String> {
        loop {
            let name = lock(&self.names).generate();
            match &self.disk {
                Some(disk) if !disk.create(&name, record.entries())? => {}
                _ => return Ok(name),
            }
        }
    }

    /// A session that is not open but was kept.
    pub(super) fn kept(&self, name: &str) -> Option<Record> {
        self.disk.as_ref()?.read(name)
    }

    /// Adds to the session, in memory and on disk.
    pub(super) fn keep(&self, name: &str, record: &mut Record, entry: Entry) {
        if let Some(disk) = &self.disk
            && let Err(error) = disk.append(name, &entry)
        {
            // The client still gets its answer; what is lost is a line of history.
            log(format_args!("session {name} was not written: {error}"));
        }
        record.apply(entry);
    }

    pub(super) fn forget(&self, name: &str) -> io::Result<()> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.remove(name))
    }

    pub(super) fn listed(&self) -> io::Result<Vec<SessionSummary>> {
        let info = |session: &Arc<Session>| session.lock().record.summary(&session.id, 0);
        list_sessions(self.disk.as_ref(), || self.sessions().values().map(info).collect())
    }
}

/// Asks for the models, on a thread of its own, if what is known of them is old. Open sessions are told what came.
pub(super) fn refresh_models(shared: &Arc<Shared>) {
    let Ok(endpoint) = &shared.config.endpoint else { return };
    let url = endpoint.models();
    if !shared.models().begin_asking(Instant::now()) {
        return;
    }
    let asking = shared.clone();
    let ask = move || {
        let answer = match asking.http.get(&url) {
            Ok(body) => models::read(&body),
            Err(fault) => {
                let text = asking.config.redact(&fault.text(&shown(&url)));
                log(format_args!("no list of models: {}", text.replace('\n', " ")));
                None
            }
        };
        let sessions = asking.sessions();
        if !asking.models().asked(answer, Instant::now()) {
            return;
        }
        for session in sessions.values() {
            let state = session.lock();
            send_config_options(&asking, &session.id, &state.record);
        }
    };
    if thread::Builder::new().name("models".to_owned()).spawn(ask).is_err() {
        shared.models().asked(None, Instant::now());
    }
}

pub(super) fn send_config_options(shared: &Shared, name: &str, record: &Record) {
    let options = responses::config_options(record, &shared.config.model, &shared.models());
    shared.writer.update(name, acp::SessionUpdate::ConfigOptionUpdate(acp::ConfigOptionUpdate::new(options)));
}

/// Where sessions are kept unless the user says otherwise.
pub(super) fn default_folder(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("stdio-bus/openai"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_kept_where_the_system_keeps_state() {
        let folder = |variables: &'static [(&str, &str)]| {
            default_folder(|name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), expected("/s/stdio-bus/openai"));
        assert_eq!(
            folder(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")]),
            expected("/h/.local/state/stdio-bus/openai")
        );
        assert_eq!(folder(&[]), None);
    }
}
