//! The tools that a model may call, and the operations that its calls mean.
//!
//! The client performs each operation, so only the tools that it supports are declared. No I/O.

use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::record::Mode;

pub(super) const READ: &str = "read_file";
pub(super) const WRITE: &str = "write_file";
pub(super) const EDIT: &str = "edit_file";
pub(super) const RUN: &str = "run_command";

/// What the client can do for the model.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct ClientTools {
    pub(super) reads: bool,
    pub(super) writes: bool,
    pub(super) runs: bool,
}

impl ClientTools {
    pub(super) fn new(client: &acp::ClientCapabilities, mode: Mode) -> ClientTools {
        let may_change = mode != Mode::Read;
        ClientTools {
            reads: client.fs.read_text_file,
            writes: client.fs.write_text_file && may_change,
            runs: client.terminal && may_change,
        }
    }

    fn has(self, name: &str) -> bool {
        match name {
            READ => self.reads,
            WRITE => self.writes,
            EDIT => self.reads && self.writes,
            RUN => self.runs,
            _ => false,
        }
    }
}

/// What a tool call asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Read { path: PathBuf, line: Option<u32>, limit: Option<u32> },
    Write { path: PathBuf, content: String },
    Edit { path: PathBuf, old_text: String, new_text: String },
    Run { command: String },
}

impl Operation {
    /// The error is for the model, so that it can correct the call.
    pub(super) fn parse(
        name: &str,
        arguments: &str,
        client_tools: ClientTools,
        cwd: &Path,
    ) -> Result<Operation, String> {
        if !client_tools.has(name) {
            return Err(format!("there is no tool called {name}"));
        }
        Ok(match name {
            READ => {
                let ReadFile { path, line, limit } = parse(arguments)?;
                Operation::Read { path: cwd.join(path), line, limit }
            }
            WRITE => {
                let WriteFile { path, content } = parse(arguments)?;
                Operation::Write { path: cwd.join(path), content }
            }
            EDIT => {
                let EditFile { path, old_text, new_text } = parse(arguments)?;
                Operation::Edit { path: cwd.join(path), old_text, new_text }
            }
            _ => Operation::Run { command: parse::<RunCommand>(arguments)?.command },
        })
    }

    pub(super) fn tool(&self) -> &'static str {
        match self {
            Operation::Read { .. } => READ,
            Operation::Write { .. } => WRITE,
            Operation::Edit { .. } => EDIT,
            Operation::Run { .. } => RUN,
        }
    }

    pub(super) fn changes_something(&self) -> bool {
        !matches!(self, Operation::Read { .. })
    }

    pub(super) fn title(&self) -> String {
        match self {
            Operation::Read { path, .. } => format!("Read {}", path.display()),
            Operation::Write { path, .. } => format!("Write {}", path.display()),
            Operation::Edit { path, .. } => format!("Edit {}", path.display()),
            Operation::Run { command } => format!("`{command}`"),
        }
    }

    pub(super) fn kind(&self) -> acp::ToolKind {
        match self {
            Operation::Read { .. } => acp::ToolKind::Read,
            Operation::Write { .. } | Operation::Edit { .. } => acp::ToolKind::Edit,
            Operation::Run { .. } => acp::ToolKind::Execute,
        }
    }

    pub(super) fn locations(&self) -> Vec<acp::ToolCallLocation> {
        match self {
            Operation::Read { path, line, .. } => vec![acp::ToolCallLocation::new(path).line(*line)],
            Operation::Write { path, .. } | Operation::Edit { path, .. } => {
                vec![acp::ToolCallLocation::new(path)]
            }
            Operation::Run { .. } => Vec::new(),
        }
    }
}

/// Replaces the only occurrence of `old_text`. The error is for the model.
pub(super) fn replace_once(text: &str, old_text: &str, new_text: &str) -> Result<String, String> {
    if old_text.is_empty() {
        return Err("old_text is empty".to_owned());
    }
    match text.matches(old_text).count() {
        0 => Err("old_text does not stand in the file; read it again".to_owned()),
        1 => Ok(text.replacen(old_text, new_text, 1)),
        count => Err(format!("old_text stands in the file {count} times; give more of what is around it")),
    }
}

