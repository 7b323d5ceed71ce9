//! What the processes of workers use: memory and time on processors, of each with all processes below it.
//!
//! It is read from /proc when a client asks; where there is none, nothing is known. A process is found by its parent,
//! so that tools which have left the process group of their agent count too. Few files are read in one turn of the
//! loop, which has other work, and not too many for one answer.

use std::collections::HashMap;
use std::fs::{self, File, ReadDir};
use std::io::Read;
use std::mem;
use std::path::Path;
use std::time::Duration;
use std::vec;

use nix::unistd::{SysconfVar, sysconf};

use kernel_core::{Moment, Usage};

/// How many files of /proc are read in one turn. Each takes 5 to 20 microseconds.
const READS_PER_TURN: usize = 50;
/// So many processes in a list of children take as long as a file.
const LISTED_PER_READ: usize = 5;
/// A long list is read in pieces of this length.
const LIST_BYTES: usize = 1024;
/// How many reads one answer may take, about five for a process with one thread.
const MAX_READS: usize = 32_768;

pub(crate) struct UsageMeter {
    page_bytes: u64,
    ticks_per_sec: f64,
    /// What each process had used when it was last looked at.
    last: HashMap<u32, Sample>,
    /// The measurement that is under way.
    running: Option<Measurement>,
}

struct Sample {
    ticks: u64,
    at: Moment,
}

struct Measurement {
    pids: vec::IntoIter<u32>,
    tree: Option<Tree>,
    reads_left: usize,
    system_sec: Option<f64>,
    samples: HashMap<u32, Sample>,
    measured: Vec<(u32, Usage)>,
}

/// A process and all below it, as far as they were looked at.
struct Tree {
    pid: u32,
    /// The sum. `started` is that of the process itself.
    sum: Stat,
    /// Processes whose threads were not listed yet.
    parents: Vec<u32>,
    /// Threads whose children were not listed yet: each thread has its own.
    threads: Option<ReadDir>,
    /// The children of a thread, as far as they were not read yet.
    listing: Option<Listing>,
    /// Processes of which nothing was read yet.
    children: Vec<u32>,
}

/// A file of numbers with spaces between them.
struct Listing {
    file: File,
    /// The digits at the end of what was read, to which more may belong.
    last: Vec<u8>,
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
            running: None,
        }
    }

    /// Begins to measure what these processes use.
    pub(crate) fn start(&mut self, pids: Vec<u32>) {
        self.running = Some(Measurement {
            pids: pids.into_iter(),
            tree: None,
            reads_left: MAX_READS,
            system_sec: read_uptime(),
            samples: HashMap::new(),
            measured: Vec::new(),
        });
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Goes on with the measurement for one turn. When it has come to its end, it returns what the processes use, as
    /// far as that can be told.
    pub(crate) fn turn(&mut self, now: Moment) -> Option<Vec<(u32, Usage)>> {
        let mut running = self.running.take()?;
        let mut done = 0;
        while done < READS_PER_TURN {
            done += 1;
            if let Some(tree) = &mut running.tree {
                let cost = tree.read_next(running.reads_left);
                running.reads_left = running.reads_left.saturating_sub(cost);
                done += cost.saturating_sub(1);
                if cost == 0 {
                    let Tree { pid, sum, .. } = running.tree.take()?;
                    let usage = self.usage_of(pid, &sum, running.system_sec, now);
                    running.measured.push((pid, usage));
                    running.samples.insert(pid, Sample { ticks: sum.ticks, at: now });
                }
            } else if let Some(pid) = running.pids.next() {
                running.tree = Tree::new(pid);
            } else {
                self.last = running.samples;
                return Some(running.measured);
            }
        }
        self.running = Some(running);
        None
    }

    fn usage_of(&self, pid: u32, sum: &Stat, system_sec: Option<f64>, now: Moment) -> Usage {
        let used = |ticks: u64, time: Duration| {
            let percent = 100.0 * ticks as f64 / self.ticks_per_sec / time.as_secs_f64().max(0.01);
            (percent * 10.0).round() / 10.0
        };
        let cpu_percent = match self.last.get(&pid) {
            Some(last) => used(sum.ticks.saturating_sub(last.ticks), now.saturating_sub(last.at)),
            // Nobody has asked before: it is the mean since the process was started.
            None => {
                let age = system_sec.unwrap_or_default() - sum.started as f64 / self.ticks_per_sec;
                used(sum.ticks, Duration::try_from_secs_f64(age).unwrap_or(Duration::from_secs(1)))
            }
        };
        Usage { rss_bytes: sum.rss_pages * self.page_bytes, cpu_percent }
    }
}

