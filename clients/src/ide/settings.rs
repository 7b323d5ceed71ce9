//! Writes settings into the settings file of an IDE: JSON with comments, which stay, as does all else in it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstNode, CstRootNode};

/// Editors take comments and a comma after the last item, and nothing else that JSON does not have.
const EDITORS_JSON: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// What has become of the file. `entry` is what the settings are called in it, `backup` a copy of it from
/// before the first change.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// They were in it already.
    None {
        entry: String,
    },
    Added {
        entry: String,
        backup: Option<PathBuf>,
    },
    /// Others of the same name were in it.
    Replaced {
        entry: String,
        backup: Option<PathBuf>,
    },
}

/// Merges a snippet of the form `{KEY: {NAME: SETTINGS}}` into a file. On an error the file is as it was.
pub fn write(path: &Path, snippet: &str) -> Result<Change, String> {
    // A symbolic link stays a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = match fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error.to_string()),
    };
    let merged = merge(old.as_deref().unwrap_or_default(), snippet)?;
    let (entry, was_there) = (merged.entry, merged.was_there);
    let Some(text) = merged.text else { return Ok(Change::None { entry }) };
    let backup = replace(&path, old.is_some(), &text).map_err(|error| error.to_string())?;
    Ok(if was_there { Change::Replaced { entry, backup } } else { Change::Added { entry, backup } })
}

struct Merged {
    entry: String,
    was_there: bool,
    /// `None`: nothing changes.
    text: Option<String>,
}

fn merge(text: &str, snippet: &str) -> Result<Merged, String> {
    let (key, name, settings) = parts(snippet).ok_or("these settings cannot be merged")?;
    let entry = format!("{name:?} in {key:?}");
    let (mark, text) = match text.strip_prefix('\u{feff}') {
        Some(text) => ("\u{feff}", text),
        None => ("", text),
    };
    if text.trim().is_empty() {
        return Ok(Merged { entry, was_there: false, text: Some(format!("{mark}{snippet}")) });
    }
    let root = CstRootNode::parse(text, &EDITORS_JSON).map_err(|error| {
        format!("line {}, column {}: {}", error.line_display(), error.column_display(), error.kind())
    })?;
    let top = match root.value() {
        // Nothing but comments.
        None => root.object_value_or_set(),
        Some(value) => value.as_object().ok_or("it is not a JSON object")?,
    };
    let is_no_object = || format!("{key:?} in it is not a JSON object");
    let section = top.object_value_or_create(&key).ok_or_else(is_no_object)?;
    let was_there = match section.get(&name) {
        // They have no other comparison.
        Some(old)
            if format!("{:?}", old.value().and_then(|it| input(&it))) == format!("{:?}", Some(&settings)) =>
        {
            return Ok(Merged { entry, was_there: true, text: None });
        }
        Some(old) => {
            old.set_value(settings);
            true
        }
        None => {
            section.append(&name, settings);
            false
        }
    };
    Ok(Merged { entry, was_there, text: Some(format!("{mark}{root}")) })
}

/// The key, the name and the settings of a snippet.
fn parts(snippet: &str) -> Option<(String, String, CstInputValue)> {
    let root = CstRootNode::parse(snippet, &EDITORS_JSON).ok()?;
    let section = root.object_value()?.properties().into_iter().next()?;
    let settings = section.object_value()?.properties().into_iter().next()?;
    Some((section.decoded_name()?, settings.decoded_name()?, input(&settings.value()?)?))
}

/// A value as it can be put into another file, without its comments.
fn input(node: &CstNode) -> Option<CstInputValue> {
    if let Some(object) = node.as_object() {
        let property =
            |it: &jsonc_parser::cst::CstObjectProp| Some((it.decoded_name()?, input(&it.value()?)?));
        return object.properties().iter().map(property).collect::<Option<_>>().map(CstInputValue::Object);
    }
    if let Some(array) = node.as_array() {
        return array.elements().iter().map(input).collect::<Option<_>>().map(CstInputValue::Array);
    }
    if let Some(text) = node.as_string_lit() {
        return text.decoded_value().ok().map(CstInputValue::String);
    }
    if let Some(value) = node.as_boolean_lit() {
        return Some(CstInputValue::Bool(value.value()));
    }
    match node.as_number_lit() {
        Some(number) => Some(CstInputValue::Number(number.to_string())),
        None => node.as_null_keyword().map(|_| CstInputValue::Null),
    }
}

