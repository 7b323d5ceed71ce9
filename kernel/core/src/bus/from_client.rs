//! What clients say: each line finds its worker, and what the worker must not see of it is rewritten.

use std::borrow::Cow;

use crate::bus::placement::Need;
use crate::bus::session::recover::push_backlog;
use crate::bus::{Bus, Gate};
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{LABELS, NAME_BYTES, OPENING_BYTES, STICKY_NOTIFICATION_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::calls::{BUS, CallKey, Endpoint, Id, Purpose};
use crate::state::clients::{AuthState, Client};
use crate::state::handshake::Handshake;
use crate::state::pools::{Broadcast, PoolId};
use crate::state::sessions::{Session, token};
use crate::state::timers::Alarm;
use crate::state::workers::{Init, Queued};
use crate::wire::error::RpcError;
use crate::wire::partial_scan::PartialScan;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Fault, Kind, canonical};
use crate::wire::splice::{Edit, Edits, splice};

/// How the worker is to see the session of a message.
pub(super) enum Named {
    /// The message names none.
    Nothing,
    /// By the agent's name for this one.
    Known(SessionKey),
    /// By this token: a session that is not open here.
    As(Box<[u8]>),
}

type Routed = Result<(), RpcError>;

impl Bus {
    /// How bytes from this client are taken: its first one must open a JSON object. A browser's request, a TLS
    /// hello, anything else is not even answered.
    pub(super) fn gate_for(&self, link: Link, bytes: &[u8]) -> Gate {
        let gate = match self.clients.get(link.0).map(|client| client.auth) {
            None | Some(AuthState::Accepted) => return Gate::Open,
            Some(AuthState::Rejected) => return Gate::Discard,
            Some(AuthState::AwaitingFirstLine) => Gate::Open,
            Some(AuthState::AwaitingToken) => Gate::AuthOnly,
        };
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let begins = self.links.is_input_blank(link) && first.is_some_and(|first| *first != b'{');
        if begins && enabled(Check::FirstLine) { Gate::Close } else { gate }
    }

