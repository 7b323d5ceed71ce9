//! What a bus told of itself, read leniently: what it does not say is not known, and nothing it says does harm.
//!
//! Knows the shape of `_bus/status` and `_bus/sessions`, and neither time nor screen.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::status::printable;

#[derive(Default)]
pub(super) struct Told {
    pub(super) version: String,
    pub(super) uptime_sec: Option<u64>,
    pub(super) stopping: bool,
    pub(super) listening: Vec<String>,
    pub(super) clients: Amount,
    pub(super) sessions: Option<u64>,
    pub(super) calls: Amount,
    pub(super) held_bytes: Amount,
    /// Each second, over the last ten or so.
    pub(super) rates: BTreeMap<String, f64>,
    pub(super) latency: Option<Latency>,
    /// What the bus did not carry: whether it was refused or skipped, why, and how often. The most frequent first.
    pub(super) not_carried: Vec<(&'static str, String, u64)>,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) pools: Vec<Pool>,
}

/// So many, of so many that there may be.
#[derive(Clone, Copy, Default)]
pub(super) struct Amount {
    pub(super) is: Option<u64>,
    pub(super) most: Option<u64>,
}

#[derive(Clone, Copy)]
pub(super) struct Latency {
    pub(super) p50: u64,
    pub(super) p90: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
    pub(super) count: u64,
}

pub(super) struct Pool {
    pub(super) id: String,
    pub(super) mode: String,
    pub(super) instances: Amount,
    pub(super) max_sessions: Option<u64>,
    pub(super) removed: bool,
    pub(super) requests_rate: Option<f64>,
    pub(super) latency: Option<Latency>,
    pub(super) workers: Vec<Worker>,
}

pub(super) struct Worker {
    pub(super) number: u64,
    pub(super) state: String,
    pub(super) pid: Option<u64>,
    pub(super) up_sec: Option<u64>,
    pub(super) sessions: Option<u64>,
    pub(super) calls: Option<u64>,
    pub(super) clients: Option<u64>,
    pub(super) restarts: Option<u64>,
    pub(super) queued_bytes: Option<u64>,
    pub(super) lines_in: Option<u64>,
    pub(super) lines_out: Option<u64>,
    pub(super) last_exit: Option<String>,
    pub(super) last_words: Option<String>,
}

pub(super) struct Session {
    pub(super) name: String,
    pub(super) pool: Option<String>,
    pub(super) worker: Option<u64>,
    pub(super) client: Option<String>,
    pub(super) state: Option<String>,
    pub(super) age_sec: Option<u64>,
    pub(super) idle_sec: Option<u64>,
    pub(super) calls: Option<u64>,
}

impl Told {
    pub(super) fn read(status: &Value) -> Told {
        let limits = &status["limits"];
        let amount = |name: &str| Amount { is: status[name].as_u64(), most: limits[name].as_u64() };
        let counters = numbers(&status["counters"]);
        Told {
            version: text(&status["version"]).unwrap_or_default(),
            uptime_sec: seconds(&status["uptime_sec"]),
            stopping: status["stopping"] == true,
            listening: list(&status["listening"]).iter().filter_map(text).collect(),
            clients: amount("clients"),
            sessions: status["sessions"].as_u64(),
            calls: amount("calls"),
            held_bytes: amount("held_bytes"),
            rates: members(&status["rates"], Value::as_f64),
            latency: latency(&status["latency_us"]),
            not_carried: not_carried(status, &counters),
            counters,
            pools: list(&status["pools"]).iter().filter_map(pool).collect(),
        }
    }

    pub(super) fn pool(&self, id: &str) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.id == id)
    }
}

impl Pool {
    pub(super) fn worker(&self, number: u64) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.number == number)
    }

    pub(super) fn sum(&self, of: fn(&Worker) -> Option<u64>) -> u64 {
        self.workers.iter().filter_map(of).sum()
    }

    pub(super) fn so_many(&self, state: &str) -> usize {
        self.workers.iter().filter(|worker| worker.state == state).count()
    }
}

/// A bus that cannot tell has no list.
pub(super) fn sessions(told: &Value) -> Vec<Session> {
    let session = |told: &Value| {
        Some(Session {
            name: text(&told["session"])?,
            pool: text(&told["pool"]),
            worker: told["worker"].as_u64(),
            client: text(&told["client"]),
            state: text(&told["state"]),
            age_sec: seconds(&told["age_sec"]),
            idle_sec: seconds(&told["idle_sec"]),
            calls: told["calls"].as_u64(),
        })
    };
    list(&told["sessions"]).iter().filter_map(session).collect()
}

fn pool(told: &Value) -> Option<Pool> {
    Some(Pool {
        id: text(&told["id"])?,
        mode: text(&told["mode"]).unwrap_or_default(),
        instances: Amount { is: told["instances"].as_u64(), most: told["max_instances"].as_u64() },
        max_sessions: told["max_sessions"].as_u64(),
        removed: told["removed"] == true,
        requests_rate: told["rates"]["requests"].as_f64(),
        latency: latency(&told["latency_us"]),
        workers: list(&told["workers"]).iter().filter_map(worker).collect(),
    })
}

fn worker(told: &Value) -> Option<Worker> {
    let number = |key: &str| told[key].as_u64();
    Some(Worker {
        number: number("worker")?,
        state: text(&told["state"]).unwrap_or_default(),
        pid: number("pid"),
        up_sec: seconds(&told["up_sec"]),
        sessions: number("sessions"),
        calls: number("calls"),
        clients: number("clients"),
        restarts: number("restarts"),
        queued_bytes: number("queued_bytes"),
        lines_in: number("lines_in"),
        lines_out: number("lines_out"),
        last_exit: text(&told["last_exit"]),
        last_words: text(&told["last_words"]),
    })
}

fn latency(told: &Value) -> Option<Latency> {
    let micros = |key: &str| told[key].as_u64();
    let (p50, p90, p99) = (micros("p50")?, micros("p90")?, micros("p99")?);
    Some(Latency { p50, p90, p99, max: micros("max")?, count: micros("count").unwrap_or_default() })
}

fn not_carried(status: &Value, counters: &BTreeMap<String, u64>) -> Vec<(&'static str, String, u64)> {
    /// Those that an older bus counts apart.
    const SKIPPED: [&str; 3] = ["stray_lines", "stray_answers", "dropped_notifications"];
    let refused = numbers(&status["refused"]).into_iter().map(|(why, count)| ("refused", why, count));
    let skipped = match status["skipped"].is_object() {
        true => numbers(&status["skipped"]),
        false => SKIPPED.iter().filter_map(|why| Some(((*why).to_owned(), *counters.get(*why)?))).collect(),
    };
    let skipped = skipped.into_iter().map(|(why, count)| ("skipped", why, count));
    let mut all: Vec<_> = refused.chain(skipped).filter(|(_, _, count)| *count > 0).collect();
    all.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    all
}

fn numbers(told: &Value) -> BTreeMap<String, u64> {
    members(told, Value::as_u64)
}

fn members<T>(told: &Value, read: fn(&Value) -> Option<T>) -> BTreeMap<String, T> {
    let members = told.as_object().into_iter().flatten();
    members.filter_map(|(name, value)| Some((printable(name), read(value)?))).collect()
}

fn list(told: &Value) -> &[Value] {
    told.as_array().map_or(&[], Vec::as_slice)
}

fn text(told: &Value) -> Option<String> {
    told.as_str().map(printable)
}

fn seconds(told: &Value) -> Option<u64> {
    told.as_f64().map(|seconds| seconds as u64)
}
