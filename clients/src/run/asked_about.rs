//! What a permission request is about, for the person who decides: the command, its folder and variables, the text that
//! comes with it, the diff, or else the input of the tool.
//!
//! Pure. Agents put the command into `rawInput` under names of their own. What is left out is counted.

use rpc::text::{quoted, replace_control};
use serde_json::{Map, Value};

use super::block::Block;
use super::command_request::decides_what_runs;

/// How many lines of a diff are shown, and of an input.
const MAX_LINES: usize = 24;
const LINE_CHARS: usize = 200;
/// The same for what is permitted itself, a command or a plan: its first lines and its last.
const FIRST_LINES: usize = 150;
const LAST_LINES: usize = 50;
const LONG_LINE_CHARS: usize = 1000;
/// A shorter text may stand in a title by chance.
const TELLING_CHARS: usize = 4;

/// Lines to be shown below the title, each indented and with a newline before it.
pub(super) fn details(call: &Value, title: &str) -> String {
    let input = &call["rawInput"];
    let contents = || call["content"].as_array().into_iter().flatten();
    let diffs: Vec<_> = contents().filter(|content| content["type"] == "diff").flat_map(diff).collect();
    let texts = contents().filter(|content| content["type"] == "content");
    let texts: Vec<_> = texts.map(|content| Block::of(&content["content"])).collect();
    let texts: Vec<_> = texts.iter().map(|block| block.text.trim_end()).collect();
    let is_said = |text: &str| {
        let is_telling = text.chars().count() >= TELLING_CHARS;
        is_telling && (title.contains(text) || texts.iter().any(|said| said.contains(text)))
    };
    let mut lines = match command(input) {
        Some(command) if title.contains(command.trim()) => Vec::new(),
        Some(command) => whole(&command, "$ "),
        None if diffs.is_empty() => rest_of(input, is_said),
        None => Vec::new(),
    };
    lines.extend(surroundings(input));
    for text in texts.iter().filter(|text| !text.trim().is_empty() && !title.contains(text.trim())) {
        // Deeper than the lines of a change, which it may resemble.
        lines.extend(whole(text, "  "));
    }
    lines.extend(diffs);
    indented(lines)
}

/// The lines that writing this text into a file removes and adds, as `details` has them.
pub(super) fn change(old: Option<&str>, new: &str) -> String {
    let lines = changed_lines(old.unwrap_or_default(), new);
    indented(match (lines.is_empty(), old) {
        (true, None) => vec!["(an empty file)".to_owned()],
        (true, Some(_)) => vec!["(no line changes)".to_owned()],
        _ => lines,
    })
}

