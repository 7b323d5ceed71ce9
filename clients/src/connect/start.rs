//! Starts a bus in the background if none answers.
//!
//! Only the holder of a file lock may start one, and only after dialing again, so many clients at once start
//! a single bus. That bus outlives this process and writes to a log file.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use rpc::text::strip_control;

use crate::connection::{CONNECT_TIMEOUT, dial};
use crate::{Fault, Target};

/// A longer log is renamed before the next start.
const MAX_LOG_BYTES: u64 = 10 << 20;
/// How much of the log's end is searched for its last line.
const LOG_TAIL_BYTES: u64 = 4 << 10;

pub struct StartPlan {
    /// The program that detaches itself and becomes the bus.
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// The working folder of the bus.
    pub folder: PathBuf,
    /// The folder of the log and of the lock. Created if it is missing.
    pub state: PathBuf,
}

impl StartPlan {
    /// The file to which the bus writes its log.
    pub fn log_path(&self) -> PathBuf {
        self.state.join("bus.log")
    }
}

/// Between two tries to reach a bus that is starting.
const DIAL_AGAIN: Duration = Duration::from_millis(20);

/// Waits until a bus answers. With a plan, starts one if none does.
pub fn start_bus(target: &Target, plan: Option<&StartPlan>, limit: Duration) -> Result<(), Fault> {
    let mut starter = plan.map(Starter::new);
    let deadline = Instant::now() + limit;
    loop {
        let why = match dial(&target.addresses, CONNECT_TIMEOUT) {
            Ok(_) => {
                starter.iter_mut().for_each(Starter::on_connected);
                return Ok(());
            }
            Err(fault @ Fault::NotOurs(_)) => return Err(fault),
            Err(fault) => fault,
        };
        let next = starter.as_mut().map_or(Ok(NextTry::Later), |starter| starter.on_no_answer(&why))?;
        if Instant::now() >= deadline {
            let log =
                plan.map(|plan| format!("; its log is {}", plan.log_path().display())).unwrap_or_default();
            return Err(Fault::Unreachable(format!("{why} within {} s{log}", limit.as_secs())));
        }
        if next == NextTry::Later {
            thread::sleep(DIAL_AGAIN);
        }
    }
}

pub(super) struct Starter<'a> {
    plan: &'a StartPlan,
    lock: Option<Flock<File>>,
    /// Started, but not yet connected to.
    starting: Option<Child>,
    /// Connected to. Kept so that its exit can be collected.
    running: Option<Child>,
    /// Why the started process has exited.
    failed: Option<Fault>,
}

/// When to dial again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextTry {
    Now,
    Later,
}

