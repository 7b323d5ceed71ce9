//! Lists of sessions: whoever asks for one is told the sessions of all nodes that the pool has a process at, under the
//! names that it uses for them, and none that another client has for itself.
//!
//! The processes of one node have one store, so one of them is asked. Those of several are asked one after the other,
//! so that the request is with one of them at any time, and whatever ends it there ends it. A list that is long, or of
//! which a process has further pages, ends with a cursor of the bus, which says where to go on.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Bus;
use super::forward::{Forward, SessionRef};
use super::pipe_role::Rights;
use crate::config::Mode;
use crate::id::{CallKey, Key, Link, PoolId, SessionKey, WorkerId};
use crate::limit::OPENING_BYTES;
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Endpoint, Purpose};
use crate::state::session_id::token;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested::{self, Listed};
use crate::wire::scan::Envelope;
use crate::wire::splice::{Edit, Edits, splice, with_nested};

/// A longer list is not added to.
const GATHERED_BYTES: usize = 256 << 10;
/// What one change of a list may make the bus look at for several clients together. A longer one is for none of them.
const CHANGE_BYTES: usize = 256 << 10;
/// How the cursors of the bus begin.
const CURSOR: &str = "bus.";

/// Where a list goes on.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// The process that was asked first. The others follow in the order of their ids.
    first: WorkerId,
    /// The process that is asked now.
    now: WorkerId,
    /// The cursor of that process, as it spelled it, without the quotes. Empty: it begins.
    cursor: &'a str,
}

impl<'a> Place<'a> {
    fn spelled(self) -> String {
        let key = |id: WorkerId| format!("{}-{}", id.0.index, id.0.generation);
        format!(r#""{CURSOR}{}.{}.{}""#, key(self.first), key(self.now), self.cursor)
    }

    /// What the bus spelled. None: it is a cursor of an agent.
    fn of(cursor: &'a [u8]) -> Option<Place<'a>> {
        let cursor = str::from_utf8(cursor).ok()?.strip_prefix('"')?.strip_suffix('"')?;
        let (first, rest) = cursor.strip_prefix(CURSOR)?.split_once('.')?;
        let (now, cursor) = rest.split_once('.')?;
        let id = |text: &str| {
            let (index, generation) = text.split_once('-')?;
            Some(WorkerId(Key { index: index.parse().ok()?, generation: generation.parse().ok()? }))
        };
        Some(Place { first: id(first)?, now: id(now)?, cursor })
    }
}

/// What the call has, if there may be further processes: where the list is, what was asked, and the rows until now.
#[derive(Deserialize)]
struct Gathered<'a>(
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow)] Vec<&'a RawValue>,
);

/// A client wants a list of sessions.
#[cold]
pub(super) fn ask(bus: &mut Bus, link: Link, pool: PoolId, message: Message<'_>) -> Result<(), RpcError> {
    let Message { line, envelope } = message;
    let cursor = nested::text(line, envelope.params, b"cursor");
    let place = cursor.and_then(|span| Place::of(span.of(line)));
    let (Some(span), Some(place)) = (cursor, place) else {
        let to = bus.worker_for_request(link, pool)?;
        return pass_on(bus, link, Place { first: to, now: to, cursor: "" }, message);
    };
    if !serves(bus, link, pool, place.now) {
        return Err(RpcError::invalid(
            "the process that this cursor is of is gone; ask for the list without a cursor again",
        ));
    }
    let own = match place.cursor {
        "" => "null".to_owned(),
        cursor => format!("\"{cursor}\""),
    };
    let mut edited = Vec::new();
    splice(&mut edited, line, &[Edit::new(span, own.as_bytes())]);
    let envelope = Envelope::scan(&edited).map_err(|malformed| RpcError::malformed(&malformed))?;
    pass_on(bus, link, place, Message::new(&edited, &envelope))
}

