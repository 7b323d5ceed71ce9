//! What workers wrote to their stderr, for people who ask why.
//!
//! It is kept under the name of the worker and outlives its processes, and the worker itself. The lines of all workers
//! are numbered in one order, so that who has read some can ask for those that came later.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::api::{Moment, micros};
use crate::limit::{STDERR_ANSWER_BYTES, STDERR_LINE_BYTES, STDERR_LOGS, UNCOUNTED_BYTES};
use crate::saved::counts_as;
use crate::state::backlog::HeldBytes;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct StderrLogs {
    /// By pool and index of the worker.
    pools: BTreeMap<Box<str>, BTreeMap<u32, Log>>,
    /// The number of the next line.
    next: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Log {
    lines: VecDeque<Line>,
    /// The beginning of a line, and the process that wrote it.
    #[serde(with = "serde_bytes")]
    unfinished: Vec<u8>,
    pid: Option<u32>,
    /// What `lines` take.
    bytes: usize,
    /// The number of the next line of all when it was last written to.
    written: u64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    number: u64,
    at: Moment,
    pid: Option<u32>,
    #[serde(with = "serde_bytes")]
    text: Box<[u8]>,
}

/// A line as people are told it.
#[derive(Serialize)]
pub(crate) struct Told<'a> {
    line: u64,
    at_us: u64,
    pool: &'a str,
    worker: u32,
    pid: Option<u32>,
    text: String,
}

/// Which lines are wanted.
pub(crate) struct Wanted<'a> {
    pub(crate) pool: Option<&'a str>,
    pub(crate) worker: Option<u32>,
    /// Only those from this number on, the first ones first. `None`: the last ones.
    pub(crate) from: Option<u64>,
    pub(crate) at_most: usize,
}

impl StderrLogs {
    /// A worker wrote this. At most `limit` bytes are kept of it.
    pub(crate) fn push(
        &mut self,
        (pool, index, pid): (&str, u32, Option<u32>),
        at: Moment,
        bytes: &[u8],
        limit: usize,
        held: &mut HeldBytes,
    ) {
        self.make_room(pool, index, held);
        let logs = self.pools.entry(pool.into()).or_default();
        let log = logs.entry(index).or_default();
        held.give_back(log.counted());
        log.written = self.next + 1;
        if log.pid != pid {
            log.end_line(at, &mut self.next);
            log.pid = pid;
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            let room = STDERR_LINE_BYTES.saturating_sub(log.unfinished.len()).min(text.len());
            log.unfinished.extend_from_slice(&text[..room]);
            if part.len() > text.len() {
                log.add_line(at, &mut self.next);
            }
        }
        while log.bytes > limit
            && let Some(line) = log.lines.pop_front()
        {
            log.bytes -= line.bytes();
        }
        held.add(log.counted());
    }

    /// The process of a worker has ended, and with it the line that it had begun.
    pub(crate) fn end_line(&mut self, pool: &str, index: u32, at: Moment, held: &mut HeldBytes) {
        let Some(log) = self.pools.get_mut(pool).and_then(|logs| logs.get_mut(&index)) else { return };
        held.give_back(log.counted());
        log.end_line(at, &mut self.next);
        held.add(log.counted());
    }

    /// Forgets the log that was not written to for the longest time, if there are too many for another.
    fn make_room(&mut self, pool: &str, index: u32, held: &mut HeldBytes) {
        let is_known = self.pools.get(pool).is_some_and(|logs| logs.contains_key(&index));
        let count: usize = self.pools.values().map(BTreeMap::len).sum();
        if is_known || count < STDERR_LOGS {
            return;
        }
        let all =
            self.pools.iter().flat_map(|(pool, logs)| logs.iter().map(move |(at, log)| (pool, at, log)));
        let Some((pool, index)) =
            all.min_by_key(|(_, _, log)| log.written).map(|(pool, index, _)| (pool.clone(), *index))
        else {
            return;
        };
        if let Some(logs) = self.pools.get_mut(&pool) {
            held.give_back(logs.remove(&index).map_or(0, |log| log.counted()));
            if logs.is_empty() {
                self.pools.remove(&pool);
            }
        }
    }

