//! The rules of the code base, as a test: what every file looks like, and which part may import which.
//!
//! The test reads the repository as text. Words that must not appear anywhere are put together from halves here, so
//! that this file does not find itself.

mod shape;
mod words;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const LINE_CHARS: usize = 120;
const FILE_LINES: usize = 600;
/// How often tests of the whole bus let time pass for its own sake. Lower it with them.
const TIMES_THAT_PASS: usize = 9;

struct Source {
    /// Relative to the root of the repository.
    path: String,
    text: String,
}

impl Source {
    /// Its lines with their numbers, as `path:number`.
    fn lines(&self) -> impl Iterator<Item = (String, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (format!("{}:{}", self.path, at + 1), line))
    }

    /// The same without lines that are only a comment.
    fn code(&self) -> impl Iterator<Item = (String, &str)> {
        self.lines().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }
}

/// All files of the repository whose name ends like this.
fn files(ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(ROOT)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.is_file() && name.ends_with(ending) {
                let text =
                    fs::read_to_string(&path).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
                let path = path.strip_prefix(ROOT).expect("below the root").to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(!found.is_empty());
    found
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

fn is_clean(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_file_begins_with_its_purpose() {
    let silent = files(".rs").into_iter().filter(|file| !file.text.starts_with("//!"));
    is_clean(silent.map(|file| format!("{} does not begin with //!", file.path)).collect());
}

#[test]
fn no_line_and_no_file_is_too_long() {
    let mut faults = Vec::new();
    for file in files(".rs") {
        let count = file.text.lines().count();
        if count > FILE_LINES {
            faults.push(format!("{} has {count} lines", file.path));
        }
        for (at, line) in file.lines() {
            let length = line.chars().count();
            if length > LINE_CHARS {
                faults.push(format!("{at} has {length} characters"));
            }
        }
    }
    is_clean(faults);
}

#[test]
fn nothing_is_left_for_later() {
    let markers = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["HA", "CK"]].map(|halves| halves.concat());
    let macros = [["to", "do!"], ["unimpl", "emented!"], ["db", "g!"]].map(|halves| halves.concat());
    let mut faults = Vec::new();
    for file in files(".rs").iter().chain(&files(".md")).chain(&files(".toml")) {
        for (at, line) in file.lines() {
            let marked = words(line).any(|word| markers.iter().any(|marker| marker == word))
                || ["<<<<<<< ", ">>>>>>> "].iter().any(|conflict| line.starts_with(conflict));
            if marked || macros.iter().any(|name| line.contains(name.as_str())) {
                faults.push(format!("{at}: {line}"));
            }
        }
    }
    is_clean(faults);
}

/// Synchronisation by the clock fails on a busy machine, and costs its time on every other one.
#[test]
fn tests_sleep_only_where_time_itself_is_tested() {
    let (mut faults, mut times) = (Vec::new(), 0);
    let is_test = |file: &Source| file.path.starts_with("tests/e2e/") && !file.path.ends_with("/waiting.rs");
    for file in files(".rs").into_iter().filter(is_test) {
        for (at, line) in file.code() {
            times += usize::from(line.contains("time_passes("));
            if line.contains("sleep(") {
                faults.push(format!("{at}: tests wait by `until`, `looks_again` or `time_passes`: {line}"));
            }
        }
    }
    is_clean(faults);
    assert!(times <= TIMES_THAT_PASS, "{times} tests let time pass, at most {TIMES_THAT_PASS}");
}

#[test]
fn unsafe_code_is_only_where_the_system_needs_it() {
    let mut faults = Vec::new();
    for file in files(".rs").iter().filter(|file| file.path != "kernel/shell/src/process/pre_exec.rs") {
        let keyword = ["un", "safe"].concat();
        for (at, line) in file.code().filter(|(_, line)| words(line).any(|word| word == keyword)) {
            // A word in a string is no code.
            if !line.contains(&format!("{keyword}_code")) && !line.contains('"') {
                faults.push(format!("{at}: {line}"));
            }
        }
    }
    is_clean(faults);
}

/// The compiler keeps crates with I/O out of the core; this test keeps the I/O of the standard library out of it,
/// and out of the pipe.
#[test]
fn the_core_is_pure() {
    const OF_STD: [&str; 6] = ["fs", "thread", "process", "env", "os", "io"];
    const TYPES: [&str; 5] = ["Instant", "SystemTime", "TcpStream", "TcpListener", "UdpSocket"];
    let packages = dependencies("kernel-core");
    assert!(packages.contains("memchr"), "{packages:?}");
    for package in ["mio", "nix", "signal-hook", "env_logger", "crossbeam-channel", "tokio"] {
        assert!(!packages.contains(package), "kernel-core depends on {package}");
    }
    let mut faults = Vec::new();
    let pipe = files(".rs").into_iter().filter(|file| file.path.starts_with("cluster/src/pipe/"));
    for file in core_files().into_iter().chain(pipe) {
        for (at, line) in file.code() {
            let of_std = line.contains("std::") && words(line).any(|word| OF_STD.contains(&word));
            let error_text = line.contains("std::io::Error::from_raw_os_error");
            if of_std && !error_text || words(line).any(|word| TYPES.contains(&word)) {
                faults.push(format!("{at}: {line}"));
            }
        }
    }
    is_clean(faults);
}

/// TLS, HTTP and the async runtime are for agents and for the web door, in processes of their own.
#[test]
fn the_shell_has_no_async_runtime() {
    let packages = dependencies("kernel-shell");
    assert!(packages.contains("mio"), "{packages:?}");
    for package in ["tokio", "rmcp", "rustls", "ureq", "hyper", "h2", "tungstenite", "web"] {
        assert!(!packages.contains(package), "kernel-shell depends on {package}");
    }
    for package in ["clients", "workers"] {
        assert!(!dependencies(package).contains("hyper"), "{package} depends on hyper");
    }
}

/// All that a package is built with.
fn dependencies(package: &str) -> HashSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none"])
        .current_dir(ROOT)
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8_lossy(&tree.stdout);
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The folders of the core are its layers: `wire` is below `state`, and `state` below `bus`.
#[test]
fn no_layer_of_the_core_imports_one_above_it() {
    let above = |path: &str| match path.strip_prefix("kernel/core/src/") {
        Some(path) if path.starts_with("wire/") => &["state", "bus"][..],
        Some(path) if path.starts_with("state/") => &["bus"],
        Some(path) if path.contains('/') || ["lib.rs", "fuzz.rs", "testkit.rs"].contains(&path) => &[],
        _ => &["wire", "state", "bus"],
    };
    let mut faults = Vec::new();
    for file in core_files() {
        let names_one =
            |line: &str| above(&file.path).iter().any(|floor| line.contains(&format!("crate::{floor}::")));
        faults.extend(
            file.code().filter(|(_, line)| names_one(line)).map(|(at, line)| format!("{at}: {line}")),
        );
    }
    is_clean(faults);
}

fn core_files() -> Vec<Source> {
    let is_core = |file: &Source| file.path.starts_with("kernel/core/src/") && !file.path.contains("/tests");
    files(".rs").into_iter().filter(is_core).collect()
}

#[test]
fn the_kernel_depends_on_nothing_that_stands_around_it() {
    for kernel in ["kernel-core", "kernel-shell"] {
        let packages = dependencies(kernel);
        for other in ["workers", "clients", "web", "cluster", "bench"] {
            assert!(!packages.contains(other), "{kernel} depends on {other}");
        }
    }
}

#[test]
fn dependencies_have_an_allowed_licence_and_come_from_the_registry() {
    let allowed = fs::read_to_string(Path::new(ROOT).join("deny.toml")).expect("deny.toml");
    let allowed =
        allowed.split_once("allow = [").and_then(|(_, list)| list.split_once(']')).expect("a list").0;
    let allowed: Vec<&str> = allowed.split('"').skip(1).step_by(2).collect();
    let rustc = Command::new("rustc").arg("-vV").output().expect("rustc runs").stdout;
    let rustc = String::from_utf8_lossy(&rustc);
    let host = rustc.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host])
        .current_dir(ROOT)
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&metadata.stdout).expect("what cargo says");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 20);
    let mut faults = Vec::new();
    for package in packages {
        let name = &package["name"];
        let license = package["license"].as_str().unwrap_or_default().replace('/', " OR ");
        // Alternatives are in brackets if another licence applies too.
        let may =
            |part: &str| part.split(" OR ").any(|one| allowed.contains(&one.trim_matches(['(', ')', ' '])));
        if !license.split(" AND ").all(may) {
            faults.push(format!("{name}: the licence {license:?} is not in deny.toml"));
        }
        if package["source"].as_str().is_some_and(|source| !source.starts_with("registry+")) {
            faults.push(format!("{name} comes from {}", package["source"]));
        }
    }
    is_clean(faults);
}

