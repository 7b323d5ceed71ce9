//! Manual pages, exit codes and environment variables.
//!
//! Like docs/CLI.md, all of it is generated from the one definition of the command line.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode, Stdio};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use clients::exit;

use crate::Cli;
use crate::output::{print, report};

pub(crate) const EXIT_CODES: [(&str, &str); 12] = [
    ("0", "success"),
    ("1", "failure; `check`: the configuration has errors; `call` and `run`: the answer is an error"),
    ("2", "bad usage"),
    ("3", "`run`: the agent took too long"),
    ("5", "`run`: a permission was refused without asking you"),
    ("69", "no bus, node or NATS server answers"),
    ("70", "internal error in the event loop; a supervisor may restart the bus"),
    ("73", "`token`, `man`: the file cannot be created or exists"),
    ("75", "another bus has the socket; `agent nats`: no node has room"),
    ("77", "the bus or NATS refuses you, or a program of another user listens in its place"),
    ("78", "bad configuration; restarting will not help"),
    ("128 + N", "ended by signal N, so 130 after Ctrl-C"),
];

pub(crate) const VARIABLES: [(&str, &str); 10] = [
    (
        "STDIO_BUS_CONFIG",
        "the configuration, where --config names none [./bus.json, else ~/.config/stdio-bus/bus.json]",
    ),
    ("STDIO_BUS_RUNTIMES", "agent CLIs of your own [~/.config/stdio-bus/runtimes.json]"),
    ("RUST_LOG", "what the bus logs: error, warn, info, debug, trace, off [info]"),
    ("NO_COLOR", "no colours, if set to anything but the empty string"),
    ("TERM", "`dumb`: no colours, no animation"),
    ("XDG_CONFIG_HOME", "where stdio-bus/ has bus.json, the token and runtimes.json [~/.config]"),
    ("XDG_STATE_HOME", "where stdio-bus/ keeps sessions, handshakes and marks of processes [~/.local/state]"),
    ("NOTIFY_SOCKET", "set by a service manager, which hears that the bus is up and alive"),
    ("LISTEN_FDS", "set by a service manager that has opened sockets for the bus (with LISTEN_PID)"),
    ("OPENAI_...", "those of the OpenAI agent: `stdio-bus agent openai --help`"),
];

const MAN_EXAMPLES: &str = "\
Examples:
  stdio-bus man                              read the page of the program
  stdio-bus man agent openai                 that of one command
  stdio-bus man --dir ~/.local/share/man/man1
                                             all of them, for `man stdio-bus-serve`";

#[derive(clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// The command, such as `serve` or `agent openai` [default: the program itself]
    command: Vec<String>,
    /// Write the pages of all commands into this folder instead
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

pub(crate) fn man(args: &ManArgs) -> ExitCode {
    let program = full_command();
    if let Some(folder) = &args.dir {
        return match write_pages(&program, folder) {
            Ok(count) => report(format_args!("{}: {count} pages written", folder.display()), 0),
            Err(error) => {
                report(format_args!("stdio-bus: {}: {error}", folder.display()), exit::CANNOT_CREATE)
            }
        };
    }
    let mut command = &program;
    for name in &args.command {
        let Some(inner) = visible_subcommands(command).find(|inner| inner.get_name() == name) else {
            let known: Vec<_> = visible_subcommands(command).map(Command::get_name).collect();
            let known = if known.is_empty() { "no more".to_owned() } else { known.join(", ") };
            return report(
                format_args!("stdio-bus: no command is called {name:?}; the commands are {known}"),
                2,
            );
        };
        command = inner;
    }
    let page = page(command);
    if io::stdout().is_terminal() && is_shown_by_man(&page) { ExitCode::SUCCESS } else { print(&page) }
}

/// On a terminal `man` formats the page. False: there is none, or it cannot.
fn is_shown_by_man(page: &str) -> bool {
    let man =
        process::Command::new("man").args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn();
    let Ok(mut man) = man else { return false };
    // A user may leave the pager before it has read everything.
    let _ = man.stdin.take().map(|mut stdin| stdin.write_all(page.as_bytes()));
    man.wait().is_ok_and(|status| status.success())
}

/// The end of `--help`: what concerns all commands.
pub(crate) fn appendix(examples: &str) -> String {
    let mut text = format!("{examples}\n\nExit codes:\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "  {code:<8} {meaning}");
    }
    text.push_str("\nEnvironment:\n");
    for (name, meaning) in VARIABLES {
        let _ = writeln!(text, "  {name:<18} {meaning}");
    }
    text
}

/// Every subcommand knows its full name.
pub(crate) fn full_command() -> Command {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    program
}

pub(crate) fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

/// The command itself first, then its subcommands in the order of the help.
pub(crate) fn with_subcommands(command: &Command) -> Vec<&Command> {
    let mut all = vec![command];
    all.extend(visible_subcommands(command).flat_map(with_subcommands));
    all
}

fn write_pages(program: &Command, folder: &Path) -> io::Result<usize> {
    fs::create_dir_all(folder)?;
    let commands = with_subcommands(program);
    for command in &commands {
        let name = command.get_display_name().unwrap_or(command.get_name());
        fs::write(folder.join(format!("{name}.1")), page(command))?;
    }
    Ok(commands.len())
}

fn page(command: &Command) -> String {
    let is_program = command.get_name() == "stdio-bus";
    let man =
        Man::new(command.clone()).source(format!("stdio-bus {}", env!("BUS_VERSION"))).manual("stdio Bus");
    let mut page = Vec::new();
    let mut rest = Roff::default();
    let mut write = || -> io::Result<()> {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if visible_subcommands(command).next().is_some() {
            man.render_subcommands_section(&mut page)?;
        }
        if let Some(examples) = command.get_after_help() {
            rest.control("SH", ["EXAMPLES"]);
            for paragraph in examples.to_string().trim_start_matches("Examples:\n").split("\n\n") {
                // Command lines keep their line breaks.
                let typed = paragraph.contains("  ");
                rest.control("PP", []).control(if typed { "nf" } else { "fi" }, []).text([roman(paragraph)]);
            }
            rest.control("fi", []);
        }
        if is_program {
            list(&mut rest, "EXIT STATUS", &EXIT_CODES);
            list(&mut rest, "ENVIRONMENT", &VARIABLES);
        } else {
            rest.control("SH", ["SEE ALSO"])
                .text([bold("stdio-bus"), roman("(1), its exit status and environment")]);
        }
        rest.to_writer(&mut page)
    };
    write().expect("a vector takes all");
    String::from_utf8_lossy(&page).into_owned()
}

fn list(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (name, meaning) in entries {
        roff.control("TP", []).text([bold(*name)]).text([roman(*meaning)] as [Inline; 1]);
    }
}
