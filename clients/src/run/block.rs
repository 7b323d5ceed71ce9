//! The content blocks of ACP as text: what an agent says, and what others have said to it.

use std::borrow::Cow;

use serde_json::Value;

/// A content block as text.
pub(super) struct Block<'a> {
    pub(super) text: Cow<'a, str>,
    /// It stands on lines of its own, and does not go on with the text before it.
    pub(super) is_apart: bool,
}

impl<'a> Block<'a> {
    /// A kind that has no text, such as an image, is named with its size. What is not a block is empty.
    pub(super) fn of(content: &'a Value) -> Block<'a> {
        let text = |key: &str| Cow::from(content[key].as_str().unwrap_or_default());
        let apart = |text: Cow<'a, str>| Block { is_apart: !text.is_empty(), text };
        match content["type"].as_str() {
            Some("text") => Block { text: text("text"), is_apart: false },
            Some("resource_link") => apart(text("uri")),
            Some("resource") => apart(match content["resource"]["text"].as_str() {
                Some(text) => text.trim_end_matches('\n').into(),
                None => named("resource", &content["resource"], "blob"),
            }),
            Some(kind @ ("image" | "audio")) => apart(named(kind, content, "data")),
            Some(kind) => apart(format!("[{kind}]").into()),
            None => Block { text: "".into(), is_apart: false },
        }
    }

    /// Puts it behind this text.
    pub(super) fn append_to(&self, said: &mut String) {
        if self.is_apart && !said.is_empty() && !said.ends_with('\n') {
            said.push('\n');
        }
        said.push_str(&self.text);
        if self.is_apart {
            said.push('\n');
        }
    }
}

/// `[image image/png, 12 KB]`. `data`: where its bytes are, in base64.
fn named<'a>(kind: &str, content: &Value, data: &str) -> Cow<'a, str> {
    let mime_type = content["mimeType"].as_str().map_or(String::new(), |name| format!(" {name}"));
    let more = match (content[data].as_str(), content["uri"].as_str()) {
        (Some(data), _) if !data.is_empty() => {
            format!(", {}", size_words(data.trim_end_matches('=').len() * 3 / 4))
        }
        (_, Some(uri)) => format!(", {uri}"),
        _ => String::new(),
    };
    format!("[{kind}{mime_type}{more}]").replace(['\n', '\r'], " ").into()
}

fn size_words(bytes: usize) -> String {
    match bytes {
        1 => "1 byte".to_owned(),
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{} KB", bytes.div_ceil(1_000)),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_no_text_is_named_with_its_size() {
        let image = |data: &str| json!({ "type": "image", "mimeType": "image/png", "data": data });
        let cases = [
            (json!({ "type": "text", "text": "a\n" }), "a\n", false),
            (image("QQ=="), "[image image/png, 1 byte]", true),
            (image(&"A".repeat(15_998)), "[image image/png, 12 KB]", true),
            (image(&"A".repeat(2_000_000)), "[image image/png, 1.5 MB]", true),
            (json!({ "type": "image", "data": "", "uri": "file:///a.png" }), "[image, file:///a.png]", true),
            (json!({ "type": "audio", "mimeType": "audio/\nwav" }), "[audio audio/ wav]", true),
            (json!({ "type": "resource_link", "uri": "file:///b" }), "file:///b", true),
            (json!({ "type": "resource", "resource": { "text": "c\n" } }), "c", true),
            (json!({ "type": "resource", "resource": { "blob": "AAAA" } }), "[resource, 3 bytes]", true),
            (json!({ "type": "new" }), "[new]", true),
            (json!({}), "", false),
            (json!({ "type": "text" }), "", false),
            (json!(7), "", false),
        ];
        for (content, text, is_apart) in cases {
            let block = Block::of(&content);
            assert_eq!((&*block.text, block.is_apart), (text, is_apart), "{content}");
        }
    }

    #[test]
    fn a_link_does_not_touch_the_text_around_it() {
        let link = json!({ "type": "resource_link", "uri": "file:///b" });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let mut said = String::new();
        for content in [text("see"), link.clone(), link, text("and")] {
            Block::of(&content).append_to(&mut said);
        }
        assert_eq!(said, "see\nfile:///b\nfile:///b\nand");
    }
}
