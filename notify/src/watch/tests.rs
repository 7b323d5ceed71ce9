//! Stories of the watch, and what holds for any events.

use serde_json::{Value, from_value, json};

use super::*;
use crate::seen::Seen;

const AFTER: Duration = Duration::from_secs(10);

/// A watch, and the bus as it sees it.
struct World {
    watch: Watch,
    now: Duration,
    seen: Sessions,
    next_call: u64,
}

impl World {
    /// One who wants to be told of all of it.
    fn new() -> World {
        World::of(&[want(&["asked", "ended", "failed"], &[])])
    }

    fn of(wants: &[Want]) -> World {
        let watch = Watch::new(wants.to_vec());
        World { watch, now: Duration::from_secs(100), seen: Sessions::new(), next_call: 0 }
    }

    fn hears(&mut self, event: Value) {
        let event = from_value(event).unwrap();
        self.watch.event(self.now, &event);
        if self.watch.sessions.len() < 100 && self.watch.plans.len() < 100 {
            self.is_sound();
        }
    }

    fn prompts(&mut self, session: &str) -> u64 {
        self.next_call += 1;
        let call = self.next_call;
        self.seen.entry(session.to_owned()).or_default();
        self.hears(json!({ "direction": "client->worker", "kind": "request", "method": "session/prompt", "call": call,
            "session": session, "pool": "a" }));
        call
    }

    fn ends(&mut self, session: &str, call: u64, stop: &str) {
        self.hears(
            json!({ "direction": "worker->client", "kind": "result", "call": call, "session": session,
            "stop": stop }),
        );
    }

    fn takes_turn(&mut self, session: &str) {
        let call = self.prompts(session);
        self.ends(session, call, "end_turn");
    }

    /// The agent asks one client.
    fn asks(&mut self, session: &str, id: u64) -> u64 {
        self.next_call += 1;
        let call = self.next_call;
        self.hears(
            json!({ "direction": "worker->client", "kind": "request", "method": "session/request_permission",
            "call": call, "id": id, "session": session, "pool": "a" }),
        );
        call
    }

    fn answers(&mut self, session: &str, call: u64) {
        self.hears(
            json!({ "direction": "client->worker", "kind": "result", "call": call, "session": session }),
        );
    }

    fn has_questions(&mut self, session: &str, questions: usize) {
        self.seen.entry(session.to_owned()).or_default().questions = questions;
    }

    /// What is told after so many seconds, as `KIND SESSION`.
    fn after(&mut self, seconds: u64) -> Vec<String> {
        self.now += Duration::from_secs(seconds);
        let due = self.watch.take_due(self.now, &self.seen);
        self.is_sound();
        assert!(self.watch.next_due().is_none_or(|at| at > self.now));
        due.into_iter().map(|due| format!("{} {}", due.kind.name(), due.session)).collect()
    }

    /// Every plan is about something that is known, and the other way round.
    fn is_sound(&self) {
        let watch = &self.watch;
        let of_sessions: BTreeSet<_> = watch.sessions.values().flat_map(Session::plans).copied().collect();
        let planned: BTreeSet<_> = watch.plans.keys().copied().collect();
        assert_eq!(of_sessions, planned);
        assert!(watch.sessions.len() <= SESSIONS_MAX && watch.plans.len() <= PLANS_MAX);
        for session in watch.sessions.values() {
            assert!(session.questions.len() <= PER_SESSION_MAX && session.prompts.len() <= PER_SESSION_MAX);
            assert!(session.questions.iter().all(|question| question.calls.len() <= PER_SESSION_MAX));
            assert!(!session.is_empty());
        }
    }
}

fn want(kinds: &[&str], pools: &[&str]) -> Want {
    let kinds = kinds.iter().map(|kind| from_value(json!(kind)).unwrap()).collect();
    Want { kinds, after: AFTER, pools: pools.iter().map(|pool| (*pool).into()).collect() }
}

#[test]
fn a_question_is_told_once_after_its_time() {
    let mut world = World::new();
    world.prompts("s1");
    world.asks("s1", 7);
    world.has_questions("s1", 1);
    assert_eq!(world.watch.next_due(), Some(world.now + AFTER));
    assert_eq!(world.after(9), [""; 0]);
    assert_eq!(world.after(1), ["asked s1"]);
    assert_eq!(world.after(100), [""; 0]);
    // A client that has come back is asked the same again.
    world.asks("s1", 7);
    assert_eq!(world.after(100), [""; 0]);
}

