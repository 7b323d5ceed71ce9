//! `restart` and `drain`: asks a bus to replace processes, and tells what those that leave are waited for.

use std::time::Duration;

use serde_json::{Value, json};

use crate::connection::Connection;
use crate::logs::Whose;
use crate::sessions::pages;
use crate::status::{duration, list, word};
use crate::{Fault, Target};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many sessions of a process are named.
const MAX_NAMED: usize = 5;
/// How many sessions of a bus are looked at to find those.
const MAX_LOOKED_AT: usize = 2000;
const TITLE_CHARS: usize = 40;

/// A process that is on its way out.
#[derive(Clone)]
pub struct Leaving {
    pub worker: u64,
    pub pid: Option<u64>,
    pub sessions: u64,
}

/// Processes that are on their way out.
pub struct Replacing {
    connection: Connection,
    pool: String,
    leaving: Vec<Leaving>,
    /// What the bus told of itself when it was last looked at.
    status: Value,
}

/// What a process is waited for.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which process, and its sessions, one line each.
    pub lines: Vec<String>,
    /// It ends then at the latest; a drain has no end.
    pub at_most_sec: Option<u64>,
}

impl Replacing {
    /// Asks with `_bus/restart` or `_bus/drain`. `now`: without waiting for sessions.
    pub fn ask(target: &Target, method: &str, whose: &Whose, now: bool) -> Result<Replacing, Fault> {
        let mut connection = Connection::connect(target, Some(TIMEOUT))?;
        let greeted = connection.hello("stdio-bus", None);
        let mut params = json!({ "pool": whose.pool, "worker": whose.worker });
        if now {
            params["now"] = true.into();
        }
        let answer = greeted.and_then(|()| connection.request(method, params));
        let answer = answer.map_err(Fault::timeout_as_unreachable)?;
        let answer: Value = serde_json::from_str(answer.get()).unwrap_or_default();
        let leaving = |value: &Value| Leaving {
            worker: value["worker"].as_u64().unwrap_or_default(),
            pid: value["pid"].as_u64(),
            sessions: value["sessions"].as_u64().unwrap_or_default(),
        };
        let leaving = list(&answer["workers"]).iter().map(leaving).collect();
        Ok(Replacing { connection, pool: whose.pool.clone(), leaving, status: Value::Null })
    }

    /// Those that have not ended.
    pub fn leaving(&self) -> &[Leaving] {
        &self.leaving
    }

    /// Looks at the bus. Returns those that have ended since the last look.
    pub fn ended(&mut self) -> Result<Vec<Leaving>, Fault> {
        self.connection.restart_timeout();
        let status = self.connection.request("_bus/status", ()).map_err(Fault::timeout_as_unreachable)?;
        self.status = serde_json::from_str(status.get()).unwrap_or_default();
        let runs =
            |it: &Leaving| it.pid.is_some_and(|pid| worker_of(&self.status, &self.pool, pid).is_some());
        let (running, ended) = self.leaving.iter().cloned().partition(runs);
        self.leaving = running;
        Ok(ended)
    }

    /// What those that have not ended were waited for at the last look.
    pub fn waiting(&mut self) -> Result<Vec<Waiting>, Fault> {
        self.connection.restart_timeout();
        let sessions = pages(&mut self.connection, MAX_LOOKED_AT).map_err(Fault::timeout_as_unreachable)?;
        Ok(describe(&self.status, &self.pool, &self.leaving, list(&sessions["sessions"])))
    }
}

fn worker_of<'a>(status: &'a Value, pool: &str, pid: u64) -> Option<&'a Value> {
    let pool = list(&status["pools"]).iter().find(|it| it["id"] == pool)?;
    list(&pool["workers"]).iter().find(|worker| worker["pid"] == pid)
}

/// Those of them that wait for something. One whose turn to be restarted comes later is not yet on its way out.
fn describe(status: &Value, pool: &str, leaving: &[Leaving], sessions: &[Value]) -> Vec<Waiting> {
    let mut waiting = Vec::new();
    for it in leaving {
        let Some(worker) = it.pid.and_then(|pid| worker_of(status, pool, pid)) else { continue };
        if worker["state"] != "retiring" {
            continue;
        }
        let is_there = |session: &&Value| session["pool"] == pool && session["worker"] == it.worker;
        let here: Vec<&Value> = sessions.iter().filter(is_there).collect();
        let mut lines = vec![headline(pool, worker)];
        lines.extend(here.iter().take(MAX_NAMED).map(|session| session_line(session)));
        if here.len() > MAX_NAMED {
            lines.push(format!("  and {} more: see `stdio-bus sessions`", here.len() - MAX_NAMED));
        }
        waiting.push(Waiting { lines, at_most_sec: worker["leaves_in_sec"].as_u64() });
    }
    waiting
}

