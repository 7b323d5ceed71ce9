//! What the processes of workers use: memory and time on processors, of each with all processes below it.
//!
//! It is read from /proc when somebody asks; where there is none, nothing is known. A process is found by its parent,
//! so that tools which have left the process group of their agent count too. How much is read at a time is bounded,
//! because the loop waits for it.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};

use kernel_core::{Moment, Usage};

/// How many files of /proc are read for one answer. One takes about five microseconds.
const MAX_READS: usize = 4096;

pub(crate) struct UsageMeter {
    page_bytes: u64,
    ticks_per_sec: f64,
    /// What each process had used when it was last looked at.
    last: HashMap<u32, Sample>,
}

struct Sample {
    ticks: u64,
    at: Moment,
}

/// The fields of /proc/PID/stat that are of use.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Its own time and that of children that it has waited for, in clock ticks.
    ticks: u64,
    /// When it started, in clock ticks since the system did.
    started: u64,
    rss_pages: u64,
}

impl UsageMeter {
    pub(crate) fn new() -> UsageMeter {
        let value = |name| sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok());
        UsageMeter {
            page_bytes: value(SysconfVar::PAGE_SIZE).unwrap_or(4096),
            ticks_per_sec: value(SysconfVar::CLK_TCK).unwrap_or(100) as f64,
            last: HashMap::new(),
        }
    }

    /// What these processes use, as far as that can be told.
    pub(crate) fn measure(&mut self, pids: &[u32], now: Moment) -> Vec<(u32, Usage)> {
        let mut reads = MAX_READS;
        let system_sec = read_uptime();
        let mut measured = Vec::new();
        let mut samples = HashMap::new();
        for &pid in pids {
            let Some(tree) = read_tree(pid, &mut reads) else { continue };
            let used = |ticks: u64, time: Duration| {
                let percent = 100.0 * ticks as f64 / self.ticks_per_sec / time.as_secs_f64().max(0.01);
                (percent * 10.0).round() / 10.0
            };
            let cpu_percent = match self.last.get(&pid) {
                Some(last) => used(tree.ticks.saturating_sub(last.ticks), now.saturating_sub(last.at)),
                // Nobody has asked before: it is the mean since the process was started.
                None => {
                    let age = system_sec.unwrap_or_default() - tree.started as f64 / self.ticks_per_sec;
                    used(tree.ticks, Duration::try_from_secs_f64(age).unwrap_or(Duration::from_secs(1)))
                }
            };
            samples.insert(pid, Sample { ticks: tree.ticks, at: now });
            measured.push((pid, Usage { rss_bytes: tree.rss_pages * self.page_bytes, cpu_percent }));
        }
        self.last = samples;
        measured
    }
}

/// The sum over a process and all below it. `started` is that of the process itself.
fn read_tree(pid: u32, reads: &mut usize) -> Option<Stat> {
    let mut sum = read_stat(pid)?;
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for child in read_children(parent, reads) {
            if let Some(stat) = read_stat(child) {
                sum.ticks += stat.ticks;
                sum.rss_pages += stat.rss_pages;
                parents.push(child);
            }
        }
    }
    Some(sum)
}

/// Each thread has its own children.
fn read_children(pid: u32, reads: &mut usize) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        if *reads == 0 {
            break;
        }
        *reads -= 1;
        let listed = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    children
}

fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name of the program stands in parentheses, and may contain any of them. The next field is the third.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        ticks: field(14)? + field(15)? + field(16)? + field(17)?,
        started: field(22)?,
        rss_pages: field(24)?,
    })
}

/// How long the system has been up, in seconds.
fn read_uptime() -> Option<f64> {
    fs::read_to_string("/proc/uptime").ok()?.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_program_is_called() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 9 0 0 0 7 5 3 1 20 0 1 0 777 10000 25 1844";
        assert_eq!(parse_stat(text), Some(Stat { ticks: 16, started: 777, rss_pages: 25 }));
        assert_eq!(parse_stat("42 (x) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory_and_a_process_that_is_gone_nothing() {
        let mut meter = UsageMeter::new();
        let measured = meter.measure(&[process::id(), u32::MAX], Duration::from_secs(1));
        let [(pid, usage)] = measured[..] else { panic!("{measured:?}") };
        assert_eq!(pid, process::id());
        assert!(usage.rss_bytes > 100_000 && usage.cpu_percent >= 0.0, "{usage:?}");
        assert_eq!(meter.measure(&[], Duration::from_secs(2)), []);
        assert!(meter.last.is_empty());
    }
}
