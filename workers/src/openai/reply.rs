//! One reply of a model, built from the events of a stream: text, thoughts, tool calls, finish reason and usage.
//!
//! Each event gives pieces that can be sent to the client at once. Servers differ, so it accepts three names for
//! reasoning, text in parts, tool calls without an index or an id, arguments as an object, and usage with or without
//! choices. It skips and reports an event that it cannot read. No I/O.

use serde_json::Value;

use super::api_error::{ApiError, message_of};
use super::sse::Event;
use super::think_tags::{Piece, ThinkTags};
use super::wire::ToolCall;

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Usage {
    pub(super) input: u64,
    pub(super) output: u64,
    pub(super) total: u64,
    pub(super) thought: u64,
    pub(super) cached: u64,
}

impl Usage {
    /// Saturates, because a server may send any number.
    pub(super) fn add(&mut self, other: Usage) {
        self.input = self.input.saturating_add(other.input);
        self.output = self.output.saturating_add(other.output);
        self.total = self.total.saturating_add(other.total);
        self.thought = self.thought.saturating_add(other.thought);
        self.cached = self.cached.saturating_add(other.cached);
    }
}

pub(super) struct Reply {
    pub(super) text: String,
    pub(super) usage: Option<Usage>,
    finish: Option<String>,
    is_done: bool,
    calls: Vec<Call>,
    think_tags: Option<ThinkTags>,
    /// The model declined in its own words.
    has_refused: bool,
    /// How many bytes have come: text, thoughts and tool calls together.
    bytes: usize,
    bytes_max: usize,
}

/// A tool call counts as this many bytes besides its own, so that the number of calls is bounded too.
const CALL_BYTES: usize = 1 << 10;

/// Why the model stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finish {
    Stop,
    Length,
    Refusal,
}

