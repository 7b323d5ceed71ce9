//! A scripted process behind a worker: what it does on its own, and how it starts and ends.
//! What it says is in `agent`.

use std::time::Duration;

use kernel_core::id::WorkerId;
use kernel_core::{Event, Exit, Moment};

use crate::ledger::{Life, Peer};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::wire::Wire;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting { at: Moment, fails: bool },
    Running,
    Dead,
}

pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    pub(crate) wire: Wire,
    pub(crate) state: State,
    /// When and how it will have exited.
    pub(crate) exit: Option<(Moment, Exit)>,
    pub(crate) killed: bool,
    /// It does not mind SIGTERM, nor the end of its stdin.
    pub(crate) stubborn: bool,
    /// It does not read.
    pub(crate) deaf: bool,
    pub(crate) greets: Greets,
    /// What it says that it can do.
    pub(crate) offers: &'static str,
    pub(crate) todo: Vec<Asked>,
    /// Sessions it has opened or been told to load.
    pub(crate) sessions: Vec<String>,
    pub(crate) labels: Vec<String>,
    pub(crate) next: usize,
    /// Its own requests, by id, and whether each was an elicitation: then by which line.
    pub(crate) asks: Vec<String>,
    pub(crate) elicited: Vec<(String, usize)>,
    /// Answers it has given, to be given again.
    pub(crate) history: Vec<Vec<u8>>,
}

/// How it answers initialize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greets {
    Well,
    Never,
    WithError,
}

/// A request that it has read and not answered.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) wire: u64,
    pub(crate) method: String,
    pub(crate) session: Option<String>,
    pub(crate) top: Option<String>,
    /// The session that it is going to name.
    pub(crate) opens: Option<String>,
}

impl Worker {
    pub(crate) fn new(
        rng: &mut Rng,
        plan: &Plan,
        calm: bool,
        id: WorkerId,
        wire: Wire,
        now: Moment,
    ) -> Worker {
        let late = !calm && rng.percent(plan.spawn_late_chance);
        let at = now + Duration::from_millis(if late { rng.below(1000) as u64 } else { 1 });
        let fails = !calm && rng.percent(plan.spawn_fault_chance);
        let greets = match !calm && rng.percent(plan.init_fault_chance) {
            false => Greets::Well,
            true => rng.one(&[Greets::Never, Greets::WithError]),
        };
        Worker {
            id,
            wire,
            state: State::Starting { at, fails },
            exit: None,
            killed: false,
            stubborn: rng.percent(plan.stubborn_chance),
            deaf: false,
            greets,
            offers: offers(rng, plan),
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

fn offers(rng: &mut Rng, plan: &Plan) -> &'static str {
    let lasting = [
        r#"{"sessionCapabilities":{"close":{},"resume":{}}}"#,
        r#"{"loadSession":true,"sessionCapabilities":{"resume":{}}}"#,
        r#"{"loadSession":true}"#,
        r#"{"loadSession":true,"sessionCapabilities":{"close":{}}}"#,
    ];
    let plain = ["{}", r#"{"sessionCapabilities":{"close":{}}}"#];
    // Under one name in two processes it could not be told which of them was opened again.
    if plan.unique_names && rng.percent(60) { rng.one(&lasting) } else { rng.one(&plain) }
}

impl World {
    /// Does something on its own.
    pub(crate) fn worker_acts(&mut self, life: Life) {
        if self.workers[life].state != State::Running || self.workers[life].wire.ended {
            return;
        }
        if self.workers[life].wire.up.len() > 32768 {
            return;
        }
        let has = |any: bool, weight: usize| if any { weight } else { 0 };
        let (worker, plan) = (&self.workers[life], &self.plan);
        let weights = [
            has(!worker.todo.is_empty(), 30),
            has(!worker.sessions.is_empty(), 12),
            has(!worker.todo.is_empty(), plan.early_weight),
            plan.ask_weight,
            plan.stray_weight,
            2,
            plan.flood_weight,
            plan.deaf_worker_weight,
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
            2 => self.speaks_early(life),
            3 => self.asks_client(life),
            4 => self.strays(life),
            5 => self.notifies(life),
            6 => (0..self.rng.within(5, 60)).for_each(|_| self.updates(life)),
            7 => self.workers[life].deaf = !self.workers[life].deaf,
            8 => self.crashes(life),
            9 => self.closes_pipes(life),
            10 => self.speaks_of_label(life),
            _ => self.takes_back(life),
        }
    }

    /// Everything it owes an answer to, except what it will never do.
    pub(crate) fn worker_answers_all(&mut self, life: Life) -> bool {
        self.workers[life].deaf = false;
        if self.workers[life].state != State::Running || self.workers[life].wire.ended {
            return false;
        }
        let any = !self.workers[life].todo.is_empty();
        while !self.workers[life].todo.is_empty() {
            self.answers(life, 0);
        }
        any
    }

    /// It reads; at the end of its stdin it leaves.
    pub(crate) fn worker_reads(&mut self, life: Life) -> bool {
        let worker = &mut self.workers[life];
        if worker.state != State::Running || worker.deaf {
            return false;
        }
        let count = if self.calm { usize::MAX } else { self.rng.within(1, 2000) };
        let any = !worker.wire.down.is_empty();
        let lines = worker.wire.hear(count);
        if worker.wire.shut && worker.wire.down.is_empty() && !worker.stubborn && worker.exit.is_none() {
            worker.exit_by(self.now + Duration::from_millis(self.rng.below(500) as u64), Exit::Code(0));
        }
        for line in lines {
            self.worker_hears(life, &line);
        }
        any
    }

    fn crashes(&mut self, life: Life) {
        if self.rng.percent(40) {
            // In the middle of a line.
            self.workers[life].wire.write(br#"{"jsonrpc":"2.0","id":"#, None);
        }
        self.workers[life].exit = Some((self.now, Exit::Signal(11)));
        self.exit(life);
    }

    /// It closes stdout, or stdin, and lives on.
    fn closes_pipes(&mut self, life: Life) {
        let link = self.workers[life].wire.link;
        if self.rng.percent(30) {
            self.workers[life].wire.shut = true;
            self.oracle.unwell(life);
            return self.handle(Event::Broken(link));
        }
        if !self.workers[life].wire.up.is_empty() {
            self.carry_up(Peer::Worker(life));
        }
        if self.workers[life].wire.up.is_empty() && self.workers[life].state == State::Running {
            self.workers[life].wire.ended = true;
            self.oracle.unwell(life);
            self.handle(Event::Ended(link));
        }
    }
}
