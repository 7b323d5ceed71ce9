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
use crate::state::calls::{CallKey, Id, Purpose, THE_BUS};
use crate::state::handshake::Reopens;
use crate::state::sessions::{Again, Pending, Setting};
use crate::state::workers::Wait;
use crate::state::workers::Worker;
use crate::wire::error::Refusal;
use crate::wire::scan::Envelope;

impl Bus {
    /// The session is open: what it takes to open it again is kept, if its agent can do that.
    pub(in crate::bus) fn keep_again(&mut self, key: SessionKey, id: WorkerId, params: Option<&[u8]>) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (by, pool) = (worker.offers.reopens, worker.pool);
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let params = params.filter(|params| params.len() <= OPENING_BYTES);
        let params = params.and_then(|params| with_session(params, &session.agent_token));
        session.again = by.zip(params).map(|(by, params)| Again { by, pool, params, settings: Vec::new() });
    }

    /// A mode or an option that the owner sets is set again in the next process.
    pub(in crate::bus) fn keep_setting(&mut self, key: SessionKey, line: &[u8], envelope: &Envelope) {
        let method = envelope.method.of(line);
        if !matches!(method, b"session/set_mode" | b"session/set_config_option" | b"session/set_model") {
            return;
        }
        let Some(session) = self.sessions.get_mut(key.0) else { return };
        let (Some(again), Some(params)) = (&mut session.again, envelope.params) else { return };
        let params = params.of(line);
        if params.len() > OPENING_BYTES {
            return;
        }
        let known: Value = serde_json::from_slice(params).unwrap_or_default();
        let option = known["configId"].as_str().map(str::to_owned);
        if let Some(params) = with_session(params, &session.agent_token) {
            again.set(Setting { method: method.into(), option, params });
        }
    }

    /// Begins to open a session in another process: the worker that it now belongs to.
    pub(in crate::bus) fn recover(&mut self, link: Link, key: SessionKey) -> Result<WorkerId, Refusal> {
        let again = self.session(key).and_then(|session| session.again.as_ref());
        let Some((by, pool)) = again.map(|again| (again.by, again.pool)) else {
            return Err(Refusal::lost_session());
        };
        let id = self.choose(link, pool, Need::Session)?;
        let (Some(worker), Some(session)) = (self.workers.get_mut(id.0), self.sessions.get_mut(key.0)) else {
            return Err(Refusal::lost_session());
        };
        if worker.sessions.contains_key(session.agent_name()) {
            return Err(Refusal::lost_session());
        }
        info!("worker {}/{} takes over a session of a lost one", worker.config.id, worker.index);
        session.worker = Some(id);
        session.recovering = Some(VecDeque::new());
        worker.sessions.insert(session.agent_name().into(), key);
        let party = worker.party;
        let params = session.again.as_ref().map(|again| again.params.clone()).unwrap_or_default();
        let method = match by {
            Reopens::Resume => "session/resume",
            Reopens::Load => "session/load",
        };
        let call = self.calls.ask(THE_BUS, party, Id::none(), Purpose::Recover(key), Some(key));
        self.say_call(id, call, request(call, method.as_bytes(), &params));
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
        let Some(waits) = &mut session.recovering else { return };
        session.recovering_bytes += line.len();
        self.aside_bytes += line.len();
        waits.push_back(Wait::Say(call, line.into()));
    }

    /// The new process has answered.
    pub(in crate::bus) fn recovered(&mut self, key: SessionKey, id: WorkerId, failed: bool) {
        if failed && self.try_loading(key, id) {
            return;
        }
        if failed {
            if let Some(session) = self.sessions.get_mut(key.0) {
                session.again = None;
            }
            return self.recovery_failed(key, &Refusal::lost_session());
        }
        let Some(worker) = self.workers.get(id.0) else { return };
        let (party, link) = (worker.party, worker.ready_link());
        let settings: Vec<_> =
            self.session(key).and_then(|session| session.again.as_ref()).map_or_else(Vec::new, |again| {
                again
                    .settings
                    .iter()
                    .map(|setting| (setting.method.clone(), setting.params.clone()))
                    .collect()
            });
        for (method, params) in settings {
            let call = self.calls.ask(THE_BUS, party, Id::none(), Purpose::Ignore, None);
            self.say_call(id, call, request(call, &method, &params));
        }
        let Some(link) = link else { return };
        for wait in self.take_recovering(key) {
            match wait {
                Wait::Say(Some(call), line) if self.calls.get(call).is_some() => {
                    self.send_call(link, call, &line);
                }
                Wait::Say(None, line) => {
                    self.post.send(link, &line, &[]);
                }
                _ => {}
            }
        }
    }

    /// Some agents offer to resume and then cannot, but can load.
    fn try_loading(&mut self, key: SessionKey, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get(id.0).filter(|worker| worker.offers.loads) else { return false };
        let again = self.sessions.get_mut(key.0).and_then(|session| session.again.as_mut());
        let Some(again) = again.filter(|again| again.by == Reopens::Resume) else { return false };
        again.by = Reopens::Load;
        let params = again.params.clone();
        let call = self.calls.ask(THE_BUS, worker.party, Id::none(), Purpose::Recover(key), Some(key));
        self.say_call(id, call, request(call, b"session/load", &params));
        true
    }

    /// The session stays lost; those who waited for it hear of it.
    pub(in crate::bus) fn recovery_failed(&mut self, key: SessionKey, refusal: &Refusal) {
        let waits = self.take_recovering(key);
        let asked =
            self.session_mut(key).map_or_else(Vec::new, |session| std::mem::take(&mut session.pending));
        for Pending { call, line } in asked {
            self.aside_bytes -= line.len();
            self.refuse_call(call, &Refusal::client_gone());
        }
        if let Some(session) = self.sessions.get_mut(key.0)
            && let Some(worker) = session.worker.take().and_then(|id| self.workers.get_mut(id.0))
        {
            worker.sessions.remove(session.agent_name());
        }
        for wait in waits {
            if let Wait::Say(Some(call), _) = wait {
                self.refuse_call(call, refusal);
            }
        }
        if self.session(key).is_some_and(|session| session.owner.is_none()) {
            self.drop_session(key);
        }
    }

    /// The session is dropped: nothing waits for it any more.
    pub(in crate::bus) fn end_recovery(&mut self, key: SessionKey) {
        for wait in self.take_recovering(key) {
            if let Wait::Say(Some(call), _) = wait {
                self.refuse_call(call, &Refusal::unknown_session());
            }
        }
    }

    fn take_recovering(&mut self, key: SessionKey) -> VecDeque<Wait> {
        let Some(session) = self.sessions.get_mut(key.0) else { return VecDeque::new() };
        self.aside_bytes -= std::mem::take(&mut session.recovering_bytes);
        session.recovering.take().unwrap_or_default()
    }

    /// What an agent tells again while it loads is known to the client.
    pub(in crate::bus) fn is_replay(&self, key: SessionKey) -> bool {
        self.session(key).is_some_and(|session| {
            let loads = session.again.as_ref().is_some_and(|again| again.by == Reopens::Load);
            session.recovering.is_some() && loads
        })
    }

    /// Gives the line of a call, its wire id in it, to a worker, or lets it wait in its turn.
    pub(in crate::bus) fn say_call(&mut self, id: WorkerId, call: CallKey, line: Vec<u8>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        match worker.ready_link() {
            Some(link) => self.send_call(link, call, &line),
            None => self.aside_bytes += park(worker, Some(call), line.into()),
        }
    }
}

/// A line waits for its worker; gives back its bytes.
pub(in crate::bus) fn park(worker: &mut Worker, call: Option<CallKey>, line: Box<[u8]>) -> usize {
    let bytes = line.len();
    worker.waits_bytes += bytes;
    worker.waits.push_back(Wait::Say(call, line));
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