impl Tree {
    fn new(pid: u32) -> Option<Tree> {
        let sum = read_stat(pid)?;
        Some(Tree { pid, sum, parents: vec![pid], threads: None, listing: None, children: Vec::new() })
    }

    /// Reads the next file, and says how many reads that was worth. 0: there is no other, or it would be too many.
    fn read_next(&mut self, reads_left: usize) -> usize {
        if reads_left == 0 {
            return 0;
        }
        if let Some(child) = self.children.pop() {
            if let Some(stat) = read_stat(child) {
                self.sum.ticks += stat.ticks;
                self.sum.rss_pages += stat.rss_pages;
                self.parents.push(child);
            }
        } else if let Some(listing) = &mut self.listing {
            match listing.read() {
                Some(pids) => {
                    self.children = pids;
                    return 1 + self.children.len() / LISTED_PER_READ;
                }
                None => self.listing = None,
            }
        } else if let Some(threads) = &mut self.threads {
            match threads.next() {
                Some(thread) => self.listing = thread.ok().and_then(|thread| Listing::open(&thread.path())),
                None => self.threads = None,
            }
        } else if let Some(parent) = self.parents.pop() {
            self.threads = fs::read_dir(format!("/proc/{parent}/task")).ok();
        } else {
            return 0;
        }
        1
    }
}

impl Listing {
    fn open(thread: &Path) -> Option<Listing> {
        let file = File::open(thread.join("children")).ok()?;
        Some(Listing { file, last: Vec::new() })
    }

    /// The next numbers. `None`: there are no more.
    fn read(&mut self) -> Option<Vec<u32>> {
        let mut bytes = [0; LIST_BYTES];
        let count = self.file.read(&mut bytes).ok().filter(|count| *count > 0)?;
        self.last.extend_from_slice(&bytes[..count]);
        // Each number has a space behind it.
        let whole = self.last.iter().rposition(|byte| *byte == b' ').map_or(0, |at| at + 1);
        let rest = self.last.split_off(whole);
        let whole = mem::replace(&mut self.last, rest);
        let text = str::from_utf8(&whole).unwrap_or_default();
        Some(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
    }
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
    use std::os::unix::process::CommandExt;
    use std::process::{self, Command, Stdio};

    use nix::sys::signal::{Signal, killpg};
    use nix::unistd::Pid;

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
        let (measured, _) = measure(&mut meter, &[process::id(), u32::MAX], Duration::from_secs(1));
        let [(pid, usage)] = measured[..] else { panic!("{measured:?}") };
        assert_eq!(pid, process::id());
        assert!(usage.rss_bytes > 100_000 && usage.cpu_percent >= 0.0, "{usage:?}");
        assert_eq!(measure(&mut meter, &[], Duration::from_secs(2)), (Vec::new(), 1));
        assert!(meter.last.is_empty() && !meter.is_running());
    }

    /// What was measured, and in how many turns.
    fn measure(meter: &mut UsageMeter, pids: &[u32], now: Moment) -> (Vec<(u32, Usage)>, usize) {
        meter.start(pids.to_vec());
        let mut turns = 0;
        loop {
            turns += 1;
            if let Some(measured) = meter.turn(now) {
                return (measured, turns);
            }
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn many_processes_are_measured_in_many_turns() {
        const CHILDREN: usize = 200;
        // The shell says that it has started them all.
        let script = format!("for n in $(seq {CHILDREN}); do sleep 1000 & done; echo; wait");
        let mut command = Command::new("sh");
        let mut shell =
            command.args(["-c", &script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let mut meter = UsageMeter::new();
        let alone = read_stat(shell.id()).unwrap().rss_pages * meter.page_bytes;
        let (measured, turns) = measure(&mut meter, &[shell.id()], Duration::from_secs(1));
        killpg(Pid::from_raw(shell.id() as i32), Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert!(measured[0].1.rss_bytes > alone + CHILDREN as u64 * meter.page_bytes, "{measured:?}");
        // Of each are read its numbers, its threads and their children, and then the ends of those lists.
        assert!(turns >= CHILDREN * 3 / READS_PER_TURN, "{turns}");
    }
}
