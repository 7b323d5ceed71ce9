//! What a permission request is about, for the person who decides: the command, its folder and variables, and the diff.
//!
//! Pure. Agents put the command into `rawInput` under names of their own; what is known is shown, and little else.

use rpc::text::replace_control;
use serde_json::Value;

use super::command_request::decides_what_runs;

/// How many lines of a diff are shown, and of a command.
const MAX_LINES: usize = 24;
const LINE_CHARS: usize = 200;

/// Lines to be shown below the title, each indented and with a newline before it.
pub(super) fn details(call: &Value, title: &str) -> String {
    let mut lines = Vec::new();
    let input = &call["rawInput"];
    if let Some(command) = command(input).filter(|command| !title.contains(command.trim())) {
        let (first, rest) = command.split_once('\n').unwrap_or((&command, ""));
        lines.push(format!("$ {first}"));
        lines.extend(rest.lines().take(MAX_LINES).map(|line| format!("  {line}")));
    }
    for key in ["cwd", "workdir", "directory"] {
        if let Some(folder) = input[key].as_str() {
            lines.push(format!("in {folder}"));
        }
    }
    let variables = input["env"].as_object().into_iter().flatten();
    for (name, value) in variables.take(MAX_LINES) {
        // The value of a variable that decides what runs is what matters; that of any other may be a secret.
        let value = value.as_str().filter(|_| decides_what_runs(name)).map(|value| format!("={value}"));
        lines.push(format!("with {name}{}", value.unwrap_or_default()));
    }
    for content in
        call["content"].as_array().into_iter().flatten().filter(|content| content["type"] == "diff")
    {
        lines.extend(diff(content));
    }
    let shown = lines.iter().map(|line| {
        let line = replace_control(line, '?');
        let cut = if line.chars().count() > LINE_CHARS { ".." } else { "" };
        format!("\n  {}{cut}", line.chars().take(LINE_CHARS).collect::<String>())
    });
    shown.collect()
}

fn command(input: &Value) -> Option<String> {
    let words = |list: &Vec<Value>| list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    ["command", "cmd", "script"].iter().find_map(|key| match &input[*key] {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Array(list) if !list.is_empty() => Some(words(list)),
        _ => None,
    })
}

/// The file, and the lines that differ, without those that are the same at both ends.
fn diff(content: &Value) -> Vec<String> {
    let (old, new) = (content["oldText"].as_str(), content["newText"].as_str().unwrap_or_default());
    let path = content["path"].as_str().unwrap_or("?");
    let kind = if old.is_none() { "writes" } else { "changes" };
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.unwrap_or_default().lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[same..], &new[same..]);
    let same_end = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[..old.len() - same_end], &new[..new.len() - same_end]);
    let removed = old.iter().map(|line| format!("- {line}"));
    let all: Vec<String> = removed.chain(new.iter().map(|line| format!("+ {line}"))).collect();
    let left = all.len().saturating_sub(MAX_LINES);
    let mut lines = vec![format!("{kind} {path}")];
    lines.extend(all.into_iter().take(MAX_LINES));
    if left > 0 {
        lines.push(format!("and {left} more lines"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_command_its_folder_and_variables_are_shown() {
        let input = json!({ "command": "rm -rf /srv\necho \u{1b}[2J", "cwd": "/tmp",
            "env": { "PATH": "/evil", "TOKEN": "secret" } });
        let shown = details(&json!({ "rawInput": input }), "bash");
        assert_eq!(shown, "\n  $ rm -rf /srv\n    echo ?[2J\n  in /tmp\n  with PATH=/evil\n  with TOKEN");
        let list = json!({ "rawInput": { "command": ["git", "push"] } });
        assert_eq!(details(&list, "bash"), "\n  $ git push");
        assert_eq!(details(&list, "run git push"), "", "the title says it already");
        for nothing in [json!(null), json!({}), json!({ "rawInput": 7, "content": 7 })] {
            assert_eq!(details(&nothing, "x"), "");
        }
    }

    #[test]
    fn a_diff_shows_the_lines_that_differ() {
        let (old, new) = ("one\ntwo\nthree\n", "one\n2\nthree\n");
        let change = json!({ "type": "diff", "path": "/a.rs", "oldText": old, "newText": new });
        let call = json!({ "content": [change, { "type": "diff", "path": "/new", "newText": "x\n" }] });
        let shown = details(&call, "edit");
        assert_eq!(shown, "\n  changes /a.rs\n  - two\n  + 2\n  writes /new\n  + x");
        let long = json!({ "content": [{ "type": "diff", "path": "/b", "newText": "y\n".repeat(100) }] });
        assert!(details(&long, "edit").ends_with("\n  and 76 more lines"));
    }
}
