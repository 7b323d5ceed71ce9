//! `check`: reports what is wrong with the configuration, or describes what would run.
//!
//! Beyond validating bus.json it looks at this machine: a missing program or folder is a fault, since its
//! pool could not run. It starts nothing without --probe, and prints no value of a variable.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kernel_core::config::{Config, Mode, PoolConfig};
use kernel_shell::config::{self, ConfigError, ConfigErrors};
use rpc::text::{escape_control, quoted, replace_control};
use serde_json::{Value, json};

use crate::output::{BOLD, GREEN, RED, print_styled, report, styled};
use crate::probe::probe;
use crate::{machine, paths, unexpanded};

const EXAMPLES: &str = "\
Examples:
  stdio-bus check                            ./bus.json
  stdio-bus check --config my.json --probe   and does each agent really start?

Prints one line per fault, with its place in the file, on stderr. What is probably not meant is a warning there. \
Exit codes: 0 good, 1 there are faults.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Also start one worker of each pool, initialize it and show what it is
    #[arg(long)]
    probe: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let path = match paths::config_path(args.config.as_deref()) {
        Ok(path) => path,
        Err(message) => return report(format_args!("stdio-bus: {message}"), 1),
    };
    let config = match config::load(&path) {
        Ok(config) => config,
        Err(faults) => return report_faults(&faults),
    };
    let mut faults = Vec::new();
    let report = describe(&path, &config, &mut faults);
    let mut printed = print_styled(&report);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let in_file = |errors| ConfigErrors::in_file(path.display().to_string(), &text, errors);
    let warnings = unexpanded::find(&text).into_iter().chain(config::ignored_keys(&text));
    let warnings = warnings.chain(without_account(&config));
    report_warnings(&in_file(warnings.collect()));
    if args.probe && faults.is_empty() {
        printed = probe_all(&config, &mut faults);
    }
    if faults.is_empty() { printed } else { report_faults(&in_file(faults)) }
}

/// A cluster whose servers do not know who is who.
fn without_account(config: &Config) -> Vec<ConfigError> {
    let Some(cluster) = config.cluster.as_ref().filter(|cluster| !cluster.has_account()) else {
        return Vec::new();
    };
    let message = if cluster.offer.is_empty() {
        "without \"creds\" or \"nkey\" everybody who reaches the NATS server can pass for a node, and hear what is said"
    } else {
        "everybody who reaches the NATS server, each user of this machine too, can run commands here as your user"
    };
    let key = if cluster.insecure { "cluster.insecure" } else { "cluster.url" };
    vec![ConfigError { path: key.to_owned(), message: message.to_owned() }]
}

/// Starts one worker of each pool in turn, and prints each answer as soon as it comes.
fn probe_all(config: &Config, faults: &mut Vec<ConfigError>) -> ExitCode {
    let this_binary = env::current_exe().unwrap_or_default();
    let mut printed = ExitCode::SUCCESS;
    for (index, pool) in config.pools.iter().enumerate() {
        let name = styled(BOLD, format_args!("pool {}", escape_control(&pool.id)));
        match probe(pool, &this_binary, &json!({}), config.limits.init_timeout) {
            Ok(result) => {
                let line = format!("{name} {}: {}\n", styled(GREEN, "answers"), introduce(&result));
                printed = print_styled(&line);
            }
            Err(message) => faults.push(ConfigError { path: format!("pools[{index}]"), message }),
        }
    }
    printed
}

/// Describes an agent by its answer to initialize.
fn introduce(result: &Value) -> String {
    let info = &result["agentInfo"];
    let name = info["title"].as_str().or(info["name"].as_str()).unwrap_or("an agent without a name");
    let version = info["version"].as_str().unwrap_or("without a version");
    let agent = &result["agentCapabilities"];
    let mut can = Vec::new();
    if agent["loadSession"] == true {
        can.push("load");
    }
    if let Some(sessions) = agent["sessionCapabilities"].as_object() {
        can.extend(sessions.iter().filter(|(_, offered)| !offered.is_null()).map(|(name, _)| name.as_str()));
    }
    if let Some(prompts) = agent["promptCapabilities"].as_object() {
        can.extend(prompts.iter().filter(|(_, offered)| **offered == true).map(|(name, _)| name.as_str()));
    }
    let can = if can.is_empty() { "nothing optional".to_owned() } else { can.join(", ") };
    let protocol = &result["protocolVersion"];
    let shown = format!("{name} {version}, protocol {protocol}, can {can}");
    replace_control(&shown, '?')
}

