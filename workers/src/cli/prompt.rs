//! A prompt as the CLIs take it: texts and, where they can see, images.
//!
//! What a prompt points to must lie in the session's folder: a link is an invitation to read, and no client sends an
//! agent to read elsewhere.

use std::path::{Component, Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prompt {
    pub(super) parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Text(String),
    /// Base64.
    Image {
        mime_type: String,
        data: String,
    },
}

impl Prompt {
    /// The words say what cannot be taken.
    pub(super) fn read(blocks: &[acp::ContentBlock], cwd: &Path, sees: bool) -> Result<Prompt, String> {
        let parts: Vec<Part> = blocks.iter().map(|block| part(block, cwd, sees)).collect::<Result<_, _>>()?;
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

fn part(block: &acp::ContentBlock, cwd: &Path, sees: bool) -> Result<Part, String> {
    let image = |mime_type: &str, data: &str| match sees && is_image(mime_type) {
        true => Ok(Part::Image { mime_type: mime_type.to_owned(), data: data.to_owned() }),
        false => Err("this CLI takes no such image".to_owned()),
    };
    match block {
        acp::ContentBlock::Text(text) => Ok(Part::Text(text.text.clone())),
        acp::ContentBlock::ResourceLink(link) => {
            if let Some(path) = file_of(&link.uri).filter(|path| !is_inside(path, cwd)) {
                return Err(format!("{} lies outside the session's folder", path.display()));
            }
            Ok(Part::Text(format!("[{}] {}", link.name, link.uri)))
        }
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

/// The file that a link means; `None` for what lies on other machines.
fn file_of(uri: &str) -> Option<PathBuf> {
    let path = match uri.strip_prefix("file://") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None if uri.contains("://") => return None,
        None => uri,
    };
    Some(PathBuf::from(decoded(path)))
}

fn decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match hex.filter(|_| byte == b'%').and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(meant) => {
                bytes.push(meant);
                rest = &tail[2..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// As the system sees them, links resolved; what is not there is judged by its folder.
fn is_inside(path: &Path, cwd: &Path) -> bool {
    let Ok(home) = cwd.canonicalize() else { return false };
    let path = cwd.join(path);
    let mut there = path.as_path();
    loop {
        if let Ok(real) = there.canonicalize() {
            let missing = path.strip_prefix(there).unwrap_or(Path::new(""));
            let climbs = missing.components().any(|part| !matches!(part, Component::Normal(_)));
            return real.starts_with(&home) && !climbs;
        }
        match there.parent() {
            Some(parent) => there = parent,
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(blocks: Value, cwd: &Path, sees: bool) -> Result<Prompt, String> {
        Prompt::read(&serde_json::from_value::<Vec<acp::ContentBlock>>(blocks).unwrap(), cwd, sees)
    }

    #[test]
    fn what_a_prompt_points_to_lies_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().join("work");
        std::fs::create_dir(&cwd).unwrap();
        std::fs::write(folder.path().join("secret"), "").unwrap();
        std::os::unix::fs::symlink(folder.path().join("secret"), cwd.join("link")).unwrap();
        std::fs::write(cwd.join("a b"), "").unwrap();
        let link =
            |uri: String| read(json!([{ "type": "resource_link", "name": "n", "uri": uri }]), &cwd, false);
        let here = cwd.display();
        for good in [
            format!("file://{here}/a%20b"),
            "a b".into(),
            format!("{here}/new/file"),
            "https://e.org/x".into(),
        ] {
            assert!(link(good.clone()).is_ok(), "{good}");
        }
        for bad in [
            "file:///etc/passwd".to_owned(),
            "../secret".into(),
            "link".into(),
            format!("file://{here}/%2e%2e/secret"),
            format!("file://{here}/none/../../secret"),
            format!("file://localhost{here}/../secret"),
        ] {
            assert!(link(bad.clone()).unwrap_err().contains("outside"), "{bad}");
        }
    }

    #[test]
    fn images_are_taken_by_those_who_see() {
        let image = || json!([{ "type": "image", "mimeType": "image/png", "data": "AAAA" }]);
        let blob = || {
            let file = json!({ "uri": "file:///x.png", "mimeType": "image/png", "blob": "AAAA" });
            json!([{ "type": "text", "text": "see" }, { "type": "resource", "resource": file }])
        };
        let cwd = Path::new("/");
        assert_eq!(read(image(), cwd, true).unwrap().parts.len(), 1);
        assert_eq!(read(blob(), cwd, true).unwrap().text(), "see");
        assert!(read(image(), cwd, false).is_err() && read(blob(), cwd, false).is_err());
        assert!(read(json!([{ "type": "text", "text": " \n" }]), cwd, true).is_err());
        let svg = json!([{ "type": "image", "mimeType": "image/svg+xml", "data": "AAAA" }]);
        assert!(read(svg, cwd, true).is_err());
    }
}
