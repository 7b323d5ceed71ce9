//! What was said in an open session before its log begins: the client that writes down what is said reads it, page by
//! page, and a client that joins the session is told it first.
//!
//! A page is asked for when the client that joins has room for it, so that neither has to hold more than one. It joins
//! when what it was told reaches the beginning of what the log still has, so there is no seam.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Bus;
use super::from_client::Routed;
use super::keep::{self, LOOK_AGAIN};
use super::session::{room_for_history, tell_logged};
use super::status::session_label;
use crate::id::{Link, SessionKey};
use crate::limit::SEND_PIECE_BYTES;
use crate::state::keeper::Joining;
use crate::state::session_log::Logged;
use crate::state::timers::Alarm;
use crate::wire::error::RpcError;
use crate::wire::message::{Held, Message};

/// How many clients may wait at the same time. Others are told what the log has.
const JOINING_MAX: usize = 64;
/// A longer request is not held.
const REQUEST_BYTES: usize = 4 << 10;
const PAGE_BYTES: usize = 256 << 10;
/// How long the keeper may take for a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client was told of a session before it joins.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// So many lines.
    pub(super) upto: u64,
    /// Nothing is missing among them.
    pub(super) is_whole: bool,
}

/// The params of `_bus/past`, with which the keeper answers.
#[derive(Deserialize)]
struct Page<'a> {
    ask: u64,
    cursor: Box<str>,
    upto: u64,
    whole: bool,
    end: bool,
    #[serde(borrow)]
    lines: Vec<Line<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line<'a> {
    #[serde(borrow)]
    Said(&'a RawValue),
    #[serde(borrow)]
    Child(&'a RawValue),
    #[serde(borrow)]
    Prompt(&'a RawValue),
}

/// A client wants to hear all that was said in a session. True: it has to wait for what the keeper reads.
pub(super) fn begins(bus: &mut Bus, link: Link, key: SessionKey, message: Message<'_>) -> bool {
    let is_whole = bus.sessions.is_log_whole(key, room_for_history(bus, link));
    let Some(session) = bus.sessions.get(key) else { return false };
    let is_told = bus.keeper.link().is_some() && session.told_keeper == bus.keeper.link();
    let takes_part = session.owner == Some(link) || session.guests.get(link).is_some();
    let is_kept = session.is_kept && is_told && !bus.keeper.behind.contains_key(&key);
    if is_whole || !is_kept || takes_part || message.line.len() > REQUEST_BYTES {
        return false;
    }
    if bus.keeper.joining.len() >= JOINING_MAX || bus.uses_name(link, session.bus_name()) {
        return false;
    }
    bus.keeper.last_question += 1;
    let ask = bus.keeper.last_question;
    let request = Held::new(message);
    let (cursor, upto, is_whole, is_end, is_told, due) = (Box::default(), 0, true, false, false, None);
    let joining = Joining { link, key, request, cursor, upto, is_whole, is_end, is_told, due };
    bus.keeper.joining.insert(ask, joining);
    go_on(bus, ask);
    true
}

/// `_bus/past`: the keeper has read a page.
pub(super) fn page(bus: &mut Bus, link: Link, message: Message<'_>) -> Routed {
    if bus.keeper.link() != Some(link) {
        return Err(RpcError::no_method(message.method()));
    }
    let params = message.params().unwrap_or_default();
    let page: Page<'_> =
        serde_json::from_slice(params).map_err(|fault| RpcError::invalid(fault.to_string()))?;
    let Some(joining) = bus.keeper.joining.get_mut(&page.ask) else { return Ok(()) };
    let is_stuck = page.end && page.upto <= joining.upto && page.lines.is_empty();
    (joining.cursor, joining.due, joining.is_end, joining.is_told) = (page.cursor, None, is_stuck, page.end);
    joining.upto = joining.upto.max(page.upto);
    joining.is_whole &= page.whole;
    let (to, key) = (joining.link, joining.key);
    // A client that uses this name for another session does not wait for pages.
    if let Some(token) = bus.sessions.get(key).map(|session| session.bus_token.clone()) {
        for line in page.lines {
            let (kind, line) = match line {
                Line::Said(line) => (Logged::Said, line),
                Line::Child(line) => (Logged::SaidOfChild, line),
                Line::Prompt(line) => (Logged::Prompt, line),
            };
            tell_logged(bus, to, &token, kind, line.get().as_bytes());
        }
    }
    // What follows may be a whole log, and so has a turn of its own.
    bus.alarms.arm(bus.now, Alarm::Keeper);
    Ok(())
}

/// Asks for the next page, or lets the client join.
fn go_on(bus: &mut Bus, ask: u64) {
    let Some(joining) = bus.keeper.joining.get(&ask) else { return };
    let (link, key, upto, is_end) = (joining.link, joining.key, joining.upto, joining.is_end);
    // The first page is asked for in any case: the session may be older than its log. What was said in its earlier
    // lives is not counted, and may be several pages.
    let is_told = joining.is_told;
    let said = bus.sessions.get(key).map(|session| session.said);
    let (Some(said), Some(keeper), false) = (said, bus.keeper.link(), is_end) else { return join(bus, ask) };
    let page_bytes = PAGE_BYTES.min(bus.links.queue_limit / 8);
    // This comes before the lines are counted: a client that does not read must not make the bus look at a log for
    // ever.
    if room_for_history(bus, link) < page_bytes {
        bus.alarms.arm(bus.now + LOOK_AGAIN, Alarm::Keeper);
        return;
    }
    // The lines of the log are counted one by one.
    bus.leftovers.spend(bus.sessions.log_len(key) / SEND_PIECE_BYTES);
    let (lines, _) = bus.sessions.newest_lines(key, room_for_history(bus, link));
    let before = said.saturating_sub(lines as u64);
    if upto >= before && is_told {
        return join(bus, ask);
    }
    let is_older = bus.sessions.is_older_than_log(key);
    let Some(joining) = bus.keeper.joining.get_mut(&ask) else { return };
    let line = format!(
        r#"{{"jsonrpc":"2.0","method":"_bus/past","params":{{"ask":{ask},"session":"{}","cursor":"{}","#,
        session_label(key),
        joining.cursor,
    ) + &format!(r#""before":{before},"bytes":{page_bytes},"older":{is_older}}}}}"#);
    joining.due = Some(bus.now + PAGE_TIMEOUT);
    bus.alarms.arm(bus.now + PAGE_TIMEOUT, Alarm::Keeper);
    bus.links.send(keeper, line.as_bytes(), &[]);
}

/// The client joins with what it was told.
fn join(bus: &mut Bus, ask: u64) {
    let Some(joining) = bus.keeper.joining.remove(&ask) else { return };
    let told = Told { upto: joining.upto, is_whole: joining.is_whole && !joining.cursor.is_empty() };
    let message = joining.request.message();
    if let Err(error) = bus.attach_guest(joining.link, message, Some(told))
        && let Some(id) = message.id()
    {
        bus.send_error(joining.link, Some(id), &error);
    }
}

/// Looks after those who wait: for room, for an answer, or for a keeper that has left. When that was much work, the
/// rest of them have another turn.
pub(super) fn look(bus: &mut Bus) {
    keep::catch_up(bus);
    let (now, has_keeper) = (bus.now, bus.keeper.link().is_some());
    let all: Vec<_> = bus.keeper.joining.iter().map(|(ask, joining)| (*ask, joining.due)).collect();
    for (ask, due) in all {
        bus.leftovers.spend_parts(bus.links.take_work());
        if bus.leftovers.is_spent() {
            bus.alarms.arm(now, Alarm::Keeper);
            return;
        }
        match due {
            _ if !has_keeper => join(bus, ask),
            Some(due) if due <= now => join(bus, ask),
            Some(due) => _ = bus.alarms.arm(due, Alarm::Keeper),
            None => go_on(bus, ask),
        }
    }
}