#[test]
fn a_question_that_is_answered_in_time_is_not_told() {
    let mut world = World::new();
    world.prompts("s1");
    let call = world.asks("s1", 7);
    world.answers("s1", call);
    assert_eq!(world.after(10), [""; 0]);
    // Another one under the same id, as an agent may count.
    world.asks("s1", 7);
    world.has_questions("s1", 1);
    assert_eq!(world.after(10), ["asked s1"]);
}

#[test]
fn an_answer_that_decides_nothing_leaves_the_question_open() {
    let mut world = World::new();
    let (owner, _guest) = (world.asks("s1", 7), world.asks("s1", 7));
    world.answers("s1", owner);
    // One of two has abstained: the bus still has the question.
    world.has_questions("s1", 1);
    assert_eq!(world.after(10), ["asked s1"]);
}

#[test]
fn an_answered_question_is_not_taken_for_one_that_was_asked_later() {
    let mut world = World::new();
    world.prompts("s1");
    let call = world.asks("s1", 7);
    world.now += Duration::from_secs(5);
    world.answers("s1", call);
    world.asks("s1", 8);
    world.has_questions("s1", 1);
    assert_eq!(world.after(5), [""; 0], "the first is answered");
    assert_eq!(world.after(5), ["asked s1"]);
}

#[test]
fn a_question_that_nobody_is_there_for_is_told() {
    let mut world = World::new();
    let asked = json!({ "direction": "worker->bus", "kind": "request", "method": "elicitation/create", "id": "q",
        "session": "s1", "pool": "a" });
    world.hears(asked);
    world.has_questions("s1", 1);
    assert_eq!(world.after(10), ["asked s1"]);
    // What the bus answers by itself is of no session.
    let own = json!({ "direction": "worker->bus", "kind": "request", "method": "session/request_permission", "id": 1 });
    world.hears(own);
    assert_eq!(world.watch.next_due(), None);
}

#[test]
fn the_end_of_a_turn_is_told_unless_somebody_goes_on() {
    let mut world = World::new();
    world.takes_turn("s1");
    world.takes_turn("s2");
    assert_eq!(world.after(9), [""; 0]);
    let call = world.prompts("s1");
    assert_eq!(world.after(1), ["ended s2"]);
    world.ends("s1", call, "max_tokens");
    assert_eq!(world.after(10), ["ended s1"]);
    assert!(world.watch.sessions.is_empty());
}

#[test]
fn a_turn_is_over_with_the_last_of_its_prompts() {
    let mut world = World::new();
    let (first, second) = (world.prompts("s1"), world.prompts("s1"));
    world.ends("s1", first, "end_turn");
    assert_eq!(world.watch.next_due(), None);
    world.ends("s1", second, "end_turn");
    assert_eq!(world.after(10), ["ended s1"]);
}

#[test]
fn a_turn_that_somebody_has_stopped_or_a_session_that_was_closed_is_not_told() {
    let mut world = World::new();
    let call = world.prompts("s1");
    world.ends("s1", call, "cancelled");
    let call = world.prompts("s2");
    world.hears(json!({ "direction": "worker->client", "kind": "error", "call": call, "session": "s2",
            "code": CANCELLED }));
    world.takes_turn("s3");
    world.hears(
        json!({ "direction": "client->worker", "kind": "request", "method": "session/close", "call": 99,
        "session": "s3" }),
    );
    assert_eq!(world.after(10), [""; 0]);
    assert!(world.watch.sessions.is_empty());
}

#[test]
fn a_turn_that_fails_is_told_also_when_its_session_is_gone() {
    let mut world = World::new();
    let call = world.prompts("s1");
    world.hears(
        json!({ "direction": "bus->client", "kind": "error", "call": call, "session": "s1", "code": -32050,
        "reason": "worker_lost" }),
    );
    world.seen.clear();
    assert_eq!(world.after(10), ["failed s1"]);
    // An error to something else is no failure of a turn.
    world.hears(
        json!({ "direction": "bus->client", "kind": "error", "call": 98, "session": "s1", "code": -32051 }),
    );
    assert_eq!(world.watch.next_due(), None);
}

#[test]
fn an_error_of_the_bus_names_no_session_and_is_known_by_its_call() {
    let mut world = World::new();
    let call = world.prompts("s1");
    world.hears(json!({ "direction": "bus->client", "kind": "error", "call": call + 7, "reason": "busy" }));
    world
        .hears(json!({ "direction": "bus->client", "kind": "error", "call": call, "reason": "worker_lost" }));
    assert_eq!(world.after(10), ["failed s1"]);
}

