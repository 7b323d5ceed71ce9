//! `start`: runs the bus in the background, and waits until it serves.
//!
//! Where systemd runs the services of this user, the bus becomes one of them, else a process of its own. Both have the
//! environment of the shell: agents need its PATH, and some have their keys in it.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clients::connect::{StartPlan, start_bus};
use clients::{Fault, Target, UserBus, status, with_tilde};
use kernel_core::config::Address;
use kernel_shell::{UserSocket, config, find_program};
use serde_json::Value;

use crate::bus_args::BusArgs;
use crate::output::{print, report, report_fault};
use crate::{connect, paths};

/// A busy machine takes its time, and agents do not have to be up.
const START_TIMEOUT: Duration = Duration::from_secs(60);

const UNIT: &str = "stdio-bus";

const EXAMPLES: &str = "\
Examples:
  stdio-bus start                            the bus of your bus.json, or of that of this folder
  stdio-bus start --web http://127.0.0.1:9001
  stdio-bus status                           what it does
  stdio-bus stop                             end it

Where systemd runs your services, the bus is one of them: `systemctl --user status stdio-bus`, and `journalctl --user \
-u stdio-bus` has its log. Elsewhere it is a process of its own, with its log in ~/.local/state/stdio-bus/bus.log. \
After a reboot it runs again only if you enable the service of docs/INSTALL.md.

Exit codes: 0 it serves, 69 it could not be started, 78 the configuration is bad.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Open the web door at this URL instead of that of the configuration, or not at all
    #[arg(long, value_name = "URL|off", value_parser = parse_web)]
    web: Option<String>,
    /// Never as a service of systemd
    #[arg(long)]
    no_systemd: bool,
    #[command(flatten)]
    bus: BusArgs,
}

/// How the bus was brought into the background.
enum How {
    Systemd,
    /// With its log there.
    Process(PathBuf),
}

fn parse_web(text: &str) -> Result<String, String> {
    if text != "off" {
        config::parse_web(text)?;
    }
    Ok(text.to_owned())
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match start(args) {
        Ok(done) => print(&done),
        // It names the log of the bus that has just failed, so there is none to start.
        Err(fault @ Fault::Unreachable(_)) => report(format_args!("stdio-bus: {fault}"), fault.exit_code()),
        Err(fault) => report_fault(&fault),
    }
}

fn start(args: &Args) -> Result<String, Fault> {
    let config = args.bus.config_path().map_err(Fault::NoAddress)?;
    // What is wrong with the file is told here, rather than in a log.
    config::load(&config).map_err(Fault::Config)?;
    let target = target(args)?;
    if let Ok(running) = status::fetch(&target) {
        let running = serde_json::from_str(running.get()).unwrap_or_default();
        return Ok(format!("the bus runs already:\n{}", describe(&running, None)));
    }
    let mut plan = connect::plan_start(&args.bus)?;
    if let Some(web) = &args.web {
        plan.args.extend(["--web".into(), web.into()]);
    }
    let how = bring_up(args, &target, &plan)?;
    let running = status::fetch(&target)?;
    let running: Value = serde_json::from_str(running.get()).unwrap_or_default();
    Ok(describe(&running, Some(&how)))
}

/// Where the bus will answer: at an address of its configuration, else at the socket of this user.
fn target(args: &Args) -> Result<Target, Fault> {
    match (args.bus.own_target(), paths::user_socket()) {
        (Err(Fault::NoAddress(_)), Some(socket)) => {
            let user = UserBus { config: UserSocket::config_link(&socket), socket: socket.clone() };
            Ok(Target { addresses: vec![Address::Unix(socket)], token: None, user_bus: Some(user) })
        }
        (target, _) => target,
    }
}

fn bring_up(args: &Args, target: &Target, plan: &StartPlan) -> Result<How, Fault> {
    if !args.no_systemd && has_user_services() {
        match start_service(plan) {
            Ok(()) => {
                start_bus(target, None, START_TIMEOUT)?;
                return Ok(How::Systemd);
            }
            Err(why) => {
                let _ = writeln!(
                    io::stderr(),
                    "stdio-bus: systemd does not start it ({why}), so it is a process of its own"
                );
            }
        }
    }
    start_bus(target, Some(plan), START_TIMEOUT)?;
    Ok(How::Process(plan.log_path()))
}

/// Whether systemd runs services of this user, and can be told to.
fn has_user_services() -> bool {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.is_some_and(|folder| folder.join("systemd/private").exists())
        && find_program("systemd-run", &env::var_os("PATH").unwrap_or_default()).is_ok()
}

/// Returns when systemd has heard from the bus that it is ready.
fn start_service(plan: &StartPlan) -> Result<(), String> {
    let mut command = Command::new("systemd-run");
    command.args(["--user", "--quiet", "--collect", "--service-type=notify"]);
    command.arg(format!("--unit={UNIT}")).arg("--property=Restart=on-failure");
    command.args(["--property=NotifyAccess=all", "--working-directory"]).arg(&plan.folder);
    // Names alone: every user of the machine can read a command line, and values may be keys.
    command.args(env::vars_os().filter_map(|(name, _)| set_variable(&name)));
    command.arg("--").arg(&plan.program).args(plan.args.iter().skip_while(|arg| *arg != "serve"));
    let out = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(rpc::text::strip_control(said.lines().next().unwrap_or("it gives no reason")))
}

fn set_variable(name: &OsString) -> Option<String> {
    let name = name.to_str()?;
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_for_another =
        ["NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_"];
    let is_private = is_for_another.iter().any(|prefix| name.starts_with(prefix));
    (is_plain && !is_private && !name.is_empty()).then(|| format!("--setenv={name}"))
}

/// Where the bus is, and what to do next.
fn describe(status: &Value, how: Option<&How>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "the bus (pid {}) serves {}", status["pid"], words(&status["config"]));
    let addresses: Vec<_> = status["listening"].as_array().into_iter().flatten().map(words).collect();
    let _ = writeln!(text, "at {}", addresses.join(", "));
    match how {
        Some(How::Systemd) => {
            text += "as the service stdio-bus of systemd; its log: journalctl --user -u stdio-bus\n";
        }
        Some(How::Process(log)) => drop(writeln!(text, "log {}", with_tilde(&log.display().to_string()))),
        None => {}
    }
    let pools: Vec<_> =
        status["pools"].as_array().into_iter().flatten().map(|pool| words(&pool["id"])).collect();
    let _ = writeln!(text, "pools {}", pools.join(", "));
    if let Some(first) = pools.first() {
        let _ = writeln!(text, "Try: stdio-bus run --pool {first} \"hello\"");
    }
    text
}

fn words(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    rpc::text::replace_control(&with_tilde(text), ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_gets_names_of_variables_and_no_values() {
        let named = |name: &str| set_variable(&OsString::from(name));
        assert_eq!(named("OPENAI_API_KEY").as_deref(), Some("--setenv=OPENAI_API_KEY"));
        for private in ["NOTIFY_SOCKET", "LISTEN_FDS", "BASH_FUNC_x%%", ""] {
            assert_eq!(named(private), None, "{private}");
        }
    }
}