#[derive(Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Reply {
    pub(super) fn new(has_think_tags: bool, bytes_max: usize) -> Reply {
        Reply {
            text: String::new(),
            usage: None,
            finish: None,
            is_done: false,
            calls: Vec::new(),
            think_tags: has_think_tags.then(ThinkTags::new),
            has_refused: false,
            bytes: 0,
            bytes_max,
        }
    }

    /// How many bytes of the most that it may have were not used.
    pub(super) fn bytes_left(&self) -> usize {
        self.bytes_max.saturating_sub(self.bytes)
    }

    /// Takes an event of the stream. Returns a warning if it could not be read and was skipped.
    pub(super) fn event(
        &mut self,
        event: &Event,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<String>, ApiError> {
        let data = event.data.trim();
        if event.kind == "error" {
            return Err(server_error(data));
        }
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(None);
        }
        match serde_json::from_str(data) {
            Ok(chunk @ Value::Object(_)) => self.chunk(&chunk, pieces).map(|()| None),
            Ok(_) => Ok(Some("an event of the stream is no JSON object, and skipped".to_owned())),
            Err(error) => Ok(Some(format!("an event of the stream is no JSON, and skipped: {error}"))),
        }
    }

    /// Takes a chunk of the stream, or the whole answer of a server that does not stream.
    pub(super) fn chunk(&mut self, chunk: &Value, pieces: &mut Vec<Piece>) -> Result<(), ApiError> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(server_error(&error.to_string()));
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(read_usage(usage));
        }
        let choices = chunk["choices"].as_array().map_or(&[][..], Vec::as_slice);
        let is_first = |choice: &&Value| choice["index"].as_u64().unwrap_or(0) == 0;
        let Some(choice) = choices.iter().find(is_first) else { return Ok(()) };
        let delta = choice.get("delta").filter(|delta| delta.is_object()).unwrap_or(&choice["message"]);
        if let Some(thought) = reasoning(delta) {
            self.add_thought(thought, pieces);
        }
        self.content(&delta["content"], pieces);
        if let Some(refusal) = delta["refusal"].as_str().filter(|text| !text.is_empty()) {
            self.has_refused = true;
            self.add(refusal, pieces);
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(call);
        }
        if self.bytes > self.bytes_max {
            return Err(ApiError::TooLong);
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish = Some(reason.to_owned());
        }
        Ok(())
    }

    /// Ends the reply. Fails if it is not complete.
    pub(super) fn end(&mut self, pieces: &mut Vec<Piece>) -> Result<(), ApiError> {
        if let Some(mut think_tags) = self.think_tags.take() {
            let before = pieces.len();
            think_tags.finish(pieces);
            self.add_text(&pieces[before..]);
        }
        if !self.is_complete() {
            let message = "it ended without finish_reason and without [DONE]".to_owned();
            return Err(ApiError::Broken { message });
        }
        Ok(())
    }

    /// Whether the last event has come.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Whether everything has come but perhaps the usage.
    pub(super) fn is_complete(&self) -> bool {
        self.is_done || self.finish.is_some()
    }

    pub(super) fn finish(&self) -> Finish {
        match self.finish.as_deref() {
            _ if self.has_refused => Finish::Refusal,
            Some("length" | "max_tokens") => Finish::Length,
            Some("content_filter") => Finish::Refusal,
            _ => Finish::Stop,
        }
    }

    /// Takes the tool calls. A call without an id gets one.
    pub(super) fn take_calls(&mut self) -> Vec<ToolCall> {
        let calls = std::mem::take(&mut self.calls).into_iter().filter(|call| !call.name.is_empty());
        let tool_call = |(at, call): (usize, Call)| {
            let id = if call.id.is_empty() { format!("call_{at}") } else { call.id };
            let arguments = if call.arguments.trim().is_empty() { "{}".to_owned() } else { call.arguments };
            ToolCall::new(id, call.name, arguments)
        };
        calls.enumerate().map(tool_call).collect()
    }

    fn content(&mut self, content: &Value, pieces: &mut Vec<Piece>) {
        match content {
            Value::String(text) => self.add(text, pieces),
            Value::Array(parts) => {
                for part in parts {
                    if let Some(text) = part["text"].as_str() {
                        self.add(text, pieces);
                    } else if let Some(thought) = part.get("thinking").and_then(joined) {
                        self.add_thought(thought, pieces);
                    }
                }
            }
            _ => {}
        }
    }

    fn add_thought(&mut self, thought: String, pieces: &mut Vec<Piece>) {
        self.bytes += thought.len();
        pieces.push(Piece::Thought(thought));
    }

    fn add(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        if text.is_empty() {
            return;
        }
        self.bytes += text.len();
        let before = pieces.len();
        match &mut self.think_tags {
            Some(think_tags) => think_tags.push(text, pieces),
            None => pieces.push(Piece::Text(text.to_owned())),
        }
        self.add_text(&pieces[before..]);
    }

    fn add_text(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Piece::Text(text) = piece {
                self.text.push_str(text);
            }
        }
    }

    /// Adds a piece of a tool call to its call, or begins a new call. Calls differ by their index, but some servers
    /// give every call the same one.
    fn call(&mut self, piece: &Value) {
        let index = piece["index"].as_u64();
        let id = piece["id"].as_str().unwrap_or_default();
        let begun = match index {
            Some(_) => self.calls.iter_mut().rev().find(|call| call.index == index),
            None => self.calls.last_mut(),
        };
        let same = begun.filter(|call| {
            let has_other_id = !id.is_empty() && !call.id.is_empty() && call.id != id;
            // Without an index, a name begins a new call.
            !has_other_id && (index.is_some() || piece["function"]["name"].as_str().is_none_or(str::is_empty))
        });
        let call = match same {
            Some(call) => call,
            None => {
                self.bytes += CALL_BYTES;
                self.calls.push(Call { index, ..Call::default() });
                self.calls.last_mut().expect("it was just added")
            }
        };
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
            self.bytes += id.len();
        }
        let function = &piece["function"];
        if call.name.is_empty() {
            function["name"].as_str().unwrap_or_default().clone_into(&mut call.name);
            self.bytes += call.name.len();
        }
        match &function["arguments"] {
            Value::String(more) => {
                call.arguments.push_str(more);
                self.bytes += more.len();
            }
            whole @ Value::Object(_) => {
                call.arguments = whole.to_string();
                self.bytes += call.arguments.len();
            }
            _ => {}
        }
    }
}

