//! A one-shot turn: a thread and a process that live from the prompt to its answer.
//!
//! A turn is complete only when the CLI has said so; an exit code of zero is not enough. A cancelled turn is answered
//! when the process and everything that it started is gone.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::fault::Fault;
use super::format::{self, Format};
use super::image_files::ImageFiles;
use super::launch::{Launch, launch};
use super::mcp::McpConfig;
use super::process::{self, Process, ProcessEvent};
use super::prompt::Prompt;
use super::record::Record;
use super::runtimes::Delivery;
use super::session::{Cancellation, Opened, RunningTurn, Session, State, Waiting};
use super::shared::Shared;
use super::turn_events::End;
use super::turn_report::TurnReport;
use super::watch::{Tick, Watch};
use crate::acp::dispatch::internal_error;

/// How long a turn waits for the process that lists the models.
const MODELS_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Starts the turn on a thread of its own. Fails if there is no thread.
pub(super) fn begin(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    state: &mut State,
    waiting: Waiting,
) -> io::Result<()> {
    shared.note_prompt(session, state, &waiting.prompt.text(), waiting.blocks);
    let (reply_to, prompt) = (waiting.reply_to, waiting.prompt);
    let (sender, inbox) = process::inbox();
    let cancellation = Arc::new(Cancellation::default());
    let (thread_shared, thread_session) = (shared.clone(), session.clone());
    let (thread_cancellation, thread_sender) = (cancellation.clone(), sender.clone());
    let input = Input { record: state.record.clone(), opened: state.opened.clone(), prompt };
    state.turn = Some(RunningTurn { reply_to, cancellation, inbox: sender });
    let body = move || {
        let report = TurnReport::new(&thread_shared, &thread_session);
        let format = format::new(thread_shared.turn.format);
        let turn = OneShotTurn { report, format, cancellation: &thread_cancellation };
        turn.run(&input, thread_sender, &inbox);
        begin_next(&thread_shared, &thread_session);
    };
    let spawned = thread::Builder::new().name("turn".to_owned()).spawn(body);
    if spawned.is_err() {
        state.turn = None;
    }
    spawned.map(|_| ())
}

/// Starts the turn of the next prompt that waits.
fn begin_next(shared: &Arc<Shared>, session: &Arc<Session>) {
    let mut state = session.lock();
    while state.turn.is_none()
        && let Some(next) = state.waiting.pop_front()
    {
        let reply_to = next.reply_to.clone();
        if let Err(error) = begin(shared, session, &mut state, next) {
            shared.writer.respond(reply_to.as_ref(), Err::<&Value, _>(&internal_error(error)));
        }
    }
}

struct Input {
    record: Record,
    opened: Opened,
    prompt: Prompt,
}

struct OneShotTurn<'a> {
    report: TurnReport<'a>,
    format: Box<dyn Format>,
    cancellation: &'a Cancellation,
}

impl OneShotTurn<'_> {
    fn run(mut self, input: &Input, sender: SyncSender<ProcessEvent>, inbox: &Receiver<ProcessEvent>) {
        let shared = self.report.shared;
        // Opencode creates its database at its first start, and two processes that do so at once fail.
        let until = Instant::now() + MODELS_TIMEOUT;
        while shared.is_listing_models() && !self.cancellation.is_cancelled() && Instant::now() < until {
            thread::sleep(POLL);
        }
        let end = match self.start(input, sender) {
            Ok((process, _files)) => self.watch(process, inbox),
            Err(message) => End::Fault { fault: Fault::Runtime, message },
        };
        self.report.finish(self.cancellation, end);
    }

    /// Starts the CLI with the prompt. The files are needed until it has ended.
    fn start(
        &self,
        input: &Input,
        sender: SyncSender<ProcessEvent>,
    ) -> Result<(Process, (Option<McpConfig>, ImageFiles)), String> {
        let shared = self.report.shared;
        let mcp_config = McpConfig::write(shared, &input.opened.mcp_servers);
        let files = ImageFiles::write(shared, &input.prompt)?;
        let prompt = files.prompt(shared, &input.prompt);
        let mut add_dirs = input.opened.directories.clone();
        add_dirs.extend(files.folder());
        let start = Launch {
            record: &input.record,
            add_dirs: &add_dirs,
            mcp_config: mcp_config.as_ref(),
            prompt: &prompt,
            images: &files.paths,
        };
        let mut process = launch(shared, self.report.session, &start, sender)?;
        if shared.turn.prompt == Delivery::Stdin {
            process.send(prompt);
        }
        process.close_stdin();
        Ok((process, (mcp_config, files)))
    }

    /// Reports what the CLI prints until its process is gone.
    fn watch(&mut self, mut process: Process, inbox: &Receiver<ProcessEvent>) -> End {
        let limits = self.report.shared.silence_limits();
        let mut watch = Watch::new(limits, Instant::now(), false);
        loop {
            if let Some(event) = process::next_event(inbox) {
                watch.on(&event, Instant::now());
                if let ProcessEvent::Line(line) = event {
                    self.format.line(&line, &mut self.report.events);
                    self.report.send_updates();
                }
            }
            let seen = self.report.observe(self.cancellation, &mut process);
            match watch.tick(Instant::now(), &seen) {
                Tick::Stop(step) => process.apply(step, |process| process.signal(Signal::SIGINT)),
                Tick::Ended => break,
            }
        }
        let status = process.exit_status().expect("the watch saw the exit");
        self.format.finish(status.code(), &mut self.report.events);
        let has_ended_well = !watch.is_stopping() && self.report.events.end.is_some();
        if !has_ended_well {
            process.kill_all();
        }
        self.report.end_after_exit(self.cancellation, &watch, &process, status)
    }
}
