//! A lenient reader of `_bus/status` and `_bus/sessions`: missing fields are unknown, unexpected ones harmless.

use std::collections::BTreeMap;

use rpc::text::replace_control;
use serde_json::Value;

use crate::sessions::guests;
use crate::status::list;

#[derive(Default)]
pub(super) struct Snapshot {
    pub(super) version: String,
    pub(super) uptime_sec: Option<u64>,
    pub(super) stopping: bool,
    pub(super) listening: Vec<String>,
    pub(super) clients: Gauge,
    pub(super) sessions: Option<u64>,
    pub(super) calls: Gauge,
    pub(super) held_bytes: Gauge,
    /// Per second, averaged by the bus over about ten seconds.
    pub(super) rates: BTreeMap<String, f64>,
    pub(super) latency: Option<Latency>,
    /// What the bus did not carry: refused or skipped, the reason and the count. The most frequent first.
    pub(super) not_carried: Vec<(&'static str, String, u64)>,
    pub(super) counters: BTreeMap<String, u64>,
    pub(super) pools: Vec<Pool>,
}

/// A value and its limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Gauge {
    pub(super) current: Option<u64>,
    pub(super) max: Option<u64>,
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
    pub(super) instances: Gauge,
    pub(super) max_sessions: Option<u64>,
    pub(super) removed: bool,
    pub(super) requests_rate: Option<f64>,
    pub(super) latency: Option<Latency>,
    pub(super) recycled: Option<u64>,
    pub(super) last_recycled: Option<String>,
    pub(super) workers: Vec<Worker>,
}

pub(super) struct Worker {
    pub(super) number: u64,
    pub(super) state: String,
    pub(super) node: Option<String>,
    pub(super) pid: Option<u64>,
    pub(super) up_sec: Option<u64>,
    pub(super) sessions: Option<u64>,
    pub(super) calls: Option<u64>,
    pub(super) clients: Option<u64>,
    pub(super) rss_bytes: Option<u64>,
    pub(super) cpu_percent: Option<f64>,
    pub(super) restarts: Option<u64>,
    pub(super) queued_bytes: Option<u64>,
    pub(super) lines_in: Option<u64>,
    pub(super) lines_out: Option<u64>,
    pub(super) last_exit: Option<String>,
    pub(super) last_recycled: Option<String>,
    pub(super) last_words: Option<String>,
}

pub(super) struct Session {
    pub(super) name: String,
    pub(super) pool: Option<String>,
    pub(super) worker: Option<u64>,
    pub(super) node: Option<String>,
    pub(super) client: Option<String>,
    pub(super) folder: Option<String>,
    pub(super) title: Option<String>,
    pub(super) state: Option<String>,
    pub(super) age_sec: Option<u64>,
    pub(super) idle_sec: Option<u64>,
    pub(super) calls: Option<u64>,
    /// What its agent asks and nobody has answered.
    pub(super) questions: Option<u64>,
    pub(super) guest_count: usize,
    /// The names of its guests. `None`: there are none.
    pub(super) guests: Option<String>,
}

