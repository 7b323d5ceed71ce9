//! Counters for `_bus/status`: totals, rates of the last seconds, latencies of the last minute.
//!
//! Counting a message is one addition. The windows rotate when the bus first runs in a new second, so an idle bus is
//! never woken for them: in a second in which it did not run, nothing happened.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::Moment;
use crate::id::WorkerId;
use crate::wire::error::RpcError;
use crate::wire::line_buffer::Piece;

/// Rates are means over the current second and this many before it.
const RATE_SEC: usize = 10;
/// Latencies cover this many windows of ten seconds, the current one included.
const TENS: usize = 6;
/// Each octave of microseconds has 16 buckets, so a reported latency is at most a sixteenth too high.
const PART_BITS: u32 = 4;
const PARTS: usize = 1 << PART_BITS;
/// Times above a day count as a day.
const OCTAVES: u32 = 37;
const BUCKETS: usize = (OCTAVES - PART_BITS) as usize * PARTS + PARTS;

/// The bounds of `Latency::since_start`: `BOUNDS` powers of four of microseconds, from a millisecond to some minutes.
const FIRST_BOUND: u32 = 10;
const BOUNDS: usize = 10;

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Client,
    Worker,
}

impl Side {
    #[inline]
    pub(crate) fn of(worker: Option<WorkerId>) -> Side {
        if worker.is_some() { Side::Worker } else { Side::Client }
    }
}

/// Lines and their bytes, newlines included, by `Side`.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct BySide {
    lines: [u64; 2],
    bytes: [u64; 2],
}

impl BySide {
    #[inline]
    pub(crate) fn add(&mut self, side: Side, bytes: u64) {
        self.lines[side as usize] += 1;
        self.bytes[side as usize] += bytes;
    }

    pub(crate) fn lines(&self) -> u64 {
        self.lines.iter().sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// What came from one side, and what went to it.
    pub(crate) fn describe(side: Side, read: &BySide, sent: &BySide) -> Value {
        let at = side as usize;
        json!({
            "lines_in": read.lines[at], "lines_out": sent.lines[at],
            "bytes_in": read.bytes[at], "bytes_out": sent.bytes[at],
        })
    }
}

/// Totals since the start.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Counters {
    pub(crate) requests: u64,
    /// Answers of workers and clients, and how many of them were errors.
    pub(crate) answers: u64,
    pub(crate) errors: u64,
    /// What was read. Lines over `max_input_buffer` count without their bytes.
    pub(crate) read: BySide,
    pub(crate) worker_deaths: u64,
    /// Processes that the bus ended on purpose.
    pub(crate) recycled: u64,
    /// Lines of workers that were not JSON-RPC.
    pub(crate) stray_lines: u64,
    /// Lines of clients that were not JSON-RPC.
    pub(crate) malformed_lines: u64,
    /// Lines over `max_input_buffer`.
    pub(crate) too_large: u64,
    /// Answers without a call, or from a peer that is not the callee.
    pub(crate) stray_answers: u64,
    /// Notifications that had no receiver.
    pub(crate) dropped_notifications: u64,
    /// Clients closed because they took nothing or left a line unfinished.
    pub(crate) stalled_clients: u64,
    /// Connections closed because they did not show the token.
    pub(crate) unauthorized: u64,
    /// Errors of the bus itself by their reason.
    pub(crate) refused: BTreeMap<Box<str>, u64>,
}

impl Counters {
    /// Counts a line before it is handled, so that a `_bus/status` counts itself.
    #[inline]
    pub(crate) fn count_in(&mut self, side: Side, piece: &Piece<'_>) {
        let bytes = match piece {
            Piece::Line(line) => line.len() as u64 + 1,
            Piece::Long(long) => long.bytes().len() as u64 + 1,
            Piece::TooLong(_) => 0,
        };
        self.read.add(side, bytes);
    }

