//! What was said last in a session, as the first prompt of another one: for agents that cannot open sessions again.

use crate::entry::{AGENT, Entry};
use crate::story::{Part, Story};

/// The most characters that such a prompt has.
pub const PRIMER_CHARS: usize = 24_000;

const BEGINNING: &str = "We have talked about this before. This is what was said last:\n\n";
const END: &str = "\n\nPlease go on from here.";

/// The text. Words, plans, summaries and the names of tools are in it, but neither thoughts nor the output of tools.
pub fn primer(entries: &[Entry]) -> String {
    let mut story = Story::default();
    entries.iter().for_each(|entry| story.tell(entry));
    let mut left = PRIMER_CHARS - BEGINNING.chars().count() - END.chars().count();
    let mut parts = Vec::new();
    for part in story.parts.iter().rev() {
        let text = match part {
            Part::Words { by, text, .. } => format!("[{by}] {}", text.trim()),
            Part::Aside { text, .. } => format!("[{AGENT}] {}", text.trim()),
            Part::Tool { title, status, .. } => format!("[tool, {status}] {title}"),
            Part::Question { .. } | Part::Thought { .. } | Part::Note { .. } => continue,
        };
        let chars = text.chars().count() + 2;
        if chars > left {
            // Of the oldest one its end is there.
            let cut: String = text.chars().skip(chars - left + 1).collect();
            if parts.is_empty() || cut.chars().count() > 200 {
                parts.push(format!("\u{2026}{cut}"));
            }
            break;
        }
        left -= chars;
        parts.push(text);
    }
    parts.reverse();
    // What steers a terminal is of no use to an agent.
    crate::export::plain(&format!("{BEGINNING}{}{END}", parts.join("\n\n")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;
    use crate::entry::What;

    fn prompt(text: &str) -> Entry {
        let params = json!({ "prompt": [{ "type": "text", "text": text }] });
        let message = json!({ "id": 1, "method": "session/prompt", "params": params });
        let what = What::Message(to_raw_value(&message).unwrap());
        Entry { at: String::new(), by: "ann".to_owned(), n: None, cut: None, what }
    }

    #[test]
    fn the_newest_is_there_and_the_oldest_is_cut() {
        let text = primer(&[prompt("one"), prompt("two\u{1b}[2J")]);
        assert_eq!(text, format!("{BEGINNING}[ann] one\n\n[ann] two [2J{END}"));
        let long = primer(&[prompt(&"old ".repeat(10_000)), prompt("new")]);
        assert!(long.contains("[ann] new") && long.contains("\u{2026}") && long.chars().count() > 23_000);
    }

    proptest! {
        #[test]
        fn it_is_never_too_long(texts in prop::collection::vec(".{0,9}", 0..5), times in 0..9000usize) {
            let entries: Vec<Entry> = texts.iter().map(|text| prompt(&text.repeat(times))).collect();
            prop_assert!(primer(&entries).chars().count() <= PRIMER_CHARS);
        }
    }
}
