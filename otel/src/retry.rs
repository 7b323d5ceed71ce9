//! Whether and when a request that failed is sent again: the rules of OTLP over HTTP.

use std::time::{Duration, SystemTime};

/// Requests for one batch. What still fails then is dropped.
pub(crate) const MAX_ATTEMPTS: u32 = 6;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Who asks for more is asked again then.
const MAX_ASKED_DELAY: Duration = Duration::from_secs(300);

/// Whether the server may take the same request later. All other refusals are for good.
pub(crate) fn is_retryable(status: u16) -> bool {
    matches!(status, 429 | 502 | 503 | 504)
}

/// The wait that a `Retry-After` asks for: seconds, or a date.
pub(crate) fn asked_delay(header: &str, now: SystemTime) -> Option<Duration> {
    let header = header.trim();
    if let Ok(seconds) = header.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(header).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The wait after so many attempts. `jitter`, in 0..1, keeps many senders from coming back together.
pub(crate) fn delay(attempts: u32, asked: Option<Duration>, jitter: f64) -> Duration {
    match asked {
        Some(asked) => asked.min(MAX_ASKED_DELAY).mul_f64(1.0 + jitter / 10.0),
        None => {
            let doubled = FIRST_DELAY.saturating_mul(1 << attempts.saturating_sub(1).min(10)).min(MAX_DELAY);
            doubled.mul_f64(1.0 - jitter / 4.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_when_it_wants_to_be_asked_again() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(asked_delay(" 7 ", now), Some(Duration::from_secs(7)));
        assert_eq!(asked_delay("Sun, 06 Nov 1994 08:49:40 GMT", now), Some(Duration::from_secs(3)));
        assert_eq!(asked_delay("Sun, 06 Nov 1994 08:49:30 GMT", now), Some(Duration::ZERO));
        for none in ["", "-1", "soon", "1e9"] {
            assert_eq!(asked_delay(none, now), None);
        }
    }

    #[test]
    fn delays_double_and_have_an_end() {
        let seconds = |attempts, asked| delay(attempts, asked, 0.0).as_secs();
        assert_eq!([1, 2, 3, 6, 99].map(|attempts| seconds(attempts, None)), [1, 2, 4, 30, 30]);
        assert_eq!(seconds(1, Some(Duration::from_secs(60))), 60);
        assert_eq!(seconds(1, Some(Duration::MAX)), 300);
        assert!(delay(1, None, 0.99) < delay(1, None, 0.0));
    }

    #[test]
    fn only_what_may_pass_is_sent_again() {
        assert!([429, 502, 503, 504].into_iter().all(is_retryable));
        assert!(![200, 301, 400, 401, 404, 413, 500, 501].into_iter().any(is_retryable));
    }
}
