//! A scripted process: how it starts, acts and ends. What it writes is in `agent`.

use std::time::Duration;

use kernel_core::id::WorkerId;
use kernel_core::{Event, Exit, Moment};

use crate::pipe::Pipe;
use crate::plan::Plan;
use crate::record::{Life, Peer};
use crate::rng::Rng;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting { at: Moment, fails: bool },
    Running,
    Dead,
}

pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) pipe: Pipe,
    pub(crate) state: State,
    /// When and how it exits.
    pub(crate) exit: Option<(Moment, Exit)>,
    pub(crate) killed: bool,
    /// When it crashed although the bus had not begun to end it.
    pub(crate) crashed: Option<Moment>,
    pub(crate) up_since: Moment,
    /// It could not be started.
    pub(crate) spawn_failed: bool,
    /// It never answers when the bus asks it to close a session.
    pub(crate) never_closes: bool,
    /// It answers no client, not even when all others behave.
    pub(crate) mute: bool,
    /// It ignores SIGTERM and the end of its stdin.
    pub(crate) stubborn: bool,
    /// It does not read.
    pub(crate) not_reading: bool,
    pub(crate) init_answer: InitAnswer,
    /// The capabilities that it declares.
    pub(crate) capabilities: &'static str,
    pub(crate) todo: Vec<Asked>,
    /// Sessions that it has opened or was told to load.
    pub(crate) sessions: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) next: usize,
    /// Ids of its own requests.
    pub(crate) asks: Vec<String>,
    pub(crate) elicited: Vec<(String, usize)>,
    /// Answers that it has given and may repeat.
    pub(crate) history: Vec<Vec<u8>>,
}

/// How it answers initialize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitAnswer {
    Result,
    Never,
    Error,
}

/// A request that it has read and not answered.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) call_id: u64,
    pub(crate) method: String,
    pub(crate) session: Option<String>,
    pub(crate) top: Option<String>,
    /// Only a client writes such a request, never the bus itself.
    pub(crate) of_client: bool,
    /// The session that it is going to name.
    pub(crate) opens: Option<String>,
}

impl Worker {
    pub(crate) fn new(
        rng: &mut Rng,
        plan: &Plan,
        quiet: bool,
        id: WorkerId,
        pipe: Pipe,
        now: Moment,
    ) -> Worker {
        let late = !quiet && rng.percent(plan.spawn_late_chance);
        let at = now + Duration::from_millis(if late { rng.below(1000) as u64 } else { 1 });
        let fails = !quiet && rng.percent(plan.spawn_fault_chance);
        let init_answer = if !quiet && rng.percent(plan.init_fault_chance) {
            rng.one(&[InitAnswer::Never, InitAnswer::Error])
        } else {
            InitAnswer::Result
        };
        Worker {
            id,
            pipe,
            state: State::Starting { at, fails },
            exit: None,
            killed: false,
            crashed: None,
            up_since: now,
            spawn_failed: false,
            never_closes: false,
            mute: false,
            stubborn: rng.percent(plan.stubborn_chance),
            not_reading: false,
            init_answer,
            capabilities: capabilities(rng, plan),
            todo: Vec::new(),
            sessions: Vec::new(),
            labels: Vec::new(),
            next: 0,
            asks: Vec::new(),
            elicited: Vec::new(),
            history: Vec::new(),
        }
    }

    /// When its state changes by itself.
    pub(crate) fn due(&self) -> Option<Moment> {
        match self.state {
            State::Starting { at, .. } => Some(at),
            State::Running => self.exit.map(|(at, _)| at),
            State::Dead => None,
        }
    }

    pub(crate) fn exit_by(&mut self, at: Moment, exit: Exit) {
        if let State::Starting { fails, .. } = &mut self.state {
            *fails = true;
            return;
        }
        match self.exit {
            Some((before, _)) if before <= at => {}
            _ => self.exit = Some((at, exit)),
        }
    }
}

fn capabilities(rng: &mut Rng, plan: &Plan) -> &'static str {
    let lasting = [
        r#"{"sessionCapabilities":{"close":{},"resume":{},"list":{}}}"#,
        r#"{"loadSession":true,"sessionCapabilities":{"resume":{},"list":{}}}"#,
        r#"{"loadSession":true}"#,
        r#"{"loadSession":true,"sessionCapabilities":{"close":{}}}"#,
    ];
    let plain = ["{}", r#"{"sessionCapabilities":{"close":{},"list":{}}}"#];
    // With the same name in two processes the oracle could not tell which session was opened again.
    if plan.unique_names && rng.percent(60) { rng.one(&lasting) } else { rng.one(&plain) }
}

