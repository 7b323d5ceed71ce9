//! A process that does not answer `initialize` in time: whether it is slow, or gets no processor.
//!
//! On a busy machine every process is slow, and one that is killed for that starts again and makes the machine busier.
//! So only the time counts in which the process could have worked: the shell says how long it has waited for a
//! processor.

use std::time::Duration;

use log::info;

use super::Bus;
use crate::api::{Action, Moment};
use crate::id::WorkerId;
use crate::limit::SLOW_START;
use crate::state::timers::Alarm;
use crate::state::workers::Init;

/// When the bus asks once more, if the shell has not told.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The least time that a process gets once more.
const LEAST: Duration = Duration::from_millis(100);

/// Asks the shell how long the process of this worker has waited for a processor.
pub(super) fn look_at_wait(bus: &mut Bus, id: WorkerId) {
    bus.alarms.set(bus.now + ASK_AGAIN, Alarm::Handshake(id));
    bus.links.act(Action::LookAtWait(id));
}

/// How long the process of a worker has waited for a processor since it was started. Call it after
/// `Action::LookAtWait`, with zero where that cannot be told.
pub fn waited(bus: &mut Bus, id: WorkerId, wait: Duration, now: Moment) {
    bus.set_time(now);
    judge(bus, id, wait);
    bus.settle();
}

/// Gives a process more time that has had less than the limit of its own, or stops it.
fn judge(bus: &mut Bus, id: WorkerId, wait: Duration) {
    let limit = bus.limits.init_timeout;
    let Some(worker) = bus.workers.get_mut(id) else { return };
    if !matches!(worker.init, Init::Sent(_)) || worker.initialize_by > bus.now {
        return;
    }
    let last = worker.initialize_at + limit.max(SLOW_START);
    let own = bus.now.saturating_sub(worker.initialize_at).saturating_sub(wait);
    if own < limit && bus.now < last {
        info!(
            "worker {worker} has had {:.1} s of its {limit:?} to answer initialize: the machine is busy",
            own.as_secs_f64()
        );
        worker.initialize_by = (bus.now + (limit - own).max(LEAST)).min(last);
        return bus.alarms.set(worker.initialize_by, Alarm::Handshake(id));
    }
    let sec = limit.as_secs_f64();
    let why = if own < limit {
        let most = SLOW_START.as_secs();
        format!(
            "did not answer initialize within {most} s, of which it waited {} s for a processor",
            wait.as_secs()
        )
    } else {
        format!("did not answer initialize within {sec} s")
    };
    bus.no_start(id, &why);
}
