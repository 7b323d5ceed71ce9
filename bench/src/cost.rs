//! What a process has cost so far, as Linux tells it in /proc. Elsewhere there is nothing to read.

use std::fs;
use std::time::Duration;

/// The tick of /proc on Linux, whatever that of the kernel itself.
const TICKS_A_SECOND: u64 = 100;

/// User and system time, in steps of 10 ms.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    cpu_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Memory that is really there (RSS).
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

fn cpu_in_stat(stat: &str) -> Option<Duration> {
    // The name of the program may itself hold spaces and brackets.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_ascii_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let ticks = times.next()?? + times.next()??;
    Some(Duration::from_millis(ticks * 1000 / TICKS_A_SECOND))
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
    #[cfg(target_os = "linux")]
    fn our_own_process_can_be_seen() {
        assert!(cpu_time(std::process::id()).is_some());
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
        assert_eq!(resident_bytes(0), None);
    }
}
