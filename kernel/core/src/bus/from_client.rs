//! What clients say: each line finds its worker, and what the worker must not see of it is rewritten.

use std::borrow::Cow;

use crate::bus::placement::Need;
use crate::bus::session::recover::park;
use crate::bus::{Bus, Ear};
use crate::config::Mode;
use crate::id::{Link, SessionKey, WorkerId};
use crate::limit::{LABELS, NAME_BYTES, NOTICE_BYTES, OPENING_BYTES};
use crate::mutants::{Guard, stands};
use crate::state::calls::{CallKey, Id, Purpose, THE_BUS, Who};
use crate::state::clients::{Client, Standing};
use crate::state::handshake::Handshake;
use crate::state::pools::{PoolId, Told};
use crate::state::sessions::{Session, token};
use crate::state::timers::Alarm;
use crate::state::workers::{Speech, Wait};
use crate::wire::error::Refusal;
use crate::wire::partial_scan::Skim;
use crate::wire::prefix_cache::Habit;
use crate::wire::scan::{Envelope, Fault, Kind, canonical};
use crate::wire::splice::{Cut, Cuts, splice};

/// How the worker is to see the session of a message.
pub(super) enum Named {
    /// The message names none.
    Nothing,
    /// By the agent's name for this one.
    Known(SessionKey),
    /// By this token: a session that is not open here.
    As(Box<[u8]>),
}

type Routed = Result<(), Refusal>;

impl Bus {
    /// How bytes from this client are taken: its first one must open a JSON object. A browser's request, a TLS
    /// hello, anything else is not even answered.
    pub(super) fn ear_for(&self, link: Link, bytes: &[u8]) -> Ear {
        let ear = match self.clients.get(link.0).map(|client| client.standing) {
            None | Some(Standing::Known) => return Ear::Open,
            Some(Standing::TurnedAway) => return Ear::Shut,
            Some(Standing::Fresh) => Ear::Open,
            Some(Standing::Stranger) => Ear::ForToken,
        };
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        let begins = self.post.is_input_blank(link) && first.is_some_and(|first| *first != b'{');
        if begins && stands(Guard::FirstLine) { Ear::Never } else { ear }
    }