fn report_faults(faults: &ConfigErrors) -> ExitCode {
    for (index, error) in faults.errors.iter().enumerate() {
        let ConfigError { path, message } = error;
        let _ = match path.as_str() {
            "$" => {
                let alone = ConfigErrors::in_file(faults.file.clone(), "", vec![error.clone()]);
                writeln!(anstream::stderr(), "{alone}")
            }
            _ => writeln!(anstream::stderr(), "{}: {}: {message}", faults.place(index), styled(RED, path)),
        };
    }
    ExitCode::FAILURE
}

fn report_warnings(warnings: &ConfigErrors) {
    for (index, ConfigError { path, message }) in warnings.errors.iter().enumerate() {
        let _ = writeln!(anstream::stderr(), "{}: warning: {path}: {message}", warnings.place(index));
    }
}

/// Describes what would run. Adds what this machine lacks to `faults`.
fn describe(path: &Path, config: &Config, faults: &mut Vec<ConfigError>) -> String {
    let mut pools = String::new();
    for (index, pool) in config.pools.iter().enumerate() {
        let mut note = |key: &str, message: String| {
            faults.push(ConfigError { path: format!("pools[{index}].{key}"), message });
        };
        let started = machine::started(pool);
        let program = machine::program(&started).unwrap_or_else(|message| {
            note("command", message);
            started.program.to_string()
        });
        if let Some(message) = started.cwd.as_deref().and_then(machine::folder_fault) {
            note("cwd", message);
        }
        describe_pool(&mut pools, pool, &program);
    }
    let mut text = String::new();
    let verdict = if faults.is_empty() { styled(GREEN, "good") } else { styled(RED, "would not run here") };
    let _ = writeln!(text, "{}: {verdict}", path.display());
    for listen in &config.listen {
        let open = if listen.at.is_local() {
            ""
        } else {
            " (not on loopback and not encrypted: others may read all messages)"
        };
        let _ = writeln!(text, "listens at {listen}{open}");
    }
    if let Some(auth) = &config.auth {
        let _ = writeln!(text, "asks for the token in {}", auth.token_file.display());
    }
    if let Some(web) = &config.web {
        let _ = writeln!(text, "opens the web door at {web}");
    }
    let _ = writeln!(text, "{}", history_of(config));
    for target in &config.notify {
        let kinds: Vec<_> = target.on.iter().map(|kind| kind.name()).collect();
        let (place, after) = (target.place(), target.after.as_secs_f64());
        let _ = writeln!(text, "tells {place} of {} after {after}s", kinds.join(", "));
    }
    if config.trace_payloads {
        let _ = writeln!(text, "shows whole messages to clients that follow the traffic");
    }
    if let Some(pool) = &config.default_pool {
        let _ = writeln!(text, "default pool {pool}");
    }
    text + &pools
}

/// Where what is said goes.
pub(crate) fn history_of(config: &Config) -> String {
    let kept: Vec<_> = config.pools.iter().filter(|pool| pool.keep).collect();
    let folder =
        config.history.as_ref().and_then(|history| history.folder.clone().or_else(paths::history_folder));
    match (folder, kept.len()) {
        (_, 0) => "keeps nothing of what is said".to_owned(),
        (None, _) if config.history.is_none() => "keeps nothing of what is said".to_owned(),
        (None, _) => {
            "keeps nothing of what is said: there is no folder for it, set HOME or XDG_STATE_HOME".to_owned()
        }
        (Some(folder), all) if all == config.pools.len() => {
            format!("keeps what is said in {}", folder.display())
        }
        (Some(folder), _) => {
            let names: Vec<String> = kept.iter().map(|pool| escape_control(&pool.id).to_string()).collect();
            format!("keeps what is said in {}, of {}", folder.display(), names.join(", "))
        }
    }
}

