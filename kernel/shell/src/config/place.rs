//! Finds the line and the column of a JSON path in the text of a bus.json, for people who look there.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::jsonc::{plain_json, without_mark};

/// The line and the column, both from 1, of the value at a path like `pools[1].env.KEY`. If it is missing there, those
/// of the value that lacks it.
pub(super) fn place_of(text: &str, path: &str) -> Option<(usize, usize)> {
    let plain = plain_json(without_mark(text));
    let mut value: &RawValue = serde_json::from_str(&plain).ok()?;
    let mut rest = path;
    while !rest.is_empty() {
        let next = if rest.starts_with('[') { item(value, rest) } else { member(value, rest) };
        match next {
            Some((inner, after)) => (value, rest) = (inner, after),
            // The whole file has no place of interest.
            None if rest == path => return None,
            None => break,
        }
    }
    let before = &plain[..value.get().as_ptr().addr() - plain.as_ptr().addr()];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Some((before.matches('\n').count() + 1, before[line_start..].chars().count() + 1))
}

/// `[0].id`: the first item, and `.id`.
fn item<'a, 'p>(list: &'a RawValue, path: &'p str) -> Option<(&'a RawValue, &'p str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    let items: Vec<&RawValue> = serde_json::from_str(list.get()).ok()?;
    Some((items.get(index.parse::<usize>().ok()?)?, rest))
}

/// `.env.A.B`: the longest key that the path can mean, because keys may have dots.
fn member<'a, 'p>(object: &'a RawValue, path: &'p str) -> Option<(&'a RawValue, &'p str)> {
    let path = path.strip_prefix('.').unwrap_or(path);
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(object.get()).ok()?;
    let meant = members.into_iter().filter_map(|(key, value)| {
        let rest = path.strip_prefix(&key)?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then_some((value, rest))
    });
    meant.min_by_key(|(_, rest)| rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_in_the_text() {
        let pools = [r#"    {"id": "é", "x": 1},"#, r#"    {"env": {"A": "", "A.B": 7},},"#];
        let text = format!("\u{feff}{{ // é\n  \"pools\": [\n{}\n  ],\n}}", pools.join("\n"));
        for (path, place) in [
            ("pools", Some((2, 12))),
            ("pools[0].x", Some((3, 22))),
            ("pools[1].env.A", Some((4, 19))),
            ("pools[1].env.A.B", Some((4, 30))),
            // What is missing is missing in something.
            ("pools[1].command", Some((4, 5))),
            ("pools[7]", Some((2, 12))),
            ("listen", None),
            ("$", None),
            ("pools[x", Some((2, 12))),
        ] {
            assert_eq!(place_of(&text, path), place, "{path}");
        }
        assert_eq!(place_of("{", "pools"), None);
    }
}