#[test]
fn a_turn_that_is_lost_without_a_word_is_told_and_one_that_only_takes_long_is_not() {
    let mut world = World::new();
    for session in ["s1", "s2", "s3"] {
        world.prompts(session);
        world.seen.insert(session.to_owned(), Seen { worker: Some(0), calls: 1, ..Seen::default() });
    }
    let looks = |world: &mut World, seconds| {
        world.now += Duration::from_secs(seconds);
        let is_in_doubt = world.watch.is_in_doubt(world.now);
        if is_in_doubt {
            world.watch.check(world.now, &world.seen);
            world.is_sound();
        }
        is_in_doubt
    };
    assert!(!looks(&mut world, 9) && looks(&mut world, 1));
    assert_eq!(world.watch.next_check(), Some(world.now + FIRST_PAUSE));
    assert!(looks(&mut world, 10));
    assert_eq!(world.watch.next_check(), Some(world.now + FIRST_PAUSE * 2), "it looks less and less often");
    // The agent of the first is gone, the second is opened again, the third has ended with its client.
    world.seen.insert("s1".to_owned(), Seen::default());
    world.seen.insert("s2".to_owned(), Seen { calls: 1, ..Seen::default() });
    world.seen.remove("s3");
    assert!(looks(&mut world, 20));
    assert_eq!(world.watch.next_due(), None, "their ends may be on their way");
    world.ends("s3", 3, "cancelled");
    assert!(looks(&mut world, 10));
    assert_eq!(world.after(10), ["failed s1"]);
    assert_eq!(world.watch.sessions.keys().collect::<Vec<_>>(), ["s2"]);
    // With the last turn the looks end.
    world.ends("s2", 2, "cancelled");
    looks(&mut world, 1000);
    assert_eq!(world.watch.next_check(), None);
}

#[test]
fn a_question_goes_with_the_turn_that_lost_its_agent() {
    let mut world = World::new();
    let call = world.prompts("s1");
    world.asks("s1", 0);
    world.hears(json!({ "direction": "bus->client", "kind": "error", "call": call, "session": "s1" }));
    assert_eq!(world.after(10), ["failed s1"]);
    // The next life of the agent counts from the beginning.
    world.prompts("s1");
    world.asks("s1", 0);
    world.has_questions("s1", 1);
    assert_eq!(world.after(10), ["asked s1"]);
}

#[test]
fn a_turn_of_the_second_version_is_over_when_the_session_is_idle() {
    let mut world = World::new();
    let state = |state: &str, stop: Option<&str>| {
        json!({ "direction": "worker->client", "kind": "notification", "method": "session/update", "session": "s1",
            "update": "state_update", "state": state, "stop": stop })
    };
    let accepted =
        |call: u64| json!({ "direction": "worker->client", "kind": "result", "call": call, "session": "s1" });
    for (stop, told) in
        [("end_turn", vec!["ended s1"]), ("error", vec!["failed s1"]), ("cancelled", Vec::new())]
    {
        let call = world.prompts("s1");
        world.hears(accepted(call));
        world.hears(state("running", None));
        assert_eq!(world.after(20), [""; 0]);
        world.hears(state("idle", Some(stop)));
        world.hears(state("idle", Some(stop)));
        assert_eq!(world.after(10), told);
        // The answer may come behind the end.
        let call = world.prompts("s1");
        world.hears(state("idle", Some(stop)));
        world.hears(accepted(call));
        assert_eq!(world.after(10), told);
    }
    // Who takes the session up is told its state.
    world.hears(state("idle", Some("end_turn")));
    assert!(world.watch.sessions.is_empty());
}

#[test]
fn each_is_told_what_it_wants_when_it_wants_it() {
    let late = Want { after: AFTER * 3, ..want(&["ended"], &["a"]) };
    let mut world =
        World::of(&[want(&["asked"], &[]), want(&["ended"], &["b"]), late, want(&["ended"], &["b", "a"])]);
    world.takes_turn("s1");
    let told = |world: &mut World| {
        world.now += AFTER;
        let due = world.watch.take_due(world.now, &world.seen);
        due.into_iter().map(|due| due.want).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut world), [3]);
    assert_eq!(told(&mut world), [0; 0]);
    assert_eq!(told(&mut world), [2]);
    world.takes_turn("s1");
    assert_eq!(told(&mut world), [3]);
    world.prompts("s1");
    assert_eq!(world.watch.next_due(), None, "those who wait longer are not told either");
}

