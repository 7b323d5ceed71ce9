//! Single rules over a carrier that does only what the probe wants, with the time that each of them may take.

use std::time::Duration;

use cluster::pipe::{BYTES_PER_MICROSECOND, MIN_WINDOW, State};

use crate::end::MAX_WRITE;
use crate::world::World;

const MS: Duration = Duration::from_millis(1);

/// Some of the probes, in any order.
pub(crate) fn run(world: &mut World) {
    let mut probes: Vec<fn(&mut World, usize)> = vec![
        confirms_in_time,
        resends_after_silence,
        asks_for_what_is_missing,
        resends_on_connect,
        asks_on_connect,
        confirms_again,
        tells_of_room,
        wants_more_for_a_long_way,
        stays_open_while_idle,
        returns,
        outlives_a_stop,
        a_slow_carrier_is_not_filled,
        late_frames_do_not_replace_a_control_message,
    ];
    world.rng.shuffle(&mut probes);
    let count = world.rng.within(1, 4);
    for probe in probes.into_iter().take(count) {
        let side = world.rng.below(2);
        // What came before is forgotten.
        world.pass(Duration::from_secs(1));
        assert!(world.is_settled() && world.both_live(), "a good carrier, and something is missing");
        probe(world, side);
        world.heal();
        assert!(world.pass_until(Duration::from_secs(5), World::is_settled), "something does not arrive");
    }
}

/// Everything was read at the other end.
fn is_read(world: &World) -> bool {
    let [one, other] = &world.ends;
    one.written == other.read && other.written == one.read
}

fn writes(world: &mut World, side: usize, bytes: usize) {
    world.ends[side].write(bytes);
    world.send_all();
}

fn confirms_in_time(world: &mut World, side: usize) {
    world.say(|| format!("probe: {side} hears in time what has arrived"));
    writes(world, side, 10);
    let time = 200 * MS + 2 * world.carrier.delay + MS;
    assert!(world.pass_until(time, World::is_settled), "what has arrived is not confirmed");
}

/// One frame is lost, and nothing else is sent.
fn resends_after_silence(world: &mut World, side: usize) {
    world.say(|| format!("probe: a frame of {side} is lost"));
    world.carrier.lose_data[1 - side] = 1;
    writes(world, side, 10);
    // Who knows a long way waits longer.
    let round_trip = world.ends[side].pipe.statistics().round_trip.unwrap_or_default();
    let time = (2 * round_trip).clamp(400 * MS, 2000 * MS) + 2 * world.carrier.delay + MS;
    assert!(world.pass_until(time, is_read), "a lost frame is not sent again");
}

/// One frame is lost, and others follow.
fn asks_for_what_is_missing(world: &mut World, side: usize) {
    world.say(|| format!("probe: a frame of {side} is lost and others follow"));
    world.carrier.lose_data[1 - side] = 1;
    writes(world, side, 10);
    for _ in 0..5 {
        world.pass(5 * MS);
        writes(world, side, 10);
    }
    let time = 60 * MS + 3 * world.carrier.delay;
    assert!(world.pass_until(time, is_read), "what is missing is not asked for");
}

fn resends_on_connect(world: &mut World, side: usize) {
    world.say(|| format!("probe: {side} connects anew after a loss"));
    world.carrier.lose_data[1 - side] = 1;
    writes(world, side, 10);
    world.pass(MS);
    // The peer shall not ask for it.
    world.carrier.lose_rest = [true; 2];
    world.carrier.restart(side, world.now, MS);
    let time = 2 * MS + world.carrier.delay + MS;
    assert!(world.pass_until(time, is_read), "nothing is sent again over a new connection");
    world.carrier.lose_rest = [false; 2];
}

fn asks_on_connect(world: &mut World, side: usize) {
    world.say(|| format!("probe: the peer of {side} connects anew after a loss"));
    world.carrier.lose_data[1 - side] = 1;
    writes(world, side, 10);
    world.pass(MS);
    world.carrier.restart(1 - side, world.now, MS);
    let time = 2 * MS + 2 * world.carrier.delay + MS;
    assert!(world.pass_until(time, is_read), "nothing is asked for over a new connection");
}

/// What confirms a frame is lost. When it comes again, it is confirmed again.
fn confirms_again(world: &mut World, side: usize) {
    world.say(|| format!("probe: {side} does not hear what has arrived"));
    world.carrier.lose_rest[side] = true;
    writes(world, side, 10);
    world.pass(300 * MS + 2 * world.carrier.delay);
    world.carrier.lose_rest[side] = false;
    world.ends[side].pipe.carrier_connected(world.now);
    // The ping that asks for it is lost.
    world.carrier.lose_rest[1 - side] = true;
    let time = 55 * MS + 2 * world.carrier.delay;
    assert!(world.pass_until(time, World::is_settled), "what comes again is not confirmed again");
    world.carrier.lose_rest[1 - side] = false;
}

fn tells_of_room(world: &mut World, side: usize) {
    world.say(|| format!("probe: the peer of {side} does not read, and then it does"));
    world.ends[1 - side].is_reading = false;
    for _ in 0..40 {
        writes(world, side, 100_000);
        world.pass(10 * MS + 2 * world.carrier.delay);
    }
    let before = world.ends[side].written;
    assert!(before - world.ends[1 - side].read > 0 || world.ends[side].window < 1);
    world.pass(700 * MS);
    world.ends[1 - side].is_reading = true;
    world.ends[1 - side].read(world.now, usize::MAX);
    world.send_all();
    let time = 3 * world.carrier.delay + 3 * MS;
    assert!(world.pass_until(time, |world| world.ends[side].pipe.room() > 0), "room is not told");
    // A large window may hold some thousand short frames, and go through a small one.
    let [own, other] = [side, 1 - side].map(|side| world.ends[side].window);
    let trips = (60 + own / MIN_WINDOW + 4 * own / other) as u32;
    let time = trips * world.carrier.delay + 5 * MS;
    assert!(world.pass_until(time, is_read), "what had no room is not sent");
}

