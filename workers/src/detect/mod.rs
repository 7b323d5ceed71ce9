//! Finds the agent CLIs of this machine, several at once.
//!
//! A program runs only with the arguments of its row, in a process group of its own and for a limited time. A failure
//! of one is reported for that one alone. This module knows nothing of terminals and of bus.json.

mod models;
mod own_provider;
mod pool;
pub(crate) mod probe;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rpc::text::strip_control;
use serde::Serialize;
use serde_json::Value;

use crate::cli::runtimes::{FormatName, Runtime};
pub use models::Model;
pub(crate) use models::{FAST, FAST_TIER, ULTRACODE, claude_models, known, listed, model};
use probe::{Output, run};

/// A cold start of node takes seconds, and longer on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// A longer line of a program that fails is cut.
const REASON_CHARS: usize = 200;

/// One runtime on this machine.
#[derive(Serialize, Debug)]
pub struct Found {
    pub id: String,
    pub name: String,
    pub available: bool,
    pub path: Option<String>,
    pub version: Option<String>,
    /// Those that the table knows, if the CLI was not asked or gave no output.
    pub models: Option<Vec<Model>>,
    pub efforts: Vec<String>,
    /// Whether the CLI speaks ACP itself.
    pub acp: bool,
    /// What the adapter reads of it, if the adapter can run it.
    pub format: Option<FormatName>,
    /// `None` if the CLI cannot be asked, or only over ACP and was not.
    pub logged_in: Option<bool>,
    /// Whether the command of the pool was tried with a real CLI.
    pub verified: bool,
    /// The pool of bus.json that runs it.
    pub pool: Option<Value>,
    /// Why the CLI is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Looks for all runtimes. Calls `on_progress` with the number of those that are done.
pub fn detect(rows: &[Runtime], with_models: bool, mut on_progress: impl FnMut(usize)) -> Vec<Found> {
    let (sender, receiver) = mpsc::channel();
    let mut found: Vec<Option<Found>> = rows.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    // More programs at once would start too slowly on a small machine and exceed their time.
    let at_once = thread::available_parallelism().map_or(4, |cores| 2 * cores.get()).clamp(4, 16);
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((at, row)) = take(rows, next) {
                    // The receiver outlives all senders.
                    let _ = sender.send((at, probe_runtime(row, with_models)));
                }
            });
        }
        drop(sender);
        for (done, (at, runtime)) in receiver.iter().enumerate() {
            found[at] = Some(runtime);
            on_progress(done + 1);
        }
    });
    found.into_iter().map(|runtime| runtime.expect("each row was probed")).collect()
}

fn take<'a>(rows: &'a [Runtime], next: &AtomicUsize) -> Option<(usize, &'a Runtime)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    rows.get(at).map(|row| (at, row))
}

fn probe_runtime(row: &Runtime, with_models: bool) -> Found {
    let mut found = Found {
        id: row.id.clone(),
        name: row.name.clone(),
        available: false,
        path: None,
        version: None,
        models: known(row),
        efforts: row.efforts.clone(),
        acp: row.acp.is_some(),
        format: row.turn.as_ref().map(|turn| turn.format),
        logged_in: None,
        verified: !row.unverified,
        pool: None,
        reason: None,
    };
    let Some(program) = row.program() else {
        found.reason = Some(row.missing());
        return found;
    };
    found.path = Some(program.display().to_string());
    let output = run(&program, &row.version, "", LIMIT);
    if let Err(reason) = check_start(row, &output).and_then(|()| check_identity(row, &program, &output)) {
        found.reason = Some(reason);
        return found;
    }
    found.version = version(&output);
    let pool = match pool::pool(row, &program) {
        Ok(pool) => pool,
        Err(reason) => {
            found.reason = Some(reason);
            return found;
        }
    };
    found.available = true;
    found.pool = Some(pool);
    if let Some(args) = &row.login {
        let is_logged_in = run(&program, args, "", LIMIT).exit_code.map(|code| code == 0);
        // A CLI that is logged out can still work with a provider of the user's own.
        let needs_login = !row.own_provider.as_ref().is_some_and(own_provider::is_used);
        found.logged_in = is_logged_in.filter(|is_logged_in| *is_logged_in || needs_login);
    }
    if with_models {
        let listing = models::of(row, &program);
        found.models = listing.models;
        found.logged_in = found.logged_in.or(listing.logged_in);
    }
    found
}

