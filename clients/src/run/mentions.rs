//! Files that a prompt names: `@path` attaches the file.
//!
//! The text stays as it was typed, and the files follow it: with their text where the agent takes that, else as links.
//! What is no file stays text, and the user is told.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::home::in_home;

/// A larger file is linked, and the agent reads it itself.
const EMBEDDED_BYTES_MAX: u64 = 256 << 10;
/// What a prompt may attach. Further names stay text.
const MAX_FILES: usize = 64;

/// The content blocks of a prompt, and what to tell the user about names that are no files.
pub(super) struct Prompt {
    pub(super) blocks: Value,
    pub(super) remarks: Vec<String>,
}

/// Paths start at `cwd`. `embeds`: the agent takes the text of files, `promptCapabilities.embeddedContext`.
pub(super) fn prompt(text: &str, cwd: &Path, embeds: bool) -> Prompt {
    let mut blocks = vec![json!({ "type": "text", "text": text })];
    let mut remarks = Vec::new();
    let mut attached: Vec<PathBuf> = Vec::new();
    for name in names(text) {
        match find(&name, cwd) {
            Ok(path) if attached.contains(&path) => {}
            Ok(_) if attached.len() >= MAX_FILES => {
                remarks.push(format!("@{name} is not attached: a prompt takes {MAX_FILES} files"));
            }
            Ok(path) => match block(&path, embeds) {
                Ok(block) => {
                    blocks.push(block);
                    attached.push(path);
                }
                Err(error) => remarks.push(format!("@{name} is not attached: {error}")),
            },
            Err(why) => remarks.push(format!("@{name} is sent as text: {why}")),
        }
    }
    Prompt { blocks: Value::Array(blocks), remarks }
}

/// The names behind each `@` that begins a word. One in quotes may have spaces, as may one with backslashes.
fn names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut rest, mut before) = (text, ' ');
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        if letter == '@' && (before.is_whitespace() || matches!(before, '(' | '[')) {
            let (name, length) = name(rest);
            rest = &rest[length..];
            names.extend(Some(name).filter(|name| !name.is_empty()));
        }
        before = letter;
    }
    names
}

/// The name at the beginning of the text, and how many bytes it takes.
fn name(text: &str) -> (String, usize) {
    if let Some(quoted) = text.strip_prefix('"')
        && let Some(end) = quoted.find('"')
    {
        return (quoted[..end].to_owned(), end + 2);
    }
    let mut name = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => name.extend(letters.next().map(|(_, next)| next)),
            letter if letter.is_whitespace() => return (name, at),
            letter => name.push(letter),
        }
    }
    (name, text.len())
}

/// The file or folder of this name. A sentence may go on right behind it: `see @a.rs, please`.
fn find(name: &str, cwd: &Path) -> Result<PathBuf, &'static str> {
    let shorter = name.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'', '"']);
    let mut why = "there is no such file";
    for name in [name, shorter] {
        let path = cwd.join(in_home(name));
        match fs::metadata(&path).map(|meta| meta.is_file() || meta.is_dir()) {
            Ok(true) => return path.canonicalize().map_err(|_| "it cannot be read"),
            // Reading a pipe or a device may never end.
            Ok(false) => why = "it is not a plain file",
            Err(_) => {}
        }
    }
    Err(why)
}

fn block(path: &Path, embeds: bool) -> io::Result<Value> {
    let uri = uri(path);
    let meta = fs::metadata(path)?;
    if meta.is_file() && embeds && meta.len() <= EMBEDDED_BYTES_MAX {
        let mut bytes = Vec::new();
        File::open(path)?.take(EMBEDDED_BYTES_MAX).read_to_end(&mut bytes)?;
        if let Ok(text) = String::from_utf8(bytes) {
            let resource = json!({ "uri": uri, "mimeType": "text/plain", "text": text });
            return Ok(json!({ "type": "resource", "resource": resource }));
        }
    }
    // An agent could not say later that the file is not readable.
    if meta.is_file() {
        File::open(path)?;
    }
    let name = path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy());
    let mut link = json!({ "type": "resource_link", "uri": uri, "name": name });
    if meta.is_file() {
        link["size"] = meta.len().into();
    }
    Ok(link)
}

/// A `file:` address. What is no plain letter of an address is written by its bytes.
fn uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                uri.push(char::from(*byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_begins_a_word() {
        let cases: [(&str, &[&str]); 7] = [
            ("explain @a.rs and @src/b.rs", &["a.rs", "src/b.rs"]),
            ("me@host, a@b", &[]),
            ("@\"two words.txt\" or @two\\ words.txt", &["two words.txt", "two words.txt"]),
            ("(@a) [@b] @", &["a)", "b]"]),
            ("@\"open", &["\"open"]),
            ("@é\n@ü", &["é", "ü"]),
            ("@a@b \\@c", &["a@b"]),
        ];
        for (text, expected) in cases {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn a_file_is_embedded_or_linked_and_what_is_none_stays_text() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::write(root.join("a b.txt"), "in it").unwrap();
        fs::write(root.join("binary"), [0xff, 0xfe]).unwrap();
        fs::write(root.join("large"), "x".repeat(EMBEDDED_BYTES_MAX as usize + 1)).unwrap();
        let text = "see @\"a b.txt\", @binary? @large (@.) @nothing @binary";
        let Prompt { blocks, remarks } = prompt(text, &root, true);
        assert_eq!(blocks[0], json!({ "type": "text", "text": text }));
        let at = format!("file://{}", root.display());
        assert_eq!(
            blocks[1]["resource"],
            json!({ "uri": format!("{at}/a%20b.txt"), "mimeType": "text/plain", "text": "in it" })
        );
        let link =
            json!({ "type": "resource_link", "uri": format!("{at}/binary"), "name": "binary", "size": 2 });
        assert_eq!(blocks[2], link);
        assert_eq!((&blocks[3]["name"], &blocks[4]["uri"]), (&json!("large"), &json!(at)));
        assert_eq!(blocks.as_array().unwrap().len(), 5);
        assert_eq!(remarks, ["@nothing is sent as text: there is no such file"]);
        let linked = prompt("@\"a b.txt\"", &root, false);
        assert_eq!(linked.blocks[1]["type"], "resource_link");
    }

    #[test]
    fn a_device_is_no_file_to_attach() {
        let Prompt { blocks, remarks } = prompt("@/dev/zero @/dev/null", Path::new("/"), true);
        assert_eq!(blocks.as_array().unwrap().len(), 1);
        assert_eq!(remarks[0], "@/dev/zero is sent as text: it is not a plain file");
    }
}
