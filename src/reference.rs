//! Generates docs/CLI.md from the command line.
//!
//! `GOLDEN=write cargo test --bin stdio-bus` writes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::Cli;
use crate::manual::{EXIT_CODES, VARIABLES, full_command, with_subcommands};

const COLUMNS: usize = 100;

#[test]
fn docs_cli_md_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CLI.md");
    let generated = reference();
    if std::env::var_os("GOLDEN").is_some_and(|value| value == "write") {
        fs::write(&path, &generated).expect("docs/CLI.md is written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == generated,
        "docs/CLI.md is stale; GOLDEN=write cargo test --bin stdio-bus writes it anew"
    );
}

#[test]
fn every_command_has_examples() {
    let program = full_command();
    let bare = with_subcommands(&program).into_iter().filter(|command| command.get_after_help().is_none());
    assert_eq!(bare.map(Command::get_name).collect::<Vec<_>>(), [""; 0]);
}

fn reference() -> String {
    let mut program = Cli::command().disable_help_subcommand(true).term_width(COLUMNS);
    program.build();
    let commands = with_subcommands(&program);
    let mut text = "# The command line\n\nMade from what the program itself says (`stdio-bus COMMAND -h`), and held \
                    against it by a test.\n`stdio-bus man` has the same as manual pages.\n\n| command | |\n|---|---|\n"
        .to_owned();
    for command in &commands {
        let name = name(command);
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| [`{name}`](#{}) | {about} |", name.replace(' ', "-"));
    }
    text.push_str("\n## Exit codes\n\n| | |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    text.push_str("\n## Environment\n\nDefaults are in brackets.\n\n| | |\n|---|---|\n");
    for (name, meaning) in VARIABLES {
        let _ = writeln!(text, "| `{name}` | {meaning} |");
    }
    for command in commands {
        let name = name(command);
        let help = command.clone().render_help().to_string();
        let lines = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.trim_end());
    }
    text
}

fn name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}
