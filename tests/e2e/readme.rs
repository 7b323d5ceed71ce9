//! Every command of the README and of docs/TOUR.md is run as it stands there, with the real binary, in a home and
//! folders of its own.
//!
//! Only the ports differ, because another bus may have them. A gemini that is none stands in for an agent.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::harness::{BUS, PATIENCE, looks_again, skips, write_script};

const README: &str = include_str!("../../README.md");
const TOUR: &str = include_str!("../../docs/TOUR.md");

/// What is not run here, and why.
const NOT_RUN: [(&str, &str); 4] = [
    ("cargo install ", "it takes minutes and writes into ~/.cargo"),
    ("cargo run ", "it builds a release; the binary of this test serves the same bus.json"),
    ("cargo test ", "it is what runs this test"),
    ("stdio-bus top", "it needs a terminal: top.rs"),
];

/// They are shown with other agents and sessions than those of this test.
const OTHER_OUTPUT: [&str; 5] =
    ["stdio-bus status  ", "stdio-bus sessions", "stdio-bus trace", "stdio-bus detect", "stdio-bus ide"];

/// These run until they are ended.
const GOES_ON: [&str; 3] = ["stdio-bus serve", "stdio-bus ", "stdio-bus trace"];

/// A command, and what is printed below it.
struct Shown {
    command: String,
    prints: Vec<String>,
}

/// The indented blocks of both pages, without their indent.
fn blocks() -> Vec<Vec<&'static str>> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    let mut is_inside = false;
    for line in README.lines().chain(TOUR.lines()) {
        let Some(code) = line.strip_prefix("    ") else {
            // An empty line may be within a block.
            is_inside = is_inside && line.is_empty();
            continue;
        };
        if !is_inside {
            blocks.push(Vec::new());
        }
        is_inside = true;
        blocks.last_mut().expect("there is one").push(code);
    }
    blocks
}

/// The commands of a block: lines behind a prompt, with what is printed below them, or all lines.
fn commands(block: &[&str]) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let has_prompts = block.iter().any(|line| line.starts_with("$ "));
    let mut is_input = false;
    for line in block {
        match (line.strip_prefix("$ "), shown.last_mut()) {
            (Some(command), _) => {
                is_input = command.contains("<<'EOF'");
                shown.push(Shown { command: command.to_owned(), prints: Vec::new() });
            }
            (None, Some(last)) if has_prompts && is_input => {
                last.command += &format!("\n{line}");
                is_input = *line != "EOF";
            }
            (None, Some(last)) if has_prompts => last.prints.push((*line).to_owned()),
            _ => shown.push(Shown { command: (*line).to_owned(), prints: Vec::new() }),
        }
    }
    shown
}

fn is_code(block: &[&str]) -> bool {
    ["$ ", "stdio-bus ", "cargo "].iter().any(|start| block[0].starts_with(start))
}

/// A home, the programs that a command may find, and a folder to be in.
struct Place {
    home: TempDir,
    folder: PathBuf,
    /// What the README calls 9000 and 9001.
    ports: [u16; 2],
    servers: Vec<(Child, BufReader<ChildStdout>)>,
}

