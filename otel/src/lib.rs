//! Spans of OpenTelemetry from the trace of a running stdio Bus: a client of the bus that follows `_bus/trace` and
//! sends what it sees by OTLP over HTTP.
//!
//! `spans` makes spans from events and is pure; `exporter` sends them from a thread of its own, so that neither a slow
//! collector nor a slow network holds the trace up; `settings` are the standard variables. The encodings are written by
//! hand (`protobuf`, `json`): a few messages of a public schema, where the crates for it are more than the rest of this
//! one.

#![forbid(unsafe_code)]

mod collector;
mod context;
mod encode;
mod event;
mod exporter;
mod json;
mod protobuf;
mod resource;
mod retry;
mod settings;
mod span;
mod spans;
mod table;

use std::convert::Infallible;
use std::env;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clients::trace::{Events, Filter, Told};
use clients::{Fault, Signals, Target, status};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::collector::Collector;
use crate::event::Event;
use crate::exporter::Exporter;
use crate::settings::Settings;
use crate::spans::Spans;

/// How long a bus that has gone is waited for before it is asked again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// How long the last spans may take when the command ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Options {
    /// The collector, before the standard variables.
    pub endpoint: Option<String>,
    /// Only what concerns this pool.
    pub pool: Option<String>,
}

/// Runs until a signal comes. `tell` tells a person something in one line.
pub fn run(
    target: &Target,
    options: Options,
    signals: &Signals,
    tell: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), Fault> {
    let variable = |name: &str| env::var(name).ok();
    let mut settings = Settings::read(options.endpoint.as_deref(), &variable).map_err(Fault::Failed)?;
    let filter = Filter { pool: options.pool, ..Filter::default() };
    let mut events = Events::open(target, "stdio-bus otel", &filter)?;
    describe_bus(target, &mut settings)?;
    let tell: exporter::Tell = Arc::new(tell);
    let collector = Collector::new(settings);
    tell(&format!("sends spans to {}", collector.name()));
    let exporter = Exporter::start(collector, tell.clone());
    loop {
        let mut spans = Spans::new(random);
        match follow(&mut events, &mut spans, &exporter, signals, &tell) {
            Ok(()) => break,
            Err(fault) => {
                exporter.offer(spans.end(SystemTime::now()));
                tell(&format!("{fault}; waiting for the bus"));
            }
        }
        match reopen(target, &filter, signals)? {
            Some(opened) => events = opened,
            None => break,
        }
        tell("the bus is there again");
    }
    let totals = exporter.close(CLOSE_TIMEOUT);
    tell(&format!("{} spans were sent, {} were dropped", totals.sent, totals.dropped));
    Ok(())
}

/// Until a signal comes.
fn follow(
    events: &mut Events,
    spans: &mut Spans<impl FnMut() -> u64>,
    exporter: &Exporter,
    signals: &Signals,
    tell: &exporter::Tell,
) -> Result<(), Fault> {
    loop {
        let Ok(()) = events.hear(|told| {
            match told {
                Told::Event(time, event) => {
                    if let Ok(event) = serde_json::from_str::<Event>(event.get()) {
                        exporter.offer(spans.event(time, &event));
                    }
                }
                Told::Dropped(count) => {
                    tell(&format!("the bus has left out {count} events: spans are missing"));
                }
            }
            Ok::<(), Infallible>(())
        });
        if !events.wait(signals)? {
            return Ok(());
        }
    }
}

/// Waits for a bus that has gone. `None`: a signal came first.
fn reopen(target: &Target, filter: &Filter, signals: &Signals) -> Result<Option<Events>, Fault> {
    let mut wait = FIRST_WAIT;
    loop {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        if poll(&mut fds, timeout).is_ok_and(|count| count > 0) {
            return Ok(None);
        }
        match Events::open(target, "stdio-bus otel", filter) {
            Ok(events) => return Ok(Some(events)),
            Err(Fault::Unreachable(_)) => wait = (wait * 2).min(MAX_WAIT),
            Err(fault) => return Err(fault),
        }
    }
}

/// What the spans come from, as the bus tells it.
fn describe_bus(target: &Target, settings: &mut Settings) -> Result<(), Fault> {
    let told = status::fetch(target)?;
    let told: Value = serde_json::from_str(told.get()).unwrap_or_default();
    settings.describe("service.name", "stdio-bus");
    if let Some(version) = told["version"].as_str() {
        settings.describe("service.version", version);
    }
    let instance =
        told["name"].as_str().map(str::to_owned).or_else(|| Some(told["pid"].as_u64()?.to_string()));
    if let Some(instance) = instance {
        settings.describe("service.instance.id", &instance);
    }
    Ok(())
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    u64::from_le_bytes(bytes)
}
