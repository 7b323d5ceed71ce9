//! Rates over time, computed from the differences of growing counters.
//!
//! A counter that falls belongs to a restarted bus; its first difference is unknown.

use std::collections::{BTreeMap, VecDeque};

/// More than any screen is wide.
const MAX_SAMPLES: usize = 512;

#[derive(Default)]
pub(super) struct History {
    /// The time of the last sample, in seconds of any clock.
    last_time: Option<f64>,
    last: BTreeMap<String, u64>,
    series: BTreeMap<String, VecDeque<f64>>,
}

impl History {
    /// Adds a sample of all counters. Counters that are no longer reported are dropped.
    pub(super) fn add(&mut self, now: f64, counters: BTreeMap<String, u64>) {
        let elapsed = self.last_time.map(|before| now - before).filter(|elapsed| *elapsed > 0.0);
        self.series.retain(|name, _| counters.contains_key(name));
        for (name, count) in &counters {
            let increase = self.last.get(name).and_then(|before| count.checked_sub(*before));
            let (Some(increase), Some(elapsed)) = (increase, elapsed) else { continue };
            let series = self.series.entry(name.clone()).or_default();
            series.push_back(increase as f64 / elapsed);
            if series.len() > MAX_SAMPLES {
                series.pop_front();
            }
        }
        self.last = counters;
        self.last_time = Some(now);
    }

    /// Starts over, for another bus.
    pub(super) fn clear(&mut self) {
        *self = History::default();
    }

    /// The rate per second at the last sample.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        self.series.get(name)?.back().copied()
    }

    /// Newest first.
    pub(super) fn rates(&self, name: &str) -> impl Iterator<Item = f64> + '_ {
        self.series.get(name).into_iter().flat_map(|series| series.iter().rev().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(name: &str, count: u64) -> BTreeMap<String, u64> {
        BTreeMap::from([(name.to_owned(), count)])
    }

    #[test]
    fn a_rate_is_the_increase_over_the_elapsed_time() {
        let mut history = History::default();
        for (now, count) in [(10.0, 100), (12.0, 110), (12.5, 112)] {
            history.add(now, counters("lines", count));
        }
        assert_eq!(history.rates("lines").collect::<Vec<_>>(), [4.0, 5.0]);
        assert_eq!(history.rate("lines"), Some(4.0));
        assert_eq!(history.rate("other"), None);
    }

    #[test]
    fn a_counter_that_falls_starts_over_and_a_missing_one_is_dropped() {
        let mut history = History::default();
        for (now, count) in [(1.0, 5), (2.0, 7), (3.0, 1), (4.0, 4)] {
            history.add(now, counters("lines", count));
        }
        assert_eq!(history.rates("lines").collect::<Vec<_>>(), [3.0, 2.0]);
        history.add(5.0, counters("other", 1));
        assert_eq!(history.rates("lines").count(), 0);
    }

    #[test]
    fn equal_times_and_many_samples_are_harmless() {
        let mut history = History::default();
        for sample in 0..2000_u32 {
            history.add(f64::from(sample / 2), counters("lines", sample.into()));
        }
        assert!(history.rates("lines").all(f64::is_finite));
        assert_eq!(history.rates("lines").count(), MAX_SAMPLES);
    }
}
