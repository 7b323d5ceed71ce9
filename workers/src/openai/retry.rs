//! Whether and when a request is made once more.
//!
//! A pure function of what came back: the server's own hint counts first (`x-should-retry`, `retry-after-ms`,
//! `Retry-After` in seconds or as a date), else the pause doubles. A little chance keeps many clients from coming
//! back together. A server that wants more patience than there is gets none.

use std::time::{Duration, SystemTime};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    /// Requests after the first one.
    pub(super) retries: u32,
    /// The longest pause that a server can ask for.
    pub(super) longest: Duration,
}

/// What a server says of trying again.
#[derive(Default, Clone, PartialEq, Debug)]
pub(super) struct RetryHint {
    pub(super) should: Option<bool>,
    pub(super) after: Option<Duration>,
}

impl RetryHint {
    pub(super) fn read<'a>(header: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> RetryHint {
        let should = header("x-should-retry").and_then(|word| word.trim().parse().ok());
        let millis = header("retry-after-ms").and_then(|text| duration(text, 1000.0));
        let after = millis.or_else(|| {
            let text = header("retry-after")?;
            duration(text, 1.0).or_else(|| {
                let date = httpdate::parse_http_date(text.trim()).ok()?;
                Some(date.duration_since(now).unwrap_or_default())
            })
        });
        RetryHint { should, after }
    }
}

/// How long to wait before the next request, of which `made` were made; `None`: give up. `chance` is in 0..1.
pub(super) fn pause(
    patience: RetryPolicy,
    made: u32,
    status: Option<u16>,
    hint: &RetryHint,
    chance: f64,
) -> Option<Duration> {
    let worth_it = hint.should.unwrap_or(status.is_none_or(is_passing));
    if made > patience.retries || !worth_it {
        return None;
    }
    if let Some(after) = hint.after {
        return (after <= patience.longest).then(|| after.mul_f64(1.0 + chance / 10.0));
    }
    let doubled = FIRST_PAUSE.saturating_mul(1 << (made - 1).min(10)).min(LONGEST_PAUSE);
    Some(doubled.mul_f64(1.0 - chance / 4.0))
}

/// What may be gone the next time.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 409 | 425 | 429 | 500..)
}

fn duration(text: &str, per_second: f64) -> Option<Duration> {
    let number: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(number / per_second).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: RetryPolicy = RetryPolicy { retries: 3, longest: Duration::from_secs(60) };

    fn hint(headers: &[(&str, &'static str)]) -> RetryHint {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        RetryHint::read(|name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value), now)
    }

    fn seconds(count: f64) -> Option<Duration> {
        Some(Duration::from_secs_f64(count))
    }

    #[test]
    fn the_servers_wish_is_read_in_each_of_its_spellings() {
        assert_eq!(hint(&[("retry-after", "2")]).after, seconds(2.0));
        assert_eq!(hint(&[("retry-after", " 0.5 ")]).after, seconds(0.5));
        assert_eq!(hint(&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")]).after, seconds(3.0));
        assert_eq!(hint(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]).after, seconds(0.0));
        assert_eq!(hint(&[("retry-after-ms", "250"), ("retry-after", "9")]).after, seconds(0.25));
        for nonsense in ["soon", "-1", "NaN", "inf", "1e300", ""] {
            assert_eq!(hint(&[("retry-after", nonsense)]), RetryHint::default(), "{nonsense}");
        }
        assert_eq!(hint(&[("x-should-retry", "true")]).should, Some(true));
    }

    #[test]
    fn only_what_may_pass_is_tried_again() {
        let again = |status| pause(PATIENCE, 1, status, &RetryHint::default(), 0.0).is_some();
        for status in [408, 409, 425, 429, 500, 502, 503, 529, 599] {
            assert!(again(Some(status)), "{status}");
        }
        for status in [400, 401, 403, 404, 413, 422] {
            assert!(!again(Some(status)), "{status}");
        }
        assert!(again(None), "a connection that failed");
    }

    #[test]
    fn the_server_may_overrule_both_ways() {
        let again = |status, should| {
            pause(PATIENCE, 1, Some(status), &RetryHint { should: Some(should), after: None }, 0.0).is_some()
        };
        assert!(again(400, true) && !again(503, false));
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let patience = RetryPolicy { retries: 9, ..PATIENCE };
        let pauses: Vec<_> =
            (1..=10).map_while(|made| pause(patience, made, None, &RetryHint::default(), 0.0)).collect();
        let millis: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 8000, 8000, 8000, 8000]);
    }

    #[test]
    fn a_server_that_wants_too_much_is_not_waited_for() {
        let asked =
            |after| pause(PATIENCE, 1, Some(429), &RetryHint { should: None, after: seconds(after) }, 0.0);
        assert_eq!(asked(60.0), seconds(60.0));
        assert_eq!(asked(61.0), None);
    }

    proptest! {
        #[test]
        fn no_chance_comes_back_too_early_or_much_too_late(chance in 0.0..1.0, after in 0.0..60.0) {
            let hint = RetryHint { should: None, after: seconds(after) };
            let pause = pause(PATIENCE, 1, Some(429), &hint, chance).unwrap().as_secs_f64();
            prop_assert!(pause >= after - 1e-6 && pause <= after * 1.1 + 1e-6);
        }

        #[test]
        fn no_header_makes_it_panic(text in ".{0,40}") {
            let _ = RetryHint::read(|_| Some(&text), SystemTime::UNIX_EPOCH);
        }
    }
}
