//! What is written for people: phrases that do not come back, and tables of the guide that are complete.
//!
//! Readers stumbled over these phrases, so a plain sentence stands in the place of each. "How we write" in
//! CONTRIBUTING.md says what such a sentence is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{ROOT, files, is_clean};

const THIS_FILE: &str = "tests/tidy/words.rs";

const PHRASES: [&str; 14] = [
    "belongs into",
    "belong into",
    "shall not any more",
    "whoever feeds",
    "somebody asks",
    "how often who ",
    "as many steps counts",
    "failed in passing",
    "is a word about that one",
    "with a little chance",
    "mildest option",
    "without a stay",
    "is gone on with",
    "beyond what is usual",
];

#[test]
fn no_phrase_that_was_replaced_comes_back() {
    let mut faults = Vec::new();
    for ending in [".md", ".rs", ".py", ".js"] {
        for file in files(ending).iter().filter(|file| file.path != THIS_FILE) {
            for (at, line) in file.lines() {
                let small = line.to_lowercase();
                let found = PHRASES.iter().filter(|phrase| small.contains(**phrase));
                faults.extend(found.map(|phrase| format!("{at}: {phrase:?}")));
            }
        }
    }
    is_clean(faults);
}

#[test]
fn the_guide_has_every_key_of_the_schema_and_every_command() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).expect(path);
    let guide = read("docs/GUIDE.md");
    let schema: Value = serde_json::from_str(&read("docs/bus.schema.json")).expect("JSON");
    let (_, keys) = guide.split_once("\n| key | default | meaning |").expect("the keys of bus.json");
    let (keys, rest) = keys.split_once("\n| pool key | ").expect("the keys of a pool");
    let (pool, rest) = rest.split_once("\n| limit | ").expect("the limits");
    let (limits, _) = rest.split_once("\n\n").expect("an end of the table");
    let mut faults = Vec::new();
    for (place, properties, table) in [
        ("bus.json", &schema["properties"], keys),
        ("a pool", &schema["$defs"]["pool"]["properties"], pool),
        ("limits", &schema["$defs"]["limits"]["properties"], limits),
    ] {
        let named: BTreeSet<&str> = table.lines().flat_map(names).collect();
        let known = properties.as_object().expect("keys").keys();
        let missing = known.filter(|key| !named.contains(key.as_str()));
        faults.extend(missing.map(|key| format!("docs/GUIDE.md: no row for {key} of {place}")));
    }
    let (_, list) = guide.split_once("\n## From the command line\n").expect("the commands");
    let listed: BTreeSet<&str> =
        list.lines().filter_map(|line| line.strip_prefix("    stdio-bus ")?.split(' ').next()).collect();
    let cli = read("docs/CLI.md");
    let commands: BTreeSet<&str> = cli
        .lines()
        .filter_map(|line| line.strip_prefix("## stdio-bus "))
        .filter(|name| !name.contains(' '))
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    faults.extend(commands.difference(&listed).map(|name| format!("docs/GUIDE.md: no line for {name}")));
    faults.extend(listed.difference(&commands).map(|name| format!("docs/GUIDE.md: there is no {name}")));
    is_clean(faults);
}

/// Each part of bus.json has its page, whose table has the keys of the schema and no others.
#[test]
fn the_pages_have_every_key_of_their_part_of_the_schema() {
    let read = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).expect(path);
    let schema: Value = serde_json::from_str(&read("docs/bus.schema.json")).expect("JSON");
    let part = |pointer: &str| schema.pointer(&format!("/properties/{pointer}/properties")).expect(pointer);
    let mut faults = Vec::new();
    for (path, heading, properties) in [
        ("docs/CLUSTER.md", "key of `cluster`", part("cluster")),
        ("docs/WEB.md", "key of `web`", part("web")),
        ("docs/NOTIFY.md", "key of an item", part("notify/items")),
        ("docs/HISTORY.md", "key of `history`", part("history/oneOf/1")),
    ] {
        let page = read(path);
        let (_, table) = page.split_once(&format!("\n| {heading} |")).expect(heading);
        let (table, _) = table.split_once("\n\n").expect("an end of the table");
        let named: BTreeSet<&str> = table.lines().skip(2).flat_map(names).collect();
        let known: BTreeSet<&str> =
            properties.as_object().expect("keys").keys().map(String::as_str).collect();
        assert!(known.len() > 2, "{known:?}");
        faults.extend(known.difference(&named).map(|key| format!("{path}: no row for {key}")));
        faults.extend(named.difference(&known).map(|key| format!("{path}: there is no key {key}")));
    }
    is_clean(faults);
}

/// The names in the first cell of a row.
fn names(row: &str) -> impl Iterator<Item = &str> {
    let cell = row.strip_prefix("| ").and_then(|rest| rest.split('|').next()).unwrap_or_default();
    cell.split('`').skip(1).step_by(2)
}
