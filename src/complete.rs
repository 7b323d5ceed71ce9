//! `completions`: prints the script that makes a shell complete these commands. The scripts of bash, zsh and fish call
//! `internal-complete`, which knows the command line as it is and asks the running bus for names.
//!
//! Its answer is a line with what follows: `words`, `files` or `dirs`. After `words`, each line is a candidate, a tab
//! and a description. It is silent whatever happens, because somebody is typing.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_complete::engine::{self, ArgValueCompleter, CompletionCandidate};
use clients::Target;
use clients::address::{self, TargetArgs};
use clients::in_home;
use clients::names::{self, Kind};
use kernel_shell::config;
use serde_json::Value;
use workers::cli::runtimes;
use workers::folders;
use workers::registry::Source;

use crate::manual::visible_subcommands;
use crate::output::print;
use crate::paths::config_path;
use crate::{Cli, known_agents, paths};

pub(crate) const SCRIPT_EXAMPLES: &str = "\
Examples:
  stdio-bus completions bash > ~/.local/share/bash-completion/completions/stdio-bus
  stdio-bus completions zsh > \"${fpath[1]}/_stdio-bus\"
  stdio-bus completions fish > ~/.config/fish/completions/stdio-bus.fish

For the current shell only: source <(stdio-bus completions bash), the same for zsh after compinit, and in fish \
stdio-bus completions fish | source. Names of pools, workers, sessions and nodes come from the running bus.";

#[derive(clap::Args)]
pub(crate) struct ScriptArgs {
    /// The shell
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The command line up to the cursor, which is in the last word
    #[arg(last = true)]
    words: Vec<OsString>,
}

/// What a value on the command line names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    OfBus(Kind),
    Agents,
    Runtimes,
    RegistryIds,
    Commands,
    Files,
    Dirs,
}

