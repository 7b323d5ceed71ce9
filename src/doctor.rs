//! `doctor`: looks at this set-up as a whole, and says what is wrong with it and what to do about it.
//!
//! It changes nothing, and starts nothing but the commands with which agents say whether they are logged in.

use std::env;
use std::fmt;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clients::{Fault, status, with_tilde};
use kernel_core::config::{Address, Config, Program};
use kernel_shell::{check_socket_folder, config, find_program};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use rpc::text::replace_control;
use serde_json::{Value, json};
use workers::cli::runtimes;
use workers::detect::{Found, detect};
use workers::folders;

use crate::bus_args::BusArgs;
use crate::output::{BOLD, GREEN, RED, print, print_styled, styled};
use crate::{check, machine, paths, unexpanded};

/// Sessions, logs and handshakes are small, but a full disk stops agents.
const LOW_DISK_BYTES: u64 = 512 << 20;
/// Each client takes one and each worker three.
const FEW_FILES: u64 = 1024;
const PORT_TIMEOUT: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  stdio-bus doctor
  stdio-bus doctor --json | jq '.[] | select(.level == \"bad\")'

Exit codes: 0 nothing is wrong, 1 something is.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Good,
    /// It may be meant so.
    Odd,
    Bad,
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Level::Good => "good",
            Level::Odd => "odd",
            Level::Bad => "bad",
        })
    }
}

struct Finding {
    level: Level,
    subject: &'static str,
    says: String,
    /// What the user can do.
    cure: Option<String>,
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn good(&mut self, subject: &'static str, says: impl Into<String>) {
        self.0.push(Finding { level: Level::Good, subject, says: says.into(), cure: None });
    }

    fn odd(&mut self, subject: &'static str, says: impl Into<String>, cure: impl Into<String>) {
        self.0.push(Finding { level: Level::Odd, subject, says: says.into(), cure: Some(cure.into()) });
    }

