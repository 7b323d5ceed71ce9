//! Converts ACP content blocks to chat messages, and chat messages to ACP updates for `session/load`.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

use super::wire::{Content, ImageUrl, Message, Part};

const AUDIO: &str = "audio is not supported: this endpoint takes text and images";

/// Converts a prompt. The error is its reason.
pub(super) fn content(blocks: &[acp::ContentBlock]) -> Result<Content, &'static str> {
    let mut parts: Vec<Part> = Vec::new();
    for block in blocks {
        match (parts.last_mut(), part(block)?) {
            (Some(Part::Text { text }), Part::Text { text: more }) => {
                text.push('\n');
                text.push_str(&more);
            }
            (_, part) => parts.push(part),
        }
    }
    Ok(match parts.as_mut_slice() {
        [] => Content::Text(String::new()),
        [Part::Text { text }] => Content::Text(std::mem::take(text)),
        _ => Content::Parts(parts),
    })
}

/// The first text, for the title.
pub(super) fn text_of(content: &Content) -> &str {
    match content {
        Content::Text(text) => text,
        Content::Parts(parts) => parts
            .iter()
            .find_map(|part| if let Part::Text { text } = part { Some(text) } else { None })
            .map_or("", String::as_str),
    }
}

fn part(block: &acp::ContentBlock) -> Result<Part, &'static str> {
    let text = |text: String| Ok(Part::Text { text });
    match block {
        acp::ContentBlock::Text(block) => text(block.text.clone()),
        acp::ContentBlock::ResourceLink(link) => text(format!("[Resource: {}] {}", link.name, link.uri)),
        acp::ContentBlock::Image(image) => {
            Ok(image_part(&image.mime_type, &image.data, image.uri.as_deref()))
        }
        acp::ContentBlock::Audio(_) => Err(AUDIO),
        acp::ContentBlock::Resource(resource) => match &resource.resource {
            acp::EmbeddedResourceResource::TextResourceContents(file) => {
                text(format!("[Resource: {}]\n{}", file.uri, file.text))
            }
            acp::EmbeddedResourceResource::BlobResourceContents(file) => {
                let mime_type = file.mime_type.as_deref().unwrap_or("application/octet-stream");
                if mime_type.starts_with("image/") {
                    return Ok(image_part(mime_type, &file.blob, None));
                }
                let bytes = file.blob.len() / 4 * 3;
                text(format!("[Resource: {}] ({mime_type}, about {bytes} bytes, not shown)", file.uri))
            }
            _ => Err("this kind of resource is not supported"),
        },
        _ => Err("this kind of content is not supported"),
    }
}

fn image_part(mime_type: &str, data: &str, uri: Option<&str>) -> Part {
    let url = match uri.filter(|uri| data.is_empty() && uri.starts_with("http")) {
        Some(uri) => uri.to_owned(),
        None => format!("data:{mime_type};base64,{data}"),
    };
    Part::ImageUrl { image_url: ImageUrl { url } }
}

/// The updates that replay a history to the client.
pub(super) fn replay(history: &[Message]) -> Vec<acp::SessionUpdate> {
    let mut updates = Vec::new();
    for (at, message) in history.iter().enumerate() {
        match message {
            Message::User { content } => {
                let blocks = content.clone().into_parts().into_iter().filter_map(block);
                updates.extend(
                    blocks.map(|block| acp::SessionUpdate::UserMessageChunk(acp::ContentChunk::new(block))),
                );
            }
            Message::Assistant { content, tool_calls } => {
                updates.extend(content.as_deref().filter(|text| !text.is_empty()).map(agent_text));
                for call in tool_calls {
                    let input = serde_json::from_str(&call.function.arguments).unwrap_or(Value::Null);
                    let done =
                        acp::ToolCall::new(format!("kept-{at}-{}", call.id), call.function.name.clone())
                            .status(acp::ToolCallStatus::Completed)
                            .raw_input(input)
                            .content(result_of(&call.id, &history[at + 1..]));
                    updates.push(acp::SessionUpdate::ToolCall(done));
                }
            }
            Message::System { .. } | Message::Tool { .. } => {}
        }
    }
    updates
}

pub(super) fn agent_text(text: &str) -> acp::SessionUpdate {
    acp::SessionUpdate::AgentMessageChunk(acp::ContentChunk::new(text.into()))
}

pub(super) fn agent_thought(text: &str) -> acp::SessionUpdate {
    acp::SessionUpdate::AgentThoughtChunk(acp::ContentChunk::new(text.into()))
}

pub(super) fn tool_text(text: &str) -> acp::ToolCallContent {
    acp::ToolCallContent::from(acp::ContentBlock::from(text))
}