/// The tools as a request declares them.
pub(super) fn declarations(client_tools: ClientTools, cwd: &Path, directories: &[PathBuf]) -> Vec<Value> {
    let mut where_to = format!("absolute, or relative to {}", cwd.display());
    if !directories.is_empty() {
        let directories: Vec<_> = directories.iter().map(|path| path.display().to_string()).collect();
        where_to.push_str(&format!("; the workspace also has {}", directories.join(", ")));
    }
    let path = json!({ "type": "string", "description": where_to });
    let text = |what: &str| json!({ "type": "string", "description": what });
    let number = |what: &str| json!({ "type": "integer", "description": what });
    let all = [
        (
            READ,
            "Reads a text file, with changes that the user has not saved yet.",
            json!({ "path": path, "line": number("first line, from 1"), "limit": number("most lines") }),
            &["path"][..],
        ),
        (
            WRITE,
            "Writes a text file as a whole, and creates it if it is not there.",
            json!({ "path": path, "content": text("all of the file") }),
            &["path", "content"],
        ),
        (
            EDIT,
            "Replaces one place of a text file.",
            json!({
                "path": path,
                "old_text": text("as it stands in the file, exactly once"),
                "new_text": text("what is to stand there"),
            }),
            &["path", "old_text", "new_text"],
        ),
        (
            RUN,
            "Runs a shell command in the user's terminal and gives its output.",
            json!({ "command": text("as it would be typed") }),
            &["command"],
        ),
    ];
    let declaration = |(name, description, properties, required): (&str, &str, Value, &[&str])| {
        let parameters = json!({ "type": "object", "properties": properties, "required": required });
        let function = json!({ "name": name, "description": description, "parameters": parameters });
        json!({ "type": "function", "function": function })
    };
    all.into_iter().filter(|(name, ..)| client_tools.has(name)).map(declaration).collect()
}

#[derive(Deserialize)]
struct ReadFile {
    path: PathBuf,
    line: Option<u32>,
    limit: Option<u32>,
}

#[derive(Deserialize)]
struct WriteFile {
    path: PathBuf,
    content: String,
}

#[derive(Deserialize)]
struct EditFile {
    path: PathBuf,
    old_text: String,
    new_text: String,
}

#[derive(Deserialize)]
struct RunCommand {
    command: String,
}

fn parse<T: DeserializeOwned>(arguments: &str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|error| format!("the arguments cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ClientTools = ClientTools { reads: true, writes: true, runs: true };

    fn names(client_tools: ClientTools) -> Vec<String> {
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        declarations(client_tools, Path::new("/w"), &[]).iter().map(name).collect()
    }

    fn read(name: &str, arguments: &str) -> Result<Operation, String> {
        Operation::parse(name, arguments, ALL, Path::new("/w"))
    }

    #[test]
    fn only_tools_that_the_client_supports_are_declared_and_accepted() {
        assert_eq!(names(ALL), [READ, WRITE, EDIT, RUN]);
        assert_eq!(
            names(ClientTools { writes: true, ..ClientTools::default() }),
            [WRITE],
            "an edit needs to read"
        );
        assert!(names(ClientTools::default()).is_empty());
        assert!(
            Operation::parse(RUN, r#"{"command":"ls"}"#, ClientTools::default(), Path::new("/w")).is_err()
        );
        assert!(read("rm", "{}").is_err());
    }

    #[test]
    fn all_folders_of_the_workspace_are_named() {
        let described = |directories: &[PathBuf]| {
            let all = declarations(ALL, Path::new("/w"), directories);
            all[0]["function"]["parameters"]["properties"]["path"]["description"].clone()
        };
        assert_eq!(described(&[]), "absolute, or relative to /w");
        let both = [PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(described(&both), "absolute, or relative to /w; the workspace also has /a, /b");
    }

    #[test]
    fn a_read_only_session_has_no_tool_that_changes_files() {
        let can = json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true });
        let client: acp::ClientCapabilities = serde_json::from_value(can).unwrap();
        assert_eq!(names(ClientTools::new(&client, Mode::Read)), [READ]);
        assert_eq!(ClientTools::new(&client, Mode::Ask), ALL);
        assert_eq!(ClientTools::new(&acp::ClientCapabilities::default(), Mode::Auto), ClientTools::default());
    }

    #[test]
    fn paths_are_made_absolute_and_bad_arguments_are_an_error() {
        let operation = read(READ, r#"{"path":"a/b","line":3}"#).unwrap();
        assert_eq!(operation, Operation::Read { path: "/w/a/b".into(), line: Some(3), limit: None });
        assert_eq!(read(READ, r#"{"path":"/x"}"#).unwrap().locations()[0].path, Path::new("/x"));
        for bad in ["", "{", "{}", r#"{"path":7}"#] {
            assert!(read(READ, bad).unwrap_err().contains("arguments"), "{bad}");
        }
    }

    #[test]
    fn an_edit_replaces_one_occurrence() {
        assert_eq!(replace_once("a b c", "b", "x"), Ok("a x c".to_owned()));
        assert!(replace_once("a b b", "b", "x").unwrap_err().contains("2 times"));
        assert!(replace_once("a", "b", "x").is_err() && replace_once("a", "", "x").is_err());
    }
}