/// Whether a list for this client may come from this process.
fn serves(bus: &Bus, link: Link, pool_id: PoolId, id: WorkerId) -> bool {
    let (Some(client), Some(pool)) = (bus.clients.get(link), bus.pools.get(pool_id)) else { return false };
    bus.workers.get(id).is_some_and(|worker| {
        let is_for_it = pool.config.mode == Mode::Shared || worker.dedicated_to == Some(link);
        let is_up = worker.ready_link().is_some() && !worker.retiring;
        worker.pool == pool_id && is_for_it && is_up && worker.is_compatible(&client.handshake)
    })
}

/// The process that comes next: the first of another node, or of another store.
fn next(bus: &Bus, link: Link, place: Place<'_>) -> Option<WorkerId> {
    let pool = bus.workers.get(place.now)?.pool;
    let home =
        |id: WorkerId| bus.workers.get(id).map(|worker| (worker.node.clone(), worker.store().cloned()));
    let mut ids: Vec<_> =
        bus.pools.get(pool)?.workers.iter().copied().filter(|id| *id != place.first).collect();
    ids.sort_unstable();
    let mut homes = HashSet::from([home(place.first)]);
    ids.retain(|id| serves(bus, link, pool, *id) && homes.insert(home(*id)));
    ids.into_iter().find(|id| place.now == place.first || *id > place.now)
}

/// Gives the request to the process whose turn it is.
fn pass_on(bus: &mut Bus, link: Link, place: Place<'_>, message: Message<'_>) -> Result<(), RpcError> {
    let (from, to, purpose) = (link, place.now, Purpose::List);
    let call = bus.forward_to_worker(&Forward { from, to, message, purpose, session: SessionRef::None })?;
    let params = message.params().unwrap_or(b"{}");
    if let (Some(call), Some(_)) = (call, next(bus, link, place))
        && params.len() <= OPENING_BYTES
    {
        keep(bus, call, place, params, b"");
    }
    Ok(())
}

fn keep(bus: &mut Bus, call: CallKey, place: Place<'_>, params: &[u8], rows: &[u8]) {
    let kept = [b"[", place.spelled().as_bytes(), b",", params, b",[", rows, b"]]"].concat();
    bus.calls.keep_params(call, &kept);
}

/// Asks one process for several sessions by their ids.
#[cold]
pub(super) fn batch_get(
    bus: &mut Bus,
    link: Link,
    pool: PoolId,
    message: Message<'_>,
) -> Result<(), RpcError> {
    let Message { line, envelope } = message;
    let to = bus.worker_for_request(link, pool)?;
    let mut names = Vec::new();
    for span in nested::ids(line, envelope.params, b"sessionIds") {
        let name = message.name(span);
        names.push((span, token(bus.agent_name(pool, &name).0)));
    }
    let mut edited = Vec::new();
    splice(&mut edited, line, &with_nested(&[], &names));
    let envelope = Envelope::scan(&edited).map_err(|malformed| RpcError::malformed(&malformed))?;
    let (from, message, purpose) = (link, Message::new(&edited, &envelope), Purpose::List);
    bus.forward_to_worker(&Forward { from, to, message, purpose, session: SessionRef::None })?;
    Ok(())
}

