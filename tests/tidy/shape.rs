//! The shape of the code, in numbers that may only fall: which files import each other, and which methods of `Bus` call
//! each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Source, files, is_clean};

/// The methods of `impl Bus`, and the largest set of them that can all reach each other. Lower them with the code.
const BUS_METHODS: usize = 395;
const BUS_CIRCLE: usize = 6;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// The sets of nodes that can all reach each other.
fn circles(graph: &Graph) -> Vec<BTreeSet<&str>> {
    let reached = |start: &str| {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(node) = todo.pop() {
            for next in graph.get(node).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    todo.push(next);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|node| (node.as_str(), reached(node))).collect();
    let mut found: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (node, others) in reached.iter().filter(|(node, others)| others.contains(*node)) {
        let both = others.iter().filter(|other| reached.get(*other).is_some_and(|back| back.contains(node)));
        found.insert(both.copied().collect());
    }
    found.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// The code of a file without its comments and tests.
fn production(file: &Source) -> String {
    let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The module that a file of a crate is, as `a::b`; the file of the crate itself is empty.
fn module_of(path: &str) -> Option<String> {
    let inside = path.strip_suffix(".rs")?;
    let mut parts: Vec<&str> = inside.split('/').collect();
    if parts.iter().any(|part| part.ends_with("tests")) {
        return None;
    }
    if matches!(parts.last(), Some(&"mod" | &"lib" | &"main")) {
        parts.pop();
    }
    Some(parts.join("::"))
}

/// The paths of a `use`, without braces.
fn paths(tree: &str) -> Vec<String> {
    let Some((before, inner)) = tree.split_once('{') else { return vec![tree.trim().to_owned()] };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in inner.chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        match parts.last_mut() {
            Some(part) if letter != ',' || depth > 0 => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| paths(&format!("{}{}", before.trim(), part.trim()))).collect()
}

/// The module that a path leads to, seen from another one.
fn target(path: &str, from: &str, modules: &BTreeSet<String>) -> Option<String> {
    let mut at: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
    let mut rest = path.split("::").peekable();
    match *rest.peek()? {
        "crate" => at.clear(),
        "self" => {}
        "super" => {
            while rest.peek() == Some(&"super") {
                at.pop();
                rest.next();
            }
        }
        _ => return None,
    }
    if matches!(rest.peek(), Some(&"crate" | &"self")) {
        rest.next();
    }
    for part in rest {
        let further = [&at[..], &[part]].concat();
        if !modules.contains(&further.join("::")) {
            break;
        }
        at = further;
    }
    Some(at.join("::"))
}

/// The file of a folder may use what is in the folder; that is no circle.
#[test]
fn no_files_import_each_other() {
    let mut sources: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for file in files(".rs") {
        let Some((package, path)) = file.path.split_once("src/") else { continue };
        if let Some(module) = module_of(path) {
            sources.entry(package.to_owned()).or_default().insert(module, production(&file));
        }
    }
    assert!(sources.len() > 8, "{} packages", sources.len());
    let mut faults = Vec::new();
    for (package, modules) in &sources {
        let names: BTreeSet<String> = modules.keys().cloned().collect();
        let mut graph = Graph::new();
        for (module, code) in modules {
            let uses = code.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
            let targets = uses.flat_map(|(tree, _)| paths(tree));
            let targets = targets.filter_map(|path| target(&path, module, &names));
            let is_below = |other: &String| module.is_empty() || other.starts_with(&format!("{module}::"));
            let others = targets.filter(|other| other != module && !is_below(other));
            graph.entry(module.clone()).or_default().extend(others);
        }
        faults.extend(circles(&graph).iter().map(|circle| format!("{package}: {circle:?}")));
    }
    is_clean(faults);
}

#[test]
fn the_knot_of_the_bus_only_shrinks() {
    let mut bodies: BTreeMap<String, String> = BTreeMap::new();
    for file in files(".rs") {
        let is_bus = file.path.starts_with("kernel/core/src/bus/") && !file.path.contains("/tests");
        let mut method: Option<String> = None;
        let mut is_inside = false;
        for line in production(&file).lines().filter(|_| is_bus) {
            if line.starts_with("impl") || line == "}" {
                is_inside = line == "impl Bus {";
            }
            let signature = line.strip_prefix("    ").filter(|line| is_inside && !line.starts_with(' '));
            if let Some((_, name)) = signature.and_then(|line| line.split_once("fn ")) {
                method = name.split(['(', '<']).next().map(str::to_owned);
            }
            if let Some(method) = &method {
                bodies.entry(method.clone()).or_default().push_str(line.trim());
            }
            if line == "    }" {
                method = None;
            }
        }
    }
    let calls = |body: &str| {
        let after_self = body.split("self.").skip(1);
        let called = after_self.filter_map(|rest| rest.split_once('(').map(|(name, _)| name.to_owned()));
        called.filter(|name| bodies.contains_key(name)).collect()
    };
    let graph: Graph = bodies.iter().map(|(name, body)| (name.clone(), calls(body))).collect();
    let largest = circles(&graph).iter().map(BTreeSet::len).max().unwrap_or(0);
    println!("{} methods of Bus, {largest} of them can all reach each other", graph.len());
    assert!(graph.len() <= BUS_METHODS, "{} methods of Bus, at most {BUS_METHODS}", graph.len());
    assert!(largest <= BUS_CIRCLE, "{largest} methods of Bus reach each other, at most {BUS_CIRCLE}");
}

#[test]
fn a_circle_is_seen() {
    let modules: BTreeSet<String> = ["", "a", "a::b", "c"].map(str::to_owned).into();
    assert_eq!(paths("super::{b::{One, Two}, c}"), ["super::b::One", "super::b::Two", "super::c"]);
    assert_eq!(target("crate::a::b::One", "c", &modules).as_deref(), Some("a::b"));
    assert_eq!(target("super::b::One", "a::x", &modules).as_deref(), Some("a::b"));
    assert_eq!(target("std::fmt", "c", &modules), None);
    let arrow = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let graph = Graph::from([arrow("a", "b"), arrow("b", "c"), arrow("c", "b"), arrow("d", "d")]);
    assert_eq!(circles(&graph), [BTreeSet::from(["b", "c"])]);
}
