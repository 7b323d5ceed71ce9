//! The state that all threads of the agent share.
//!
//! Locks are taken in this order: the open sessions, the closing ones, one session, then one of the others. A thread
//! that holds one of the others takes no further lock.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use rpc::RpcError;
use rpc::error::{AUTH_REQUIRED, CANCELLED, INTERNAL_ERROR};
use serde::Serialize;
use serde_json::{Value, json};

use super::client::Client;
use super::fault::Fault;
use super::log::log;
use super::options::Options;
use super::record::{Entry, Record};
use super::runtimes::{Delivery, Runtime, Turn};
use super::session::{CloseReason, Session, State};
use super::watch::SilenceLimits;
use crate::acp::session_files::EventSourced;
use crate::acp::session_list::{SessionSummary, title_from_prompt};
use crate::acp::store::Store;
use crate::acp::writer::Writer;
use crate::detect::{self, Model};
use crate::folders;
use crate::lock::lock;

pub(super) const SESSION_ID_PREFIX: &str = "cli-";

pub(super) struct Shared {
    pub(super) row: Runtime,
    pub(super) turn: Turn,
    pub(super) options: Options,
    pub(super) writer: Writer,
    pub(super) client: Client,
    pub(super) store: Store<Record>,
    /// The folder of this CLI's sessions and MCP configurations.
    pub(super) folder: Option<PathBuf>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Closed sessions whose turn or process has not ended yet.
    closing: Mutex<Vec<Arc<Session>>>,
    /// The sessions that wait for an answer of the client, by the ids of their requests.
    questions: Mutex<HashMap<u64, Arc<Session>>>,
    models: Mutex<Models>,
    listing_ended: Condvar,
    /// The CLI has said that it takes no prompt before the user logs in.
    is_logged_out: AtomicBool,
    /// The agent ends.
    is_stopping: AtomicBool,
    /// How many logins the user has not finished.
    logins: AtomicUsize,
    /// Known once a process of the CLI has named it.
    default_model: Mutex<Option<String>>,
    last_number: AtomicU64,
}

/// What the CLI has said of its models.
#[derive(Default)]
struct Models {
    /// `None` until they are first listed.
    listed: Option<Vec<Model>>,
    is_listing: bool,
}

impl Shared {
    pub(super) fn new(row: Runtime, turn: Turn, options: Options, writer: Writer) -> io::Result<Shared> {
        // Each CLI has a folder, because it does not know the sessions of another.
        let folder = options
            .state
            .clone()
            .or_else(|| Some(folders::state()?.join("cli")))
            .map(|folder| folder.join(&row.id));
        Ok(Shared {
            row,
            turn,
            options,
            writer,
            client: Client::default(),
            store: Store::open(folder.as_deref(), SESSION_ID_PREFIX, log)?,
            folder,
            sessions: Mutex::default(),
            closing: Mutex::default(),
            questions: Mutex::default(),
            models: Mutex::default(),
            listing_ended: Condvar::new(),
            is_logged_out: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            logins: AtomicUsize::new(0),
            default_model: Mutex::default(),
            last_number: AtomicU64::new(0),
        })
    }

    pub(super) fn program(&self) -> Result<PathBuf, String> {
        self.options.program.clone().or_else(|| self.row.program()).ok_or_else(|| self.row.missing())
    }

    pub(super) fn silence_limits(&self) -> SilenceLimits {
        SilenceLimits { first_output: self.options.first_output, later: self.options.silence }
    }

    /// Whether a process is kept open for each session, instead of one process for each prompt.
    pub(super) fn is_bridge(&self) -> bool {
        self.turn.prompt == Delivery::Conversation
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        lock(&self.sessions)
    }

    /// Open sessions, and closed ones that may still be busy.
    pub(super) fn all_sessions(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<_> = self.sessions().values().cloned().collect();
        all.extend(lock(&self.closing).iter().cloned());
        all
    }

    /// A number that this process has not used before.
    pub(super) fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The models that the CLI has listed, else those that the table knows.
    pub(super) fn models(&self) -> Vec<Model> {
        let listed = lock(&self.models).listed.clone().filter(|models| !models.is_empty());
        listed.or_else(|| detect::known(&self.row)).unwrap_or_default()
    }

    /// The model that the CLI uses where none is chosen.
    pub(super) fn default_model(&self) -> Option<String> {
        lock(&self.default_model).clone()
    }

    /// Returns whether it has changed.
    pub(super) fn replace_default_model(&self, name: String) -> bool {
        let mut model = lock(&self.default_model);
        let has_changed = model.as_ref() != Some(&name);
        *model = Some(name);
        has_changed
    }

    /// Returns whether the list has changed.
    pub(super) fn replace_models(&self, listed: Vec<Model>) -> bool {
        let mut models = lock(&self.models);
        let has_changed = models.listed.as_ref() != Some(&listed);
        models.listed = Some(listed);
        has_changed
    }

    /// Whether a process of the CLI is listing its models right now.
    pub(super) fn is_listing_models(&self) -> bool {
        lock(&self.models).is_listing
    }

    /// Waits until no process of the CLI is listing its models.
    pub(super) fn wait_for_models(&self, timeout: Duration) {
        let models = lock(&self.models);
        drop(self.listing_ended.wait_timeout_while(models, timeout, |models| models.is_listing));
    }

    /// Whether the CLI has said that it takes no prompt before the user logs in.
    pub(super) fn is_logged_out(&self) -> bool {
        self.is_logged_out.load(Ordering::Acquire)
    }

