//! The state machine of one worker's process: start, stop, crash, backoff, restart.
//!
//! `Life::step` is a total function from a state and an input to the next state and its effects. It knows no pools,
//! calls or bytes, and the caller gives it the time. Most states are named by what the bus waits for.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::Moment;
use crate::config::Limits;
use crate::limit::{
    BACKOFF_FIRST, EXIT_AFTER_EOF, LONG_REST, RESTART_AT_ONCE_AFTER, STOP_AT_ONCE, STOP_BY_EOF, STOP_BY_KILL,
    STOP_BY_TERM,
};
use crate::mutants::{Check, enabled};

/// The state of a worker over all its processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Life {
    state: State,
    /// True: the worker is restarted after an exit. False: it is removed.
    wanted: bool,
    /// The process is stopped on purpose. The next one starts without backoff and does not count as a restart.
    replaced: bool,
    /// The calls to this process have failed already.
    calls_failed: bool,
    /// The next backoff, unless the process was up for `RESTART_AT_ONCE_AFTER`.
    backoff: Duration,
    /// The restarts within the last `restart_window`.
    restarts: VecDeque<Moment>,
    /// All restarts there ever were.
    all_restarts: u64,
    /// The worker was started before, so the next start is a restart.
    was_started: bool,
    /// When the process started.
    since: Moment,
    /// When it began to end.
    ended: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum State {
    /// The worker waits for its next start. `failed`: the last start gave no process, so no request waits for the
    /// next one.
    Backoff {
        until: Moment,
        failed: bool,
    },
    Starting,
    Up,
    /// The process closed its pipes, and the bus waits for its exit.
    Closing {
        until: Moment,
    },
    /// The bus closed its stdin.
    Ending {
        until: Moment,
    },
    /// The bus sent it SIGTERM.
    Terminating {
        until: Moment,
    },
    /// The bus sent it SIGKILL.
    Killed {
        until: Moment,
    },
    /// The worker used up its restarts and is not started before the window is over.
    Exhausted {
        until: Moment,
    },
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Input {
    Alarm,
    Spawned,
    SpawnFailed,
    /// The process closed its stdout, or no longer reads its stdin.
    Ended,
    Exited,
    /// Stop the process gracefully and remove the worker.
    Stop,
    /// Stop the process gracefully and start another one.
    Replace,
    /// The process misbehaves: terminate it now and restart it after the backoff.
    StopFaulty,
    /// Terminate the process now and remove the worker.
    StopNow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Spawn,
    CloseStdin,
    Term,
    Kill,
    /// The process will not answer its calls: fail them.
    FailCalls,
    /// The process has ended: close its link.
    ReleaseLink,
    /// The worker is not restarted: remove it.
    Remove,
}

impl Life {
    /// A worker whose backoff is already over: the first `Alarm` starts it.
    pub(crate) fn new(now: Moment) -> Life {
        Life {
            state: State::Backoff { until: now, failed: false },
            wanted: true,
            replaced: false,
            calls_failed: true,
            backoff: BACKOFF_FIRST,
            restarts: VecDeque::new(),
            all_restarts: 0,
            was_started: false,
            since: now,
            ended: now,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// When the process started, if it is up.
    pub(crate) fn up_since(&self) -> Option<Moment> {
        self.is_up().then_some(self.since)
    }

    /// Whether the process has closed its pipes and its exit is not known yet.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// Whether the worker is not up but will be soon, so that requests wait for it.
    pub(crate) fn is_coming(&self) -> bool {
        match self.state {
            State::Starting => self.wanted,
            State::Backoff { failed, .. } => !failed,
            State::Ending { .. } => self.replaced,
            State::Terminating { .. } | State::Killed { .. } => {
                self.replaced || self.wanted && self.calls_failed
            }
            _ => false,
        }
    }

    /// Whether it waits for more than a second until its next process is started.
    pub(crate) fn rests_long(&self) -> bool {
        // The next backoff is twice this one.
        matches!(self.state, State::Backoff { .. }) && self.backoff > 2 * LONG_REST
    }

    pub(crate) fn restarts(&self) -> usize {
        self.restarts.len()
    }

    pub(crate) fn all_restarts(&self) -> u64 {
        self.all_restarts
    }

    /// When `Input::Alarm` is due.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        match self.state {
            State::Backoff { until, .. }
            | State::Closing { until }
            | State::Ending { until }
            | State::Terminating { until }
            | State::Killed { until }
            | State::Exhausted { until } => Some(until),
            State::Starting | State::Up | State::Gone => None,
        }
    }

    pub(crate) fn step(&mut self, input: Input, now: Moment, limits: &Limits) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Stop | Input::StopNow => {
                self.wanted = false;
                self.replaced = false;
            }
            Input::Replace => self.replaced = self.wanted,
            _ => {}
        }
        let was_up = self.is_up();
        self.state = match (self.state, input) {
            (State::Backoff { until, .. } | State::Exhausted { until }, Input::Alarm) if until <= now => {
                if self.was_started {
                    self.restarts.push_back(now);
                    self.all_restarts += 1;
                }
                self.was_started = true;
                effects.push(Effect::Spawn);
                State::Starting
            }
            (State::Backoff { .. } | State::Exhausted { .. }, Input::Stop | Input::StopNow) => {
                effects.push(Effect::Remove);
                State::Gone
            }
            (State::Starting, Input::SpawnFailed) => {
                effects.push(Effect::ReleaseLink);
                self.after_exit(true, now, limits, &mut effects)
            }
            (State::Starting, Input::Spawned) => {
                self.calls_failed = false;
                self.since = now;
                if self.wanted && !self.replaced {
                    State::Up
                } else {
                    effects.push(Effect::CloseStdin);
                    State::Ending { until: now + STOP_BY_EOF }
                }
            }
            (State::Up, Input::Ended) => State::Closing { until: now + EXIT_AFTER_EOF },
            (State::Up, Input::Stop | Input::Replace) => {
                effects.push(Effect::CloseStdin);
                State::Ending { until: now + STOP_BY_EOF }
            }
            (State::Up | State::Closing { .. } | State::Ending { .. }, Input::StopFaulty) => {
                self.terminate(now, &mut effects)
            }
            (State::Closing { until }, Input::Alarm) if until <= now => self.terminate(now, &mut effects),
            (State::Ending { until }, Input::Alarm) if until <= now => {
                effects.push(Effect::Term);
                State::Terminating { until: now + STOP_BY_TERM }
            }
            (State::Up | State::Closing { .. } | State::Ending { .. }, Input::StopNow) => {
                effects.extend([Effect::CloseStdin, Effect::Term]);
                State::Terminating { until: now + STOP_AT_ONCE }
            }
            (State::Terminating { until }, Input::StopNow) => {
                State::Terminating { until: until.min(now + STOP_AT_ONCE) }
            }
            (State::Terminating { until }, Input::Alarm) if until <= now => {
                if enabled(Check::Kill) {
                    effects.push(Effect::Kill);
                }
                State::Killed { until: now + STOP_BY_KILL }
            }
            // The process hangs in the kernel. The shell reaps it if it ever ends.
            (State::Killed { until }, Input::Alarm) if until <= now => self.exited(now, limits, &mut effects),
            (
                State::Up
                | State::Closing { .. }
                | State::Ending { .. }
                | State::Terminating { .. }
                | State::Killed { .. },
                Input::Exited,
            ) => self.exited(now, limits, &mut effects),
            // The input is about a process that was given up, or an alarm of an earlier state.
            (state, _) => state,
        };
        if was_up && !self.is_up() {
            self.ended = now;
        }
        effects
    }

    fn terminate(&mut self, now: Moment, effects: &mut Vec<Effect>) -> State {
        self.fail_calls(effects);
        effects.extend([Effect::CloseStdin, Effect::Term]);
        State::Terminating { until: now + STOP_BY_TERM }
    }

    fn fail_calls(&mut self, effects: &mut Vec<Effect>) {
        if !self.calls_failed {
            self.calls_failed = true;
            effects.push(Effect::FailCalls);
        }
    }

    fn exited(&mut self, now: Moment, limits: &Limits, effects: &mut Vec<Effect>) -> State {
        self.fail_calls(effects);
        effects.push(Effect::ReleaseLink);
        self.after_exit(false, now, limits, effects)
    }

    /// Removes, restarts or delays a worker without a process. `failed`: the process could not be started.
    fn after_exit(&mut self, failed: bool, now: Moment, limits: &Limits, effects: &mut Vec<Effect>) -> State {
        if !self.wanted {
            effects.push(Effect::Remove);
            return State::Gone;
        }
        if self.replaced && !failed {
            self.replaced = false;
            effects.push(Effect::Spawn);
            return State::Starting;
        }
        self.replaced = false;
        // A process that was up for a while has most likely not failed for a reason that is still there.
        let up_until = if self.is_up() { now } else { self.ended };
        let was_well = !failed && up_until.saturating_sub(self.since) >= RESTART_AT_ONCE_AFTER;
        while self.restarts.front().is_some_and(|restart| *restart + limits.restart_window <= now) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= limits.max_restarts as usize && enabled(Check::RestartLimit) {
            let until = self.restarts.front().map_or(now, |oldest| *oldest) + limits.restart_window;
            return State::Exhausted { until };
        }
        if was_well {
            self.backoff = BACKOFF_FIRST;
            return State::Backoff { until: now, failed };
        }
        let backoff =
            if enabled(Check::Backoff) { self.backoff.min(limits.max_restart_delay) } else { Duration::ZERO };
        self.backoff = backoff * 2;
        State::Backoff { until: now + backoff, failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: [Input; 9] = [
        Input::Alarm,
        Input::Spawned,
        Input::SpawnFailed,
        Input::Ended,
        Input::Exited,
        Input::Stop,
        Input::Replace,
        Input::StopFaulty,
        Input::StopNow,
    ];

    /// What a history of inputs and effects has led to outside.
    #[derive(Clone, Default, Debug)]
    struct World {
        asked_to_spawn: bool,
        process: bool,
        calls_failed: bool,
        worker_removed: bool,
    }

    impl World {
        fn sees(&mut self, input: Input, effects: &[Effect], history: &[Input]) {
            match input {
                Input::Spawned if self.asked_to_spawn => {
                    (self.asked_to_spawn, self.process, self.calls_failed) = (false, true, false);
                }
                Input::SpawnFailed => self.asked_to_spawn = false,
                _ => {}
            }
            for effect in effects {
                match effect {
                    Effect::Spawn => {
                        assert!(!self.asked_to_spawn && !self.process && !self.worker_removed, "{history:?}");
                        self.asked_to_spawn = true;
                    }
                    Effect::CloseStdin | Effect::Term | Effect::Kill => assert!(self.process, "{history:?}"),
                    Effect::FailCalls => {
                        assert!(self.process && !self.calls_failed, "{history:?}");
                        self.calls_failed = true;
                    }
                    Effect::ReleaseLink => {
                        assert!(!self.process || self.calls_failed, "{history:?}");
                        self.process = false;
                    }
                    Effect::Remove => {
                        assert!(!self.process && !self.asked_to_spawn && !self.worker_removed, "{history:?}");
                        self.worker_removed = true;
                    }
                }
            }
        }
    }

    fn explore(life: &Life, world: &World, now: Moment, history: &mut Vec<Input>, depth: usize) {
        if depth == 0 {
            return;
        }
        for input in INPUTS {
            let (mut life, mut world) = (life.clone(), world.clone());
            // An alarm comes when it is due. Everything else comes at once.
            let now = if input == Input::Alarm { life.deadline().unwrap_or(now).max(now) } else { now };
            history.push(input);
            let effects = life.step(input, now, &Limits::default());
            world.sees(input, &effects, history);
            if world.process {
                assert!(
                    life.is_up() || life.deadline().is_some(),
                    "nothing waits for a process for ever: {history:?}"
                );
            }
            explore(&life, &world, now, history, depth - 1);
            history.pop();
        }
    }

    #[test]
    fn in_every_history_of_six_inputs_the_state_matches_the_process() {
        explore(&Life::new(Moment::ZERO), &World::default(), Moment::ZERO, &mut Vec::new(), 6);
    }

    fn crash(life: &mut Life, now: &mut Moment, up: Duration) -> State {
        *now = life.deadline().unwrap_or(*now).max(*now);
        assert_eq!(life.step(Input::Alarm, *now, &Limits::default()), [Effect::Spawn]);
        life.step(Input::Spawned, *now, &Limits::default());
        *now += up;
        life.step(Input::Exited, *now, &Limits::default());
        life.state()
    }

    #[test]
    fn backoff_doubles_until_the_restarts_are_used_up() {
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for backoff_ms in [100, 200, 400, 800, 1600] {
            let state = crash(&mut life, &mut now, Duration::ZERO);
            let until = now + Duration::from_millis(backoff_ms);
            assert_eq!(state, State::Backoff { until, failed: false });
        }
        let first_restart = Duration::from_millis(100);
        assert_eq!(
            crash(&mut life, &mut now, Duration::ZERO),
            State::Exhausted { until: first_restart + Duration::from_secs(60) }
        );
    }

    #[test]
    fn no_backoff_is_longer_than_max_restart_delay() {
        let limits = Limits { max_restart_delay: Duration::from_millis(150), ..Limits::default() };
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for backoff_ms in [100, 150, 150] {
            now = life.deadline().unwrap_or(now);
            for input in [Input::Alarm, Input::Spawned, Input::Exited] {
                life.step(input, now, &limits);
            }
            assert_eq!(life.deadline(), Some(now + Duration::from_millis(backoff_ms)));
        }
    }

    #[test]
    fn a_process_that_was_up_for_five_seconds_is_restarted_at_once_and_then_with_a_backoff() {
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        let long = Duration::from_secs(5);
        let short = Duration::from_millis(4999);
        for (up, backoff_ms) in [(long, 0), (short, 100), (Duration::ZERO, 200), (long, 0), (short, 100)] {
            let state = crash(&mut life, &mut now, up);
            let until = now + Duration::from_millis(backoff_ms);
            assert_eq!(state, State::Backoff { until, failed: false });
        }
    }

    #[test]
    fn restarts_at_once_are_limited_too() {
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for _ in 0..5 {
            let state = crash(&mut life, &mut now, Duration::from_secs(6));
            assert_eq!(state, State::Backoff { until: now, failed: false });
        }
        let state = crash(&mut life, &mut now, Duration::from_secs(6));
        assert!(matches!(state, State::Exhausted { .. }));
    }

    #[test]
    fn a_replaced_worker_restarts_at_once() {
        let limits = Limits::default();
        let mut life = Life::new(Moment::ZERO);
        life.step(Input::Alarm, Moment::ZERO, &limits);
        life.step(Input::Spawned, Moment::ZERO, &limits);
        assert_eq!(life.step(Input::Replace, Moment::ZERO, &limits), [Effect::CloseStdin]);
        assert!(life.is_coming());
        assert_eq!(
            life.step(Input::Exited, Moment::ZERO, &limits),
            [Effect::FailCalls, Effect::ReleaseLink, Effect::Spawn]
        );
    }
}