/// A server that sends two of these members sends the same text twice.
fn reasoning(delta: &Value) -> Option<String> {
    let text = |key: &str| delta[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    text("reasoning_content")
        .or_else(|| text("reasoning"))
        .or_else(|| delta.get("reasoning_details").and_then(joined))
}

/// Joins the texts of a list of parts.
fn joined(parts: &Value) -> Option<String> {
    let text = |part: &Value| Some(part["text"].as_str().or(part["summary"].as_str())?.to_owned());
    let all: String = parts.as_array()?.iter().filter_map(text).collect();
    (!all.is_empty()).then_some(all)
}

/// An error in the stream. Its code, if that is a number, is the HTTP status that it would have had.
fn server_error(error: &str) -> ApiError {
    let value: Value = serde_json::from_str(error).unwrap_or_default();
    let status = value["code"].as_u64().or_else(|| value["error"]["code"].as_u64());
    ApiError::Server { status: status.and_then(|code| code.try_into().ok()), message: message_of(error) }
}

fn read_usage(usage: &Value) -> Usage {
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    let input = count(&usage["prompt_tokens"]);
    let output = count(&usage["completion_tokens"]);
    Usage {
        input,
        output,
        total: usage["total_tokens"].as_u64().unwrap_or(input.saturating_add(output)),
        thought: count(&usage["completion_tokens_details"]["reasoning_tokens"]),
        cached: count(&usage["prompt_tokens_details"]["cached_tokens"]),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn event(data: &str) -> Event {
        Event { kind: String::new(), data: data.to_owned(), id: None }
    }

    fn receive(deltas: &[Value]) -> (Reply, Vec<Piece>) {
        let mut reply = Reply::new(false, usize::MAX);
        let mut pieces = Vec::new();
        for delta in deltas {
            reply.chunk(&json!({ "choices": [{ "index": 0, "delta": delta }] }), &mut pieces).unwrap();
        }
        (reply, pieces)
    }

    #[test]
    fn text_thoughts_and_tool_calls_together_are_bounded() {
        let call = |index: usize, arguments: &str| {
            let function = json!({ "arguments": arguments });
            json!({ "tool_calls": [{ "index": index, "function": function }] })
        };
        let endless: [&dyn Fn(usize) -> Value; 6] = [
            &|_| json!({ "content": "0123456789" }),
            // It may stand before a <think>, so it is held back.
            &|_| json!({ "content": "          " }),
            &|_| json!({ "reasoning": "0123456789" }),
            &|_| call(0, "0123456789"),
            // Calls without a word in them.
            &|at| call(at, ""),
            &|at| if at % 2 == 0 { json!({ "content": "text" }) } else { call(0, "arguments") },
        ];
        for delta in endless {
            let mut reply = Reply::new(true, 10_000);
            let mut take = |at| {
                let chunk = json!({ "choices": [{ "index": 0, "delta": delta(at) }] });
                reply.chunk(&chunk, &mut Vec::new())
            };
            let refused = (0..2000).find(|at| take(*at).is_err());
            assert!(refused.is_some());
            let arguments: usize = reply.calls.iter().map(|call| call.arguments.len()).sum();
            assert!(reply.text.len() + arguments < 10_100);
        }
    }

    fn thought(text: &str) -> Piece {
        Piece::Thought(text.to_owned())
    }

    fn calls(deltas: &[Value]) -> Vec<(String, String, String)> {
        let calls = receive(deltas).0.take_calls().into_iter();
        calls.map(|call| (call.id, call.function.name, call.function.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn reasoning_is_read_under_each_of_its_names_and_once() {
        for delta in [
            json!({ "reasoning_content": "why" }),
            json!({ "reasoning": "why" }),
            json!({ "reasoning_details": [{ "type": "reasoning.text", "text": "why" }] }),
            json!({ "reasoning": "why", "reasoning_details": [{ "summary": "why" }], "content": "" }),
            json!({ "content": [{ "type": "thinking", "thinking": [{ "type": "text", "text": "why" }] }] }),
        ] {
            let (reply, pieces) = receive(std::slice::from_ref(&delta));
            assert_eq!((pieces, reply.text.as_str()), (vec![thought("why")], ""), "{delta}");
        }
    }

    #[test]
    fn text_comes_as_a_string_or_as_parts() {
        let (reply, pieces) = receive(&[
            json!({ "role": "assistant", "content": null }),
            json!({ "content": "" }),
            json!({ "content": "a" }),
            json!({ "content": [{ "type": "text", "text": "b" }, 7] }),
            json!({}),
        ]);
        assert_eq!((reply.text.as_str(), pieces.len()), ("ab", 2));
    }

    #[test]
    fn pieces_of_calls_are_joined() {
        let streamed = [
            json!({ "tool_calls": [{ "index": 0, "id": "a", "function": { "name": "f", "arguments": "" } }] }),
            json!({ "tool_calls": [{ "index": 1, "id": "b", "function": { "name": "g", "arguments": "{" } }] }),
            json!({ "tool_calls": [{ "index": 0, "function": { "arguments": "{\"x\"" } }] }),
            json!({ "tool_calls": [{ "index": 1, "function": { "arguments": "}" } },
                                   { "index": 0, "id": "a", "function": { "name": "f", "arguments": ":1}" } }] }),
        ];
        assert_eq!(calls(&streamed), [call("a", "f", "{\"x\":1}"), call("b", "g", "{}")]);
    }

    #[test]
    fn calls_without_index_id_or_text_are_understood() {
        let whole = json!({ "tool_calls": [{ "function": { "name": "f", "arguments": { "x": 1 } } },
                                           { "function": { "name": "g" } }] });
        assert_eq!(calls(&[whole]), [call("call_0", "f", "{\"x\":1}"), call("call_1", "g", "{}")]);
        let function = json!({ "name": "f", "arguments": "{}" });
        let same_index = json!({ "tool_calls": [{ "index": 0, "id": "a", "function": function },
                                                { "index": 0, "id": "b", "function": function }] });
        assert_eq!(calls(&[same_index]).len(), 2);
        let by_id = [
            json!({ "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": "{" } }] }),
            json!({ "tool_calls": [{ "function": { "arguments": "}" } }] }),
        ];
        assert_eq!(calls(&by_id), [call("a", "f", "{}")]);
        assert_eq!(calls(&[json!({ "tool_calls": [{ "index": 0, "id": "a" }] })]), []);
    }

    #[test]
    fn a_reply_is_complete_with_a_finish_reason_or_with_done() {
        let end = |chunks: &[&str]| {
            let mut reply = Reply::new(false, usize::MAX);
            let mut pieces = Vec::new();
            for chunk in chunks {
                reply.event(&event(chunk), &mut pieces)?;
            }
            reply.end(&mut pieces).map(|()| reply.finish())
        };
        let text = r#"{"choices":[{"delta":{"content":"a"}}]}"#;
        let reason = |word: &str| format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"{word}"}}]}}"#);
        assert_eq!(end(&[text, " [DONE]\r"]), Ok(Finish::Stop));
        assert_eq!(end(&[&reason("length")]), Ok(Finish::Length));
        assert_eq!(end(&[&reason("content_filter"), "[DONE]"]), Ok(Finish::Refusal));
        assert_eq!(end(&[&reason("eos")]), Ok(Finish::Stop));
        assert!(matches!(end(&[text]), Err(ApiError::Broken { .. })));
        assert!(matches!(end(&[]), Err(ApiError::Broken { .. })));
    }

    #[test]
    fn an_error_in_the_stream_is_a_failure_and_bad_json_is_not() {
        let receive = |kind: &str, data: &str| {
            let event = Event { kind: kind.to_owned(), data: data.to_owned(), id: None };
            Reply::new(false, usize::MAX).event(&event, &mut Vec::new())
        };
        let error = ApiError::Server { status: None, message: "boom".to_owned() };
        assert_eq!(receive("", r#"{"error":{"message":"boom"}}"#), Err(error.clone()));
        assert_eq!(receive("", r#"{"error":"boom","choices":[]}"#), Err(error.clone()));
        assert_eq!(receive("error", "boom"), Err(error));
        let refused = ApiError::Server { status: Some(400), message: "boom".to_owned() };
        assert_eq!(receive("", r#"{"error":{"code":400,"message":"boom"}}"#), Err(refused));
        assert_eq!(receive("", r#"{"error":null,"choices":[]}"#), Ok(None));
        for nonsense in ["{", "null", "[]", "7", ""] {
            assert!(receive("", nonsense).unwrap().is_some(), "{nonsense}");
        }
    }

    #[test]
    fn usage_is_read_with_and_without_choices() {
        let usage = json!({ "prompt_tokens": 8, "completion_tokens": 3,
            "completion_tokens_details": { "reasoning_tokens": 2 }, "prompt_tokens_details": { "cached_tokens": 5 } });
        for choices in [json!([]), json!([{ "index": 0, "delta": {} }])] {
            let mut reply = Reply::new(false, usize::MAX);
            reply.chunk(&json!({ "choices": choices, "usage": usage }), &mut Vec::new()).unwrap();
            let expected = Usage { input: 8, output: 3, total: 11, thought: 2, cached: 5 };
            assert_eq!(reply.usage, Some(expected));
        }
    }

    #[test]
    fn an_answer_without_a_stream_is_an_answer() {
        let mut reply = Reply::new(true, usize::MAX);
        let mut pieces = Vec::new();
        let message = json!({ "role": "assistant", "content": "<think>a</think>b" });
        let body = json!({ "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }] });
        reply.chunk(&body, &mut pieces).unwrap();
        assert_eq!(reply.end(&mut pieces), Ok(()));
        assert_eq!((pieces, reply.text.as_str()), (vec![thought("a"), Piece::Text("b".to_owned())], "b"));
    }

    #[test]
    fn a_model_that_declines_in_words_is_a_refusal_with_text() {
        let (reply, pieces) = receive(&[json!({ "refusal": "I will not." })]);
        assert_eq!((pieces.len(), reply.finish()), (1, Finish::Refusal));
    }

    proptest! {
        #[test]
        fn the_text_is_all_that_was_streamed(words in prop::collection::vec(".{0,8}", 0..12)) {
            let deltas: Vec<_> = words.iter().map(|word| json!({ "content": word })).collect();
            prop_assert_eq!(receive(&deltas).0.text, words.concat());
        }

        #[test]
        fn no_event_causes_a_panic(text in "[\\[\\]{}\":,a-z0-9 ]{0,80}") {
            let _ = Reply::new(true, usize::MAX).event(&event(&text), &mut Vec::new());
        }
    }
}
