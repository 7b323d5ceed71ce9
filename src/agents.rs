//! `agents`: lists the agents of the ACP registry, and logs in to one of bus.json.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::table::{self, Cell};
use kernel_shell::config;
use serde_json::{Value, json};
use workers::folders;
use workers::registry::{Entry, Index, Kind, Loaded, Source};

use crate::output::{BOLD, GREEN, RED, print, print_styled, report, styled};
use crate::paths::config_path;
use crate::terminal_login;

const EXAMPLES: &str = "\
Examples:
  stdio-bus agents --registry https://HOST/registry.json     once; the address is remembered
  stdio-bus agents --json | jq -r '.[].id'
  stdio-bus add gemini                                       one of them as a pool
  stdio-bus agents login gemini                              its own login, in this terminal";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print the whole index as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registry: RegistryArgs,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Log in to the agent of a pool, as the agent itself offers it
    Login(terminal_login::Args),
}

/// Where the index of the registry is.
#[derive(clap::Args)]
pub(crate) struct RegistryArgs {
    /// The index of the registry: an https address, or a file [default: $STDIO_BUS_REGISTRY, else the last one used]
    #[arg(long, value_name = "URL or FILE")]
    registry: Option<String>,
    /// Download the index even if the kept copy is less than an hour old
    #[arg(long)]
    refresh: bool,
}

impl RegistryArgs {
    pub(crate) fn load(&self) -> Result<Index, String> {
        let folder = folders::state().ok_or("HOME or XDG_STATE_HOME must be set, for the index")?;
        let folder = folder.join("registry");
        let in_env = || env::var("STDIO_BUS_REGISTRY").ok().filter(|text| !text.is_empty());
        let named = self.registry.clone().or_else(in_env).map(|text| Source::parse(&text));
        let source = named.or_else(|| Source::last_used(&folder));
        let source = source.ok_or(
            "which registry? Name its index once, with --registry URL or FILE: \
             the public one is https://cdn.agentclientprotocol.com/registry/v1/latest/registry.json",
        )?;
        let Loaded { index, stale } = source.load(&folder, self.refresh).map_err(|why| match &source {
            Source::File(path) => format!("{}: {why}", path.display()),
            Source::Url(_) => why,
        })?;
        if let Some(why) = stale {
            report(format_args!("stdio-bus: using an old copy of the index: {why}"), 0);
        }
        Ok(index)
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if let Some(Command::Login(login)) = &args.command {
        return terminal_login::run(login);
    }
    let index = match args.registry.load() {
        Ok(index) => index,
        Err(why) => return report(format_args!("stdio-bus: {why}"), 1),
    };
    if args.json {
        let all: Vec<Value> = index.entries.iter().map(|entry| to_json(entry, &index)).collect();
        return print(&(serde_json::to_string_pretty(&all).expect("plain values") + "\n"));
    }
    print_styled(&describe(&index, &pools()))
}

fn to_json(entry: &Entry, index: &Index) -> Value {
    let kinds: Vec<_> = entry.kinds().iter().map(Kind::to_string).collect();
    json!({
        "id": entry.id, "name": entry.name, "version": entry.version, "description": entry.description,
        "license": entry.license, "repository": entry.repository, "website": entry.website, "kinds": kinds,
        "quarantined": index.quarantined.get(&entry.id),
    })
}

/// The pools of bus.json, if there is one.
fn pools() -> Vec<String> {
    let found = config_path(None).ok().and_then(|path: PathBuf| config::load(&path).ok());
    found.into_iter().flat_map(|config| config.pools).map(|pool| pool.id.to_string()).collect()
}

fn describe(index: &Index, pools: &[String]) -> String {
    let mut rows = vec![["AGENT", "VERSION", "HOW", "NAME"].map(Cell::new).into()];
    for entry in &index.entries {
        let kinds: Vec<_> = entry.kinds().iter().map(Kind::to_string).collect();
        let how = if kinds.is_empty() { "not for this machine".to_owned() } else { kinds.join(" ") };
        let mark = match (index.quarantined.contains_key(&entry.id), pools.contains(&entry.id)) {
            (true, _) => RED,
            (false, true) => GREEN,
            (false, false) => anstyle::Style::new(),
        };
        let cells = [&entry.version, &how, &entry.name].map(Cell::new);
        rows.push([Cell::new(&entry.id).styled(mark)].into_iter().chain(cells).collect());
    }
    let mut text = String::new();
    let mut lines = table::lines(&rows).into_iter();
    let _ = writeln!(text, "{}", styled(BOLD, lines.next().unwrap_or_default()));
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    for (id, why) in &index.quarantined {
        if index.find(id).is_some() {
            let _ = writeln!(text, "{}: the registry warns of it: {}", styled(RED, id), clean(why));
        }
    }
    for why in &index.unreadable {
        let _ = writeln!(text, "cannot be read: {}", clean(why));
    }
    text
}

fn clean(text: &str) -> String {
    rpc::text::replace_control(text, ' ')
}
