//! The names of a running bus that a shell completes: pools, workers, sessions and nodes.
//!
//! Somebody waits at a prompt with a finger on Tab, so a bus that does not answer soon is not waited for.

use std::time::Duration;

use serde_json::Value;

use crate::connection::Connection;
use crate::sessions::{folder, pages};
use crate::status::list;
use crate::{Fault, Target};

const TIMEOUT: Duration = Duration::from_secs(1);

/// More than this is no help to anybody.
const MAX_SESSIONS: usize = 200;
const MAX_FOLDER_CHARS: usize = 30;

/// Which names are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Pools,
    /// Pools, and each of their workers as `POOL/N`.
    Workers,
    Sessions,
    Nodes,
}

/// A name, and what helps to choose it. Neither has control characters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    pub name: String,
    pub about: String,
}

/// Asks a bus for these names.
pub fn fetch(target: &Target, kind: Kind) -> Result<Vec<Name>, Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    connection.hello("stdio-bus completions", None)?;
    let mut names = match kind {
        Kind::Sessions => sessions(&pages(&mut connection, MAX_SESSIONS)?),
        _ => of_status(&connection.request("_bus/status", ())?.get().parse().unwrap_or_default(), kind),
    };
    // A name that would not be what the user sees on the command line is none.
    names.retain(|name| !name.name.is_empty() && !name.name.contains(char::is_control));
    Ok(names)
}

fn sessions(all: &Value) -> Vec<Name> {
    let name = |session: &Value| {
        let text = |key: &str| session[key].as_str().unwrap_or_default();
        let (title, path) = (text("title"), text("folder"));
        let what = if title.is_empty() { folder(path, MAX_FOLDER_CHARS) } else { title.to_owned() };
        new(text("session"), &[text("pool"), &what])
    };
    list(&all["sessions"]).iter().map(name).collect()
}

fn of_status(status: &Value, kind: Kind) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    for pool in list(&status["pools"]) {
        let id = pool["id"].as_str().unwrap_or_default();
        let workers = list(&pool["workers"]);
        if kind != Kind::Nodes {
            names.push(new(id, &[&format!("a pool of {}", workers.len())]));
        }
        for worker in workers {
            let state = worker["state"].as_str().unwrap_or_default();
            match (kind, worker["worker"].as_u64(), worker["node"].as_str()) {
                (Kind::Workers, Some(number), _) => names.push(new(&format!("{id}/{number}"), &[state])),
                (Kind::Nodes, _, Some(node)) if names.iter().all(|other| other.name != node) => {
                    names.push(new(node, &[&format!("has pool {id}")]));
                }
                _ => {}
            }
        }
    }
    names
}

fn new(name: &str, about: &[&str]) -> Name {
    let about: Vec<_> = about.iter().filter(|part| !part.is_empty()).copied().collect();
    Name { name: name.to_owned(), about: about.join(", ").replace(char::is_control, " ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_bus::FakeBus;

    fn names(kind: Kind, result: &str) -> Vec<(String, String)> {
        let bus = FakeBus::answering(&[&[&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)]]);
        let names = fetch(&bus.target(), kind).unwrap();
        names.into_iter().map(|Name { name, about }| (name, about)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, about)| ((*name).to_owned(), (*about).to_owned())).collect()
    }

    const STATUS: &str = r#"{"pools":[{"id":"claude","workers":[{"worker":0,"state":"ready","node":"n17"},
        {"worker":1,"state":"starting","node":"n17"}]},{"id":"echo","workers":[]}]}"#;

    #[test]
    fn pools_workers_and_nodes_are_those_of_the_status() {
        let status = STATUS.replace('\n', "");
        let pools = [("claude", "a pool of 2"), ("echo", "a pool of 0")];
        assert_eq!(names(Kind::Pools, &status), pairs(&pools));
        let workers = [pools[0], ("claude/0", "ready"), ("claude/1", "starting"), pools[1]];
        assert_eq!(names(Kind::Workers, &status), pairs(&workers));
        assert_eq!(names(Kind::Nodes, &status), pairs(&[("n17", "has pool claude")]));
    }

    #[test]
    fn sessions_have_a_title_or_a_folder_and_no_control_characters() {
        let sessions = r#"{"sessions":[{"session":"s1","pool":"a","title":"Fix\tit","folder":"/srv"},
            {"session":"s2","pool":"a","folder":"/srv"},{"session":"bad\nname"},{"session":""},7]}"#;
        let expected = [("s1", "a, Fix it"), ("s2", "a, /srv")];
        assert_eq!(names(Kind::Sessions, &sessions.replace('\n', "")), pairs(&expected));
        assert_eq!(names(Kind::Pools, "7"), []);
    }
}
