//! Which agent CLIs this machine has, asked of several at once.
//!
//! A program is only ever run with arguments of its row, with nothing to read, in a group of its own and for a limited
//! time; what one of them does wrong is a word about that one. Knows nothing of terminals and of bus.json.

mod models;
mod probe;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::runtimes::Runtime;
pub use models::Model;
pub(crate) use models::{claude_models, listed, model};
use probe::{Answer, ask};

/// A cold start of node takes a few seconds, and many on a machine that has other things to do.
const LIMIT: Duration = Duration::from_secs(20);

/// What is known of one runtime on this machine.
#[derive(Serialize, Debug)]
pub struct Found {
    pub id: String,
    pub name: String,
    pub available: bool,
    pub path: Option<String>,
    pub version: Option<String>,
    /// `None`: not asked, or no answer.
    pub models: Option<Vec<Model>>,
    pub efforts: Vec<String>,
    /// Whether it speaks ACP itself.
    pub acp: bool,
    /// `None`: it cannot be asked, or only over ACP and was not.
    pub logged_in: Option<bool>,
    /// Whether anybody has seen it run as the pool says.
    pub verified: bool,
    /// The entry of bus.json with which it is used.
    pub pool: Option<Value>,
    /// Why it is not available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Looks for all of them. `told` hears after each how many are done.
pub fn detect(rows: &[Runtime], with_models: bool, mut told: impl FnMut(usize)) -> Vec<Found> {
    let (sender, receiver) = mpsc::channel();
    let mut found: Vec<Option<Found>> = rows.iter().map(|_| None).collect();
    let next = AtomicUsize::new(0);
    // More would start so slowly on a small machine that they run out of time.
    let at_once = thread::available_parallelism().map_or(4, |cores| 2 * cores.get()).clamp(4, 16);
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((at, row)) = take(rows, next) {
                    // The receiver waits until all have spoken.
                    let _ = sender.send((at, look(row, with_models)));
                }
            });
        }
        drop(sender);
        for (done, (at, one)) in receiver.iter().enumerate() {
            found[at] = Some(one);
            told(done + 1);
        }
    });
    found.into_iter().map(|one| one.expect("each has spoken")).collect()
}

fn take<'a>(rows: &'a [Runtime], next: &AtomicUsize) -> Option<(usize, &'a Runtime)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    rows.get(at).map(|row| (at, row))
}

fn look(row: &Runtime, with_models: bool) -> Found {
    let mut found = Found {
        id: row.id.clone(),
        name: row.name.clone(),
        available: false,
        path: None,
        version: None,
        models: None,
        efforts: row.efforts.clone(),
        acp: row.acp.is_some(),
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
    let answer = ask(&program, &row.version, "", LIMIT);
    if let Err(reason) = judge(row, &answer).and_then(|()| recognise(row, &program, &answer)) {
        found.reason = Some(reason);
        return found;
    }
    found.available = true;
    found.version = version(&answer);
    let (command, args) = row.command();
    found.pool = Some(json!({ "id": row.id, "command": command, "args": args }));
    if let Some(args) = &row.login {
        found.logged_in = ask(&program, args, "", LIMIT).exit_code.map(|code| code == 0);
    }
    if with_models {
        let heard = models::of(row, &program);
        found.models = heard.models;
        found.logged_in = found.logged_in.or(heard.logged_in);
    }
    found
}

/// A failure that only the missing program explains. Any other leaves it available, without a version.
fn judge(row: &Runtime, answer: &Answer) -> Result<(), String> {
    if let Some(fault) = &answer.not_started {
        return Err(format!("it cannot be started: {fault}"));
    }
    // What a shell or `env` says of a program that it did not find or may not run.
    if let Some(code @ (126 | 127)) = answer.exit_code {
        return Err(format!("it cannot be started: exit code {code}"));
    }
    if row.stub.as_ref().is_some_and(|words| answer.all().contains(words.as_str())) {
        let instead = row.install.as_ref().map_or(String::new(), |install| format!("; try: {install}"));
        return Err(format!("this {} is a stub that only says that it is gone{instead}", row.binaries[0]));
    }
    Ok(())
}

/// Whether this is the CLI, or another program of that name.
fn recognise(row: &Runtime, program: &Path, answer: &Answer) -> Result<(), String> {
    let Some(words) = &row.known_by else { return Ok(()) };
    let says = |answer: &Answer| answer.all().to_lowercase().contains(&words.to_lowercase());
    if says(answer) {
        return Ok(());
    }
    let help = ask(program, &["--help".to_owned()], "", LIMIT);
    if says(&help) {
        return Ok(());
    }
    if help.exit_code.is_none() {
        return Err(format!("it did not say what it is within {} s", LIMIT.as_secs()));
    }
    Err(format!("this is another program: neither its version nor its help says \"{words}\""))
}

/// The first three numbers with dots between them, wherever it says them; else the first line that is short.
fn version(answer: &Answer) -> Option<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let numbers = |said: &str| {
        let words = said.split(|c: char| !is_part(c)).map(|word| word.trim_matches('.'));
        let is_version = |word: &&str| word.split('.').count() >= 3 && !word.contains("..");
        words.filter(is_version).map(ToOwned::to_owned).next()
    };
    let line = || {
        let line = answer.stdout.lines().map(str::trim).find(|line| !line.is_empty() && line.len() <= 40)?;
        Some(line.chars().filter(|c| !c.is_control()).collect())
    };
    numbers(&answer.all()).or_else(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_a_cli_says() {
        for (said, expected) in [
            ("2.1.325 (Claude Code)\n", Some("2.1.325")),
            ("codex-cli 0.166.0\n", Some("0.166.0")),
            ("v1.2.3-beta.1", Some("1.2.3")),
            ("Agent CLI 1.0.102.\n", Some("1.0.102")),
            ("tool 7\n", Some("tool 7")),
            ("", None),
            ("..\n", Some("..")),
        ] {
            let answer = Answer { stdout: said.to_owned(), ..Answer::default() };
            assert_eq!(version(&answer).as_deref(), expected, "{said}");
        }
    }
}
