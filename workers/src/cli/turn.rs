//! A turn: one process of the CLI, from the prompt to the answer.
//!
//! The thread hears what the CLI prints, what the client orders and how time passes, in one loop. A turn is complete
//! only when the CLI has said so; an exit code of zero says nothing. One that is cancelled is answered when the
//! process and everything that it started is gone.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::argv::{self, Values};
use super::format::{self, Format};
use super::house::House;
use super::ladder::{INTERRUPTED, Ladder};
use super::mcp::McpConfig;
use super::process::{Process, Start};
use super::record::Record;
use super::runtimes::Delivery;
use super::session::{News, Orders, Running, Session, State};
use super::shapes;
use super::telling::Telling;
use super::told::End;
use crate::acp::writer::OwnedCaller as Waiter;

/// Between two looks at whether the process has ended.
pub(super) const TICK: Duration = Duration::from_millis(20);
/// How long one of stdout and the process may live without the other: a tool may still hold the pipe.
pub(super) const APART: Duration = Duration::from_millis(500);
/// How long it may say nothing after its result.
const LINGERING: Duration = Duration::from_secs(60);
/// How long a turn waits for the process that lists the models.
const BESIDE: Duration = Duration::from_secs(10);
/// Lines that wait to be read; a CLI that is faster than the client waits.
pub(super) const LINES: usize = 256;

/// The words say why it did not begin.
pub(super) fn begin(
    house: &Arc<House>,
    session: &Arc<Session>,
    state: &mut State,
    waiter: Waiter,
    prompt: String,
) -> io::Result<()> {
    let (sender, news) = mpsc::sync_channel(LINES);
    let orders = Arc::new(Orders::default());
    let record = state.record.clone();
    let mcp_servers = state.mcp_servers.clone();
    let turn = (house.clone(), session.clone(), orders.clone(), sender.clone());
    state.turn = Some(Running { waiter, orders, news: sender });
    let body = move || {
        let (house, session, orders, sender) = turn;
        let telling = Telling::new(&house, &session);
        let mut turn = Turning { telling, format: format::of(house.turn.format), orders: &orders };
        let mcp_config = McpConfig::write(&house, &mcp_servers);
        // Opencode makes its database at its first start, and two that do so at once fail.
        let until = Instant::now() + BESIDE;
        while house.is_asked() && !orders.is_cancelled() && Instant::now() < until {
            thread::sleep(TICK);
        }
        let end = match turn.start(&record, &prompt, mcp_config.as_ref(), sender) {
            Ok(process) => turn.listen(process, &news),
            Err(message) => End::Fault { is_auth: false, message },
        };
        drop(mcp_config);
        turn.telling.finish(&orders, end);
    };
    let spawned = thread::Builder::new().name("turn".to_owned()).spawn(body);
    if spawned.is_err() {
        state.turn = None;
    }
    spawned.map(|_| ())
}

/// Starts the CLI for a session. The words say why it did not start.
pub(super) fn start(
    house: &House,
    session: &Session,
    record: &Record,
    prompt: &str,
    mcp_config: Option<&McpConfig>,
    news: mpsc::SyncSender<News>,
) -> Result<Process, String> {
    let program = house.program()?;
    let mode = shapes::mode_of(house, record);
    let values = Values {
        cwd: &record.cwd,
        session: record.cli.as_deref(),
        fork: record.fork.as_deref().filter(|_| record.cli.is_none()),
        model: shapes::model_of(house, record),
        effort: record.effort.as_deref().filter(|effort| *effort != shapes::USUAL),
        mode: Some(&mode),
        mcp_config: mcp_config.map(|config| config.path.as_path()),
        prompt,
    };
    let args = argv::arguments(&house.turn, &values)?;
    let mark = format!("{}.{}.{}", process::id(), session.name, house.next_turn());
    let start = Start { program: &program, args: &args, env: &house.turn.env, cwd: &record.cwd, mark };
    Process::start(start, news).map_err(|error| format!("{} did not start: {error}", program.display()))
}

/// Why a CLI is taken for dead. Only silence counts, never how long a turn takes.
pub(super) fn silence(house: &House, began: Instant, heard: Option<Instant>) -> Option<String> {
    let (since, limit) = match heard {
        None => (began, house.options.first_output),
        Some(heard) => (heard, house.options.silence),
    };
    let is_over = !limit.is_zero() && since.elapsed() > limit;
    is_over.then(|| format!("it said nothing for {} s and was ended", limit.as_secs()))
}

struct Turning<'a> {
    telling: Telling<'a>,
    format: Box<dyn Format>,
    orders: &'a Orders,
}

impl Turning<'_> {
    fn start(
        &self,
        record: &Record,
        prompt: &str,
        mcp_config: Option<&McpConfig>,
        news: mpsc::SyncSender<News>,
    ) -> Result<Process, String> {
        let house = self.telling.house;
        let mut process = start(house, self.telling.session, record, prompt, mcp_config, news)?;
        if house.turn.prompt == Delivery::Stdin {
            process.say(prompt.to_owned());
        }
        process.hang_up();
        Ok(process)
    }

    /// Hears the CLI until it is gone.
    fn listen(&mut self, mut process: Process, news: &Receiver<News>) -> End {
        let began = Instant::now();
        let (mut heard, mut silent_since, mut exited) = (None, None, None);
        let mut ladder = Ladder::Running;
        let mut silent = None;
        loop {
            match news.recv_timeout(TICK) {
                Ok(News::Line(line)) => {
                    heard = Some(Instant::now());
                    self.format.line(&line, &mut self.telling.told);
                    self.telling.tell();
                }
                Ok(News::Silence) => silent_since = Some(Instant::now()),
                Ok(News::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the session has a sender"),
            }
            let now = Instant::now();
            if exited.is_none() {
                exited = process.exited().map(|status| (status, now));
            }
            if let Some((status, since)) = exited {
                if silent_since.is_some() || now > since + APART {
                    self.format.ends(status.code(), &mut self.telling.told);
                    let is_good = ladder == Ladder::Running && self.telling.told.end.is_some();
                    if !is_good {
                        process.kill_all();
                    }
                    return self.telling.conclude(self.orders, silent, &process, &status.to_string());
                }
                continue;
            }
            if silent.is_none() && ladder == Ladder::Running {
                silent = silence(self.telling.house, began, heard.max(process.muttered()));
            }
            // One that has closed its stdout and does not leave is not waited for; one that has told its result may
            // still have tasks in the background.
            let has_ended =
                self.telling.told.end.is_some() && heard.is_some_and(|heard| now > heard + LINGERING);
            let hangs = has_ended || silent_since.is_some_and(|since| now > since + INTERRUPTED);
            let is_over = self.orders.is_cancelled() || silent.is_some() || hangs;
            let hurry = self.orders.is_in_a_hurry();
            ladder = ladder.step(hurry, is_over, &mut process, |process| process.signal(Signal::SIGINT));
        }
    }
}
