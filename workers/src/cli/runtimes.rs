//! The table of runtimes: what is known of each agent CLI, as data.
//!
//! A row says how a CLI is found, asked and run; nothing in the code knows one by name. Rows of the user's own
//! (`runtimes.json` in the configuration folder, or `$STDIO_BUS_RUNTIMES`) stand before the built-in ones and
//! replace those of the same id.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::unistd::{AccessFlags, access};
use serde::Deserialize;

const BUILT_IN: &str = include_str!("runtimes.json");

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    pub id: String,
    pub name: String,
    /// Names to look for, the best first.
    pub binaries: Vec<String>,
    /// Arguments that make it print its version. Never empty: bare, some CLIs download an installer.
    #[serde(default = "usual_version")]
    pub version: Vec<String>,
    /// Words in the answer to `version` of something that has the name and is not the CLI.
    pub stub: Option<String>,
    /// Words that this CLI says to `version` or `--help`, where other programs have the same name.
    pub known_by: Option<String>,
    /// Nobody has seen it run with these arguments.
    #[serde(default)]
    pub unverified: bool,
    pub install: Option<String>,
    /// What a person does to log in.
    pub log_in: Option<String>,
    pub models: Option<ModelsProbe>,
    /// Arguments that tell by the exit code whether somebody is logged in.
    pub login: Option<Vec<String>>,
    /// How much it may think before it answers, the least first.
    #[serde(default)]
    pub efforts: Vec<String>,
    /// How it speaks ACP itself.
    pub acp: Option<Acp>,
    /// How its processes are run.
    pub turn: Option<Turn>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct ModelsProbe {
    pub args: Vec<String>,
    pub shape: ModelsShape,
    #[serde(default)]
    pub stdin: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum ModelsShape {
    /// A name a line.
    Lines,
    /// One object with `models`, of which some are hidden.
    Codex,
    /// The answer to the control request `initialize`.
    Claude,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Acp {
    /// Another program than the one that was found.
    pub command: Option<String>,
    pub args: Vec<String>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    pub format: FormatName,
    pub args: Vec<Arg>,
    #[serde(default)]
    pub prompt: Delivery,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What it may do without asking, the usual one first; each stands in for `{mode}`.
    #[serde(default)]
    pub modes: Vec<Mode>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum FormatName {
    ClaudeStream,
    CodexExec,
    /// JSON-RPC in both directions, so only as a conversation.
    CodexAppServer,
    GeminiStream,
    Opencode,
    Kimi,
    Cursor,
    Plain,
}

/// A word, or several that stand there only if what they name is known.
#[derive(Deserialize, Clone, Debug)]
#[serde(untagged)]
pub enum Arg {
    Word(String),
    Group(Vec<String>),
}

#[derive(Deserialize, Clone, Copy, Default, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Delivery {
    #[default]
    Stdin,
    /// In place of `{prompt}`, for a CLI that reads it nowhere else.
    Argument,
    /// As a message of the CLI's own protocol, to a process that is kept open for the session: permissions are asked
    /// and given there, and the next prompt follows.
    Conversation,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    pub id: String,
    pub name: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// What it means in the CLI's own protocol, where it is not told by arguments.
    #[serde(default)]
    pub set: serde_json::Map<String, serde_json::Value>,
}

/// All rows: the user's, then the built-in ones whose ids they do not have.
pub fn all() -> Result<Vec<Runtime>, String> {
    let mut rows = match users_file() {
        Some(path) => read(&path)?,
        None => Vec::new(),
    };
    let built_in: Vec<Runtime> = serde_json::from_str(BUILT_IN).expect("the built-in table is good");
    for row in built_in {
        if !rows.iter().any(|users| users.id == row.id) {
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The row of this id, or what to say.
pub fn named(id: &str) -> Result<Runtime, String> {
    let mut rows = all()?;
    match rows.iter().position(|row| row.id == id) {
        Some(at) => Ok(rows.swap_remove(at)),
        None => {
            let known: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            Err(format!("no runtime is called {id}; there are {}", known.join(", ")))
        }
    }
}

impl Runtime {
    /// The first of its programs that is there.
    pub fn program(&self) -> Option<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        self.binaries.iter().find_map(|name| find(name, env::split_paths(&path)))
    }

    /// The command with which a bus or a person runs it: itself where it speaks ACP, else the adapter.
    pub fn command(&self) -> (String, Vec<String>) {
        let Some(acp) = &self.acp else {
            let adapter = ["agent", "cli", "--runtime", &self.id].map(str::to_owned);
            return ("stdio-bus".to_owned(), adapter.to_vec());
        };
        let own = || {
            let found = self.program()?;
            Some(found.file_name()?.to_string_lossy().into_owned())
        };
        let program = acp.command.clone().or_else(own).unwrap_or_else(|| self.binaries[0].clone());
        (program, acp.args.clone())
    }

    /// What to say when it is not there.
    pub fn missing(&self) -> String {
        let names = self.binaries.join(" or ");
        match &self.install {
            Some(install) => format!("{} is not installed: no {names} in PATH; try: {install}", self.name),
            None => format!("{} is not installed: no {names} in PATH", self.name),
        }
    }
}

fn find(name: &str, folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file()) && access(path, AccessFlags::X_OK).is_ok()
    };
    let absolute = folders.filter(|folder| folder.is_absolute());
    absolute.map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn users_file() -> Option<PathBuf> {
    if let Some(named) = env::var_os("STDIO_BUS_RUNTIMES").filter(|path| !path.is_empty()) {
        return Some(named.into());
    }
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(base.join("stdio-bus/runtimes.json")).filter(|path| path.exists())
}

fn read(path: &Path) -> Result<Vec<Runtime>, String> {
    let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error: io::Error| fault(&error))?;
    let rows: Vec<Runtime> = serde_json::from_str(&text).map_err(|error| fault(&error))?;
    match rows.iter().find_map(wrong) {
        Some(why) => Err(fault(&why)),
        None => Ok(rows),
    }
}

fn wrong(row: &Runtime) -> Option<String> {
    let words: Vec<&String> =
        row.turn.iter().flat_map(|turn| turn.args.iter()).flat_map(Arg::words).collect();
    let wants_prompt = row.turn.as_ref().is_some_and(|turn| turn.prompt == Delivery::Argument);
    let has_prompt = words.iter().any(|word| word.contains("{prompt}"));
    let id_is_good = |id: &str| {
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !id_is_good(&row.id) {
        Some(format!("{:?} is no id: letters, digits, '.', '_' and '-' make one", row.id))
    } else if row.version.is_empty() {
        Some(format!("{}: a command is never run without arguments, so version cannot be empty", row.id))
    } else if row.binaries.is_empty() || row.binaries.iter().any(|name| name.contains('/') || name.is_empty())
    {
        Some(format!("{}: binaries are names, at least one", row.id))
    } else if row.acp.is_none() && row.turn.is_none() {
        Some(format!("{}: neither acp nor turn says how it is run", row.id))
    } else if row.turn.as_ref().is_some_and(Turn::is_mute) {
        Some(format!("{}: no conversation is held in this format, or nothing else is", row.id))
    } else if wants_prompt != has_prompt {
        Some(format!("{}: {{prompt}} stands in args just where prompt is \"argument\"", row.id))
    } else {
        None
    }
}

impl Turn {
    /// Whether a conversation is wanted that the format does not have, or the other way round.
    fn is_mute(&self) -> bool {
        match self.format {
            FormatName::ClaudeStream => false,
            FormatName::CodexAppServer => self.prompt != Delivery::Conversation,
            _ => self.prompt == Delivery::Conversation,
        }
    }
}

impl Arg {
    pub(super) fn words(&self) -> &[String] {
        match self {
            Arg::Word(word) => std::slice::from_ref(word),
            Arg::Group(words) => words,
        }
    }
}

fn usual_version() -> Vec<String> {
    vec!["--version".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_rows_are_good_and_each_is_there_once() {
        let rows: Vec<Runtime> = serde_json::from_str(BUILT_IN).unwrap();
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(wrong(row), None);
            assert!(rows[..at].iter().all(|other| other.id != row.id), "{} is there twice", row.id);
        }
        for id in ["claude", "codex", "gemini", "opencode", "hermes", "kimi", "cursor-agent", "qwen"] {
            assert!(rows.iter().any(|row| row.id == id), "{id}");
        }
    }

    #[test]
    fn a_row_of_the_users_is_refused_with_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtimes.json");
        let good = r#"{"id":"my","name":"My","binaries":["my"],"acp":{"args":["acp"]}}"#;
        for (row, reason) in [
            (good.replace("\"my\",\"name\"", "\"m y\",\"name\""), "is no id"),
            (good.replace("[\"my\"]", "[\"../my\"]"), "binaries are names"),
            (good.replace("\"acp\":{\"args\":[\"acp\"]}", "\"version\":[]"), "without arguments"),
            (good.replace("\"acp\":{\"args\":[\"acp\"]}", "\"efforts\":[]"), "how it is run"),
            (good.replace("\"acp\":", "\"speaks\":"), "speaks"),
            (
                good.replace("}}", r#"},"turn":{"format":"plain","prompt":"argument","args":["-p"]}}"#),
                "{prompt}",
            ),
        ] {
            fs::write(&path, format!("[{row}]")).unwrap();
            let said = read(&path).unwrap_err();
            assert!(said.contains(reason), "{row}: {said}");
        }
        fs::write(&path, format!("[{good}]")).unwrap();
        assert_eq!(read(&path).unwrap()[0].id, "my");
    }

    #[test]
    fn only_an_executable_file_in_an_absolute_folder_is_a_program() {
        let folder = tempfile::tempdir().unwrap();
        let place = || [PathBuf::from("."), folder.path().to_owned()].into_iter();
        fs::create_dir(folder.path().join("one")).unwrap();
        fs::write(folder.path().join("two"), "").unwrap();
        assert_eq!(find("one", place()), None);
        assert_eq!(find("two", place()), None);
        std::os::unix::fs::symlink("/bin/sh", folder.path().join("three")).unwrap();
        assert_eq!(find("three", place()), Some(folder.path().join("three")));
    }
}
