//! Finds what a shell would have expanded in bus.json, and the bus does not: `~/`, `$NAME` and `${NAME}` in arguments,
//! `~/` and `$NAME` in variables. A program that gets them as they are says something odd about a file.

use std::env;
use std::path::Path;

use kernel_shell::config::{self, ConfigError};
use rpc::text::escape_control;
use serde_json::Value;

/// Programs that expand their arguments themselves, here or on another machine.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "ksh", "fish", "busybox", "ssh"];

/// What to write instead, each with its place. `text` is that of a bus.json that is good.
pub(crate) fn find(text: &str) -> Vec<ConfigError> {
    let home = env::var("HOME").ok().filter(|home| home.starts_with('/'));
    find_for(text, home.as_deref())
}

/// The same for the user with this home.
fn find_for(text: &str, home: Option<&str>) -> Vec<ConfigError> {
    let config: Value = config::plain_json(config::without_mark(text)).parse().unwrap_or_default();
    let mut found = Vec::new();
    for (index, pool) in config["pools"].as_array().into_iter().flatten().enumerate() {
        let mut note =
            |key: String, message| found.push(ConfigError { path: format!("pools[{index}].{key}"), message });
        let command = pool["command"].as_str().unwrap_or_default();
        if let Some(message) = variable_in(command).and_then(|name| argument(command, name, home)) {
            note("command".to_owned(), message);
        }
        let name = Path::new(command).file_name().unwrap_or_default();
        let args = pool["args"].as_array().filter(|_| !SHELLS.iter().any(|shell| name == *shell));
        for (at, arg) in args.into_iter().flatten().enumerate() {
            let arg = arg.as_str().unwrap_or_default();
            if let Some(message) = argument(arg, variable_in(arg).unwrap_or_default(), home) {
                note(format!("args[{at}]"), message);
            }
        }
        for (key, value) in pool["env"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            // It may be a secret, so nothing of it is shown.
            if value.starts_with("~/") {
                note(format!("env.{key}"), "~ is not expanded here; write ${HOME}".to_owned());
            } else if is_variable(value) {
                note(format!("env.{key}"), "$NAME is not expanded here; write ${NAME}".to_owned());
            }
        }
    }
    found
}

/// The message for an argument that has this variable in it, or begins with `~/`.
fn argument(arg: &str, variable: &str, home: Option<&str>) -> Option<String> {
    // `--dir=~/x` is not expanded by every shell, but meant.
    let in_home = arg.starts_with("~/") || arg.contains("=~/");
    if variable.is_empty() && !in_home {
        return None;
    }
    let written = home.filter(|_| in_home || variable == "HOME").map(|home| {
        let written =
            arg.replace("${HOME}", home).replace("$HOME", home).replace("=~/", &format!("={home}/"));
        written.strip_prefix("~/").map_or(written.clone(), |rest| format!("{home}/{rest}"))
    });
    let instead = match written.filter(|written| variable_in(written).is_none()) {
        Some(written) => format!("write {written:?}"),
        None => "write its value, or give it in env".to_owned(),
    };
    let message = format!("{arg:?} is passed as it is, because no shell expands it; {instead}");
    Some(escape_control(&message).into_owned())
}

/// The name of the first variable, as people write them: `$HOME` or `${HOME}`.
fn variable_in(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let rest = &text[at + 1..];
        let inner = rest.strip_prefix('{');
        let name = inner.unwrap_or(rest);
        let end = name.find(|c: char| !(c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit()));
        let name = &name[..end.unwrap_or(name.len())];
        let is_closed = inner.is_none_or(|inner| inner[name.len()..].starts_with('}'));
        // `$1` is a group of an expression.
        (is_closed && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
    })
}

/// `$HOME/x`, or `$KEY` of a variable that is set: a dollar within a password is neither.
fn is_variable(value: &str) -> bool {
    let plain = |c: char| c.is_ascii_uppercase() || c == '_';
    let Some(rest) = value.strip_prefix('$') else { return false };
    let (name, is_path) = rest.split_once('/').map_or((rest, false), |(name, _)| (name, true));
    !name.is_empty() && name.chars().all(plain) && (is_path || env::var_os(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pool: &str) -> Vec<String> {
        let text = format!("{{\"pools\": [{pool}]}} // good");
        find_for(&text, Some("/me")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_shell_would_expand_is_found_with_what_to_write_instead() {
        let pool = r#"{"id": "a", "command": "agent", "args": ["-v", "~/x", "${HOME}/y", "--dir=~/z", "$KEY"],
            "env": {"A": "$HOME/x", "B": "~/x", "C": "${HOME}/x", "D": "pa$WORD", "E": "$PATH", "F": "$NO_SUCH"}}"#;
        let as_is = "is passed as it is, because no shell expands it; write";
        let expected = [
            format!(r#"pools[0].args[1]: "~/x" {as_is} "/me/x""#),
            format!(r#"pools[0].args[2]: "${{HOME}}/y" {as_is} "/me/y""#),
            format!(r#"pools[0].args[3]: "--dir=~/z" {as_is} "--dir=/me/z""#),
            format!(r#"pools[0].args[4]: "$KEY" {as_is} its value, or give it in env"#),
            "pools[0].env.A: $NAME is not expanded here; write ${NAME}".to_owned(),
            "pools[0].env.B: ~ is not expanded here; write ${HOME}".to_owned(),
            "pools[0].env.E: $NAME is not expanded here; write ${NAME}".to_owned(),
        ];
        assert_eq!(found(pool), expected);
        assert_eq!(found(r#"{"id": "a", "command": "$HOME/agent"}"#).len(), 1);
    }

    #[test]
    fn what_is_meant_as_it_is_is_left_alone() {
        for pool in [
            r#"{"command": "sh", "args": ["-c", "exec ~/agent $HOME"]}"#,
            r#"{"command": "/usr/bin/ssh", "args": ["{node}", "$HOME/agent"]}"#,
            r#"{"command": "~/bin/agent", "args": ["a~", "^x$", "$1", "${", "$", "a=~b", "${lower}"]}"#,
            r#"{"args": [1], "env": {"A": 7, "B": "$/x", "C": "x$HOME/y"}}"#,
            "7",
        ] {
            assert_eq!(found(pool), [""; 0], "{pool}");
        }
    }
}
