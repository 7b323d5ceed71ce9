//! What this machine lacks for a pool to run: its program, the interpreter of a script, its folder.

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::Path;

use kernel_core::config::{PoolConfig, Program};
use kernel_shell::config;
use kernel_shell::{DEFAULT_PATH, at_node, find_program};
use nix::unistd::{AccessFlags, access};
use rpc::text::{quoted, replace_control};
use workers::cli::runtimes;

/// How much of a program is read for the line that names its interpreter.
const FIRST_LINE_BYTES: u64 = 256;

/// The pool as it is started. Where it has nodes, what is started for the first of them stands for all.
pub(crate) fn started(pool: &PoolConfig) -> Cow<'_, PoolConfig> {
    match pool.nodes.first() {
        Some(node) => Cow::Owned(at_node(pool, node)),
        None => Cow::Borrowed(pool),
    }
}

/// The file that would be started.
pub(crate) fn program(pool: &PoolConfig) -> Result<String, String> {
    match &pool.program {
        Program::ThisBinary => {
            let path =
                env::current_exe().map_err(|error| format!("the file of stdio-bus is not found: {error}"))?;
            Ok(path.display().to_string())
        }
        Program::At(path) => {
            let words = path.to_string_lossy();
            let fault = program_fault(path).map(|fault| fault + argument_hint(&words));
            fault.map_or_else(|| Ok(words.into_owned()), Err)
        }
        Program::InPath(name) => {
            let path = pool.env.get("PATH").map(OsString::from).or_else(|| env::var_os("PATH"));
            let found = find_program(name, &path.unwrap_or_else(|| DEFAULT_PATH.into()));
            let absent = |_| format!("{name:?} is not found in PATH{}{}", argument_hint(name), guess(name));
            let found = found.map_err(absent)?;
            program_fault(&found).map_or_else(|| Ok(found.display().to_string()), Err)
        }
    }
}

/// The most likely mistake of all.
fn argument_hint(command: &str) -> &'static str {
    if command.contains(' ') { "; arguments go into \"args\": [...]" } else { "" }
}

/// The program of an agent that was probably meant.
fn guess(name: &str) -> String {
    let rows = runtimes::all().unwrap_or_default();
    let known: Vec<_> = rows.iter().flat_map(|row| row.binaries.iter().map(String::as_str)).collect();
    match config::nearest(name, &known) {
        Some(meant) if meant == name => {
            let row = rows.iter().find(|row| row.binaries.iter().any(|binary| binary == name));
            row.and_then(|row| row.install.as_ref())
                .map_or(String::new(), |how| format!("; install it: {how}"))
        }
        Some(meant) => format!("; did you mean {meant:?}?"),
        None => String::new(),
    }
}

fn program_fault(path: &Path) -> Option<String> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) => Some(format!("{shown}: {error}")),
        Ok(found) if !found.is_file() => Some(format!("{shown} is not a file")),
        Ok(_) if access(path, AccessFlags::X_OK).is_err() => Some(format!(
            "{shown} is not executable; `chmod +x {}` makes it so",
            quoted(&path.display().to_string())
        )),
        Ok(_) => interpreter_fault(path),
    }
}

/// A script whose interpreter is missing: the system says of the script itself that there is no such file.
fn interpreter_fault(script: &Path) -> Option<String> {
    let mut start = Vec::new();
    fs::File::open(script).ok()?.take(FIRST_LINE_BYTES).read_to_end(&mut start).ok()?;
    let start = String::from_utf8_lossy(&start).into_owned();
    let mut words = start.lines().next()?.strip_prefix("#!")?.split_whitespace();
    let interpreter = words.next()?;
    let shown = script.display();
    if !Path::new(interpreter).exists() {
        let interpreter = replace_control(interpreter, '?');
        return Some(format!("{shown} is a script for {interpreter}, which is not there"));
    }
    if Path::new(interpreter).file_name()? != "env" {
        return None;
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    let beside = script.parent().map(|folder| folder.join(name)).filter(|path| path.exists());
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    if beside.is_some() || find_program(name, &path).is_ok() {
        return None;
    }
    let name = replace_control(name, '?');
    Some(format!("{shown} is a script for {name}, which is neither in PATH nor beside it"))
}

pub(crate) fn folder_fault(path: &Path) -> Option<String> {
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) => Some(format!("{shown}: {error}")),
        Ok(found) if !found.is_dir() => Some(format!("{shown} is not a folder")),
        Ok(_) => access(path, AccessFlags::X_OK).err().map(|_| format!("{shown} cannot be entered")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_script_without_its_interpreter_is_reported_with_the_name_of_that() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("agent");
        let fault = |first_line: &str| {
            fs::write(&script, format!("{first_line}\n")).unwrap();
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
            program_fault(&script).map(|fault| fault.replace(&script.display().to_string(), "AGENT"))
        };
        assert_eq!(fault("#!/bin/sh"), None);
        assert_eq!(fault("#!/usr/bin/env -S sh -e"), None);
        let told = fault("#!/no/such/node").unwrap();
        assert_eq!(told, "AGENT is a script for /no/such/node, which is not there");
        let told = fault("#!/usr/bin/env no-such-node").unwrap();
        assert_eq!(told, "AGENT is a script for no-such-node, which is neither in PATH nor beside it");
        fs::write(folder.path().join("no-such-node"), "").unwrap();
        assert_eq!(fault("#!/usr/bin/env no-such-node"), None);
    }
}
