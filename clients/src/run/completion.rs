//! Completes what is typed at a prompt: commands of the agent behind `/`, files behind `@`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use reedline::{Completer, Span, Suggestion};
use rpc::text::{steers_terminal, strip_control};
use serde_json::Value;

use crate::home::in_home;

/// What an agent or a folder may offer.
const MAX_OFFERS: usize = 500;
const DESCRIPTION_CHARS: usize = 60;

/// The commands of a session, which the agent may change at any time.
#[derive(Clone, Default)]
pub(super) struct Commands(Arc<Mutex<Vec<(String, String)>>>);

impl Commands {
    /// Takes the `availableCommands` of the agent.
    pub(super) fn learn(&self, commands: &Value) {
        let read = |command: &Value| {
            let name = command["name"].as_str()?.trim_start_matches('/');
            // What is no word cannot be typed.
            let is_word = !name.is_empty() && !name.chars().any(|c| c.is_whitespace() || steers_terminal(c));
            let description = command["description"].as_str().unwrap_or_default();
            let line = strip_control(description.lines().next().unwrap_or_default());
            is_word.then(|| (name.to_owned(), line.chars().take(DESCRIPTION_CHARS).collect()))
        };
        let commands = commands.as_array().into_iter().flatten().filter_map(read).take(MAX_OFFERS).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = commands;
    }

    /// Whether the agent offers a command of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        let commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().any(|(known, _)| known == name)
    }

    fn beginning_with(&self, typed: &str) -> Vec<(String, String)> {
        let commands = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().filter(|(name, _)| name.starts_with(typed)).cloned().collect()
    }
}

#[derive(Clone)]
pub(super) struct Completion {
    pub(super) commands: Commands,
    /// Where paths start.
    pub(super) cwd: PathBuf,
}

impl Completer for Completion {
    /// Where there is nothing to offer it is one suggestion that changes nothing: the editor takes a sole one at once,
    /// and would say NO RECORDS FOUND below the line if there were none.
    fn complete(&mut self, line: &str, pos: usize) -> Vec<Suggestion> {
        let mut offers = self.offers(line, pos);
        if offers.is_empty() {
            offers.push(suggestion(String::new(), pos, pos));
        }
        offers
    }
}

impl Completion {
    fn offers(&self, line: &str, pos: usize) -> Vec<Suggestion> {
        let Some(typed) = line.get(..pos) else { return Vec::new() };
        if let Some(command) = typed.strip_prefix('/')
            && !command.contains(char::is_whitespace)
        {
            let offers = self.commands.beginning_with(command).into_iter();
            let offer = |(name, description): (String, String)| Suggestion {
                description: Some(description).filter(|text| !text.is_empty()),
                append_whitespace: true,
                ..suggestion(format!("/{name}"), 0, pos)
            };
            return offers.map(offer).collect();
        }
        let Some(start) = word_start(typed) else { return Vec::new() };
        let Some(path) = typed[start..].strip_prefix('@') else { return Vec::new() };
        let offer = |(path, is_folder): (String, bool)| Suggestion {
            append_whitespace: !is_folder,
            ..suggestion(format!("@{path}"), start, pos)
        };
        paths(path, &self.cwd).into_iter().map(offer).collect()
    }
}

fn suggestion(value: String, start: usize, end: usize) -> Suggestion {
    Suggestion { value, span: Span::new(start, end), ..Suggestion::default() }
}

/// Where the last word begins. A space behind a backslash does not end a word.
fn word_start(typed: &str) -> Option<usize> {
    let mut start = 0;
    let mut escaped = false;
    for (at, letter) in typed.char_indices() {
        if letter.is_whitespace() && !escaped {
            start = at + letter.len_utf8();
        }
        escaped = letter == '\\' && !escaped;
    }
    (start < typed.len()).then_some(start)
}

/// The files and folders whose path begins with this one, and whether each is a folder.
fn paths(typed: &str, cwd: &Path) -> Vec<(String, bool)> {
    let (folder, name) = typed.rfind('/').map_or(("", typed), |at| typed.split_at(at + 1));
    let (plain, name) = (unescaped(folder), unescaped(name));
    let entries = fs::read_dir(cwd.join(in_home(&plain))).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let its = entry.file_name().into_string().ok()?;
        let is_meant = its.starts_with(&name) && (!its.starts_with('.') || name.starts_with('.'));
        if !is_meant || its.chars().any(steers_terminal) {
            return None;
        }
        let is_folder = fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir());
        let end = if is_folder { "/" } else { "" };
        Some((format!("{folder}{}{end}", its.replace('\\', "\\\\").replace(' ', "\\ ")), is_folder))
    });
    let mut found: Vec<_> = found.take(MAX_OFFERS).collect();
    found.sort();
    found
}

fn unescaped(path: &str) -> String {
    let mut plain = String::new();
    let mut letters = path.chars();
    while let Some(letter) = letters.next() {
        plain.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(completion: &Completion, line: &str) -> Vec<String> {
        completion.offers(line, line.len()).into_iter().map(|offer| offer.value).collect()
    }

    #[test]
    fn commands_are_offered_behind_a_slash_that_begins_the_prompt() {
        let commands = Commands::default();
        commands.learn(&json!([
            { "name": "plan", "description": "makes\u{1b} a plan\nand more" },
            { "name": "/play" }, { "name": "two words" }, { "name": "x\u{1b}" }, 7,
        ]));
        let completion = Completion { commands, cwd: "/".into() };
        assert_eq!(values(&completion, "/pla"), ["/plan", "/play"]);
        let first = &completion.offers("/plan", 5)[0];
        assert_eq!(first.description.as_deref(), Some("makes a plan"));
        assert_eq!((first.span.start, first.span.end), (0, 5));
        for nothing in ["see /pla", "/plan ", "/q", "plan", ""] {
            assert_eq!(values(&completion, nothing), [""; 0], "{nothing}");
        }
        completion.commands.learn(&json!(null));
        assert_eq!(values(&completion, "/pla"), [""; 0]);
    }

    #[test]
    fn paths_are_offered_behind_an_at_that_begins_a_word() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("src/two words")).unwrap();
        for name in ["README", "src/main.rs", "src/two words/it", ".hidden", "re\u{1b}[2J"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let completion = Completion { commands: Commands::default(), cwd: folder.path().into() };
        assert_eq!(values(&completion, "see @"), ["@README", "@src/"]);
        assert_eq!(values(&completion, "see @src/"), ["@src/main.rs", "@src/two\\ words/"]);
        assert_eq!(values(&completion, "@src/two\\ words/"), ["@src/two\\ words/it"]);
        assert_eq!(values(&completion, "@.h"), ["@.hidden"]);
        assert_eq!(completion.offers("see @R", 6)[0].span, Span::new(4, 6));
        for nothing in ["see @x", "a@R", "@R x", "@nowhere/"] {
            assert_eq!(values(&completion, nothing), [""; 0], "{nothing}");
        }
        assert_eq!(completion.offers("é", 1).len(), 0, "not within a letter");
    }
}
