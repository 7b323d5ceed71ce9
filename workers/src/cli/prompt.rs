//! Converts an ACP prompt into the texts and images that a CLI takes.
//!
//! A link is a text for the CLI, wherever it leads: the CLI's own permissions decide whether it reads a file outside
//! the session's folders. Editors link to the current file without being asked, and that must not refuse a prompt.

use agent_client_protocol_schema::v1 as acp;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prompt {
    pub(super) parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    Image {
        mime_type: String,
        /// Base64.
        data: String,
    },
}

impl Prompt {
    /// Fails with the reason to report to the client.
    pub(super) fn read(blocks: &[acp::ContentBlock], takes_images: bool) -> Result<Prompt, String> {
        let parts: Vec<Part> =
            blocks.iter().map(|block| part(block, takes_images)).collect::<Result<_, _>>()?;
        let is_empty = |part: &Part| matches!(part, Part::Text(text) if text.trim().is_empty());
        if parts.iter().all(is_empty) {
            return Err("the prompt is empty".to_owned());
        }
        Ok(Prompt { parts })
    }

    pub(super) fn text(&self) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Image { .. } => None,
        };
        self.parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
    }
}

fn part(block: &acp::ContentBlock, takes_images: bool) -> Result<Part, String> {
    let image = |mime_type: &str, data: &str| {
        if !takes_images || !is_image(mime_type) {
            return Err("this CLI takes no such image".to_owned());
        }
        Ok(Part::Image { mime_type: mime_type.to_owned(), data: data.to_owned() })
    };
    match block {
        acp::ContentBlock::Text(text) => Ok(Part::Text(text.text.clone())),
        acp::ContentBlock::ResourceLink(link) => Ok(Part::Text(format!("[{}] {}", link.name, link.uri))),
        acp::ContentBlock::Resource(resource) => match &resource.resource {
            acp::EmbeddedResourceResource::TextResourceContents(file) => {
                Ok(Part::Text(format!("[{}]\n{}", file.uri, file.text)))
            }
            acp::EmbeddedResourceResource::BlobResourceContents(file) => {
                image(file.mime_type.as_deref().unwrap_or_default(), &file.blob)
            }
            _ => Err("only texts and images can be embedded".to_owned()),
        },
        acp::ContentBlock::Image(picture) => image(&picture.mime_type, &picture.data),
        _ => Err("this kind of content cannot be given to a CLI".to_owned()),
    }
}

fn is_image(mime_type: &str) -> bool {
    matches!(mime_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(blocks: Value, takes_images: bool) -> Result<Prompt, String> {
        let blocks = serde_json::from_value::<Vec<acp::ContentBlock>>(blocks).unwrap();
        Prompt::read(&blocks, takes_images)
    }

    #[test]
    fn a_link_is_a_text_wherever_it_leads() {
        for uri in ["file:///etc/hosts", "../secret", "a b", "https://e.org/x"] {
            let blocks = json!([
                { "type": "text", "text": "see" },
                { "type": "resource_link", "name": "n", "uri": uri },
            ]);
            assert_eq!(read(blocks, false).unwrap().text(), format!("see\n[n] {uri}"));
        }
    }

    #[test]
    fn images_are_taken_only_where_the_cli_takes_them() {
        let image = || json!([{ "type": "image", "mimeType": "image/png", "data": "AAAA" }]);
        let blob = || {
            let file = json!({ "uri": "file:///x.png", "mimeType": "image/png", "blob": "AAAA" });
            json!([{ "type": "text", "text": "see" }, { "type": "resource", "resource": file }])
        };
        assert_eq!(read(image(), true).unwrap().parts.len(), 1);
        assert_eq!(read(blob(), true).unwrap().text(), "see");
        assert!(read(image(), false).is_err() && read(blob(), false).is_err());
        assert!(read(json!([{ "type": "text", "text": " \n" }]), true).is_err());
        let svg = json!([{ "type": "image", "mimeType": "image/svg+xml", "data": "AAAA" }]);
        assert!(read(svg, true).is_err());
    }
}
