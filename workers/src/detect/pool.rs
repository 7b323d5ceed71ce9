//! The pool of bus.json that runs an agent CLI.
//!
//! The pool names its program by an absolute path: a bus that a service manager starts has another PATH than the shell
//! in which the program was found.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::runtimes::{DEFAULT_PATH, Runtime, find_in_path};

/// How much of a program is read for the line that names its interpreter.
const FIRST_LINE_BYTES: u64 = 256;

/// The pool for this row, whose CLI is `program`. The error says what is missing.
pub(super) fn pool(row: &Runtime, program: &Path) -> Result<Value, String> {
    let (command, mut args) = row.installed_command()?;
    let mut started = program.to_owned();
    let command = if row.acp.is_none() {
        args.extend(["--program".to_owned(), program.display().to_string()]);
        command
    } else {
        started = find_in_path(&command).unwrap_or(started);
        started.display().to_string()
    };
    let mut pool = json!({ "id": row.id, "command": command, "args": args, "warm": false });
    if let Some(folder) = interpreter_folder(&started) {
        pool["env"] = json!({ "PATH": format!("{}:${{PATH}}", folder.display()) });
    }
    Ok(pool)
}

/// The folder of the program that runs a script, such as `node`, if a bus with a short PATH would not find it there.
/// The bus itself looks beside the script.
fn interpreter_folder(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    fs::File::open(script).ok()?.take(FIRST_LINE_BYTES).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start);
    let mut words = start.lines().next()?.strip_prefix("#!")?.split_whitespace();
    let is_env = Path::new(words.next()?).file_name()? == "env";
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    let folder = find_in_path(name).filter(|_| is_env)?.parent()?.to_owned();
    let is_found =
        script.parent() == Some(&folder) || env::split_paths(DEFAULT_PATH).any(|known| known == folder);
    (!is_found).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_script_with_a_far_interpreter_needs_a_longer_path() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("agent");
        // Cargo is wherever the user has it, and `sh` is where every bus looks.
        for (text, is_far) in [
            ("#!/usr/bin/env -S cargo run\n", true),
            ("#!/usr/bin/env sh\n", false),
            ("#!/bin/sh\n", false),
            ("\u{7f}ELF", false),
            ("", false),
        ] {
            fs::write(&script, text).unwrap();
            let cargo = find_in_path("cargo").and_then(|path| path.parent().map(Path::to_owned));
            let expected =
                cargo.filter(|folder| is_far && !env::split_paths(DEFAULT_PATH).any(|it| it == *folder));
            assert_eq!(interpreter_folder(&script), expected, "{text:?}");
        }
    }
}