/// Writes a new file and renames it over the old one. A copy of the file as the user had it is kept: a later one would
/// only have our own settings in it.
fn replace(path: &Path, is_there: bool, text: &str) -> io::Result<Option<PathBuf>> {
    let beside = |more: &str| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(more);
        path.with_file_name(name)
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let new_path = beside(".stdio-bus-new");
    let backup = is_there.then(|| beside(".before-stdio-bus"));
    let mut done = fs::write(&new_path, text);
    if let Some(backup) = &backup {
        // The new file may be read by those who may read the old one.
        done = done
            .and_then(|()| fs::metadata(path))
            .and_then(|old| {
                fs::set_permissions(&new_path, fs::Permissions::from_mode(old.permissions().mode()))
            })
            .and_then(|()| if backup.exists() { Ok(()) } else { fs::copy(path, backup).map(|_| ()) });
    }
    done = done.and_then(|()| fs::rename(&new_path, path));
    if done.is_err() {
        let _ = fs::remove_file(&new_path);
    }
    done.map(|()| backup)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNIPPET: &str = r#"{"agent_servers": {"bus": {"type": "custom", "args": ["a", "b"], "env": {}}}}"#;

    fn merged(text: &str) -> String {
        merge(text, SNIPPET).unwrap().text.unwrap()
    }

    fn parsed(text: &str) -> serde_json::Value {
        kernel_shell::config::plain_json(text.trim_start_matches('\u{feff}')).parse().unwrap()
    }

    #[test]
    fn comments_and_others_stay() {
        let old = "// mine\n{\n  // a theme\n  \"theme\": \"One\", /* dark */\n  \"agent_servers\": {\n    \
                   \"other\": { \"command\": \"x\" }, // keep\n  },\n}\n";
        let new = merged(old);
        for line in old.lines() {
            assert!(new.contains(line.trim_end_matches(['{', '}', ',', ' '])), "{line}\n{new}");
        }
        assert_eq!(parsed(&new)["agent_servers"]["bus"]["args"][1], "b", "{new}");
        assert_eq!(parsed(&new)["agent_servers"]["other"]["command"], "x", "{new}");
        assert!(merge(&new, SNIPPET).unwrap().text.is_none(), "{new}");
    }

    #[test]
    fn files_with_little_in_them_are_filled() {
        for old in ["", " \n", "{}", "{ }\n", "\u{feff}{}", "// nothing yet\n", "{\"agent_servers\": {}}"] {
            let new = merged(old);
            assert_eq!(parsed(&new), parsed(SNIPPET), "{old:?} {new}");
            assert_eq!(old.starts_with('\u{feff}'), new.starts_with('\u{feff}'));
            assert!(merge(&new, SNIPPET).unwrap().text.is_none(), "{new}");
        }
    }

    #[test]
    fn settings_of_the_same_name_are_replaced() {
        let merged = merge(r#"{"agent_servers": {"bus": {"args": []}, "z": 1}}"#, SNIPPET).unwrap();
        assert!(merged.was_there);
        let new = parsed(&merged.text.unwrap());
        assert_eq!(
            (&new["agent_servers"]["bus"]["type"], &new["agent_servers"]["z"]),
            (&"custom".into(), &1.into())
        );
    }

    #[test]
    fn what_cannot_be_merged_is_refused() {
        for (old, why) in [
            ("[]", "not a JSON object"),
            ("{\"agent_servers\": []}", "\"agent_servers\" in it is not a JSON object"),
            ("{\n  \"a\": 1\n  \"b\": 2\n}", "line 2"),
            ("{", "line 1"),
            ("{'a': 1}", "line 1"),
        ] {
            let error = merge(old, SNIPPET).err().unwrap();
            assert!(error.contains(why), "{old}: {error}");
        }
    }

    #[test]
    fn the_old_file_is_kept_with_its_mode_and_a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.json"), folder.path().join("settings.json"));
        fs::write(&real, "{ \"a\": 1 }").unwrap();
        fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let backup = folder.path().canonicalize().unwrap().join("real.json.before-stdio-bus");
        let Change::Added { entry, backup: Some(kept) } = write(&link, SNIPPET).unwrap() else {
            panic!("it was new")
        };
        assert_eq!((entry.as_str(), &kept), (r#""bus" in "agent_servers""#, &backup));
        assert_eq!(fs::read_to_string(&kept).unwrap(), "{ \"a\": 1 }");
        assert!(link.is_symlink());
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(matches!(write(&link, SNIPPET), Ok(Change::None { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert!(matches!(write(&link, &SNIPPET.replace("bus", "two")), Ok(Change::Added { .. })));
        assert_eq!(fs::read_to_string(&kept).unwrap(), "{ \"a\": 1 }", "the first copy stays");
        let new = folder.path().join("new/settings.json");
        assert!(matches!(write(&new, SNIPPET), Ok(Change::Added { backup: None, .. })));
        assert_eq!(fs::read_to_string(new).unwrap(), SNIPPET);
    }
}
