//! Sessions survive their worker where the agent can: the next message first opens the session in another process.
//!
//! By `session/resume`, else by `session/load` with its replay kept from the client, with the params that the session
//! was opened with; then the modes and options that the client had set. What the client says meanwhile waits.

use std::collections::VecDeque;

use log::info;
use serde_json::Value;

use crate::bus::Bus;
use crate::bus::placement::Need;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::OPENING_BYTES;
use crate::state::calls::{BUS, CallKey, Id, Purpose};
use crate::state::handshake::ReopenBy;
use crate::state::sessions::{Pending, Reopen, Setting};
use crate::state::workers::Queued;
use crate::state::workers::Worker;
use crate::wire::error::RpcError;
use crate::wire::scan::Envelope;

impl Bus {
    /// The session is open: what it takes to open it again is kept, if its agent can do that.
    pub(in crate::bus) fn save_reopen(&mut self, key: SessionKey, id: WorkerId, params: Option<&[u8]>) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (by, pool) = (worker.capabilities.reopen_by, worker.pool);
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let params = params.filter(|params| params.len() <= OPENING_BYTES);
        let params = params.and_then(|params| with_session(params, &session.agent_token));
        session.reopen = by.zip(params).map(|(by, params)| Reopen { by, pool, params, settings: Vec::new() });
    }

    /// A mode or an option that the owner sets is set again in the next process.
    pub(in crate::bus) fn save_setting(&mut self, key: SessionKey, line: &[u8], envelope: &Envelope) {
        let method = envelope.method.of(line);
        if !matches!(method, b"session/set_mode" | b"session/set_config_option" | b"session/set_model") {
            return;
        }
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let (Some(reopen), Some(params)) = (&mut session.reopen, envelope.params) else { return };
        let params = params.of(line);
        if params.len() > OPENING_BYTES {
            return;
        }
        let known: Value = serde_json::from_slice(params).unwrap_or_default();
        let option = known["configId"].as_str().map(str::to_owned);
        if let Some(params) = with_session(params, &session.agent_token) {
            reopen.set(Setting { method: method.into(), option, params });
        }
    }

    /// Begins to open a session in another process: the worker that it now belongs to.
    pub(in crate::bus) fn recover(&mut self, link: Link, key: SessionKey) -> Result<WorkerId, RpcError> {
        let reopen = self.session(key).and_then(|session| session.reopen.as_ref());
        let Some((by, pool)) = reopen.map(|reopen| (reopen.by, reopen.pool)) else {
            return Err(RpcError::lost_session());
        };
        let id = self.choose_worker(link, pool, Need::Session)?;
        let (Some(worker), Some(session)) = (self.workers.get_mut(id.0), self.sessions.get_mut(key.0)) else {
            return Err(RpcError::lost_session());
        };
        if worker.sessions.contains_key(session.agent_name()) {
            return Err(RpcError::lost_session());
        }
        info!("worker {}/{} takes over a session of a lost one", worker.config.id, worker.index);
        session.worker = Some(id);
        session.recovering = Some(VecDeque::new());
        worker.sessions.insert(session.agent_name().into(), key);
        let endpoint = worker.endpoint;
        let params = session.reopen.as_ref().map(|reopen| reopen.params.clone()).unwrap_or_default();
        let method = match by {
            ReopenBy::Resume => "session/resume",
            ReopenBy::Load => "session/load",
        };
        let call = self.calls.ask(BUS, endpoint, Id::none(), Purpose::Recover(key), Some(key));
        self.send_or_queue_call(id, call, request(call, method.as_bytes(), &params));
        Ok(id)
    }

    pub(in crate::bus) fn is_recovering(&self, key: SessionKey) -> bool {
        self.session(key).is_some_and(|session| session.recovering.is_some())
    }

    /// What is said to a session that is not open yet waits for it.
    pub(in crate::bus) fn wait_for_recovery(
        &mut self,
        key: SessionKey,
        call: Option<CallKey>,
        line: Vec<u8>,
    ) {
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let Some(backlog) = &mut session.recovering else { return };
        session.recovering_bytes += line.len();
        self.aside_bytes += line.len();
        backlog.push_back(Queued::Line(call, line.into()));
    }

    /// The new process has answered.
    pub(in crate::bus) fn recovered(&mut self, key: SessionKey, id: WorkerId, failed: bool) {
        if failed && self.try_loading(key, id) {
            return;
        }
        if failed {
            if let Some(session) = self.sessions.get_mut(key.0) {
                session.reopen = None;
            }
            return self.recovery_failed(key, &RpcError::lost_session());
        }
        let Some(worker) = self.workers.get(id.0) else { return };
        let (endpoint, link) = (worker.endpoint, worker.ready_link());
        let settings: Vec<_> =
            self.session(key).and_then(|session| session.reopen.as_ref()).map_or_else(Vec::new, |reopen| {
                reopen
                    .settings
                    .iter()
                    .map(|setting| (setting.method.clone(), setting.params.clone()))
                    .collect()
            });
        for (method, params) in settings {
            let call = self.calls.ask(BUS, endpoint, Id::none(), Purpose::Ignore, None);
            self.send_or_queue_call(id, call, request(call, &method, &params));
        }
        let Some(link) = link else { return };
        for queued in self.take_recovering(key) {
            match queued {
                Queued::Line(Some(call), line) if self.calls.get(call).is_some() => {
                    self.send_call(link, call, &line);
                }
                Queued::Line(None, line) => {
                    self.links.send(link, &line, &[]);
                }
                _ => {}
            }
        }
    }

    /// Some agents offer to resume and then cannot, but can load.
    fn try_loading(&mut self, key: SessionKey, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get(id.0).filter(|worker| worker.capabilities.loads) else {
            return false;
        };
        let reopen = self.sessions.get_mut(key.0).and_then(|session| session.reopen.as_mut());
        let Some(reopen) = reopen.filter(|reopen| reopen.by == ReopenBy::Resume) else { return false };
        reopen.by = ReopenBy::Load;
        let params = reopen.params.clone();
        let call = self.calls.ask(BUS, worker.endpoint, Id::none(), Purpose::Recover(key), Some(key));
        self.send_or_queue_call(id, call, request(call, b"session/load", &params));
        true
    }

    /// The session stays lost; those who waited for it hear of it.
    pub(in crate::bus) fn recovery_failed(&mut self, key: SessionKey, error: &RpcError) {
        let backlog = self.take_recovering(key);
        let asked =
            self.session_mut(key).map_or_else(Vec::new, |session| std::mem::take(&mut session.pending));
        for Pending { call, line } in asked {
            self.aside_bytes -= line.len();
            self.fail_call(call, &RpcError::client_gone());
        }
        if let Some(session) = self.sessions.get_mut(key.0)
            && let Some(worker) = session.worker.take().and_then(|id| self.workers.get_mut(id.0))
        {
            worker.sessions.remove(session.agent_name());
        }
        for queued in backlog {
            if let Queued::Line(Some(call), _) = queued {
                self.fail_call(call, error);
            }
        }
        if self.session(key).is_some_and(|session| session.owner.is_none()) {
            self.drop_session(key);
        }
    }

    /// The session is dropped: nothing waits for it any more.
    pub(in crate::bus) fn end_recovery(&mut self, key: SessionKey) {
        for queued in self.take_recovering(key) {
            if let Queued::Line(Some(call), _) = queued {
                self.fail_call(call, &RpcError::unknown_session());
            }
        }
    }

    fn take_recovering(&mut self, key: SessionKey) -> VecDeque<Queued> {
        let Some(session) = self.sessions.get_mut(key.0) else { return VecDeque::new() };
        self.aside_bytes -= std::mem::take(&mut session.recovering_bytes);
        session.recovering.take().unwrap_or_default()
    }

    /// What an agent tells again while it loads is known to the client.
    pub(in crate::bus) fn is_replay(&self, key: SessionKey) -> bool {
        self.session(key).is_some_and(|session| {
            let loads = session.reopen.as_ref().is_some_and(|reopen| reopen.by == ReopenBy::Load);
            session.recovering.is_some() && loads
        })
    }

    /// Gives the line of a call, its wire id in it, to a worker, or lets it wait in its turn.
    pub(in crate::bus) fn send_or_queue_call(&mut self, id: WorkerId, call: CallKey, line: Vec<u8>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        match worker.ready_link() {
            Some(link) => self.send_call(link, call, &line),
            None => self.aside_bytes += push_backlog(worker, Some(call), line.into()),
        }
    }
}

/// A line waits for its worker; gives back its bytes.
pub(in crate::bus) fn push_backlog(worker: &mut Worker, call: Option<CallKey>, line: Box<[u8]>) -> usize {
    let bytes = line.len();
    worker.backlog_bytes += bytes;
    worker.backlog.push_back(Queued::Line(call, line));
    bytes
}

/// A request of the bus itself.
pub(in crate::bus) fn request(call: CallKey, method: &[u8], params: &[u8]) -> Vec<u8> {
    let mut line = format!(r#"{{"jsonrpc":"2.0","id":{},"method":""#, call.wire()).into_bytes();
    line.extend_from_slice(method);
    line.extend_from_slice(br#"","params":"#);
    line.extend_from_slice(params);
    line.push(b'}');
    line
}

/// Params, which are an object, about this session.
fn with_session(params: &[u8], token: &[u8]) -> Option<Box<[u8]>> {
    let mut params: Value = serde_json::from_slice(params).ok()?;
    let name: Value = serde_json::from_slice(token).ok()?;
    let members = params.as_object_mut()?;
    members.insert("sessionId".to_owned(), name);
    // What the session was opened with does not say how it is opened again: the client has heard it all.
    members.remove("replayFrom");
    Some(params.to_string().into_bytes().into())
}
