//! The token usage of a turn, collected from the two places where agents report it.

use serde_json::Value;

use super::envelope::Usage;

#[derive(Debug, Default)]
pub(super) struct UsageMeter {
    /// Tokens in the context and the size of the window, from the last `usage_update`.
    context: Option<(u64, Option<u64>)>,
}

impl UsageMeter {
    /// Takes a `usage_update`.
    pub(super) fn note(&mut self, update: &Value) {
        if let Some(used) = update["used"].as_u64() {
            self.context = Some((used, update["size"].as_u64()));
        }
    }

    /// Returns the usage of the turn and starts the next one. `answer_usage` is the `usage` of the prompt's answer.
    pub(super) fn take(&mut self, answer_usage: &Value) -> Option<Usage> {
        let context = self.context.take();
        let context_window = context.and_then(|(_, size)| size);
        if let (Some(input_tokens), Some(output_tokens)) =
            (answer_usage["inputTokens"].as_u64(), answer_usage["outputTokens"].as_u64())
        {
            return Some(Usage {
                input_tokens,
                output_tokens,
                cache_creation_input_tokens: answer_usage["cachedWriteTokens"].as_u64(),
                cache_read_input_tokens: answer_usage["cachedReadTokens"].as_u64(),
                context_window,
            });
        }
        let (used, _) = context?;
        Some(Usage { input_tokens: used, context_window, ..Usage::default() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_answer_wins_over_the_update_and_each_turn_starts_anew() {
        let mut meter = UsageMeter::default();
        assert_eq!(meter.take(&Value::Null), None);
        meter.note(&json!({ "used": 50, "size": 1000 }));
        let answer_usage =
            json!({ "inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cachedReadTokens": 2 });
        let usage = Usage {
            input_tokens: 7,
            output_tokens: 3,
            cache_read_input_tokens: Some(2),
            context_window: Some(1000),
            ..Usage::default()
        };
        assert_eq!(meter.take(&answer_usage), Some(usage));
        assert_eq!(meter.take(&Value::Null), None);
        meter.note(&json!({ "used": 50, "size": 1000 }));
        let usage = Usage { input_tokens: 50, context_window: Some(1000), ..Usage::default() };
        assert_eq!(meter.take(&Value::Null), Some(usage));
    }
}
