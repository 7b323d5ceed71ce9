//! What a process has used so far and what it holds, read from /proc. Systems other than Linux have nothing to read.

use std::time::Duration;
use std::{fs, io};

/// The tick of /proc on Linux, whatever that of the kernel itself.
const TICKS_A_SECOND: u64 = 100;

/// User and system time of all threads that live: to the nanosecond if the system counts so, else in steps of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> io::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let spent = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    if let Some(nanos) = threads.map(spent).sum::<Option<u64>>() {
        return Ok(Duration::from_nanos(nanos));
    }
    cpu_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat"))?).ok_or_else(unreadable)
}

/// How much of its time a process has spent in user mode and in the system, in ticks.
pub(crate) fn user_and_system(pid: u32) -> io::Result<(u64, u64)> {
    ticks_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat"))?).ok_or_else(unreadable)
}

/// `cpu_time` of the main thread alone. The time of a thread that has ended is in none of these.
pub(crate) fn main_thread_time(pid: u32) -> io::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanos = stat.split_ascii_whitespace().next().and_then(|nanos| nanos.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(unreadable)
}

/// Resident memory (RSS).
pub(crate) fn resident_bytes(pid: u32) -> io::Result<u64> {
    in_status(pid, "VmRSS:")
}

/// Resident memory without that of files, which all processes of a program share.
pub(crate) fn own_bytes(pid: u32) -> io::Result<u64> {
    in_status(pid, "RssAnon:")
}

/// The most resident memory that the process ever had.
pub(crate) fn peak_bytes(pid: u32) -> io::Result<u64> {
    in_status(pid, "VmHWM:")
}

pub(crate) fn open_fds(pid: u32) -> io::Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Children that have ended and that this process has not reaped.
pub(crate) fn zombies_of(parent: u32) -> Vec<u32> {
    let parent = parent.to_string();
    let is_one = |pid: &u32| state_and_parent(*pid).is_some_and(|(state, of)| state == "Z" && of == parent);
    processes().filter(is_one).collect()
}

/// Living processes that were started with this pair in their environment.
pub(crate) fn marked(pair: &str) -> Vec<u32> {
    let is_marked = |pid: &u32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|one| one == pair.as_bytes())
    };
    let lives = |pid: &u32| state_and_parent(*pid).is_some_and(|(state, _)| state != "Z" && state != "X");
    processes().filter(is_marked).filter(lives).collect()
}

/// A process and all that it has started, as far as they live, parents before their children.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, String)> =
        processes().filter_map(|pid| Some((pid, state_and_parent(pid)?.1))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).map(u32::to_string) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found
}

/// The memory of a process and of all that it has started. What several processes share is divided among them (PSS).
pub(crate) fn tree_bytes(root: u32) -> u64 {
    let of = |pid: &u32| {
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let value = rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
        Some(value?.trim().parse::<u64>().ok()? * 1024)
    };
    tree(root).iter().filter_map(of).sum()
}

/// The program and its arguments, for a message.
pub(crate) fn command_line(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ").trim_end().to_owned()
}

/// Connections that the system refused because a server was too slow to accept them, on the whole machine.
pub(crate) fn listen_overflows() -> io::Result<u64> {
    overflows_in(&fs::read_to_string("/proc/net/netstat")?).ok_or_else(unreadable)
}

fn unreadable() -> io::Error {
    io::Error::other("/proc does not say what it should")
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn state_and_parent(pid: u32) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may itself hold spaces and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

fn in_status(pid: u32, name: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    let kibibytes = value.and_then(|value| value.parse::<u64>().ok()).ok_or_else(unreadable)?;
    Ok(kibibytes * 1024)
}

fn cpu_in_stat(stat: &str) -> Option<Duration> {
    let (user, system) = ticks_in_stat(stat)?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS_A_SECOND))
}

fn ticks_in_stat(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some((times.next()??, times.next()??))
}

/// A line of names, and below it one of numbers.
fn overflows_in(netstat: &str) -> Option<u64> {
    let mut lines = netstat.lines().filter_map(|line| line.strip_prefix("TcpExt:"));
    let mut names = lines.next()?.split_ascii_whitespace();
    let at = names.position(|name| name == "ListenOverflows")?;
    lines.next()?.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_past_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 12 30 9 9 20 0 1 0 100 4096 10";
        assert_eq!(cpu_in_stat(stat), Some(Duration::from_millis(420)));
        assert_eq!(cpu_in_stat("7 (short) S 1"), None);
    }

    #[test]
    fn overflows_are_found_by_their_name() {
        let netstat =
            "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 14 15\nIpExt: A\nIpExt: 2\n";
        assert_eq!(overflows_in(netstat), Some(14));
        assert_eq!(overflows_in("TcpExt: ListenOverflows\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_process_can_be_seen() {
        let own = std::process::id();
        assert!(cpu_time(own).is_ok());
        let resident = resident_bytes(own).unwrap();
        assert!(resident > 0 && peak_bytes(own).unwrap() >= resident);
        assert!(open_fds(own).unwrap() >= 3);
        assert!(!command_line(own).is_empty());
        assert!(resident_bytes(0).is_err());
        assert_eq!(tree(own)[0], own);
        assert!(tree_bytes(own) > 0);
    }
}