    pub(crate) fn count_error(&mut self, error: &RpcError) {
        match self.refused.get_mut(error.reason()) {
            Some(count) => *count += 1,
            None => _ = self.refused.insert(error.reason().into(), 1),
        }
    }

    pub(crate) fn count_answer(&mut self, failed: bool) {
        self.answers += 1;
        self.errors += u64::from(failed);
    }

    /// Lines that were not passed on, by cause. Causes that never happened are left out.
    pub(crate) fn skipped(&self) -> Value {
        let skipped = [
            ("stray_lines", self.stray_lines),
            ("malformed_lines", self.malformed_lines),
            ("too_large", self.too_large),
            ("stray_answers", self.stray_answers),
            ("dropped_notifications", self.dropped_notifications),
        ];
        let skipped = skipped.into_iter().filter(|(_, count)| *count > 0);
        skipped.map(|(why, count)| (why.to_owned(), count.into())).collect::<Map<_, _>>().into()
    }
}

/// The totals whose rates the bus reports.
pub(crate) const FLOW: [&str; 5] = ["lines_in", "lines_out", "bytes_in", "bytes_out", "requests"];

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Metrics {
    /// The current second.
    pub(crate) second: u64,
    pub(crate) flow: RateWindow<{ FLOW.len() }>,
}

/// What is counted for a pool, beside the counters of its workers.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct PoolMetrics {
    pub(crate) requests: RateWindow<1>,
    pub(crate) latency: Latency,
    /// How many of the answers that `latency` counts were errors.
    pub(crate) errors: u64,
    /// From a prompt to the first update that follows it.
    pub(crate) first_words: Latency,
    /// Requests and restarts of workers that are gone.
    pub(crate) past_requests: u64,
    pub(crate) past_restarts: u64,
}

/// The growth of some totals in each of the last seconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct RateWindow<const N: usize> {
    /// The totals at the start of the current second.
    #[serde(with = "crate::saved::array")]
    before: [u64; N],
    /// The growth by second, modulo `RATE_SEC`.
    #[serde(with = "crate::saved::arrays")]
    seconds: [[u64; N]; RATE_SEC],
}

impl<const N: usize> Default for RateWindow<N> {
    fn default() -> Self {
        RateWindow { before: [0; N], seconds: [[0; N]; RATE_SEC] }
    }
}

impl<const N: usize> RateWindow<N> {
    /// Second `from` is over and `to` is the current one. Nothing happened between them.
    pub(crate) fn rotate(&mut self, from: u64, to: u64, totals: [u64; N]) {
        for second in from..to.min(from + RATE_SEC as u64) {
            self.seconds[second as usize % RATE_SEC] = [0; N];
        }
        if to - from <= RATE_SEC as u64 {
            self.seconds[from as usize % RATE_SEC] = std::array::from_fn(|at| totals[at] - self.before[at]);
        }
        self.before = totals;
    }

    pub(crate) fn rates_per_second(&self, totals: [u64; N], now: Moment) -> [Value; N] {
        let begun = f64::from(now.subsec_nanos()) / 1e9;
        let seconds = (now.as_secs().min(RATE_SEC as u64) as f64 + begun).max(1.0);
        std::array::from_fn(|at| {
            let rotate: u64 = self.seconds.iter().map(|second| second[at]).sum();
            let rate = (rotate + totals[at] - self.before[at]) as f64 / seconds;
            // More digits would be noise.
            ((rate * 10.0).round() / 10.0).into()
        })
    }
}

