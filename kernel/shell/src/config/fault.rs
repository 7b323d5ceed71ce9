//! What is wrong with a bus.json, and where.
//!
//! A fault names its place by a JSON path; the faults of a file are told all at once.

use std::error::Error;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// Like `pools[1].instances`; `$` is the whole file.
    pub path: String,
    pub message: String,
}

impl ConfigFault {
    /// A fault of the file as a whole.
    pub(super) fn of_file(message: impl Into<String>) -> ConfigFault {
        ConfigFault { path: "$".to_owned(), message: message.into() }
    }
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path, self.message)
    }
}

/// All that is wrong with one file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFaults {
    /// The file as the user named it.
    pub file: String,
    pub faults: Vec<ConfigFault>,
}

impl ConfigFaults {
    pub(super) fn of_text(faults: Vec<ConfigFault>) -> ConfigFaults {
        ConfigFaults { file: "bus.json".to_owned(), faults }
    }
}

/// One line a fault, without a newline after the last.
impl fmt::Display for ConfigFaults {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(out, "{newline}{}: {fault}", self.file)?;
        }
        Ok(())
    }
}

impl Error for ConfigFaults {}

/// What to tell about a key that is not one of `known`.
pub(super) fn unknown_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(near) => format!("unknown key, did you mean {near:?}?"),
        None => format!("unknown key, the known ones are {}", quoted(known)),
    }
}

/// `"a", "b", "c"`
pub(super) fn quoted<T: fmt::Debug>(names: &[T]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}

/// The known key that was probably meant: at most three slips of the pen, fewer in a short word, where
/// three slips make any word of any other; or one that begins like it.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    // A key of many kilobytes is no slip of the pen, and its distance would take long to find.
    if key.len() > 64 {
        return None;
    }
    let key = folded(key);
    let candidates = known.iter().map(|&name| (name, folded(name)));
    let slips = candidates.clone().filter_map(|(name, folded)| {
        let allowed = (key.len().max(folded.len()) / 3).min(3);
        let distance = distance(&key, &folded);
        (distance <= allowed).then_some((distance, name))
    });
    if let Some((_, name)) = slips.min_by_key(|&(distance, _)| distance) {
        return Some(name);
    }
    let begins_alike = |name: &[char]| {
        let shared = key.len().min(name.len());
        shared >= 3 && key[..shared] == name[..shared]
    };
    candidates.into_iter().find(|(_, folded)| begins_alike(folded)).map(|(name, _)| name)
}

/// `maxSessions`, `max-sessions` and `max_sessions` are the same word.
fn folded(word: &str) -> Vec<char> {
    word.chars().filter(|c| !matches!(c, '_' | '-')).map(|c| c.to_ascii_lowercase()).collect()
}

/// How many letters to insert, remove, replace or swap with their neighbour to make `a` of `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let one_more = rows[i - 1][j].min(rows[i][j - 1]) + 1;
                    let swaps = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                    let swapped = if swaps { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                    replaced.min(one_more).min(swapped)
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_finds_the_key_that_was_meant() {
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
    fn a_key_like_no_other_is_answered_with_the_known_ones() {
        assert_eq!(unknown_key("warm", &["id", "args"]), r#"unknown key, the known ones are "id", "args""#);
        assert_eq!(unknown_key("ags", &["id", "args"]), r#"unknown key, did you mean "args"?"#);
    }

    #[test]
    fn every_fault_is_a_line_with_the_file_and_the_path() {
        let fault = |path: &str| ConfigFault { path: path.to_owned(), message: "missing".to_owned() };
        let faults = ConfigFaults { file: "my.json".to_owned(), faults: vec![fault("pools"), fault("$")] };
        assert_eq!(faults.to_string(), "my.json: pools: missing\nmy.json: $: missing");
    }
}
