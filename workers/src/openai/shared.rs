//! The state that all threads of the agent share.
//!
//! Locks are taken in this order: the session table, one session, then one of the small locks (models, quirks, asked,
//! stdout). No lock is taken while a small one is held.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use agent_client_protocol_schema::v1 as acp;
use rpc::RpcError;
use rpc::error::CANCELLED;
use serde_json::Value;
use serde_json::value::RawValue;

use super::config::{Config, DEFAULT_MODEL};
use super::http::Http;
use super::log::log;
use super::mcp;
use super::models::{self, Models};
use super::options::Options;
use super::record::{Mode, Record};
use super::responses;
use super::session::{Session, State, TurnEvent};
use super::tools::ClientTools;
use super::url::without_secrets;
use super::wire::Quirks;
use crate::acp::session_files::EventSourced;
use crate::acp::session_list::SessionSummary;
use crate::acp::store::Store;
use crate::acp::writer::Writer;
use crate::lock::lock;

const SESSION_ID_PREFIX: &str = "openai-";

pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) options: Options,
    pub(super) writer: Writer,
    pub(super) http: Http,
    pub(super) store: Store<Record>,
    pub(super) mcp: mcp::Runtime,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    client_capabilities: Mutex<acp::ClientCapabilities>,
    models: Mutex<Models>,
    models_refreshed: Condvar,
    /// Each model has its own quirks, because one endpoint may serve many kinds.
    quirks: Mutex<HashMap<String, Quirks>>,
    /// Requests to the client that wait for a response, and the turns that wait for them.
    asked: Mutex<HashMap<u64, Sender<TurnEvent>>>,
    next_id: AtomicU64,
    next_turn: AtomicU64,
    seed: RandomState,
}

impl Shared {
    pub(super) fn new(
        config: Config,
        options: Options,
        folder: Option<&Path>,
        writer: Writer,
    ) -> io::Result<Shared> {
        Ok(Shared {
            options,
            writer,
            http: Http::new(&config),
            store: Store::open(folder, SESSION_ID_PREFIX, log)?,
            mcp: mcp::Runtime::default(),
            sessions: Mutex::default(),
            client_capabilities: Mutex::default(),
            models: Mutex::new(Models::fixed(&config.models)),
            models_refreshed: Condvar::new(),
            quirks: Mutex::default(),
            asked: Mutex::default(),
            next_id: AtomicU64::new(1),
            next_turn: AtomicU64::new(1),
            seed: RandomState::new(),
            config,
        })
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        lock(&self.sessions)
    }