    /// The bytes of it that count as held: those of each log beyond `UNCOUNTED_BYTES`. For tests.
    pub(crate) fn count(&self) -> usize {
        self.pools.values().flat_map(BTreeMap::values).map(Log::counted).sum()
    }

    pub(crate) fn has_worker(&self, pool: &str, index: u32) -> bool {
        self.pools.get(pool).is_some_and(|logs| logs.contains_key(&index))
    }

    /// The lines that are wanted, in order, as far as they fit into one answer, and the number from which on to ask for
    /// more.
    pub(crate) fn lines(&self, wanted: &Wanted<'_>) -> (Vec<Told<'_>>, u64) {
        let mut found: Vec<(&str, u32, &Line)> = Vec::new();
        for (pool, logs) in self.pools.iter().filter(|(pool, _)| wanted.pool.is_none_or(|it| it == &***pool))
        {
            for (index, log) in logs.iter().filter(|(index, _)| wanted.worker.is_none_or(|it| it == **index))
            {
                let from = match wanted.from {
                    Some(from) => log.lines.partition_point(|line| line.number < from),
                    None => log.lines.len().saturating_sub(wanted.at_most),
                };
                let lines = log.lines.range(from..).take(wanted.at_most);
                found.extend(lines.map(|line| (&**pool, *index, line)));
            }
        }
        found.sort_by_key(|(_, _, line)| line.number);
        let mut room = STDERR_ANSWER_BYTES;
        let mut fits = |(_, _, line): &&(&str, u32, &Line)| {
            let is_room = room >= line.text.len();
            room = room.saturating_sub(line.text.len());
            is_room
        };
        let chosen: Vec<_> = match wanted.from {
            Some(_) => found.iter().take(wanted.at_most).take_while(&mut fits).collect(),
            None => {
                let mut last: Vec<_> =
                    found.iter().rev().take(wanted.at_most).take_while(&mut fits).collect();
                last.reverse();
                last
            }
        };
        let is_cut = wanted.from.is_some() && chosen.len() < found.len();
        let next = match chosen.last() {
            Some((_, _, line)) if is_cut => line.number + 1,
            _ => self.next,
        };
        (chosen.into_iter().map(|(pool, index, line)| line.told(pool, *index)).collect(), next)
    }
}

impl Log {
    fn counted(&self) -> usize {
        (self.bytes + self.unfinished.len()).saturating_sub(UNCOUNTED_BYTES)
    }

    fn end_line(&mut self, at: Moment, next: &mut u64) {
        if !self.unfinished.is_empty() {
            self.add_line(at, next);
        }
    }

    fn add_line(&mut self, at: Moment, next: &mut u64) {
        let text = self.unfinished.strip_suffix(b"\r").unwrap_or(&self.unfinished).into();
        self.unfinished.clear();
        let line = Line { number: *next, at, pid: self.pid, text };
        self.bytes += line.bytes();
        self.lines.push_back(line);
        *next += 1;
    }
}

impl Line {
    fn bytes(&self) -> usize {
        counts_as::<Line>(48) + self.text.len()
    }