impl Snapshot {
    pub(super) fn read(status: &Value) -> Snapshot {
        let limits = &status["limits"];
        let amount = |name: &str| Gauge { current: status[name].as_u64(), max: limits[name].as_u64() };
        let counters = numbers(&status["counters"]);
        Snapshot {
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

impl Session {
    /// `POOL/N`, as far as it is known.
    pub(super) fn worker_name(&self) -> String {
        match (&self.pool, self.worker) {
            (Some(pool), Some(worker)) => format!("{pool}/{worker}"),
            (pool, _) => pool.clone().unwrap_or_else(|| "-".to_owned()),
        }
    }
}

impl Pool {
    pub(super) fn worker(&self, number: u64) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.number == number)
    }

    pub(super) fn sum(&self, of: fn(&Worker) -> Option<u64>) -> u64 {
        self.workers.iter().filter_map(of).sum()
    }

    pub(super) fn count_in_state(&self, state: &str) -> usize {
        self.workers.iter().filter(|worker| worker.state == state).count()
    }
}

/// Empty if the bus does not list its sessions.
pub(super) fn sessions(value: &Value) -> Vec<Session> {
    let session = |value: &Value| {
        Some(Session {
            name: text(&value["session"])?,
            pool: text(&value["pool"]),
            worker: value["worker"].as_u64(),
            node: text(&value["node"]),
            client: text(&value["client"]),
            folder: text(&value["folder"]),
            title: text(&value["title"]),
            state: text(&value["state"]),
            age_sec: seconds(&value["age_sec"]),
            idle_sec: seconds(&value["idle_sec"]),
            calls: value["calls"].as_u64(),
            questions: value["questions"].as_u64(),
            guest_count: list(&value["guests"]).len(),
            guests: guests(value),
        })
    };
    list(&value["sessions"]).iter().filter_map(session).collect()
}

fn pool(value: &Value) -> Option<Pool> {
    Some(Pool {
        id: text(&value["id"])?,
        mode: text(&value["mode"]).unwrap_or_default(),
        instances: Gauge { current: value["instances"].as_u64(), max: value["max_instances"].as_u64() },
        max_sessions: value["max_sessions"].as_u64(),
        removed: value["removed"] == true,
        requests_rate: value["rates"]["requests"].as_f64(),
        latency: latency(&value["latency_us"]),
        recycled: value["recycled"].as_u64(),
        last_recycled: text(&value["last_recycled"]),
        workers: list(&value["workers"]).iter().filter_map(worker).collect(),
    })
}

fn worker(value: &Value) -> Option<Worker> {
    let number = |key: &str| value[key].as_u64();
    Some(Worker {
        number: number("worker")?,
        state: text(&value["state"]).unwrap_or_default(),
        node: text(&value["node"]),
        pid: number("pid"),
        up_sec: seconds(&value["up_sec"]),
        sessions: number("sessions"),
        calls: number("calls"),
        clients: number("clients"),
        rss_bytes: number("rss_bytes"),
        cpu_percent: value["cpu_percent"].as_f64(),
        restarts: number("restarts"),
        queued_bytes: number("queued_bytes"),
        lines_in: number("lines_in"),
        lines_out: number("lines_out"),
        last_exit: text(&value["last_exit"]),
        last_recycled: text(&value["last_recycled"]),
        last_words: text(&value["last_words"]),
    })
}

fn latency(value: &Value) -> Option<Latency> {
    let micros = |key: &str| value[key].as_u64();
    let (p50, p90, p99) = (micros("p50")?, micros("p90")?, micros("p99")?);
    Some(Latency { p50, p90, p99, max: micros("max")?, count: micros("count").unwrap_or_default() })
}

fn not_carried(status: &Value, counters: &BTreeMap<String, u64>) -> Vec<(&'static str, String, u64)> {
    /// Counters that older buses report without `skipped`.
    const SKIPPED: [&str; 3] = ["stray_lines", "stray_answers", "dropped_notifications"];
    let refused = numbers(&status["refused"]).into_iter().map(|(why, count)| ("refused", why, count));
    let skipped = match &status["skipped"] {
        counts @ Value::Object(_) => numbers(counts),
        _ => SKIPPED.iter().filter_map(|why| Some(((*why).to_owned(), *counters.get(*why)?))).collect(),
    };
    let skipped = skipped.into_iter().map(|(why, count)| ("skipped", why, count));
    let mut all: Vec<_> = refused.chain(skipped).filter(|(_, _, count)| *count > 0).collect();
    all.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
    all
}

fn numbers(value: &Value) -> BTreeMap<String, u64> {
    members(value, Value::as_u64)
}

fn members<T>(value: &Value, read: fn(&Value) -> Option<T>) -> BTreeMap<String, T> {
    let members = value.as_object().into_iter().flatten();
    members.filter_map(|(name, value)| Some((replace_control(name, '?'), read(value)?))).collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(|text| replace_control(text, '?'))
}

fn seconds(value: &Value) -> Option<u64> {
    value.as_f64().map(|seconds| seconds as u64)
}