    pub(super) fn set_logged_out(&self, is_logged_out: bool) {
        self.is_logged_out.store(is_logged_out, Ordering::Release);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn begin_login(&self) {
        self.logins.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end_login(&self) {
        self.logins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns false if the models were or are being listed already.
    pub(super) fn begin_listing(&self) -> bool {
        let mut models = lock(&self.models);
        if models.listed.is_some() {
            return false;
        }
        *models = Models { listed: Some(Vec::new()), is_listing: true };
        true
    }

    pub(super) fn end_listing(&self) {
        lock(&self.models).is_listing = false;
        self.listing_ended.notify_all();
    }

    /// Sends a request to the client. The answer reaches the session's process thread under the returned id.
    pub(super) fn ask(&self, session: &Arc<Session>, method: &str, params: &impl Serialize) -> u64 {
        let id = self.next_number();
        lock(&self.questions).insert(id, session.clone());
        self.writer.request(id, method, params);
        id
    }

    /// Takes a question back. A client that still shows it may stop doing so.
    pub(super) fn drop_question(&self, id: u64) {
        let was_open = lock(&self.questions).remove(&id).is_some();
        if was_open {
            self.writer.notify("$/cancel_request", &json!({ "requestId": id }));
        }
    }

    /// Saves a prompt that becomes a turn, and names the session after the first one.
    pub(super) fn note_prompt(
        &self,
        session: &Session,
        state: &mut State,
        text: &str,
        blocks: Vec<acp::ContentBlock>,
    ) {
        if state.record.title.is_none()
            && let Some(title) = title_from_prompt(text)
        {
            let info = acp::SessionInfoUpdate::new().title(title.clone());
            self.writer.update(&session.id, acp::SessionUpdate::SessionInfoUpdate(info));
            self.store.append(&session.id, &mut state.record, Entry::Title(title));
        }
        for block in blocks {
            let update = acp::SessionUpdate::UserMessageChunk(acp::ContentChunk::new(block));
            self.store.append(&session.id, &mut state.record, Entry::Update(Box::new(update)));
        }
    }

    /// Answers all prompts that wait for the turn of another to end: they were cancelled with it.
    pub(super) fn cancel_waiting(&self, state: &mut State) {
        for waiting in state.waiting.drain(..) {
            let cancelled = acp::PromptResponse::new(acp::StopReason::Cancelled);
            self.writer.respond(waiting.reply_to.as_ref(), Ok(&cancelled));
        }
    }

    /// Ignores an unknown id, which belongs to a turn that is over.
    pub(super) fn on_answer(&self, id: &str, result: Value) {
        let Ok(id) = id.parse() else { return };
        let session = lock(&self.questions).remove(&id);
        if let Some(session) = session {
            let mut state = session.lock();
            state.answers.push((id, result));
            state.wake();
        }
    }

    /// Cancels the prompt with this request id, whether it is a turn or waits for one.
    pub(super) fn cancel_prompt(&self, id: &str) {
        let error = RpcError::new(CANCELLED, "Request cancelled");
        for session in self.sessions().values() {
            let mut state = session.lock();
            if let Some(turn) = &state.turn
                && turn.reply_to.id.get() == id
            {
                turn.cancel(false, Some(error.clone()));
            }
            if let Some(place) = state.waiting.iter().position(|one| one.reply_to.id.get() == id)
                && let Some(waiting) = state.waiting.remove(place)
            {
                self.writer.respond(waiting.reply_to.as_ref(), Err::<&Value, _>(&error));
            }
        }
    }

    /// Stops the turn and the process of a session that is no longer in the table.
    pub(super) fn close(&self, session: Arc<Session>) {
        self.stop(&session, CloseReason::SessionClosed);
        let is_busy = session.lock().is_busy();
        if is_busy {
            let mut closing = lock(&self.closing);
            closing.retain(|session| session.lock().is_busy());
            closing.push(session);
        }
    }

    pub(super) fn close_all(&self) {
        self.is_stopping.store(true, Ordering::Release);
        for session in self.all_sessions() {
            self.stop(&session, CloseReason::AgentExits);
        }
    }

    fn stop(&self, session: &Session, reason: CloseReason) {
        let mut state = session.lock();
        state.close = Some(reason);
        self.cancel_waiting(&mut state);
        if let Some(turn) = &state.turn {
            turn.cancel(reason == CloseReason::AgentExits, None);
        }
        state.wake();
    }

    pub(super) fn is_busy(&self) -> bool {
        let logins = self.logins.load(Ordering::Acquire);
        logins > 0 || self.all_sessions().iter().any(|session| session.lock().is_busy())
    }

    pub(super) fn create(&self, cwd: String) -> io::Result<Arc<Session>> {
        let mut record = Record::default();
        record.apply(Entry::Cwd(cwd.clone()));
        let id = self.store.create(&[Entry::Cwd(cwd)])?;
        Ok(Arc::new(Session::new(id, record)))
    }

    pub(super) fn list_sessions(&self) -> io::Result<Vec<SessionSummary>> {
        let summary = |session: &Arc<Session>| session.lock().record.summary(&session.id, 0);
        self.store.list(|| self.sessions().values().map(summary).collect())
    }

    /// The error that answers a failed turn.
    pub(super) fn error(&self, fault: Fault, message: &str) -> RpcError {
        let data = json!({ "errorKind": fault.name(), "runtime": self.row.id, "details": message });
        if fault == Fault::Authentication {
            let hint = self.row.log_in.as_ref().map_or(String::new(), |how| format!(" (to log in: {how})"));
            let message = format!("Authentication required: {message}{hint}");
            RpcError { code: AUTH_REQUIRED, message, data: Some(data) }
        } else {
            let name = &self.row.name;
            let message =
                if message.starts_with(name) { message.to_owned() } else { format!("{name}: {message}") };
            RpcError { code: INTERNAL_ERROR, message, data: Some(data) }
        }
    }
}
