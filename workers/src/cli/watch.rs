//! Decides when a turn's process must be stopped and when the turn is over.
//!
//! This file is pure: the caller has the clock, the pipes and the process.
//!
//! A process is stopped if the turn is cancelled, if it is silent for too long, or if it stays although it has closed
//! its stdout or given its result. The time that a turn takes is not limited.

use std::time::{Duration, Instant};

use super::process::ProcessEvent;
use super::stop_sequence::{INTERRUPT_GRACE, StopSequence, StopStep};

/// How long stdout may stay open after the process has exited, since a tool may still hold the pipe.
const STDOUT_GRACE: Duration = Duration::from_millis(500);
/// How long a process may stay silent after its result, since it may have tasks in the background.
const RESULT_GRACE: Duration = Duration::from_secs(60);

/// Zero means no limit.
#[derive(Clone, Copy)]
pub(super) struct SilenceLimits {
    pub(super) first_output: Duration,
    pub(super) later: Duration,
}

#[derive(Clone)]
pub(super) struct Watch {
    limits: SilenceLimits,
    started: Instant,
    /// `None` until the process has printed its first line.
    last_activity: Option<Instant>,
    stdout_closed: Option<Instant>,
    exited: Option<Instant>,
    /// Whether the process has printed a line in this turn.
    has_output: bool,
    /// The limit that the process has exceeded.
    silent_for: Option<Duration>,
    stop: StopSequence,
}

/// What the caller sees at a tick.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Observation {
    pub(super) is_cancelled: bool,
    pub(super) is_urgent: bool,
    pub(super) has_result: bool,
    /// The CLI waits for an answer of the client and says nothing meanwhile.
    pub(super) awaits_client: bool,
    pub(super) has_exited: bool,
    /// Output on stderr is a sign of life, too.
    pub(super) last_stderr: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tick {
    Stop(StopStep),
    /// The process has exited and everything that it printed was read.
    Ended,
}

impl Watch {
    /// `is_ready`: the process has printed something before this turn, so it needs no time to start.
    pub(super) fn new(limits: SilenceLimits, now: Instant, is_ready: bool) -> Watch {
        Watch {
            limits,
            started: now,
            last_activity: is_ready.then_some(now),
            stdout_closed: None,
            exited: None,
            has_output: false,
            silent_for: None,
            stop: StopSequence::NotStarted,
        }
    }

    pub(super) fn on(&mut self, event: &ProcessEvent, now: Instant) {
        match event {
            ProcessEvent::Line(_) => {
                self.last_activity = Some(now);
                self.has_output = true;
            }
            ProcessEvent::StdoutClosed => self.stdout_closed = Some(now),
            ProcessEvent::Wake => {}
        }
    }

