//! Text for people: what other programs say must not steer the terminal, and points in time are written as RFC 3339.
//! Also the clock on the wall, and bytes as text.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a terminal obeys this character instead of showing it: a control character (C0, DEL or C1), a line
/// separator, or one that changes the direction of the text around it, so that it reads as something else.
pub fn steers_terminal(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// The text without characters that steer a terminal.
pub fn strip_control(text: &str) -> String {
    text.chars().filter(|letter| !steers_terminal(*letter)).collect()
}

/// The text with this character in the place of each that steers a terminal.
pub fn replace_control(text: &str, with: char) -> String {
    text.chars().map(|letter| if steers_terminal(letter) { with } else { letter }).collect()
}

/// The text with `\u001b` in the place of each character that steers a terminal, except newlines and tabs. A line of
/// JSON means the same afterwards.
pub fn escape_control(text: &str) -> Cow<'_, str> {
    let is_escaped = |letter: char| steers_terminal(letter) && !matches!(letter, '\n' | '\t');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_escaped(letter) {
            // Writing to a string cannot fail, and all these characters have at most four digits.
            let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

/// A word as a shell takes it, on one line. Characters that steer a terminal are escaped, for people to read.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let shown = |c: char| if steers_terminal(c) { c.escape_default().to_string() } else { c.to_string() };
    format!("'{}'", word.replace('\'', r"'\''").chars().map(shown).collect::<String>())
}

/// Two hexadecimal digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Milliseconds since 1970. A clock before that is taken for 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A point in time in UTC, to the millisecond: `2026-01-31T23:59:59.123Z`.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339_of_millis(since.as_secs() * 1000 + u64::from(since.subsec_millis()))
}

/// Like `rfc3339`, for milliseconds since 1970.
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
    fn whatever_steers_a_terminal_is_escaped_and_json_stays_the_same() {
        let steering =
            "\u{7f}\u{80}\u{9b}\u{9f}\u{61c}\u{200e}\u{200f}\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}";
        assert!(steering.chars().all(steers_terminal));
        let line = format!("[\"é漢\u{200d}{steering}\"]\n");
        let escaped = escape_control(&line);
        assert!(!escaped.contains(|letter| letter != '\n' && steers_terminal(letter)), "{escaped:?}");
        assert!(escaped.starts_with("[\"é漢\u{200d}\\u007f\\u0080\\u009b"), "{escaped}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&escaped), read(&line));
        assert!(matches!(escape_control("plain é\tand\nmore"), Cow::Borrowed(_)));
    }

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(&[0, 10, 255]), "000aff");
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
