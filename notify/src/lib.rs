//! `stdio-bus notify`: tells people who are away what waits for them at a running bus, by webhooks.
//!
//! It is a process beside the bus, and a client of it that follows `_bus/trace`. `watch` decides what is told and when,
//! and is pure; each `sink` tells it in its own way without holding anybody up, and `post` is the one that there is:
//! webhooks. The bus is asked for its sessions only when something is to be told. Of what was said, the title of a
//! session is all that leaves this machine.

#![forbid(unsafe_code)]

mod event;
mod notice;
mod post;
mod seen;
mod sink;
mod watch;

use std::convert::Infallible;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use clients::trace::{Events, Filter, Told, Woken};
use clients::{Fault, Target, say, sessions, status};
use kernel_core::config::NotifyConfig;
use log::warn;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::event::Event;
use crate::notice::{Notice, link};
use crate::post::Webhook;
use crate::seen::{Sessions, sessions_of};
use crate::sink::{Counted, Sink};
use crate::watch::{Due, Want, Watch};

/// How soon the bus is asked again that could not say what sessions it has.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often it is looked at what became of notices, while some are on their way.
const TICK: Duration = Duration::from_millis(200);

/// What a bus tells the process that it starts, beside where the bus is.
#[derive(Deserialize)]
pub struct Orders {
    /// The webhooks.
    pub notify: Vec<NotifyConfig>,
    /// Of proxies in front of the web door. `None`: there is no door.
    pub origins: Option<Vec<String>>,
}

/// Tells until the bus is gone, or stdin has ended.
pub fn run(orders: Orders, target: &Target) -> Result<(), String> {
    let outcome = Notifier::open(orders, target).and_then(Notifier::run);
    if let Err(why) = &outcome {
        say(&json!({ "failed": why }));
    }
    outcome
}

struct Notifier<'a> {
    target: &'a Target,
    origins: Option<Vec<String>>,
    events: Events,
    watch: Watch,
    /// One for each want of the watch.
    sinks: Vec<Box<dyn Sink>>,
    /// What the times of the watch are counted from.
    began: Instant,
    /// Events were missed.
    has_missed: bool,
    /// Before that the bus is not asked.
    ask_from: Duration,
    /// What the bus was told last.
    told: Value,
}