#[test]
fn what_was_asked_before_anybody_watched_is_told_once() {
    let mut world = World::new();
    world.has_questions("s1", 2);
    world.has_questions("s2", 0);
    world.watch.compare(world.now, &world.seen);
    // Its event was on its way meanwhile.
    world.asks("s1", 7);
    world.watch.compare(world.now, &world.seen);
    assert_eq!(world.after(10), ["asked s1"]);
    assert_eq!(world.after(100), [""; 0]);
    world.asks("s1", 8);
    assert_eq!(world.after(10), ["asked s1"], "a new one");
}

#[test]
fn what_ended_while_events_were_missed_is_forgotten() {
    let mut world = World::new();
    for session in ["s1", "s2", "s3"] {
        world.prompts(session);
        world.asks(session, 7);
        world.has_questions(session, 1);
    }
    world.seen.remove("s1");
    world.seen.insert("s2".to_owned(), Seen::default());
    world.seen.insert("s3".to_owned(), Seen { questions: 1, calls: 1, ..Seen::default() });
    world.watch.compare(world.now, &world.seen);
    world.is_sound();
    assert_eq!(world.watch.sessions.keys().collect::<Vec<_>>(), ["s3"]);
    assert_eq!(world.after(10), ["asked s3"]);
}

#[test]
fn memory_is_bounded_and_what_has_no_room_is_counted() {
    let mut world = World::new();
    for number in 0..SESSIONS_MAX as u64 + 5 {
        world.prompts(&format!("s{number}"));
    }
    assert_eq!((world.watch.sessions.len(), world.watch.dropped()), (SESSIONS_MAX, 5));
    // Questions that were told make room.
    let mut world = World::new();
    for number in 0..SESSIONS_MAX as u64 {
        let session = format!("s{number}");
        world.asks(&session, 1);
        world.has_questions(&session, 1);
    }
    assert_eq!(world.after(10).len(), SESSIONS_MAX);
    world.takes_turn("new");
    assert_eq!((world.watch.dropped(), world.after(10)), (0, vec!["ended new".to_owned()]));
    // So many askings of one question, questions of one session, and prompts.
    let mut world = World::of(&vec![want(&["asked"], &[]); 200]);
    for number in 0..PER_SESSION_MAX as u64 * 2 {
        world.asks("s1", 1);
        world.asks("s1", number);
        world.prompts("s1");
    }
    world.is_sound();
    assert!(world.watch.dropped() > 0 && world.watch.plans.len() <= PLANS_MAX);
}

#[test]
fn any_events_in_any_order_leave_a_sound_watch() {
    let (mut seed, mut told) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let late = Want { after: AFTER / 3, ..want(&["asked", "failed"], &["a"]) };
    let mut world = World::of(&[want(&["asked", "ended", "failed"], &[]), late]);
    for _ in 0..20_000 {
        let session = format!("s{}", random(4));
        let (call, id) = (random(12), random(3));
        let kind = ["request", "result", "error", "notification"][random(4) as usize];
        let direction =
            ["client->worker", "worker->client", "worker->bus", "bus->client"][random(4) as usize];
        let methods =
            ["session/prompt", "session/request_permission", "session/close", "session/update", "x"];
        let stop = [None, Some("end_turn"), Some("cancelled"), Some("error")][random(4) as usize];
        let (pool, state) = (["a", "b"][random(2) as usize], ["idle", "running"][random(2) as usize]);
        let event = json!({ "direction": direction, "kind": kind, "method": methods[random(5) as usize],
            "call": call, "id": id, "session": session, "pool": pool, "update": "state_update", "state": state,
            "stop": stop });
        world.hears(event);
        match random(10) {
            0 => told += world.after(random(12)).len(),
            1 => {
                world.watch.compare(world.now, &world.seen);
                world.is_sound();
            }
            4 => {
                world.watch.is_in_doubt(world.now);
                world.watch.check(world.now, &world.seen);
                world.is_sound();
            }
            2 => world.has_questions(&session, random(3) as usize),
            3 => drop(world.seen.remove(&session)),
            _ => {}
        }
    }
    assert!(told > 300, "{told}");
    world.seen.clear();
    for _ in 0..2 {
        world.now += LONGEST_PAUSE;
        world.watch.check(world.now, &world.seen);
    }
    world.after(1000);
    assert!(world.watch.plans.is_empty() && world.watch.sessions.is_empty());
}
