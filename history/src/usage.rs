//! What agents report of tokens and cost. They report sums of the whole session, so what counts is by how much a sum
//! has grown. How full the context is, is no use of anything, and is never added.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

const TOKENS: [(&str, &str); 5] = [
    ("inputTokens", "input"),
    ("outputTokens", "output"),
    ("thoughtTokens", "thought"),
    ("cachedReadTokens", "cached_read"),
    ("cachedWriteTokens", "cached_write"),
];

/// How a kind begins that is a cost. The rest of it is the currency.
pub const COST: &str = "cost ";
/// So many currencies are counted in one place. More are no report of a cost.
const COSTS_MAX: usize = 8;

/// Whether one more of this kind may be counted beside those. Kinds of tokens are few.
pub fn may_count(counted: &BTreeMap<String, f64>, kind: &str) -> bool {
    let costs = || counted.keys().filter(|kind| kind.starts_with(COST)).count();
    !kind.starts_with(COST) || counted.contains_key(kind) || costs() < COSTS_MAX
}

/// The last sums of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meter {
    sums: BTreeMap<String, f64>,
}

impl Meter {
    /// Reads a message. Returns by how much each kind has grown: kinds of tokens, and `cost` with its currency.
    pub fn read(&mut self, message: &RawValue) -> Vec<(String, f64)> {
        let text = message.get();
        if !text.contains(r#""usage"#) {
            return Vec::new();
        }
        let Ok(message) = serde_json::from_str::<Value>(text) else { return Vec::new() };
        let mut sums = Vec::new();
        let usage = &message["result"]["usage"];
        for (name, kind) in TOKENS {
            sums.extend(usage[name].as_f64().map(|sum| (kind.to_owned(), sum)));
        }
        let update = &message["params"]["update"];
        if update["sessionUpdate"] == "usage_update"
            && let (Some(sum), Some(currency)) =
                (update["cost"]["amount"].as_f64(), update["cost"]["currency"].as_str())
        {
            // ISO 4217 has three letters. Anything else is no currency.
            if currency.len() == 3 && currency.bytes().all(|letter| letter.is_ascii_alphabetic()) {
                sums.push((COST.to_owned() + &currency.to_ascii_uppercase(), sum));
            }
        }
        sums.retain(|(kind, sum)| sum.is_finite() && *sum >= 0.0 && may_count(&self.sums, kind));
        let grown = sums.into_iter().map(|(kind, sum)| {
            let before = self.sums.insert(kind.clone(), sum).unwrap_or_default();
            // A sum that is smaller than before was begun anew, by another process of the agent.
            (kind, if sum >= before { sum - before } else { sum })
        });
        grown.filter(|(_, amount)| *amount > 0.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;

    use super::*;

    #[test]
    fn sums_are_not_added_and_the_context_is_no_use() {
        let mut meter = Meter::default();
        let mut read = |message: Value| meter.read(&to_raw_value(&message).unwrap());
        let answer = |input: u64| {
            let usage = json!({ "inputTokens": input, "totalTokens": 9 });
            json!({ "id": 1, "result": { "stopReason": "end_turn", "usage": usage } })
        };
        let update = |cost: f64| {
            json!({ "method": "session/update", "params": { "update": { "sessionUpdate": "usage_update", "used": 5000,
                "size": 200_000, "cost": { "amount": cost, "currency": "usd" } } } })
        };
        let grown = |kind: &str, amount: f64| vec![(kind.to_owned(), amount)];
        assert_eq!(read(answer(100)), grown("input", 100.0));
        assert_eq!(read(answer(150)), grown("input", 50.0));
        assert_eq!(read(answer(150)), []);
        assert_eq!(read(answer(30)), grown("input", 30.0));
        assert_eq!(read(update(0.5)), grown("cost USD", 0.5));
        assert_eq!(read(update(0.75)), grown("cost USD", 0.25));
        assert_eq!(read(json!({ "result": { "usage": { "inputTokens": -4 } } })), []);
    }

    #[test]
    fn ever_new_currencies_are_not_counted() {
        let mut meter = Meter::default();
        let mut read = |currency: &str| {
            let cost = json!({ "amount": 1.0, "currency": currency });
            let update = json!({ "sessionUpdate": "usage_update", "cost": cost });
            let message = json!({ "method": "session/update", "params": { "update": update } });
            meter.read(&to_raw_value(&message).unwrap())
        };
        for bad in ["", "US", "DOLLARS", "U-S-D", "€uro", "ÄÖÜ"] {
            assert_eq!(read(bad), [], "{bad}");
        }
        let letters = || (b'A'..=b'Z').map(char::from);
        let counted = letters().filter(|letter| !read(&format!("AA{letter}")).is_empty()).count();
        assert_eq!((counted, meter.sums.len()), (COSTS_MAX, COSTS_MAX));
    }
}