    fn told<'a>(&self, pool: &'a str, worker: u32) -> Told<'a> {
        Told {
            line: self.number,
            at_us: micros(self.at),
            pool,
            worker,
            pid: self.pid,
            text: String::from_utf8_lossy(&self.text).into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::STDERR_LOG_BYTES;

    const ALL: Wanted<'_> = Wanted { pool: None, worker: None, from: Some(0), at_most: 1000 };

    fn texts(logs: &StderrLogs, wanted: &Wanted<'_>) -> Vec<String> {
        let (lines, _) = logs.lines(wanted);
        lines.into_iter().map(|told| format!("{}/{} {}", told.pool, told.worker, told.text)).collect()
    }

    fn push(logs: &mut StderrLogs, pool: &str, index: u32, pid: u32, text: &str) {
        let mut held = HeldBytes::default();
        held.add(logs.count());
        let name = (pool, index, Some(pid));
        logs.push(name, Moment::ZERO, text.as_bytes(), STDERR_LOG_BYTES, &mut held);
        assert_eq!(held.get(), logs.count());
    }

    fn end_line(logs: &mut StderrLogs) {
        let mut held = HeldBytes::default();
        held.add(logs.count());
        logs.end_line("a", 0, Moment::ZERO, &mut held);
        assert_eq!(held.get(), logs.count());
    }

    #[test]
    fn lines_of_all_workers_have_one_order() {
        let mut logs = StderrLogs::default();
        push(&mut logs, "a", 0, 1, "one\r\nt");
        push(&mut logs, "b", 3, 2, "other\n");
        push(&mut logs, "a", 0, 1, "wo\n\nrest");
        assert_eq!(texts(&logs, &ALL), ["a/0 one", "b/3 other", "a/0 two", "a/0 "]);
        assert_eq!(texts(&logs, &Wanted { pool: Some("b"), ..ALL }), ["b/3 other"]);
        assert_eq!(texts(&logs, &Wanted { worker: Some(0), from: None, at_most: 1, ..ALL }), ["a/0 "]);
        let (first, next) = logs.lines(&Wanted { at_most: 2, ..ALL });
        assert_eq!((first.len(), next), (2, 2));
        assert_eq!(texts(&logs, &Wanted { from: Some(next), ..ALL }), ["a/0 two", "a/0 "]);
        // The next process of the worker begins a line of its own, and so does the end of one.
        push(&mut logs, "a", 0, 9, "new\nlast");
        end_line(&mut logs);
        assert_eq!(texts(&logs, &Wanted { from: Some(4), ..ALL }), ["a/0 rest", "a/0 new", "a/0 last"]);
    }

    #[test]
    fn what_is_kept_is_bounded_and_counted() {
        let mut logs = StderrLogs::default();
        for n in 0..20_000 {
            push(&mut logs, "a", 0, 1, &format!("line {n}\n"));
        }
        push(&mut logs, "a", 0, 1, &"x".repeat(3 * STDERR_LINE_BYTES));
        assert!(logs.count() <= STDERR_LOG_BYTES && logs.count() > STDERR_LOG_BYTES / 2);
        let last = texts(&logs, &Wanted { from: None, at_most: 1, ..ALL });
        assert_eq!(last, ["a/0 line 19999"]);
        end_line(&mut logs);
        assert_eq!(texts(&logs, &Wanted { from: None, at_most: 1, ..ALL })[0].len(), STDERR_LINE_BYTES + 4);
        for index in 0..2 * STDERR_LOGS as u32 {
            push(&mut logs, "b", index, 1, "x\n");
        }
        assert!(!logs.has_worker("a", 0) && !logs.has_worker("b", 0) && logs.has_worker("b", 511));
        assert_eq!(logs.count(), 0);
    }

    #[test]
    fn an_answer_is_bounded() {
        let mut logs = StderrLogs::default();
        for index in 0..8 {
            for _ in 0..60 {
                push(&mut logs, "a", index, 1, &format!("{}\n", "x".repeat(STDERR_LINE_BYTES)));
            }
        }
        let (lines, next) = logs.lines(&ALL);
        assert_eq!(lines.len(), STDERR_ANSWER_BYTES / STDERR_LINE_BYTES);
        assert!(next < logs.next);
        assert_eq!(
            logs.lines(&Wanted { from: None, ..ALL }).0.len(),
            STDERR_ANSWER_BYTES / STDERR_LINE_BYTES
        );
    }
}
