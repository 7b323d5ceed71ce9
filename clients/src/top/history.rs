//! How much of each thing there was lately: from counters that only grow, by their differences.
//!
//! The time of each look is told. A counter that falls belongs to a new life, and its first difference is not known.

use std::collections::{BTreeMap, VecDeque};

/// More than any screen is wide.
const KEPT: usize = 512;

#[derive(Default)]
pub(super) struct History {
    /// When was looked last, in seconds of any clock.
    looked: Option<f64>,
    last: BTreeMap<String, u64>,
    series: BTreeMap<String, VecDeque<f64>>,
}

impl History {
    /// What the counters stand at now. Those that are no longer told are forgotten.
    pub(super) fn note(&mut self, now: f64, counters: BTreeMap<String, u64>) {
        let passed = self.looked.map(|before| now - before).filter(|passed| *passed > 0.0);
        self.series.retain(|name, _| counters.contains_key(name));
        for (name, count) in &counters {
            let grown = self.last.get(name).and_then(|before| count.checked_sub(*before));
            let (Some(grown), Some(passed)) = (grown, passed) else { continue };
            let series = self.series.entry(name.clone()).or_default();
            series.push_back(grown as f64 / passed);
            if series.len() > KEPT {
                series.pop_front();
            }
        }
        self.last = counters;
        self.looked = Some(now);
    }

    /// The bus is another one now.
    pub(super) fn forget(&mut self) {
        *self = History::default();
    }

    /// Each second, at the last look.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        self.series.get(name)?.back().copied()
    }

    /// The newest first.
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
    fn a_rate_is_what_a_counter_grew_by_in_the_time_between() {
        let mut history = History::default();
        for (now, count) in [(10.0, 100), (12.0, 110), (12.5, 112)] {
            history.note(now, counters("lines", count));
        }
        assert_eq!(history.rates("lines").collect::<Vec<_>>(), [4.0, 5.0]);
        assert_eq!(history.rate("lines"), Some(4.0));
        assert_eq!(history.rate("other"), None);
    }

    #[test]
    fn a_counter_that_falls_begins_anew_and_one_that_is_gone_is_forgotten() {
        let mut history = History::default();
        for (now, count) in [(1.0, 5), (2.0, 7), (3.0, 1), (4.0, 4)] {
            history.note(now, counters("lines", count));
        }
        assert_eq!(history.rates("lines").collect::<Vec<_>>(), [3.0, 2.0]);
        history.note(5.0, counters("other", 1));
        assert_eq!(history.rates("lines").count(), 0);
    }

    #[test]
    fn two_looks_at_once_and_a_long_time_do_no_harm() {
        let mut history = History::default();
        for look in 0..2000_u32 {
            history.note(f64::from(look / 2), counters("lines", look.into()));
        }
        assert!(history.rates("lines").all(f64::is_finite));
        assert_eq!(history.rates("lines").count(), KEPT);
    }
}