impl<'a> Starter<'a> {
    pub(super) fn new(plan: &'a StartPlan) -> Starter<'a> {
        Starter { plan, lock: None, starting: None, running: None, failed: None }
    }

    /// No bus answers, for the reason `why`: takes the lock, starts a bus, or watches the one it has started.
    pub(super) fn on_no_answer(&mut self, why: &Fault) -> Result<NextTry, Fault> {
        if let Some(fault) = self.failed.take() {
            return Err(fault);
        }
        if let Some(child) = &mut self.starting {
            return match child.try_wait() {
                Ok(None) => Ok(NextTry::Later),
                Ok(Some(status)) => {
                    self.failed = Some(self.early_exit_fault(&status.to_string(), why));
                    self.starting = None;
                    self.lock = None;
                    // It may have exited because another client's bus was quicker.
                    Ok(NextTry::Now)
                }
                Err(error) => Err(start_fault("watch what was started", &error)),
            };
        }
        if self.lock.is_none() {
            self.lock = self.try_lock()?;
            return Ok(if self.lock.is_some() { NextTry::Now } else { NextTry::Later });
        }
        if let Some(mut old) = self.running.take()
            && matches!(old.try_wait(), Ok(None))
        {
            self.running = Some(old);
        }
        self.starting = Some(self.spawn()?);
        Ok(NextTry::Later)
    }

    /// A bus has answered, ours or that of another client.
    pub(super) fn on_connected(&mut self) {
        self.running = self.starting.take().or(self.running.take());
        self.lock = None;
        self.failed = None;
    }

    /// Returns `None` if another client holds the lock.
    fn try_lock(&self) -> Result<Option<Flock<File>>, Fault> {
        let folder = &self.plan.state;
        let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(|error| start_fault(&format!("make {}", folder.display()), &error))?;
        let path = folder.join("start.lock");
        let open = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = open.map_err(|error| start_fault(&format!("open {}", path.display()), &error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
            Err((_, errno)) => Err(start_fault(&format!("lock {}", path.display()), &errno.into())),
        }
    }

    fn spawn(&self) -> Result<Child, Fault> {
        let path = self.plan.log_path();
        let log = open_log(&path).and_then(|log| Ok((log.try_clone()?, log)));
        let (out, err) = log.map_err(|error| start_fault(&format!("open {}", path.display()), &error))?;
        let mut command = Command::new(&self.plan.program);
        command.args(&self.plan.args).current_dir(&self.plan.folder);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        command.spawn().map_err(|error| start_fault(&self.plan.program.display().to_string(), &error))
    }

    fn early_exit_fault(&self, status: &str, why: &Fault) -> Fault {
        let path = self.plan.log_path();
        let last_line = last_log_line(&path).unwrap_or_default();
        let last_line = if last_line.is_empty() { String::new() } else { format!(", saying: {last_line}") };
        Fault::Unreachable(format!(
            "{why}, and the one that was started ended ({status}){last_line} ({})",
            path.display()
        ))
    }
}

fn start_fault(what: &str, error: &io::Error) -> Fault {
    Fault::Unreachable(format!("no bus answers, and none can be started: {what}: {error}"))
}

fn open_log(path: &Path) -> io::Result<File> {
    if fs::metadata(path).is_ok_and(|log| log.len() > MAX_LOG_BYTES) {
        fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The last line of the log that is not blank.
fn last_log_line(path: &Path) -> io::Result<String> {
    let mut log = File::open(path)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut tail = Vec::new();
    log.take(LOG_TAIL_BYTES).read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok(strip_control(line))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn plan(folder: &Path, script: &str) -> StartPlan {
        let args = vec!["-c".into(), script.into()];
        StartPlan { program: "/bin/sh".into(), args, folder: folder.into(), state: folder.join("a/state") }
    }

    fn unreachable() -> Fault {
        Fault::Unreachable("no bus answers at X".to_owned())
    }

    #[test]
    fn only_the_lock_holder_starts_a_bus_and_only_after_dialing_again() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "exec sleep 60");
        let (mut first, mut second) = (Starter::new(&plan), Starter::new(&plan));
        assert_eq!(first.on_no_answer(&unreachable()).unwrap(), NextTry::Now);
        assert_eq!(second.on_no_answer(&unreachable()).unwrap(), NextTry::Later);
        assert_eq!(first.on_no_answer(&unreachable()).unwrap(), NextTry::Later);
        assert_eq!(second.on_no_answer(&unreachable()).unwrap(), NextTry::Later);
        assert!(first.starting.is_some() && second.starting.is_none());
        first.on_connected();
        // The second client dials again, and finds the bus of the first.
        assert_eq!(second.on_no_answer(&unreachable()).unwrap(), NextTry::Now);
        let mut child = first.running.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mode = |name| fs::metadata(plan.state.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(""), mode("start.lock"), mode("bus.log")), (0o700, 0o600, 0o600));
    }

    #[test]
    fn a_bus_that_exits_at_once_is_reported_with_its_last_log_line() {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path(), "echo first >&2; echo the file is bad >&2; exit 78");
        let mut starter = Starter::new(&plan);
        let fault = loop {
            match starter.on_no_answer(&unreachable()) {
                Ok(_) => thread::sleep(Duration::from_millis(1)),
                Err(fault) => break fault,
            }
        };
        let ended = "and the one that was started ended (exit status: 78), saying: the file is bad (";
        let last_line = format!("no bus answers at X, {ended}");
        assert!(fault.to_string().starts_with(&last_line), "{fault}");
        assert_eq!(fault.exit_code(), 69);
        // The next attempt may succeed.
        assert_eq!(starter.on_no_answer(&unreachable()).unwrap(), NextTry::Now);
    }

    #[test]
    fn a_start_that_is_impossible_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "in the way").unwrap();
        let plan = plan(folder.path(), "true");
        let fault = Starter::new(&plan).on_no_answer(&unreachable()).unwrap_err();
        assert!(fault.to_string().starts_with("no bus answers, and none can be started: make "), "{fault}");
    }
}