impl Place {
    fn new() -> Place {
        let home = TempDir::with_prefix("readme").expect("a temporary folder");
        let (bin, folder) = (home.path().join("bin"), home.path().join("project"));
        fs::create_dir(&bin).and_then(|()| fs::create_dir(&folder)).expect("the folder is ours");
        symlink(BUS, bin.join("stdio-bus")).expect("the folder is ours");
        for tool in ["sh", "nc"] {
            let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(tool));
            if let Some(tool_path) = found.iter().find(|path| path.exists()) {
                symlink(tool_path, bin.join(tool)).expect("the folder is ours");
            }
        }
        let gemini = "case \"$1\" in --version) echo 0.61.0;; --acp) exec stdio-bus agent echo;; esac";
        write_script(&bin, "gemini", gemini);
        // Both at once, so that they differ.
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let ports = free.each_ref().map(|it| it.local_addr().expect("an address").port());
        Place { home, folder, ports, servers: Vec::new() }
    }

    /// The command with the ports of this test.
    fn filled(&self, text: &str) -> String {
        let [bus, web] = self.ports.map(|port| port.to_string());
        text.replace(":9000", &format!(":{bus}"))
            .replace(" 9000", &format!(" {bus}"))
            .replace(":9001", &format!(":{web}"))
    }

    fn shell(&self, command: &str) -> Command {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &self.filled(command)]).current_dir(&self.folder).env_clear();
        shell
            .env("XDG_RUNTIME_DIR", self.home.path())
            .env("HOME", self.home.path())
            .env("PATH", self.home.path().join("bin"))
            .stdin(Stdio::null());
        shell
    }

    /// Starts a command that goes on, and waits until it serves.
    fn starts(&mut self, command: &str) {
        let mut server = self.shell(&format!("exec {command}"));
        let log_path = self.home.path().join("log");
        let log = fs::File::create(&log_path).expect("the folder is ours");
        let mut child = server.stdout(Stdio::piped()).stderr(log).spawn().expect("sh runs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        if !command.starts_with("stdio-bus trace") {
            let mut line = String::new();
            lines.read_line(&mut line).expect("it prints lines");
            let log = fs::read_to_string(&log_path).unwrap_or_default();
            let listening = self.filled("{\"listening\":\"tcp://127.0.0.1:9000\"}");
            assert_eq!(line.trim_end(), listening, "{command}\n{log}");
        }
        self.servers.push((child, lines));
    }

    /// Waits until all that was started has ended by itself.
    fn all_end(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        for (child, _) in &mut self.servers {
            while child.try_wait().expect("it is our child").is_none() {
                assert!(Instant::now() < deadline, "it does not end");
                looks_again();
            }
        }
        self.servers.clear();
    }

    fn runs(&self, Shown { command, prints }: &Shown) {
        let out = self.shell(command).output().expect("sh runs");
        let said = text(&out);
        assert!(out.status.success(), "{command}\n{said}");
        if OTHER_OUTPUT.iter().any(|other| command.starts_with(other)) {
            return;
        }
        let mut words = Vec::new();
        for line in prints {
            words.extend(self.filled(line).split_whitespace().map(str::to_owned));
        }
        // Numbers, times and paths are those of another machine.
        let is_fixed = |word: &&String| !word.contains(|c: char| c.is_ascii_digit() || c == '/' || c == '.');
        let missing: Vec<_> =
            words.iter().filter(is_fixed).filter(|word| !said.contains(word.as_str())).collect();
        assert!(missing.is_empty(), "{command} does not print {missing:?} any more, but\n{said}");
    }

    fn user_config(&self) -> PathBuf {
        self.home.path().join(".config/stdio-bus/bus.json")
    }

    fn writes_config(&self, text: &str) {
        fs::write(self.folder.join("bus.json"), self.filled(text)).expect("the folder is ours");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for (child, _) in &mut self.servers {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            let _ = child.wait();
        }
    }
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn goes_on(command: &str) -> bool {
    let typed = command.split('#').next().unwrap_or_default();
    GOES_ON.iter().any(|long| typed.trim_end() == long.trim_end()) || typed.starts_with("stdio-bus serve ")
}

#[test]
fn every_command_of_the_readme_works_as_it_stands_there() {
    let all: Vec<_> = blocks().into_iter().filter(|block| is_code(block)).collect();
    for (start, why) in NOT_RUN {
        let is_there = all.iter().flat_map(|block| commands(block)).any(|it| it.command.starts_with(start));
        assert!(is_there, "the README has no {start:?} any more, which was not run because {why}");
    }
    let mut place = Place::new();
    let has_nc = place.home.path().join("bin/nc").exists();
    for block in &all {
        let shown = commands(block);
        let first = &shown[0].command;
        if first.starts_with("stdio-bus detect") {
            // It makes one.
            let _ = fs::remove_file(place.folder.join("bus.json"));
        } else {
            place.writes_config(include_str!("../../bus.json"));
        }
        if first.starts_with("nc ") {
            place.starts("stdio-bus serve --web off");
        }
        for it in &shown {
            if NOT_RUN.iter().any(|(start, _)| it.command.starts_with(start)) {
                continue;
            }
            if it.command.starts_with("nc ") && !has_nc {
                skips("OpenBSD's nc");
                continue;
            }
            if it.command.starts_with("stdio-bus reload") {
                place.writes_config(
                    &include_str!("../../bus.json").replace("\"instances\": 2", "\"instances\": 3"),
                );
            }
            if goes_on(&it.command) {
                place.starts(&it.command);
            } else {
                place.runs(it);
            }
            if it.command.starts_with("stdio-bus detect --write") {
                // The port that it has otherwise may be taken.
                let written = fs::read_to_string(place.user_config()).expect("it was written");
                let listen = place.filled("{\n  \"listen\": [\"tcp://127.0.0.1:9000\"],");
                fs::write(place.user_config(), written.replacen('{', &listen, 1))
                    .expect("the folder is ours");
            }
            if it.command.starts_with("stdio-bus stop") {
                place.all_end();
            }
        }
        if !place.servers.is_empty() || place.home.path().join("stdio-bus/bus.sock").exists() {
            place.runs(&Shown { command: "stdio-bus stop".to_owned(), prints: Vec::new() });
            place.all_end();
        }
    }
}

#[test]
fn the_bus_json_of_the_readme_is_good() {
    let is_config =
        |block: &Vec<&str>| block[0] == "{" && block.iter().any(|line| line.contains("\"pools\""));
    let configs: Vec<_> = blocks().into_iter().filter(is_config).collect();
    assert_eq!(configs.len(), 2, "the README shows one, and the tour another");
    for config in configs {
        let place = Place::new();
        place.writes_config(&config.join("\n"));
        let out = place.shell("MY_TOKEN=x stdio-bus check").output().expect("sh runs");
        // This machine has neither the agent nor the folder.
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        let is_expected = |line: &str| line.contains("command: \"npx\"") || line.contains("cwd: /srv/work");
        assert!(!said.is_empty() && said.lines().all(is_expected), "{said}");
    }
}
