//! Lists of sessions: whoever asks for one is told the sessions of all processes of the pool that work for clients like
//! it, under the names that it uses for them, each once, and none that another client has for itself.
//!
//! The processes are asked one after the other, so that the request is with one of them at any time, and whatever ends
//! it there ends it. A list that is long, or of which a process has further pages, ends with a cursor of the bus, which
//! says where to go on. What stood on earlier pages is not remembered: behind the first page, a process whose store has
//! been listed adds only the sessions that it has open.

use std::collections::{BTreeSet, HashSet};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Bus;
use super::forward::{Forward, SessionRef};
use super::pipe_role::Rights;
use crate::config::Mode;
use crate::id::{CallKey, Key, Link, PoolId, SessionKey, WorkerId};
use crate::limit::{BATCH_BYTES, LIST_BYTES, NESTED_BYTES, OPENING_BYTES};
use crate::mutants::{Check, enabled};
use crate::state::calls::{Call, Endpoint, Purpose};
use crate::state::handshake::Handshake;
use crate::state::session_id::token;
use crate::state::workers::Worker;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested::{self, Listed, within};
use crate::wire::scan::Envelope;
use crate::wire::splice::{Edit, Edits, splice, with_nested};

/// A longer list is not added to.
const GATHERED_BYTES: usize = 256 << 10;
/// So many bytes of one change of a list are looked at for several clients together. A longer one is for none of them.
pub(super) const CHANGE_BYTES: usize = 256 << 10;
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

    /// The place that a cursor of the bus names. None: the cursor is an agent's.
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

/// The call of a list that may have rows of further processes keeps its place, its params, its rows until now, and
/// whether there were pages before this one.
#[derive(Deserialize)]
struct Gathered<'a>(
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow)] &'a RawValue,
    #[serde(borrow)] Vec<&'a RawValue>,
    #[serde(default)] bool,
);