/// Refuses a program that cannot run: one whose command for the version does not succeed.
fn check_start(row: &Runtime, output: &Output) -> Result<(), String> {
    if let Some(fault) = &output.start_error {
        return Err(format!("it cannot be started: {fault}"));
    }
    // A shell or `env` exits with these if it cannot find or run a program.
    if let Some(code @ (126 | 127)) = output.exit_code {
        return Err(format!("it cannot be started: exit code {code}"));
    }
    if row.stub.as_ref().is_some_and(|words| output.all().contains(words.as_str())) {
        let instead = row.install.as_ref().map_or(String::new(), |install| format!("; try: {install}"));
        return Err(format!("this {} is a stub that only says that it is gone{instead}", row.binaries[0]));
    }
    let command = row.version.join(" ");
    match output.exit_code {
        Some(0) => Ok(()),
        Some(code) => Err(format!("`{command}` fails (exit {code}): {}", last_words(output))),
        None => Err(format!("`{command}` was killed, or took longer than {} s", LIMIT.as_secs())),
    }
}

/// The last line that names an error, else the last line. Some programs print where the error was after it.
fn last_words(output: &Output) -> String {
    let all = output.all();
    let mut lines = all.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next().unwrap_or("it says nothing");
    let line = if last.contains("rror") { None } else { lines.find(|line| line.contains("rror")) };
    strip_control(line.unwrap_or(last)).chars().take(REASON_CHARS).collect()
}

/// Refuses another program of the same name.
fn check_identity(row: &Runtime, program: &Path, output: &Output) -> Result<(), String> {
    let Some(words) = &row.known_by else { return Ok(()) };
    let is_known = |output: &Output| output.all().to_lowercase().contains(&words.to_lowercase());
    if is_known(output) {
        return Ok(());
    }
    let help = run(program, &["--help".to_owned()], "", LIMIT);
    if is_known(&help) {
        return Ok(());
    }
    if help.exit_code.is_none() {
        return Err(format!("it did not say what it is within {} s", LIMIT.as_secs()));
    }
    Err(format!("this is another program: neither its version nor its help says \"{words}\""))
}

/// The first three numbers with dots between them, else the first short line of stdout.
fn version(output: &Output) -> Option<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let numbers = |text: &str| {
        let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches('.'));
        let is_version = |word: &&str| word.split('.').count() >= 3 && !word.contains("..");
        words.filter(is_version).map(ToOwned::to_owned).next()
    };
    let line = || {
        let line = output.stdout.lines().map(str::trim).find(|line| !line.is_empty() && line.len() <= 40)?;
        Some(strip_control(line))
    };
    numbers(&output.all()).or_else(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_with_the_error_is_told_of_a_program_that_crashes() {
        let node =
            "node:internal/modules:1\n  throw err;\nError: Cannot find module 'x'\n    at a\n\nNode.js v20\n";
        for (stderr, expected) in [
            (node, "Error: Cannot find module 'x'"),
            (
                "Traceback:\n  line 1\nModuleNotFoundError: No module named 'x'\n",
                "ModuleNotFoundError: No module named 'x'",
            ),
            ("Segmentation fault\u{1b}[0m", "Segmentation fault[0m"),
            ("", "it says nothing"),
        ] {
            let output = Output { stderr: stderr.to_owned(), ..Output::default() };
            assert_eq!(last_words(&output), expected);
        }
        let long = Output { stdout: "x".repeat(9999), ..Output::default() };
        assert_eq!(last_words(&long).len(), REASON_CHARS);
    }

    #[test]
    fn a_version_is_found_in_any_output() {
        for (text, expected) in [
            ("2.1.325 (Claude Code)\n", Some("2.1.325")),
            ("codex-cli 0.166.0\n", Some("0.166.0")),
            ("v1.2.3-beta.1", Some("1.2.3")),
            ("Agent CLI 1.0.102.\n", Some("1.0.102")),
            ("tool 7\n", Some("tool 7")),
            ("", None),
            ("..\n", Some("..")),
        ] {
            let output = Output { stdout: text.to_owned(), ..Output::default() };
            assert_eq!(version(&output).as_deref(), expected, "{text}");
        }
    }
}
