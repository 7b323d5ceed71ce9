//! Who has not shown the token is not heard, has a place of its own and little time.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::Auth;
use crate::limit::{AUTH_LINE_BYTES, AUTH_TIMEOUT, FLUSH_ON_CLOSE, PENDING_AUTH_MAX};
use crate::token::TokenDigest;

const HELLO_LINE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"_bus/hello","params":{"token":"right"}}"#;
const WORK: &str = r#"{"jsonrpc":"2.0","id":2,"method":"work"}"#;

fn guarded(limits: Limits) -> Config {
    let auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of("right") });
    Config { auth, ..config(vec![pool("agents", 1)], limits) }
}

fn guarded_bus() -> TestBus {
    TestBus::of(guarded(Limits::default()))
}

impl TestBus {
    /// It was told why, once, and is gone.
    fn is_turned_away(&mut self, link: Link, id: Value, reason: &str) {
        let error = self.sees_error(link, id, reason);
        assert_ne!(error["code"], -32000, "an IDE would start the login of the agent");
        self.sees_nothing(link);
        assert!(self.is_closed(link));
    }
}

#[test]
fn who_shows_the_token_is_heard() {
    let mut bus = guarded_bus();
    let client = bus.client();
    let worker = bus.worker(0);
    // In any chunking, with what follows it in the same breath.
    for byte in HELLO_LINE.bytes() {
        bus.sends_bytes(client, &[byte]);
    }
    bus.sends_bytes(client, format!("\r\n{WORK}\n").as_bytes());
    assert_eq!(bus.sees_json(client)["result"]["bus"], "stdio-bus");
    bus.answers(worker, "work", "1");
    assert_eq!(bus.sees_json(client)["result"], 1);
    bus.passes(AUTH_TIMEOUT * 2);
    assert!(!bus.is_closed(client));
    bus.is_idle();
}

