//! What a turn has cost, put together from the two places where agents tell it.

use serde_json::Value;

use super::envelope::Usage;

#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Of the last `usage_update`: tokens in the context, and how many fit.
    context: Option<(u64, Option<u64>)>,
}

impl Meter {
    /// A `usage_update` of the agent.
    pub(super) fn note(&mut self, update: &Value) {
        if let Some(used) = update["used"].as_u64() {
            self.context = Some((used, update["size"].as_u64()));
        }
    }

    /// The sum of a turn. `said` is the `usage` of the answer to its prompt. What was noted before is forgotten.
    pub(super) fn read(&mut self, said: &Value) -> Option<Usage> {
        let context = self.context.take();
        let context_window = context.and_then(|(_, size)| size);
        if let (Some(input_tokens), Some(output_tokens)) =
            (said["inputTokens"].as_u64(), said["outputTokens"].as_u64())
        {
            return Some(Usage {
                input_tokens,
                output_tokens,
                cache_creation_input_tokens: said["cachedWriteTokens"].as_u64(),
                cache_read_input_tokens: said["cachedReadTokens"].as_u64(),
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
    fn the_answer_tells_more_than_the_update_and_what_was_read_is_forgotten() {
        let mut meter = Meter::default();
        assert_eq!(meter.read(&Value::Null), None);
        meter.note(&json!({ "used": 50, "size": 1000 }));
        let said = json!({ "inputTokens": 7, "outputTokens": 3, "totalTokens": 10, "cachedReadTokens": 2 });
        let usage = Usage {
            input_tokens: 7,
            output_tokens: 3,
            cache_read_input_tokens: Some(2),
            context_window: Some(1000),
            ..Usage::default()
        };
        assert_eq!(meter.read(&said), Some(usage));
        assert_eq!(meter.read(&Value::Null), None);
        meter.note(&json!({ "used": 50, "size": 1000 }));
        let usage = Usage { input_tokens: 50, context_window: Some(1000), ..Usage::default() };
        assert_eq!(meter.read(&Value::Null), Some(usage));
    }
}
