//! One worker's life: a total function from what it is and what happens to what it becomes and what to do.
//!
//! Two variables: what is wanted of it (up, or gone) and what it is. States are named by what is awaited.
//! Knows no pools, calls or bytes; the time is told.

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::Moment;
use crate::config::Limits;
use crate::limit::{
    BACKOFF_FIRST, BACKOFF_RESET_AFTER, EXIT_AFTER_EOF, STOP_AT_ONCE, STOP_BY_EOF, STOP_BY_KILL, STOP_BY_TERM,
};

#[derive(Clone, Debug)]
pub(crate) struct Life {
    state: State,
    /// Come back after this life; otherwise be gone.
    wanted: bool,
    /// This life is ended on purpose and the next begins at once, without a rest and at no cost.
    replaced: bool,
    /// Those who waited for this life have been told that it is over.
    calls_failed: bool,
    /// The next rest, unless it is forgiven.
    rest: Duration,
    /// When it was started again, within the last window.
    restarts: VecDeque<Moment>,
    /// It has been started before.
    lived: bool,
    /// When this life began.
    since: Moment,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// `failed`: the last start did not even give a process, so there is no use in waiting for the next.
    Backoff {
        until: Moment,
        failed: bool,
    },
    Starting,
    Up,
    /// It closed its pipes: the exit is awaited.
    Closing {
        until: Moment,
    },
    /// Its stdin was closed.
    Ending {
        until: Moment,
    },
    /// It was sent SIGTERM.
    Terminating {
        until: Moment,
    },
    /// It was sent SIGKILL.
    Killed {
        until: Moment,
    },
    /// It used up its restarts and rests for the rest of the window.
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
    /// It closed stdout, or no longer takes its stdin.
    Ended,
    Exited,
    /// Stop gently, for good.
    Stop,
    /// Stop gently and start afresh.
    Replace,
    /// It misbehaves: stop it now; it comes back after a rest.
    StopFaulty,
    /// Stop at once, for good.
    StopNow,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Spawn,
    CloseStdin,
    Term,
    Kill,
    /// What it owed will not come: tell those who wait.
    FailCalls,
    /// The process is no more; its link can go.
    ReleaseLink,
    /// The place can go too.
    Remove,
}

impl Life {
    /// Born resting, with nothing to wait for: the first `Alarm` starts it.
    pub(crate) fn new(now: Moment) -> Life {
        Life {
            state: State::Backoff { until: now, failed: false },
            wanted: true,
            replaced: false,
            calls_failed: true,
            rest: BACKOFF_FIRST,
            restarts: VecDeque::new(),
            lived: false,
            since: now,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Since when, if it is.
    pub(crate) fn up_since(&self) -> Option<Moment> {
        self.is_up().then_some(self.since)
    }

    /// It has closed its pipes, and its exit is not known yet.
    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing { .. })
    }

    /// It is not up but will be, so that it is worth waiting for.
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

    pub(crate) fn restarts(&self) -> usize {
        self.restarts.len()
    }

    /// When `Alarm` matters next.
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
        self.state = match (self.state, input) {
            (State::Backoff { until, .. } | State::Exhausted { until }, Input::Alarm) if until <= now => {
                if self.lived {
                    self.restarts.push_back(now);
                }
                self.lived = true;
                effects.push(Effect::Spawn);
                State::Starting
            }
            (State::Backoff { .. } | State::Exhausted { .. }, Input::Stop | Input::StopNow) => {
                effects.push(Effect::Remove);
                State::Gone
            }
            (State::Starting, Input::SpawnFailed) => {
                effects.push(Effect::ReleaseLink);
                self.next_life(true, now, limits, &mut effects)
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
                effects.push(Effect::Kill);
                State::Killed { until: now + STOP_BY_KILL }
            }
            // It hangs in the kernel; the shell reaps it if it ever ends.
            (State::Killed { until }, Input::Alarm) if until <= now => self.over(now, limits, &mut effects),
            (
                State::Up
                | State::Closing { .. }
                | State::Ending { .. }
                | State::Terminating { .. }
                | State::Killed { .. },
                Input::Exited,
            ) => self.over(now, limits, &mut effects),
            // Late news of a life already given up, or an alarm set for what is no longer awaited.
            (state, _) => state,
        };
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