fn describe_pool(text: &mut String, pool: &PoolConfig, program: &str) {
    let mode = match pool.mode {
        Mode::Shared => "shared",
        Mode::Dedicated => "dedicated",
    };
    let instances = match (pool.instances, pool.max_instances) {
        _ if !pool.nodes.is_empty() => {
            let nodes = pool.nodes.iter().map(|node| &**node).collect::<Vec<_>>();
            format!("an instance at each of {}", nodes.join(", "))
        }
        (1, 1) => "1 instance".to_owned(),
        (kept, most) if kept == most => format!("{kept} instances"),
        (kept, most) => format!("{kept} to {most} instances"),
    };
    let name = styled(BOLD, format_args!("pool {}", escape_control(&pool.id)));
    let _ = writeln!(text, "{name}: {mode}, {instances}, up to {} sessions each", pool.max_sessions);
    let args = pool.args.iter().map(|arg| format!(" {}", quoted(arg))).collect::<String>();
    let _ = writeln!(text, "  runs {}{args}", quoted(program));
    if let Some(cwd) = &pool.cwd {
        let _ = writeln!(text, "  in {}", quoted(&cwd.display().to_string()));
    }
    if !pool.env.is_empty() {
        let names = pool.env.keys().map(String::as_str).collect::<Vec<_>>();
        let _ = writeln!(text, "  with {} set", escape_control(&names.join(", ")));
    }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;

    /// The output of `check` for these pools, in a folder with a plain file `plain`.
    fn checked(pools: &str) -> (String, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("plain"), "").unwrap();
        let config =
            config::parse(&format!(r#"{{"default_pool":"a","pools":{pools}}}"#), folder.path()).unwrap();
        let mut faults = Vec::new();
        let text = describe(Path::new("bus.json"), &config, &mut faults);
        let text = strip_str(&text).to_string();
        let here = folder.path().display().to_string();
        let faults = faults.iter().map(|fault| fault.to_string().replace(&here, "HERE")).collect();
        (text.replace(&here, "HERE"), faults)
    }

    #[test]
    fn a_pool_with_nodes_is_described_with_them() {
        let (text, faults) = checked(r#"[{"id":"a","command":"/bin/{node}","nodes":["sh","cat"]}]"#);
        assert!(
            text.contains("pool a: shared, an instance at each of sh, cat, up to 64 sessions each"),
            "{text}"
        );
        assert!(faults.is_empty());
    }

    #[test]
    fn a_good_file_is_described_as_what_would_run() {
        let (text, faults) = checked(
            r#"[{"id":"a","command":"/bin/sh","args":["-c","it's",""],"cwd":".","env":{"TOKEN":"s3cret"}},
                {"id":"b","command":"sh","env":{"PATH":"bin:/bin"},
                 "instances":2,"max_instances":4,"mode":"dedicated"}]"#,
        );
        let expected = r"
bus.json: good
listens at tcp://127.0.0.1:9000
default pool a
pool a: shared, 1 to 8 instances, up to 64 sessions each
  runs /bin/sh -c 'it'\''s' ''
  in HERE
  with TOKEN set
pool b: dedicated, 2 to 4 instances, up to 64 sessions each
  runs /bin/sh
  with PATH set
";
        // Where it is kept depends on who runs the test.
        let (kept, other): (Vec<&str>, Vec<&str>) =
            text.split_inclusive('\n').partition(|line| line.starts_with("keeps "));
        assert_eq!((other.concat().as_str(), kept.len()), (expected.trim_start(), 1));
        assert!(faults.is_empty());
    }

    #[test]
    fn what_this_machine_lacks_is_a_fault_with_its_path() {
        let (text, faults) = checked(
            r#"[{"id":"a","command":"no-such-agent -y","cwd":"gone"},
                {"id":"b","command":"./gone"}, {"id":"c","command":"./plain","cwd":"plain"},
                {"id":"d","command":"./"}, {"id":"e","command":"claud"}, {"id":"f","command":"npx -y @a/b"}]"#,
        );
        let expected = [
            r#"pools[0].command: "no-such-agent -y" is not found in PATH; arguments go into "args": [...]"#,
            "pools[0].cwd: HERE/gone: No such file or directory (os error 2)",
            "pools[1].command: HERE/gone: No such file or directory (os error 2)",
            "pools[2].command: HERE/plain is not executable; `chmod +x HERE/plain` makes it so",
            "pools[2].cwd: HERE/plain is not a folder",
            "pools[3].command: HERE is not a file",
            r#"pools[4].command: "claud" is not found in PATH; did you mean "claude"?"#,
            "pools[5].command: HERE/npx -y @a/b: No such file or directory (os error 2); arguments go into \
             \"args\": [...]",
        ];
        assert_eq!(faults, expected);
        assert!(text.starts_with("bus.json: would not run here\n"), "{text}");
        // Each is said once, on stderr.
        assert!(!text.contains("is not a folder"), "{text}");
    }

    #[test]
    fn control_characters_of_an_argument_are_escaped() {
        assert_eq!(quoted("\u{1b}[2J"), r"'\u{1b}[2J'");
    }
}
