//! The table of agent CLIs, as data.
//!
//! A row says how a CLI is found, queried and run, so that no code depends on a CLI's name. The user's own rows
//! (`runtimes.json` in the configuration folder, or `$STDIO_BUS_RUNTIMES`) come before the built-in ones and replace
//! those with the same id.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};

const BUILT_IN: &str = include_str!("runtimes.json");

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    pub id: String,
    pub name: String,
    /// The names of its program, in order of preference.
    pub binaries: Vec<String>,
    /// Arguments that print the version. Never empty, because without arguments some CLIs download an installer.
    #[serde(default = "default_version")]
    pub version: Vec<String>,
    /// Text in the version output of a program that only replaces the CLI.
    pub stub: Option<String>,
    /// Text in the version or help output that tells the CLI from other programs of the same name.
    pub known_by: Option<String>,
    /// Whether the arguments were never tried with a real CLI.
    #[serde(default)]
    pub unverified: bool,
    /// False for a second way to run a CLI that another row already finds.
    #[serde(default = "always")]
    pub detect: bool,
    pub install: Option<String>,
    /// How a user logs in.
    pub log_in: Option<String>,
    /// The arguments with which a user logs in at a terminal.
    pub log_in_args: Option<Vec<String>>,
    /// The ways to log in, where there are several. The arguments above are the usual one.
    #[serde(default)]
    pub logins: Vec<Login>,
    /// Models to choose from where the CLI cannot list them.
    #[serde(default)]
    pub known_models: Vec<KnownModel>,
    pub models: Option<ModelsProbe>,
    /// Arguments whose exit code tells whether the user is logged in.
    pub login: Option<Vec<String>>,
    /// Where the user may name a model provider of their own, for which the CLI needs no login.
    pub own_provider: Option<OwnProvider>,
    /// The exit code of a prompt with which the CLI says that the user has to log in.
    pub logged_out_exit: Option<i32>,
    /// The reasoning efforts, the lowest first.
    #[serde(default)]
    pub efforts: Vec<String>,
    /// How the CLI is started if it speaks ACP itself.
    pub acp: Option<Acp>,
    /// How the adapter runs the CLI.
    pub turn: Option<Turn>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Login {
    pub id: String,
    pub name: String,
    pub description: String,
    pub args: Vec<String>,
    /// Whether the CLI needs no terminal for it, because it opens a browser.
    #[serde(default)]
    pub opens_browser: bool,
    /// The variables one of which has the key that the CLI reads from stdin. Then it needs no terminal, either.
    #[serde(default)]
    pub key_env: Vec<String>,
    /// Whose key it is, for a client that has keys of several.
    pub key_provider: Option<String>,
}

/// A key of the CLI's TOML configuration.
#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct OwnProvider {
    /// The variable that names the folder of the configuration.
    pub folder_env: String,
    /// The folder in the user's home where that variable is not set.
    pub folder: String,
    pub file: String,
    pub key: String,
    /// The provider that needs the login.
    pub default: String,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    pub id: String,
    pub name: String,
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
    /// One model per line.
    Lines,
    /// One object with `models`, some of which are hidden.
    Codex,
    /// The response to the control request `initialize`.
    Claude,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Acp {
    /// The program that speaks ACP, if it is not the CLI itself.
    pub command: Option<String>,
    pub args: Vec<String>,
    /// How it is started where that program is not installed, such as by one that downloads it first.
    pub fallback: Option<Fallback>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    pub command: String,
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
    /// Whether the CLI reads an image whose path the prompt mentions as `@path`.
    #[serde(default)]
    pub mentions_images: bool,
    /// The kinds of MCP servers that the CLI takes beside programs.
    #[serde(default)]
    pub mcp: Vec<McpTransport>,
    /// Arguments that replace `{without_forms}` where the client shows no forms for what the CLI wants to know.
    #[serde(default)]
    pub without_forms: Vec<String>,
    /// What the CLI may do without asking, the default first. The arguments of one replace `{mode}`.
    #[serde(default)]
    pub modes: Vec<Mode>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum McpTransport {
    Http,
    Sse,
}

#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum FormatName {
    ClaudeStream,
    CodexExec,
    /// JSON-RPC in both directions, which needs `Delivery::Conversation`.
    CodexAppServer,
    GeminiStream,
    Opencode,
    Kimi,
    Cursor,
    Plain,
}

/// What a bridge speaks with a CLI whose process stays open for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OwnProtocol {
    Claude,
    Codex,
}

