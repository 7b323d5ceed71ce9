//! Plain text: every line is part of the message, without terminal escapes.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::Format;
use super::text::without_escapes;
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
