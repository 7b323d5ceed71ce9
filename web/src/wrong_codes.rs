//! Counts the codes that were wrong. Nobody guesses one, but whoever tries must not fill the log or busy the door.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// So many wrong codes are told that they are wrong, in each such time.
const MAX: u32 = 10;
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct WrongCodes {
    /// When the first one of this minute came, and how many have come since.
    minute: Cell<Option<(Instant, u32)>>,
}

/// What a wrong code means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    /// It is the first one of a minute.
    pub(crate) is_first: bool,
    /// There are too many: when it may be tried again.
    pub(crate) retry_after: Option<Duration>,
}

impl WrongCodes {
    pub(crate) fn note(&self, now: Instant) -> Wrong {
        let running = self.minute.get().filter(|(begin, _)| now.duration_since(*begin) < WINDOW);
        let (begin, before) = running.unwrap_or((now, 0));
        self.minute.set(Some((begin, before.saturating_add(1))));
        let left = WINDOW.saturating_sub(now.duration_since(begin));
        Wrong { is_first: before == 0, retry_after: (before >= MAX).then_some(left) }
    }

    /// How many have come in the minute that began last.
    pub(crate) fn count(&self) -> u32 {
        self.minute.get().map_or(0, |(_, count)| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_in_a_minute_are_answered_and_later_ones_told_to_wait() {
        let codes = WrongCodes::default();
        let begin = Instant::now();
        let noted = |second| codes.note(begin + Duration::from_secs(second));
        assert_eq!(noted(0), Wrong { is_first: true, retry_after: None });
        for second in 1..10 {
            assert_eq!(noted(second), Wrong { is_first: false, retry_after: None });
        }
        let wait = Some(Duration::from_secs(20));
        assert_eq!(noted(40), Wrong { is_first: false, retry_after: wait });
        assert_eq!(codes.count(), 11);
        assert_eq!(noted(60), Wrong { is_first: true, retry_after: None });
        assert_eq!(codes.count(), 1);
    }
}
