//! The companions as the program finds them that takes the place of this one.

use std::os::fd::RawFd;
use std::time::Duration;

use mio::Interest;
use serde::{Deserialize, Serialize};

use kernel_core::Moment;
use kernel_core::config::Config;

use super::{Companion, Companions, Running};
use crate::errno::errno_of;
use crate::handover::KeptFds;
use crate::io::Io;
use crate::peer::{Stream, token, watch};
use crate::process::child::ChildProcess;
use crate::process::pre_exec::HandedFds;

/// A companion as the next program finds it.
#[derive(Serialize, Deserialize)]
pub(crate) struct CompanionState {
    /// What the log calls it. One that the next program does not know is asked to end.
    name: String,
    running: Option<RunningState>,
    start_at: Option<Moment>,
    delay: Duration,
    was_open: bool,
    restarts: u32,
    last_exit: Option<String>,
    last_words: Option<String>,
    announced: Option<String>,
    secret: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct RunningState {
    pid: u32,
    told: String,
    stdin: Option<RawFd>,
    stdout: RawFd,
    #[serde(with = "serde_bytes")]
    line: Vec<u8>,
    since: Moment,
    listening: Option<String>,
    waits: bool,
    /// As JSON.
    counted: String,
    kill_at: Option<Moment>,
}

impl Running {
    fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> RunningState {
        RunningState {
            pid: self.child.id(),
            told: self.told.clone(),
            stdin: self.stdin.as_ref().map(|stdin| kept.keep(stdin)),
            stdout: kept.keep(&self.stdout),
            line: self.line.clone(),
            since: self.since,
            listening: self.listening.clone(),
            waits: self.waits,
            counted: self.counted.to_string(),
            kill_at: self.kill_at,
        }
    }

    fn take_over(state: RunningState, handed: &mut HandedFds) -> nix::Result<Running> {
        Ok(Running {
            child: ChildProcess::with_id(state.pid),
            told: state.told,
            stdin: state.stdin.map(|stdin| handed.take(stdin)).transpose()?,
            stdout: handed.take(state.stdout)?,
            line: state.line,
            since: state.since,
            listening: state.listening,
            waits: state.waits,
            counted: serde_json::from_str(&state.counted).unwrap_or_default(),
            kill_at: state.kill_at,
        })
    }
}

impl Companions {
    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> Vec<CompanionState> {
        self.all.iter().map(|companion| companion.hand_over(kept)).collect()
    }

    /// Goes on with the companions of the program before. Returns those that this program does not know: they end with
    /// their stdin, which nobody takes.
    pub(crate) fn take_over(
        &mut self,
        states: Vec<CompanionState>,
        (config, addresses): (&Config, &[String]),
        handed: &mut HandedFds,
        io: &mut Io,
    ) -> nix::Result<Vec<u32>> {
        let mut unknown = Vec::new();
        for state in states {
            match self.all.iter_mut().find(|companion| companion.kind.name == state.name) {
                Some(companion) => companion.take_over(state, handed, io)?,
                // Its fds are closed with all that nobody takes.
                None => unknown.extend(state.running.map(|running| running.pid)),
            }
        }
        for companion in &mut self.all {
            // This program may have other things to tell them. Those that run are replaced soon.
            companion.wanted = companion.orders(config, addresses);
            if let (None, Some(running)) = (&companion.wanted, &mut companion.running) {
                running.end(io.now);
            }
            companion.show(io);
        }
        self.plan_replacements(io.now);
        Ok(unknown)
    }
}

impl Companion {
    fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> CompanionState {
        CompanionState {
            name: self.kind.name.to_owned(),
            running: self.running.as_ref().map(|running| running.hand_over(kept)),
            start_at: self.start_at,
            delay: self.delay,
            was_open: self.was_open,
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            last_words: self.last_words.clone(),
            announced: self.announced.clone(),
            secret: self.secret.clone(),
        }
    }

    fn take_over(&mut self, state: CompanionState, handed: &mut HandedFds, io: &mut Io) -> nix::Result<()> {
        (self.start_at, self.delay, self.was_open) = (state.start_at, state.delay, state.was_open);
        (self.restarts, self.last_exit, self.last_words) =
            (state.restarts, state.last_exit, state.last_words);
        (self.announced, self.secret) = (state.announced, state.secret);
        if let Some(running) = state.running {
            let running = Running::take_over(running, handed)?;
            let heard = token(self.kind.key, Stream::Internal);
            watch(io.poll.registry(), &running.stdout, heard, Interest::READABLE).map_err(errno_of)?;
            self.running = Some(running);
        }
        Ok(())
    }
}
