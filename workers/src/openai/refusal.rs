//! What the body of a failure says beyond its message: which parameter is refused, or that the request is too long.
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

/// Words about a request with more tokens than the model's context window has.
const TOO_LONG: [&str; 14] = [
    "context length",
    "context_length",
    "context size",
    "context_size",
    "context window",
    "context_window",
    "maximum context",
    "maximum prompt length",
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "input token count",
    "reduce the length",
    "prompt token count",
];

/// Words that stand before the size of the window.
const BEFORE_WINDOW: [&str; 4] = ["maximum", "context", "limit", ">"];
/// The size stands this near to them.
const WINDOW_DISTANCE: usize = 40;
/// A smaller number is no size of a window.
const WINDOW_TOKENS_MIN: u64 = 256;

#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Refusal {
    /// Messages, codes and types, in lower case.
    text: String,
    parameters: Vec<String>,
    window_tokens: Option<u64>,
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

    pub(super) fn is_too_long(&self, status: Option<u16>) -> bool {
        status == Some(413)
            || self.window_tokens.is_some()
            || (matches!(status, Some(400 | 422 | 500)) && self.has_words(&TOO_LONG))
    }

    /// The size of the model's context window, if the server names it.
    pub(super) fn window_tokens(&self) -> Option<u64> {
        self.window_tokens.or_else(|| {
            BEFORE_WINDOW.iter().find_map(|word| {
                let mut places = self.text.match_indices(word);
                places.find_map(|(at, _)| first_number(&self.text[at + word.len()..]))
            })
        })
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
            "n_ctx" => self.window_tokens = value.as_u64(),
            _ => {}
        }
    }

    fn add_text(&mut self, text: &str) {
        self.text.push_str(&text.to_ascii_lowercase());
        self.text.push('\n');
    }
}

/// The first number of the text, if it stands near its beginning and may be the size of a window.
fn first_number(text: &str) -> Option<u64> {
    let start = text.find(|char: char| char.is_ascii_digit())?;
    if start > WINDOW_DISTANCE || text[..start].contains(". ") {
        return None;
    }
    let is_digit = |char: &char| char.is_ascii_digit() || *char == ',';
    let digits: String = text[start..].chars().take_while(is_digit).filter(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|number| *number >= WINDOW_TOKENS_MIN)
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
                r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra"}]}"#,
                "stream_options",
            ),
            (
                r#"{"error":{"message":"Provider","metadata":{"raw":"{\"error\":\"unknown field top_k\"}"}}}"#,
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

    #[test]
    fn the_window_is_found_in_the_words_of_every_server() {
        for (body, window) in [
            (
                "This model's maximum context length is 4097 tokens. However, you requested 9000 tokens (8000 in \
                    the messages, 1000 in the completion).",
                Some(4097),
            ),
            ("prompt is too long: 210000 tokens > 200000 maximum", Some(200_000)),
            (
                "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
                Some(1_048_576),
            ),
            (
                "This model's maximum prompt length is 131,072 but the request contains 140000 tokens.",
                Some(131_072),
            ),
            ("prompt token count of 130000 exceeds the limit of 128000", Some(128_000)),
            (
                "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
                Some(4096),
            ),
            (
                r#"{"error":{"code":400,"message":"exceeds the available context size","n_ctx":512}}"#,
                Some(512),
            ),
            (r#"{"error":{"message":"too big","code":"context_length_exceeded"}}"#, None),
            ("Input is too long for requested model.", None),
        ] {
            let refusal = Refusal::read(body);
            assert!(refusal.is_too_long(Some(400)), "{body}");
            assert_eq!(refusal.window_tokens(), window, "{body}");
        }
        assert!(Refusal::default().is_too_long(Some(413)));
        assert!(!Refusal::read("no such model").is_too_long(Some(400)));
        assert!(!Refusal::read("context length").is_too_long(Some(429)));
    }

    proptest! {
        #[test]
        fn no_body_causes_a_panic(body in ".{0,200}", word in ".{1,4}") {
            let refusal = Refusal::read(&body);
            refusal.window_tokens();
            refusal.refuses(&word);
        }
    }
}
