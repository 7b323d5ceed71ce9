//! Marks the workers of one bus in their environment, which all processes that they start inherit.
//!
//! The mark finds a process that has left its parent, its group and its session. Linux shows the environment of our
//! user's processes in /proc. On other systems, or if a process has cleared its environment, nothing is found.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::process;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

const VARIABLE: &str = "BUS_FAMILY";
/// A process may start another while it is being killed, so the search is repeated until nothing is found.
const SEARCHES: usize = 100;
const SEARCH_INTERVAL: Duration = Duration::from_millis(2);

/// The mark of one run of the bus.
pub(crate) struct ProcessMark(String);

impl ProcessMark {
    pub(crate) fn new() -> io::Result<ProcessMark> {
        let mut number = [0; 16];
        getrandom::fill(&mut number)?;
        Ok(ProcessMark(format!("{}-{:x}", process::id(), u128::from_ne_bytes(number))))
    }

    /// That of a bus whose place this one has taken.
    pub(crate) fn named(name: String) -> ProcessMark {
        ProcessMark(name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// The variable that a worker is started with. If the bus itself runs under a worker, its workers have both marks.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        let outer = env::var(VARIABLE).map(|outer| outer + ":").unwrap_or_default();
        (VARIABLE, outer + &self.0)
    }
}

/// The marks that this process has itself, if it runs under a worker of another bus. What is started without the
/// environment of the bus keeps them: it belongs to that family too.
pub(crate) fn own_marks() -> Option<(&'static str, OsString)> {
    Some((VARIABLE, env::var_os(VARIABLE)?))
}

/// Whether this could be the name of a mark: a process id and a random number.
pub(crate) fn is_mark(name: &str) -> bool {
    let all = |text: &str, fits: fn(&u8) -> bool| !text.is_empty() && text.as_bytes().iter().all(fits);
    let parts = name.split_once('-');
    parts.is_some_and(|(pid, number)| all(pid, u8::is_ascii_digit) && all(number, u8::is_ascii_hexdigit))
}

/// Whether this process has the mark itself.
pub(crate) fn is_own(name: &str) -> bool {
    env::var(VARIABLE).is_ok_and(|value| value.split(':').any(|one| one == name))
}

/// Kills all processes with this mark.
pub(crate) fn kill_all(name: &str) {
    kill_found(|| marked(name));
}

/// Kills all processes of this user with this mark.
pub(crate) fn kill_all_of_user(name: &str, user: Uid) {
    let is_of_user =
        |pid: &Pid| fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.uid() == user.as_raw());
    kill_found(|| marked(name).into_iter().filter(is_of_user).collect());
}

fn kill_found(search: impl Fn() -> Vec<Pid>) {
    for _ in 0..SEARCHES {
        let left = search();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ = kill(pid, Signal::SIGKILL);
        }
        thread::sleep(SEARCH_INTERVAL);
    }
}

fn marked(name: &str) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        if pid != process::id() && is_marked(&environ, name) {
            found.push(Pid::from_raw(pid as i32));
        }
    }
    found
}

fn is_marked(environ: &[u8], name: &str) -> bool {
    let pairs = environ.split(|byte| *byte == 0);
    let mut values = pairs.filter_map(|pair| pair.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="));
    values.any(|value| value.split(|byte| *byte == b':').any(|one| one == name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_matches_a_whole_name_of_the_list() {
        assert!(is_marked(b"A=1\0BUS_FAMILY=7-a:8-b\0B=2\0", "7-a"));
        assert!(is_marked(b"BUS_FAMILY=8-b", "8-b"));
        for environ in
            ["", "BUS_FAMILY=", "BUS_FAMILY=8-bc", "XBUS_FAMILY=8-b", "A=BUS_FAMILY=8-b", "BUS_FAMILY"]
        {
            assert!(!is_marked(environ.as_bytes(), "8-b"), "{environ}");
        }
    }

    #[test]
    fn a_mark_is_told_from_any_other_name() {
        assert!(is_mark(ProcessMark::new().unwrap().name()));
        for name in ["", "-", "7-", "-a", "7-a/..", "7-g", "a-7", "7_a", "7-a:8-b"] {
            assert!(!is_mark(name), "{name}");
        }
    }

    #[test]
    fn every_mark_is_unique_and_a_new_one_marks_no_process() {
        let (one, other) = (ProcessMark::new().unwrap(), ProcessMark::new().unwrap());
        assert_ne!(one.name(), other.name());
        assert!(marked(one.name()).is_empty());
    }
}
