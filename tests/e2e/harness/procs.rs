//! What /proc says about processes.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use super::log::Log;
use super::waiting::{PATIENCE, looks_again};

/// Every process that a test starts carries this in its environment, with the folder of the test. It is the mark of a
/// family of processes, which the bus hands on also to those that get nothing else of its environment.
pub(crate) const MARK: &str = "BUS_FAMILY";

/// The fields of /proc/PID/stat after the name, which may hold anything. The first is the state.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// Whether it has exited, reaped or not.
pub(crate) fn is_gone(pid: u32) -> bool {
    stat(pid).is_none_or(|fields| fields[0] == "Z" || fields[0] == "X")
}

/// Whether SIGSTOP has stopped it.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] == "T")
}

pub(crate) fn zombies_of(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| stat(*pid).is_some_and(|f| f[0] == "Z" && f[1] == parent.to_string());
    all().filter(is_zombie).collect()
}

/// Processor time used so far, in ticks of 10 ms.
pub(crate) fn cpu_ticks(pid: u32) -> u64 {
    let fields = stat(pid).expect("the bus runs");
    fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
}

/// The most resident memory that it ever had.
pub(crate) fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the bus runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// `None`: only root may look, because the bus makes itself undumpable.
pub(crate) fn open_fds(pid: u32) -> Option<usize> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok().map(Iterator::count)
}

/// Living processes that were started for the test of this folder.
pub(crate) fn marked(folder: &Path) -> Vec<u32> {
    let folder = folder.as_os_str().as_bytes();
    let is_marked = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let pairs = environ.split(|byte| *byte == 0);
        let mut marks = pairs.filter_map(|pair| pair.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
        marks.any(|marks| marks.split(|byte| *byte == b':').any(|mark| mark == folder))
    };
    all().filter(is_marked).filter(|pid| !is_gone(*pid)).collect()
}

/// Processes that this one has started.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    all().filter(|pid| stat(*pid).is_some_and(|fields| fields[1] == parent)).collect()
}

/// Living processes whose command line contains this.
pub(crate) fn started_with(text: &str) -> Vec<u32> {
    all().filter(|pid| command_line(*pid).contains(text) && !is_gone(*pid)).collect()
}

/// The program and its arguments, for a message.
pub(crate) fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// Waits until none of these processes is left, and fails with their command lines if that takes too long.
pub(super) fn expect_none(find: impl Fn() -> Vec<u32>, log: &Log) {
    let deadline = Instant::now() + PATIENCE;
    while let left = find()
        && !left.is_empty()
    {
        if Instant::now() >= deadline {
            let lines: Vec<_> = left.iter().map(|pid| format!("{pid}: {}", command_line(*pid))).collect();
            panic!("left behind after {PATIENCE:?}: {lines:#?}\n--- log of the bus\n{}", log.text());
        }
        looks_again();
    }
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
