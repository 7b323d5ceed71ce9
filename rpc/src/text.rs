//! Text for people: what other programs say must not steer the terminal, and points in time are written as RFC 3339.

use std::time::{SystemTime, UNIX_EPOCH};

/// The text without its control characters.
pub fn strip_control(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// The text with this character in the place of each control character.
pub fn replace_control(text: &str, with: char) -> String {
    text.chars().map(|c| if c.is_control() { with } else { c }).collect()
}

/// A point in time in UTC, to the millisecond: `2026-01-31T23:59:59.123Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339_of_millis(since.as_secs() * 1000 + u64::from(since.subsec_millis()))
}

/// The same for milliseconds since 1970.
pub fn rfc3339_of_millis(unix_millis: u64) -> String {
    let (seconds, millis) = (unix_millis / 1000, unix_millis % 1000);
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The date of a day since 1970-01-01. Years begin in March here, so that a leap day is the last of its year and the
/// months follow one rule; eras of 400 years are all alike.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_PER_ERA: u64 = 146_097;
    // From 0000-03-01 to 1970-01-01.
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn no_control_character_is_left() {
        let text = "a\u{1b}[31m\nb\u{9b}é";
        assert_eq!(strip_control(text), "a[31mbé");
        assert_eq!(replace_control(text, '?'), "a?[31m?b?é");
    }

    #[test]
    fn points_in_time_follow_the_calendar() {
        assert_eq!(rfc3339_of_millis(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_of_millis(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339_of_millis(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339_of_millis(1_000_000_000_000), "2001-09-09T01:46:40.000Z");
        assert_eq!(rfc3339_of_millis(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        let time = UNIX_EPOCH + Duration::from_millis(1_769_903_999_123);
        assert_eq!(rfc3339(time), "2026-01-31T23:59:59.123Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00.000Z");
    }
}