    fn bad(&mut self, subject: &'static str, says: impl Into<String>, cure: impl Into<String>) {
        self.0.push(Finding { level: Level::Bad, subject, says: says.into(), cure: Some(cure.into()) });
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let mut findings = Findings::default();
    look_at_program(&mut findings);
    look_at_folders(&mut findings);
    let config = look_at_config(args, &mut findings);
    let running = look_at_bus(args, config.as_ref(), &mut findings);
    if let Some(config) = &config {
        look_at_logins(config, &mut findings);
    }
    if let Some(config) = &config {
        look_at_history(config, running.as_ref(), &mut findings);
    }
    if let Some(status) = &running {
        look_at_workers(status, &mut findings);
    }
    look_at_limits(&mut findings);
    let is_bad = findings.0.iter().any(|finding| finding.level == Level::Bad);
    let printed = if args.json { print(&as_json(&findings)) } else { print_styled(&describe(&findings)) };
    if is_bad { ExitCode::FAILURE } else { printed }
}

fn as_json(findings: &Findings) -> String {
    let all: Vec<Value> = findings
        .0
        .iter()
        .map(|Finding { level, subject, says, cure }| {
            json!({ "level": level.to_string(), "about": subject, "says": says, "do": cure })
        })
        .collect();
    format!("{}\n", Value::from(all))
}

fn describe(findings: &Findings) -> String {
    let mut text = String::new();
    for Finding { level, subject, says, cure } in &findings.0 {
        let mark = match level {
            Level::Good => styled(GREEN, "good"),
            Level::Odd => styled(BOLD, "odd "),
            Level::Bad => styled(RED, "bad "),
        };
        text += &format!("{mark}  {subject:8}  {}\n", says.replace('\n', "\n                "));
        if let Some(cure) = cure {
            text += &format!("                {}\n", styled(BOLD, cure));
        }
    }
    let count = |level| findings.0.iter().filter(|finding| finding.level == level).count();
    match (count(Level::Bad), count(Level::Odd)) {
        (0, 0) => text + "Nothing is wrong.\n",
        (0, odd) => format!("{text}Nothing is wrong; {odd} to look at.\n"),
        (bad, _) => format!("{text}{bad} to mend.\n"),
    }
}

/// Whether the shell, IDEs and this command mean the same program.
fn look_at_program(findings: &mut Findings) {
    let own = env::current_exe().ok().and_then(|path| fs::canonicalize(path).ok());
    let Some(path) = env::var_os("PATH") else {
        return findings.odd(
            "PATH",
            "PATH is not set",
            "Set it, or name programs by absolute paths in bus.json.",
        );
    };
    let found = find_program("stdio-bus", &path).ok().and_then(|path| fs::canonicalize(path).ok());
    let shown = |path: &Option<PathBuf>| path.as_deref().map(shown_path).unwrap_or_default();
    match (&own, &found) {
        (Some(own), Some(found)) if own == found => {
            findings.good("program", format!("{} {}", shown_path(own), env!("BUS_VERSION")));
        }
        (_, Some(_)) => findings.odd(
            "program",
            format!("this is {}, but PATH has {}", shown(&own), shown(&found)),
            "Remove the one that you do not mean, or change the order of PATH.",
        ),
        (_, None) => findings.odd(
            "program",
            format!("{} is not in PATH", shown(&own)),
            format!("Add its folder: export PATH=\"{}:$PATH\"", own_folder(own.as_deref())),
        ),
    }
}

fn own_folder(program: Option<&Path>) -> String {
    program.and_then(Path::parent).map(|folder| folder.display().to_string()).unwrap_or_default()
}

/// Where sessions, logs, handshakes and the socket of the user are kept.
fn look_at_folders(findings: &mut Findings) {
    for (name, folder, variable) in [
        ("state", folders::state(), "XDG_STATE_HOME"),
        ("config", folders::config(), "XDG_CONFIG_HOME"),
        ("runtime", folders::runtime(), "XDG_RUNTIME_DIR"),
    ] {
        let Some(folder) = folder else {
            let cure = format!("Set HOME or {variable}.");
            findings.bad("folders", format!("there is no folder for its {name}: HOME is not set"), cure);
            continue;
        };
        let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        if access(existing, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
            let cure =
                format!("chown or chmod {}, or set {variable} to a folder of yours.", existing.display());
            findings.bad("folders", format!("{} cannot be written to", shown_path(existing)), cure);
        }
        if name == "runtime"
            && folder.exists()
            && let Err(error) = check_socket_folder(&folder)
        {
            findings.bad("folders", error.to_string(), format!("chmod 700 {}", folder.display()));
        }
    }
    if let Some(state) = folders::state() {
        look_at_disk(&state, findings);
    }
}

fn look_at_disk(state: &Path, findings: &mut Findings) {
    let existing = state.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let Ok(about) = statvfs(existing) else { return };
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "macOS counts blocks in 32 bits")]
    let free = u64::from(about.blocks_available()).saturating_mul(about.fragment_size() as u64);
    let shown = format!("{} MB free at {}", free >> 20, shown_path(existing));
    if free < LOW_DISK_BYTES {
        findings.bad("disk", shown, "Make room: agents and the bus write there.");
    } else {
        findings.good("disk", shown);
    }
}