/// A client wants a list of sessions.
#[cold]
pub(super) fn ask(bus: &mut Bus, link: Link, pool: PoolId, message: Message<'_>) -> Result<(), RpcError> {
    let Message { line, envelope } = message;
    let cursor = nested::text(line, within(envelope.params, NESTED_BYTES), b"cursor");
    let place = cursor.and_then(|span| Place::of(span.of(line)));
    let (Some(span), Some(place)) = (cursor, place) else {
        let to = match initialized_worker(bus, link, pool) {
            Some(worker) => worker,
            None => bus.worker_for_request(link, pool)?,
        };
        let place = Place { first: to, now: to, cursor: "" };
        return pass_on(bus, link, (place, cursor.is_some()), message);
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
    pass_on(bus, link, (place, true), Message::new(&edited, &envelope))
}

/// Whether a list for this client may come from this process.
fn serves(bus: &Bus, link: Link, pool_id: PoolId, id: WorkerId) -> bool {
    let (Some(client), Some(pool)) = (bus.clients.get(link), bus.pools.get(pool_id)) else { return false };
    bus.workers.get(id).is_some_and(|worker| {
        let is_for_it = pool.config.mode == Mode::Shared || worker.dedicated_to == Some(link);
        let is_up = worker.ready_link().is_some() && worker.life.is_up() && !worker.retiring;
        let suits = worker.is_compatible(&client.handshake) || lists_for_plain(worker, &client.handshake);
        worker.pool == pool_id && is_for_it && is_up && suits
    })
}

/// Whether this process can list sessions for a client that never initializes, although it was initialized for others.
/// A list depends on no capabilities of a client, and a process of its own may take long to start.
fn lists_for_plain(worker: &Worker, client: &Handshake) -> bool {
    let handshake = worker.handshake().filter(|_| client.is_plain());
    handshake.is_some_and(|handshake| handshake.may_list_for_plain())
}

/// A process that was initialized for others and can list sessions for this client, which never initializes, if there
/// is none yet that is like the client.
fn initialized_worker(bus: &Bus, link: Link, pool_id: PoolId) -> Option<WorkerId> {
    let (handshake, pool) = (&bus.clients.get(link)?.handshake, bus.pools.get(pool_id)?);
    if !handshake.is_plain() || pool.config.mode != Mode::Shared {
        return None;
    }
    let is_like_it = |id: &WorkerId| {
        bus.workers.get(*id).is_some_and(|worker| worker.is_compatible(handshake) && worker.life.is_up())
    };
    if pool.workers.iter().any(is_like_it) {
        return None;
    }
    pool.workers.iter().copied().find(|id| serves(bus, link, pool_id, *id))
}

/// Whether a process is asked for its part of a list that another one has begun. An agent that has declared what it
/// can, and not that it lists, is not.
fn is_asked(bus: &Bus, link: Link, pool: PoolId, id: WorkerId) -> bool {
    let lists = bus.workers.get(id).is_some_and(|worker| !worker.capabilities.lists_nothing);
    lists && serves(bus, link, pool, id)
}

/// The process that comes next.
fn next(bus: &Bus, link: Link, place: Place<'_>) -> Option<WorkerId> {
    let pool = bus.workers.get(place.now)?.pool;
    let comes = |id: &WorkerId| *id != place.first && (place.now == place.first || *id > place.now);
    let ids = bus.pools.get(pool)?.workers.iter().copied().filter(comes);
    ids.filter(|id| is_asked(bus, link, pool, *id)).min()
}

/// Whether a process that comes before this one has its store, at its node.
fn is_listed_before(bus: &Bus, link: Link, place: Place<'_>) -> bool {
    let home = |id: WorkerId| bus.workers.get(id).map(|worker| (&worker.node, worker.store()));
    let pool = bus.workers.get(place.now).map(|worker| worker.pool);
    let Some((pool, config)) = pool.and_then(|id| Some((id, bus.pools.get(id)?))) else { return false };
    let is_alike = |id: WorkerId| home(id) == home(place.now);
    let comes_before = |id: WorkerId| id < place.now && is_asked(bus, link, pool, id);
    let mut others = config.workers.iter().copied().filter(|id| *id != place.now);
    place.now != place.first && others.any(|id| is_alike(id) && (id == place.first || comes_before(id)))
}

/// Gives the request to the process whose turn it is. `has_pages`: there were pages before this one.
fn pass_on(
    bus: &mut Bus,
    link: Link,
    (place, has_pages): (Place<'_>, bool),
    message: Message<'_>,
) -> Result<(), RpcError> {
    let (from, to, purpose) = (link, place.now, Purpose::List);
    let call = bus.forward_to_worker(&Forward { from, to, message, purpose, session: SessionRef::None })?;
    let params = message.params().unwrap_or(b"{}");
    let is_part = next(bus, link, place).is_some() || has_pages && is_listed_before(bus, link, place);
    if let Some(call) = call.filter(|_| is_part && params.len() <= OPENING_BYTES) {
        keep(bus, call, place, params, b"", has_pages);
    }
    Ok(())
}

fn keep(bus: &mut Bus, call: CallKey, place: Place<'_>, params: &[u8], rows: &[u8], has_pages: bool) {
    let has_pages = if has_pages { &b"true"[..] } else { b"false" };
    let kept = [b"[", place.spelled().as_bytes(), b",", params, b",[", rows, b"],", has_pages, b"]"].concat();
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
    if message.params().is_some_and(|params| params.len() > BATCH_BYTES) {
        return Err(RpcError::invalid(format!(
            "the params of {} are at most {BATCH_BYTES} bytes long",
            String::from_utf8_lossy(message.method())
        )));
    }
    let to = bus.worker_for_request(link, pool)?;
    let mut names = Vec::new();
    for span in nested::ids(line, envelope.params, b"sessionIds") {
        let name = message.name(span);
        let agent = bus.agent_name(pool, &name).0;
        if *agent != *name {
            names.push((span, token(agent)));
        }
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
    if line.len() > LIST_BYTES {
        bus.counters.too_large += 1;
        let error = RpcError::too_long("the agent's list of sessions", LIST_BYTES);
        return bus.send_error(to, Some(call.id.as_bytes()), &error);
    }
    let gathered = call.params.as_deref().and_then(|kept| serde_json::from_slice::<Gathered<'_>>(kept).ok());
    let place = gathered.as_ref().and_then(|gathered| Place::of(gathered.0.get().as_bytes()));
    let (Some(gathered), Some(place)) = (gathered, place) else {
        return answer_alone(bus, (id, to), call, message);
    };
    // The call may have moved here from a process that died.
    let place = Place { now: id, ..place };
    let adds_open = gathered.3 && is_listed_before(bus, to, place);
    let (mut rows, mut ids) = (Vec::new(), HashSet::new());
    let mut gather = |row: &[u8]| {
        let id = nested::text(row, nested::whole(row), b"sessionId").map(|span| span.of(row).to_vec());
        if id.is_none_or(|id| ids.insert(id)) {
            add_row(&mut rows, row);
        }
    };
    gathered.2.iter().for_each(|row| gather(row.get().as_bytes()));
    for_each_row(bus, (id, to), message, envelope.outcome, |row, at| {
        if !adds_open || at == Some(id) {
            gather(row);
        }
    });
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
        return ask_next(bus, call, place, &gathered, &rows);
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
fn ask_next(bus: &mut Bus, call: &Call, place: Place<'_>, gathered: &Gathered<'_>, rows: &[u8]) {
    let params = gathered.1.get().as_bytes();
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
    keep(bus, key, place, params, rows, gathered.3);
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
    let mut edits = Edits::none();
    edits.add(span, call.id.as_bytes());
    edits.add(list, &rows);
    bus.links.send(to, line, &edits);
}

/// The clients whose lists have the sessions of this process: those of every process of its pool that has its store.
pub(super) fn hearers(bus: &Bus, id: WorkerId) -> BTreeSet<Link> {
    let Some(worker) = bus.workers.get(id) else { return BTreeSet::new() };
    let of_pool = bus.pools.get(worker.pool).map_or(&[][..], |pool| &pool.workers);
    let others = of_pool.iter().filter_map(|other| bus.workers.get(*other));
    let others = others.filter(|other| other.store() == worker.store());
    others.chain([worker]).flat_map(|worker| worker.clients.iter().copied()).collect()
}

/// An agent tells that its list has changed, with rows. Each of those whose lists have them hears of the sessions that
/// it may see. One of several that does not keep up misses it.
pub(super) fn changed(bus: &mut Bus, id: WorkerId, message: Message<'_>) {
    let Message { line, envelope } = message;
    let clients = hearers(bus, id);
    let count = clients.len();
    if line.len() > LIST_BYTES || count > 1 && count * line.len() > CHANGE_BYTES {
        bus.counters.dropped_notifications += 1;
        return;
    }
    let removed = nested::ids(line, envelope.params, b"removed");
    for to in clients {
        if count > 1 && !bus.keeps_up(to, line.len()) {
            bus.counters.dropped_notifications += 1;
            continue;
        }
        let mut edits: Vec<(Span, Vec<u8>)> = Vec::new();
        for span in &removed {
            let session = key_of(bus, id, message, *span).and_then(|key| bus.sessions.get(key));
            edits.extend(session.and_then(|it| it.token_of(to)).map(|token| (*span, token.to_vec())));
        }
        let (rows, list) = rows_for(bus, (id, to), message, envelope.params);
        edits.extend(list.map(|list| (list, rows)));
        bus.links.send(to, line, &with_nested(&[], &edits));
        bus.trace_line(Endpoint::Worker(id), Endpoint::Client(to), None, None, message);
    }
}

/// The rows in this object that a client may see, as they stand in a list, and the place of all rows within the
/// brackets.
fn rows_for(
    bus: &mut Bus,
    ends: (WorkerId, Link),
    message: Message<'_>,
    object: Option<Span>,
) -> (Vec<u8>, Option<Span>) {
    let mut rows = Vec::new();
    let list = for_each_row(bus, ends, message, object, |row, _| add_row(&mut rows, row));
    (rows, list)
}

fn add_row(rows: &mut Vec<u8>, row: &[u8]) {
    if !rows.is_empty() {
        rows.push(b',');
    }
    rows.extend_from_slice(row);
}

/// Calls `each` with the rows in this object that a client may see, with the names that it uses, and the process that
/// has the session open, if one does. Sessions that other connected clients own are left out. Titles are remembered.
/// Returns the place of all rows within the brackets.
fn for_each_row(
    bus: &mut Bus,
    (id, to): (WorkerId, Link),
    message: Message<'_>,
    object: Option<Span>,
    mut each: impl FnMut(&[u8], Option<WorkerId>),
) -> Option<Span> {
    let line = message.line;
    let pool = bus.workers.get(id).map(|worker| worker.pool);
    let hides_unknown = pool.is_some_and(|pool| bus.index().has_unknown_children(pool));
    let mut row = Vec::new();
    nested::for_each_listed(line, object, |Listed { element, id: named, forked_from }| {
        let key = named.and_then(|span| key_of(bus, id, message, span));
        if let (Some(key), Some(title)) = (key, nested::member(line, Some(element), b"title"))
            && let Some(session) = bus.sessions.get_mut(key)
        {
            session.shown.set_title(title.of(line));
            session.count(&mut bus.held);
        }
        let is_foreign = key.map_or(hides_unknown, |key| is_hidden(bus, to, key));
        if is_foreign && enabled(Check::ListOwner) {
            return;
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
        row.clear();
        splice(&mut row, element.of(line), &with_nested(&[], &names));
        each(&row, key.and_then(|key| bus.sessions.worker_of(key)));
    })
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