impl World {
    /// Does one random thing.
    pub(crate) fn worker_acts(&mut self, life: Life) {
        if self.workers[life].state != State::Running || self.workers[life].pipe.ended {
            return;
        }
        if self.workers[life].pipe.up.len() > 32768 {
            return;
        }
        if self.workers[life].mute {
            self.worker_answers_all(life);
            return;
        }
        let has = |any: bool, weight: usize| if any { weight } else { 0 };
        let worker = &self.workers[life];
        let plan = &self.plan;
        let weights = [
            has(!worker.todo.is_empty(), 30),
            has(!worker.sessions.is_empty(), 12),
            has(!worker.todo.is_empty(), plan.early_weight),
            plan.ask_weight,
            plan.misbehave_weight,
            2,
            plan.flood_weight,
            plan.worker_stall_weight,
            plan.crash_weight,
            plan.close_weight,
            has(!worker.labels.is_empty(), 4),
            has(!worker.asks.is_empty(), 2),
        ];
        match self.rng.weighted(&weights) {
            0 => {
                let at = self.rng.below(self.workers[life].todo.len());
                self.answers(life, at);
            }
            1 => self.updates(life),
            2 => self.early_update(life),
            3 => self.asks_client(life),
            4 => self.misbehave(life),
            5 => self.notifies(life),
            6 => (0..self.rng.within(5, 60)).for_each(|_| self.updates(life)),
            7 => self.workers[life].not_reading = !self.workers[life].not_reading,
            8 => self.crashes(life),
            9 => self.closes_pipes(life),
            10 => self.label_message(life),
            _ => self.retract(life),
        }
    }

    /// Answers all requests that it will ever answer.
    pub(crate) fn worker_answers_all(&mut self, life: Life) -> bool {
        self.workers[life].not_reading = false;
        if self.workers[life].state != State::Running || self.workers[life].pipe.ended {
            return false;
        }
        let mute = self.workers[life].mute;
        let answered = |asked: &Asked| !(mute && asked.of_client);
        let mut any = false;
        while let Some(at) = self.workers[life].todo.iter().position(answered) {
            self.answers(life, at);
            any = true;
        }
        any
    }

    /// Reads its stdin, and exits at the end of it.
    pub(crate) fn worker_reads(&mut self, life: Life) -> bool {
        let worker = &mut self.workers[life];
        if worker.state != State::Running || worker.not_reading {
            return false;
        }
        let count = if self.quiet { usize::MAX } else { self.rng.within(1, 2000) };
        let any = !worker.pipe.down.is_empty();
        let lines = worker.pipe.read_lines(count);
        if worker.pipe.shut && worker.pipe.down.is_empty() && !worker.stubborn && worker.exit.is_none() {
            worker.exit_by(self.now + Duration::from_millis(self.rng.below(500) as u64), Exit::Code(0));
        }
        for line in lines {
            self.worker_reads_line(life, &line);
        }
        any
    }

    fn crashes(&mut self, life: Life) {
        if self.rng.percent(40) {
            // It crashes in the middle of a line.
            self.workers[life].pipe.write(br#"{"jsonrpc":"2.0","id":"#, None);
        }
        self.workers[life].crashed = self.oracle.lives[life].healthy.then_some(self.now);
        self.workers[life].exit = Some((self.now, Exit::Signal(11)));
        self.exit(life);
    }

    /// Closes stdout or stdin without exiting.
    fn closes_pipes(&mut self, life: Life) {
        let link = self.workers[life].pipe.link;
        if self.rng.percent(30) {
            self.workers[life].pipe.shut = true;
            self.oracle.became_unhealthy(life);
            return self.handle(Event::Broken(link));
        }
        if !self.workers[life].pipe.up.is_empty() {
            self.carry_up(Peer::Worker(life));
        }
        if self.workers[life].pipe.up.is_empty() && self.workers[life].state == State::Running {
            self.workers[life].pipe.ended = true;
            self.oracle.became_unhealthy(life);
            self.handle(Event::Ended(link));
        }
    }
}
