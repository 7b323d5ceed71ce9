//! Keeping: the client that writes down what is said hears every line of kept sessions, as their owners do.
//!
//! It is no guest: it keeps no session alive, is asked nothing, and nobody sees it in a session. It slows nobody down:
//! a line that does not fit into its queue is counted, and the next one that fits says how many are missing.

use std::fmt::Write;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::session::room_for_history;
use super::status::{Report, session_label};
use super::{Bus, session};
use crate::api::micros;
use crate::id::{CallKey, Link, SessionKey, WorkerId};
use crate::limit::SEND_PIECE_BYTES;
use crate::state::session_log::Logged;
use crate::state::sessions::Session;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::splice::Edit;

/// How long the bus waits for room in the queue of the keeper.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How much of a log the keeper is told at once.
const LOG_PART_BYTES: usize = 256 << 10;
/// How every line that the keeper is told begins, up to the number of its session.
const KEPT_START: &[u8] = br#"{"jsonrpc":"2.0","method":"_bus/kept","params":{"session":"s"#;
/// Lines with more edits than these take a list on the heap.
const FEW_EDITS: usize = 4;

/// Who says something.
#[derive(Clone, Copy)]
pub(super) enum By {
    Agent,
    Client(Link),
    /// The bus itself, in the place of one of them.
    Bus,
}

/// The params of `_bus/keep`.
#[derive(Default, Deserialize)]
pub(super) struct Keep {
    secret: Box<str>,
}

/// `_bus/keep`: the client that shows the secret of the shell is told from now on what is said.
pub(super) fn begin(
    bus: &mut Bus,
    link: Link,
    keep: &Keep,
    message: Message<'_>,
) -> Result<String, RpcError> {
    if !bus.keeper.secret.is_some_and(|secret| secret.admits(&keep.secret)) {
        return Err(RpcError::no_method(message.method()));
    }
    bus.keeper.set(link);
    bus.clients.set_keeps(link);
    // Those without a log are told of too: what is open is not removed.
    let is_told = |session: &Session| session.is_kept && (!session.is_label || session.said > 0);
    let told =
        bus.sessions.iter().filter(|(key, session)| is_told(session) && bus.sessions.root(*key) == *key);
    bus.keeper.behind = told.map(|(key, _)| (key, 0)).collect();
    // What is told comes after the answer.
    bus.alarms.set(bus.now, Alarm::Keeper);
    Ok("{}".to_owned())
}

/// Tells the keeper what was said before it came, as far as it is in the logs and the keeper has room.
pub(super) fn catch_up(bus: &mut Bus) {
    let Some(link) = bus.keeper.link() else { return };
    while let Some((key, _)) = bus.keeper.behind.first_key_value() {
        if tell_log(bus, link, *key, LOG_PART_BYTES) == ToldLog::NoRoom {
            bus.alarms.arm(bus.now + LOOK_AGAIN, Alarm::Keeper);
            return;
        }
        bus.leftovers.spend_parts(bus.links.take_work());
        if bus.leftovers.is_spent() {
            bus.alarms.arm(bus.now, Alarm::Keeper);
            return;
        }
    }
    if !std::mem::replace(&mut bus.keeper.knows_all, true) {
        let all = br#"{"jsonrpc":"2.0","method":"_bus/kept","params":{"session":"","all":true}}"#;
        bus.links.send(link, all, &[]);
    }
}

/// How much of a log the keeper was told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ToldLog {
    All,
    Part,
    NoRoom,
}