    pub(super) fn models(&self) -> MutexGuard<'_, Models> {
        lock(&self.models)
    }

    pub(super) fn client_capabilities(&self) -> MutexGuard<'_, acp::ClientCapabilities> {
        lock(&self.client_capabilities)
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.next_turn.fetch_add(1, Ordering::Relaxed)
    }

    /// A random number in 0..1.
    pub(super) fn random_fraction(&self) -> f64 {
        let random = self.seed.hash_one(self.next_id());
        (random >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn quirks(&self, model: &str) -> Quirks {
        lock(&self.quirks).get(model).cloned().unwrap_or_default()
    }

    pub(super) fn add_quirks(&self, model: &str, quirks: Quirks) {
        log(format_args!("learned about {model}: {quirks:?}"));
        lock(&self.quirks).entry(model.to_owned()).or_default().add(quirks);
    }

    /// The model of a session: the one that was chosen, or that of the environment, or the only one of the endpoint.
    pub(super) fn model_of(&self, record: &Record) -> String {
        let named = record.model.as_deref().or(self.config.model.as_deref());
        named.map_or_else(|| self.models().sole().unwrap_or(DEFAULT_MODEL).to_owned(), str::to_owned)
    }

    /// The size of a model's context window, if anybody has said it.
    pub(super) fn window_tokens(&self, model: &str) -> Option<u64> {
        let learned = self.quirks(model).window_tokens;
        learned.or_else(|| self.models().context_tokens(model)).or(self.config.context_tokens)
    }

    /// Waits a moment for the first list of models, so that the first session can name them.
    pub(super) fn wait_for_models(&self) {
        let mut models = self.models();
        while let Some(time) = models.time_to_wait(Instant::now()) {
            let waited = self.models_refreshed.wait_timeout(models, time);
            models = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    /// The client's tools that a model may use in a session of this mode.
    pub(super) fn client_tools(&self, mode: Mode) -> ClientTools {
        if self.config.has_tools {
            ClientTools::new(&self.client_capabilities(), mode)
        } else {
            ClientTools::default()
        }
    }

    /// Reserves the id of a request. Its response goes to `events`.
    pub(super) fn expect_response(&self, events: Sender<TurnEvent>) -> u64 {
        let id = self.next_id();
        lock(&self.asked).insert(id, events);
        id
    }

    /// A number for something that a turn waits for.
    pub(super) fn next_number(&self) -> u64 {
        self.next_id()
    }

    pub(super) fn forget_response(&self, id: u64) {
        lock(&self.asked).remove(&id);
    }

    /// Sends a request whose response is ignored.
    pub(super) fn request_and_forget(&self, method: &str, params: &Value) {
        self.writer.request(self.next_id(), method, params);
    }

    /// Passes a response to its turn. An unknown id belongs to a cancelled turn.
    pub(super) fn response(&self, id: &RawValue, outcome: Result<Box<RawValue>, String>) {
        let Ok(id) = id.get().parse() else { return };
        if let Some(events) = lock(&self.asked).remove(&id) {
            let _ = events.send(TurnEvent::Response(id, outcome));
        }
    }

    /// Ends the session's turn, if it has one, and responds to its prompt: with the error, or else as cancelled.
    pub(super) fn end_turn(&self, state: &mut State, error: Option<&RpcError>) {
        let Some(running) = state.turn.take() else { return };
        let cancelled = acp::PromptResponse::new(acp::StopReason::Cancelled);
        self.writer.respond(running.reply_to.as_ref(), error.map_or(Ok(&cancelled), Err));
        running.wake();
    }

    /// Ends the turn whose prompt has this id, because the client has cancelled the request.
    pub(super) fn cancel_request(&self, id: &RawValue) {
        let error = RpcError::new(CANCELLED, "Request cancelled");
        for session in self.sessions().values() {
            let mut state = session.lock();
            if state.turn.as_ref().is_some_and(|running| running.reply_to.id.get() == id.get()) {
                self.end_turn(&mut state, Some(&error));
            }
        }
    }

    /// Ends everything before the process exits.
    pub(super) fn end_all(&self, timeout: Duration) {
        for session in self.sessions().values() {
            let mut state = session.lock();
            self.end_turn(&mut state, None);
            state.mcp = None;
        }
        self.mcp.wait_until_ended(timeout);
    }

    pub(super) fn list_sessions(&self) -> io::Result<Vec<SessionSummary>> {
        let summary = |session: &Arc<Session>| session.lock().record.summary(&session.id, 0);
        self.store.list(|| self.sessions().values().map(summary).collect())
    }

    pub(super) fn config_options(&self, record: &Record) -> Vec<acp::SessionConfigOption> {
        responses::config_options(record.mode, &self.model_of(record), &self.models())
    }

    pub(super) fn send_config_options(&self, session_id: &str, record: &Record) {
        let update = acp::ConfigOptionUpdate::new(self.config_options(record));
        self.writer.update(session_id, acp::SessionUpdate::ConfigOptionUpdate(update));
    }

    fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }
}

/// Fetches the list of models on its own thread, if the last one is old, and sends a new list to the open sessions.
pub(super) fn refresh_models(shared: &Arc<Shared>) {
    let Ok(endpoint) = &shared.config.endpoint else { return };
    let url = endpoint.models();
    if !shared.models().begin_refresh(Instant::now()) {
        return;
    }
    let refreshing = shared.clone();
    let refresh = move || {
        let answer = match refreshing.http.get(&url) {
            Ok(body) => models::parse(&body),
            Err(error) => {
                let text = refreshing.config.redact(&error.text(&without_secrets(&url)));
                log(format_args!("no list of models: {}", text.replace('\n', " ")));
                None
            }
        };
        let sessions = refreshing.sessions();
        let has_changed = refreshing.models().end_refresh(answer, Instant::now());
        refreshing.models_refreshed.notify_all();
        if !has_changed {
            return;
        }
        for session in sessions.values() {
            refreshing.send_config_options(&session.id, &session.lock().record);
        }
    };
    if thread::Builder::new().name("models".to_owned()).spawn(refresh).is_err() {
        shared.models().end_refresh(None, Instant::now());
    }
}