    pub(super) fn tick(&mut self, now: Instant, seen: &Observation) -> Tick {
        if seen.awaits_client {
            self.last_activity = Some(now);
        }
        if seen.has_exited {
            let exited = *self.exited.get_or_insert(now);
            let is_read = self.stdout_closed.is_some() || is_past(now, exited, STDOUT_GRACE);
            return if is_read { Tick::Ended } else { Tick::Stop(StopStep::Wait) };
        }
        if !self.is_stopping() {
            self.silent_for = self.exceeded_limit(now, seen.last_stderr);
        }
        let hangs = |since: Option<Instant>, grace| since.is_some_and(|since| is_past(now, since, grace));
        let must_stop = seen.is_cancelled
            || self.silent_for.is_some()
            || hangs(self.stdout_closed, INTERRUPT_GRACE)
            || (seen.has_result && hangs(self.last_activity, RESULT_GRACE));
        if must_stop || self.is_stopping() {
            Tick::Stop(self.stop.step(now, seen.is_urgent))
        } else {
            Tick::Stop(StopStep::Wait)
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop != StopSequence::NotStarted
    }

    pub(super) fn has_output(&self) -> bool {
        self.has_output
    }

    /// Why the process was stopped, if it was silent for too long.
    pub(super) fn fault(&self) -> Option<String> {
        self.silent_for.map(|limit| format!("it said nothing for {} s and was ended", limit.as_secs()))
    }

    fn exceeded_limit(&self, now: Instant, last_stderr: Option<Instant>) -> Option<Duration> {
        let (since, limit) = match self.last_activity.max(last_stderr) {
            None => (self.started, self.limits.first_output),
            Some(activity) => (activity, self.limits.later),
        };
        (!limit.is_zero() && is_past(now, since, limit)).then_some(limit)
    }
}

fn is_past(now: Instant, since: Instant, grace: Duration) -> bool {
    now.saturating_duration_since(since) > grace
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SilenceLimits =
        SilenceLimits { first_output: Duration::from_secs(10), later: Duration::from_secs(30) };

    #[derive(Clone, Copy, Debug)]
    enum Input {
        Line,
        Stderr,
        StdoutClosed,
        Exit,
        Result,
        /// The CLI begins to wait for the client, or stops waiting.
        Question,
        Cancel,
        CancelUrgently,
        Pass(Duration),
    }

    const INPUTS: [Input; 12] = [
        Input::Line,
        Input::Stderr,
        Input::StdoutClosed,
        Input::Exit,
        Input::Result,
        Input::Question,
        Input::Cancel,
        Input::CancelUrgently,
        Input::Pass(Duration::from_millis(600)),
        Input::Pass(Duration::from_millis(2500)),
        Input::Pass(Duration::from_secs(11)),
        Input::Pass(Duration::from_secs(61)),
    ];

    /// What one history has led to, kept apart from the watch.
    #[derive(Clone)]
    struct World {
        now: Instant,
        seen: Observation,
        last_sign: Option<Instant>,
        last_line: Option<Instant>,
        stdout_closed: Option<Instant>,
        exited: Option<Instant>,
        last_step: StopStep,
        last_step_at: Instant,
    }

    impl World {
        fn new(now: Instant) -> World {
            World {
                now,
                seen: Observation::default(),
                last_sign: None,
                last_line: None,
                stdout_closed: None,
                exited: None,
                last_step: StopStep::Wait,
                last_step_at: now,
            }
        }

        fn apply(&mut self, input: Input, watch: &mut Watch) {
            match input {
                Input::Line => {
                    watch.on(&ProcessEvent::Line(Vec::new()), self.now);
                    self.last_line = Some(self.now);
                    self.last_sign = Some(self.now);
                }
                Input::StdoutClosed => {
                    watch.on(&ProcessEvent::StdoutClosed, self.now);
                    self.stdout_closed = Some(self.now);
                }
                Input::Stderr => {
                    self.seen.last_stderr = Some(self.now);
                    self.last_sign = Some(self.now);
                }
                Input::Exit => {
                    self.seen.has_exited = true;
                    self.exited = self.exited.or(Some(self.now));
                }
                Input::Result => self.seen.has_result = true,
                Input::Question => self.seen.awaits_client = !self.seen.awaits_client,
                Input::Cancel => self.seen.is_cancelled = true,
                Input::CancelUrgently => {
                    self.seen.is_cancelled = true;
                    self.seen.is_urgent = true;
                }
                Input::Pass(time) => self.now += time,
            }
            if self.seen.awaits_client {
                self.last_line = Some(self.now);
                self.last_sign = Some(self.now);
            }
        }

        fn age(&self, since: Option<Instant>) -> Duration {
            since.map_or(Duration::ZERO, |since| self.now - since)
        }

        fn is_silent(&self, started: Instant) -> bool {
            match self.last_sign {
                None => self.now - started > LIMITS.first_output,
                Some(_) => self.age(self.last_sign) > LIMITS.later,
            }
        }

        fn check(&mut self, tick: Tick, started: Instant, history: &[Input]) {
            if let Some(exited) = self.exited {
                let is_over = self.stdout_closed.is_some() || self.age(Some(exited)) > STDOUT_GRACE;
                let expected = if is_over { Tick::Ended } else { Tick::Stop(StopStep::Wait) };
                return assert_eq!(tick, expected, "{history:?}");
            }
            let Tick::Stop(step) = tick else { panic!("no turn ends before its process: {history:?}") };
            let must_stop = self.seen.is_cancelled
                || self.is_silent(started)
                || self.age(self.stdout_closed) > INTERRUPT_GRACE
                || (self.seen.has_result && self.age(self.last_line) > RESULT_GRACE);
            if self.last_step == StopStep::Wait {
                let expected = if must_stop { StopStep::Interrupt } else { StopStep::Wait };
                assert_eq!(step, expected, "{history:?}");
            }
            if step == StopStep::Wait {
                return;
            }
            let waited = self.now - self.last_step_at;
            match (self.last_step, step) {
                (StopStep::Wait, StopStep::Interrupt) => {}
                (StopStep::Interrupt, StopStep::Terminate) | (StopStep::Terminate, StopStep::Kill) => {
                    assert!(self.seen.is_urgent || waited > INTERRUPT_GRACE, "{history:?}");
                }
                (StopStep::Kill, StopStep::Kill) => {}
                (before, after) => panic!("{after:?} after {before:?}: {history:?}"),
            }
            self.last_step = step;
            self.last_step_at = self.now;
        }
    }

    /// A process that ignores everything is killed in the end.
    fn check_killed(mut watch: Watch, world: &World, history: &[Input]) {
        let seen = Observation { is_cancelled: true, ..world.seen };
        let mut now = world.now;
        let mut tick = watch.tick(now, &seen);
        for _ in 0..2 {
            now += Duration::from_secs(4);
            tick = watch.tick(now, &seen);
        }
        let expected = if seen.has_exited { Tick::Ended } else { Tick::Stop(StopStep::Kill) };
        assert_eq!(tick, expected, "{history:?}");
    }

    fn explore(watch: &Watch, world: &World, history: &mut Vec<Input>, depth: usize) {
        if depth == 0 {
            return check_killed(watch.clone(), world, history);
        }
        for input in INPUTS {
            let mut watch = watch.clone();
            let mut world = world.clone();
            history.push(input);
            world.apply(input, &mut watch);
            let tick = watch.tick(world.now, &world.seen);
            world.check(tick, watch.started, history);
            assert!(watch.fault().is_none() || watch.is_stopping(), "{history:?}");
            explore(&watch, &world, history, depth - 1);
            history.pop();
        }
    }

    #[test]
    fn every_history_of_five_inputs_stops_the_process_when_it_must_and_in_order() {
        let now = Instant::now();
        explore(&Watch::new(LIMITS, now, false), &World::new(now), &mut Vec::new(), 5);
    }

    #[test]
    fn a_process_that_is_ready_gets_no_time_to_start() {
        let start = Instant::now();
        for (is_ready, limit) in [(false, LIMITS.first_output), (true, LIMITS.later)] {
            let mut watch = Watch::new(LIMITS, start, is_ready);
            watch.tick(start + limit, &Observation::default());
            assert_eq!(watch.fault(), None);
            watch.tick(start + limit + Duration::from_millis(1), &Observation::default());
            let expected = format!("it said nothing for {} s and was ended", limit.as_secs());
            assert_eq!(watch.fault(), Some(expected));
        }
    }

    #[test]
    fn a_limit_of_zero_is_no_limit() {
        let limits = SilenceLimits { first_output: Duration::ZERO, later: Duration::ZERO };
        let now = Instant::now();
        let mut watch = Watch::new(limits, now, false);
        let later = now + Duration::from_secs(1 << 20);
        assert_eq!(watch.tick(later, &Observation::default()), Tick::Stop(StopStep::Wait));
    }
}
