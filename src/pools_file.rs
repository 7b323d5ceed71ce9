//! Adds pools to bus.json, and leaves the rest of the file as it is.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kernel_shell::config;
use serde_json::Value;

use crate::paths;

/// What was added to the file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// The ids of the new pools.
    pub(crate) ids: Vec<String>,
    /// The pool that a file without a default now names.
    pub(crate) default_pool: Option<String>,
}

impl Added {
    /// What follows the names of the new pools, if there is a default to tell of.
    pub(crate) fn about_default(&self) -> String {
        match &self.default_pool {
            Some(pool) => format!("; clients that name no pool get {pool} (\"default_pool\", which is new)"),
            None => String::new(),
        }
    }
}

/// The file that pools are added to.
#[derive(clap::Args)]
pub(crate) struct WriteArgs {
    /// The configuration to add to [default: $STDIO_BUS_CONFIG, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Add to ./bus.json, the configuration of this folder alone
    #[arg(long, conflicts_with = "config")]
    here: bool,
}

impl WriteArgs {
    pub(crate) fn path(&self) -> Result<PathBuf, String> {
        paths::config_to_write(self.config.as_deref(), self.here)
    }
}

/// How to make a bus use what was added to this file.
pub(crate) fn next_step(path: &Path) -> &'static str {
    let is_running =
        paths::running_config().is_some_and(|running| fs::canonicalize(path).is_ok_and(|it| it == running));
    if is_running {
        "`stdio-bus reload` makes the running bus use it"
    } else if paths::named_config(None).is_some() || paths::user_config().is_some_and(|user| user == path) {
        "`stdio-bus start` runs the bus"
    } else {
        "`stdio-bus serve` runs the bus"
    }
}

/// Adds the pools whose ids are free. The rest of the file stays byte for byte. Where there were no pools, the first is
/// the default one, and where there was one, that one stays it: clients need not name it.
pub(crate) fn add_pools<'a>(path: &Path, pools: impl Iterator<Item = &'a Value>) -> Result<Added, String> {
    let mut pools = pools.peekable();
    let text = match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => text,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.to_string()),
        // There is no such file, or an empty one.
        _ => {
            let first = pools.peek().map_or(&Value::Null, |pool| &pool["id"]);
            format!("{{\n  \"default_pool\": {first},\n  \"pools\": [\n  ]\n}}\n")
        }
    };
    let (mark, text) = text.split_at(text.len() - config::without_mark(&text).len());
    let config: Value = serde_json::from_str(&config::plain_json(text)).map_err(|error| error.to_string())?;
    let available = config["pools"].as_array().ok_or("it has no list of pools")?;
    let is_free = |pool: &&Value| available.iter().all(|other| other["id"] != pool["id"]);
    let added: Vec<&Value> = pools.filter(is_free).collect();
    if added.is_empty() {
        return Ok(Added::default());
    }
    // Comments may hold anything, and stay where they are.
    let code = config::without_comments(text);
    let end = end_of_pools(&code).ok_or("its list of pools was not found")?;
    let items = code[..end].trim_end();
    let has_last_comma = items.ends_with(',');
    let comma = if available.is_empty() || has_last_comma { "" } else { "," };
    let mut new_text = format!("{mark}{}{comma}{}", &text[..items.len()], text[items.len()..end].trim_end());
    for (at, pool) in added.iter().enumerate() {
        let comma = if at + 1 < added.len() || has_last_comma { "," } else { "" };
        let _ = write!(new_text, "\n    {pool}{comma}");
    }
    let default_pool = missing_default(&config, available, &added);
    let default_member = default_pool.map(|pool| format!(",\n  \"default_pool\": {}", Value::from(pool)));
    let (list_end, rest) = text[end..].split_at(1);
    let _ = write!(new_text, "\n  {list_end}{}{rest}", default_member.unwrap_or_default());
    replace(path, &new_text)?;
    let ids = added.iter().filter_map(|pool| pool["id"].as_str().map(ToOwned::to_owned)).collect();
    Ok(Added { ids, default_pool: default_pool.map(ToOwned::to_owned) })
}

/// The pool that clients who name none have had so far, or would get in a new file, if the file must name it now.
fn missing_default<'a>(config: &Value, available: &'a [Value], added: &[&'a Value]) -> Option<&'a str> {
    let becomes_several = available.len() <= 1 && available.len() + added.len() > 1;
    if config.get("default_pool").is_some() || !becomes_several {
        return None;
    }
    available.iter().chain(added.iter().copied()).next()?["id"].as_str()
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
        return Err(format!("with the new pools it would have an error: {first}"));
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
        let added = add_pools(&path, pools.iter()).unwrap();
        assert_eq!((added.ids, added.default_pool.as_deref()), (vec!["two".to_owned()], Some("one")));
        let new =
            ",\n    {\"id\":\"two\",\"command\":\"two\",\"args\":[]}\n  ],\n  \"default_pool\": \"one\"";
        let expected = old.replace("\n  ]", new);
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(add_pools(&path, pools.iter()).unwrap(), Added::default());
        fs::write(&path, "{ \"pools\": [], \"nonsense\": 1 }").unwrap();
        assert!(add_pools(&path, pools.iter()).unwrap_err().contains("nonsense"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::remove_file(&path).unwrap();
        assert_eq!(add_pools(&path, pools.iter()).unwrap().ids, ["one", "two"]);
        let new = fs::read_to_string(&path).unwrap();
        assert!(
            new.starts_with("{\n  \"default_pool\": \"one\",\n  \"pools\": [\n    {\"id\":\"one\""),
            "{new}"
        );
        fs::write(&path, " \n").unwrap();
        assert_eq!(add_pools(&path, pools.iter()).unwrap().ids, ["one", "two"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), new, "an empty file is as good as none");
    }

    #[test]
    fn only_a_file_that_needs_a_default_gets_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        let pools = ["a", "b", "c"].map(|id| json!({ "id": id, "command": "x" }));
        let [a, b, c] = &pools;
        for (old, more, expected) in [
            (json!({ "pools": [] }), vec![a], None),
            (json!({ "pools": [] }), vec![b, c], Some("b")),
            (json!({ "pools": [a] }), vec![b, c], Some("a")),
            (json!({ "pools": [a], "default_pool": "a" }), vec![b], None),
            // Nobody got along without a name before.
            (json!({ "pools": [a, b] }), vec![c], None),
        ] {
            fs::write(&path, old.to_string()).unwrap();
            let added = add_pools(&path, more.into_iter()).unwrap();
            assert_eq!(added.default_pool.as_deref(), expected, "{old}");
        }
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
                 ],\n  \"default_pool\": \"a\"}",
            ),
            (
                "{\"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"}, /* , */\n  ],}",
                "{\"pools\": [\n    {\"id\":\"a\",\"command\":\"a\"}, /* , */\n    @,\n  ],\n  \
                 \"default_pool\": \"a\",}",
            ),
        ] {
            fs::write(&path, old).unwrap();
            assert_eq!(add_pools(&path, two.iter()).unwrap().ids, ["two"]);
            assert_eq!(fs::read_to_string(&path).unwrap(), expected.replace('@', new));
            assert!(config::load(&path).is_ok());
        }
    }
}