#[test]
fn the_schema_in_the_docs_is_the_one_that_the_binary_prints() {
    let printed = Command::new(env!("CARGO_BIN_EXE_stdio-bus")).arg("schema").output().expect("it runs");
    assert!(printed.status.success());
    let kept = fs::read_to_string(Path::new(ROOT).join("docs/bus.schema.json")).expect("the schema");
    assert_eq!(String::from_utf8_lossy(&printed.stdout).trim_end(), kept.trim_end());
}

#[test]
fn every_link_in_the_docs_leads_somewhere() {
    let mut faults = Vec::new();
    for file in files(".md") {
        let folder = Path::new(ROOT).join(&file.path).parent().expect("a folder").to_owned();
        for (at, line) in file.lines() {
            for target in
                links(line).filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
            {
                let path = target.split('#').next().unwrap_or_default();
                if !path.is_empty() && !folder.join(path).exists() {
                    faults.push(format!("{at}: {target}"));
                }
            }
        }
    }
    is_clean(faults);
}

#[test]
fn every_fault_has_its_row_and_every_test_named_there_exists() {
    let table = fs::read_to_string(Path::new(ROOT).join("docs/FAULTS.md")).expect("the table of faults");
    let mut faults = Vec::new();
    for (side, count) in [("C", 24), ("W", 33), ("O", 26), ("L", 18)] {
        for number in 1..=count {
            let row = format!("| {side}{number} | ");
            if table.lines().filter(|line| line.starts_with(&row)).count() != 1 {
                faults.push(format!("{side}{number} has not one row"));
            }
        }
    }
    for (file, name) in table.split('`').filter_map(|word| word.split_once(".rs::")) {
        let source = fs::read_to_string(Path::new(ROOT).join(format!("{file}.rs"))).unwrap_or_default();
        if !source.contains(&format!("#[test]\n    fn {name}()"))
            && !source.contains(&format!("#[test]\nfn {name}()"))
        {
            faults.push(format!("{file}.rs has no test {name}"));
        }
    }
    is_clean(faults);
}

#[test]
fn only_the_log_reads_the_wall_clock() {
    let of_the_bus = |file: &&Source| file.path.starts_with("kernel/") || file.path.starts_with("src/");
    let mut faults = Vec::new();
    for file in files(".rs").iter().filter(of_the_bus).filter(|file| !file.path.ends_with("/log.rs")) {
        let clock = |line: &str| words(line).any(|word| word == "SystemTime" || word == "UNIX_EPOCH");
        faults.extend(file.code().filter(|(_, line)| clock(line)).map(|(at, line)| format!("{at}: {line}")));
    }
    is_clean(faults);
}

/// The targets of links: what is inside `](..)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}