/// A histogram of durations over the last minute, and a coarse one since the start.
#[derive(Serialize, Deserialize)]
pub(crate) struct Latency {
    /// The windows by their number, modulo `TENS`.
    #[serde(with = "crate::saved::boxed_array")]
    tens: Box<[TenSeconds; TENS]>,
    now: usize,
    /// What the windows counted that are over, by the bounds; the last count is of what exceeds them all.
    past: [u64; BOUNDS + 1],
    /// All durations since the start.
    sum_us: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct TenSeconds {
    #[serde(with = "crate::saved::array")]
    counts: [u32; BUCKETS],
    max_us: u64,
}

impl TenSeconds {
    fn add_to(&self, coarse: &mut [u64; BOUNDS + 1]) {
        for (at, count) in self.counts.iter().enumerate() {
            coarse[bound(at)] += u64::from(*count);
        }
    }
}

const NO_TEN_SECONDS: TenSeconds = TenSeconds { counts: [0; BUCKETS], max_us: 0 };

impl Default for Latency {
    fn default() -> Self {
        Latency { tens: Box::new([NO_TEN_SECONDS; TENS]), now: 0, past: [0; BOUNDS + 1], sum_us: 0 }
    }
}

impl Latency {
    #[inline]
    pub(crate) fn add(&mut self, took_us: u64) {
        let ten = &mut self.tens[self.now];
        ten.counts[bucket(took_us)] += 1;
        ten.max_us = ten.max_us.max(took_us);
        self.sum_us += took_us;
    }

    /// Second `from` is over and `to` is the current one.
    pub(crate) fn begin(&mut self, from: u64, to: u64) {
        let (from, to) = (from / 10, to / 10);
        for ten in from + 1..=to.min(from + TENS as u64) {
            let over = &mut self.tens[ten as usize % TENS];
            over.add_to(&mut self.past);
            *over = NO_TEN_SECONDS;
        }
        self.now = to as usize % TENS;
    }

    /// How many durations there were since the start, their sum, and how many were below each bound.
    pub(crate) fn since_start(&self) -> Value {
        let mut counts = self.past;
        self.tens.iter().for_each(|ten| ten.add_to(&mut counts));
        let mut below = 0;
        let buckets = counts.iter().zip((FIRST_BOUND..).step_by(2)).take(BOUNDS).map(|(count, power)| {
            below += count;
            json!([1_u64 << power, below])
        });
        let buckets: Vec<Value> = buckets.collect();
        json!({ "count": counts.iter().sum::<u64>(), "sum": self.sum_us, "buckets": buckets })
    }

    /// The percentiles. Null: there was no answer.
    pub(crate) fn describe<'a>(all: impl Iterator<Item = &'a Latency>) -> Value {
        let mut sum = [0_u64; BUCKETS];
        let mut max_us = 0;
        for ten in all.flat_map(|latency| latency.tens.iter()) {
            max_us = max_us.max(ten.max_us);
            sum.iter_mut().zip(ten.counts).for_each(|(sum, count)| *sum += u64::from(count));
        }
        let count: u64 = sum.iter().sum();
        if count == 0 {
            return Value::Null;
        }
        let percentile = |part: u64| {
            let wanted = (count * part).div_ceil(100);
            let mut event = 0;
            let at = sum.iter().position(|here| {
                event += here;
                event >= wanted
            });
            at.map_or(max_us, |at| most_of(at).min(max_us))
        };
        let [p50, p90, p99] = [50, 90, 99].map(percentile);
        json!({ "p50": p50, "p90": p90, "p99": p99, "max": max_us, "count": count })
    }
}

/// The bucket of a duration. Small durations have their own; others share one with those of the same leading bits.
fn bucket(us: u64) -> usize {
    let us = us.min((1 << OCTAVES) - 1);
    if us < PARTS as u64 {
        return us as usize;
    }
    let octave = us.ilog2();
    let part = (us >> (octave - PART_BITS)) as usize - PARTS;
    (octave - PART_BITS + 1) as usize * PARTS + part
}

/// The first bound that is above all durations of this bucket.
fn bound(bucket: usize) -> usize {
    let octave = most_of(bucket).max(1).ilog2();
    let above = (octave + 1).saturating_sub(FIRST_BOUND).div_ceil(2);
    BOUNDS.min(above as usize)
}

