//! `sessions`: lists the sessions of a running bus, and closes one; lists, shows, searches, exports and deletes those
//! that are kept.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::{Fault, sessions};
use history::export::Format;
use history::index::Query;
use serde_json::{Value, json};

use crate::bus_args::BusArgs;
use crate::kept_sessions::{self, Since};
use crate::output::{print, print_styled, report_fault};

const EXAMPLES: &str = "\
Examples:
  stdio-bus sessions                         owners, folders and open questions
  stdio-bus sessions --json | jq '.[] | select(.questions > 0)'
  stdio-bus sessions --all                   also what was said before, with or without a running bus
  stdio-bus sessions search linker error --since 7d
  stdio-bus sessions show 3f9a01             read one; s17 is one that is open
  stdio-bus sessions export 3f9a01 --format html -o talk.html
  stdio-bus sessions close s17               cancel its turn, and have the agent close it
  stdio-bus run --attach s17                 watch one; --control to take part
  stdio-bus run --resume 3f9a01              go on with one that is over";

const CLOSE_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions close s17";

const SHOW_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions show 3f9a01 | less
  stdio-bus sessions show s17 --json | jq '.entries[-1]'";

const EXPORT_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions export 3f9a01 > talk.md
  stdio-bus sessions export 3f9a01 --format html -o talk.html";

const DELETE_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions delete 3f9a01           its file, and what the index has of it";

const SEARCH_EXAMPLES: &str = "\
Examples:
  stdio-bus sessions search linker error     both words, in one message
  stdio-bus sessions search \"linker error\"   the phrase
  stdio-bus sessions search linker --pool claude --folder ~/shop --since 7d";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Also list kept sessions, whose state is past; the bus need not run
    #[arg(long)]
    all: bool,
    /// Print the sessions as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

/// A kept session.
#[derive(clap::Args)]
struct One {
    /// The first characters of its id as `sessions --all` shows it, or s17 of an open one
    label: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Close a session, whoever owns it: cancels its turn and has the agent close it
    #[command(after_help = CLOSE_EXAMPLES)]
    Close {
        /// The session as `sessions` calls it, such as s17
        label: String,
        #[command(flatten)]
        bus: BusArgs,
    },
    /// Show what was said in a kept session
    #[command(after_help = SHOW_EXAMPLES)]
    Show(One),
    /// Find kept sessions by what was said in them
    #[command(after_help = SEARCH_EXAMPLES)]
    Search(SearchArgs),
    /// Write a kept session as a document
    #[command(after_help = EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Delete a kept session from the disk
    #[command(after_help = DELETE_EXAMPLES)]
    Delete(One),
}

#[derive(clap::Args)]
struct SearchArgs {
    /// Words that are all in one message; in quotes, a phrase
    #[arg(required = true)]
    words: Vec<String>,
    /// Only in this pool
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Only in this folder and below it
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Only what was said since then: 30m, 12h, 7d, 2w or 2026-11-18
    #[arg(long, value_name = "WHEN")]
    since: Option<Since>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Document {
    Md,
    Html,
    Json,
    Ndjson,
}

#[derive(clap::Args)]
struct ExportArgs {
    #[command(flatten)]
    one: One,
    /// How it is written
    #[arg(long, value_enum, default_value = "md")]
    format: Document,
    /// Where it is written [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = match &args.action {
        Some(Action::Close { label, bus }) => {
            return match bus.target().and_then(|target| sessions::close(&target, label)) {
                Ok(()) => print(&format!("{label} is closed\n")),
                Err(fault) => report_fault(&fault.in_words()),
            };
        }
        Some(Action::Show(one)) => show(one),
        Some(Action::Search(args)) => search(args),
        Some(Action::Export(args)) => export(args),
        Some(Action::Delete(one)) => delete(one),
        None if args.all => list_all(args),
        None => {
            args.bus.target().and_then(|target| sessions::fetch(&target)).map(|all| listed(&all, args.json))
        }
    };
    match outcome {
        Ok(code) => code,
        Err(fault) => report_fault(&fault),
    }
}

fn listed(sessions: &Value, is_json: bool) -> ExitCode {
    if is_json { print(&format!("{sessions}\n")) } else { print_styled(&sessions::describe(sessions)) }
}

/// Those of the running bus, if one runs, and then the kept ones that are not open there.
fn list_all(args: &Args) -> Result<ExitCode, Fault> {
    let open = match args.bus.target().and_then(|target| sessions::fetch(&target)) {
        Ok(open) => open,
        Err(Fault::Refused(error)) => return Err(Fault::Refused(error)),
        Err(_) => json!([]),
    };
    let mut all = open.as_array().cloned().unwrap_or_default();
    let kept = kept_sessions::past(&args.bus, &all)?;
    if args.json {
        let rows: Vec<String> = all.iter().map(Value::to_string).chain(kept).collect();
        return Ok(print(&format!("[{}]\n", rows.join(","))));
    }
    all.extend(kept.iter().filter_map(|row| serde_json::from_str::<Value>(row).ok()));
    Ok(listed(&Value::from(all), false))
}

fn show(one: &One) -> Result<ExitCode, Fault> {
    let (_, header, transcript) = kept_sessions::read(&one.bus, &one.label)?;
    if one.json {
        return Ok(print(&format!("{}\n", history::export::json(&header, &transcript.entries))));
    }
    let text = history::export::document(Format::Md, &header, &transcript.entries);
    let bad = transcript.bad_lines;
    let bad =
        if bad > 0 { format!("\n*{bad} lines of the file could not be read*\n") } else { String::new() };
    Ok(print(&(text + &bad)))
}

fn search(args: &SearchArgs) -> Result<ExitCode, Fault> {
    let folder = args.folder.as_deref().map(kept_sessions::folder_name);
    let query = Query {
        words: args.words.clone(),
        pool: args.pool.clone(),
        folder,
        since: args.since.clone().map(|since| since.0),
        before: None,
        limit: args.limit,
    };
    let found = kept_sessions::search(&args.bus, &query)?;
    if args.json {
        return Ok(print(&format!("{}\n", json!(found))));
    }
    if found.is_empty() {
        return Ok(print("nothing was found\n"));
    }
    Ok(print_styled(&kept_sessions::describe_found(&found)))
}

fn export(args: &ExportArgs) -> Result<ExitCode, Fault> {
    let (summary, header, transcript) = kept_sessions::read(&args.one.bus, &args.one.label)?;
    let format = match args.format {
        Document::Md => Format::Md,
        Document::Html => Format::Html,
        Document::Json => Format::Json,
        Document::Ndjson => Format::Ndjson,
    };
    let text = history::export::document(format, &header, &transcript.entries);
    let Some(path) = &args.output else { return Ok(print(&text)) };
    fs::write(path, &text).map_err(|error| Fault::Failed(format!("{}: {error}", path.display())))?;
    if args.one.json {
        return Ok(print(&format!("{}\n", json!({ "id": summary.id, "file": path, "bytes": text.len() }))));
    }
    Ok(print(&format!("{} is written to {}\n", summary.id, path.display())))
}

fn delete(one: &One) -> Result<ExitCode, Fault> {
    let id = kept_sessions::delete(&one.bus, &one.label)?;
    Ok(print(&if one.json {
        format!("{}\n", json!({ "deleted": id }))
    } else {
        format!("{id} is deleted\n")
    }))
}
