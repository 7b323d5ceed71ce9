//! The messages and requests of Chat Completions, as they are sent.
//!
//! Session files contain the same messages, so they can be read back too. `reply` reads the answers of servers, which
//! differ more.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::refusal::Refusal;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub(super) enum Message {
    System {
        content: String,
    },
    User {
        content: Content,
    },
    Assistant {
        content: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Tool {
        tool_call_id: String,
        content: String,
    },
}

/// Plain text where possible, because some servers know nothing else.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    Text { text: String },
    ImageUrl { image_url: ImageUrl },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ImageUrl {
    pub(super) url: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ToolCall {
    pub(super) id: String,
    #[serde(rename = "type")]
    kind: FunctionKind,
    pub(super) function: Function,
}

#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FunctionKind {
    #[default]
    Function,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Function {
    pub(super) name: String,
    /// The JSON text that the model wrote.
    pub(super) arguments: String,
}

impl Message {
    pub(super) fn has_image(&self) -> bool {
        matches!(self, Message::User { content: Content::Parts(parts) }
            if parts.iter().any(|part| matches!(part, Part::ImageUrl { .. })))
    }
}

impl ToolCall {
    pub(super) fn new(id: String, name: String, arguments: String) -> ToolCall {
        ToolCall { id, kind: FunctionKind::Function, function: Function { name, arguments } }
    }
}

impl Content {
    pub(super) fn into_parts(self) -> Vec<Part> {
        match self {
            Content::Text(text) => vec![Part::Text { text }],
            Content::Parts(parts) => parts,
        }
    }
}

/// What a model does not accept, learned from its error messages.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Quirks {
    /// Parameters that are not sent.
    pub(super) left_out: BTreeSet<String>,
    pub(super) wants_completion_tokens: bool,
    /// Images of earlier prompts are not sent. One of the newest is: the user must hear that it is refused.
    pub(super) no_images: bool,
    /// The size of the context window, from an error.
    pub(super) window_tokens: Option<u64>,
}

impl Quirks {
    /// Keeps what another turn has learned meanwhile.
    pub(super) fn add(&mut self, other: Quirks) {
        self.left_out.extend(other.left_out);
        self.wants_completion_tokens |= other.wants_completion_tokens;
        self.no_images |= other.no_images;
        self.window_tokens = other.window_tokens.or(self.window_tokens);
    }
}

pub(super) struct Request<'a> {
    pub(super) model: &'a str,
    pub(super) messages: &'a [Message],
    pub(super) max_tokens: Option<u64>,
    pub(super) temperature: Option<f64>,
    pub(super) tools: &'a [Value],
    pub(super) extra: &'a Map<String, Value>,
}

impl Request<'_> {
    pub(super) fn body(&self, quirks: &Quirks) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("model".to_owned(), json!(self.model));
        let mut messages = json!(self.messages);
        if quirks.no_images {
            let earlier = self.newest_prompt();
            leave_images_out(&mut messages.as_array_mut().expect("a list")[..earlier]);
        }
        body.insert("messages".to_owned(), messages);
        body.insert("stream".to_owned(), json!(true));
        if let Some(count) = self.max_tokens {
            body.insert(max_tokens_name(quirks).to_owned(), json!(count));
        }
        if let Some(temperature) = self.temperature {
            body.insert("temperature".to_owned(), json!(temperature));
        }
        body.insert("stream_options".to_owned(), json!({ "include_usage": true }));
        if !self.tools.is_empty() {
            body.insert("tools".to_owned(), json!(self.tools));
        }
        body.extend(self.extra.clone());
        body.retain(|name, _| !quirks.left_out.contains(name));
        serde_json::to_vec(&body).expect("a plain value is JSON")
    }

    /// Finds what to leave out from now on. `None`: the error is about something else.
    pub(super) fn learn(&self, quirks: &Quirks, status: u16, refusal: &Refusal) -> Option<Quirks> {
        if !matches!(status, 400 | 404 | 405 | 415 | 422 | 500 | 501) {
            return None;
        }
        let mut learned = quirks.clone();
        if refusal.mentions("stream_options") || refusal.mentions("include_usage") {
            learned.left_out.insert("stream_options".to_owned());
        } else if refusal.mentions("max_completion_tokens")
            && self.max_tokens.is_some()
            && !quirks.wants_completion_tokens
        {
            learned.wants_completion_tokens = true;
        } else if !self.tools.is_empty() && refusal.has_words(&ABOUT_TOOLS) {
            learned.left_out.insert("tools".to_owned());
        } else if refusal.has_words(&["image", "multimodal"]) && self.has_only_earlier_images() {
            learned.no_images = true;
        } else if matches!(status, 400 | 422) {
            learned.left_out.extend(self.refused_parameter(quirks, refusal));
        }
        (learned != *quirks).then_some(learned)
    }

    /// The place of the newest prompt.
    fn newest_prompt(&self) -> usize {
        let is_prompt = |message: &Message| matches!(message, Message::User { .. });
        self.messages.iter().rposition(is_prompt).unwrap_or(0)
    }

    /// Whether a model that takes no images would take this request without those that it was not asked about now.
    fn has_only_earlier_images(&self) -> bool {
        let (earlier, newest) = self.messages.split_at(self.newest_prompt());
        earlier.iter().any(Message::has_image) && !newest.iter().any(Message::has_image)
    }

    /// A parameter of this request that can be left out and that the server does not take.
    fn refused_parameter(&self, quirks: &Quirks, refusal: &Refusal) -> Option<String> {
        let own = [
            (max_tokens_name(quirks), self.max_tokens.is_some()),
            ("temperature", self.temperature.is_some()),
        ];
        let own = own.into_iter().filter(|(_, is_sent)| *is_sent).map(|(name, _)| name);
        let extra = self.extra.keys().map(String::as_str);
        let mut optional = own.chain(extra.filter(|name| !["model", "messages", "stream"].contains(name)));
        optional.find(|name| refusal.refuses(name)).map(str::to_owned)
    }
}

