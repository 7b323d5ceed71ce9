//! Sends spans to the collector from a thread of its own, in batches, and again where the rules of OTLP say so.
//!
//! Whoever hands over spans never waits. While the collector is away, the queue fills, and then spans are dropped and
//! counted.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::collector::{Collector, Failure, Taken};
use crate::retry::{MAX_ATTEMPTS, delay};
use crate::span::Span;

/// Spans that wait. One has some hundred bytes, and some kilobytes at most.
const MAX_QUEUED: usize = 8192;
const MAX_BATCH: usize = 512;
/// How long a span waits for others.
const BATCH_EVERY: Duration = Duration::from_secs(1);

/// Tells a person something in one line.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Exporter {
    shared: Arc<Shared>,
    done: Receiver<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Span>,
    totals: Totals,
    is_closing: bool,
}

/// What became of the spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
}

impl Exporter {
    pub(crate) fn start(collector: Collector, tell: Tell) -> Exporter {
        let shared = Arc::new(Shared::default());
        let (done_tx, done) = channel();
        let theirs = shared.clone();
        thread::spawn(move || {
            Sender { shared: theirs, collector, tell, is_failing: false, has_refused: false }.run();
            let _ = done_tx.send(());
        });
        Exporter { shared, done }
    }

    /// Takes spans over, or drops them.
    pub(crate) fn offer(&self, spans: Vec<Span>) {
        if spans.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        for span in spans {
            if state.queue.len() < MAX_QUEUED {
                state.queue.push_back(span);
            } else {
                state.totals.dropped += 1;
            }
        }
        self.shared.changed.notify_one();
    }

    /// Sends what waits, for at most so long. What is left then is dropped.
    pub(crate) fn close(self, at_most: Duration) -> Totals {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_one();
        let _ = self.done.recv_timeout(at_most);
        let mut state = self.shared.lock();
        state.totals.dropped += state.queue.len() as u64;
        state.queue.clear();
        state.totals
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the exporter is closed, at most so long. Returns whether it is.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while !state.is_closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// The next batch, which is full or old enough. `None`: it is closed, and all is sent.
    fn batch(&self) -> Option<Vec<Span>> {
        let mut state = self.lock();
        while state.queue.is_empty() {
            if state.is_closing {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + BATCH_EVERY;
        while state.queue.len() < MAX_BATCH && !state.is_closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let count = state.queue.len().min(MAX_BATCH);
        Some(state.queue.drain(..count).collect())
    }
}

/// The thread that sends.
struct Sender {
    shared: Arc<Shared>,
    collector: Collector,
    tell: Tell,
    is_failing: bool,
    has_refused: bool,
}

impl Sender {
    fn run(mut self) {
        while let Some(batch) = self.shared.batch() {
            let count = batch.len() as u64;
            let taken = self.send(&batch);
            let mut state = self.shared.lock();
            match taken {
                Some(Taken { refused, .. }) => {
                    state.totals.sent += count - refused;
                    state.totals.dropped += refused;
                }
                None => state.totals.dropped += count,
            }
        }
    }

    /// `None`: the batch is given up.
    fn send(&mut self, batch: &[Span]) -> Option<Taken> {
        for attempt in 1.. {
            let Failure { why, may_pass, after } = match self.collector.post(batch) {
                Ok(taken) => {
                    self.has_sent(&taken);
                    return Some(taken);
                }
                Err(failure) => failure,
            };
            self.has_failed(&why);
            if !may_pass || attempt >= MAX_ATTEMPTS {
                break;
            }
            if self.shared.sleep(delay(attempt, after, jitter())) {
                // It is closed, and whoever waits for that does not wait long.
                return self.collector.post(batch).ok();
            }
        }
        None
    }

    fn has_failed(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            (self.tell)(&format!("{} does not take spans: {why}", self.collector.name()));
        }
    }

    fn has_sent(&mut self, taken: &Taken) {
        if std::mem::replace(&mut self.is_failing, false) {
            let dropped = self.shared.lock().totals.dropped;
            (self.tell)(&format!(
                "{} takes spans again; {dropped} were dropped so far",
                self.collector.name()
            ));
        }
        let Taken { refused, why } = taken;
        if (*refused > 0 || !why.is_empty()) && !std::mem::replace(&mut self.has_refused, true) {
            (self.tell)(&format!("{} has refused {refused} spans: {why}", self.collector.name()));
        }
    }
}

/// In 0..1.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes there is no jitter.
    let _ = getrandom::fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
