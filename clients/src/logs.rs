//! `logs`: what the workers of a bus wrote to their stderr, once or as it comes.
//!
//! Who follows asks again and again for lines from where the last answer ended, so that the bus keeps nothing for it.

use std::time::{Duration, SystemTime};

use rpc::text::{escape_control, rfc3339};
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::status::list;
use crate::{Fault, Target};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whose lines are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    pub pool: String,
    pub worker: Option<u32>,
}

/// `POOL` or `POOL/N`.
pub fn parse_whose(text: &str) -> Result<Whose, String> {
    let whole = || Whose { pool: text.to_owned(), worker: None };
    match text.rsplit_once('/') {
        None if text.is_empty() => Err("the name of a pool is missing".to_owned()),
        None => Ok(whole()),
        Some((pool, number)) => match number.parse() {
            Ok(worker) if !pool.is_empty() => Ok(Whose { pool: pool.to_owned(), worker: Some(worker) }),
            _ => Err(format!("{text:?} is neither POOL nor POOL/N, where N is the number of a worker")),
        },
    }
}

/// A connection that asks for lines.
pub struct Logs {
    connection: Connection,
    whose: Option<Whose>,
    next: Option<u64>,
}

impl Logs {
    pub fn open(target: &Target, whose: Option<Whose>) -> Result<Logs, Fault> {
        let mut connection = Connection::connect(target, Some(TIMEOUT))?;
        connection.hello("stdio-bus logs", None).map_err(Fault::timeout_as_unreachable)?;
        Ok(Logs { connection, whose, next: None })
    }

    /// The first time the last `lines`; afterwards those that have come since.
    pub fn read(&mut self, lines: usize) -> Result<String, Fault> {
        let mut params = match self.next {
            None => json!({ "lines": lines }),
            Some(next) => json!({ "from": next, "lines": usize::MAX }),
        };
        if let Some(Whose { pool, worker }) = &self.whose {
            params["pool"] = pool.as_str().into();
            params["worker"] = (*worker).into();
        }
        self.connection.restart_timeout();
        let answer = self.connection.request("_bus/logs", params).map_err(Fault::timeout_as_unreachable)?;
        let answer: Value = serde_json::from_str(answer.get()).unwrap_or_default();
        self.next = answer["next"].as_u64();
        Ok(describe(&answer, SystemTime::now()))
    }
}

/// One line for each, with its time and its worker. `now` is the time of the answer.
fn describe(answer: &Value, now: SystemTime) -> String {
    let asked_at = answer["at_us"].as_u64().unwrap_or_default();
    let line = |line: &Value| {
        let ago = Duration::from_micros(asked_at.saturating_sub(line["at_us"].as_u64().unwrap_or(asked_at)));
        let time = rfc3339(now.checked_sub(ago).unwrap_or(now));
        // Whatever an agent writes cannot steer the terminal.
        let text = escape_control(line["text"].as_str().unwrap_or_default());
        format!("{time} {}/{}: {text}\n", line["pool"].as_str().unwrap_or("?"), line["worker"])
    };
    list(&answer["lines"]).iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_bus::FakeBus;

    #[test]
    fn a_pool_or_one_worker_of_it_is_named() {
        let whose = |pool: &str, worker| Ok(Whose { pool: pool.to_owned(), worker });
        assert_eq!(parse_whose("claude"), whose("claude", None));
        assert_eq!(parse_whose("claude/3"), whose("claude", Some(3)));
        for wrong in ["", "claude/", "/3", "a/b"] {
            assert!(parse_whose(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_follows_asks_for_what_came_since() {
        let line = r#"{"line":4,"at_us":1000000,"pool":"a","worker":0,"pid":7,"text":"Error: KEY not set"}"#;
        let first =
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"lines":[{line}],"next":5,"at_us":1000000}}}}"#);
        let bus = FakeBus::answering(&[
            &[&first],
            &[r#"{"jsonrpc":"2.0","id":2,"result":{"lines":[],"next":5,"at_us":9}}"#],
        ]);
        let mut logs = Logs::open(&bus.target(), Some(parse_whose("a/0").unwrap())).unwrap();
        let text = logs.read(10).unwrap();
        assert!(text.ends_with("Z a/0: Error: KEY not set\n"), "{text}");
        assert_eq!(logs.read(10).unwrap(), "");
        let asked = bus.received();
        assert!(asked[0].contains(r#""params":{"lines":10,"pool":"a","worker":0}"#), "{asked:?}");
        assert!(asked[1].contains(r#""from":5"#), "{asked:?}");
    }
}