/// An agent has answered with a list.
pub(super) fn answer(bus: &mut Bus, id: WorkerId, call: &Call, message: Message<'_>) {
    let Message { line, envelope } = message;
    let Some(to) = bus.calls.calling_client(call.caller) else { return };
    let gathered = call.params.as_deref().and_then(|kept| serde_json::from_slice::<Gathered<'_>>(kept).ok());
    let place = gathered.as_ref().and_then(|gathered| Place::of(gathered.0.get().as_bytes()));
    let (Some(gathered), Some(place)) = (gathered, place) else {
        return answer_alone(bus, (id, to), call, message);
    };
    // The call may have moved here from a process that died.
    let place = Place { now: id, ..place };
    let (mut rows, mut ids) = (Vec::new(), HashSet::new());
    let others = gathered.2.iter().map(|row| row.get().as_bytes().to_vec());
    for row in others.chain(rows_for(bus, (id, to), message, envelope.outcome).0) {
        let id = nested::text(&row, nested::whole(&row), b"sessionId").map(|span| span.of(&row).to_vec());
        if id.is_some_and(|id| !ids.insert(id)) {
            continue;
        }
        if !rows.is_empty() {
            rows.push(b',');
        }
        rows.extend_from_slice(&row);
    }
    let cursor = nested::text(line, envelope.outcome, b"nextCursor").map(|span| span.of(line));
    let cursor = cursor.and_then(|cursor| str::from_utf8(&cursor[1..cursor.len() - 1]).ok());
    let following = next(bus, to, place);
    let goes_on = match (cursor, following) {
        (Some(cursor), _) => Some(Place { cursor, ..place }),
        (None, Some(now)) => Some(Place { now, cursor: "", ..place }),
        (None, None) => None,
    };
    if let (None, Some(place)) = (cursor, goes_on)
        && rows.len() <= GATHERED_BYTES
    {
        return ask_next(bus, call, place, gathered.1.get().as_bytes(), &rows);
    }
    if message.is_error() && rows.is_empty() && goes_on.is_none() {
        return bus.answer(id, call, message);
    }
    let result = message.outcome().filter(|_| !message.is_error()).unwrap_or(b"{}");
    let rows = [b"[", &rows[..], b"]"].concat();
    let cursor = goes_on.map_or_else(|| "null".to_owned(), Place::spelled);
    let result = nested::with_member(result, b"sessions", &rows)
        .and_then(|result| nested::with_member(&result, b"nextCursor", cursor.as_bytes()))
        .unwrap_or_default();
    let line = [br#"{"jsonrpc":"2.0","id":"#, call.id.as_bytes(), br#","result":"#, &result, b"}"].concat();
    bus.links.send(to, &line, &[]);
}

/// Asks the next process for the rest of the list.
fn ask_next(bus: &mut Bus, call: &Call, place: Place<'_>, params: &[u8], rows: &[u8]) {
    let Some(worker) = bus.workers.get_mut(place.now) else { return };
    let Some(link) = worker.ready_link() else { return };
    worker.requests += 1;
    let key = bus.calls.ask(call.caller, worker.endpoint, call.id.clone(), Purpose::List, None);
    let own = nested::without_member(params, b"cursor");
    let own = own.unwrap_or_else(|| params.to_vec());
    let mut digits = itoa::Buffer::new();
    let id = key.spelled(&mut digits);
    let line =
        [br#"{"jsonrpc":"2.0","id":"#, id, br#","method":"session/list","params":"#, &own, b"}"].concat();
    keep(bus, key, place, params, rows);
    if let (Endpoint::Client(from), Ok(envelope)) = (bus.calls.endpoint(call.caller), Envelope::scan(&line)) {
        let (from, to) = (Endpoint::Client(from), Endpoint::Worker(place.now));
        bus.trace_line(from, to, None, Some(key), Message::new(&line, &envelope));
    }
    bus.send_call(link, key, &line);
    bus.watch_silence(place.now);
}

/// Gives a list to its caller. All but its rows stays as the agent wrote it.
fn answer_alone(bus: &mut Bus, (id, to): (WorkerId, Link), call: &Call, message: Message<'_>) {
    let Message { line, envelope } = message;
    let Some(span) = envelope.id else { return };
    let (rows, Some(list)) = rows_for(bus, (id, to), message, envelope.outcome) else {
        return bus.answer(id, call, message);
    };
    let rows = rows.join(&b","[..]);
    let mut edits = Edits::none();
    edits.add(span, call.id.as_bytes());
    edits.add(list, &rows);
    bus.links.send(to, line, &edits);
}

/// An agent tells that its list has changed, with rows. Every client of the process hears of the sessions that it may
/// see.
pub(super) fn changed(bus: &mut Bus, id: WorkerId, message: Message<'_>) {
    let Message { line, envelope } = message;
    let clients = bus.workers.get(id).map(|worker| worker.clients.iter().copied().collect::<Vec<_>>());
    let count = clients.as_ref().map_or(0, Vec::len);
    if count > 1 && count * line.len() > CHANGE_BYTES {
        bus.counters.dropped_notifications += 1;
        return;
    }
    let removed = nested::ids(line, envelope.params, b"removed");
    for to in clients.unwrap_or_default() {
        let mut edits: Vec<(Span, Vec<u8>)> = bus
            .index()
            .names_for(to, id, message, &removed)
            .into_iter()
            .map(|(span, token)| (span, token.to_vec()))
            .collect();
        let (rows, list) = rows_for(bus, (id, to), message, envelope.params);
        edits.extend(list.map(|list| (list, rows.join(&b","[..]))));
        bus.links.send(to, line, &with_nested(&[], &edits));
        bus.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, None, message);
    }
}

/// The rows in this object that a client may see, with the names that it uses, and the place of all rows within the
/// brackets. Sessions that other connected clients own are left out. Titles are remembered.
fn rows_for(
    bus: &mut Bus,
    (id, to): (WorkerId, Link),
    message: Message<'_>,
    object: Option<Span>,
) -> (Vec<Vec<u8>>, Option<Span>) {
    let line = message.line;
    let pool = bus.workers.get(id).map(|worker| worker.pool);
    let hides_unknown = pool.is_some_and(|pool| bus.index().has_unknown_children(pool));
    let (mut rows, mut list) = (Vec::new(), None::<Span>);
    for Listed { element, id: named, forked_from } in nested::listed_sessions(line, object) {
        list = Some(Span { start: list.map_or(element.start, |list| list.start), end: element.end });
        let key = named.and_then(|span| key_of(bus, id, message, span));
        if let (Some(key), Some(title)) = (key, nested::member(line, Some(element), b"title"))
            && let Some(session) = bus.sessions.get_mut(key)
        {
            session.shown.set_title(title.of(line));
            session.count(&mut bus.held);
        }
        let is_foreign = key.map_or(hides_unknown, |key| is_hidden(bus, to, key));
        if is_foreign && enabled(Check::ListOwner) {
            continue;
        }
        let mut names = Vec::new();
        for span in named.into_iter().chain(forked_from) {
            let key = key_of(bus, id, message, span);
            let key = key.filter(|key| Some(span) == named || !is_hidden(bus, to, *key));
            let token = key.and_then(|key| bus.sessions.get(key));
            let token = token.map(|session| session.token_of(to).unwrap_or(&session.bus_token).clone());
            // A name that the client uses for a session in another store would not do for one that is not open.
            let token = token.or_else(|| {
                let name = message.name(span);
                bus.uses_name(to, &name).then(|| bus.tags.token(&name))
            });
            let within = |at: u32| (at - element.start) as usize;
            names.extend(token.map(|token| (Span::new(within(span.start), within(span.end)), token)));
        }
        let mut row = Vec::new();
        splice(&mut row, element.of(line), &with_nested(&[], &names));
        rows.push(row);
    }
    (rows, list)
}

/// Whether another client has this session for itself.
fn is_hidden(bus: &Bus, to: Link, key: SessionKey) -> bool {
    let Some(session) = bus.sessions.get(key) else { return false };
    let is_others = session.owner != Some(to) && !bus.may_join(to, session);
    bus.is_owned(key) && is_others || Rights::of(bus).hides(to, session)
}

/// The session that an agent names at this span: one of its own, else one of its store.
fn key_of(bus: &Bus, id: WorkerId, message: Message<'_>, span: Span) -> Option<SessionKey> {
    let (worker, name) = (bus.workers.get(id)?, message.name(span));
    worker.sessions.get(&name).copied().or_else(|| bus.index().in_store(worker.pool, &name))
}
