//! Finds the descendants of a process in the process table.
//!
//! A descendant is found by its parents or, after they have exited, by a mark in its environment.

use nix::unistd::Pid;

pub(super) struct ProcessInfo {
    pub(super) pid: Pid,
    parent: Pid,
    pub(super) group: Pid,
    is_marked: bool,
}

/// The process and everything that it has started. `mark` is a variable of its environment, as `NAME=value`.
pub(super) fn find(root: Pid, mark: &[u8]) -> Vec<ProcessInfo> {
    let all = all_processes(mark);
    let mut pids = vec![root];
    pids.extend(all.iter().filter(|process| process.is_marked).map(|process| process.pid));
    let mut at = 0;
    while let Some(&parent) = pids.get(at) {
        for process in all.iter().filter(|process| process.parent == parent) {
            if !pids.contains(&process.pid) {
                pids.push(process.pid);
            }
        }
        at += 1;
    }
    all.into_iter().filter(|process| pids.contains(&process.pid)).collect()
}

/// All processes in the process table except zombies.
#[cfg(target_os = "linux")]
fn all_processes(mark: &[u8]) -> Vec<ProcessInfo> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: std::fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // The process name may contain brackets and spaces, but no later field does.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        let group = Pid::from_raw(fields.next()?.parse().ok()?);
        let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_marked = environ.split(|byte| *byte == 0).any(|variable| variable == mark);
        Some(ProcessInfo { pid, parent, group, is_marked })
    };
    folder.flatten().filter_map(process).collect()
}

/// Environments cannot be read here, so a descendant is found only while its parents live.
#[cfg(not(target_os = "linux"))]
fn all_processes(_mark: &[u8]) -> Vec<ProcessInfo> {
    let listed = std::process::Command::new("/bin/ps").args(["-A", "-o", "pid=,ppid=,pgid=,stat="]).output();
    let listed = listed.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let process = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let mut number = || fields.next()?.parse().ok().map(Pid::from_raw);
        let (pid, parent, group) = (number()?, number()?, number()?);
        let is_dead = fields.next()?.starts_with('Z');
        (!is_dead).then_some(ProcessInfo { pid, parent, group, is_marked: false })
    };
    listed.lines().filter_map(process).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn children_and_marked_orphans_are_found() {
        let mark = format!("STDIO_BUS_TEST_MARK={}", std::process::id());
        let (name, value) = mark.split_once('=').unwrap();
        // The inner shell exits at once, so that its sleep is an orphan.
        let script = "sleep 1000 & sh -c 'setsid sleep 1000 & echo'; wait";
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env(name, value).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let root = Pid::from_raw(child.id() as i32);
        let sleeps = |mark: &str| {
            let is_sleep = |process: &ProcessInfo| {
                std::fs::read_to_string(format!("/proc/{}/comm", process.pid))
                    .is_ok_and(|name| name == "sleep\n")
            };
            find(root, mark.as_bytes()).into_iter().filter(is_sleep).count()
        };
        // Until the inner shell has exited, its sleep is a descendant like the other one.
        let started = Instant::now();
        while (sleeps(&mark), sleeps("STDIO_BUS_TEST_MARK=another")) != (2, 1) {
            assert!(started.elapsed() < Duration::from_secs(60), "the orphan is not found by its mark alone");
            std::thread::yield_now();
        }
        for process in find(root, mark.as_bytes()) {
            let _ = nix::sys::signal::kill(process.pid, nix::sys::signal::Signal::SIGKILL);
        }
        child.wait().unwrap();
    }
}
