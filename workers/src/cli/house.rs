//! What all threads of the agent share.
//!
//! Locks are taken in this order: the table of sessions, one session, then the small ones, which are never held while
//! another is taken.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::record::{Entry, Record};
use super::runtimes::{Delivery, Runtime, Turn};
use super::session::{Leave, Session};
use super::{Options, argv, log, shapes};
use crate::acp::error::CANCELLED;
use crate::acp::session_files::{EventSourced, SessionFiles as Disk, list_sessions};
use crate::acp::session_id::SessionIds as Names;
use crate::acp::session_list::SessionSummary as Info;
use crate::acp::writer::Writer as Out;
use crate::detect::{self, Model};

const PREFIX: &str = "cli-";

pub(super) struct House {
    pub(super) row: Runtime,
    pub(super) turn: Turn,
    pub(super) options: Options,
    pub(super) out: Out,
    /// The folder of files that live as long as a process.
    pub(super) folder: Option<PathBuf>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Closed while their turns ran or their processes lived, which are not over yet.
    closing: Mutex<Vec<Arc<Session>>>,
    /// Requests to the client that are not yet answered, and the sessions that ask.
    asked: Mutex<HashMap<u64, Arc<Session>>>,
    /// Models that the CLI lists. `None`: nobody has asked it yet.
    models: Mutex<Option<Vec<Model>>>,
    /// `None`: sessions live as long as the process.
    disk: Option<Disk<Record>>,
    names: Mutex<Names>,
    turns: AtomicU64,
    /// It is being asked for its models.
    is_asked: AtomicBool,
}

impl House {
    pub(super) fn new(row: Runtime, turn: Turn, options: Options, out: Out) -> io::Result<House> {
        // A session of one CLI is unknown to another, so each has a folder.
        let folder = options.state.clone().or_else(usual_folder).map(|folder| folder.join(&row.id));
        let disk = folder.as_deref().map(|folder| Disk::open(folder, PREFIX)).transpose()?;
        let names = Mutex::new(Names::new(PREFIX));
        let (sessions, closing, asked) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (models, turns, is_asked) = (Mutex::default(), AtomicU64::new(1), AtomicBool::new(false));
        Ok(House {
            row,
            turn,
            options,
            out,
            folder,
            sessions,
            closing,
            asked,
            models,
            disk,
            names,
            turns,
            is_asked,
        })
    }

