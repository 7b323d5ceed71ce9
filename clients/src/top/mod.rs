//! `top`: a live screen of a running bus.
//!
//! Four threads poll the bus, read keys, wait for signals and carry out what the user asks for. The main thread
//! receives their inputs, updates the model and draws it.

mod detail;
mod draw;
mod history;
mod model;
mod screen;
mod snapshot;
mod sort;
mod tables;
mod theme;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event};
use rpc::text::replace_control;
use serde_json::Value;
use serde_json::value::RawValue;

use self::model::{Command, KeyOutcome, Model};
use self::screen::Screen;
use self::theme::Theme;
use crate::connection::Connection;
use crate::logs::Whose;
use crate::replace::Replacing;
use crate::sessions;
use crate::{Ended, Signals};
use crate::{Fault, Target};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);
/// More sessions than this are not asked for.
const SESSIONS_MAX: usize = 10_000;
/// How often a lost bus is dialed, unless the user's interval is shorter.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

pub struct Options {
    pub target: Target,
    pub interval: Duration,
    pub colour: bool,
}

/// What the main thread receives.
enum Input {
    Answered(Answers),
    Lost(String),
    Terminal(Event),
    Signalled(i32),
    /// What came of a command.
    Done(String),
    /// Keys can no longer be read.
    TerminalFailed(io::Error),
}

/// The answers of one poll.
struct Answers {
    status: Value,
    sessions: Option<Value>,
    at: Instant,
}

/// Runs until the user quits. A bus that is missing at the start is a fault; one that is lost later is waited for.
pub fn run(options: Options) -> Result<Ended, Fault> {
    let commanded = options.target.clone();
    let mut poller = Poller { connection: None, has_sessions_method: true, target: options.target };
    let first = poller.poll_bus()?;
    let began = first.at;
    let (inputs_tx, inputs) = channel();
    let failed = |error: io::Error| Fault::Failed(format!("the terminal cannot be used: {error}"));
    let signals = Signals::install()?;
    let mut screen = Screen::enter().map_err(failed)?;
    start(inputs_tx.clone(), move |inputs_tx| poller.run(inputs_tx, options.interval));
    start(inputs_tx.clone(), read_keys);
    let (commands, to_do) = channel();
    start(inputs_tx.clone(), move |inputs_tx| {
        while let Ok(command) = to_do.recv() {
            let _ = inputs_tx.send(Input::Done(carry_out(&commanded, &command)));
        }
    });
    start(inputs_tx, move |inputs_tx| {
        while let Ok(signal) = signals.wait() {
            let _ = inputs_tx.send(Input::Signalled(signal));
        }
    });
    let mut model = Model::new(options.interval.as_secs_f64());
    let theme = Theme { colour: options.colour };
    model.update(&first.status, first.sessions.as_ref(), 0.0);
    loop {
        screen.0.draw(|frame| draw::screen(frame, &model, theme)).map_err(failed)?;
        let Ok(first) = inputs.recv() else { return Ok(Ended::Done) };
        // Several inputs need only one redraw.
        for input in std::iter::once(first).chain(inputs.try_iter()) {
            match input {
                Input::Answered(Answers { status, sessions, at }) => {
                    model.update(&status, sessions.as_ref(), at.duration_since(began).as_secs_f64());
                }
                Input::Lost(why) => model.on_lost(why),
                Input::Terminal(Event::Key(key)) => match model.press(key) {
                    KeyOutcome::Stay => {}
                    KeyOutcome::Quit => return Ok(Ended::Done),
                    KeyOutcome::Do(command) => _ = commands.send(command),
                },
                Input::Terminal(_) => {}
                Input::Done(remark) => model.remark = Some(remark),
                Input::Signalled(signal) => return Ok(Ended::Signalled(signal)),
                Input::TerminalFailed(error) => return Err(failed(error)),
            }
        }
    }
}

/// Does what the user has asked for. Returns what came of it, for people.
fn carry_out(target: &Target, command: &Command) -> String {
    let done = match command {
        Command::Close(session) => sessions::close(target, session).map(|()| format!("{session} is closed")),
        Command::Restart(pool, worker) => {
            let worker = worker.and_then(|worker| u32::try_from(worker).ok());
            let whose = Whose { pool: pool.clone(), worker };
            Replacing::ask(target, "_bus/restart", &whose, false).map(|it| match it.leaving().len() {
                1 => "1 process is being replaced".to_owned(),
                count => format!("{count} processes are being replaced, one after the other"),
            })
        }
    };
    done.unwrap_or_else(|fault| replace_control(&fault.to_string(), ' '))
}

/// These threads end with the process.
fn start(inputs_tx: Sender<Input>, work: impl FnOnce(&Sender<Input>) + Send + 'static) {
    thread::spawn(move || work(&inputs_tx));
}

fn read_keys(inputs_tx: &Sender<Input>) {
    loop {
        let event = event::read();
        let is_last = event.is_err();
        let sent = inputs_tx.send(event.map_or_else(Input::TerminalFailed, Input::Terminal));
        if is_last || sent.is_err() {
            return;
        }
    }
}

/// Polls the bus over one connection.
struct Poller {
    target: Target,
    connection: Option<Connection>,
    /// An older bus has no `_bus/sessions`.
    has_sessions_method: bool,
}

impl Poller {
    fn run(mut self, inputs_tx: &Sender<Input>, interval: Duration) {
        loop {
            thread::sleep(if self.connection.is_some() {
                interval
            } else {
                interval.min(RECONNECT_INTERVAL)
            });
            let inputs = self.poll_bus().map_or_else(|fault| Input::Lost(fault.to_string()), Input::Answered);
            if inputs_tx.send(inputs).is_err() {
                return;
            }
        }
    }

    fn poll_bus(&mut self) -> Result<Answers, Fault> {
        let answers = self.request();
        if answers.is_err() {
            self.connection = None;
        }
        answers.map_err(Fault::timeout_as_unreachable)
    }

    fn request(&mut self) -> Result<Answers, Fault> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let mut connection = Connection::connect(&self.target, Some(TIMEOUT))?;
                connection.hello("stdio-bus top", None)?;
                self.has_sessions_method = true;
                none.insert(connection)
            }
        };
        connection.restart_timeout();
        let status = connection.request("_bus/status", ())?;
        let at = Instant::now();
        let mut sessions = None;
        if self.has_sessions_method {
            match sessions::pages(connection, SESSIONS_MAX) {
                Ok(all) => sessions = Some(all),
                Err(Fault::Refused(_)) => self.has_sessions_method = false,
                Err(fault) => return Err(fault),
            }
        }
        Ok(Answers { status: parse(&status), sessions, at })
    }
}

fn parse(answer: &RawValue) -> Value {
    serde_json::from_str(answer.get()).unwrap_or_default()
}
