//! Two ends and their carrier, and the passing of time.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use cluster::pipe::{DEFAULT_WINDOW, MAX_FRAME_BYTES, MIN_FRAME_BYTES, MIN_WINDOW, Moment, State};

use crate::carrier::{Arrival, Carrier};
use crate::end::{End, PIPE, SILENT};
use crate::rng::Rng;

/// A process that was stopped for longer than this may hear its clock before its carrier.
const LONG_STOP: Duration = Duration::from_secs(4);
/// In less than this much time nobody can be asked to do something again and again.
const MAX_STEPS: usize = 200_000;

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: Moment,
    pub(crate) ends: [End; 2],
    pub(crate) carrier: Carrier,
    print: bool,
    hash: DefaultHasher,
    pub(crate) steps: usize,
}

impl World {
    pub(crate) fn new(seed: u64, print: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut window = || rng.one(&[MIN_WINDOW, MIN_WINDOW, 100_000, DEFAULT_WINDOW]);
        let windows = [window(), window()];
        let knows_window = rng.percent(30);
        let ends = [0, 1].map(|side| {
            let frame = rng.one(&[MAX_FRAME_BYTES, MAX_FRAME_BYTES, 20_000, MIN_FRAME_BYTES]);
            End::new(side, windows[side], if knows_window { windows[1 - side] } else { 0 }, frame)
        });
        let delay = Duration::from_micros(rng.one(&[100, 100, 1000, 5000, 30_000]));
        let mut world = World {
            rng,
            now: Moment::ZERO,
            ends,
            carrier: Carrier::new(delay),
            print,
            hash: DefaultHasher::new(),
            steps: 0,
        };
        world.say(|| format!("windows {windows:?}, delay {delay:?}"));
        world.send_all();
        world
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.print {
            println!("{:>12.6} {}", self.now.as_secs_f64(), what());
        }
    }

    pub(crate) fn both_live(&self) -> bool {
        self.ends.iter().all(End::is_alive) && self.carrier.gone == [false; 2]
    }

    /// Everything that the ends have to say goes to the carrier, as far as it takes it.
    pub(crate) fn send_all(&mut self) {
        for from in 0..2 {
            self.send_from(from);
        }
    }

    fn send_from(&mut self, from: usize) {
        let end = &mut self.ends[from];
        if end.stopped_until.is_some() || self.carrier.gone[from] {
            return;
        }
        while end.carrier_takes > 0 {
            let Some(frame) = end.pipe.next_frame(self.now) else { break };
            end.carrier_takes = end.carrier_takes.saturating_sub(1);
            if end.carrier_takes > 1 << 40 {
                end.carrier_takes = usize::MAX;
            }
            end.check_sent(&frame, self.now);
            self.hash.write(&frame.bytes[..36]);
            if self.print {
                let header = cluster::pipe::frame::read(&frame.bytes).expect("a frame");
                let length = frame.bytes.len() - 36;
                println!(
                    "{:>12.6} {from}: {:?} {} +{length} ack {} window {}",
                    self.now.as_secs_f64(),
                    header.kind,
                    header.offset,
                    header.ack,
                    header.window
                );
            }
            self.carrier.send(from, frame.bytes, frame.wants_reply, self.now, &mut self.rng);
        }
        end.check_state(self.now);
        end.check_memory();
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.step(until) {}
        self.now = until;
        self.send_all();
    }

    /// Lets time pass until something is true, or this much is over. Returns whether it is true.
    pub(crate) fn pass_until(&mut self, time: Duration, is_true: impl Fn(&World) -> bool) -> bool {
        let until = self.now + time;
        while !is_true(self) {
            if !self.step(until) {
                self.now = until;
                self.send_all();
                return is_true(self);
            }
        }
        true
    }

