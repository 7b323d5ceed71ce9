//! Whether and when a failed request is retried.
//!
//! The server's own hint counts first (`x-should-retry`, `retry-after-ms`, `Retry-After` in seconds or as a date);
//! without one the delay doubles. Jitter keeps many clients from coming back together. If the server asks for more
//! than the longest delay, there is no retry.

use std::time::{Duration, SystemTime};

const FIRST_DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    /// Requests after the first one.
    pub(super) retries_max: u32,
    /// The longest delay that a server can ask for.
    pub(super) delay_max: Duration,
}

/// What a server says about a retry.
#[derive(Default, Clone, PartialEq, Debug)]
pub(super) struct RetryHint {
    pub(super) should_retry: Option<bool>,
    pub(super) after: Option<Duration>,
}

impl RetryHint {
    pub(super) fn read<'a>(header: impl Fn(&str) -> Option<&'a str>, now: SystemTime) -> RetryHint {
        let should_retry = header("x-should-retry").and_then(|word| word.trim().parse().ok());
        let millis = header("retry-after-ms").and_then(|text| duration(text, 1000.0));
        let after = millis.or_else(|| {
            let text = header("retry-after")?;
            duration(text, 1.0).or_else(|| {
                let date = httpdate::parse_http_date(text.trim()).ok()?;
                Some(date.duration_since(now).unwrap_or_default())
            })
        });
        RetryHint { should_retry, after }
    }
}

/// The delay before the next request after `attempts` requests. `None`: give up. `jitter` is in 0..1.
pub(super) fn delay(
    policy: RetryPolicy,
    attempts: u32,
    status: Option<u16>,
    hint: &RetryHint,
    jitter: f64,
) -> Option<Duration> {
    let should_retry = hint.should_retry.unwrap_or(status.is_none_or(is_transient));
    if attempts > policy.retries_max || !should_retry {
        return None;
    }
    if let Some(after) = hint.after {
        return (after <= policy.delay_max).then(|| after.mul_f64(1.0 + jitter / 10.0));
    }
    let doubled = FIRST_DELAY.saturating_mul(1 << (attempts - 1).min(10)).min(DELAY_MAX);
    Some(doubled.mul_f64(1.0 - jitter / 4.0))
}

fn is_transient(status: u16) -> bool {
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

    const POLICY: RetryPolicy = RetryPolicy { retries_max: 3, delay_max: Duration::from_secs(60) };

    fn hint(headers: &[(&str, &'static str)]) -> RetryHint {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        RetryHint::read(|name| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value), now)
    }

    fn seconds(count: f64) -> Option<Duration> {
        Some(Duration::from_secs_f64(count))
    }

    #[test]
    fn the_servers_hint_is_read_in_each_form() {
        assert_eq!(hint(&[("retry-after", "2")]).after, seconds(2.0));
        assert_eq!(hint(&[("retry-after", " 0.5 ")]).after, seconds(0.5));
        assert_eq!(hint(&[("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT")]).after, seconds(3.0));
        assert_eq!(hint(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]).after, seconds(0.0));
        assert_eq!(hint(&[("retry-after-ms", "250"), ("retry-after", "9")]).after, seconds(0.25));
        for nonsense in ["soon", "-1", "NaN", "inf", "1e300", ""] {
            assert_eq!(hint(&[("retry-after", nonsense)]), RetryHint::default(), "{nonsense}");
        }
        assert_eq!(hint(&[("x-should-retry", "true")]).should_retry, Some(true));
    }

    #[test]
    fn only_transient_failures_are_retried() {
        let again = |status| delay(POLICY, 1, status, &RetryHint::default(), 0.0).is_some();
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
        let again = |status, should_retry| {
            delay(POLICY, 1, Some(status), &RetryHint { should_retry: Some(should_retry), after: None }, 0.0)
                .is_some()
        };
        assert!(again(400, true) && !again(503, false));
    }

    #[test]
    fn delays_double_up_to_a_bound_and_end() {
        let policy = RetryPolicy { retries_max: 9, ..POLICY };
        let delays: Vec<_> = (1..=10)
            .map_while(|attempts| delay(policy, attempts, None, &RetryHint::default(), 0.0))
            .collect();
        let millis: Vec<_> = delays.iter().map(Duration::as_millis).collect();
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 8000, 8000, 8000, 8000]);
    }

    #[test]
    fn a_delay_beyond_the_longest_is_not_waited_for() {
        let asked = |after| {
            delay(POLICY, 1, Some(429), &RetryHint { should_retry: None, after: seconds(after) }, 0.0)
        };
        assert_eq!(asked(60.0), seconds(60.0));
        assert_eq!(asked(61.0), None);
    }

    proptest! {
        #[test]
        fn jitter_never_shortens_the_servers_delay_and_adds_at_most_a_tenth(jitter in 0.0..1.0, after in 0.0..60.0) {
            let hint = RetryHint { should_retry: None, after: seconds(after) };
            let delay = delay(POLICY, 1, Some(429), &hint, jitter).unwrap().as_secs_f64();
            prop_assert!(delay >= after - 1e-6 && delay <= after * 1.1 + 1e-6);
        }

        #[test]
        fn no_header_causes_a_panic(text in ".{0,40}") {
            let _ = RetryHint::read(|_| Some(&text), SystemTime::UNIX_EPOCH);
        }
    }
}