fn headline(pool: &str, worker: &Value) -> String {
    let counted = |key: &str, what: &str| match worker[key].as_u64().unwrap_or_default() {
        0 => None,
        1 => Some(format!("1 {what}")),
        count => Some(format!("{count} {what}s")),
    };
    let what = counted("sessions", "session").or_else(|| counted("calls", "call"));
    format!("{pool}/{} waits for {}", worker["worker"], what.unwrap_or_else(|| "its last answers".to_owned()))
}

fn session_line(session: &Value) -> String {
    let owner = match &session["client"] {
        Value::Null => String::new(),
        client => format!(" of {}", word(client)),
    };
    let title: String = session["title"].as_str().unwrap_or_default().chars().take(TITLE_CHARS).collect();
    let title = if title.is_empty() { title } else { format!(" ({})", word(&title.into())) };
    let count = |key: &str| session[key].as_u64().unwrap_or_default();
    let why = match (count("questions"), count("calls")) {
        (0, 0) if session["movable"] == false => "idle, and no other process can continue it",
        (0, 0) => "idle, and moves when the others of this process can",
        (0, _) => "a turn is running",
        _ => "the agent waits for an answer",
    };
    format!("  {}{owner}{title}: {why}", word(&session["session"]))
}

impl Waiting {
    /// Until when it waits, for people.
    pub fn limit(&self) -> String {
        match self.at_most_sec {
            Some(seconds) => format!("for at most {}", duration(seconds)),
            None => "until they end".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_bus::FakeBus;

    fn status(state: &str, leaves_in_sec: Value) -> Value {
        let worker = |pid: u64, index: u64, state: &str| {
            json!({ "worker": index, "pid": pid, "state": state, "sessions": 7, "calls": 1,
                    "leaves_in_sec": leaves_in_sec })
        };
        let workers = [worker(41, 0, state), worker(42, 1, "up")];
        json!({ "pools": [{ "id": "b", "workers": [] }, { "id": "a", "workers": workers }] })
    }

    fn leaving() -> Vec<Leaving> {
        [(0, 41), (1, 42)].map(|(worker, pid)| Leaving { worker, pid: Some(pid), sessions: 7 }).to_vec()
    }

    #[test]
    fn it_is_told_which_sessions_are_waited_for_and_why() {
        let session = |label: &str, client: Value, questions: u64, calls: u64, movable: bool| {
            json!({ "session": label, "pool": "a", "worker": 0, "client": client, "questions": questions,
                    "calls": calls, "movable": movable, "title": if calls > 0 { "Fix\u{1b}it" } else { "" } })
        };
        let mut sessions = vec![
            session("s1", json!("zed"), 1, 1, true),
            session("s2", json!("zed"), 0, 1, true),
            session("s3", json!(null), 0, 0, false),
            session("s4", json!("\u{1b}[2J"), 0, 0, true),
            json!({ "session": "s5", "pool": "a", "worker": 1 }),
            json!({ "session": "s6", "pool": "b", "worker": 0 }),
            json!(7),
        ];
        let told = describe(&status("retiring", json!(28)), "a", &leaving(), &sessions);
        assert_eq!(told.len(), 1, "the other one is not on its way out");
        assert_eq!(told[0].limit(), "for at most 28s");
        let lines = [
            "a/0 waits for 7 sessions",
            "  s1 of zed (Fix?it): the agent waits for an answer",
            "  s2 of zed (Fix?it): a turn is running",
            "  s3: idle, and no other process can continue it",
            "  s4 of ?[2J: idle, and moves when the others of this process can",
        ];
        assert_eq!(told[0].lines, lines);
        sessions.extend((10..13).map(|nth| session(&format!("s{nth}"), json!("zed"), 0, 1, true)));
        let told = describe(&status("retiring", Value::Null), "a", &leaving(), &sessions);
        assert_eq!(told[0].lines.last().unwrap(), "  and 2 more: see `stdio-bus sessions`");
        assert_eq!(told[0].limit(), "until they end");
        assert_eq!(describe(&status("stopping", Value::Null), "a", &leaving(), &sessions), []);
        assert_eq!(describe(&Value::Null, "a", &leaving(), &sessions), []);
    }

    #[test]
    fn who_waits_hears_of_each_process_that_has_ended() {
        let answer =
            |id: u64, result: &Value| json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        let asked =
            json!({ "workers": [{ "worker": 0, "pid": 7, "sessions": 1 }, { "worker": 1, "pid": 42 }] });
        let bus = FakeBus::answering(&[&[&answer(1, &asked)], &[&answer(2, &status("up", Value::Null))]]);
        let whose = Whose { pool: "a".to_owned(), worker: None };
        let mut replacing = Replacing::ask(&bus.target(), "_bus/restart", &whose, true).unwrap();
        let ended = replacing.ended().unwrap();
        assert_eq!((ended.len(), ended[0].pid, replacing.leaving().len()), (1, Some(7), 1));
        let asked: Value = serde_json::from_str(&bus.received()[0]).unwrap();
        assert_eq!(asked["params"], json!({ "now": true, "pool": "a", "worker": null }));
    }
}