/// An argument, or several that are left out together if their placeholder has no value.
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
    /// In place of `{prompt}`, for a CLI that reads the prompt nowhere else.
    Argument,
    /// As a message of the CLI's own protocol to a process that stays open for the session. The protocol also carries
    /// requests for permission and later prompts.
    Conversation,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub struct Mode {
    pub id: String,
    pub name: String,
    pub description: Option<String>,
    #[serde(default)]
    pub args: Vec<String>,
    /// The mode in the CLI's own protocol, where no arguments set it.
    #[serde(default)]
    pub set: serde_json::Map<String, serde_json::Value>,
    /// The CLI refuses it to root, unless `IS_SANDBOX` says that nothing can be harmed.
    #[serde(default)]
    pub not_as_root: bool,
}

/// All rows: the user's, then the built-in ones with other ids.
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

/// The row with this id. The error lists all ids.
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

/// Where programs are looked for if PATH is not set, as `execvp` does.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

impl Runtime {
    /// The first of its programs in PATH.
    pub fn program(&self) -> Option<PathBuf> {
        self.binaries.iter().find_map(|name| find_in_path(name))
    }

    /// The command that starts an ACP agent: the CLI itself if it speaks ACP, else the adapter.
    pub fn command(&self) -> (String, Vec<String>) {
        let Some(acp) = &self.acp else {
            let adapter = ["agent", "cli", "--runtime", &self.id].map(str::to_owned);
            return ("stdio-bus".to_owned(), adapter.to_vec());
        };
        let path = search_path();
        self.acp_command(acp, &path).unwrap_or_else(|| {
            let program = acp.command.as_ref().unwrap_or(&self.binaries[0]);
            (program.clone(), acp.args.clone())
        })
    }

    /// The command of the CLI's pool, if its program is installed. The error is for the user.
    pub fn installed_command(&self) -> Result<(String, Vec<String>), String> {
        let Some(acp) = &self.acp else { return Ok(self.command()) };
        let path = search_path();
        self.acp_command(acp, &path).ok_or_else(|| {
            let needed = acp.command.as_ref().unwrap_or(&self.binaries[0]);
            let instead =
                acp.fallback.as_ref().map_or(String::new(), |other| format!(" or {}", other.command));
            format!("it speaks ACP only with the help of {needed}{instead}, which is not in PATH")
        })
    }

    /// What is installed comes before what would have to be downloaded.
    fn acp_command(&self, acp: &Acp, path: &OsStr) -> Option<(String, Vec<String>)> {
        let found = |name: &&String| find(name, env::split_paths(path)).is_some();
        let program = match &acp.command {
            Some(command) => Some(command).filter(found),
            None => self.binaries.iter().find(found),
        };
        let fallback = acp.fallback.as_ref().filter(|fallback| found(&&fallback.command));
        let own = program.map(|program| (program.clone(), acp.args.clone()));
        own.or_else(|| fallback.map(|fallback| (fallback.command.clone(), fallback.args.clone())))
    }

    /// The message for a CLI that is not installed.
    pub fn missing(&self) -> String {
        let names = self.binaries.join(" or ");
        match &self.install {
            Some(install) => format!("{} is not installed: no {names} in PATH; try: {install}", self.name),
            None => format!("{} is not installed: no {names} in PATH", self.name),
        }
    }
}

/// The program of this name in PATH.
pub(crate) fn find_in_path(name: &str) -> Option<PathBuf> {
    find(name, env::split_paths(&search_path()))
}

fn search_path() -> OsString {
    env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into())
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
    Some(crate::folders::config()?.join("runtimes.json")).filter(|path| path.exists())
}

fn read(path: &Path) -> Result<Vec<Runtime>, String> {
    let fault = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error: io::Error| fault(&error))?;
    let rows: Vec<Runtime> = serde_json::from_str(&text).map_err(|error| fault(&error))?;
    match rows.iter().find_map(fault_of) {
        Some(why) => Err(fault(&why)),
        None => Ok(rows),
    }
}

fn fault_of(row: &Runtime) -> Option<String> {
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
    } else if row.turn.as_ref().is_some_and(Turn::has_wrong_delivery) {
        Some(format!("{}: no conversation is held in this format, or nothing else is", row.id))
    } else if wants_prompt != has_prompt {
        Some(format!("{}: {{prompt}} stands in args just where prompt is \"argument\"", row.id))
    } else {
        None
    }
}

