//! What workers say: answers find their askers, all else the owner of the session it is about.
//!
//! A worker can answer only what it was asked and speak only of its own sessions. What a result means is
//! known from the call, never guessed from the payload.

use log::{debug, warn};

use crate::bus::Bus;
use crate::id::{Link, SessionKey, Table, WorkerId};
use crate::limit::{NAME_BYTES, NOTICE_BYTES, NOTICES, OPENING_BYTES};
use crate::mutants::{Guard, stands};
use crate::state::calls::{Call, CallKey, Id, Party, Purpose, Who, Written};
use crate::state::handshake::Offers;
use crate::state::sessions::{Pending, Session, behind_tag, token};
use crate::state::workers::Worker;
use crate::state::workers::{Early, Greeting, Notice, Speech, Wait};
use crate::wire::error::{Death, Refusal};
use crate::wire::json::Span;
use crate::wire::nested;
use crate::wire::partial_scan::Skim;
use crate::wire::prefix_cache::Habit;
use crate::wire::scan::{Envelope, Kind, canonical};
use crate::wire::splice::{Cut, Cuts};

impl Bus {
    pub(super) fn worker_line(&mut self, id: WorkerId, line: &[u8], habit: &mut Habit) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if worker.silenced {
            return;
        }
        worker.heard = self.now;
        worker.lines_in += 1;
        // Not taken out of the result: that would be a copy.
        let malformed = match &habit.scan(line) {
            Ok(envelope) if matches!(envelope.kind, Kind::Answer { .. }) => {
                return self.worker_answers(id, line, envelope);
            }
            Ok(envelope) => return self.worker_speaks(id, line, envelope),
            Err(malformed) => *malformed,
        };
        debug!("worker {}/{} wrote no message: {}", worker.config.id, worker.index, malformed.fault);
        self.counters.stray_lines += 1;
        let party = worker.party;
        let answered = malformed.id.filter(|_| malformed.answer);
        let key = answered.and_then(|id| CallKey::from_wire(id.of(line)));
        if let Some(key) = key.filter(|key| self.was_asked(party, *key)) {
            self.fail_call(id, key, &Refusal::invalid(format!("the worker's answer: {}", malformed.fault)));
        }
    }

    pub(super) fn worker_too_long(&mut self, id: WorkerId, skim: &Skim) {
        let Some(worker) = self.workers.get(id.0).filter(|worker| !worker.silenced) else { return };
        warn!("worker {}/{} wrote a line over max_input_buffer: skipped", worker.config.id, worker.index);
        self.counters.too_large += 1;
        let (party, link) = (worker.party, worker.link);
        let refusal = Refusal::too_large(self.limits.max_input_buffer);
        if skim.is_answer() {
            let key = skim.id().and_then(CallKey::from_wire);
            if let Some(key) = key.filter(|key| self.was_asked(party, *key)) {
                self.fail_call(id, key, &refusal);
            }
        } else if let (true, Some(link)) = (skim.is_request(), link) {
            self.refuse(link, skim.id(), &refusal);
        }
    }

    pub(super) fn was_asked(&self, party: Party, key: CallKey) -> bool {
        let asked = |call: &Call| call.asked == party && call.written != Written::NotYet;
        self.calls.get(key).is_some_and(asked) && self.has_begun(party, key)
    }

    /// The worker did answer, but nothing that could be passed on.
    fn fail_call(&mut self, id: WorkerId, key: CallKey, refusal: &Refusal) {
        if self.calls.get(key).is_some_and(|call| call.purpose == Purpose::Initialize) {
            self.calls.end(key);
            return self.no_start(id, "answered initialize with something else", None);
        }
        self.refuse_call(key, refusal);
        self.check_idle(id);
    }

    fn worker_answers(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let (party, pool) = (worker.party, worker.pool);
        let key = envelope.id.and_then(|span| CallKey::from_wire(span.of(line)));
        let key = key.filter(|key| self.has_begun(party, *key));
        // Not taken out of the option: that would be a copy.
        let answered = key.and_then(|key| self.calls.answered(key, party));
        let (Some(key), Some(call)) = (key, &answered) else {
            self.counters.stray_answers += 1;
            return;
        };
        let failed = envelope.kind == Kind::Answer { failed: true };
        self.count_answer(pool, call, failed);
        self.see_answer(Who::Worker(id), key, call, line, envelope);
        match call.purpose {
            Purpose::Initialize => return self.initialized(id, line, envelope),
            Purpose::Open => return self.opened(id, call, line, envelope),
            Purpose::Tell => {
                if let Some(pool) = self.pools.get_mut(pool) {
                    pool.told_answered(key, !failed);
                }
                self.answer(id, call, line, envelope);
            }
            Purpose::Reopen(session) => {
                self.answer(id, call, line, envelope);
                match failed {
                    true => self.drop_session(session),
                    false => {
                        self.keep_opening(session, line, envelope);
                        self.keep_again(session, id, call.opening.as_deref());
                    }
                }
            }
            Purpose::Recover(session) => self.recovered(session, id, failed),
            Purpose::Close(session) => {
                self.answer(id, call, line, envelope);
                if !failed {
                    self.drop_session(session);
                }
            }
            Purpose::List => self.answer_list(id, call, line, envelope),
            Purpose::Ask => self.answer(id, call, line, envelope),
            Purpose::Join | Purpose::Ignore => {}
        }
        self.check_idle(id);
    }

    /// Gives an answer to whoever asked, under the ids that it knows.
    fn answer(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let (Some(to), Some(span)) = (self.asking_client(call.asker), envelope.id) else { return };
        let mut cuts = Cuts::none();
        cuts.add(span, call.id.as_bytes());
        for span in [envelope.top_session, envelope.result_session].into_iter().flatten() {
            let session = spoken_of(&self.workers, &self.sessions, id, span.of(line));
            if let Some(session) = session.filter(|session| session.owner == Some(to)) {
                cuts.add(span, &session.bus_token);
            }
        }
        let failed = envelope.kind == Kind::Answer { failed: true };
        let nests = failed || self.workers.get(id.0).is_some_and(|worker| worker.offers.nests);
        let nested = match nests {
            true => self.names_for(to, id, line, &nested::in_answer(line, envelope)),
            false => Vec::new(),
        };
        self.post.send_nested(to, line, &cuts, &nested);
    }

    /// What this client calls those of its sessions that a line names in these places.
    fn names_for(&self, to: Link, id: WorkerId, line: &[u8], places: &[Span]) -> Vec<(Span, Box<[u8]>)> {
        let known = places.iter().filter_map(|span| {
            let session = spoken_of(&self.workers, &self.sessions, id, span.of(line))?;
            (session.owner == Some(to)).then(|| (*span, session.bus_token.clone()))
        });
        known.collect()
    }

    fn answer_list(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let (Some(to), Some(span)) = (self.asking_client(call.asker), envelope.id) else { return };
        let Some(worker) = self.workers.get(id.0) else { return };
        let mut cuts = vec![(span, call.id.as_bytes().to_vec())];
        let listed =
            envelope.outcome.map(|outcome| nested::listed_sessions(line, outcome)).unwrap_or_default();
        let mut shown = 0;
        for (at, entry) in listed.iter().enumerate() {
            let name = entry.id.map(|id| canonical(id.of(line)));
            let held = name.and_then(|name| {
                let own = worker.sessions.get(&*name).copied();
                own.or_else(|| self.agents_session(worker.pool, &name))
            });
            let session = held.and_then(|key| self.session(key));
            let foreign =
                held.is_some_and(|key| self.is_owned(key)) && session.is_some_and(|s| s.owner != Some(to));
            if foreign {
                // The comma goes with it: the one before, or the one after where nothing is left before.
                let mut hidden = entry.element;
                match listed.get(at + 1) {
                    Some(next) if shown == 0 => hidden.end = next.element.start,
                    _ if at > 0 && shown > 0 => hidden.start = listed[at - 1].element.end,
                    _ => {}
                }
                cuts.push((hidden, Vec::new()));
                continue;
            }
            shown += 1;
            if let (Some(span), Some(session)) = (entry.id, session) {
                cuts.push((span, session.bus_token.to_vec()));
            }
        }
        cuts.sort_by_key(|(span, _)| span.start);
        let cuts: Vec<_> = cuts.iter().map(|(span, with)| Cut::new(*span, with)).collect();
        self.post.send(to, line, &cuts);
    }

    /// A worker has answered initialize.
    fn initialized(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let (Speech::Awaiting(handshake), Some(span), Some(outcome)) =
            (worker.speech.clone(), envelope.id, envelope.outcome)
        else {
            return;
        };
        if envelope.kind == (Kind::Answer { failed: true }) {
            return self.no_start(id, "answered initialize with an error", Some(outcome.of(line)));
        }
        worker.offers = Offers::of(outcome.of(line), &handshake);
        let answer = Some(Greeting { line: line.into(), id: span }.into());
        worker.speech = Speech::Ready { handshake: handshake.clone(), answer };
        let pool = worker.pool;
        self.catch_up(id);
        self.newest_handshake(pool, handshake);
    }

    /// A worker does not get through its handshake: those who wait for it hear why, and it is stopped.
    pub(super) fn no_start(&mut self, id: WorkerId, message: &str, error: Option<&[u8]>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        warn!("worker {}/{} {message}: stopped", worker.config.id, worker.index);
        worker.last_words = Some(message.to_owned());
        let mut refusal = Refusal::no_start(&worker.config, worker.index, message);
        if let Some(error) = error {
            refusal = refusal.with_error(error);
        }
        for wait in self.take_waits(id) {
            if let Wait::Join(call) | Wait::Say(Some(call), _) = wait {
                self.refuse_call(call, &refusal);
            }
        }
        self.condemn(id, Death::Stuck);
    }

    pub(super) fn take_waits(&mut self, id: WorkerId) -> std::collections::VecDeque<Wait> {
        let Some(worker) = self.workers.get_mut(id.0) else { return Default::default() };
        self.aside_bytes -= std::mem::take(&mut worker.waits_bytes);
        if !stands(Guard::WaitsInOrder) {
            worker.waits.make_contiguous().reverse();
        }
        std::mem::take(&mut worker.waits)
    }

    /// A worker is ready: it hears what its like were told, then what waited for it.
    pub(super) fn catch_up(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let Some(link) = worker.ready_link() else { return };
        let told: Vec<Box<[u8]>> = self.pools.get(worker.pool).map_or_else(Vec::new, |pool| {
            let waits_here = |call| self.calls.get(call).is_some_and(|call| call.asked == worker.party);
            let due = pool.told.iter().filter(|told| worker.handshake() == Some(&told.handshake));
            due.filter(|told| !told.awaits.is_some_and(waits_here)).map(|told| told.line.clone()).collect()
        });
        for line in told {
            if let Ok(envelope) = Envelope::scan(&line) {
                self.tell_one(id, &line, &envelope);
            }
        }
        for wait in self.take_waits(id) {
            match wait {
                Wait::Join(key) => {
                    let call = self.calls.end(key);
                    let client = call.as_ref().and_then(|call| self.asking_client(call.asker));
                    if let (Some(call), Some(client)) = (call, client) {
                        self.greet(client, call.id.as_bytes(), id, Some((key, call.age_us(self.now))));
                    }
                }
                Wait::Say(Some(key), line) => {
                    if self.calls.get(key).is_some() {
                        self.send_call(link, key, &line);
                    }
                }
                Wait::Say(None, line) => {
                    self.post.send(link, &line, &[]);
                }
            }
        }
        self.check_idle(id);
    }

    /// Gives a client the worker's answer to initialize, as its own; from now on it is at home there.
    pub(super) fn greet(&mut self, client: Link, as_id: &[u8], id: WorkerId, asked: Option<(CallKey, u64)>) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let Speech::Ready { answer: Some(greeting), .. } = &worker.speech else { return };
        let greeting = greeting.clone();
        worker.joined.insert(client);
        if let (Some(known), Some(life)) = (self.clients.get_mut(client.0), worker.link) {
            known.home = Some((id, life));
        }
        self.post.send(client, &greeting.line, &[Cut::new(greeting.id, as_id)]);
        for notice in &worker.notices {
            self.post.send(client, &notice.line, &[]);
        }
        self.see_greeting(client, as_id, &greeting, asked);
    }

    /// The answer that names a new session.
    fn opened(&mut self, id: WorkerId, call: &Call, line: &[u8], envelope: &Envelope) {
        let owner = self.asking_client(call.asker);
        let named = envelope.result_session.map(|span| canonical(span.of(line)));
        let Some(name) = named else {
            self.answer(id, call, line, envelope);
            return self.opening_ended(call.asked);
        };
        let agent = token(&name);
        let known = self.workers.get(id.0).is_some_and(|worker| worker.sessions.contains_key(&*name));
        match owner {
            _ if known || name.len() > NAME_BYTES => {
                let fault = "the worker opened a session under an id that is taken or too long";
                if let Some(to) = owner {
                    self.refuse(to, Some(call.id.as_bytes()), &Refusal::invalid(fault));
                }
            }
            None => self.close_at_agent(id, &agent),
            Some(owner) => {
                let bus = self.tags.token(&name);
                let session = self.bind(Some(owner), id, bus, agent);
                self.answer(id, call, line, envelope);
                self.keep_opening(session, line, envelope);
                self.keep_again(session, id, call.opening.as_deref());
                self.deliver_early(id, &name);
            }
        }
        self.opening_ended(call.asked);
    }

    /// What opened a session answers whoever takes it up again.
    fn keep_opening(&mut self, key: SessionKey, line: &[u8], envelope: &Envelope) {
        let outcome = envelope.outcome.map(|outcome| outcome.of(line));
        if let (Some(session), Some(outcome)) = (self.session_mut(key), outcome)
            && outcome.len() <= OPENING_BYTES
        {
            session.opening = Some(outcome.into());
        }
    }

    pub(super) fn deliver_early(&mut self, id: WorkerId, name: &[u8]) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        let (now_known, still_early): (Vec<_>, _) =
            std::mem::take(&mut worker.early).into_iter().partition(|e| *e.name == *name);
        worker.early = still_early;
        // They were counted when they came.
        worker.lines_in -= now_known.len() as u64;
        for Early { line, .. } in now_known {
            self.forget_early(id, line.len());
            self.worker_line(id, &line, &mut Habit::default());
        }
    }

    fn forget_early(&mut self, id: WorkerId, bytes: usize) {
        self.aside_bytes -= bytes;
        if let Some(worker) = self.workers.get_mut(id.0) {
            worker.early_bytes -= bytes;
        }
    }

    /// One call fewer that will name a session. After the last one, what is still early belongs to nobody.
    pub(super) fn opening_ended(&mut self, asked: Party) {
        let Who::Worker(id) = self.calls.who(asked) else { return };
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if self.calls.opens(asked) == 0 {
            for Early { line, .. } in std::mem::take(&mut worker.early) {
                self.forget_early(id, line.len());
                if let Ok(envelope) = Envelope::scan(&line) {
                    self.concerns_nobody(id, &line, &envelope, &Refusal::unknown_session());
                }
            }
        }
        self.check_idle(id);
    }

    /// A request or notification of a worker.
    fn worker_speaks(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        if envelope.kind == Kind::Request
            && let Err(refusal) = self.has_room()
        {
            return self.concerns_nobody(id, line, envelope, &refusal);
        }
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if matches!(worker.speech, Speech::Reserved(_)) {
            // All that is known of it is of its next life.
            return self.concerns_nobody(id, line, envelope, &Refusal::unknown_session());
        }
        if let Some(span) = envelope.session {
            if let Some(key) = worker.lately
                && let Some(session) = self.sessions.get(key.0)
                && session.worker == Some(id)
                && *session.agent_token == *span.of(line)
            {
                return self.deliver(id, key, line, envelope);
            }
            let name = canonical(span.of(line));
            worker.lately = worker.sessions.get(&*name).copied();
            let (own, pool) = (worker.lately, worker.pool);
            let known = if stands(Guard::OwnSessions) { own } else { self.agents_session(pool, &name) };
            if let Some(key) = known {
                return self.deliver(id, key, line, envelope);
            }
            let Some(worker) = self.workers.get_mut(id.0) else { return };
            let may_open = self.calls.opens(worker.party) > 0 && stands(Guard::Early);
            if may_open && worker.early_bytes + line.len() <= self.limits.max_output_queue {
                worker.early_bytes += line.len();
                self.aside_bytes += line.len();
                worker.early.push(Early { name: name.into_owned().into(), line: line.into() });
                return;
            }
            return self.concerns_nobody(id, line, envelope, &Refusal::unknown_session());
        }
        if let Some(span) = envelope.top_session {
            let name = canonical(span.of(line));
            if let Some(key) = worker.sessions.get(&*name).copied() {
                return self.deliver(id, key, line, envelope);
            }
            if behind_tag(&name).is_some() {
                return self.concerns_nobody(id, line, envelope, &Refusal::unknown_session());
            }
        }
        match envelope.method.of(line) {
            b"$/cancel_request" => self.worker_cancels(id, line, envelope),
            b"elicitation/complete" => self.elicitation_complete(id, line, envelope),
            _ if envelope.request.is_some() => self.elicit(id, line, envelope),
            _ => self.session_less(id, line, envelope),
        }
    }

    /// To the owner of a session, or kept for it.
    fn deliver(&mut self, id: WorkerId, key: SessionKey, line: &[u8], envelope: &Envelope) {
        self.touch(Some(key));
        if envelope.kind == Kind::Notification {
            if self.is_replay(key) {
                return;
            }
            self.note_work(id, key, line);
        }
        if envelope.method.of(line) == b"session/request_permission" && self.permit(id, line, envelope) {
            return;
        }
        let Some(session) = self.sessions.get(key.0) else { return };
        let owner = session.owner.and_then(|owner| Some((owner, self.post.peer(owner)?)));
        let Some((owner, peer)) = owner else {
            self.see_line(Who::Worker(id), Who::Bus, Some(key), None, line, envelope);
            let child = envelope.child.and_then(|child| self.adopt_child(id, key, line, child));
            self.miss(key, line);
            return child.into_iter().for_each(|child| self.deliver_early(id, &child));
        };
        let (asked, ended) = (peer.party, peer.ended);
        if ended && session.is_label && envelope.kind == Kind::Request {
            return self.concerns_nobody(id, line, envelope, &Refusal::client_gone());
        }
        if ended && !session.is_label {
            // It may be gone for good, or only have stopped sending: what can be lost is kept as well.
            self.miss(key, line);
            if envelope.kind == Kind::Request {
                self.see_line(Who::Worker(id), Who::Bus, Some(key), None, line, envelope);
                return self.keep_questions(key);
            }
        }
        let child = envelope.child.and_then(|child| self.adopt_child(id, key, line, child));
        let mut call = None;
        if let Some(span) = envelope.id {
            let Some(worker) = self.workers.get(id.0) else { return };
            let key = self.calls.ask(worker.party, asked, Id::new(span.of(line)), Purpose::Ask, Some(key));
            call = Some((key, span));
        }
        let nests = self.workers.get(id.0).is_some_and(|worker| worker.offers.nests);
        let nested = match nests {
            true => self.names_for(owner, id, line, &nested::in_update(line, envelope)),
            false => Vec::new(),
        };
        let Some(session) = self.sessions.get(key.0) else { return };
        let mut cuts = Cuts::none();
        let mut digits = itoa::Buffer::new();
        if let Some((call, span)) = call {
            cuts.add(span, call.spelled(&mut digits));
        }
        if let Some(span) = envelope.session.or(envelope.top_session) {
            cuts.add(span, &session.bus_token);
        }
        if let Some(span) = envelope.child
            && let Some(child) = spoken_of(&self.workers, &self.sessions, id, span.of(line))
        {
            cuts.add(span, &child.bus_token);
        }
        let written = self.post.send_nested(owner, line, &cuts, &nested);
        let asked = call.map(|(call, _)| call);
        self.see_line(Who::Worker(id), Who::Client(owner), Some(key), asked, line, envelope);
        if let (Some((call, _)), Some(written)) = (call, written) {
            if let Some(call) = self.calls.get_mut(call) {
                call.written = written;
            }
            if let Some(session) = self.sessions.get_mut(key.0).filter(|session| !session.is_label) {
                self.aside_bytes += line.len();
                session.pending.push(Pending { call, line: line.into() });
            }
        }
        if let Some(span) = envelope.elicitation {
            self.remember_elicitation(id, canonical(span.of(line)).into_owned().into(), owner);
        }
        child.into_iter().for_each(|child| self.deliver_early(id, &child));
    }

    /// An agent takes back what it asked.
    fn worker_cancels(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get(id.0) else { return };
        let call =
            envelope.request.and_then(|span| Some((span, self.calls.find(worker.party, span.of(line))?)));
        let asked = call.and_then(|(_, key)| self.calls.get(key)).map(|call| self.calls.who(call.asked));
        let (Some((span, key)), Some(Who::Client(to))) = (call, asked) else {
            self.counters.dropped_notifications += 1;
            return;
        };
        self.post.send(to, line, &[Cut::new(span, key.spelled(&mut itoa::Buffer::new()))]);
        self.see_line(Who::Worker(id), Who::Client(to), None, None, line, envelope);
    }

    /// About no session: a notification is kept for those who join later; whom else it concerns is only clear if
    /// the worker serves just one client.
    fn session_less(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) {
        let Some(worker) = self.workers.get_mut(id.0) else { return };
        if envelope.kind == Kind::Notification && line.len() <= NOTICE_BYTES {
            let method = envelope.method.of(line);
            worker.notices.retain(|notice| *notice.method != *method);
            if worker.notices.len() < NOTICES {
                worker.notices.push(Notice { method: method.into(), line: line.into() });
            }
        }
        match (worker.joined.len(), worker.joined.first().copied()) {
            (1, Some(only)) => self.pass_to(id, only, line, envelope, None),
            _ => self.concerns_nobody(id, line, envelope, &Refusal::no_method(envelope.method.of(line))),
        }
    }

    /// To a client, about no session.
    pub(super) fn pass_to(
        &mut self,
        id: WorkerId,
        to: Link,
        line: &[u8],
        envelope: &Envelope,
        cut: Option<Cut<'_>>,
    ) {
        let (Some(worker), Some(peer)) = (self.workers.get(id.0), self.post.peer(to)) else {
            return self.concerns_nobody(id, line, envelope, &Refusal::client_gone());
        };
        if peer.ended && envelope.kind == Kind::Request {
            return self.concerns_nobody(id, line, envelope, &Refusal::client_gone());
        }
        let mut cuts = Cuts::none();
        if let Some(cut) = cut {
            cuts.add(cut.span, cut.with);
        }
        let Some(span) = envelope.id else {
            self.post.send(to, line, &cuts);
            self.see_line(Who::Worker(id), Who::Client(to), None, None, line, envelope);
            return;
        };
        let call = self.calls.ask(worker.party, peer.party, Id::new(span.of(line)), Purpose::Ask, None);
        let mut digits = itoa::Buffer::new();
        cuts.add(span, call.spelled(&mut digits));
        self.see_line(Who::Worker(id), Who::Client(to), None, Some(call), line, envelope);
        if let (Some(written), Some(call)) = (self.post.send(to, line, &cuts), self.calls.get_mut(call)) {
            call.written = written;
        }
    }

    pub(super) fn concerns_nobody(
        &mut self,
        id: WorkerId,
        line: &[u8],
        envelope: &Envelope,
        refusal: &Refusal,
    ) {
        self.see_line(Who::Worker(id), Who::Bus, None, None, line, envelope);
        match (envelope.id, self.workers.get(id.0).and_then(|worker| worker.link)) {
            (Some(span), Some(link)) => self.refuse(link, Some(span.of(line)), refusal),
            _ => self.counters.dropped_notifications += 1,
        }
    }
}

/// The session of this worker that a token names.
fn spoken_of<'a>(
    workers: &Table<Worker>,
    sessions: &'a Table<Session>,
    id: WorkerId,
    token: &[u8],
) -> Option<&'a Session> {
    let key = workers.get(id.0)?.sessions.get(&*canonical(token))?;
    sessions.get(key.0)
}