fn look_at_config(args: &Args, findings: &mut Findings) -> Option<Config> {
    let path = match args.bus.config_path() {
        Ok(path) => path,
        Err(_) => {
            let cure = "Create one: `stdio-bus detect --write` finds the agents of this machine.";
            findings.bad("bus.json", "there is none, neither in this folder nor for you", cure);
            return None;
        }
    };
    let config = match config::load(&path) {
        Ok(config) => config,
        Err(faults) => {
            findings.bad("bus.json", faults.to_string(), "Mend the file; `stdio-bus check` looks again.");
            return None;
        }
    };
    let mut is_good = true;
    let text = fs::read_to_string(&path).unwrap_or_default();
    for warning in unexpanded::find(&text) {
        is_good = false;
        findings.odd("bus.json", warning.to_string(), format!("Look at {}.", shown_path(&path)));
    }
    for pool in &config.pools {
        let started = machine::started(pool);
        let faults = machine::program(&started).err().into_iter();
        for fault in faults.chain(started.cwd.as_deref().and_then(machine::folder_fault)) {
            is_good = false;
            findings.bad(
                "bus.json",
                format!("pool {}: {fault}", pool.id),
                format!("Mend the pool in {}, or remove it there.", shown_path(&path)),
            );
        }
    }
    if is_good {
        let pools: Vec<&str> = config.pools.iter().map(|pool| &*pool.id).collect();
        findings.good("bus.json", format!("{}: {}", shown_path(&path), pools.join(", ")));
    }
    Some(config)
}

/// Where what is said goes, and whether it gets there.
fn look_at_history(config: &Config, running: Option<&Value>, findings: &mut Findings) {
    let says = check::history_of(config);
    let history = running.map(|status| &status["history"]).filter(|history| history.is_object());
    let counted = history.map(|history| &history["counted"]);
    let failing = counted.and_then(|counted| counted["failing"].as_str());
    let is_up = history.is_none_or(|history| history["state"] == "up");
    let words = history.filter(|_| !is_up).and_then(|history| history["last_words"].as_str());
    let gaps = counted.and_then(|counted| counted["gaps"].as_u64()).unwrap_or_default();
    match failing.or(words) {
        Some(why) => findings.bad(
            "history",
            format!("{says}, but it cannot now: {}", replace_control(why, ' ')),
            "Make room or mend the folder; what was said meanwhile is a gap. \"history\": false keeps nothing.",
        ),
        None if gaps > 0 => findings.odd(
            "history",
            format!("{says}, with {gaps} gaps since the bus was started"),
            "The disk or this machine was too slow, or the folder was not there; the transcripts say where.",
        ),
        None => findings.good("history", says),
    }
}