    pub(super) fn client_line(&mut self, link: Link, line: &[u8], prefix_cache: &mut PrefixCache) {
        if line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            return;
        }
        let Some(client) = self.clients.get_mut(link.0) else { return };
        let first = match std::mem::replace(&mut client.auth, AuthState::Accepted) {
            AuthState::Accepted => false,
            AuthState::AwaitingFirstLine => true,
            AuthState::AwaitingToken => {
                client.auth = AuthState::AwaitingToken;
                return self.auth_line(link, line);
            }
            AuthState::Rejected => {
                client.auth = AuthState::Rejected;
                return;
            }
        };
        let scanned = prefix_cache.scan(line);
        let envelope = match &scanned {
            Ok(envelope) => envelope,
            Err(malformed) if first && matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                let answered = malformed.id.filter(|_| malformed.answer).map(|id| id.of(line));
                let error = RpcError::malformed(malformed);
                self.counters.malformed_lines += 1;
                self.fail_answer(link, answered, &error);
                return self.send_error(link, None, &error);
            }
        };
        match envelope.kind {
            Kind::Answer { .. } => self.client_answers(link, line, envelope),
            Kind::Request | Kind::Notification => {
                if let Err(error) = self.route_client_message(link, line, envelope) {
                    self.fail_client_line(link, line, envelope, &error);
                }
            }
        }
    }

    pub(super) fn client_too_long(&mut self, link: Link, partial: &PartialScan) {
        if self.is_awaiting_token(link) {
            return self.auth_line_too_long(link);
        }
        if let Some(client) = self.clients.get_mut(link.0) {
            client.auth = AuthState::Accepted;
        }
        self.counters.too_large += 1;
        let error = match self.has_room() {
            Err(error) => error,
            Ok(()) => RpcError::too_large(self.limits.max_input_buffer),
        };
        self.fail_answer(link, partial.id().filter(|_| partial.is_answer()), &error);
        let id = partial.id().filter(|_| partial.is_request());
        self.send_error(link, id, &error);
    }

    /// The client was asked something, and this, which cannot be passed on, was to be the answer: the agent is told.
    fn fail_answer(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        let endpoint = self.clients.get(link.0).map(|client| client.endpoint);
        if let (Some(endpoint), Some(key)) = (endpoint, id.and_then(CallKey::from_wire))
            && self.calls.get(key).is_some_and(|call| call.callee == endpoint)
        {
            self.settle_pending(key);
            self.fail_call(key, error);
        }
    }

    fn fail_client_line(&mut self, link: Link, line: &[u8], envelope: &Envelope, error: &RpcError) {
        self.trace_line(Endpoint::Client(link), Endpoint::Bus, None, None, line, envelope);
        match envelope.id {
            Some(id) => self.send_error(link, Some(id.of(line)), error),
            None => self.counters.dropped_notifications += 1,
        }
    }

    fn route_client_message(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let method = envelope.method.of(line);
        if method.starts_with(b"_bus/") {
            return self.admin_request(link, line, envelope);
        }
        if let Some(id) = envelope.id {
            self.check_admission(id.of(line))?;
        }
        match method {
            b"initialize" => self.client_initializes(link, line, envelope),
            b"$/cancel_request" => self.client_cancels(link, line, envelope),
            b"authenticate" | b"logout" | b"auth/login" | b"auth/logout" | b"providers/set"
            | b"providers/disable"
                if envelope.id.is_some() =>
            {
                self.broadcast(link, line, envelope)
            }
            b"session/new" | b"nes/start" => self.open_session(link, line, envelope),
            b"session/load" | b"session/resume" => self.load_or_resume(link, line, envelope),
            _ if envelope.session.is_some() => self.session_line(link, line, envelope),
            _ => self.plain_line(link, line, envelope),
        }
    }

    /// Whether one more request can be taken on.
    fn check_admission(&mut self, id: &[u8]) -> Routed {
        self.counters.requests += 1;
        if self.stopping.is_some() {
            return Err(RpcError::stopping());
        }
        self.has_room()?;
        if id.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
        }
        Ok(())
    }

    /// Whether the house can hold one more call, of anybody.
    pub(super) fn has_room(&self) -> Routed {
        if !enabled(Check::Room) {
            return Ok(());
        }
        if self.calls.len() >= self.limits.max_calls {
            return Err(RpcError::busy(format!("max_calls ({}) are in flight", self.limits.max_calls)));
        }
        if self.is_full() {
            return Err(RpcError::busy(format!("max_held_bytes ({}) are held", self.limits.max_held_bytes)));
        }
        Ok(())
    }

    fn client(&self, link: Link) -> Result<&Client, RpcError> {
        self.clients.get(link.0).ok_or_else(RpcError::client_gone)
    }

    /// A worker is initialized once; this client hears what the worker answered then.
    fn client_initializes(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let Some(id) = envelope.id else { return Err(RpcError::invalid("initialize is a request")) };
        let handshake = Handshake::of(envelope.params.map(|params| params.of(line)));
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        if let Some(client) = self.clients.get_mut(link.0)
            && *client.handshake != *handshake
        {
            client.handshake = handshake;
            client.affinity = None;
        }
        let worker = self.worker_for_request(link, pool)?;
        let (caller, asked) = (self.client(link)?.endpoint, self.endpoint_of(worker)?);
        if matches!(self.workers.get(worker.0).map(|worker| &worker.init), Some(Init::Ready { .. })) {
            self.trace_line(Endpoint::Client(link), Endpoint::Worker(worker), None, None, line, envelope);
            self.send_init_result(link, id.of(line), worker, None);
            return Ok(());
        }
        let call = self.calls.ask(caller, asked, Id::new(id.of(line)), Purpose::ClientInitialize, None);
        self.trace_line(Endpoint::Client(link), Endpoint::Worker(worker), None, Some(call), line, envelope);
        if let Some(worker) = self.workers.get_mut(worker.0) {
            worker.backlog.push_back(Queued::Initialize(call));
        }
        Ok(())
    }

    fn client_cancels(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let request = envelope.request.ok_or_else(|| RpcError::invalid("requestId is missing"))?;
        let call = self.calls.find(self.client(link)?.endpoint, request.of(line));
        let asked =
            call.and_then(|key| self.calls.get(key)).filter(|call| call.purpose != Purpose::ClientInitialize);
        let (Some(key), Some(asked)) = (call, asked) else {
            self.counters.dropped_notifications += 1;
            return Ok(());
        };
        let Endpoint::Worker(worker) = self.calls.endpoint(asked.callee) else { return Ok(()) };
        self.trace_line(Endpoint::Client(link), Endpoint::Worker(worker), None, None, line, envelope);
        self.notify_worker(worker, line, &[Edit::new(request, key.spelled(&mut itoa::Buffer::new()))]);
        Ok(())
    }

    /// A request that changes a whole process goes to every process that this client might meet.
    fn broadcast(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let client = self.client(link)?;
        let handshake = client.handshake.clone();
        let pool_id = self.pool_of(client, line, envelope)?;
        let first = self.worker_for_request(link, pool_id)?;
        let awaits =
            self.forward_to_worker(link, first, line, envelope, Purpose::Broadcast, &Named::Nothing, None)?;
        let Some(pool) = self.pools.get_mut(pool_id) else { return Ok(()) };
        let (method, line) = (envelope.method.of(line), line);
        if line.len() <= STICKY_NOTIFICATION_BYTES {
            pool.add_broadcast(Broadcast {
                handshake: handshake.clone(),
                method: method.into(),
                line: line.into(),
                awaits,
            });
        }
        let others: Vec<_> = pool.workers.iter().copied().filter(|id| *id != first).collect();
        for id in others {
            let ready = |worker: &&super::Worker| {
                worker.ready_link().is_some() && worker.is_compatible(&handshake) && !worker.retiring
            };
            if self.workers.get(id.0).filter(ready).is_some() {
                self.broadcast_to(id, line, envelope);
            }
        }
        Ok(())
    }

    /// The same to one more worker; nobody waits for its answer.
    pub(super) fn broadcast_to(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (Some(link), Some(span)) = (worker.ready_link(), envelope.id) else { return };
        let call = self.calls.ask(BUS, worker.endpoint, Id::none(), Purpose::Ignore, None);
        let mut told = Vec::new();
        splice(&mut told, line, &[Edit::new(span, call.spelled(&mut itoa::Buffer::new()))]);
        self.send_call(link, call, &told);
    }

    fn open_session(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let worker = match self.label_worker(link, line, envelope)? {
            Some(worker) => worker,
            None => self.choose_worker(link, pool, Need::Session)?,
        };
        self.forward_to_worker(link, worker, line, envelope, Purpose::Open, &Named::Nothing, None)?;
        Ok(())
    }

    /// A message about a session of this client.
    fn session_line(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let name = envelope.session.map(|span| canonical(span.of(line))).unwrap_or_default();
        let method = envelope.method.of(line);
        let own = self.client(link)?.sessions.get(&*name).copied();
        let Some(key) = own.or_else(|| self.any_session(&name)) else {
            return match method {
                b"session/fork" | b"session/delete" => {
                    self.fork_or_delete_absent(link, line, envelope, &name)
                }
                _ => Err(RpcError::unknown_session()),
            };
        };
        let worker = match self.session(key).and_then(|session| session.worker) {
            Some(worker) => worker,
            None => self.recover(link, key)?,
        };
        self.save_setting(key, line, envelope);
        let purpose = match method {
            b"session/fork" => Purpose::Open,
            b"session/close" | b"session/delete" | b"nes/close" => Purpose::Close(key),
            _ => Purpose::Ask,
        };
        self.forward_to_worker(link, worker, line, envelope, purpose, &Named::Known(key), Some(key))?;
        Ok(())
    }

    /// What is looked at only where the guard is off.
    fn any_session(&self, name: &[u8]) -> Option<SessionKey> {
        if enabled(Check::OwnNames) {
            return None;
        }
        self.sessions.iter().find(|(_, session)| session.bus_name() == name).map(|(key, _)| SessionKey(key))
    }

    /// A message about no session, or one that only the client names.
    fn plain_line(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let worker = match self.label_worker(link, line, envelope)? {
            Some(worker) => worker,
            None => self.worker_for_request(link, pool)?,
        };
        let purpose = match envelope.method.of(line) {
            b"session/list" => Purpose::List,
            _ => Purpose::Ask,
        };
        self.forward_to_worker(link, worker, line, envelope, purpose, &Named::Nothing, None)?;
        Ok(())
    }

    /// The worker that the label at the top of a message is pinned to, if it is.
    fn label_worker(
        &mut self,
        link: Link,
        line: &[u8],
        envelope: &Envelope,
    ) -> Result<Option<WorkerId>, RpcError> {
        let Some(span) = envelope.top_session else { return Ok(None) };
        let name = canonical(span.of(line));
        let Some(key) = self.client(link)?.labels.get(&*name).copied() else { return Ok(None) };
        let worker = self.session(key).and_then(|session| session.worker);
        if worker.is_none() {
            // Said once; the next use of the label pins it anew.
            self.drop_session(key);
            return Err(RpcError::lost_session());
        }
        Ok(worker)
    }

    /// The label at the top of a message, pinned to this worker if it is new.
    fn label(
        &mut self,
        link: Link,
        line: &[u8],
        envelope: &Envelope,
        id: WorkerId,
    ) -> Result<Option<SessionKey>, RpcError> {
        let Some(span) = envelope.top_session else { return Ok(None) };
        let name = canonical(span.of(line));
        if name.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        if let Some(key) = self.client(link)?.labels.get(&*name).copied() {
            let pinned = self.session(key).and_then(|session| session.worker);
            return match pinned == Some(id) {
                true => Ok(Some(key)),
                false => Err(RpcError::invalid("the sessionId at the top is pinned to another worker")),
            };
        }
        if self.client(link)?.labels.len() >= LABELS {
            return Err(RpcError::busy(format!(
                "a client has at most {LABELS} sessions that it names itself"
            )));
        }
        let mut session = Session::new(token(&name), self.tags.token(&name), id, Some(link), self.now);
        session.is_label = true;
        let agent_name: Box<[u8]> = session.agent_name().into();
        let key = SessionKey(self.sessions.insert(session));
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.sessions.insert(agent_name, key);
            worker.labels += 1;
        }
        if let Some(client) = self.clients.get_mut(link.0) {
            client.labels.insert(name.into_owned().into(), key);
        }
        Ok(Some(key))
    }

    /// Gives a line to a worker under the ids that the worker knows.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward_to_worker(
        &mut self,
        from: Link,
        id: WorkerId,
        line: &[u8],
        envelope: &Envelope,
        purpose: Purpose,
        named: &Named,
        about: Option<SessionKey>,
    ) -> Result<Option<CallKey>, RpcError> {
        let label = self.label(from, line, envelope, id)?;
        self.touch(about.or(label));
        let caller = self.client(from)?.endpoint;
        let Some(worker) = self.workers.get_mut(id.0) else { return Err(RpcError::unknown_session()) };
        if worker.ready_link().is_none() && worker.backlog_bytes > self.limits.max_output_queue {
            return Err(RpcError::busy("too much waits for the worker to be ready"));
        }
        worker.requests += u64::from(envelope.id.is_some());
        let call = envelope.id.map(|span| {
            self.calls.ask(caller, worker.endpoint, Id::new(span.of(line)), purpose, about.or(label))
        });
        if let (Some(key), Purpose::Open | Purpose::Reopen(_)) = (call, purpose) {
            let params =
                envelope.params.map(|params| params.of(line)).filter(|params| params.len() <= OPENING_BYTES);
            if let Some(call) = self.calls.get_mut(key) {
                call.opening = params.map(Box::from);
            }
        }
        if let (Some(patience), Some(_)) = (self.limits.silence_timeout, call)
            && !std::mem::replace(&mut worker.silence_alarm, true)
        {
            worker.last_output = self.now;
            self.alarms.set(self.now + patience, Alarm::Silence(id));
        }
        let mut digits = itoa::Buffer::new();
        let mut edits = Edits::none();
        if let (Some(span), Some(call)) = (envelope.id, call) {
            edits.add(span, call.spelled(&mut digits));
        }
        if let Some(span) = envelope.session {
            match named {
                Named::Nothing => {}
                Named::As(token) => edits.add(span, token),
                Named::Known(key) => {
                    let session = self.sessions.get(key.0).ok_or_else(RpcError::unknown_session)?;
                    edits.add(span, &session.agent_token);
                }
            }
        }
        if let (Some(span), Some(session)) =
            (envelope.top_session, label.and_then(|key| self.sessions.get(key.0)))
        {
            edits.add(span, &session.agent_token);
        }
        let mut waiting = Vec::new();
        let recovering =
            |key: &SessionKey| self.sessions.get(key.0).is_some_and(|session| session.recovering.is_some());
        if let Some(key) = about.filter(recovering) {
            splice(&mut waiting, line, &edits);
            self.wait_for_recovery(key, call, waiting);
        } else if let Some(link) = worker.ready_link() {
            let written = self.links.send(link, line, &edits);
            if let (Some(written), Some(call)) = (written, call.and_then(|call| self.calls.get_mut(call))) {
                call.written = written;
            }
        } else {
            splice(&mut waiting, line, &edits);
            self.aside_bytes += push_backlog(worker, call, waiting.into());
        }
        self.trace_line(Endpoint::Client(from), Endpoint::Worker(id), about, call, line, envelope);
        Ok(call)
    }

    /// Gives a notification to a worker, or lets it wait in its turn.
    pub(super) fn notify_worker(&mut self, id: WorkerId, line: &[u8], edits: &[Edit<'_>]) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if let Some(link) = worker.ready_link() {
            self.links.send(link, line, edits);
            return;
        }
        let mut waiting = Vec::new();
        splice(&mut waiting, line, edits);
        self.aside_bytes += push_backlog(worker, None, waiting.into());
    }

    pub(super) fn endpoint_of(&self, id: WorkerId) -> Result<crate::state::calls::EndpointId, RpcError> {
        self.workers.get(id.0).map(|worker| worker.endpoint).ok_or_else(RpcError::unknown_session)
    }

    /// A client answers what an agent asked it.
    fn client_answers(&mut self, link: Link, line: &[u8], envelope: &Envelope) {
        let endpoint = self.clients.get(link.0).map(|client| client.endpoint);
        let key = envelope.id.and_then(|id| CallKey::from_wire(id.of(line)));
        let (Some(endpoint), Some(key), Some(id)) = (endpoint, key, envelope.id) else {
            self.counters.stray_answers += 1;
            return;
        };
        let answered =
            self.callee_has_seen(endpoint, key).then(|| self.calls.answered(key, endpoint)).flatten();
        let Some(call) = answered else {
            self.counters.stray_answers += 1;
            return;
        };
        self.counters.answers += 1;
        self.counters.errors += u64::from(envelope.kind == Kind::Answer { failed: true });
        self.touch(call.session);
        self.trace_answer(Endpoint::Client(link), key, &call, line, envelope);
        if let Some(session) = call.session {
            self.no_longer_pending(session, key);
        }
        let Endpoint::Worker(worker) = self.calls.endpoint(call.caller) else { return };
        let Some(to) = self.workers.get(worker.0).and_then(|worker| worker.link) else { return };
        let mut edits = Edits::none();
        edits.add(id, call.id.as_bytes());
        // A label is the client's word; the worker knows another.
        let label = call.session.and_then(|key| self.sessions.get(key.0)).filter(|session| session.is_label);
        if let (Some(span), Some(label)) = (envelope.top_session, label) {
            edits.add(span, &label.agent_token);
        }
        self.links.send(to, line, &edits);
        self.check_idle(worker);
    }

    /// The client's pool and handshake know the session by its agent's name only: it is not open here, or not its own.
    fn fork_or_delete_absent(&mut self, link: Link, line: &[u8], envelope: &Envelope, name: &[u8]) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let agent = crate::state::sessions::behind_tag(name).unwrap_or(name);
        let deletes = envelope.method.of(line) == b"session/delete";
        let held = self.find_session(pool, name, agent);
        let (worker, purpose) = match held {
            Some(key) if self.is_owned(key) => return Err(RpcError::unknown_session()),
            // A fork lives where the original does, so the client must fit there.
            Some(key) if !deletes && !self.is_compatible_with(link, key) => {
                return Err(RpcError::unknown_session());
            }
            Some(key) => {
                let worker = self.session(key).and_then(|session| session.worker);
                let place = worker.and_then(|id| self.workers.get_mut(id.0)).filter(|_| !deletes);
                if let Some(place) = place.filter(|place| place.config.mode == Mode::Dedicated) {
                    place.dedicated_to = Some(link);
                }
                let purpose = if deletes { Purpose::Close(key) } else { Purpose::Open };
                (worker.ok_or_else(RpcError::unknown_session)?, purpose)
            }
            None if deletes => (self.worker_for_request(link, pool)?, Purpose::Ask),
            None => (self.choose_worker(link, pool, Need::Session)?, Purpose::Open),
        };
        self.forward_to_worker(link, worker, line, envelope, purpose, &Named::As(token(agent)), None)?;
        Ok(())
    }

    /// Takes up a session that was left or lost, or opens one that only the agent knows of.
    fn load_or_resume(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let Some(span) = envelope.session else { return Err(RpcError::invalid("sessionId is missing")) };
        let name: Cow<'_, [u8]> = canonical(span.of(line));
        if name.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        if let Some(key) = self.client(link)?.sessions.get(&*name).copied() {
            if self.session(key).is_some_and(|session| session.worker.is_some()) {
                self.answer_with_opening(link, key, line, envelope);
                return Ok(());
            }
            self.drop_session(key);
        }
        let mut pool = self.pool_of(self.client(link)?, line, envelope)?;
        let agent = crate::state::sessions::behind_tag(&name).unwrap_or(&name);
        if let Some(key) = self.find_session(pool, &name, agent) {
            if self.is_owned(key) && enabled(Check::Owner) {
                return Err(RpcError::unknown_session());
            }
            if self.is_compatible_with(link, key) {
                return self.attach(link, key, line, envelope, &name);
            }
            // Its worker was initialized for another kind of client; it goes on elsewhere in the same pool.
            let worker = self.session(key).and_then(|session| session.worker);
            pool = worker.and_then(|id| self.workers.get(id.0)).map_or(pool, |worker| worker.pool);
            self.end_session(key);
        }
        self.reopen(link, pool, line, envelope, &name)
    }

    fn reopen(&mut self, link: Link, pool: PoolId, line: &[u8], envelope: &Envelope, name: &[u8]) -> Routed {
        let id = self.choose_worker(link, pool, Need::Session)?;
        let agent = crate::state::sessions::behind_tag(name).unwrap_or(name);
        if self.workers.get(id.0).is_some_and(|worker| worker.sessions.contains_key(agent)) {
            return Err(RpcError::unknown_session());
        }
        let key = self.bind(Some(link), id, token(name), token(agent));
        let passed = self.forward_to_worker(
            link,
            id,
            line,
            envelope,
            Purpose::Reopen(key),
            &Named::Known(key),
            Some(key),
        );
        if !matches!(passed, Ok(Some(_))) {
            self.drop_session(key);
        }
        passed.map(|_| ())
    }
}
