//! The outcome of one load: how fast, at what cost, and whether every request was answered correctly and once.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::print::{micros, red, thousands};

const LATENCY_NS_MOST: u64 = 60_000_000_000;

pub(crate) struct Outcome {
    /// Correct answers within the measured time.
    pub(crate) answered: u64,
    /// Updates of turns within the measured time.
    pub(crate) updates: u64,
    /// Requests of an open loop that were due by its end and could not be sent, because the peer has fallen behind.
    pub(crate) unsent: u64,
    /// How long was measured. Zero: it never began.
    pub(crate) elapsed: Duration,
    pub(crate) latency_ns: Histogram<u64>,
    /// The faults of the whole run.
    pub(crate) faults: Faults,
    /// CPU time of this process within the measured time.
    pub(crate) own_cpu: Option<Duration>,
    /// The same of the process that is watched.
    pub(crate) watched_cpu: Option<Duration>,
    /// User and system ticks of that process within the measured time.
    pub(crate) watched_ticks: Option<(u64, u64)>,
    /// The memory of that process at the end.
    pub(crate) watched_bytes: Option<u64>,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) wrong: u64,
    pub(crate) repeated: u64,
    /// The first fault, in words.
    pub(crate) first: Option<String>,
}

impl Outcome {
    pub(crate) fn new() -> Outcome {
        Outcome {
            answered: 0,
            updates: 0,
            unsent: 0,
            elapsed: Duration::ZERO,
            latency_ns: Histogram::new_with_max(LATENCY_NS_MOST, 3).expect("the bounds are good"),
            faults: Faults::default(),
            own_cpu: None,
            watched_cpu: None,
            watched_ticks: None,
            watched_bytes: None,
        }
    }

    /// Answers per second.
    pub(crate) fn rate(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.answered as f64 / self.elapsed.as_secs_f64() }
    }

    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1000.0
    }

    /// CPU time of the watched process for each answer.
    pub(crate) fn watched_us_a_request(&self) -> Option<f64> {
        Some(self.watched_cpu?.as_secs_f64() * 1e6 / self.answered.max(1) as f64)
    }

    /// The part of it that is spent outside of the system.
    pub(crate) fn watched_user_us_a_request(&self) -> Option<f64> {
        let (user, system) = self.watched_ticks?;
        let share = user as f64 / (user + system).max(1) as f64;
        Some(self.watched_us_a_request()? * share)
    }

    /// For a program.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "answered": self.answered,
            "seconds": self.elapsed.as_secs_f64(),
            "rate": self.rate(),
            "updates": self.updates,
            "unsent": self.unsent,
            "p50_us": self.latency_us(0.5),
            "p90_us": self.latency_us(0.9),
            "p99_us": self.latency_us(0.99),
            "p999_us": self.latency_us(0.999),
            "max_us": self.latency_us(1.0),
            "own_cpu_seconds": self.own_cpu.map(|cpu| cpu.as_secs_f64()),
            "peer_cpu_us_a_request": self.watched_us_a_request(),
            "peer_user_us_a_request": self.watched_user_us_a_request(),
            "peer_resident_bytes": self.watched_bytes,
            "lost": self.faults.lost,
            "wrong": self.faults.wrong,
            "repeated": self.faults.repeated,
            "first_fault": self.faults.first,
        })
    }

    /// For a person.
    pub(crate) fn describe(&self) -> String {
        let seconds = self.elapsed.as_secs_f64();
        let [p50, p90, p99, p999, max] =
            [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| micros(self.latency_us(quantile)));
        let mut text = format!("{} requests/s over {seconds:.1} s\n", thousands(self.rate()));
        if self.updates > 0 && seconds > 0.0 {
            text += &format!("{} updates/s\n", thousands(self.updates as f64 / seconds));
        }
        if self.unsent > 0 {
            text += &format!("{} were due and could not be sent: it has fallen behind\n", self.unsent);
        }
        text += &format!("p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}, max {max}\n");
        if let Some(cpu) = self.own_cpu
            && seconds > 0.0
        {
            // Near 100 %, the harness is what is measured.
            let cpu = cpu.as_secs_f64();
            let share = 100.0 * cpu / seconds;
            text += &format!("the load itself took {cpu:.2} s of CPU time, {share:.0} % of a core\n");
        }
        text + &self.faults.describe()
    }
}

impl Faults {
    pub(crate) fn any(&self) -> bool {
        self.lost + self.wrong + self.repeated > 0
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }

    /// Adds the faults that were found in one run.
    pub(crate) fn add(&mut self, found: &Faults, there: &str) {
        self.lost += found.lost;
        self.wrong += found.wrong;
        self.repeated += found.repeated;
        if let Some(first) = &found.first {
            self.note(|| format!("{there}: {first}"));
        }
    }

    /// One line about all faults.
    pub(crate) fn describe(&self) -> String {
        if !self.any() {
            return "every request was answered rightly, once\n".to_owned();
        }
        let counts =
            red(format_args!("{} lost, {} wrong, {} repeated", self.lost, self.wrong, self.repeated));
        format!("{counts}; first: {}\n", self.first.as_deref().unwrap_or("unknown"))
    }
}