#[test]
fn the_token_may_be_told_in_a_notification_and_the_pool_be_wrong() {
    let mut bus = guarded_bus();
    let (ann, ben) = (bus.client(), bus.client());
    bus.sends(ann, r#"{"jsonrpc":"2.0","method":"_bus/hello","params":{"token":"right"}}"#);
    bus.sends(ben, r#"{"jsonrpc":"2.0","id":1,"method":"_bus/hello","params":{"token":"right","pool":"x"}}"#);
    bus.sees_nothing(ann);
    bus.sees_error(ben, json!(1), "unknown_pool");
    for client in [ann, ben] {
        bus.sends(client, WORK);
        bus.answers(bus.worker(0), "work", "1");
        assert_eq!(bus.sees_json(client)["result"], 1);
    }
}

#[test]
fn nothing_that_a_stranger_says_reaches_anybody() {
    let hello =
        |params: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"_bus/hello","params":{params}}}"#);
    let cases = [
        (r#"{"jsonrpc":"2.0","id":7,"method":"work"}"#.to_owned(), json!(7)),
        (r#"{"jsonrpc":"2.0","id":"a","method":"_bus/status"}"#.to_owned(), json!("a")),
        (r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","id":7,"result":{}}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","id":7,"id":8,"method":"work"}"#.to_owned(), Value::Null),
        (r#"{"jsonrpc":"2.0","id":7,"method":"_bus/hello"}"#.to_owned(), json!(7)),
        (hello("{}"), json!(7)),
        (hello("[]"), json!(7)),
        (hello(r#"["right"]"#), json!(7)),
        (hello(r#"{"token":null}"#), json!(7)),
        (hello(r#"{"token":7}"#), json!(7)),
        (hello(r#"{"token":""}"#), json!(7)),
        (hello(r#"{"token":"Right"}"#), json!(7)),
        (hello(r#"{"token":"right "}"#), json!(7)),
        (hello(r#"{"token":"wrong","token":"right"}"#), json!(7)),
        (hello(r#"{"Token":"right"}"#), json!(7)),
        (hello(&format!(r#"{{"token":"right","client":"{}"}}"#, "x".repeat(AUTH_LINE_BYTES))), Value::Null),
    ];
    let mut bus = guarded_bus();
    for (line, id) in cases {
        let client = bus.client();
        bus.sends_bytes(client, format!("{line}\n{HELLO_LINE}\n{WORK}\n").as_bytes());
        bus.is_turned_away(client, id, "unauthorized");
    }
    bus.sees_nothing(bus.worker(0));
    assert!(bus.bus.is_empty());
}

#[test]
fn what_is_no_json_is_not_even_answered() {
    let mut bus = guarded_bus();
    for opening in ["GET / HTTP/1.1\r\n", "  [", "{broken}\n"] {
        let client = bus.client();
        bus.sends_bytes(client, format!("{opening}{HELLO_LINE}\n").as_bytes());
        bus.sees_nothing(client);
        assert!(bus.is_closed(client));
    }
}

#[test]
fn a_first_line_without_an_end_is_not_waited_for() {
    let mut bus = guarded_bus();
    let client = bus.client();
    bus.sends_bytes(client, &vec![b'{'; AUTH_LINE_BYTES + 2]);
    bus.is_turned_away(client, Value::Null, "unauthorized");
    // One that ends in the middle of it is no hello.
    let client = bus.client();
    bus.sends_bytes(client, &HELLO_LINE.as_bytes()[..30]);
    bus.happens(Event::Ended(client));
    assert!(bus.is_closed(client));
    bus.sees_nothing(client);
}

#[test]
fn who_is_late_is_told_once_and_closed() {
    let mut bus = guarded_bus();
    let (silent, slow) = (bus.client(), bus.client());
    bus.sends_bytes(slow, HELLO_LINE.as_bytes());
    bus.passes(AUTH_TIMEOUT - Duration::from_millis(1));
    assert!(!bus.is_closed(silent) && !bus.is_closed(slow));
    bus.passes(Duration::from_millis(1));
    bus.is_turned_away(silent, Value::Null, "unauthorized");
    bus.is_turned_away(slow, Value::Null, "unauthorized");
    assert!(bus.bus.is_empty());
}

#[test]
fn who_does_not_even_take_its_answer_is_closed_all_the_same() {
    let mut bus = guarded_bus();
    let client = bus.client();
    bus.deafens(client);
    bus.sends(client, WORK);
    bus.sends(client, HELLO_LINE);
    assert!(!bus.is_closed(client));
    bus.passes(FLUSH_ON_CLOSE);
    assert!(bus.is_closed(client) && bus.bus.is_empty());
}

#[test]
fn strangers_have_places_of_their_own_and_the_oldest_makes_room() {
    let mut bus = TestBus::of(guarded(Limits { max_clients: 2, ..Limits::default() }));
    let good = bus.client();
    bus.sends(good, HELLO_LINE);
    bus.sees(good);
    let silent: Vec<Link> = (0..PENDING_AUTH_MAX).map(|_| bus.client()).collect();
    let next = bus.client();
    bus.act();
    bus.is_turned_away(silent[0], Value::Null, "busy");
    assert!(!bus.is_closed(silent[1]));
    bus.sends(next, HELLO_LINE);
    assert_eq!(bus.sees_json(next)["result"]["bus"], "stdio-bus", "the strangers take no place of a client");
    // But the clients do.
    let third = bus.client();
    bus.sends(third, HELLO_LINE);
    bus.is_turned_away(third, json!(1), "busy");
    bus.sends(good, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(good)["result"], 1);
}

#[test]
fn even_those_who_take_no_answer_are_few() {
    let mut bus = guarded_bus();
    for _ in 0..10 * PENDING_AUTH_MAX {
        let client = bus.client();
        bus.deafens(client);
        bus.bus.check_invariants();
    }
}

#[test]
fn whoever_started_the_bus_needs_no_token() {
    let mut bus = guarded_bus();
    let owner = bus.bus.connect_owner(None, bus.now).expect("there is room");
    bus.sends(owner, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(owner)["result"], 1);
}

#[test]
fn a_new_token_is_asked_of_those_who_come_and_not_of_those_who_are_in() {
    let mut bus = guarded_bus();
    let (old, waiting) = (bus.client(), bus.client());
    bus.sends(old, HELLO_LINE);
    bus.sees(old);
    let mut changed = guarded(Limits::default());
    changed.auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of("new") });
    bus.bus.reload(&changed, bus.now);
    bus.sends(waiting, HELLO_LINE);
    bus.is_turned_away(waiting, json!(1), "unauthorized");
    bus.sends(old, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(old)["result"], 1);
    let new = bus.client();
    bus.sends(new, &HELLO_LINE.replace("right", "new"));
    assert_eq!(bus.sees_json(new)["result"]["bus"], "stdio-bus");
    // Without one, those who had to show it need not any more.
    let waiting = bus.client();
    bus.bus.reload(&Config { auth: None, ..changed }, bus.now);
    bus.passes(AUTH_TIMEOUT);
    bus.sends(waiting, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(waiting)["result"], 1);
}

#[test]
fn status_counts_clients_without_strangers_and_names_no_token() {
    let mut bus = guarded_bus();
    let (client, bad) = (bus.client(), bus.client());
    let _silent = bus.client();
    bus.sends(client, HELLO_LINE);
    bus.sees(client);
    bus.sends(bad, WORK);
    bus.sends(client, r#"{"id":1,"method":"_bus/status"}"#);
    let status = bus.sees(client);
    let told: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(
        (&told["result"]["clients"], &told["result"]["counters"]["unauthorized"]),
        (&json!(1), &json!(1))
    );
    assert!(!status.contains("right") && !status.contains("/token"), "{status}");
}
