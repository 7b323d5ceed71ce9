//! What a worker tells of itself: `_bus/worker` with its node, its room, and whether it takes new sessions.
//!
//! It is for the bus alone; no client hears it. Whatever a worker says here, it changes only what the bus gives to it.

use log::{debug, warn};
use serde::Deserialize;
use serde_json::Value;

use super::Bus;
use super::admin::params_of;
use crate::config::is_bus_name;
use crate::id::WorkerId;
use crate::limit::{RESTART_AT_ONCE_AFTER, ROOM_MAX, WORKER_TELLS_BYTES};
use crate::state::timers::Alarm;
use crate::state::workers::Recycled;
use crate::wire::error::RpcError;
use crate::wire::message::Message;

/// The params of `_bus/worker`. What is not there is as it was; what has another type is ignored.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Told {
    node: Value,
    /// How many further sessions it takes. Null: as many as its pool says.
    #[serde(deserialize_with = "some")]
    room: Option<Value>,
    drain: Value,
}

/// A member that is there, also if it is null.
fn some<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

impl Bus {
    /// A worker tells something of itself.
    pub(super) fn worker_tells(&mut self, id: WorkerId, message: Message<'_>) {
        if message.is_request() {
            let error = RpcError::invalid("_bus/worker is a notification");
            return self.reject_unroutable(id, message, &error);
        }
        let is_object = message.params().is_some_and(|params| params.starts_with(b"{"));
        let told = if is_object && message.line.len() <= WORKER_TELLS_BYTES {
            params_of::<Told>(message).ok()
        } else {
            None
        };
        let Some(told) = told else {
            self.counters.dropped_notifications += 1;
            return;
        };
        if let Some(node) = told.node.as_str() {
            self.set_node(id, node);
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
        match told.room.as_ref().map(|room| (room, room.as_u64())) {
            // What it is opening now may be among those that it has counted, or may not. It is not given too many.
            Some((_, Some(room))) => {
                let room = usize::try_from(room).unwrap_or(usize::MAX).min(ROOM_MAX);
                let opening = self.calls.reopens(worker.endpoint);
                worker.capacity = Some(worker.open_sessions().saturating_sub(opening) + room);
                debug!("worker {worker} has room for {room} further sessions");
            }
            Some((Value::Null, _)) => worker.capacity = None,
            _ => {}
        }
        if let Some(drain) = told.drain.as_bool() {
            self.set_drains(id, drain);
        }
    }

    fn set_drains(&mut self, id: WorkerId, drains: bool) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.drains != drains {
            debug!("worker {worker} {}", if drains { "drains" } else { "takes new sessions again" });
            worker.drains = drains;
        }
        self.check_idle(id);
    }

    /// A worker says at which node it works. It can say so once in a life.
    fn set_node(&mut self, id: WorkerId, node: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if worker.node.as_deref() == Some(node) {
            return;
        }
        if worker.node.is_none() && is_bus_name(node) {
            worker.node = Some(node.into());
            return debug!("worker {worker} has told its node");
        }
        if !std::mem::replace(&mut worker.node_warned, true) {
            warn!("worker {worker} gives its node another name, which is ignored");
        }
    }

    /// A worker that takes no new sessions has none any more: a fresh process takes its place, if one is wanted. One
    /// that says so as soon as it is started is left alone for a while, so that no process is started after another.
    /// Returns whether it is ended, or will be.
    pub(super) fn retire_drained(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get_mut(id) else { return false };
        if !worker.config.nodes.is_empty() {
            // The next process would be at the same node.
            return false;
        }
        let due = worker.life.up_since().unwrap_or(self.now) + RESTART_AT_ONCE_AFTER;
        if due > self.now {
            self.alarms.arm(due, Alarm::Idle(id));
            return true;
        }
        if !self.placement().is_spare(id) {
            self.replace(id, Recycled::Drained);
            return true;
        }
        if let Some(worker) = self.workers.get_mut(id) {
            worker.retiring = true;
        }
        self.remove(id, Recycled::Drained);
        true
    }
}