    /// The next thing that happens before this, if there is one.
    fn step(&mut self, until: Moment) -> bool {
        self.send_all();
        let running = |end: &&End| end.stopped_until.is_none() && !self.carrier.gone[end.side];
        let alarm = self.ends.iter().filter(running).filter_map(|end| end.pipe.next_alarm()).min();
        let resume = self.ends.iter().filter_map(|end| end.stopped_until).min();
        let Some(next) = [self.carrier.next(), alarm, resume].into_iter().flatten().min() else {
            return false;
        };
        if next > until {
            return false;
        }
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "much happens and time does not pass");
        self.now = self.now.max(next);
        if resume.is_some_and(|at| at <= self.now) {
            self.resume();
        } else if let Some((to, arrival)) = self.carrier.arrived(self.now) {
            self.arrives(to, arrival);
        } else {
            for side in 0..2 {
                if self.ends[side].stopped_until.is_none() && !self.carrier.gone[side] {
                    self.alarm(side);
                }
            }
        }
        true
    }

    fn alarm(&mut self, side: usize) {
        let end = &mut self.ends[side];
        if end.pipe.next_alarm().is_some_and(|due| due <= self.now) {
            end.pipe.alarm(self.now);
            let next = end.pipe.next_alarm();
            assert!(next.is_none_or(|due| due > self.now), "an alarm at {next:?} is due again");
            end.check_state(self.now);
        }
    }

    fn arrives(&mut self, to: usize, arrival: Arrival) {
        if self.carrier.gone[to] {
            return;
        }
        let end = &mut self.ends[to];
        if let Arrival::Message(bytes) = &arrival
            && let Ok(header) = cluster::pipe::frame::read(bytes)
            && header.pipe == PIPE
            && header.kind as u8 != 5
            && header.flags & 1 != u16::from(to == 1)
        {
            end.came = self.now;
        }
        if end.stopped_until.is_some() {
            end.inbox.push_back(arrival);
            return;
        }
        self.takes(to, arrival);
    }

    fn takes(&mut self, to: usize, arrival: Arrival) {
        let end = &mut self.ends[to];
        end.take(arrival, self.now);
        if end.is_reading {
            end.read(self.now, usize::MAX);
        }
        // The owner gives some of what is wanted.
        if let Some(wanted) = end.pipe.wants_window() {
            end.window = end.window.max(self.rng.within(end.window, wanted));
            end.pipe.grow(end.window);
        }
        self.send_from(to);
    }

    /// Stops the process of an end for a while, as SIGSTOP does.
    pub(crate) fn stop(&mut self, side: usize, time: Duration) {
        self.say(|| format!("{side} is stopped for {time:?}"));
        self.ends[side].stopped_until = Some(self.now + time);
        self.ends[side].was_stopped = true;
        // What the owner learns from its clock first.
        let is_long = time > LONG_STOP;
        self.ends[side].carrier_takes = if is_long { usize::MAX } else { self.ends[side].carrier_takes };
    }

    fn resume(&mut self) {
        for side in 0..2 {
            let Some(_) = self.ends[side].stopped_until.take_if(|at| *at <= self.now) else { continue };
            self.say(|| format!("{side} goes on"));
            let inbox = std::mem::take(&mut self.ends[side].inbox);
            if !inbox.is_empty() && self.clock_is_first(side) {
                self.alarm(side);
            }
            for arrival in inbox {
                self.takes(side, arrival);
            }
        }
    }

    /// Whether the process was stopped for so long that it may look at its clock first.
    fn clock_is_first(&mut self, side: usize) -> bool {
        let due = self.ends[side].pipe.next_alarm();
        due.is_some_and(|due| self.now > due + LONG_STOP - Duration::from_secs(2)) && self.rng.percent(70)
    }

    /// The process of an end is killed.
    pub(crate) fn crash(&mut self, side: usize) {
        self.say(|| format!("{side} is killed"));
        self.carrier.gone[side] = true;
        self.ends[side].stopped_until = None;
    }

    /// No more faults, and both owners read.
    pub(crate) fn heal(&mut self) {
        self.say(|| "no more faults".to_owned());
        self.carrier.heal(self.now);
        for side in 0..2 {
            if self.ends[side].stopped_until.is_some() {
                self.ends[side].stopped_until = Some(self.now);
            }
            self.ends[side].carrier_takes = usize::MAX;
            self.ends[side].is_reading = true;
        }
        self.resume();
        // What the carrier holds and what is offline comes now.
        let latest =
            self.carrier.latest.max(self.carrier.offline_until[0]).max(self.carrier.offline_until[1]);
        self.pass(latest.saturating_sub(self.now));
        for side in 0..2 {
            self.ends[side].read(self.now, usize::MAX);
        }
        self.send_all();
    }

    /// All that was written was read at the other end, and its writer knows.
    pub(crate) fn is_settled(&self) -> bool {
        let [one, other] = &self.ends;
        [(one, other), (other, one)].into_iter().all(|(from, to)| {
            from.written == to.read && from.control_set == to.control_got && from.pipe.all_confirmed()
        })
    }

    /// When one end is dead, the other must follow.
    pub(crate) fn both_die(&mut self) {
        let both_dead = |world: &World| {
            world
                .ends
                .iter()
                .all(|end| world.carrier.gone[end.side] || matches!(end.pipe.state(), State::Dead(_)))
        };
        let slack = self.carrier.latest.saturating_sub(self.now) + 4 * self.carrier.delay;
        let extra = if self.ends.iter().any(|end| end.was_stopped) {
            Duration::from_secs(40)
        } else {
            Duration::ZERO
        };
        assert!(self.pass_until(SILENT + slack + extra, both_dead), "one end is dead, and the other lives");
        for end in &self.ends {
            assert!(self.carrier.gone[end.side] || end.pipe.room() == 0);
        }
    }
}
