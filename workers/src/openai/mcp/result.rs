//! The result of a tool call, for the model and for the client.

use agent_client_protocol_schema::v1 as acp;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use crate::openai::convert::tool_text;
use crate::openai::history::beginning;

/// A longer block, such as an image, is not shown to the client.
const BLOCK_BYTES_MAX: usize = 4 << 20;
/// What the client is shown of one result.
const SHOWN_BYTES_MAX: usize = 8 << 20;
/// A longer text is cut, for the client; the model's is cut elsewhere.
const TEXT_BYTES_MAX: usize = 64 << 10;

pub(in crate::openai) struct CallResult {
    /// For the model, which takes nothing but text.
    pub(in crate::openai) text: String,
    /// For the client.
    pub(in crate::openai) content: Vec<acp::ToolCallContent>,
    pub(in crate::openai) has_worked: bool,
}

impl CallResult {
    pub(super) fn new(result: CallToolResult) -> CallResult {
        let mut texts = Vec::new();
        let mut content = Vec::new();
        let mut bytes = 0;
        for block in &result.content {
            texts.push(text_of(block));
            let (shown, length) = shown(block);
            bytes += length;
            if bytes <= SHOWN_BYTES_MAX {
                content.push(shown);
            }
        }
        if let Some(structured) = result.structured_content.filter(|_| texts.is_empty()) {
            let text = structured.to_string();
            content.push(tool_text(beginning(&text, TEXT_BYTES_MAX)));
            texts.push(text);
        }
        CallResult { text: texts.join("\n"), content, has_worked: result.is_error != Some(true) }
    }
}

fn text_of(block: &ContentBlock) -> String {
    let not_shown = |kind: &str, mime_type: &str, data: &str| {
        format!("[{kind}, {mime_type}, about {} bytes, shown to the user only]", data.len() / 4 * 3)
    };
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => not_shown("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => not_shown("audio", &audio.mime_type, &audio.data),
        ContentBlock::ResourceLink(link) => format!("[Resource: {}] {}", link.name, link.uri),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("[Resource: {uri}]\n{text}"),
            ResourceContents::BlobResourceContents { uri, blob, mime_type, .. } => {
                let mime_type = mime_type.as_deref().unwrap_or("application/octet-stream");
                format!("[Resource: {uri}] ({mime_type}, about {} bytes, not shown)", blob.len() / 4 * 3)
            }
            _ => "[a resource]".to_owned(),
        },
        _ => "[content of an unknown kind]".to_owned(),
    }
}

/// A block for the client, and its length. Both protocols spell blocks alike.
fn shown(block: &ContentBlock) -> (acp::ToolCallContent, usize) {
    if let ContentBlock::Text(text) = block {
        let text = beginning(&text.text, TEXT_BYTES_MAX);
        return (tool_text(text), text.len());
    }
    let value = serde_json::to_value(block).unwrap_or(Value::Null);
    let length = value.to_string().len();
    let same = serde_json::from_value::<acp::ContentBlock>(value).ok().filter(|_| length <= BLOCK_BYTES_MAX);
    match same {
        Some(block) => (acp::ToolCallContent::from(block), length),
        None => {
            let text = text_of(block);
            let text = beginning(&text, TEXT_BYTES_MAX);
            (tool_text(text), text.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(result: Value) -> (String, Value, bool) {
        let result = CallResult::new(serde_json::from_value(result).unwrap());
        (result.text, json!(result.content), result.has_worked)
    }

    #[test]
    fn the_model_gets_text_and_the_client_all_kinds_of_content() {
        let image = json!({ "type": "image", "data": "AAAA", "mimeType": "image/png" });
        let link = json!({ "type": "resource_link", "uri": "file:///a", "name": "a" });
        let file = json!({ "type": "resource", "resource": { "uri": "file:///b", "text": "B" } });
        let blocks = json!([{ "type": "text", "text": "one" }, image, link, file]);
        let (text, content, has_worked) = read(json!({ "content": blocks }));
        let words =
            "one\n[image, image/png, about 3 bytes, shown to the user only]\n[Resource: a] file:///a\n";
        assert_eq!(text, format!("{words}[Resource: file:///b]\nB"));
        let kinds: Vec<_> = (0..4).map(|at| content[at]["content"]["type"].clone()).collect();
        assert_eq!(kinds, ["text", "image", "resource_link", "resource"]);
        assert_eq!((&content[1]["content"]["data"], has_worked), (&json!("AAAA"), true));
    }

    #[test]
    fn a_structured_result_without_text_is_json_and_errors_are_failures() {
        let (text, content, has_worked) =
            read(json!({ "content": [], "structuredContent": { "a": 1 }, "isError": true }));
        assert_eq!((text.as_str(), has_worked), (r#"{"a":1}"#, false));
        assert_eq!(content[0]["content"]["text"], r#"{"a":1}"#);
    }

    #[test]
    fn what_is_too_long_is_not_shown() {
        let image = json!({ "type": "image", "data": "A".repeat(BLOCK_BYTES_MAX), "mimeType": "image/png" });
        let long = json!({ "type": "text", "text": "x".repeat(TEXT_BYTES_MAX + 9) });
        let (text, content, _) = read(json!({ "content": [image, long] }));
        assert_eq!(content[0]["content"]["type"], "text");
        assert_eq!(content[1]["content"]["text"].as_str().unwrap().len(), TEXT_BYTES_MAX);
        assert!(text.len() > TEXT_BYTES_MAX, "the model's text is cut elsewhere");
    }
}
