//! How much room this node has: what its bus says of its pools, and how much memory and time the machine has left.

use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;

use clients::Target;
use serde_json::{Value, json};

use super::bus;
use crate::local::Local;

/// What is left to the machine itself.
const RESERVE_BYTES: u64 = 256 << 20;
/// What a session is taken to need. Agents need more and less; a node with little memory takes few sessions.
const SESSION_BYTES: u64 = 64 << 20;

/// What is known about this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// The pools that are offered and that the bus has.
    pub(crate) pools: BTreeMap<String, PoolFigures>,
    /// How much of what the processors can do is used: 1 is all of it.
    pub(crate) load: f64,
    pub(crate) mem_free: u64,
}

impl Figures {
    /// Whatever room there is, none of it is for new sessions.
    pub(crate) fn drain(&mut self) {
        for pool in self.pools.values_mut() {
            (pool.room, pool.drain) = (0, true);
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolFigures {
    pub(crate) room: u64,
    pub(crate) sessions: u64,
    /// It takes no new sessions.
    pub(crate) drain: bool,
}

/// The connection on which the bus is asked.
pub(crate) struct Looker {
    target: Target,
    offer: Vec<String>,
    local: Option<Local>,
}

impl Looker {
    pub(crate) fn new(target: Target, offer: Vec<String>) -> Looker {
        Looker { target, offer, local: None }
    }

    /// Asks the bus and the system.
    pub(crate) async fn look(&mut self) -> Result<Figures, String> {
        let local = match self.local.take() {
            Some(local) => local,
            None => bus::connect(&self.target, "link", None).await?,
        };
        let status = bus::ask(&local, "_bus/status", json!({})).await?;
        self.local = Some(local);
        let mem_free = mem_available(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let load = load(&fs::read_to_string("/proc/loadavg").unwrap_or_default());
        Ok(figures(&status, &self.offer, mem_free, load))
    }
}

fn figures(status: &Value, offer: &[String], mem_free: Option<u64>, load: f64) -> Figures {
    let in_memory = mem_free.map_or(u64::MAX, |free| free.saturating_sub(RESERVE_BYTES) / SESSION_BYTES);
    let pools = status["pools"].as_array().into_iter().flatten().filter_map(|pool| {
        let id = pool["id"].as_str()?;
        if !offer.iter().any(|offered| offered == id) || pool["removed"] == true {
            return None;
        }
        let number = |key: &str| pool[key].as_u64().unwrap_or_default();
        let sessions = number("sessions");
        let places = number("max_instances").saturating_mul(number("max_sessions")).saturating_sub(sessions);
        let drain = status["stopping"] == true;
        // A pool none of whose processes can be started is no help to anybody.
        let is_broken = number("broken") > 0 && number("up") == 0;
        let room = if drain || is_broken { 0 } else { places.min(in_memory) };
        Some((id.to_owned(), PoolFigures { room, sessions, drain }))
    });
    Figures { pools: pools.collect(), load, mem_free: mem_free.unwrap_or_default() }
}

/// In bytes. `None`: the system does not say.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn load(loadavg: &str) -> f64 {
    let minute = loadavg.split(' ').next().and_then(|first| first.parse::<f64>().ok()).unwrap_or_default();
    minute / available_parallelism().map_or(1.0, |count| count.get() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_the_pool_and_the_memory_allow() {
        let offer = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let pool = |id: &str, sessions: u64| {
            let mut pool = json!({"id": id, "max_instances": 8, "max_sessions": 4, "up": 1});
            pool["sessions"] = json!(sessions);
            pool
        };
        let mut broken = pool("c", 0);
        broken["up"] = json!(0);
        broken["broken"] = json!(1);
        let status = json!({"pools": [pool("a", 2), pool("b", 40), broken, pool("mine", 0)]});
        let found = figures(&status, &offer, Some(1 << 40), 0.5);
        let room = |figures: &Figures, id: &str| figures.pools[id].room;
        assert_eq!((room(&found, "a"), room(&found, "b"), room(&found, "c")), (30, 0, 0));
        assert_eq!((found.pools.len(), found.pools["a"].sessions), (3, 2));
        let mut drained = found.clone();
        drained.drain();
        assert_eq!(
            (room(&drained, "a"), drained.pools["a"].drain, drained.pools["a"].sessions),
            (0, true, 2)
        );
        let small = figures(&status, &offer, Some(RESERVE_BYTES + 3 * SESSION_BYTES), 0.5);
        assert_eq!(room(&small, "a"), 3);
        let unknown = figures(&json!({"pools": [{"id": "a"}]}), &offer, None, 0.0);
        assert_eq!(room(&unknown, "a"), 0);
    }

    #[test]
    fn the_system_says_what_is_free() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available(""), None);
        assert!(load("0.50 0.1 0.1 1/2 3") > 0.0 && load("x").abs() < 1e-9);
    }
}