    fn over(&mut self, now: Moment, limits: &Limits, effects: &mut Vec<Effect>) -> State {
        self.fail_calls(effects);
        effects.push(Effect::ReleaseLink);
        self.next_life(false, now, limits, effects)
    }

    fn next_life(&mut self, failed: bool, now: Moment, limits: &Limits, effects: &mut Vec<Effect>) -> State {
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
        if !failed && now.saturating_sub(self.since) >= BACKOFF_RESET_AFTER {
            self.rest = BACKOFF_FIRST;
        }
        while self.restarts.front().is_some_and(|restart| *restart + limits.restart_window <= now) {
            self.restarts.pop_front();
        }
        if self.restarts.len() >= limits.max_restarts as usize {
            let until = self.restarts.front().map_or(now, |oldest| *oldest) + limits.restart_window;
            return State::Exhausted { until };
        }
        let rest = self.rest.min(limits.max_restart_delay);
        let until = now + rest;
        self.rest = rest * 2;
        State::Backoff { until, failed }
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

    /// What the effects of one history have led to.
    #[derive(Clone, Default, Debug)]
    struct World {
        asked_to_spawn: bool,
        process: bool,
        calls_failed: bool,
        remove_worker: bool,
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
                        assert!(!self.asked_to_spawn && !self.process && !self.remove_worker, "{history:?}");
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
                        assert!(!self.process && !self.asked_to_spawn && !self.remove_worker, "{history:?}");
                        self.remove_worker = true;
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
            // An alarm comes when it is due; all else comes at once.
            let now = if input == Input::Alarm { life.deadline().unwrap_or(now).max(now) } else { now };
            history.push(input);
            let effects = life.step(input, now, &Limits::default());
            world.sees(input, &effects, history);
            if world.process {
                assert!(
                    life.is_up() || life.deadline().is_some(),
                    "no process is waited for for ever: {history:?}"
                );
            }
            explore(&life, &world, now, history, depth - 1);
            history.pop();
        }
    }

    #[test]
    fn every_history_of_six_steps_keeps_process_and_state_in_step() {
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
    fn rests_double_and_the_budget_ends_in_a_long_rest() {
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for rest_ms in [100, 200, 400, 800, 1600] {
            let state = crash(&mut life, &mut now, Duration::ZERO);
            assert_eq!(state, State::Backoff { until: now + Duration::from_millis(rest_ms), failed: false });
        }
        let first_restart = Duration::from_millis(100);
        assert_eq!(
            crash(&mut life, &mut now, Duration::ZERO),
            State::Exhausted { until: first_restart + Duration::from_secs(60) }
        );
    }

    #[test]
    fn no_rest_is_longer_than_it_may_be() {
        let limits = Limits { max_restart_delay: Duration::from_millis(150), ..Limits::default() };
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for rest_ms in [100, 150, 150] {
            now = life.deadline().unwrap_or(now);
            for input in [Input::Alarm, Input::Spawned, Input::Exited] {
                life.step(input, now, &limits);
            }
            assert_eq!(life.deadline(), Some(now + Duration::from_millis(rest_ms)));
        }
    }

    #[test]
    fn half_a_minute_up_is_forgiven() {
        let (mut life, mut now) = (Life::new(Moment::ZERO), Moment::ZERO);
        for _ in 0..20 {
            let state = crash(&mut life, &mut now, Duration::from_secs(30));
            assert_eq!(state, State::Backoff { until: now + BACKOFF_FIRST, failed: false });
        }
    }

    #[test]
    fn a_replaced_worker_comes_back_at_once() {
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
