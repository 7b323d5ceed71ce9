//! `detect`: lists the agent CLIs of this machine, and adds pools for them to bus.json.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clients::table::{self, Cell};
use kernel_shell::config;
use serde_json::Value;
use workers::cli::runtimes;
use workers::detect::{Found, detect};

use crate::output::{BOLD, GREEN, RED, print, print_styled, report, styled};
use crate::paths::config_path;

/// Padded to the longest value of a column that is always shown at its full width.
const HEADERS: [&str; 5] = ["AGENT", "VERSION", "SPEAKS  ", "LOGIN    ", "WHERE"];

const EXAMPLES: &str = "\
Examples:
  stdio-bus detect                           a table, and a pool for each
  stdio-bus detect --write                   and the pools into ./bus.json
  stdio-bus detect --models --json | jq '.[] | select(.available) | {id, models}'";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print everything that was found out as JSON
    #[arg(long)]
    json: bool,
    /// Ask each for its models too, which starts those that only tell over ACP
    #[arg(long)]
    models: bool,
    /// Add a pool for each to the configuration, beside what is there
    #[arg(long)]
    write: bool,
    /// The configuration that --write adds to [default: $STDIO_BUS_CONFIG, else ./bus.json, else
    /// ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let rows: Vec<_> = match runtimes::all() {
        Ok(rows) => rows.into_iter().filter(|row| row.detect).collect(),
        Err(why) => return report(format_args!("stdio-bus: {why}"), 78),
    };
    let shows_progress = io::stderr().is_terminal();
    let progress = |done| {
        if shows_progress {
            let _ = write!(io::stderr(), "\rlooking for agents: {done} of {}", rows.len());
        }
    };
    let found = detect(&rows, args.models, progress);
    if shows_progress {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    let printed = if args.json {
        print(&(serde_json::to_string_pretty(&found).expect("plain values") + "\n"))
    } else {
        print_styled(&describe(&found))
    };
    if args.write { write(args, &found) } else { printed }
}

fn write(args: &Args, found: &[Found]) -> ExitCode {
    let path = config_path(args.config.as_deref()).unwrap_or_else(|_| "bus.json".into());
    match add_pools(&path, found.iter().filter_map(|agent| agent.pool.as_ref())) {
        Ok(added) if added.is_empty() => report(format_args!("{}: nothing to add", path.display()), 0),
        Ok(added) => report(format_args!("{}: added {}", path.display(), added.join(", ")), 0),
        Err(why) => report(format_args!("stdio-bus: {}: {why}", path.display()), 1),
    }
}

/// Adds the pools whose ids are free, and returns those ids. The rest of the file stays byte for byte.
fn add_pools<'a>(path: &Path, pools: impl Iterator<Item = &'a Value>) -> Result<Vec<String>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => "{\n  \"pools\": [\n  ]\n}\n".to_owned(),
        Err(error) => return Err(error.to_string()),
    };
    let (mark, text) = text.split_at(text.len() - config::without_mark(&text).len());
    let config: Value = serde_json::from_str(&config::plain_json(text)).map_err(|error| error.to_string())?;
    let available = config["pools"].as_array().ok_or("there is no list of pools in it")?;
    let is_free = |pool: &&Value| available.iter().all(|other| other["id"] != pool["id"]);
    let added: Vec<&Value> = pools.filter(is_free).collect();
    if added.is_empty() {
        return Ok(Vec::new());
    }
    // Comments may hold anything, and stay where they are.
    let code = config::without_comments(text);
    let end = end_of_pools(&code).ok_or("the list of pools was not found in it")?;
    let items = code[..end].trim_end();
    let has_last_comma = items.ends_with(',');
    let comma = if available.is_empty() || has_last_comma { "" } else { "," };
    let mut new_text = format!("{mark}{}{comma}{}", &text[..items.len()], text[items.len()..end].trim_end());
    for (at, pool) in added.iter().enumerate() {
        let comma = if at + 1 < added.len() || has_last_comma { "," } else { "" };
        let _ = write!(new_text, "\n    {pool}{comma}");
    }
    new_text += "\n  ";
    new_text += &text[end..];
    replace(path, &new_text)?;
    Ok(added.iter().filter_map(|pool| pool["id"].as_str().map(ToOwned::to_owned)).collect())
}

/// Writes a new file, and renames it over the old one only if a bus would accept it.
fn replace(path: &Path, text: &str) -> Result<(), String> {
    // A symbolic link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let new_path = path.with_extension("json.new");
    fs::write(&new_path, text).map_err(|error| error.to_string())?;
    let mode = fs::metadata(&path).map_or(0o644, |found| found.permissions().mode());
    let done = check_and_rename(&new_path, mode, &path);
    if done.is_err() {
        let _ = fs::remove_file(&new_path);
    }
    done
}

fn check_and_rename(new_path: &Path, mode: u32, path: &Path) -> Result<(), String> {
    if let Err(faults) = config::load(new_path) {
        let first = faults.errors.first();
        let first = first.map_or(String::new(), |fault| format!("{}: {}", fault.path, fault.message));
        return Err(format!("with the new pools it would not be good: {first}"));
    }
    let renamed = fs::set_permissions(new_path, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::rename(new_path, path));
    renamed.map_err(|error| error.to_string())
}

