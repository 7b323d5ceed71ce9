//! Plain text: every line is part of the message, without terminal escapes.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use crate::cli::turn_events::TurnEvents;

#[derive(Default)]
pub(in crate::cli) struct Plain;

impl Format for Plain {
    fn line(&mut self, line: &[u8], events: &mut TurnEvents) {
        let text = String::from_utf8_lossy(line);
        events.text(&(without_escapes(text.trim_end_matches('\r')) + "\n"));
    }

    fn event(&mut self, _event: &Value, _events: &mut TurnEvents) {}

    fn finish(&mut self, exit_code: Option<i32>, events: &mut TurnEvents) {
        if exit_code == Some(0) {
            events.stop(acp::StopReason::EndTurn);
        }
    }
}

/// Removes `ESC [ .. letter`, and `ESC ] ..` up to `BEL` or `ESC \`.
pub(in crate::cli) fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            Some(']') => {
                while let Some(c) = chars.next() {
                    if c == '\x07' || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_titles_are_removed() {
        assert_eq!(
            without_escapes("\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y\x1b"),
            "green xy"
        );
        assert_eq!(without_escapes("\x1b["), "");
    }
}