impl FormatName {
    /// The protocol of a conversation in this format, or `None` if none can be held.
    pub(super) fn own_protocol(self) -> Option<OwnProtocol> {
        match self {
            FormatName::ClaudeStream => Some(OwnProtocol::Claude),
            FormatName::CodexAppServer => Some(OwnProtocol::Codex),
            FormatName::CodexExec
            | FormatName::GeminiStream
            | FormatName::Opencode
            | FormatName::Kimi
            | FormatName::Cursor
            | FormatName::Plain => None,
        }
    }
}

impl Turn {
    /// The protocol of the process that stays open for a session, or `None` if each prompt has a process.
    pub(super) fn own_protocol(&self) -> Option<OwnProtocol> {
        if self.prompt == Delivery::Conversation { self.format.own_protocol() } else { None }
    }

    /// Whether a message opens the session, with its fork, folders and MCP servers. Else the arguments name them.
    pub(super) fn opens_by_message(&self) -> bool {
        match self.own_protocol() {
            Some(OwnProtocol::Codex) => true,
            Some(OwnProtocol::Claude) | None => false,
        }
    }

    /// Leaves out the modes that the CLI would refuse to this user.
    pub(super) fn without_refused_modes(mut self, is_root: bool) -> Turn {
        self.modes.retain(|mode| !(mode.not_as_root && is_root));
        self
    }

    /// Whether this placeholder stands in the arguments.
    pub(super) fn names(&self, placeholder: &str) -> bool {
        self.args.iter().flat_map(Arg::words).any(|word| word.contains(placeholder))
    }

    pub(super) fn takes_images(&self) -> bool {
        self.prompt == Delivery::Conversation || self.mentions_images || self.names("{image}")
    }

    /// Whether the CLI can work in folders beside that of the session.
    pub(super) fn takes_folders(&self) -> bool {
        self.opens_by_message() || self.names("{add_dir}")
    }

    /// Whether the row wants a conversation in a format without one, or the other way round.
    fn has_wrong_delivery(&self) -> bool {
        match self.format.own_protocol() {
            // Claude prints the same events in answer to a single prompt.
            Some(OwnProtocol::Claude) => false,
            Some(OwnProtocol::Codex) => self.prompt != Delivery::Conversation,
            None => self.prompt == Delivery::Conversation,
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

fn always() -> bool {
    true
}

fn default_version() -> Vec<String> {
    vec!["--version".to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_rows_are_valid_and_their_ids_unique() {
        let rows: Vec<Runtime> = serde_json::from_str(BUILT_IN).unwrap();
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(fault_of(row), None);
            assert!(rows[..at].iter().all(|other| other.id != row.id), "{} is there twice", row.id);
        }
        for id in ["claude", "codex", "gemini", "opencode", "hermes", "kimi", "cursor-agent", "qwen"] {
            assert!(rows.iter().any(|row| row.id == id), "{id}");
        }
    }

    #[test]
    fn an_invalid_row_is_refused_with_the_reason() {
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
            let error = read(&path).unwrap_err();
            assert!(error.contains(reason), "{row}: {error}");
        }
        fs::write(&path, format!("[{good}]")).unwrap();
        assert_eq!(read(&path).unwrap()[0].id, "my");
    }

    #[test]
    fn a_program_that_is_installed_comes_before_one_that_is_downloaded() {
        let rows: Vec<Runtime> = serde_json::from_str(BUILT_IN).unwrap();
        let started = |id: &str, installed: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            for name in installed {
                std::os::unix::fs::symlink("/bin/sh", folder.path().join(name)).unwrap();
            }
            let row = rows.iter().find(|row| row.id == id).unwrap();
            let command = row.acp_command(row.acp.as_ref().unwrap(), folder.path().as_os_str());
            command.map(|(program, args)| format!("{program} {}", args.join(" ")))
        };
        let expected = |line: &str| Some(line.to_owned());
        assert_eq!(started("fast-agent", &["fast-agent", "uvx"]), expected("fast-agent acp"));
        assert_eq!(started("fast-agent", &["uvx"]), expected("uvx fast-agent-mcp acp"));
        assert_eq!(started("pi", &["pi", "pi-acp", "npx"]), expected("pi-acp "));
        assert_eq!(started("pi", &["pi", "npx"]), expected("npx -y pi-acp"));
        assert_eq!(started("pi", &["pi"]), None);
        assert_eq!(started("nanocoder", &["nanocoder"]), expected("nanocoder --acp"));
        assert_eq!(started("openhands", &["openhands"]), expected("openhands acp"));
        assert_eq!(started("deepagents", &["deepagents-acp"]), expected("deepagents-acp "));
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