/// The position of the `]` that ends the top-level `pools`. `text` is valid JSON, but for a comma after the last item.
fn end_of_pools(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut word = None;
    let mut in_pools = false;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => {
                while let Some((end, byte)) = bytes.next() {
                    if byte == b'\\' {
                        bytes.next();
                    } else if byte == b'"' {
                        word = Some(&text[at + 1..end]);
                        break;
                    }
                }
            }
            b':' if depth == 1 => in_pools = word == Some("pools"),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 1 && in_pools && byte == b']' {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn describe(found: &[Found]) -> String {
    let (available, absent): (Vec<&Found>, Vec<&Found>) = found.iter().partition(|agent| agent.available);
    let name_width = available.iter().map(|agent| agent.id.len()).max().unwrap_or(0).max(HEADERS[0].len());
    table(&available, name_width) + &describe_absent(&absent, name_width) + &pools(&available)
}

/// One line per available agent, and another one with its models if they are known.
fn table(available: &[&Found], name_width: usize) -> String {
    let mut text = String::new();
    if available.is_empty() {
        return text;
    }
    let mut rows = vec![HEADERS.map(Cell::new).into()];
    rows.extend(available.iter().map(|agent| row(agent)));
    let mut lines = table::lines(&rows).into_iter();
    let header = lines.next().unwrap_or_default();
    let _ = writeln!(text, "{}", styled(BOLD, header));
    for (agent, line) in available.iter().zip(lines) {
        let _ = writeln!(text, "{line}");
        if let Some(models) = &agent.models {
            let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
            let _ = writeln!(text, "{:name_width$}  models: {}", "", ids.join(", "));
        }
    }
    text
}

fn row(agent: &Found) -> Vec<Cell> {
    let speaks = match (agent.acp, agent.verified) {
        (true, true) => "ACP",
        (true, false) => "ACP?",
        (false, true) => "adapter",
        (false, false) => "adapter?",
    };
    let login = match agent.logged_in {
        Some(true) => Cell::new("yes").styled(GREEN),
        Some(false) => Cell::new("no").styled(RED),
        None => Cell::new("-"),
    };
    vec![
        Cell::new(&agent.id).styled(GREEN),
        Cell::new(agent.version.as_deref().unwrap_or("-")),
        Cell::new(speaks),
        login,
        Cell::new(agent.path.as_deref().unwrap_or_default()),
    ]
}

/// Agents that are installed but cannot be used, with the reason, and those that are not installed.
fn describe_absent(absent: &[&Found], name_width: usize) -> String {
    let mut text = String::new();
    let mut missing = Vec::new();
    for agent in absent {
        if agent.path.is_some() {
            let name = styled(RED, format_args!("{:name_width$}", agent.id));
            let _ = writeln!(text, "{name}  {}", agent.reason.as_deref().unwrap_or_default());
        } else {
            missing.push(agent.id.as_str());
        }
    }
    if !missing.is_empty() {
        let _ = writeln!(text, "not here: {}", missing.join(", "));
    }
    text
}

fn pools(available: &[&Found]) -> String {
    let mut text = String::new();
    if available.iter().any(|agent| !agent.verified) {
        text += "?: nobody has seen it run this way yet; `stdio-bus check --probe` tries it\n";
    }
    if !available.is_empty() {
        text += "\nPools for bus.json (--write adds them):\n";
        for pool in available.iter().filter_map(|agent| agent.pool.as_ref()) {
            let _ = writeln!(text, "  {pool}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_end_of_the_pools_is_found_among_other_lists() {
        for text in [
            r#"{"pools":[|]}"#,
            r#"{"listen":["pools",["]"]],"pools":[{"id":"a","args":["]","\"]"]}|],"limits":{}}"#,
            r#"{"limits":{"pools":[]},"pools": [ 1 |] }"#,
        ] {
            let at = text.find('|').unwrap();
            assert_eq!(end_of_pools(&text.replace('|', "")), Some(at), "{text}");
        }
        assert_eq!(end_of_pools(r#"{"a":{"pools":[]}}"#), None);
    }

    #[test]
    fn the_rest_of_the_file_stays_and_no_pool_is_added_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        let old = "{ \"pools\": [\n    { \"id\": \"one\",   \"command\": \"one\" }\n  ],\n \"limits\":{} }";
        fs::write(&path, old).unwrap();
        let pools =
            [json!({ "id": "one", "command": "x" }), json!({ "id": "two", "command": "two", "args": [] })];
        assert_eq!(add_pools(&path, pools.iter()).unwrap(), ["two"]);
        let expected = old.replace("\n  ]", ",\n    {\"id\":\"two\",\"command\":\"two\",\"args\":[]}\n  ]");
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(add_pools(&path, pools.iter()).unwrap(), [""; 0]);
        fs::write(&path, "{ \"pools\": [], \"nonsense\": 1 }").unwrap();
        assert!(add_pools(&path, pools.iter()).unwrap_err().contains("nonsense"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
        assert_eq!(add_pools(&path, pools.iter()).unwrap(), ["one", "two"]);
    }

    #[test]
    fn comments_a_last_comma_and_a_byte_order_mark_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        let two = [json!({ "id": "two", "command": "two" })];
        let new = r#"{"id":"two","command":"two"}"#;
        for (old, expected) in [
            (
                "\u{feff}{ // \"pools\": [ ]\n  \"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"} // a ]\n  ]}",
                "\u{feff}{ // \"pools\": [ ]\n  \"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"}, // a ]\n    @\n  \
                 ]}",
            ),
            (
                "{\"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"}, /* , */\n  ],}",
                "{\"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"}, /* , */\n    @,\n  ],}",
            ),
        ] {
            fs::write(&path, old).unwrap();
            assert_eq!(add_pools(&path, two.iter()).unwrap(), ["two"]);
            assert_eq!(fs::read_to_string(&path).unwrap(), expected.replace('@', new));
            assert!(config::load(&path).is_ok());
        }
    }
}