pub(crate) fn print_script(args: &ScriptArgs) -> ExitCode {
    match args.shell {
        Shell::Bash => print(include_str!("complete/stdio-bus.bash")),
        Shell::Zsh => print(include_str!("complete/stdio-bus.zsh")),
        Shell::Fish => print(include_str!("complete/stdio-bus.fish")),
        // These complete commands and options alone.
        shell => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut visible_program(), "stdio-bus", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    print(&answer(args.words))
}

/// The program without the commands that only the bus itself uses.
fn visible_program() -> Command {
    let program = Cli::command();
    let (arguments, commands) = (program.get_arguments().cloned(), visible_subcommands(&program).cloned());
    Command::new("stdio-bus").version("").args(arguments).subcommands(commands)
}

fn answer(words: Vec<OsString>) -> String {
    let Some(current) = words.last().map(|word| word.to_string_lossy().into_owned()) else {
        return String::new();
    };
    let wants = Arc::new(Wants::default());
    let typed: Arc<[String]> = words.iter().map(|word| unquoted(&word.to_string_lossy())).collect();
    let mut program = with_completers(visible_program(), &typed, &wants);
    let index = words.len() - 1;
    let mut candidates = engine::complete(&mut program, words, index, None).unwrap_or_default();
    // Options are many, and who wants one types a dash. They are offered where nothing else can follow.
    let is_option = |it: &CompletionCandidate| it.get_value().as_encoded_bytes().starts_with(b"-");
    let typed_dash = current.starts_with('-');
    let wants_path =
        (wants.files.load(Ordering::Relaxed) || wants.dirs.load(Ordering::Relaxed)) && !typed_dash;
    if !typed_dash && (wants_path || candidates.iter().any(|it| !is_option(it))) {
        candidates.retain(|it| !is_option(it));
    }
    if wants_path && candidates.is_empty() {
        return if wants.files.load(Ordering::Relaxed) { "files\n" } else { "dirs\n" }.to_owned();
    }
    let mut text = "words\n".to_owned();
    for candidate in &candidates {
        let about = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let about = about.lines().next().unwrap_or_default().replace(char::is_control, " ");
        let _ = writeln!(text, "{}\t{about}", candidate.get_value().to_string_lossy());
    }
    text
}

/// Whether the word is the path of a file or of a folder, which the shell completes better.
#[derive(Default)]
struct Wants {
    files: AtomicBool,
    dirs: AtomicBool,
}

fn with_completers(command: Command, typed: &Arc<[String]>, wants: &Arc<Wants>) -> Command {
    let name = command.get_name().to_owned();
    let command = command.mut_args(|arg| match names_of(&name, &arg) {
        Some(names) => {
            let (typed, wants) = (typed.clone(), wants.clone());
            arg.add(ArgValueCompleter::new(move |current: &OsStr| candidates(names, current, &typed, &wants)))
        }
        None => arg,
    });
    command.mut_subcommands(|inner| with_completers(inner, typed, wants))
}

/// What the value of an argument names, if more is known than the definition of the command line says.
fn names_of(command: &str, arg: &Arg) -> Option<Names> {
    let value = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    match (command, arg.get_id().as_str(), value) {
        ("add", "pool", _) => None,
        ("add", "id", _) => Some(Names::RegistryIds),
        ("run", "agent", _) => Some(Names::Agents),
        // A session that the agent keeps, which the bus need not know.
        ("run", "session", _) => None,
        ("man", "command", _) => Some(Names::Commands),
        (_, "runtime", _) => Some(Names::Runtimes),
        (_, _, "POOL[/N]") => Some(Names::OfBus(Kind::Workers)),
        (_, _, "NODE") => Some(Names::OfBus(Kind::Nodes)),
        (_, "pool", _) => Some(Names::OfBus(Kind::Pools)),
        (_, "attach" | "session" | "label", _) => Some(Names::OfBus(Kind::Sessions)),
        (_, _, "DIR") => Some(Names::Dirs),
        _ if arg.get_value_hint() == ValueHint::AnyPath => Some(Names::Files),
        _ => None,
    }
}

fn candidates(names: Names, current: &OsStr, typed: &[String], wants: &Wants) -> Vec<CompletionCandidate> {
    let found: Vec<(String, String)> = match names {
        Names::OfBus(kind) => of_bus(kind, typed),
        Names::Agents => known_agents::names(),
        Names::Runtimes => {
            let rows = runtimes::all().unwrap_or_default().into_iter();
            rows.filter(|row| row.turn.is_some()).map(|row| (row.id, row.name)).collect()
        }
        Names::RegistryIds => registry_ids(),
        Names::Commands => {
            let program = Cli::command();
            let about = |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
            visible_subcommands(&program).map(|it| (it.get_name().to_owned(), about(it))).collect()
        }
        Names::Files => {
            wants.files.store(true, Ordering::Relaxed);
            Vec::new()
        }
        Names::Dirs => {
            wants.dirs.store(true, Ordering::Relaxed);
            Vec::new()
        }
    };
    let current = current.to_string_lossy();
    let fits = |(name, _): &(String, String)| name.starts_with(&*current);
    let candidate = |(name, about): (String, String)| {
        CompletionCandidate::new(name).help((!about.is_empty()).then(|| about.into()))
    };
    found.into_iter().filter(fits).map(candidate).collect()
}

/// Names of the bus that the words on the command line lead to. Without one, bus.json at least knows its pools.
fn of_bus(kind: Kind, typed: &[String]) -> Vec<(String, String)> {
    let named = TargetArgs {
        tcp: flag(typed, "--tcp").and_then(|text| address::parse_host(text).ok()),
        unix: flag(typed, "--unix").map(in_home),
        token_file: flag(typed, "--token-file").map(in_home),
    };
    let named_config = flag(typed, "--config").map(in_home);
    let config = || config_path(named_config.as_deref());
    let user_bus =
        if paths::named_config(named_config.as_deref()).is_none() { paths::user_bus() } else { None };
    let asked = Target::resolve(named, config, user_bus).and_then(|target| names::fetch(&target, kind));
    match asked {
        Ok(names) => names.into_iter().map(|it| (it.name, it.about)).collect(),
        Err(_) if matches!(kind, Kind::Pools | Kind::Workers) => {
            config().map(|path| pools_of(&path)).unwrap_or_default()
        }
        Err(_) => Vec::new(),
    }
}

fn pools_of(config: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(config).unwrap_or_default();
    let config: Value = config::plain_json(config::without_mark(&text)).parse().unwrap_or_default();
    let ids = config["pools"].as_array().into_iter().flatten().filter_map(|pool| pool["id"].as_str());
    ids.filter(|id| !id.contains(char::is_control)).map(|id| (id.to_owned(), String::new())).collect()
}

fn registry_ids() -> Vec<(String, String)> {
    let index = folders::state().and_then(|folder| Source::kept_index(&folder.join("registry")));
    let entries = index.map(|index| index.entries).unwrap_or_default().into_iter();
    entries.map(|entry| (entry.id, entry.name)).filter(|(id, _)| !id.contains(char::is_control)).collect()
}

/// The value of a flag, as `--flag value` or `--flag=value`.
fn flag<'a>(typed: &'a [String], name: &str) -> Option<&'a str> {
    let joined = |word: &'a String| word.strip_prefix(name)?.strip_prefix('=');
    let behind = typed.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1].as_str());
    behind.or_else(|| typed.iter().find_map(joined)).filter(|value| !value.is_empty())
}

/// Some shells hand words over as they were typed.
fn unquoted(word: &str) -> String {
    word.replace(['"', '\'', '\\'], "")
}
