//! What the sessions of a running bus have used since the writer began: for the status and for metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::entry::{Entry, What};
use crate::usage::{self, COST, Meter};

/// So many pools, days and sessions are told of at most: all of it is one line, which the bus reads up to 64 KiB.
const POOLS_MAX: usize = 64;
const DAYS_MAX: usize = 14;
const SESSIONS_MAX: usize = 64;

/// How much of each kind: kinds of tokens, and `cost` with its currency.
pub type Amounts = BTreeMap<String, f64>;

/// All that was used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    pools: BTreeMap<String, Amounts>,
    days: BTreeMap<String, Amounts>,
    sessions: BTreeMap<String, Amounts>,
}

impl Spent {
    /// A session has used so much more.
    pub fn add(&mut self, label: &str, pool: &str, day: &str, grown: &[(String, f64)]) {
        for (all, name, most) in [
            (&mut self.pools, pool, POOLS_MAX),
            (&mut self.days, day, DAYS_MAX),
            (&mut self.sessions, label, SESSIONS_MAX),
        ] {
            if all.len() >= most && !all.contains_key(name) {
                // Days are in their order, and the oldest goes. A bus with more pools or sessions tells of the others.
                if most != DAYS_MAX {
                    continue;
                }
                all.pop_first();
            }
            let amounts = all.entry(name.to_owned()).or_default();
            for (kind, amount) in grown {
                if !usage::may_count(amounts, kind) {
                    continue;
                }
                *amounts.entry(kind.clone()).or_default() += amount;
            }
        }
    }

    /// A session has ended.
    pub fn ended(&mut self, label: &str) {
        self.sessions.remove(label);
    }

    /// By pool, day and session.
    pub fn json(&self) -> Value {
        let rows = |name: &str, all: &BTreeMap<String, Amounts>| {
            let row = |(key, amounts): (&String, &Amounts)| row(name, key, amounts);
            all.iter().map(row).collect::<Vec<_>>()
        };
        json!({
            "pools": rows("pool", &self.pools),
            "days": rows("day", &self.days),
            "sessions": rows("session", &self.sessions),
        })
    }
}

/// Amounts as they are shown, under this name.
pub fn row<'a, K: AsRef<str> + 'a>(
    name: &str,
    key: &str,
    amounts: impl IntoIterator<Item = (K, &'a f64)>,
) -> Value {
    let (mut tokens, mut cost) = (Map::new(), Map::new());
    for (kind, amount) in amounts {
        match kind.as_ref().strip_prefix(COST) {
            Some(currency) => cost.insert(currency.to_owned(), json!(amount)),
            None => tokens.insert(kind.as_ref().to_owned(), json!(*amount as u64)),
        };
    }
    let mut row = json!({ "tokens": tokens, "cost": cost });
    if !name.is_empty() {
        row[name] = key.into();
    }
    row
}

/// Whether a message may report what was used.
pub fn may_report(message: &RawValue) -> bool {
    message.get().contains(r#""usage"#)
}

/// The sums that a transcript ends with: what its agent reports next may be a sum of the whole session.
pub fn meter_of(file: File) -> Meter {
    let mut meter = Meter::default();
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while file.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let is_report = memchr::memmem::find(&line, br#""usage"#).is_some();
        if let Some(Entry { what: What::Message(message), .. }) = Entry::parse(&line).filter(|_| is_report) {
            meter.read(&message);
        }
        line.clear();
    }
    meter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_by_pool_day_and_session_and_stays_small() {
        let mut spent = Spent::default();
        let grown = [("input".to_owned(), 5.0), ("cost USD".to_owned(), 0.5)];
        spent.add("s1", "claude", "2026-11-18", &grown);
        spent.add("s2", "claude", "2026-11-19", &grown[..1]);
        let json = spent.json();
        assert_eq!(
            json["pools"],
            json!([{ "pool": "claude", "tokens": { "input": 10 }, "cost": { "USD": 0.5 } }])
        );
        assert_eq!(json["days"][1], json!({ "day": "2026-11-19", "tokens": { "input": 5 }, "cost": {} }));
        spent.ended("s1");
        assert_eq!(spent.json()["sessions"].as_array().unwrap().len(), 1);
        for number in 0..1000 {
            spent.add(&format!("s{number}"), &format!("p{number}"), &format!("3{number:04}"), &grown);
        }
        let json = spent.json();
        assert!(json.to_string().len() < 24 << 10 && json["days"][13]["day"] == "30999", "{json}");
    }

    #[test]
    fn a_line_holds_all_of_it_whatever_agents_report() {
        let mut spent = Spent::default();
        for number in 0..1000 {
            let costs =
                (0..20).map(|it| (format!("cost A{}{}", it % 10, number % 10), 123_456.789_012_345_67));
            let tokens = ["input", "output", "thought", "cached_read", "cached_write"];
            let grown: Vec<_> = costs.chain(tokens.into_iter().map(|kind| (kind.to_owned(), 1e12))).collect();
            let (label, pool) = (format!("s{number:06}"), format!("a-pool-with-a-long-name-{number}"));
            spent.add(&label, &pool, &format!("2026-11-{:02}", number % 30), &grown);
        }
        let length = spent.json().to_string().len();
        assert!(length < 60 << 10, "{length}");
    }
}
