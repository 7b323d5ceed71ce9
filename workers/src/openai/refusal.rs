//! What the body of a failure says beyond its message: which parameter is refused.
//!
//! Only what servers write themselves is read. Some quote the whole request, which names everything.

use serde_json::Value;

/// Words of servers that do not take a parameter at all. Those that only dislike its value say something else.
const REFUSING: [&str; 11] = [
    "unsupported",
    "not support",
    "n't support",
    "unrecognized",
    "unknown",
    "unexpected",
    "not permitted",
    "not allowed",
    "not accept",
    "extra_forbidden",
    "extra fields",
];

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Refusal {
    /// Messages, codes and types, in lower case.
    text: String,
    parameters: Vec<String>,
}

impl Refusal {
    pub(super) fn read(body: &str) -> Refusal {
        let mut refusal = Refusal::default();
        match serde_json::from_str::<Value>(body) {
            Ok(value) => refusal.add(&value),
            Err(_) => refusal.add_text(body),
        }
        refusal
    }

    /// Whether this parameter is what the server does not take.
    pub(super) fn refuses(&self, parameter: &str) -> bool {
        REFUSING.iter().any(|words| self.text.contains(words))
            && (self.parameters.iter().any(|name| name == parameter) || self.mentions(parameter))
    }

    /// Whether the message has this word.
    pub(super) fn mentions(&self, word: &str) -> bool {
        let is_part = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
        self.text.match_indices(&word.to_ascii_lowercase()).any(|(at, found)| {
            !is_part(self.text[..at].chars().next_back())
                && !is_part(self.text[at + found.len()..].chars().next())
        })
    }

    pub(super) fn has_words(&self, words: &[&str]) -> bool {
        words.iter().any(|words| self.text.contains(words))
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add_text(text),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(object) => {
                for (key, value) in object {
                    self.add_member(key, value);
                }
            }
            _ => {}
        }
    }

    fn add_member(&mut self, key: &str, value: &Value) {
        match key {
            "error" | "errors" | "detail" | "message" | "msg" | "metadata" => self.add(value),
            "code" | "type" => self.add_text(value.as_str().unwrap_or_default()),
            "param" => self.parameters.extend(value.as_str().map(str::to_owned)),
            "loc" => {
                let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
                self.parameters.extend(names.filter(|name| *name != "body").map(str::to_owned));
            }
            // A gateway hands the provider's body on.
            "raw" => {
                let raw = value.as_str().unwrap_or_default();
                self.add(&serde_json::from_str(raw).unwrap_or_else(|_| Value::from(raw)));
            }
            _ => {}
        }
    }

    fn add_text(&mut self, text: &str) {
        self.text.push_str(&text.to_ascii_lowercase());
        self.text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_refused_parameter_is_found_in_the_message_and_in_the_fields() {
        for (body, parameter) in [
            (
                r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.5 with this model."}}"#,
                "temperature",
            ),
            (
                r#"{"error":{"message":"Unsupported parameter","param":"top_p","code":"unsupported_parameter"}}"#,
                "top_p",
            ),
            (r#"{"error":{"message":"Unrecognized request argument supplied: seed"}}"#, "seed"),
            (
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#,
                "stream_options",
            ),
            (
                r#"{"error":{"message":"Provider returned error","metadata":{"raw":"{\"error\":\"unknown field top_k\"}"}}}"#,
                "top_k",
            ),
            ("json: unknown field \"think\"", "think"),
        ] {
            let refusal = Refusal::read(body);
            assert!(refusal.refuses(parameter), "{body}");
            assert!(!refusal.refuses("max_tokens") && !refusal.refuses("stream"), "{body}");
        }
        let value =
            r#"{"error":{"message":"Invalid 'temperature': above maximum value","param":"temperature"}}"#;
        assert!(!Refusal::read(value).refuses("temperature"), "the user should hear of a bad value");
        let quoted =
            r#"{"detail":[{"type":"missing","loc":["body","x"],"msg":"Unknown","input":{"tools":[]}}]}"#;
        assert!(!Refusal::read(quoted).refuses("tools"), "the request itself is not a complaint");
    }

    proptest! {
        #[test]
        fn no_body_causes_a_panic(body in ".{0,200}", word in ".{1,4}") {
            let refusal = Refusal::read(&body);
            refusal.refuses(&word);
        }
    }
}
