//! What can go wrong between the agent and its endpoint, and the texts for it.
//!
//! The first sentence of each text is fixed, because people and programs look for it. The server's own message is on
//! the next line. Secrets are removed elsewhere.

use rpc::RpcError;
use rpc::error::{AUTH_REQUIRED, INTERNAL_ERROR, INVALID_PARAMS};
use serde_json::{Value, json};

/// A longer message of a server is cut.
const MESSAGE_CHARS_MAX: usize = 1000;

/// What the model may say in one turn: text, thoughts and tool calls of all its replies together. It is kept in memory
/// until the turn is over, and most of it in the history.
pub(super) const TURN_MIB_MAX: usize = 32;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum ApiError {
    /// The HTTP status is no success.
    Status { status: u16, message: String },
    /// There was no answer.
    Network { message: String },
    /// The connection broke while a very large request was on its way. Servers that do not take it often just hang up.
    CutOff { message: String },
    /// The answer was a success without a body.
    NoBody,
    /// The body ended, or could not be read, before the reply was complete.
    Broken { message: String },
    /// The reply, or the turn with all its replies, is longer than a turn may be.
    TooLong,
    /// The server reported an error in the stream, sometimes with the status that it would have had.
    Server { status: Option<u16>, message: String },
}

impl ApiError {
    pub(super) fn text(&self, url: &str) -> String {
        match self {
            ApiError::Status { status, message } => with_message(sentence(*status, url), message),
            ApiError::Network { message } | ApiError::CutOff { message } => {
                format!("Network error connecting to {url}: {message}")
            }
            ApiError::NoBody => format!("No response body from {url}."),
            ApiError::Broken { message } => format!("The stream from {url} broke off: {message}."),
            ApiError::TooLong => {
                format!("The answer from {url} is longer than {TURN_MIB_MAX} MiB: the rest was not read.")
            }
            ApiError::Server { message, .. } => {
                with_message(format!("Server error in the stream from {url}."), message)
            }
        }
    }

    /// The HTTP status, or the one that an error in the stream names.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            ApiError::Status { status, .. } => Some(*status),
            ApiError::Server { status, .. } => *status,
            _ => None,
        }
    }

    /// The JSON-RPC error for programs.
    pub(super) fn rpc(&self, url: &str) -> RpcError {
        let (code, reason, status) = match self {
            ApiError::Status { status: status @ (401 | 403), .. } => {
                (AUTH_REQUIRED, "authentication", Some(*status))
            }
            ApiError::Status { status: 429, .. } => (INTERNAL_ERROR, "rate_limit", Some(429)),
            ApiError::Status { status, .. } if is_refusal(*status) => {
                (INVALID_PARAMS, "request", Some(*status))
            }
            ApiError::Status { status, .. } => (INTERNAL_ERROR, "server", Some(*status)),
            ApiError::Network { .. } | ApiError::CutOff { .. } => (INTERNAL_ERROR, "network", None),
            ApiError::NoBody | ApiError::Broken { .. } | ApiError::TooLong => {
                (INTERNAL_ERROR, "stream", None)
            }
            ApiError::Server { .. } => (INTERNAL_ERROR, "server", None),
        };
        let mut data = json!({ "reason": reason, "url": url });
        if let Some(status) = status {
            data["status"] = json!(status);
        }
        RpcError { code, message: self.text(url), data: Some(data) }
    }
}

/// Whether the server refuses what it was sent, and will refuse it again.
pub(super) fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 404 | 413 | 422)
}

/// Whether the user has to change the account, the key or the address before any request can succeed.
pub(super) fn needs_user(status: u16) -> bool {
    matches!(status, 300..=399 | 401..=403)
}

fn sentence(status: u16, url: &str) -> String {
    match status {
        401 | 403 => {
            format!("Authentication error (HTTP {status}) calling {url}. Check your OPENAI_API_KEY.")
        }
        429 => format!("Rate limit exceeded (HTTP 429) calling {url}. Please retry later."),
        500.. => format!("Server error (HTTP {status}) from {url}."),
        _ => format!("HTTP error ({status}) from {url}."),
    }
}

fn with_message(sentence: String, message: &str) -> String {
    if message.is_empty() { sentence } else { format!("{sentence}\n{message}") }
}

/// Finds the message in the body of a failure, in any of the forms that servers use.
pub(super) fn message_of(body: &str) -> String {
    let message = match serde_json::from_str::<Value>(body) {
        Ok(value) => message_in(&value).unwrap_or_default(),
        // An HTML page is no use here.
        Err(_) if body.trim_start().starts_with('<') => String::new(),
        Err(_) => body.to_owned(),
    };
    let message = message.trim();
    match message.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

fn message_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(items) => items.iter().find_map(message_in),
        Value::Object(object) => ["error", "message", "detail", "msg", "errors"]
            .iter()
            .find_map(|key| message_in(object.get(*key)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const URL: &str = "http://h/v1/chat/completions";

    fn status(status: u16, message: &str) -> String {
        ApiError::Status { status, message: message.to_owned() }.text(URL)
    }

    #[test]
    fn the_first_sentences_are_fixed() {
        let check = "Check your OPENAI_API_KEY.";
        assert_eq!(status(401, ""), format!("Authentication error (HTTP 401) calling {URL}. {check}"));
        assert_eq!(status(403, "no"), format!("Authentication error (HTTP 403) calling {URL}. {check}\nno"));
        assert_eq!(
            status(429, ""),
            format!("Rate limit exceeded (HTTP 429) calling {URL}. Please retry later.")
        );
        assert_eq!(status(500, ""), format!("Server error (HTTP 500) from {URL}."));
        assert_eq!(status(404, "gone"), format!("HTTP error (404) from {URL}.\ngone"));
        let network = ApiError::Network { message: "refused".to_owned() };
        assert_eq!(network.text(URL), format!("Network error connecting to {URL}: refused"));
        assert_eq!(ApiError::NoBody.text(URL), format!("No response body from {URL}."));
    }

    #[test]
    fn the_message_of_a_server_is_found_in_every_form() {
        for (body, message) in [
            (r#"{"error":{"message":"a","type":"t"}}"#, "a"),
            (r#"{"error":"a"}"#, "a"),
            (r#"{"object":"error","message":"a"}"#, "a"),
            (r#"{"detail":[{"loc":["body"],"msg":"a"}]}"#, "a"),
            (r#"[{"error":{"code":400,"message":"a"}}]"#, "a"),
            ("\"a\"", "a"),
            (" a \n", "a"),
            ("<html>a</html>", ""),
            (r#"{"code":7}"#, ""),
            ("", ""),
        ] {
            assert_eq!(message_of(body), message, "{body}");
        }
        assert_eq!(message_of(&"é".repeat(5000)).chars().count(), MESSAGE_CHARS_MAX + 1);
    }

    proptest! {
        #[test]
        fn every_status_has_its_class(code in 300u16..1000) {
            let text = status(code, "");
            let class = match code {
                401 | 403 => "Authentication error (HTTP ",
                429 => "Rate limit exceeded (HTTP 429)",
                500.. => "Server error (HTTP ",
                _ => "HTTP error (",
            };
            prop_assert!(text.starts_with(class) && text.contains(&code.to_string()) && text.contains(URL));
            let error = ApiError::Status { status: code, message: String::new() };
            prop_assert_eq!(error.rpc(URL).data.unwrap()["status"].clone(), json!(code));
        }

        #[test]
        fn no_body_causes_a_panic(body in ".{0,200}") {
            message_of(&body);
        }
    }
}
