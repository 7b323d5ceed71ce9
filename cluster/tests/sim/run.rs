//! One run: faults, quiet, probes of single rules over a good carrier, and an end.

use std::time::Duration;

use cluster::pipe::{Reason, State};

use crate::carrier::Faults;
use crate::end::MAX_WRITE;
use crate::liar;
use crate::probes;
use crate::world::World;

/// This bit of a seed makes one end a liar.
pub(crate) const LIAR: u64 = 1 << 32;
/// After this long without faults everything has arrived.
const QUIET: Duration = Duration::from_secs(5);

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The hash of its history.
    pub(crate) hash: u64,
    /// How many things happened.
    pub(crate) steps: usize,
    /// The pipe outlived the faults.
    pub(crate) survived: bool,
}

pub(crate) fn run(seed: u64, print: bool) -> Run {
    if seed & LIAR != 0 {
        return liar::run(seed, print);
    }
    let mut world = World::new(seed, print);
    for _ in 0..world.rng.within(10, 80) {
        world.fault_step();
    }
    world.heal();
    let survived = world.both_live();
    if survived {
        let settled = world.pass_until(QUIET, World::is_settled);
        assert!(settled || !world.both_live(), "something does not arrive");
        // An end that was stopped for long may be dead for its peer, and hear it only now.
        if world.both_live() {
            probes::run(&mut world);
            world.comes_to_an_end();
        }
    }
    if !world.ends.iter().all(|end| *end.pipe.state() == State::Finished) {
        world.both_die();
    }
    Run { hash: world.hash(), steps: world.steps, survived }
}

impl World {
    fn fault_step(&mut self) {
        let side = self.rng.below(2);
        match self.rng.weighted(&[300, 200, 30, 30, 20, 40, 20, 15, 15, 10, 10, 10, 10, 2]) {
            0 => {
                let most = self.rng.one(&[10, 1000, 20_000, MAX_WRITE]);
                let bytes = self.rng.within(1, most);
                self.ends[side].write(bytes);
            }
            1 => self.some_time(30_000),
            2 => self.some_time(3_000_000),
            3 => {
                let is_reading = !self.ends[side].is_reading;
                self.ends[side].is_reading = is_reading;
                let some = self.rng.below(50_000);
                self.ends[side].read(self.now, if is_reading { usize::MAX } else { some });
            }
            4 => self.ends[side].carrier_takes = self.rng.one(&[0, 1, 5, usize::MAX]),
            5 => self.ends[side].set_control(),
            6 => self.new_faults(),
            7 => {
                let time = self.some_seconds();
                self.say(|| format!("nothing gets to {side} for {time:?}"));
                self.carrier.cut_until[side] = self.now + time;
                if self.rng.percent(50) {
                    self.carrier.cut_until[1 - side] = self.now + time;
                }
            }
            8 => {
                let time = self.some_seconds();
                self.say(|| format!("everything to {side} waits for {time:?}"));
                self.carrier.held_until[side] = self.now + time;
            }
            9 => {
                let time = self.some_seconds();
                self.say(|| format!("the connection of {side} breaks for {time:?}"));
                self.carrier.restart(side, self.now, time);
                if self.rng.percent(40) {
                    let time = self.some_seconds();
                    self.carrier.restart(1 - side, self.now, time);
                }
            }
            10 if self.ends[side].stopped_until.is_none() => {
                let time = self.some_seconds();
                self.stop(side, time);
            }
            11 => self.many_small(side),
            12 => {
                let nanos = self.rng.within(100, 20_000) as u64;
                self.carrier.byte_time = Duration::from_nanos(if self.rng.percent(60) { nanos } else { 0 });
            }
            13 => {
                self.ends[side].pipe.kill(Reason::Replaced);
            }
            _ => {}
        }
        self.send_all();
    }

    fn some_time(&mut self, most_micros: usize) {
        let micros = self.rng.below(most_micros) as u64;
        self.pass(Duration::from_micros(micros));
    }