/// An end that has much to say gets a window that is not too small for how far away its peer is.
fn wants_more_for_a_long_way(world: &mut World, side: usize) {
    world.say(|| format!("probe: {side} gets the window that it wants"));
    // Until it knows how far away the peer is, it asks every two seconds.
    world.pass(3000 * MS);
    while world.ends[side].written <= world.ends[side].window as u64 / 2 {
        writes(world, side, MAX_WRITE);
        assert!(
            world.pass_until(Duration::from_secs(5), World::is_settled),
            "what is written does not arrive"
        );
    }
    let end = &mut world.ends[side];
    if let Some(wanted) = end.pipe.wants_window() {
        end.window = wanted;
        end.pipe.grow(wanted);
    }
    let round_trip = 2 * world.carrier.delay.as_micros() as usize;
    let (window, fits) = (world.ends[side].window, round_trip * BYTES_PER_MICROSECOND);
    assert!(window >= fits, "a window of {window} bytes for {round_trip} us");
}

fn stays_open_while_idle(world: &mut World, _: usize) {
    world.say(|| "probe: idle".to_owned());
    for _ in 0..70 {
        world.pass(1000 * MS);
        assert!(world.ends.iter().all(|end| *end.pipe.state() == State::Open), "idle, and suspect");
    }
    let frames: u64 = world.ends.iter().map(|end| end.pipe.statistics().frames_sent).sum();
    world.pass(60_000 * MS);
    let more = world.ends.iter().map(|end| end.pipe.statistics().frames_sent).sum::<u64>() - frames;
    assert!(more <= 124, "{more} frames in a minute without anything to say");
    assert!(world.ends.iter().all(|end| end.pipe.statistics().round_trip.is_some()));
}

/// The carrier is cut, and comes back before the peer is dead.
fn returns(world: &mut World, side: usize) {
    let time = Duration::from_millis(world.rng.within(7000, 25_000) as u64);
    world.say(|| format!("probe: a cut of {time:?}"));
    world.carrier.cut_until = [world.now + time; 2];
    writes(world, side, 30_000);
    let silent = 6001 * MS + 3 * world.carrier.delay;
    world.pass(silent);
    assert!(world.ends.iter().all(|end| *end.pipe.state() == State::Suspect), "silent, and not suspect");
    world.pass(time - silent);
    let time = 2000 * MS + 5 * world.carrier.delay + 5 * MS;
    assert!(world.pass_until(time, is_read), "the carrier is back, and the bytes are not");
    assert!(world.pass_until(time, |world| world.ends.iter().all(|end| *end.pipe.state() == State::Open)));
}

/// An end that hears nobody is stopped while it is suspect. When it goes on, what it hears first is its clock.
fn outlives_a_stop(world: &mut World, side: usize) {
    world.say(|| format!("probe: {side} is suspect and stopped"));
    // Before, it is heard.
    world.pass(3000 * MS);
    world.carrier.cut_until[side] = world.now + 21_000 * MS;
    world.pass(20_000 * MS);
    assert_eq!(*world.ends[side].pipe.state(), State::Suspect);
    world.stop(side, 20_000 * MS);
    world.pass(25_000 * MS);
    assert!(world.both_live(), "frames came, and it is dead");
}

/// Nothing is lost, it only takes long: then hardly anything is sent again.
fn a_slow_carrier_is_not_filled(world: &mut World, side: usize) {
    let before = world.ends[side].pipe.statistics();
    world.carrier.byte_time = Duration::from_nanos(world.rng.within(2000, 15_000) as u64);
    let byte_time = world.carrier.byte_time;
    world.say(|| format!("probe: a byte takes {byte_time:?}"));
    let mut bytes = 0;
    for _ in 0..10 {
        let written = world.ends[side].written;
        writes(world, side, 100_000);
        bytes += world.ends[side].written - written;
        world.pass(300 * MS);
    }
    assert!(world.pass_until(byte_time * bytes as u32 * 2 + 1000 * MS, is_read), "slower than the carrier");
    let after = world.ends[side].pipe.statistics();
    let (new, again) = (after.frames_sent - before.frames_sent, after.resent - before.resent);
    assert!(again <= 4 + new / 8, "{again} of {new} frames were sent again");
    world.carrier.byte_time = Duration::ZERO;
    world.pass(1000 * MS);
}

/// The latest control message is there; an older one comes late.
fn late_frames_do_not_replace_a_control_message(world: &mut World, side: usize) {
    world.say(|| format!("probe: control messages of {side}"));
    world.carrier.faults.reordered = 50;
    world.carrier.faults.repeated = 50;
    for _ in 0..10 {
        world.ends[side].set_control();
        let time = world.rng.within(1, 100) as u32 * MS;
        world.pass(time);
    }
    world.carrier.faults.reordered = 0;
    world.carrier.faults.repeated = 0;
    world.carrier.lose_rest[1 - side] = true;
    world.ends[side].set_control();
    world.pass(100 * MS);
    world.carrier.lose_rest[1 - side] = false;
    let time = 1000 * MS + 4 * world.carrier.delay;
    assert!(world.pass_until(time, World::is_settled), "a control message is lost");
}
