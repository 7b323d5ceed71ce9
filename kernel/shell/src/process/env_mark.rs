//! Whose a process is, once it has left its parent, its group and its session: a mark in the environment of every
//! worker, which all that it starts inherits.
//!
//! Linux shows the environment of our own user's processes in /proc. Where it does not, or where a process has cleared
//! its environment, nobody is found.

use std::env;
use std::fs;
use std::io;
use std::process;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const VARIABLE: &str = "BUS_FAMILY";
/// A process may start another while it is being killed, so it is looked again until nobody is found.
const LOOKS: usize = 100;
const LOOKS_APART: Duration = Duration::from_millis(2);

/// The name of one life of the bus.
pub(crate) struct Family(String);

impl Family {
    pub(crate) fn new() -> io::Result<Family> {
        let mut number = [0; 16];
        getrandom::fill(&mut number)?;
        Ok(Family(format!("{}-{:x}", process::id(), u128::from_ne_bytes(number))))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// What a worker is started with. One of a bus that is itself a worker's child belongs to both.
    pub(crate) fn mark(&self) -> (&'static str, String) {
        let outer = env::var(VARIABLE).map(|outer| outer + ":").unwrap_or_default();
        (VARIABLE, outer + &self.0)
    }
}

/// Ends all who carry the mark of this family.
pub(crate) fn end(name: &str) {
    for _ in 0..LOOKS {
        let left = members(name);
        if left.is_empty() {
            return;
        }
        for member in left {
            let _ = kill(member, Signal::SIGKILL);
        }
        thread::sleep(LOOKS_APART);
    }
}

fn members(name: &str) -> Vec<Pid> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        *pid != process::id()
            && is_marked(&fs::read(format!("/proc/{pid}/environ")).unwrap_or_default(), name)
    };
    pids.filter(is_one).map(|pid| Pid::from_raw(pid as i32)).collect()
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
    fn a_mark_is_one_whole_name_of_the_list() {
        assert!(is_marked(b"A=1\0BUS_FAMILY=7-a:8-b\0B=2\0", "7-a"));
        assert!(is_marked(b"BUS_FAMILY=8-b", "8-b"));
        for environ in
            ["", "BUS_FAMILY=", "BUS_FAMILY=8-bc", "XBUS_FAMILY=8-b", "A=BUS_FAMILY=8-b", "BUS_FAMILY"]
        {
            assert!(!is_marked(environ.as_bytes(), "8-b"), "{environ}");
        }
    }

    #[test]
    fn no_two_lives_have_the_same_name_and_nobody_is_in_a_new_one() {
        let (one, other) = (Family::new().unwrap(), Family::new().unwrap());
        assert_ne!(one.name(), other.name());
        assert!(members(one.name()).is_empty());
    }
}