fn leave_images_out(messages: &mut [Value]) {
    for message in messages {
        for part in message["content"].as_array_mut().into_iter().flatten() {
            if part["type"] == "image_url" {
                *part = json!({ "type": "text", "text": "[an image that this model does not take]" });
            }
        }
    }
}

fn max_tokens_name(quirks: &Quirks) -> &'static str {
    if quirks.wants_completion_tokens { "max_completion_tokens" } else { "max_tokens" }
}

/// Words of Ollama, vLLM and llama.cpp.
const ABOUT_TOOLS: [&str; 7] =
    ["support tool", "support function", "tool choice", "tool_choice", "tools param", "\"tools\"", "'tools'"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request<'a>(
        messages: &'a [Message],
        tools: &'a [Value],
        extra: &'a Map<String, Value>,
    ) -> Request<'a> {
        Request { model: "m", messages, max_tokens: Some(5), temperature: Some(0.5), tools, extra }
    }

    fn text(body: Vec<u8>) -> String {
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn a_request_has_its_members_in_the_usual_order() {
        let messages = [Message::User { content: Content::Text("hi".to_owned()) }];
        let extra = json!({ "top_p": 1, "temperature": 0 });
        let body = text(request(&messages, &[], extra.as_object().unwrap()).body(&Quirks::default()));
        assert_eq!(
            body,
            r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":5,"#
                .to_owned()
                + r#""temperature":0,"stream_options":{"include_usage":true},"top_p":1}"#
        );
    }

    #[test]
    fn what_a_server_does_not_accept_is_left_out_from_then_on() {
        let tools = [json!({})];
        let extra = json!({ "seed": 1, "reasoning_effort": "low" });
        let request = request(&[], &tools, extra.as_object().unwrap());
        let learn =
            |quirks: &Quirks, status, error: &str| request.learn(quirks, status, &Refusal::read(error));
        let mut quirks = Quirks::default();
        for error in [
            "Unknown field `stream_options`",
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
            "registry/gemma:latest does not support tools",
            "Unsupported value: 'temperature' does not support 0.5 with this model. Only the default is supported.",
            "Unrecognized request argument supplied: seed",
        ] {
            quirks = learn(&quirks, 400, error).unwrap_or_else(|| panic!("{error}"));
            let again = learn(&quirks, 400, error).map(|quirks| learn(&quirks, 400, error));
            assert_eq!(again.flatten(), None, "what is left out already cannot be");
        }
        let body = text(request.body(&quirks));
        assert_eq!(
            body,
            r#"{"model":"m","messages":[],"stream":true,"max_completion_tokens":5,"reasoning_effort":"low"}"#
        );
        assert_eq!(learn(&Quirks::default(), 429, "stream_options"), None);
        assert_eq!(learn(&Quirks::default(), 400, "no such model"), None);
        assert_eq!(learn(&Quirks::default(), 500, "unexpected error: temperature of the GPU"), None);
        for required in ["model", "messages", "stream"] {
            assert_eq!(learn(&Quirks::default(), 400, &format!("unknown field '{required}'")), None);
        }
    }

    #[test]
    fn images_of_earlier_prompts_are_left_out_for_a_model_without_eyes() {
        let image = Part::ImageUrl { image_url: ImageUrl { url: "data:image/png;base64,AAAA".to_owned() } };
        let picture = Message::User { content: Content::Parts(vec![image]) };
        let words = Message::User { content: Content::Text("go on".to_owned()) };
        let refusal = Refusal::read("image input is not supported");
        let extra = Map::new();
        let both = [picture.clone(), words];
        let quirks = request(&both, &[], &extra).learn(&Quirks::default(), 500, &refusal).unwrap();
        let body = text(request(&both, &[], &extra).body(&quirks));
        assert!(!body.contains("image_url") && body.contains("[an image that this model does not take]"));
        let newest = [picture];
        assert_eq!(request(&newest, &[], &extra).learn(&Quirks::default(), 500, &refusal), None);
        assert!(
            text(request(&newest, &[], &extra).body(&quirks)).contains("image_url"),
            "the user should hear of it"
        );
    }

    proptest! {
        #[test]
        fn messages_are_read_back_as_written(text in ".{0,40}", id in "[a-z0-9]{1,8}", url in ".{0,20}") {
            let parts = vec![
                Part::Text { text: text.clone() },
                Part::ImageUrl { image_url: ImageUrl { url } },
            ];
            let calls = vec![ToolCall::new(id.clone(), "read".to_owned(), text.clone())];
            for message in [
                Message::User { content: Content::Text(text.clone()) },
                Message::User { content: Content::Parts(parts) },
                Message::Assistant { content: Some(text.clone()), tool_calls: Vec::new() },
                Message::Assistant { content: None, tool_calls: calls },
                Message::Tool { tool_call_id: id, content: text },
            ] {
                let written = serde_json::to_string(&message).unwrap();
                prop_assert_eq!(serde_json::from_str::<Message>(&written).unwrap(), message);
            }
        }
    }
}