    /// A time that is mostly short, and sometimes longer than a pipe lives.
    fn some_seconds(&mut self) -> Duration {
        let most = self.rng.one(&[20, 500, 5000, 20_000, 60_000]);
        Duration::from_millis(self.rng.below(most) as u64)
    }

    fn new_faults(&mut self) {
        let rng = &mut self.rng;
        let percent = |rng: &mut crate::rng::Rng| if rng.percent(50) { 0 } else { rng.below(30) };
        self.carrier.faults = Faults {
            lost: percent(rng),
            repeated: percent(rng),
            reordered: percent(rng),
            corrupted: percent(rng),
            foreign: percent(rng),
            returned: percent(rng),
            jitter: Duration::from_micros(rng.below(20_000) as u64),
        };
        let faults = self.carrier.faults;
        self.say(|| format!("{faults:?}"));
    }

    /// Many small frames, more than may be on their way.
    fn many_small(&mut self, side: usize) {
        for _ in 0..self.rng.within(1, 400) {
            self.ends[side].write(1);
            self.send_all();
        }
    }

    /// The end of a pipe that has lived until now.
    fn comes_to_an_end(&mut self) {
        let side = self.rng.below(2);
        match self.rng.below(6) {
            0 => {
                self.crash(side);
                // Nobody is there, and the next ping finds that.
                let delay = 3 * self.carrier.delay;
                let found = Duration::from_secs(2) + delay;
                let is_suspect = |world: &World| *world.ends[1 - side].pipe.state() == State::Suspect;
                assert!(self.pass_until(found, is_suspect), "nobody has noticed that the peer is gone");
            }
            1 => {
                self.say(|| "the carrier is cut for good".to_owned());
                let until = self.now + Duration::from_secs(1000);
                let only_one = self.rng.percent(50);
                self.carrier.cut_until[side] = until;
                if !only_one {
                    self.carrier.cut_until[1 - side] = until;
                }
                self.pass(Duration::from_secs(31));
                assert!(!self.ends[side].is_alive(), "a peer that is never heard is not dead");
            }
            2 => {
                self.say(|| format!("{side} is told to end"));
                self.ends[side].pipe.kill(Reason::Owner("the bus has closed".to_owned()));
                let delay = 3 * self.carrier.delay;
                let is_told = |world: &World| !world.ends[1 - side].is_alive();
                assert!(self.pass_until(delay, is_told), "the peer was not told");
                let told = self.ends[1 - side].pipe.death().map(ToString::to_string);
                assert_eq!(told.as_deref(), Some("the bus has closed"));
            }
            _ => self.both_finish(side),
        }
    }

    /// Both directions end, one after the other, with bytes that wait, and the last frames are lost.
    fn both_finish(&mut self, first: usize) {
        let before = self.rng.percent(50);
        for side in [first, 1 - first] {
            // More than may be sent at once.
            let bytes = self.rng.below(MAX_WRITE);
            self.ends[side].write(bytes);
            if self.rng.percent(50) {
                self.send_all();
            }
            self.ends[side].finish();
            if side == first && before {
                self.pass(Duration::from_millis(300));
                assert!(!self.ends[first].has_finished || self.ends[1 - first].is_alive());
            }
        }
        if self.rng.percent(60) {
            self.carrier.lose_rest[self.rng.below(2)] = true;
            let time = Duration::from_millis(self.rng.below(4000) as u64);
            self.pass(time);
            self.carrier.lose_rest = [false; 2];
        }
        let finished = |world: &World| world.ends.iter().all(|end| *end.pipe.state() == State::Finished);
        assert!(
            self.pass_until(Duration::from_secs(10), finished),
            "both directions ended, and it is not finished"
        );
        for side in 0..2 {
            self.ends[side].read(self.now, usize::MAX);
            assert!(self.ends[side].pipe.has_ended() && self.ends[side].read == self.ends[1 - side].written);
        }
        self.pass(Duration::from_secs(10));
        assert!(self.ends.iter().all(|end| end.pipe.is_over()), "a finished pipe is never over");
    }
}