/// The longest duration in this bucket.
fn most_of(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let shift = bucket / PARTS - 1;
    let first = ((PARTS + bucket % PARTS) as u64) << shift;
    first + (1 << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Moment {
        Moment::from_secs_f64(seconds)
    }

    #[test]
    fn a_rate_is_the_mean_of_the_last_seconds_and_forgets_the_others() {
        let mut recent = RateWindow::<1>::default();
        assert_eq!(
            recent.rates_per_second([3], seconds(0.2)),
            [json!(3.0)],
            "the first second is not divided"
        );
        recent.rotate(0, 1, [10]);
        assert_eq!(recent.rates_per_second([20], seconds(1.0)), [json!(20.0)]);
        recent.rotate(1, 4, [20]);
        assert_eq!(recent.rates_per_second([20], seconds(4.0)), [json!(5.0)]);
        recent.rotate(4, 10, [20]);
        assert_eq!(recent.rates_per_second([20], seconds(10.0)), [json!(2.0)]);
        recent.rotate(10, 11, [20]);
        assert_eq!(recent.rates_per_second([20], seconds(11.0)), [json!(1.0)], "the first ten are forgotten");
        recent.rotate(11, 1_000_000, [70]);
        assert_eq!(recent.rates_per_second([70], seconds(1e6)), [json!(0.0)]);
        recent.rotate(1_000_000, 1_000_010, [80]);
        assert_eq!(recent.rates_per_second([80], seconds(1e6 + 10.0)), [json!(1.0)]);
    }

    #[test]
    fn every_time_lies_in_its_bucket_and_buckets_are_narrow() {
        let octaves = (0..OCTAVES).flat_map(|octave| [(1_u64 << octave) - 1, 1 << octave, (1 << octave) + 1]);
        for us in (0..5000).chain(octaves.filter(|us| *us < 1 << OCTAVES)) {
            let at = bucket(us);
            assert!(us <= most_of(at) && (at == 0 || us > most_of(at - 1)), "{us} in {at}");
            assert!(most_of(at) as f64 <= us as f64 * (1.0 + 1.0 / PARTS as f64), "{us} in {at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn durations_since_the_start_are_counted_below_their_bounds() {
        let mut latency = Latency::default();
        let durations = [0, 1023, 1024, 4095, 4096, 1_000_000, (1 << 28) - 1, 1 << 28, 1 << 40];
        for (second, took) in (0..).step_by(7).zip(durations) {
            latency.begin(second, second + 7);
            latency.add(took);
        }
        let told = latency.since_start();
        assert_eq!((&told["count"], &told["sum"]), (&json!(9), &json!(durations.iter().sum::<u64>())));
        for pair in told["buckets"].as_array().unwrap() {
            let le = pair[0].as_u64().unwrap();
            let below = durations.iter().filter(|took| **took < le).count();
            assert_eq!(pair[1], below, "{le}");
        }
        latency.begin(100, 10_000);
        assert_eq!(latency.since_start(), told, "nothing is forgotten");
    }

    #[test]
    fn latencies_are_of_the_last_minute() {
        let mut latency = Latency::default();
        let described = |latency: &Latency| Latency::describe([latency].into_iter());
        assert_eq!(described(&latency), Value::Null);
        (1..=100).for_each(|us| latency.add(us));
        let all = json!({ "p50": 51, "p90": 91, "p99": 99, "max": 100, "count": 100 });
        assert_eq!(described(&latency), all);
        latency.begin(0, 59);
        latency.add(1_000_000);
        let both = described(&latency);
        assert_eq!((&both["count"], &both["max"]), (&json!(101), &json!(1_000_000)));
        latency.begin(59, 60);
        assert_eq!(described(&latency)["count"], 1, "the first ten seconds are a minute ago");
        latency.begin(60, 10_000);
        assert_eq!(described(&latency), Value::Null);
    }
}
