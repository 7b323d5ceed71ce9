//! How long a process has waited for a processor, and the processes below it: Linux counts that for each of them.
//!
//! Each process waits for those that it has started, so what they wait together is what the first of them is late by.

use std::fs;
use std::time::Duration;

/// How many files are read. Those of an agent that starts are some dozens, and each takes 5 to 20 microseconds.
const MAX_READS: usize = 400;

/// Zero where nothing is known of the process.
pub(crate) fn processor_wait(pid: u32) -> Duration {
    let (mut nanos, mut reads, mut found) = (0, 0, vec![pid]);
    while let Some(pid) = found.pop().filter(|_| reads < MAX_READS) {
        let of_it = fs::read_to_string(format!("/proc/{pid}/schedstat"));
        nanos += of_it.ok().and_then(|text| waited_nanos(&text)).unwrap_or(0);
        reads += 2;
        // The children of each thread stand apart.
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            if reads >= MAX_READS {
                break;
            }
            reads += 1;
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    Duration::from_nanos(nanos)
}

/// The time in a queue, of `/proc/PID/schedstat`: it is behind the time on a processor.
fn waited_nanos(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Instant;

    use nix::sys::signal::{Signal, killpg};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn the_time_in_a_queue_is_read() {
        assert_eq!(waited_nanos("157526 2433062 2\n"), Some(2_433_062));
        assert_eq!(waited_nanos("157526"), None);
        assert_eq!(waited_nanos("a b c"), None);
        assert_eq!(processor_wait(u32::MAX), Duration::ZERO);
    }

    /// Two processes that want the same processor wait for each other, and both are below the one that is asked for.
    #[cfg(target_os = "linux")]
    #[test]
    fn processes_below_it_count() {
        let spin = "(while :; do :; done) &";
        let script = format!("taskset -p -c 0 $$ >/dev/null || exit; {spin} {spin} echo; wait");
        let mut command = Command::new("sh");
        let mut shell =
            command.args(["-c", &script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        shell.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while processor_wait(shell.id()) < Duration::from_millis(200) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        let wait = processor_wait(shell.id());
        killpg(Pid::from_raw(shell.id() as i32), Signal::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert!(wait >= Duration::from_millis(200), "{wait:?}");
    }
}