/// Whether a bus answers, and which. Returns its status.
fn look_at_bus(args: &Args, config: Option<&Config>, findings: &mut Findings) -> Option<Value> {
    let fetched = args.bus.target().and_then(|target| status::fetch(&target));
    let status: Value = match fetched {
        Ok(status) => serde_json::from_str(status.get()).unwrap_or_default(),
        Err(Fault::NoAddress(_) | Fault::Config(_)) if config.is_none() => return None,
        Err(fault) => {
            look_at_ports(config, findings);
            match &fault {
                Fault::Unreachable(_) => findings.odd("bus", "no bus runs", "Run it: stdio-bus start"),
                Fault::Unauthorized(_) | Fault::Token(_) => {
                    findings.bad(
                        "bus",
                        fault.to_string(),
                        "`stdio-bus token --help` says where the token is.",
                    );
                }
                _ => findings.bad("bus", fault.to_string(), "Stop what answers there, or change \"listen\"."),
            }
            return None;
        }
    };
    let running = status["version"].as_str().unwrap_or_default();
    let own = env!("CARGO_PKG_VERSION");
    let pid = &status["pid"];
    if running != own {
        let cure = "Restart it: stdio-bus stop, then stdio-bus start";
        findings.odd("bus", format!("the bus (pid {pid}) is {running}, this program is {own}"), cure);
    } else {
        let addresses: Vec<_> =
            status["listening"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        findings.good("bus", format!("pid {pid}, {running}, at {}", with_tilde(&addresses.join(", "))));
    }
    let of_running =
        status["config"].as_str().map(PathBuf::from).and_then(|path| fs::canonicalize(path).ok());
    let own = args.bus.config_path().ok().and_then(|path| fs::canonicalize(path).ok());
    if let (Some(running), Some(own)) = (&of_running, &own)
        && running != own
    {
        findings.odd(
            "bus",
            format!("the running bus serves {}, not {}", shown_path(running), shown_path(own)),
            "That of this folder is started with `stdio-bus start` here, at an address of its own.",
        );
    }
    Some(status)
}

/// No bus answers: perhaps another program has its port.
fn look_at_ports(config: Option<&Config>, findings: &mut Findings) {
    for listen in config.iter().flat_map(|config| &config.listen) {
        let Address::Tcp { host, port } = &listen.at else { continue };
        let addresses = (&**host, *port).to_socket_addrs().into_iter().flatten();
        let is_taken = addresses.into_iter().any(|at| TcpStream::connect_timeout(&at, PORT_TIMEOUT).is_ok());
        if is_taken && *port != 0 {
            let cure =
                format!("Choose another port in \"listen\" of {}, or end that program.", config_name());
            findings.bad("port", format!("another program listens at {}", listen.at), cure);
        }
    }
}

fn config_name() -> String {
    paths::config_path(None).map_or_else(|_| "bus.json".to_owned(), |path| shown_path(&path))
}

/// Asks the CLIs behind the pools whether they are logged in.
fn look_at_logins(config: &Config, findings: &mut Findings) {
    let Ok(rows) = runtimes::all() else { return };
    let is_used = |binaries: &[String], id: &str| {
        config.pools.iter().any(|pool| {
            let program = match &pool.program {
                Program::ThisBinary => {
                    return pool.args.windows(2).any(|two| two[0] == "--runtime" && two[1] == id);
                }
                Program::At(path) => path.file_name().map(|name| name.to_string_lossy().into_owned()),
                Program::InPath(name) => Some(name.clone()),
            };
            program.is_some_and(|program| binaries.contains(&program))
        })
    };
    let rows: Vec<_> = rows.into_iter().filter(|row| is_used(&row.binaries, &row.id)).collect();
    for Found { id, version, logged_in, reason, .. } in detect(&rows, false, |_| ()) {
        match (logged_in, reason) {
            (_, Some(reason)) => findings.bad("agent", format!("{id}: {reason}"), "Install it again."),
            (Some(false), None) => {
                findings.bad(
                    "agent",
                    format!("{id} is not logged in"),
                    format!("stdio-bus agents login {id}"),
                );
            }
            (Some(true), None) => {
                findings.good("agent", format!("{id} {}, logged in", version.unwrap_or_default()));
            }
            (None, None) => findings.good("agent", format!("{id} {}", version.unwrap_or_default())),
        }
    }
}

/// Workers of the running bus that rest after a failure or are broken, the first of each pool.
fn look_at_workers(status: &Value, findings: &mut Findings) {
    for pool in status["pools"].as_array().into_iter().flatten() {
        let workers: Vec<&Value> = pool["workers"].as_array().into_iter().flatten().collect();
        let is_broken = |worker: &&&Value| worker["state"] == "broken";
        let down = workers.iter().find(is_broken);
        let Some(worker) = down.or_else(|| workers.iter().find(|worker| status::is_down(worker))) else {
            continue;
        };
        let name = replace_control(pool["id"].as_str().unwrap_or_default(), '?');
        let (why, state) = (status::why_down(worker), worker["state"].as_str().unwrap_or_default());
        let says = format!("pool {name} is {state}: {why}");
        let cure = format!("stdio-bus logs {name}, then stdio-bus restart {name}");
        // The others of the pool go on while one rests.
        if workers.iter().any(|worker| worker["state"] == "up") && state == "resting" {
            findings.odd("bus", format!("a worker of {says}"), cure);
        } else {
            findings.bad("bus", says, cure);
        }
    }
}

fn look_at_limits(findings: &mut Findings) {
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    if most < FEW_FILES {
        let cure = "Raise it: ulimit -Hn 65536, or LimitNOFILE= in the unit of the service";
        findings.odd("limits", format!("a process may open {most} files only"), cure);
    } else {
        findings.good("limits", format!("{most} open files"));
    }
}

fn shown_path(path: &Path) -> String {
    with_tilde(&path.display().to_string())
}
