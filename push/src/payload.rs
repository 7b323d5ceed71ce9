//! What a push says. It is encrypted, but a phone shows it on its locked screen: what was said is not in it, unless
//! whoever runs the bus wants it.

use rpc::text::replace_control;
use serde::Deserialize;
use serde_json::json;

/// Agents choose titles of any length.
const TEXT_CHARS: usize = 160;

/// What cannot be seen, beside what steers a terminal: the soft hyphen, what has no width, and the byte order mark.
const HIDDEN: [char; 10] = [
    '\u{ad}', '\u{200b}', '\u{200c}', '\u{200d}', '\u{2060}', '\u{2061}', '\u{2062}', '\u{2063}', '\u{2064}',
    '\u{feff}',
];

/// A session whose agent waits for an answer, as `_bus/sessions` shows it. A session that may not be shared has no
/// titles there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Asking {
    /// What people call it, such as `s17`.
    #[serde(rename = "session")]
    pub label: String,
    pub pool: Option<String>,
    pub title: Option<String>,
    /// What its first open question is about.
    pub asked: Option<String>,
    /// How many are open.
    pub questions: usize,
}

/// The text of a push.
pub fn payload(asking: &Asking, is_full: bool) -> Vec<u8> {
    let Asking { label, pool, title, asked, .. } = asking;
    let link = format!("/#/sessions/{label}");
    let pool = pool.as_deref().map(shown);
    let mut push = json!({ "event": "asked", "label": label, "pool": pool, "link": link });
    if is_full {
        push["title"] = title.as_deref().map(shown).into();
        push["question"] = asked.as_deref().map(shown).into();
    }
    push.to_string().into_bytes()
}

/// What others have written, as one line of plain text in which nothing hides.
fn shown(text: &str) -> String {
    let text = replace_control(text, ' ');
    let mut letters = text.chars().filter(|letter| !HIDDEN.contains(letter));
    let mut line: String = letters.by_ref().take(TEXT_CHARS).collect();
    if letters.next().is_some() {
        line.pop();
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::encrypt::PLAIN_BYTES_MAX;

    fn asking() -> Asking {
        let view = json!({
            "session": "s17", "pool": "claude", "title": "Fix\u{202e} it", "asked": "rm -rf\u{1b}[2J\u{200b}x",
            "questions": 1, "worker": 0,
        });
        serde_json::from_value(view).unwrap()
    }

    fn said(is_full: bool) -> Value {
        serde_json::from_slice(&payload(&asking(), is_full)).unwrap()
    }

    #[test]
    fn what_was_said_is_only_in_a_full_push_and_nothing_hides_there() {
        let plain = json!({ "event": "asked", "label": "s17", "pool": "claude", "link": "/#/sessions/s17" });
        assert_eq!(said(false), plain);
        let full = said(true);
        assert_eq!((&full["title"], &full["question"]), (&json!("Fix  it"), &json!("rm -rf [2Jx")));
        assert_eq!(full["label"], "s17");
    }

    #[test]
    fn a_push_of_the_longest_texts_can_be_sent() {
        let long = Some("\u{10ffff}\"\\漢".repeat(10_000));
        let asking = Asking { pool: long.clone(), title: long.clone(), asked: long, ..asking() };
        let push = payload(&asking, true);
        assert!(push.len() < PLAIN_BYTES_MAX, "{}", push.len());
        assert!(serde_json::from_slice::<Value>(&push).unwrap()["title"].as_str().unwrap().ends_with('…'));
    }
}