impl<'a> Notifier<'a> {
    fn open(orders: Orders, target: &'a Target) -> Result<Notifier<'a>, String> {
        let filter = Filter { pool: only_pool(&orders.notify), ..Filter::default() };
        let events = Events::open(target, "stdio-bus notify", &filter).map_err(|fault| fault.to_string())?;
        let want = |config: &NotifyConfig| Want {
            kinds: config.on.clone(),
            after: config.after,
            pools: config.pools.clone(),
        };
        let watch = Watch::new(orders.notify.iter().map(want).collect());
        let mut places: Vec<_> = orders.notify.iter().map(|config| config.place().to_owned()).collect();
        places.sort();
        places.dedup();
        let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
        for config in orders.notify {
            sinks.push(Box::new(Webhook::start(config)?));
        }
        say(&json!({ "listening": places.join(", ") }));
        Ok(Notifier {
            target,
            origins: orders.origins,
            events,
            watch,
            sinks,
            began: Instant::now(),
            // What is asked already was asked before anybody watched.
            has_missed: true,
            ask_from: Duration::ZERO,
            told: Value::Null,
        })
    }

    fn run(mut self) -> Result<(), String> {
        let stdin = io::stdin();
        loop {
            self.hear();
            self.look();
            let is_busy = self.count();
            let wake = self.wake_at().into_iter().chain(is_busy.then(|| self.began.elapsed() + TICK)).min();
            let late = wake.and_then(|wake| self.began.checked_add(wake));
            match self.events.wait_until(stdin.as_fd(), late) {
                // The bus has ended, or starts another one.
                Err(Fault::Unreachable(_)) => return Ok(()),
                Err(fault) => return Err(fault.to_string()),
                Ok(Woken::Other) if has_ended(&stdin) => return Ok(()),
                Ok(_) => {}
            }
        }
    }

    fn hear(&mut self) {
        let now = self.began.elapsed();
        let (watch, has_missed) = (&mut self.watch, &mut self.has_missed);
        let Ok(()) = self.events.hear(|told| {
            match told {
                Told::Event(_, event) => {
                    if let Ok(event) = serde_json::from_str::<Event>(event.get()) {
                        watch.event(now, &event);
                    }
                }
                Told::Dropped(_) => *has_missed = true,
            }
            Ok::<(), Infallible>(())
        });
    }

    /// When `look` has something to do.
    fn wake_at(&self) -> Option<Duration> {
        let missed = self.has_missed.then_some(Duration::ZERO);
        let at = missed.into_iter().chain(self.watch.next_due()).chain(self.watch.next_check()).min();
        Some(at?.max(self.ask_from))
    }

    /// Asks the bus for its sessions if that is needed now, and tells what is due.
    fn look(&mut self) {
        let now = self.began.elapsed();
        if self.wake_at().is_none_or(|at| at > now) {
            return;
        }
        let is_in_doubt = self.watch.is_in_doubt(now);
        if !is_in_doubt && !self.has_missed && self.watch.next_due().is_none_or(|due| due > now) {
            return;
        }
        let seen = match sessions::fetch(self.target) {
            Ok(list) => sessions_of(list),
            Err(fault) => {
                warn!("cannot ask for the sessions: {fault}");
                self.ask_from = now + ASK_AGAIN;
                return;
            }
        };
        if std::mem::take(&mut self.has_missed) {
            self.watch.compare(now, &seen);
        }
        if is_in_doubt {
            self.watch.check(now, &seen);
        }
        let due = self.watch.take_due(now, &seen);
        if !due.is_empty() {
            let door = self.door();
            due.into_iter().for_each(|due| self.tell(due, &seen, door.as_deref()));
        }
    }

    fn tell(&self, due: Due, seen: &Sessions, door: Option<&str>) {
        let Due { want, kind, session: label, pool } = due;
        let seen = seen.get(&label).cloned().unwrap_or_default();
        let link = link(door, self.origins.as_deref().unwrap_or_default(), &label);
        let (title, transcript) = (seen.title, seen.history);
        let notice = Notice { kind, label, transcript, pool: seen.pool.or(pool), title, link };
        self.sinks[want].tell(&notice);
    }

    /// The URL that the web door gives itself, if it is open.
    fn door(&self) -> Option<String> {
        self.origins.as_ref()?;
        let status: Value = serde_json::from_str(fetched(status::fetch(self.target))?.get()).ok()?;
        status["web"]["listening"].as_str().map(str::to_owned)
    }

    /// Tells the bus what became of the notices, if that is new. Says whether some are on their way.
    fn count(&mut self) -> bool {
        let targets: Vec<Counted> = self.sinks.iter().map(|sink| sink.counted()).collect();
        let sum = |of: fn(&Counted) -> u64| targets.iter().map(of).sum::<u64>();
        let counted = json!({
            "sent": sum(|it| it.sent),
            "failed": sum(|it| it.failed),
            "dropped": sum(|it| it.dropped) + self.watch.dropped(),
            "targets": targets,
        });
        if self.told != counted {
            say(&json!({ "counted": counted }));
            self.told = counted;
        }
        targets.iter().any(|target| target.waiting > 0)
    }
}

fn fetched<T>(answer: Result<T, Fault>) -> Option<T> {
    answer.map_err(|fault| warn!("cannot ask for the web door: {fault}")).ok()
}

/// The pool that all webhooks are about, if it is one.
fn only_pool(targets: &[NotifyConfig]) -> Option<String> {
    let first = targets.first()?.pools.first()?;
    let is_it =
        |target: &NotifyConfig| target.pools.iter().all(|pool| pool == first) && !target.pools.is_empty();
    targets.iter().all(is_it).then(|| first.to_string())
}

/// Reads what can be read, which means nothing. True: there is no more.
fn has_ended(mut stdin: &io::Stdin) -> bool {
    !matches!(stdin.read(&mut [0; 64]), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_is_filtered_if_all_want_one_pool() {
        let target = |pools: &[&str]| NotifyConfig {
            url: "https://a".to_owned(),
            on: Vec::new(),
            after: Duration::ZERO,
            pools: pools.iter().map(|pool| (*pool).into()).collect(),
            headers: Default::default(),
            body: Default::default(),
        };
        let only = |all: &[&[&str]]| only_pool(&all.iter().map(|pools| target(pools)).collect::<Vec<_>>());
        assert_eq!(only(&[&["a"], &["a"]]).as_deref(), Some("a"));
        assert_eq!(
            [only(&[&["a"], &[]]), only(&[&["a"], &["b"]]), only(&[&["a", "b"]]), only(&[])],
            [const { None }; 4]
        );
    }
}