    pub(super) fn client_line(&mut self, link: Link, line: &[u8], habit: &mut Habit) {
        if line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            return;
        }
        let Some(client) = self.clients.get_mut(link.0) else { return };
        let first = match std::mem::replace(&mut client.standing, Standing::Known) {
            Standing::Known => false,
            Standing::Fresh => true,
            Standing::Stranger => {
                client.standing = Standing::Stranger;
                return self.stranger_line(link, line);
            }
            Standing::TurnedAway => {
                client.standing = Standing::TurnedAway;
                return;
            }
        };
        let scanned = habit.scan(line);
        let envelope = match &scanned {
            Ok(envelope) => envelope,
            Err(malformed) if first && matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                let answered = malformed.id.filter(|_| malformed.answer).map(|id| id.of(line));
                let refusal = Refusal::malformed(malformed);
                self.counters.malformed_lines += 1;
                self.fail_answer(link, answered, &refusal);
                return self.refuse(link, None, &refusal);
            }
        };
        match envelope.kind {
            Kind::Answer { .. } => self.client_answers(link, line, envelope),
            Kind::Request | Kind::Notification => {
                if let Err(refusal) = self.client_asks(link, line, envelope) {
                    self.refuse_client(link, line, envelope, &refusal);
                }
            }
        }
    }

    pub(super) fn client_too_long(&mut self, link: Link, skim: &Skim) {
        if self.is_stranger(link) {
            return self.stranger_too_long(link);
        }
        if let Some(client) = self.clients.get_mut(link.0) {
            client.standing = Standing::Known;
        }
        self.counters.too_large += 1;
        let refusal = match self.has_room() {
            Err(refusal) => refusal,
            Ok(()) => Refusal::too_large(self.limits.max_input_buffer),
        };
        self.fail_answer(link, skim.id().filter(|_| skim.is_answer()), &refusal);
        let id = skim.id().filter(|_| skim.is_request());
        self.refuse(link, id, &refusal);
    }

    /// The client was asked something, and this, which cannot be passed on, was to be the answer: the agent is told.
    fn fail_answer(&mut self, link: Link, id: Option<&[u8]>, refusal: &Refusal) {
        let party = self.clients.get(link.0).map(|client| client.party);
        if let (Some(party), Some(key)) = (party, id.and_then(CallKey::from_wire))
            && self.calls.get(key).is_some_and(|call| call.asked == party)
        {
            self.settle_pending(key);
            self.refuse_call(key, refusal);
        }
    }

    fn refuse_client(&mut self, link: Link, line: &[u8], envelope: &Envelope, refusal: &Refusal) {
        self.see_line(Who::Client(link), Who::Bus, None, None, line, envelope);
        match envelope.id {
            Some(id) => self.refuse(link, Some(id.of(line)), refusal),
            None => self.counters.dropped_notifications += 1,
        }
    }

    fn client_asks(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let method = envelope.method.of(line);
        if method.starts_with(b"_bus/") {
            return self.house_call(link, line, envelope);
        }
        if let Some(id) = envelope.id {
            self.admit(id.of(line))?;
        }
        match method {
            b"initialize" => self.client_initializes(link, line, envelope),
            b"$/cancel_request" => self.client_cancels(link, line, envelope),
            b"authenticate" | b"logout" | b"auth/login" | b"auth/logout" | b"providers/set"
            | b"providers/disable"
                if envelope.id.is_some() =>
            {
                self.tell_all(link, line, envelope)
            }
            b"session/new" | b"nes/start" => self.open_session(link, line, envelope),
            b"session/load" | b"session/resume" => self.take_up(link, line, envelope),
            _ if envelope.session.is_some() => self.session_line(link, line, envelope),
            _ => self.plain_line(link, line, envelope),
        }
    }

    /// Whether one more request can be taken on.
    fn admit(&mut self, id: &[u8]) -> Routed {
        self.counters.requests += 1;
        if self.stopping.is_some() {
            return Err(Refusal::stopping());
        }
        self.has_room()?;
        if id.len() > NAME_BYTES {
            return Err(Refusal::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
        }
        Ok(())
    }

    /// Whether the house can hold one more call, of anybody.
    pub(super) fn has_room(&self) -> Routed {
        if !stands(Guard::Room) {
            return Ok(());
        }
        if self.calls.len() >= self.limits.max_calls {
            return Err(Refusal::busy(format!("max_calls ({}) are in flight", self.limits.max_calls)));
        }
        if self.is_full() {
            return Err(Refusal::busy(format!("max_held_bytes ({}) are held", self.limits.max_held_bytes)));
        }
        Ok(())
    }

    fn client(&self, link: Link) -> Result<&Client, Refusal> {
        self.clients.get(link.0).ok_or_else(Refusal::client_gone)
    }

    /// A worker is initialized once; this client hears what the worker answered then.
    fn client_initializes(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let Some(id) = envelope.id else { return Err(Refusal::invalid("initialize is a request")) };
        let handshake = Handshake::of(envelope.params.map(|params| params.of(line)));
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        if let Some(client) = self.clients.get_mut(link.0)
            && *client.handshake != *handshake
        {
            client.handshake = handshake;
            client.home = None;
        }
        let worker = self.home_of(link, pool)?;
        let (asker, asked) = (self.client(link)?.party, self.party_of(worker)?);
        if matches!(self.workers.get(worker.0).map(|worker| &worker.speech), Some(Speech::Ready { .. })) {
            self.see_line(Who::Client(link), Who::Worker(worker), None, None, line, envelope);
            self.greet(link, id.of(line), worker, None);
            return Ok(());
        }
        let call = self.calls.ask(asker, asked, Id::new(id.of(line)), Purpose::Join, None);
        self.see_line(Who::Client(link), Who::Worker(worker), None, Some(call), line, envelope);
        if let Some(worker) = self.workers.get_mut(worker.0) {
            worker.waits.push_back(Wait::Join(call));
        }
        Ok(())
    }

    fn client_cancels(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let request = envelope.request.ok_or_else(|| Refusal::invalid("requestId is missing"))?;
        let call = self.calls.find(self.client(link)?.party, request.of(line));
        let asked = call.and_then(|key| self.calls.get(key)).filter(|call| call.purpose != Purpose::Join);
        let (Some(key), Some(asked)) = (call, asked) else {
            self.counters.dropped_notifications += 1;
            return Ok(());
        };
        let Who::Worker(worker) = self.calls.who(asked.asked) else { return Ok(()) };
        self.see_line(Who::Client(link), Who::Worker(worker), None, None, line, envelope);
        self.say(worker, line, &[Cut::new(request, key.spelled(&mut itoa::Buffer::new()))]);
        Ok(())
    }

    /// A request that changes a whole process goes to every process that this client might meet.
    fn tell_all(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let client = self.client(link)?;
        let handshake = client.handshake.clone();
        let pool_id = self.pool_of(client, line, envelope)?;
        let first = self.home_of(link, pool_id)?;
        let awaits = self.pass_on(link, first, line, envelope, Purpose::Tell, &Named::Nothing, None)?;
        let Some(pool) = self.pools.get_mut(pool_id) else { return Ok(()) };
        let (method, line) = (envelope.method.of(line), line);
        if line.len() <= NOTICE_BYTES {
            pool.tell(Told {
                handshake: handshake.clone(),
                method: method.into(),
                line: line.into(),
                awaits,
            });
        }
        let others: Vec<_> = pool.workers.iter().copied().filter(|id| *id != first).collect();
        for id in others {
            let ready = |worker: &&super::Worker| {
                worker.ready_link().is_some() && worker.can_speak(&handshake) && !worker.retiring
            };
            if self.workers.get(id.0).filter(ready).is_some() {
                self.tell_one(id, line, envelope);
            }
        }
        Ok(())
    }

    /// The same to one more worker; nobody waits for its answer.
    pub(super) fn tell_one(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (Some(link), Some(span)) = (worker.ready_link(), envelope.id) else { return };
        let call = self.calls.ask(THE_BUS, worker.party, Id::none(), Purpose::Ignore, None);
        let mut told = Vec::new();
        splice(&mut told, line, &[Cut::new(span, call.spelled(&mut itoa::Buffer::new()))]);
        self.send_call(link, call, &told);
    }

    fn open_session(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let worker = match self.label_worker(link, line, envelope)? {
            Some(worker) => worker,
            None => self.choose(link, pool, Need::Session)?,
        };
        self.pass_on(link, worker, line, envelope, Purpose::Open, &Named::Nothing, None)?;
        Ok(())
    }

    /// A message about a session of this client.
    fn session_line(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let name = envelope.session.map(|span| canonical(span.of(line))).unwrap_or_default();
        let method = envelope.method.of(line);
        let own = self.client(link)?.sessions.get(&*name).copied();
        let Some(key) = own.or_else(|| self.anybodys_session(&name)) else {
            return match method {
                b"session/fork" | b"session/delete" => self.absent_session(link, line, envelope, &name),
                _ => Err(Refusal::unknown_session()),
            };
        };
        let worker = match self.session(key).and_then(|session| session.worker) {
            Some(worker) => worker,
            None => self.recover(link, key)?,
        };
        self.keep_setting(key, line, envelope);
        let purpose = match method {
            b"session/fork" => Purpose::Open,
            b"session/close" | b"session/delete" | b"nes/close" => Purpose::Close(key),
            _ => Purpose::Ask,
        };
        self.pass_on(link, worker, line, envelope, purpose, &Named::Known(key), Some(key))?;
        Ok(())
    }

    /// What is looked at only where the guard is off.
    fn anybodys_session(&self, name: &[u8]) -> Option<SessionKey> {
        if stands(Guard::OwnNames) {
            return None;
        }
        self.sessions.iter().find(|(_, session)| session.bus_name() == name).map(|(key, _)| SessionKey(key))
    }

    /// A message about no session, or one that only the client names.
    fn plain_line(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let worker = match self.label_worker(link, line, envelope)? {
            Some(worker) => worker,
            None => self.home_of(link, pool)?,
        };
        let purpose = match envelope.method.of(line) {
            b"session/list" => Purpose::List,
            _ => Purpose::Ask,
        };
        self.pass_on(link, worker, line, envelope, purpose, &Named::Nothing, None)?;
        Ok(())
    }

    /// The worker that the label at the top of a message is pinned to, if it is.
    fn label_worker(
        &mut self,
        link: Link,
        line: &[u8],
        envelope: &Envelope,
    ) -> Result<Option<WorkerId>, Refusal> {
        let Some(span) = envelope.top_session else { return Ok(None) };
        let name = canonical(span.of(line));
        let Some(key) = self.client(link)?.labels.get(&*name).copied() else { return Ok(None) };
        let worker = self.session(key).and_then(|session| session.worker);
        if worker.is_none() {
            // Said once; the next use of the label pins it anew.
            self.drop_session(key);
            return Err(Refusal::lost_session());
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
    ) -> Result<Option<SessionKey>, Refusal> {
        let Some(span) = envelope.top_session else { return Ok(None) };
        let name = canonical(span.of(line));
        if name.len() > NAME_BYTES {
            return Err(Refusal::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        if let Some(key) = self.client(link)?.labels.get(&*name).copied() {
            let pinned = self.session(key).and_then(|session| session.worker);
            return match pinned == Some(id) {
                true => Ok(Some(key)),
                false => Err(Refusal::invalid("the sessionId at the top is pinned to another worker")),
            };
        }
        if self.client(link)?.labels.len() >= LABELS {
            return Err(Refusal::busy(format!(
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
    pub(super) fn pass_on(
        &mut self,
        from: Link,
        id: WorkerId,
        line: &[u8],
        envelope: &Envelope,
        purpose: Purpose,
        named: &Named,
        about: Option<SessionKey>,
    ) -> Result<Option<CallKey>, Refusal> {
        let label = self.label(from, line, envelope, id)?;
        self.touch(about.or(label));
        let asker = self.client(from)?.party;
        let Some(worker) = self.workers.get_mut(id.0) else { return Err(Refusal::unknown_session()) };
        if worker.ready_link().is_none() && worker.waits_bytes > self.limits.max_output_queue {
            return Err(Refusal::busy("too much waits for the worker to be ready"));
        }
        worker.requests += u64::from(envelope.id.is_some());
        let call = envelope.id.map(|span| {
            self.calls.ask(asker, worker.party, Id::new(span.of(line)), purpose, about.or(label))
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
            worker.heard = self.now;
            self.alarms.set(self.now + patience, Alarm::Silence(id));
        }
        let mut digits = itoa::Buffer::new();
        let mut cuts = Cuts::none();
        if let (Some(span), Some(call)) = (envelope.id, call) {
            cuts.add(span, call.spelled(&mut digits));
        }
        if let Some(span) = envelope.session {
            match named {
                Named::Nothing => {}
                Named::As(token) => cuts.add(span, token),
                Named::Known(key) => {
                    let session = self.sessions.get(key.0).ok_or_else(Refusal::unknown_session)?;
                    cuts.add(span, &session.agent_token);
                }
            }
        }
        if let (Some(span), Some(session)) =
            (envelope.top_session, label.and_then(|key| self.sessions.get(key.0)))
        {
            cuts.add(span, &session.agent_token);
        }
        let mut waiting = Vec::new();
        let recovering =
            |key: &SessionKey| self.sessions.get(key.0).is_some_and(|session| session.recovering.is_some());
        if let Some(key) = about.filter(recovering) {
            splice(&mut waiting, line, &cuts);
            self.wait_for_recovery(key, call, waiting);
        } else if let Some(link) = worker.ready_link() {
            let written = self.post.send(link, line, &cuts);
            if let (Some(written), Some(call)) = (written, call.and_then(|call| self.calls.get_mut(call))) {
                call.written = written;
            }
        } else {
            splice(&mut waiting, line, &cuts);
            self.aside_bytes += park(worker, call, waiting.into());
        }
        self.see_line(Who::Client(from), Who::Worker(id), about, call, line, envelope);
        Ok(call)
    }

    /// Gives a notification to a worker, or lets it wait in its turn.
    pub(super) fn say(&mut self, id: WorkerId, line: &[u8], cuts: &[Cut<'_>]) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if let Some(link) = worker.ready_link() {
            self.post.send(link, line, cuts);
            return;
        }
        let mut waiting = Vec::new();
        splice(&mut waiting, line, cuts);
        self.aside_bytes += park(worker, None, waiting.into());
    }

    pub(super) fn party_of(&self, id: WorkerId) -> Result<crate::state::calls::Party, Refusal> {
        self.workers.get(id.0).map(|worker| worker.party).ok_or_else(Refusal::unknown_session)
    }

    /// A client answers what an agent asked it.
    fn client_answers(&mut self, link: Link, line: &[u8], envelope: &Envelope) {
        let party = self.clients.get(link.0).map(|client| client.party);
        let key = envelope.id.and_then(|id| CallKey::from_wire(id.of(line)));
        let (Some(party), Some(key), Some(id)) = (party, key, envelope.id) else {
            self.counters.stray_answers += 1;
            return;
        };
        let answered = self.has_begun(party, key).then(|| self.calls.answered(key, party)).flatten();
        let Some(call) = answered else {
            self.counters.stray_answers += 1;
            return;
        };
        self.counters.answers += 1;
        self.counters.errors += u64::from(envelope.kind == Kind::Answer { failed: true });
        self.touch(call.session);
        self.see_answer(Who::Client(link), key, &call, line, envelope);
        if let Some(session) = call.session {
            self.no_longer_pending(session, key);
        }
        let Who::Worker(worker) = self.calls.who(call.asker) else { return };
        let Some(to) = self.workers.get(worker.0).and_then(|worker| worker.link) else { return };
        let mut cuts = Cuts::none();
        cuts.add(id, call.id.as_bytes());
        // A label is the client's word; the worker knows another.
        let label = call.session.and_then(|key| self.sessions.get(key.0)).filter(|session| session.is_label);
        if let (Some(span), Some(label)) = (envelope.top_session, label) {
            cuts.add(span, &label.agent_token);
        }
        self.post.send(to, line, &cuts);
        self.check_idle(worker);
    }

    /// The client's pool and handshake know the session by its agent's name only: it is not open here, or not its own.
    fn absent_session(&mut self, link: Link, line: &[u8], envelope: &Envelope, name: &[u8]) -> Routed {
        let pool = self.pool_of(self.client(link)?, line, envelope)?;
        let agent = crate::state::sessions::behind_tag(name).unwrap_or(name);
        let deletes = envelope.method.of(line) == b"session/delete";
        let held = self.holder(pool, name, agent);
        let (worker, purpose) = match held {
            Some(key) if self.is_owned(key) => return Err(Refusal::unknown_session()),
            // A fork lives where the original does, so the client must fit there.
            Some(key) if !deletes && !self.speaks_with(link, key) => return Err(Refusal::unknown_session()),
            Some(key) => {
                let worker = self.session(key).and_then(|session| session.worker);
                let place = worker.and_then(|id| self.workers.get_mut(id.0)).filter(|_| !deletes);
                if let Some(place) = place.filter(|place| place.config.mode == Mode::Dedicated) {
                    place.belongs_to = Some(link);
                }
                let purpose = if deletes { Purpose::Close(key) } else { Purpose::Open };
                (worker.ok_or_else(Refusal::unknown_session)?, purpose)
            }
            None if deletes => (self.home_of(link, pool)?, Purpose::Ask),
            None => (self.choose(link, pool, Need::Session)?, Purpose::Open),
        };
        self.pass_on(link, worker, line, envelope, purpose, &Named::As(token(agent)), None)?;
        Ok(())
    }

    /// Takes up a session that was left or lost, or opens one that only the agent knows of.
    fn take_up(&mut self, link: Link, line: &[u8], envelope: &Envelope) -> Routed {
        let Some(span) = envelope.session else { return Err(Refusal::invalid("sessionId is missing")) };
        let name: Cow<'_, [u8]> = canonical(span.of(line));
        if name.len() > NAME_BYTES {
            return Err(Refusal::invalid(format!("a sessionId is at most {NAME_BYTES} bytes long")));
        }
        if let Some(key) = self.client(link)?.sessions.get(&*name).copied() {
            if self.session(key).is_some_and(|session| session.worker.is_some()) {
                self.answer_opening(link, key, line, envelope);
                return Ok(());
            }
            self.drop_session(key);
        }
        let mut pool = self.pool_of(self.client(link)?, line, envelope)?;
        let agent = crate::state::sessions::behind_tag(&name).unwrap_or(&name);
        if let Some(key) = self.holder(pool, &name, agent) {
            if self.is_owned(key) && stands(Guard::Owner) {
                return Err(Refusal::unknown_session());
            }
            if self.speaks_with(link, key) {
                return self.take_over(link, key, line, envelope, &name);
            }
            // Its worker was initialized for another kind of client; it goes on elsewhere in the same pool.
            let worker = self.session(key).and_then(|session| session.worker);
            pool = worker.and_then(|id| self.workers.get(id.0)).map_or(pool, |worker| worker.pool);
            self.end_session(key);
        }
        self.reopen(link, pool, line, envelope, &name)
    }

    fn reopen(&mut self, link: Link, pool: PoolId, line: &[u8], envelope: &Envelope, name: &[u8]) -> Routed {
        let id = self.choose(link, pool, Need::Session)?;
        let agent = crate::state::sessions::behind_tag(name).unwrap_or(name);
        if self.workers.get(id.0).is_some_and(|worker| worker.sessions.contains_key(agent)) {
            return Err(Refusal::unknown_session());
        }
        let key = self.bind(Some(link), id, token(name), token(agent));
        let passed =
            self.pass_on(link, id, line, envelope, Purpose::Reopen(key), &Named::Known(key), Some(key));
        if !matches!(passed, Ok(Some(_))) {
            self.drop_session(key);
        }
        passed.map(|_| ())
    }
}
