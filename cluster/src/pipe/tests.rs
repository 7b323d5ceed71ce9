//! Stories of two ends, and of one end with a peer that lies.

use std::collections::VecDeque;
use std::time::Duration;

use super::*;

const START: Moment = Duration::ZERO;

fn ms(count: u64) -> Moment {
    Duration::from_millis(count)
}

fn pair() -> (Pipe, Pipe) {
    (Pipe::new(7, Config::new(Side::Edge), START), Pipe::new(7, Config::new(Side::Node), START))
}

/// All frames that one end has to send.
fn frames(from: &mut Pipe, now: Moment) -> Vec<Frame> {
    std::iter::from_fn(|| from.next_frame(now)).collect()
}

/// Gives one end everything that the other has to send.
fn carry(from: &mut Pipe, to: &mut Pipe, now: Moment) -> usize {
    let frames = frames(from, now);
    let count = frames.len();
    for frame in frames {
        to.frame_received(frame.bytes, now).expect("a good frame");
    }
    count
}

/// Carries in both directions until nobody has anything to say.
fn settle(one: &mut Pipe, other: &mut Pipe, now: Moment) {
    while carry(one, other, now) + carry(other, one, now) > 0 {}
}

fn read(from: &mut Pipe, now: Moment) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = from.take_received() {
        from.consumed(bytes.len(), now);
        all.extend_from_slice(&bytes);
    }
    all
}

#[test]
fn bytes_arrive_in_both_directions() {
    let (mut edge, mut node) = pair();
    assert_eq!(edge.write(b"hello"), 5);
    assert_eq!(node.write(b"world"), 5);
    settle(&mut edge, &mut node, START);
    assert_eq!(read(&mut node, START), b"hello");
    assert_eq!(read(&mut edge, START), b"world");
}

#[test]
fn a_stream_of_many_windows_arrives_whole_and_held_bytes_stay_below_two_windows() {
    let (mut edge, mut node) = pair();
    let bytes: Vec<u8> = (0..5 * DEFAULT_WINDOW).map(|at| (at % 251) as u8).collect();
    let (mut written, mut got) = (0, Vec::new());
    while got.len() < bytes.len() {
        written += edge.write(&bytes[written..]);
        settle(&mut edge, &mut node, START);
        assert!(edge.held_bytes() <= DEFAULT_WINDOW && node.held_bytes() <= DEFAULT_WINDOW);
        got.extend(read(&mut node, START));
    }
    assert!(got == bytes);
}

/// A way in one direction, on which everything takes 50 ms.
#[derive(Default)]
struct Way(VecDeque<(Moment, Bytes)>);

impl Way {
    fn carry(&mut self, from: &mut Pipe, to: &mut Pipe, now: Moment) {
        while self.0.front().is_some_and(|(at, _)| *at <= now) {
            let (_, frame) = self.0.pop_front().expect("there is one");
            to.frame_received(frame, now).expect("a good frame");
        }
        self.0.extend(frames(from, now).into_iter().map(|frame| (now + ms(50), frame.bytes)));
    }
}

/// How many bytes a second arrive, of as many as the pipe takes, once it knows the way.
fn speed(grants: impl Fn(&mut Pipe)) -> u64 {
    let (mut edge, mut node) = pair();
    let (mut there, mut back) = (Way::default(), Way::default());
    let (mut got, bytes) = (0, vec![b'x'; MAX_WINDOW]);
    for now in (0..4000).map(ms) {
        edge.write(&bytes);
        there.carry(&mut edge, &mut node, now);
        let arrived = read(&mut node, now).len() as u64;
        got += if now < ms(2000) { 0 } else { arrived };
        back.carry(&mut node, &mut edge, now);
        for end in [&mut edge, &mut node] {
            end.alarm(now);
            grants(end);
        }
    }
    assert_eq!((edge.statistics().resent, node.statistics().rejected), (0, 0));
    got / 2
}

#[test]
fn a_window_grows_with_the_way() {
    assert!(speed(|_| {}) < 12_000_000);
    let grants = |end: &mut Pipe| {
        if let Some(wanted) = end.wants_window() {
            end.grow(wanted);
        }
    };
    let far = speed(grants);
    assert!(far > 30_000_000, "{far} bytes a second");
}

#[test]
fn a_lost_frame_is_asked_for_and_sent_again_as_it_was() {
    let (mut edge, mut node) = pair();
    settle(&mut edge, &mut node, START);
    edge.write(b"one ");
    let lost = frames(&mut edge, ms(1));
    edge.write(b"two");
    carry(&mut edge, &mut node, ms(2));
    let asks = frames(&mut node, ms(2));
    assert_eq!(asks.len(), 1);
    edge.frame_received(asks[0].bytes.clone(), ms(3)).expect("a nack");
    let again = frames(&mut edge, ms(3));
    assert_eq!(again[0], lost[0]);
    for frame in again {
        node.frame_received(frame.bytes, ms(3)).expect("a good frame");
    }
    assert_eq!(read(&mut node, ms(3)), b"one two");
}

