//! `_bus/upgrade`: the process of the bus becomes another program, and the bus goes on in it.
//!
//! The core only keeps who asks, and answers: the shell checks the program, saves the bus, and the shell of the next
//! program restores it. The functions are free ones, because all that they touch is what the shell tells of itself.

use std::time::Duration;

use log::info;
use serde_json::{Value, json};

use super::Bus;
use super::from_client::Routed;
use super::status::Report;
use crate::api::{Action, Moment, Wish, micros};
use crate::id::Link;
use crate::limit::NAME_BYTES;
use crate::state::operation::{Asked, Request, Upgraded};
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;

/// A client asks for it. It is refused at once if another one waits for it.
pub(super) fn request(bus: &mut Bus, link: Link, wish: Wish, message: Message<'_>) -> Routed {
    let Some(id) = message.id() else {
        return Err(RpcError::invalid("_bus/upgrade needs an id: it is a request"));
    };
    if id.len() > NAME_BYTES {
        return Err(RpcError::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
    }
    if bus.stopping.is_some() {
        return Err(RpcError::stopping());
    }
    if bus.operation.upgrade.is_some() {
        return Err(RpcError::busy("another upgrade is under way"));
    }
    let (who, to) = (Report::new(bus).client_label(link), wish.binary.as_deref().unwrap_or("its own file"));
    if !wish.check {
        info!("client {who} asks the bus to become {to}");
    }
    bus.links.act(Action::Upgrade);
    bus.operation.upgrade = Some(Asked { request: Request { link, id: id.into() }, wish });
    Ok(())
}

/// What the client wants that waits for it, after `Action::Upgrade`. `None`: none does.
pub fn wish(bus: &Bus) -> Option<&Wish> {
    bus.operation.upgrade.as_ref().map(|asked| &asked.wish)
}

/// Whether no client waits for an answer of an agent, and no agent works on a prompt.
pub fn is_quiet(bus: &Bus) -> bool {
    bus.calls_of_clients() == 0 && !bus.sessions.iter().any(|(_, session)| session.has_turn())
}

/// Whether messages of another bus come through one of the connections.
pub fn has_pipes(bus: &Bus) -> bool {
    bus.clients.iter().any(|(_, client)| client.is_pipe)
}

/// The bus stays what it is, for this reason. The client that has asked is told.
pub fn refused(bus: &mut Bus, why: &str, now: Moment) {
    bus.set_time(now);
    if let Some(Asked { request: Request { link, id }, .. }) = bus.operation.upgrade.take() {
        bus.send_error(link, Some(&id), &RpcError::invalid(why));
    }
    bus.settle();
}

/// The client only wanted to know: the program is of this version, and can go on with the bus.
pub fn possible(bus: &mut Bus, version: &str, now: Moment) {
    bus.set_time(now);
    answer(bus, |bus, asker| described(bus, asker, &json!({ "version": version })));
    bus.settle();
}

/// This program has taken the place of one of the version `from`, and nobody was served for this long. The client that
/// has asked is told.
pub fn done(bus: &mut Bus, from: &str, pause: Duration, now: Moment) {
    bus.set_time(now);
    let count = bus.operation.upgraded.as_ref().map_or(0, |last| last.count) + 1;
    bus.operation.upgraded = Some(Upgraded { count, from: from.to_owned(), at: now, pause });
    let pause = micros(pause);
    let told = json!({ "version": env!("CARGO_PKG_VERSION"), "from": from, "pause_us": pause });
    answer(bus, |bus, asker| described(bus, asker, &told));
    bus.settle();
}

fn answer(bus: &mut Bus, result: impl FnOnce(&Bus, Link) -> Value) {
    if let Some(Asked { request: Request { link, id }, .. }) = bus.operation.upgrade.take() {
        let result = result(bus, link).to_string();
        bus.links.send(link, &spelled_result_line(&id, result.as_bytes()), &[]);
    }
}

/// What goes on, beside the client that asks.
fn described(bus: &Bus, asker: Link, more: &Value) -> Value {
    let is_asker = usize::from(bus.clients.get(asker).is_some());
    let mut told = json!({
        "pid": bus.operation.pid,
        "clients": bus.clients.len() - bus.pending_auth.len() - is_asker,
        "sessions": bus.sessions.len(),
        "turns": bus.sessions.iter().filter(|(_, session)| session.has_turn()).count(),
    });
    if let (Some(told), Some(more)) = (told.as_object_mut(), more.as_object()) {
        told.extend(more.clone());
    }
    told
}
