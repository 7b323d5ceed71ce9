//! The errors of a bus.json. Each names its place in the file by a JSON path.

use std::error::Error;
use std::fmt;

use strsim::osa_distance;

use super::place::place_of;

/// One error of a bus.json.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// A JSON path like `pools[1].instances`; `$` is the whole file.
    pub path: String,
    /// What is wrong there, in words for the user.
    pub message: String,
}

impl ConfigError {
    /// An error of the file as a whole.
    pub(super) fn of_file(message: impl Into<String>) -> ConfigError {
        ConfigError { path: "$".to_owned(), message: message.into() }
    }

    /// The line and the column that it names, and the rest of its message.
    fn position(&self) -> Option<(usize, usize, &str)> {
        let (line, rest) = self.message.strip_prefix("line ")?.split_once(", column ")?;
        let (column, message) = rest.split_once(": ")?;
        Some((line.parse().ok()?, column.parse().ok()?, message))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path, self.message)
    }
}

/// All errors of one file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file as the user named it.
    pub file: String,
    /// The errors in the order in which they were found.
    pub errors: Vec<ConfigError>,
    /// The line and the column of each, where they are known.
    places: Vec<Option<(usize, usize)>>,
}

impl ConfigErrors {
    pub(super) fn of_text(errors: Vec<ConfigError>) -> ConfigErrors {
        ConfigErrors { file: "bus.json".to_owned(), errors, places: Vec::new() }
    }

    /// Errors of a file with this text, in which each is looked for.
    pub fn in_file(file: String, text: &str, errors: Vec<ConfigError>) -> ConfigErrors {
        let places = errors.iter().map(|error| place_of(text, &error.path)).collect();
        ConfigErrors { file, errors, places }
    }

    /// Where an error is, as editors and terminals understand it: `bus.json:3:17`, or just the file.
    pub fn place(&self, index: usize) -> String {
        match self.places.get(index) {
            Some(Some((line, column))) => format!("{}:{line}:{column}", self.file),
            _ => self.file.clone(),
        }
    }
}

/// One line per error, without a newline after the last.
impl fmt::Display for ConfigErrors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            let file = &self.file;
            match (error.path.as_str(), error.position()) {
                ("$", Some((line, column, message))) => {
                    write!(out, "{newline}{file}:{line}:{column}: {message}")?;
                }
                ("$", None) => write!(out, "{newline}{file}: {}", error.message)?,
                _ => write!(out, "{newline}{}: {error}", self.place(index))?,
            }
        }
        Ok(())
    }
}

impl Error for ConfigErrors {}

/// What other programs call a key, and what it is called here.
const SYNONYMS: [(&str, &str); 14] = [
    ("cmd", "command"),
    ("program", "command"),
    ("exec", "command"),
    ("executable", "command"),
    ("arguments", "args"),
    ("argv", "args"),
    ("name", "id"),
    ("environment", "env"),
    ("workdir", "cwd"),
    ("dir", "cwd"),
    ("folder", "cwd"),
    ("workers", "instances"),
    ("port", "listen"),
    ("default", "default_pool"),
];

/// The message for a key that is not one of `known`.
pub(super) fn unknown_key(key: &str, known: &[&str]) -> String {
    let meant = SYNONYMS.iter().find(|(other, name)| *other == normalized(key) && known.contains(name));
    match meant.map(|(_, name)| *name).or_else(|| nearest(key, known)) {
        Some(near) => format!("unknown key, did you mean {near:?}?"),
        None => format!("unknown key, the known ones are {}", quoted(known)),
    }
}

/// `"a", "b", "c"`
pub(super) fn quoted<T: fmt::Debug>(names: &[T]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// The known word that was probably meant: one that differs by at most three typos, or one with the same beginning.
/// Short words allow fewer typos, because three typos turn any short word into any other.
pub fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    // A key of many kilobytes is no typo, and its distance would take long to compute.
    if key.len() > 64 {
        return None;
    }
    let key = normalized(key);
    let length = key.chars().count();
    let typos = known.iter().filter_map(|name| {
        let normal = normalized(name);
        let allowed = (length.max(normal.len()) / 3).min(3);
        let distance = osa_distance(&key, &normal);
        (distance <= allowed).then_some((distance, *name))
    });
    if let Some((_, name)) = typos.min_by_key(|(distance, _)| *distance) {
        return Some(name);
    }
    known.iter().copied().find(|name| {
        let normal = normalized(name);
        length.min(normal.len()) >= 3 && (normal.starts_with(&key) || key.starts_with(&normal))
    })
}

/// Makes `maxSessions`, `max-sessions` and `max_sessions` the same word.
fn normalized(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_key_that_was_meant() {
        let known = ["id", "command", "args", "instances", "max_instances", "max_sessions", "mode"];
        let cases = [
            ("instnces", Some("instances")),
            ("Instances", Some("instances")),
            ("maxInstances", Some("max_instances")),
            ("max-sesions", Some("max_sessions")),
            ("mdoe", Some("mode")),
            ("mod", Some("mode")),
            ("arguments", None),
            ("arg", Some("args")),
            ("instances_at_most", Some("instances")),
            ("comm", Some("command")),
            ("max", Some("max_instances")),
            ("warm", None),
            ("idle_sec", None),
            ("permission", None),
            ("auth", None),
            ("", None),
            ("x", None),
        ];
        for (key, meant) in cases {
            assert_eq!(nearest(key, &known), meant, "{key}");
        }
    }

    #[test]
    fn a_key_like_no_other_lists_the_known_ones() {
        assert_eq!(unknown_key("warm", &["id", "args"]), r#"unknown key, the known ones are "id", "args""#);
        assert_eq!(unknown_key("cmd", &["command", "cwd"]), r#"unknown key, did you mean "command"?"#);
        assert_eq!(unknown_key("ags", &["id", "args"]), r#"unknown key, did you mean "args"?"#);
    }

    #[test]
    fn every_error_is_a_line_with_the_file_and_the_path() {
        let error = |path: &str| ConfigError { path: path.to_owned(), message: "missing".to_owned() };
        let errors = vec![error("pools"), error("$")];
        let errors = ConfigErrors::in_file("my.json".to_owned(), "{\n\"pools\": 1}", errors);
        assert_eq!(errors.to_string(), "my.json:2:10: pools: missing\nmy.json: missing");
    }
}
