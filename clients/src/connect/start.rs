//! Starts a bus in the background, where none answers.
//!
//! Whoever holds the lock may start one, and only after it has looked again: so many at once start one. What is
//! started outlives this program, and says what it has to say into a log.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::Fault;

/// A log that has grown beyond this makes way for a new one.
const LOG_BYTES: u64 = 10 << 20;
/// How far back the last words of a bus are looked for.
const LAST_WORDS_BYTES: u64 = 4 << 10;

pub struct Start {
    /// What puts itself into a session of its own and becomes a bus.
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The folder that the bus works in.
    pub folder: PathBuf,
    /// Where its log and the lock are. Made if it is not there.
    pub state: PathBuf,
}

pub(super) struct Starter<'a> {
    plan: &'a Start,
    lock: Option<Flock<File>>,
    /// Started, and not reached yet.
    starting: Option<Child>,
    /// Reached. Held so that it can be collected when it has ended.
    running: Option<Child>,
    /// Why what was started has ended.
    failed: Option<Fault>,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Try to reach it at once.
    LookAgain,
    /// Try later.
    Wait,
}

impl<'a> Starter<'a> {
    pub(super) fn new(plan: &'a Start) -> Starter<'a> {
        Starter { plan, lock: None, starting: None, running: None, failed: None }
    }

    /// No bus answers; this is why.
    pub(super) fn nudge(&mut self, why: &Fault) -> Result<Turn, Fault> {
        if let Some(fault) = self.failed.take() {
            return Err(fault);
        }
        if let Some(child) = &mut self.starting {
            return match child.try_wait() {
                Ok(None) => Ok(Turn::Wait),
                Ok(Some(status)) => {
                    self.failed = Some(self.ended_early(&status.to_string(), why));
                    self.starting = None;
                    self.lock = None;
                    // Perhaps it ended because another was quicker.
                    Ok(Turn::LookAgain)
                }
                Err(error) => Err(cannot("watch what was started", &error)),
            };
        }
        if self.lock.is_none() {
            self.lock = self.try_lock()?;
            return Ok(if self.lock.is_some() { Turn::LookAgain } else { Turn::Wait });
        }
        if let Some(mut old) = self.running.take()
            && matches!(old.try_wait(), Ok(None))
        {
            self.running = Some(old);
        }
        self.starting = Some(self.spawn()?);
        Ok(Turn::Wait)
    }

    /// A bus was reached, whoever started it.
    pub(super) fn has_arrived(&mut self) {
        self.running = self.starting.take().or(self.running.take());
        self.lock = None;
        self.failed = None;
    }

    /// None: somebody else is about to start one.
    fn try_lock(&self) -> Result<Option<Flock<File>>, Fault> {
        let folder = &self.plan.state;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| cannot(&format!("make {}", folder.display()), &error))?;
        let path = folder.join("start.lock");
        let open = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = open.map_err(|error| cannot(&format!("open {}", path.display()), &error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
            Err((_, errno)) => Err(cannot(&format!("lock {}", path.display()), &errno.into())),
        }
    }

    fn spawn(&self) -> Result<Child, Fault> {
        let path = self.log_path();
        let log = open_log(&path).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|error| cannot(&format!("open {}", path.display()), &error))?;
        let mut command = Command::new(&self.plan.program);
        command.args(&self.plan.args).current_dir(&self.plan.folder);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.spawn().map_err(|error| cannot(&self.plan.program.display().to_string(), &error))
    }

    fn log_path(&self) -> PathBuf {
        self.plan.state.join("bus.log")
    }

    fn ended_early(&self, status: &str, why: &Fault) -> Fault {
        let path = self.log_path();
        let said = last_words(&path).unwrap_or_default();
        let said = if said.is_empty() { String::new() } else { format!(", saying: {said}") };
        Fault::Unreachable(format!(
            "{why}, and the one that was started ended ({status}){said} ({})",
            path.display()
        ))
    }
}

fn cannot(what: &str, error: &io::Error) -> Fault {
    Fault::Unreachable(format!("no bus answers, and none can be started: {what}: {error}"))
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LOG_BYTES) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The last line of the log that is not blank.
fn last_words(path: &Path) -> io::Result<String> {
    let mut log = File::open(path)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES)))?;
    let mut tail = Vec::new();
    log.take(LAST_WORDS_BYTES).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // A control character must not steer the terminal.
    Ok(line.chars().filter(|letter| !letter.is_control()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn plan(folder: &Path, script: &str) -> Start {
        let args = vec!["-c".into(), script.into()];
        Start { program: "/bin/sh".into(), args, folder: folder.into(), state: folder.join("a/state") }
    }

    fn nobody() -> Fault {
        Fault::Unreachable("no bus answers at X".to_owned())
    }

    #[test]
    fn only_who_holds_the_lock_starts_one_and_only_after_another_look() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "exec sleep 60");
        let (mut one, mut other) = (Starter::new(&plan), Starter::new(&plan));
        assert_eq!(one.nudge(&nobody()).unwrap(), Turn::LookAgain);
        assert_eq!(other.nudge(&nobody()).unwrap(), Turn::Wait);
        assert_eq!(one.nudge(&nobody()).unwrap(), Turn::Wait);
        assert_eq!(other.nudge(&nobody()).unwrap(), Turn::Wait);
        assert!(one.starting.is_some() && other.starting.is_none());
        one.has_arrived();
        // It looks again, and finds what the first one started.
        assert_eq!(other.nudge(&nobody()).unwrap(), Turn::LookAgain);
        let mut child = one.running.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mode = |name| fs::metadata(plan.state.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("start.lock"), mode("bus.log")), (0o700, 0o600, 0o600));
    }

    #[test]
    fn one_that_ends_at_once_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "echo first >&2; echo the file is bad >&2; exit 78");
        let mut starter = Starter::new(&plan);
        let fault = loop {
            match starter.nudge(&nobody()) {
                Ok(_) => thread::sleep(Duration::from_millis(1)),
                Err(fault) => break fault,
            }
        };
        let ended = "and the one that was started ended (exit status: 78), saying: the file is bad (";
        let said = format!("no bus answers at X, {ended}");
        assert!(fault.to_string().starts_with(&said), "{fault}");
        assert_eq!(fault.exit_code(), 69);
        // The next one may be better.
        assert_eq!(starter.nudge(&nobody()).unwrap(), Turn::LookAgain);
    }

    #[test]
    fn where_nothing_can_be_started_that_is_said() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "in the way").unwrap();
        let plan = plan(folder.path(), "true");
        let fault = Starter::new(&plan).nudge(&nobody()).unwrap_err();
        assert!(fault.to_string().starts_with("no bus answers, and none can be started: make "), "{fault}");
    }
}