fn indented(lines: Vec<String>) -> String {
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// One line without what steers a terminal, and no longer than this.
fn one_line(line: &str, max_chars: usize) -> String {
    let left = line.chars().count().saturating_sub(max_chars);
    let shown: String = replace_control(line, '?').chars().take(max_chars).collect();
    if left > 0 { format!("{shown}.. and {left} more characters") } else { shown }
}

/// A text that is read before it is permitted: all of it, or its beginning and its end.
fn whole(text: &str, mark: &str) -> Vec<String> {
    let all: Vec<_> = text.trim_end().lines().collect();
    let left = all.len().saturating_sub(FIRST_LINES + LAST_LINES);
    let mut lines = Vec::new();
    for (at, line) in all.iter().enumerate() {
        if left == 0 || at < FIRST_LINES || at >= FIRST_LINES + left {
            let mark = if at == 0 { mark } else { "  " };
            lines.push(format!("{mark}{}", one_line(line, LONG_LINE_CHARS)));
        } else if at == FIRST_LINES {
            lines.push(format!("and {left} more lines, then"));
        }
    }
    lines
}

/// The first lines, and how many more there are.
fn first_of(mut lines: Vec<String>) -> Vec<String> {
    let left = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if left > 0 {
        lines.push(format!("and {left} more lines"));
    }
    lines
}

/// The command with its arguments, as a shell would take these.
fn command(input: &Value) -> Option<String> {
    let words = |list: &[Value], quote: fn(&str) -> String| {
        let word = |word: &Value| word.as_str().map_or_else(|| word.to_string(), quote);
        list.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    let mut command = ["command", "cmd", "script"].iter().find_map(|key| match &input[*key] {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Array(list) if !list.is_empty() => Some(words(list, str::to_owned)),
        _ => None,
    })?;
    for key in ["args", "arguments"] {
        match &input[key] {
            Value::String(text) if !text.trim().is_empty() => command += &format!(" {text}"),
            Value::Array(list) if !list.is_empty() => command += &format!(" {}", words(list, quoted)),
            _ => {}
        }
    }
    Some(command)
}

const FOLDERS: [&str; 3] = ["cwd", "workdir", "directory"];

/// The folder and the variables.
fn surroundings(input: &Value) -> Vec<String> {
    let folders = FOLDERS.iter().filter_map(|key| input[*key].as_str());
    let mut lines: Vec<_> = folders.map(|folder| format!("in {folder}")).collect();
    let empty = Map::new();
    let variables = input["env"].as_object().unwrap_or(&empty);
    // Those that matter come first, so that no number of others can hide them.
    let (risky, others): (Vec<_>, Vec<_>) = variables.iter().partition(|(name, _)| decides_what_runs(name));
    for (name, value) in risky.iter().chain(others.iter().take(MAX_LINES)) {
        // The value of a variable that decides what runs is what matters; that of any other may be a secret.
        let value = value.as_str().filter(|_| decides_what_runs(name)).map(|value| format!("={value}"));
        lines.push(format!("with {name}{}", value.unwrap_or_default()));
    }
    if others.len() > MAX_LINES {
        lines.push(format!("and {} more variables", others.len() - MAX_LINES));
    }
    lines.iter().map(|line| one_line(line, LINE_CHARS)).collect()
}

/// The input of a tool of which nothing else is known, without what is said elsewhere.
fn rest_of(input: &Value, is_said: impl Fn(&str) -> bool) -> Vec<String> {
    let fields = match input {
        Value::Object(fields) => fields,
        Value::String(text) if !is_said(text.trim()) => return whole(text, "  "),
        Value::Array(list) if !list.is_empty() => return vec![one_line(&input.to_string(), LONG_LINE_CHARS)],
        _ => return Vec::new(),
    };
    let is_rest = |(key, value): &(&String, &Value)| match value {
        Value::String(text) => !FOLDERS.contains(&key.as_str()) && !is_said(text.trim()),
        Value::Object(_) => *key != "env",
        _ => true,
    };
    let line = |(key, value): (&String, &Value)| one_line(&format!("{key}: {value}"), LONG_LINE_CHARS);
    first_of(fields.iter().filter(is_rest).map(line).collect())
}

/// The file, and the lines that differ.
fn diff(content: &Value) -> Vec<String> {
    let (old, new) = (content["oldText"].as_str(), content["newText"].as_str().unwrap_or_default());
    let path = content["path"].as_str().unwrap_or("?");
    let kind = if old.is_none() { "writes" } else { "changes" };
    let mut lines = vec![one_line(&format!("{kind} {path}"), LINE_CHARS)];
    lines.extend(changed_lines(old.unwrap_or_default(), new));
    lines
}

/// The lines that differ, without those that are the same at both ends.
fn changed_lines(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[same..], &new[same..]);
    let same_end = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[..old.len() - same_end], &new[..new.len() - same_end]);
    let removed = old.iter().map(|line| format!("- {}", one_line(line, LINE_CHARS)));
    first_of(removed.chain(new.iter().map(|line| format!("+ {}", one_line(line, LINE_CHARS)))).collect())
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

    #[test]
    fn a_long_command_is_shown_to_its_end_and_what_is_left_out_is_counted() {
        let shown = |lines: usize| {
            let script: String = (1..=lines).map(|line| format!("echo {line}\n")).collect();
            details(&json!({ "rawInput": { "command": script } }), "bash")
        };
        let lines = shown(31);
        assert!(
            lines.starts_with("\n  $ echo 1\n    echo 2\n") && lines.ends_with("\n    echo 31"),
            "{lines}"
        );
        assert_eq!(lines.matches("echo").count(), 31);
        let lines = shown(1000);
        assert!(lines.contains("\n    echo 150\n  and 800 more lines, then\n    echo 951\n"), "{lines}");
        assert!(lines.ends_with("\n    echo 1000"), "{lines}");
        let long = json!({ "rawInput": { "command": "x".repeat(1500) } });
        assert!(details(&long, "bash").ends_with("x.. and 500 more characters"));
    }

    #[test]
    fn the_arguments_belong_to_the_command() {
        let shown = |args: Value| details(&json!({ "rawInput": { "command": "rm", "args": args } }), "rm");
        assert_eq!(shown(json!(["-rf", "/srv", "a b", 7])), "\n  $ rm -rf /srv 'a b' 7");
        assert_eq!(shown(json!("-rf /srv")), "\n  $ rm -rf /srv");
        assert_eq!(shown(json!([])), "", "the title says it");
    }

    #[test]
    fn the_text_of_a_plan_is_shown() {
        let plan = "# Plan\n- delete \u{1b}[2J all\n";
        let content = json!([{ "type": "content", "content": { "type": "text", "text": plan } }]);
        let call = json!({ "content": content, "rawInput": { "plan": plan, "yes": true } });
        let shown = details(&call, "Approve Plan");
        assert_eq!(shown, "\n  yes: true\n    # Plan\n    - delete ?[2J all");
    }

    #[test]
    fn the_input_is_shown_where_nothing_else_is_known() {
        let input = json!({ "repo": "me/precious", "force": true, "cwd": "/w", "note": "a\nb" });
        let shown = details(&json!({ "rawInput": input }), "delete");
        let mut lines: Vec<_> = shown.lines().skip(1).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["  force: true", "  in /w", r#"  note: "a\nb""#, r#"  repo: "me/precious""#]);
        let read = json!({ "rawInput": { "file_path": "/a/b" } });
        assert_eq!(details(&read, "Read /a/b"), "", "the title says it already");
        let fields: Map<String, Value> = (0..100).map(|at| (format!("k{at}"), json!(at))).collect();
        assert!(details(&json!({ "rawInput": fields }), "x").ends_with("\n  and 76 more lines"));
        assert_eq!(details(&json!({ "rawInput": "drop table" }), "sql"), "\n    drop table");
        assert_eq!(details(&json!({ "rawInput": ["a", 1] }), "x"), "\n  [\"a\",1]");
    }

    #[test]
    fn no_number_of_variables_hides_the_one_that_matters() {
        let mut env: Map<String, Value> = (0..100).map(|at| (format!("A{at}"), json!("x"))).collect();
        env.insert("PATH".to_owned(), json!("/evil"));
        let shown = details(&json!({ "rawInput": { "command": "ls", "env": env } }), "ls");
        assert!(shown.starts_with("\n  with PATH=/evil\n  with A"), "{shown}");
        assert!(shown.ends_with("\n  and 76 more variables"), "{shown}");
    }

    #[test]
    fn a_file_that_is_written_shows_what_changes() {
        assert_eq!(change(Some("a\nb\n"), "a\n\u{1b}c\n"), "\n  - b\n  + ?c");
        assert_eq!(change(None, "x\n"), "\n  + x");
        assert_eq!(change(None, ""), "\n  (an empty file)");
        assert_eq!(change(Some("a"), "a\n"), "\n  (no line changes)");
    }
}