/// Tells the keeper the log of a session, and that this was all of it; at most about this many bytes at once. It knows
/// itself which lines of it are written, and sees by the numbers which ones the log has no more.
#[cold]
fn tell_log(bus: &mut Bus, link: Link, key: SessionKey, at_most: usize) -> ToldLog {
    let Some(told) = bus.keeper.behind.get(&key).copied() else { return ToldLog::All };
    let Some(session) = bus.sessions.get(key).filter(|session| session.is_kept) else {
        bus.keeper.behind.remove(&key);
        return ToldLog::All;
    };
    // This comes before the lines are counted: a keeper that does not read must not make the bus look at a log for
    // ever.
    if room_for_history(bus, link) < LOG_PART_BYTES.min(bus.links.queue_limit / 8) {
        return ToldLog::NoRoom;
    }
    let (said, replayed) = (session.said, session.replayed);
    if session.told_keeper != Some(link) {
        let opened = opened(bus, key, session);
        if !bus.keeps_up(link, opened.len()) {
            return ToldLog::NoRoom;
        }
        introduce(bus, link, key, &opened);
    }
    // The lines of the log are counted one by one.
    bus.leftovers.spend(bus.sessions.log_len(key) / SEND_PIECE_BYTES);
    let before = said.saturating_sub(bus.sessions.log_lines(key) as u64);
    if told > 0 {
        bus.keeper.missed_lines += before.saturating_sub(told);
    }
    let mut last = before.max(told);
    let lines = bus.sessions.log_after(key, (last - before) as usize, at_most);
    let upto = last + lines.len() as u64;
    for (n, (kind, line)) in (last + 1..).zip(lines) {
        if !bus.keeps_up(link, line.len()) {
            bus.keeper.behind.insert(key, last);
            if bus.links.queued_bytes(link) > 0 {
                return ToldLog::NoRoom;
            }
            // It is longer than all the room that there ever is.
            bus.keeper.miss(key);
            last = n;
            continue;
        }
        // The prompt of an agent that tells prompts itself is an empty line, and what it tells follows.
        if line.is_empty() {
            continue;
        }
        let by = if kind == Logged::Prompt { "client" } else { "agent" };
        let replay = if n <= replayed { r#","replay":true"# } else { "" };
        let start = format!(
            r#"{{"jsonrpc":"2.0","method":"_bus/kept","params":{{"session":"{}","by":"{by}","before":{last},"n":{n}"#,
            session_label(key),
        ) + replay
            + &missed(bus, key)
            + r#","again":true,"message":"#;
        let end = Span::new(line.len(), line.len());
        let edits = [Edit::new(Span::new(0, 0), start.as_bytes()), Edit::new(end, b"}}")];
        bus.links.send(link, &line, &edits);
        last = n;
    }
    if upto < said {
        // A part of empty lines only is not looked at again.
        let reached = if last == before.max(told) { upto } else { last };
        bus.keeper.behind.insert(key, reached);
        return ToldLog::Part;
    }
    let all = format!(
        r#"{{"jsonrpc":"2.0","method":"_bus/kept","params":{{"session":"{}","before":{last},"n":{said}"#,
        session_label(key),
    ) + &missed(bus, key)
        + r#","again":true}}"#;
    bus.links.send(link, all.as_bytes(), &[]);
    bus.keeper.behind.remove(&key);
    ToldLog::All
}

/// How many lines of this session the keeper could not be told, as a member of what it is told now.
fn missed(bus: &mut Bus, key: SessionKey) -> String {
    match bus.keeper.take_missed(key) {
        0 => String::new(),
        missed => format!(r#","missed":{missed}"#),
    }
}

fn introduce(bus: &mut Bus, link: Link, key: SessionKey, opened: &str) {
    bus.links.send(link, opened.as_bytes(), &[]);
    if let Some(session) = bus.sessions.get_mut(key) {
        session.told_keeper = Some(link);
    }
}

/// A session is open again, and may say nothing for long. The keeper knows of it from now on: what is open is not
/// removed, and who joins is told what was said before.
#[cold]
pub(super) fn opened_again(bus: &mut Bus, key: SessionKey) {
    let Some(link) = bus.keeper.link() else { return };
    let root = bus.sessions.root(key);
    let is_told = |session: &Session| session.told_keeper == Some(link);
    let session = bus.sessions.get(root).filter(|it| it.is_kept && !it.is_label && !is_told(it));
    let Some(session) = session.filter(|_| !bus.keeper.behind.contains_key(&root)) else { return };
    let told = opened(bus, root, session);
    let (is_silent, is_logged) = (session.said == 0, session.is_shared && bus.limits.session_log_bytes > 0);
    if is_silent {
        // What the agent has not told again is on disk, if it is anywhere.
        bus.sessions.set_older_than_log(root);
    }
    if bus.keeps_up(link, told.len()) {
        return introduce(bus, link, root, &told);
    }
    if is_logged {
        // They are in the log, which it is told when it has room.
        bus.keeper.take_missed(root);
    }
    bus.keeper.behind.insert(root, 0);
    bus.alarms.arm(bus.now + LOOK_AGAIN, Alarm::Keeper);
}

/// Something is said in a session. `is_logged`: it is counted among the lines of the session.
#[inline]
pub(super) fn line(bus: &mut Bus, key: SessionKey, by: By, line: &[u8], edits: &[Edit<'_>], is_logged: bool) {
    if let Some(link) = bus.keeper.link() {
        tell(bus, link, key, by, (line, edits), is_logged);
    }
}

/// Like `line`, for a prompt or for a request of an agent, whose id the bus replaces by this one.
pub(super) fn request(bus: &mut Bus, key: SessionKey, by: By, message: Message<'_>, id: &[u8]) {
    named_line(bus, key, by, message, id, matches!(by, By::Client(_)));
}

/// A client says something beside its prompts, or sets something. That is in no log.
#[cold]
pub(super) fn aside(
    bus: &mut Bus,
    key: SessionKey,
    client: Link,
    message: Message<'_>,
    call: Option<CallKey>,
) {
    let mut digits = itoa::Buffer::new();
    let id = call.map(|call| call.spelled(&mut digits)).unwrap_or_default();
    named_line(bus, key, By::Client(client), message, id, false);
}

/// Whether a client says this to an agent that works: some agents take it in before their turn is over.
pub(super) fn is_said_meanwhile(method: &[u8]) -> bool {
    matches!(method, b"_session/steering" | b"session/inject")
}

/// Tells the keeper a line under the names of the bus.
fn named_line(bus: &mut Bus, key: SessionKey, by: By, message: Message<'_>, id: &[u8], is_logged: bool) {
    let Some(session) = bus.keeper.link().and_then(|_| bus.sessions.get(key)) else { return };
    let (token, envelope) = (session.bus_token.clone(), message.envelope);
    let mut edits = Vec::with_capacity(2);
    edits.extend(envelope.id.map(|span| Edit::new(span, id)));
    edits.extend(envelope.session.or(envelope.top_session).map(|span| Edit::new(span, &token)));
    edits.sort_by_key(|edit| edit.span.start);
    line(bus, key, by, message.line, &edits, is_logged);
}

/// An answer, under this id.
pub(super) fn answer(bus: &mut Bus, key: Option<SessionKey>, by: By, message: Message<'_>, id: &[u8]) {
    if let (Some(key), Some(span)) = (key, message.envelope.id) {
        line(bus, key, by, message.line, &[Edit::new(span, id)], false);
    }
}

/// Whether the answer to this call decides a question of an agent, and somebody writes that down.
pub(super) fn is_question(bus: &Bus, key: Option<SessionKey>, call: CallKey) -> bool {
    let Some(session) = bus.keeper.link().and(key).and_then(|key| bus.sessions.get(key)) else {
        return false;
    };
    session.questions.of_call(call).is_some_and(|(_, it)| session::is_question(it.held.message()))
}

/// The bus has answered a permission request, as the pool says.
pub(super) fn permission(bus: &mut Bus, id: WorkerId, asked: Message<'_>, answer: &[u8]) {
    let worker = bus.keeper.link().and_then(|_| bus.workers.get(id));
    let key = worker.and_then(|worker| worker.sessions.get(&asked.session_name()?).copied());
    if let Some(key) = key {
        line(bus, key, By::Bus, answer, &[], false);
    }
}

/// The bus has answered a prompt in the place of the agent.
pub(super) fn failed(bus: &mut Bus, key: SessionKey, call: CallKey, error: &RpcError) {
    if bus.keeper.link().is_some() {
        let answer = error.line(Some(call.spelled(&mut itoa::Buffer::new())));
        line(bus, key, By::Bus, &answer, &[], false);
    }
}

/// A session has ended. The keeper hears how much of it is missing, also where it has heard nothing of it so far.
pub(super) fn ended(bus: &mut Bus, key: SessionKey) {
    let Some(link) = bus.keeper.link() else { return };
    if bus.keeper.behind.contains_key(&key) {
        tell_log(bus, link, key, room_for_history(bus, link));
    }
    let behind = bus.keeper.behind.remove(&key);
    let missed = bus.keeper.take_missed(key);
    let Some(session) = bus.sessions.get(key) else { return };
    let (is_told, said) = (session.told_keeper == Some(link), session.said);
    let is_lacking = session.is_kept && (missed > 0 || behind.is_some());
    if !is_told && !is_lacking {
        return;
    }
    let mut told = format!(
        r#"{{"jsonrpc":"2.0","method":"_bus/kept","params":{{"session":"{}","missed":{missed}"#,
        session_label(key)
    );
    if let Some(heard) = behind {
        bus.keeper.missed_lines += said.saturating_sub(heard).min(bus.sessions.log_lines(key) as u64);
        let _ = write!(told, r#","n":{said}"#);
    }
    told.push_str(r#","ended":true}}"#);
    if !is_told {
        let Some(session) = bus.sessions.get(key) else { return };
        let opened = opened(bus, key, session);
        if !bus.keeps_up(link, opened.len() + told.len()) {
            return;
        }
        introduce(bus, link, key, &opened);
    }
    bus.links.send(link, told.as_bytes(), &[]);
}

#[cold]
fn tell(
    bus: &mut Bus,
    link: Link,
    key: SessionKey,
    by: By,
    (line, edits): (&[u8], &[Edit<'_>]),
    is_logged: bool,
) {
    let root = bus.sessions.root(key);
    let Some(own) = bus.sessions.get(key).filter(|own| !own.is_retold && !own.is_told_again()) else {
        return;
    };
    let session = if root == key { Some(own) } else { bus.sessions.get(root) };
    let Some(session) = session.filter(|session| session.is_kept) else { return };
    let (said, is_counted) = (session.said, session.is_shared);
    let is_replay = session.loads > 0;
    let is_known = session.told_keeper == Some(link);
    if !bus.keeper.behind.is_empty() && bus.keeper.behind.contains_key(&root) {
        // The log has this line too, if it is one that is logged.
        if is_logged && is_counted && bus.limits.session_log_bytes > 0 {
            return;
        }
        if tell_log(bus, link, root, room_for_history(bus, link)) != ToldLog::All {
            return bus.keeper.miss(root);
        }
    } else if !is_known {
        let opened = opened(bus, root, session);
        if !bus.keeps_up(link, opened.len() + line.len()) {
            return bus.keeper.miss(root);
        }
        introduce(bus, link, root, &opened);
    }
    if !bus.keeps_up(link, line.len()) {
        return bus.keeper.miss(root);
    }
    let mut start = std::mem::take(&mut bus.keeper.start);
    let mut digits = itoa::Buffer::new();
    start.clear();
    start.extend_from_slice(KEPT_START);
    start.extend_from_slice(digits.format(root.number()).as_bytes());
    match by {
        By::Agent => start.extend_from_slice(br#"","by":"agent""#),
        By::Bus => start.extend_from_slice(br#"","by":"bus""#),
        By::Client(client) => {
            start.extend_from_slice(br#"","by":"#);
            start.extend_from_slice(bus.quoted_name(client).as_bytes());
        }
    }
    if is_counted {
        start.extend_from_slice(br#","before":"#);
        start.extend_from_slice(digits.format(said.saturating_sub(u64::from(is_logged))).as_bytes());
        start.extend_from_slice(br#","n":"#);
        start.extend_from_slice(digits.format(said).as_bytes());
    }
    start.extend_from_slice(missed(bus, root).as_bytes());
    start.extend_from_slice(if is_replay { br#","replay":true,"message":"# } else { br#","message":"# });
    let first = Edit::new(Span::new(0, 0), &start);
    let last = Edit::new(Span::new(line.len(), line.len()), b"}}");
    // Few lines have more edits than those of the session and of what it names.
    let (mut few, more);
    let all = if edits.len() <= FEW_EDITS {
        few = [last; FEW_EDITS + 2];
        few[0] = first;
        few[1..=edits.len()].copy_from_slice(edits);
        &few[..edits.len() + 2]
    } else {
        more = [&[first], edits, &[last]].concat();
        &more[..]
    };
    bus.links.send(link, line, all);
    bus.keeper.start = start;
}

/// What the keeper is told of a session before its first line.
#[cold]
fn opened(bus: &Bus, key: SessionKey, session: &Session) -> String {
    let worker = session.worker.and_then(|id| bus.workers.get(id));
    let pool = worker.and_then(|worker| bus.pools.get(worker.pool));
    let quoted = |text: Option<&str>| Value::from(text).to_string();
    format!(
        r#"{{"jsonrpc":"2.0","method":"_bus/kept","params":{{"session":"{}","opened":{{"id":{},"agent_session":{},"#,
        session_label(key),
        String::from_utf8_lossy(&session.bus_token),
        String::from_utf8_lossy(&session.agent_token),
    ) + &format!(
        r#""pool":{},"agent":{},"cwd":{},"node":{},"title":{},"life":"{:016x}.{}","age_us":{}}}}}}}"#,
        quoted(Report::new(bus).pool_of(session)),
        quoted(pool.and_then(|pool| pool.agent.as_deref())),
        quoted(session.shown.folder()),
        quoted(Report::new(bus).node_of(session)),
        quoted(session.shown.title()),
        bus.tags.life(),
        key.number(),
        micros(bus.now.saturating_sub(session.opened)),
    )
}