/// An image that the history has only as a link is left out.
fn block(part: Part) -> Option<acp::ContentBlock> {
    match part {
        Part::Text { text } => Some(text.into()),
        Part::ImageUrl { image_url } => {
            let (mime_type, data) = image_url.url.strip_prefix("data:")?.split_once(";base64,")?;
            Some(acp::ContentBlock::Image(acp::ImageContent::new(data, mime_type)))
        }
    }
}

fn result_of(id: &str, after: &[Message]) -> Vec<acp::ToolCallContent> {
    let result = after.iter().find_map(|message| match message {
        Message::Tool { tool_call_id, content } if tool_call_id == id => Some(content),
        _ => None,
    });
    result.map(|text| tool_text(text)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::wire::ToolCall;
    use super::*;

    fn convert(blocks: Value) -> Result<Value, &'static str> {
        let blocks: Vec<acp::ContentBlock> = serde_json::from_value(blocks).unwrap();
        content(&blocks).map(|content| json!(content))
    }

    #[test]
    fn texts_and_resources_become_one_text() {
        let blocks = json!([
            { "type": "text", "text": "look at" },
            { "type": "resource_link", "name": "a.rs", "uri": "file:///a.rs" },
            { "type": "resource", "resource": { "uri": "file:///b.rs", "text": "fn b()" } },
            { "type": "resource", "resource": { "uri": "file:///c", "blob": "AAAAAAAA", "mimeType": "x/y" } },
        ]);
        let text = "look at\n[Resource: a.rs] file:///a.rs\n[Resource: file:///b.rs]\nfn b()\n\
            [Resource: file:///c] (x/y, about 6 bytes, not shown)";
        assert_eq!(convert(blocks), Ok(json!(text)));
        assert_eq!(convert(json!([])), Ok(json!("")));
    }

    #[test]
    fn images_are_parts_between_texts() {
        let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } });
        let blocks = json!([
            { "type": "text", "text": "a" },
            { "type": "image", "mimeType": "image/png", "data": "AAAA" },
            { "type": "text", "text": "b" },
            { "type": "text", "text": "c" },
            { "type": "resource", "resource": { "uri": "x", "blob": "AAAA", "mimeType": "image/png" } },
        ]);
        let text = |text: &str| json!({ "type": "text", "text": text });
        assert_eq!(convert(blocks), Ok(json!([text("a"), image, text("b\nc"), image])));
        let remote =
            json!([{ "type": "image", "mimeType": "image/png", "data": "", "uri": "https://h/i.png" }]);
        assert_eq!(convert(remote).unwrap()[0]["image_url"]["url"], "https://h/i.png");
    }

    #[test]
    fn audio_is_an_error() {
        assert_eq!(
            convert(json!([{ "type": "audio", "mimeType": "audio/wav", "data": "AAAA" }])),
            Err(AUDIO)
        );
    }

    #[test]
    fn a_history_is_replayed_in_order() {
        let call = ToolCall::new("1".to_owned(), "read_file".to_owned(), r#"{"path":"/a"}"#.to_owned());
        let image = json!({ "type": "image", "mimeType": "image/png", "data": "AAAA" });
        let prompt = json!([{ "type": "text", "text": "look" }, image]);
        let history = [
            Message::User { content: content(&serde_json::from_value::<Vec<_>>(prompt).unwrap()).unwrap() },
            Message::Assistant { content: Some(String::new()), tool_calls: vec![call] },
            Message::Tool { tool_call_id: "1".to_owned(), content: "text of a".to_owned() },
            Message::Assistant { content: Some("seen".to_owned()), tool_calls: Vec::new() },
        ];
        let updates = json!(replay(&history));
        let kinds: Vec<_> =
            updates.as_array().unwrap().iter().map(|update| &update["sessionUpdate"]).collect();
        assert_eq!(kinds, ["user_message_chunk", "user_message_chunk", "tool_call", "agent_message_chunk"]);
        assert_eq!(updates[1]["content"], image);
        assert_eq!(updates[2]["status"], "completed");
        assert_eq!(updates[2]["content"][0]["content"]["text"], "text of a");
    }

    proptest! {
        #[test]
        fn texts_are_joined_by_newlines_and_not_changed(
            texts in prop::collection::vec(".{0,20}", 0..6),
        ) {
            let blocks: Vec<_> = texts.iter().map(|text| acp::ContentBlock::from(text.as_str())).collect();
            prop_assert_eq!(content(&blocks), Ok(Content::Text(texts.join("\n"))));
        }
    }
}