#[test]
fn what_is_not_confirmed_is_sent_again_after_400_ms_and_over_a_new_connection() {
    for reconnects in [false, true] {
        let (mut edge, mut node) = pair();
        settle(&mut edge, &mut node, START);
        edge.write(b"hello");
        assert_eq!(frames(&mut edge, START).len(), 1);
        if reconnects {
            edge.carrier_connected(ms(5));
        } else {
            assert_eq!(edge.next_alarm(), Some(ms(400)));
            edge.alarm(ms(400));
        }
        carry(&mut edge, &mut node, ms(400));
        assert_eq!(read(&mut node, ms(400)), b"hello");
    }
}

#[test]
fn a_silent_peer_is_pinged_then_suspect_then_dead_and_is_told() {
    let (mut edge, mut node) = pair();
    let mut pings = 0;
    while let Some(due) = edge.next_alarm() {
        edge.alarm(due);
        pings += frames(&mut edge, due).iter().filter(|frame| frame.wants_reply).count();
        let expected = match due.as_secs() {
            0..6 => State::Open,
            6..30 => State::Suspect,
            _ => State::Dead(Reason::Silent),
        };
        assert_eq!(*edge.state(), expected, "{due:?}");
    }
    assert!((14..16).contains(&pings), "{pings}");
    edge.frame_received(node.next_frame(START).expect("the first word of the node").bytes, ms(40_000))
        .expect("it");
    carry(&mut edge, &mut node, ms(40_000));
    assert_eq!(node.death(), Some(&Reason::Reset("it has not answered for 30 s".to_owned())));
    assert!(node.next_alarm().is_none() && node.next_frame(ms(40_000)).is_none() && node.is_over());
}

#[test]
fn a_suspect_peer_that_is_heard_again_gets_what_it_missed() {
    let (mut edge, mut node) = pair();
    settle(&mut edge, &mut node, START);
    edge.write(b"hello");
    frames(&mut edge, START);
    edge.no_responders();
    assert_eq!(*edge.state(), State::Suspect);
    node.carrier_connected(ms(20_000));
    settle(&mut node, &mut edge, ms(20_000));
    assert_eq!(*edge.state(), State::Open);
    assert_eq!(read(&mut node, ms(20_000)), b"hello");
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    let (mut edge, mut node) = pair();
    edge.write(b"last words");
    edge.finish();
    assert_eq!(edge.room(), 0);
    settle(&mut edge, &mut node, START);
    assert!(!node.has_ended(), "its bytes were not taken yet");
    assert_eq!(read(&mut node, START), b"last words");
    assert!(node.has_ended() && !edge.has_ended());
    node.write(b"an answer");
    node.finish();
    settle(&mut edge, &mut node, START);
    assert_eq!(read(&mut edge, START), b"an answer");
    assert_eq!((edge.state(), node.state()), (&State::Finished, &State::Finished));
    assert!(!edge.is_over());
    while let Some(due) = edge.next_alarm() {
        edge.alarm(due);
    }
    assert!(edge.is_over() && edge.next_frame(ms(60_000)).is_none());
}

#[test]
fn the_latest_control_message_arrives_and_is_told_once() {
    let (mut edge, mut node) = pair();
    assert!(node.set_control(b"{\"room\":1}"));
    frames(&mut node, START);
    assert!(node.set_control(b"{\"room\":2}"));
    assert_eq!(frames(&mut node, ms(1)).len(), 0, "the first is on its way");
    node.alarm(ms(400));
    settle(&mut node, &mut edge, ms(400));
    assert_eq!(edge.take_control().as_deref(), Some(&b"{\"room\":2}"[..]));
    node.alarm(ms(1000));
    settle(&mut node, &mut edge, ms(1000));
    assert_eq!(edge.take_control(), None);
    assert!(!node.set_control(&[b' '; MAX_CONTROL_BYTES + 1]));
}

#[test]
fn a_frame_of_a_pipe_that_is_gone_is_answered_with_its_end() {
    let (mut edge, _) = pair();
    let frame = frames(&mut edge, START).remove(0).bytes;
    let answer = reset_unknown(&frame, "no such pipe").expect("an answer");
    assert_eq!(reset_unknown(&answer, "no such pipe"), None);
    assert_eq!(reset_unknown(b"what", "no such pipe"), None);
    edge.frame_received(answer, START).expect("an end");
    assert_eq!(edge.death(), Some(&Reason::Reset("no such pipe".to_owned())));
}
