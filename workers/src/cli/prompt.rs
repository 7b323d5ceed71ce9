//! Converts an ACP prompt into the texts and images that a CLI takes.
//!
//! A CLI may read whatever a prompt links to, so a link to a file outside the session's folders is refused.

use std::path::{Component, Path, PathBuf};

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
    pub(super) fn read(
        blocks: &[acp::ContentBlock],
        folders: &[&Path],
        takes_images: bool,
    ) -> Result<Prompt, String> {
        let parts: Vec<Part> =
            blocks.iter().map(|block| part(block, folders, takes_images)).collect::<Result<_, _>>()?;
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

fn part(block: &acp::ContentBlock, folders: &[&Path], takes_images: bool) -> Result<Part, String> {
    let image = |mime_type: &str, data: &str| {
        if !takes_images || !is_image(mime_type) {
            return Err("this CLI takes no such image".to_owned());
        }
        Ok(Part::Image { mime_type: mime_type.to_owned(), data: data.to_owned() })
    };
    match block {
        acp::ContentBlock::Text(text) => Ok(Part::Text(text.text.clone())),
        acp::ContentBlock::ResourceLink(link) => {
            if let Some(path) = local_file(&link.uri)
                && !is_inside(&path, folders)
            {
                return Err(format!("{} lies outside the session's folders", path.display()));
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

/// The local file of a link, or `None` for a URL with another scheme.
fn local_file(uri: &str) -> Option<PathBuf> {
    let path = match uri.strip_prefix("file://") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None if uri.contains("://") => return None,
        None => uri,
    };
    Some(PathBuf::from(percent_decoded(path)))
}

fn percent_decoded(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let decoded = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        if byte == b'%'
            && let Some(decoded) = decoded
        {
            bytes.push(decoded);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Compares paths with symbolic links resolved. A path that does not exist is judged by its nearest existing parent.
/// The first folder is that of the session, to which paths are relative.
fn is_inside(path: &Path, folders: &[&Path]) -> bool {
    let Some(cwd) = folders.first() else { return false };
    let known: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let path = cwd.join(path);
    for existing in path.ancestors() {
        if let Ok(real) = existing.canonicalize() {
            let missing = path.strip_prefix(existing).unwrap_or(Path::new(""));
            let has_dots = missing.components().any(|part| !matches!(part, Component::Normal(_)));
            return known.iter().any(|folder| real.starts_with(folder)) && !has_dots;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(blocks: Value, cwd: &Path, takes_images: bool) -> Result<Prompt, String> {
        let blocks = serde_json::from_value::<Vec<acp::ContentBlock>>(blocks).unwrap();
        Prompt::read(&blocks, &[cwd], takes_images)
    }

    #[test]
    fn links_outside_the_folder_are_refused() {
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
        let secret = acp::ResourceLink::new("n", format!("file://{}/secret", folder.path().display()));
        let blocks = [acp::ContentBlock::ResourceLink(secret)];
        assert!(Prompt::read(&blocks, &[&cwd, folder.path()], false).is_ok());
    }

    #[test]
    fn images_are_taken_only_where_the_cli_takes_them() {
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
