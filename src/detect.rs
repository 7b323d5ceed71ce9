//! `detect`: lists the agent CLIs of this machine, and adds pools for them to bus.json.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use clients::exit;
use clients::table::{self, Cell};
use workers::cli::runtimes;
use workers::detect::{Found, detect};

use crate::output::{BOLD, GREEN, RED, print, print_styled, report, styled};
use crate::pools_file::{self, WriteArgs, add_pools};

/// Padded to the longest value of a column that is always shown at its full width.
const HEADERS: [&str; 5] = ["AGENT", "VERSION", "SPEAKS  ", "LOGIN    ", "WHERE"];

/// How many agents are named to somebody who has none.
const EXAMPLES_OF_INSTALLS: usize = 4;
/// How many of those that are not installed are named.
const NAMED_MISSING: usize = 5;

const EXAMPLES: &str = "\
Examples:
  stdio-bus detect                           a table, and a pool for each
  stdio-bus detect --write                   and the pools into your bus.json
  stdio-bus detect --write --here            into ./bus.json, for a bus of this folder
  stdio-bus detect --models --json | jq '.[] | select(.available) | {id, models}'";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
    /// Ask each for its models too, which starts those that only tell over ACP
    #[arg(long)]
    models: bool,
    /// Add a pool for each to the configuration, beside what is there
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    to: WriteArgs,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let rows: Vec<_> = match runtimes::all() {
        Ok(rows) => rows.into_iter().filter(|row| row.detect).collect(),
        Err(why) => return report(format_args!("stdio-bus: {why}"), exit::BAD_CONFIGURATION),
    };
    let shows_progress = io::stderr().is_terminal();
    let progress = |done| {
        if shows_progress {
            let _ = write!(io::stderr(), "\rlooking for agents: {done} of {}", rows.len());
        }
    };
    let found = detect(&rows, args.models, progress);
    if shows_progress {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let printed = if args.json {
        print(&(serde_json::to_string_pretty(&found).expect("plain values") + "\n"))
    } else {
        print_styled(&describe(&found, args.write))
    };
    if args.write { write(args, &found) } else { printed }
}

fn write(args: &Args, found: &[Found]) -> ExitCode {
    let path = match args.to.path() {
        Ok(path) => path,
        Err(why) => return report(format_args!("stdio-bus: {why}"), 1),
    };
    match add_pools(&path, found.iter().filter_map(|agent| agent.pool.as_ref())) {
        Ok(added) if added.ids.is_empty() => report(format_args!("{}: nothing to add", path.display()), 0),
        Ok(added) => report(
            format_args!(
                "{}: added {}{}; {}",
                path.display(),
                added.ids.join(", "),
                added.about_default(),
                pools_file::next_step(&path)
            ),
            0,
        ),
        Err(why) => report(format_args!("stdio-bus: {}: {why}", path.display()), 1),
    }
}

fn describe(found: &[Found], writes: bool) -> String {
    let (available, absent): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|agent| agent.available);
    let name_width = available.iter().map(|agent| agent.id.len()).max().unwrap_or(0).max(HEADERS[0].len());
    table(&available, name_width) + &describe_absent(&absent, name_width) + &pools(&available, writes)
}

/// One line per available agent, and another one with its models if they are known.
fn table(available: &[&Found], name_width: usize) -> String {
    let mut text = String::new();
    if available.is_empty() {
        return text;
    }
    let mut rows = vec![HEADERS.map(Cell::new).into()];
    rows.extend(available.iter().map(|agent| row(agent)));
    let mut lines = table::lines(&rows).into_iter();
    let header = lines.next().unwrap_or_default();
    let _ = writeln!(text, "{}", styled(BOLD, header));
    for (agent, line) in available.iter().zip(lines) {
        let _ = writeln!(text, "{line}");
        if let Some(models) = &agent.models {
            let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
            let _ = writeln!(text, "{:name_width$}  models: {}", "", ids.join(", "));
        }
    }
    text
}

fn row(agent: &Found) -> Vec<Cell> {
    let speaks = match (agent.acp, agent.verified) {
        (true, true) => "ACP",
        (true, false) => "ACP?",
        (false, true) => "adapter",
        (false, false) => "adapter?",
    };
    let login = match agent.logged_in {
        Some(true) => Cell::new("yes").styled(GREEN),
        Some(false) => Cell::new("no").styled(RED),
        None => Cell::new("-"),
    };
    vec![
        Cell::new(&agent.id).styled(GREEN),
        Cell::new(agent.version.as_deref().unwrap_or("-")),
        Cell::new(speaks),
        login,
        Cell::new(agent.path.as_deref().unwrap_or_default()),
    ]
}

/// Agents that are installed but cannot be used, with the reason, and those that are not installed.
fn describe_absent(absent: &[&Found], name_width: usize) -> String {
    let mut text = String::new();
    let mut missing = Vec::new();
    for agent in absent {
        if agent.path.is_some() {
            let name = styled(RED, format_args!("{:name_width$}", agent.id));
            let _ = writeln!(text, "{name}  {}", agent.reason.as_deref().unwrap_or_default());
        } else {
            missing.push(agent.id.as_str());
        }
    }
    if !missing.is_empty() {
        let named = missing.len().min(NAMED_MISSING);
        let more = match missing.len() - named {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let names = missing[..named].join(", ");
        let _ = writeln!(text, "not here: {names}{more} (`stdio-bus run NAME` says what to install)");
    }
    text
}

/// How to install some of the agents, for somebody who has none.
fn how_to_install() -> String {
    let mut text = "\nInstall one, for example:\n".to_owned();
    let rows = runtimes::all().unwrap_or_default();
    // Two rows can be two ways to run one CLI, of which only one is listed.
    let listed = rows.iter().filter(|row| row.detect);
    for (row, how) in listed.filter_map(|row| Some((row, row.install.as_ref()?))).take(EXAMPLES_OF_INSTALLS) {
        let _ = writeln!(text, "  {how}   # {}", row.id);
    }
    text
}

fn pools(available: &[&Found], writes: bool) -> String {
    let mut text = String::new();
    if available.iter().any(|agent| !agent.verified) {
        text += "?: nobody has seen it run this way yet; `stdio-bus check --probe` tries it\n";
    }
    if !available.is_empty() {
        text += if writes { "\nPools:\n" } else { "\nPools for bus.json (--write adds them):\n" };
        for pool in available.iter().filter_map(|agent| agent.pool.as_ref()) {
            let _ = writeln!(text, "  {pool}");
        }
        text
    } else {
        text + &how_to_install()
    }
}