    pub(super) fn program(&self) -> Result<PathBuf, String> {
        self.options.program.clone().or_else(|| self.row.program()).ok_or_else(|| self.row.missing())
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().expect("nobody panics with it")
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a process of the CLI lists its models just now.
    pub(super) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    pub(super) fn models(&self) -> Vec<Model> {
        self.models.lock().expect("nobody panics with it").clone().unwrap_or_default()
    }

    /// Whether the CLI's process is kept open for a session, and not only for a prompt.
    pub(super) fn is_bridge(&self) -> bool {
        self.turn.prompt == Delivery::Conversation
    }

    /// These are the models that there are. If that is news, open sessions are told.
    pub(super) fn learn(&self, mut listed: Vec<Model>) {
        listed.retain(|model| argv::is_model(&model.id) && model.id != shapes::USUAL);
        let before = self.models.lock().expect("nobody panics with it").replace(listed.clone());
        if listed.is_empty() || before.is_some_and(|before| before == listed) {
            return;
        }
        for session in self.everyone() {
            let options = shapes::config_options(self, &session.lock().record);
            let update = acp::ConfigOptionUpdate::new(options);
            self.out.update(&session.name, acp::SessionUpdate::ConfigOptionUpdate(update));
        }
    }

    /// Asks the client, and gives back the id under which the session's holder will hear the answer.
    pub(super) fn ask(&self, session: &Arc<Session>, method: &str, params: &impl serde::Serialize) -> u64 {
        let id = self.next_turn();
        self.asked.lock().expect("nobody panics with it").insert(id, session.clone());
        self.out.request(id, method, params);
        id
    }

    pub(super) fn forget_question(&self, id: u64) {
        self.asked.lock().expect("nobody panics with it").remove(&id);
    }

    /// An id that nobody knows is that of a turn that is over.
    pub(super) fn answered(&self, id: &str, result: Value) {
        let Ok(id) = id.parse() else { return };
        let session = self.asked.lock().expect("nobody panics with it").remove(&id);
        if let Some(session) = session {
            let mut state = session.lock();
            state.answers.push((id, result));
            state.wake();
        }
    }

    /// Cancels the turn whose prompt has this id, because the client takes it back.
    pub(super) fn take_back(&self, id: &str) {
        let error = json!({ "code": CANCELLED, "message": "Request cancelled" });
        for session in self.sessions().values() {
            if let Some(running) = session.lock().turn.as_ref().filter(|turn| turn.waiter.id.get() == id) {
                running.cancel(false, Some(error.clone()));
            }
        }
    }

    /// Ends the turn and the process of a session that is no longer in the table.
    pub(super) fn close(&self, session: Arc<Session>) {
        end(&session, Leave::Soon);
        let is_at_work = session.lock().is_at_work();
        if is_at_work {
            let mut closing = self.closing.lock().expect("nobody panics with it");
            closing.retain(|session| session.lock().is_at_work());
            closing.push(session);
        }
    }

    pub(super) fn end_all(&self) {
        for session in self.everyone() {
            end(&session, Leave::Now);
        }
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.everyone().iter().any(|session| session.lock().is_at_work())
    }

    fn everyone(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> = self.sessions().values().cloned().collect();
        all.extend(self.closing.lock().expect("nobody panics with it").iter().cloned());
        all
    }

    pub(super) fn create(&self, cwd: String) -> io::Result<Arc<Session>> {
        let mut record = Record::default();
        record.apply(Entry::Cwd(cwd.clone()));
        loop {
            let name = self.names.lock().expect("nobody panics with it").generate();
            match &self.disk {
                Some(disk) if !disk.create(&name, [Entry::Cwd(cwd.clone())])? => {}
                _ => return Ok(Arc::new(Session::new(name, record))),
            }
        }
    }

    /// A session that is not open but was kept.
    pub(super) fn kept(&self, name: &str) -> Option<Arc<Session>> {
        let record = self.disk.as_ref()?.read(name)?;
        Some(Arc::new(Session::new(name.to_owned(), record)))
    }

    /// Adds to the session, in memory and on disk.
    pub(super) fn keep(&self, name: &str, record: &mut Record, entry: Entry) {
        if let Some(disk) = &self.disk
            && let Err(error) = disk.append(name, &entry)
        {
            log(format_args!("session {name} was not written: {error}"));
        }
        record.apply(entry);
    }

    pub(super) fn forget(&self, name: &str) -> io::Result<()> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.remove(name))
    }

    pub(super) fn listed(&self) -> io::Result<Vec<Info>> {
        let info = |session: &Arc<Session>| session.lock().record.summary(&session.name, 0);
        list_sessions(self.disk.as_ref(), || self.sessions().values().map(info).collect())
    }

    /// What a failed turn is answered with.
    pub(super) fn error(&self, is_auth: bool, message: &str) -> Value {
        let kind = if is_auth { "authentication" } else { "runtime" };
        let data = json!({ "errorKind": kind, "runtime": self.row.id, "details": message });
        let log_in = self.row.log_in.as_ref().map_or(String::new(), |how| format!(" (to log in: {how})"));
        if is_auth {
            json!({ "code": -32000, "message": format!("Authentication required: {message}{log_in}"), "data": data })
        } else {
            json!({ "code": -32603, "message": format!("{}: {message}", self.row.name), "data": data })
        }
    }
}

fn end(session: &Session, leave: Leave) {
    let mut state = session.lock();
    state.leave = Some(leave);
    if let Some(running) = &state.turn {
        running.cancel(leave == Leave::Now, None);
    }
    state.wake();
}

/// Asks the CLI for its models, once, on a thread of its own. Open sessions are told what came.
pub(super) fn ask_for_models(house: &Arc<House>) {
    let mut models = house.models.lock().expect("nobody panics with it");
    if models.is_some() {
        return;
    }
    *models = Some(Vec::new());
    let asking = house.clone();
    let ask = move || {
        if let Ok(program) = asking.program() {
            let listed = detect::listed(&asking.row, &program);
            asking.is_asked.store(false, Ordering::Release);
            asking.learn(listed);
        }
        asking.is_asked.store(false, Ordering::Release);
    };
    house.is_asked.store(true, Ordering::Release);
    // Without the thread there is no list, and any name is still taken.
    if thread::Builder::new().name("models".to_owned()).spawn(ask).is_err() {
        house.is_asked.store(false, Ordering::Release);
    }
}

/// Where sessions are kept unless the user says otherwise.
fn usual_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("stdio-bus/cli"))
}
