//! Clients that have not shown the token: they reach nothing, have few slots and little time.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::config::Auth;
use crate::limit::{AUTH_LINE_BYTES, AUTH_TIMEOUT, FLUSH_ON_CLOSE, PENDING_AUTH_MAX};
use crate::token::TokenDigest;

const HELLO_LINE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"_bus/hello","params":{"token":"right"}}"#;
const WORK: &str = r#"{"jsonrpc":"2.0","id":2,"method":"work"}"#;

fn with_token(limits: Limits) -> Config {
    let auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of("right") });
    Config { auth, ..limited(limits) }
}

fn bus_with_token() -> TestBus {
    TestBus::new(with_token(Limits::default()))
}

impl TestBus {
    /// Asserts that the client got one error and was closed.
    fn is_rejected(&mut self, link: Link, id: Value, reason: &str) {
        let error = self.sees_error(link, id, reason);
        assert_ne!(error["code"], -32000, "an IDE would start the login of the agent");
        self.sees_nothing(link);
        assert!(self.is_closed(link));
    }
}

#[test]
fn a_client_with_the_token_is_served() {
    let mut bus = bus_with_token();
    let client = bus.client();
    let worker = bus.worker(0);
    // The line comes in any chunking, and the next one in the same read.
    for byte in HELLO_LINE.bytes() {
        bus.sends_bytes(client, &[byte]);
    }
    bus.sends_bytes(client, format!("\r\n{WORK}\n").as_bytes());
    assert_eq!(bus.sees_json(client)["result"]["bus"], "stdio-bus");
    bus.answers(worker, "work", "1");
    assert_eq!(bus.sees_json(client)["result"], 1);
    bus.advances(AUTH_TIMEOUT * 2);
    assert!(!bus.is_closed(client));
    bus.is_idle();
}

#[test]
fn the_token_may_come_in_a_notification_or_with_an_unknown_pool() {
    let mut bus = bus_with_token();
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
fn nothing_from_a_client_without_the_token_reaches_a_worker() {
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
    let mut bus = bus_with_token();
    for (line, id) in cases {
        let client = bus.client();
        bus.sends_bytes(client, format!("{line}\n{HELLO_LINE}\n{WORK}\n").as_bytes());
        bus.is_rejected(client, id, "unauthorized");
    }
    bus.sees_nothing(bus.worker(0));
    assert!(bus.bus.is_empty());
}

#[test]
fn a_first_line_that_is_no_json_is_closed_without_an_answer() {
    let mut bus = bus_with_token();
    for opening in ["GET / HTTP/1.1\r\n", "  [", "{broken}\n"] {
        let client = bus.client();
        bus.sends_bytes(client, format!("{opening}{HELLO_LINE}\n").as_bytes());
        bus.sees_nothing(client);
        assert!(bus.is_closed(client));
    }
}

#[test]
fn a_first_line_over_the_limit_or_without_an_end_is_refused() {
    let mut bus = bus_with_token();
    let client = bus.client();
    bus.sends_bytes(client, &vec![b'{'; AUTH_LINE_BYTES + 2]);
    bus.is_rejected(client, Value::Null, "unauthorized");
    // The connection ends in the middle of the line.
    let client = bus.client();
    bus.sends_bytes(client, &HELLO_LINE.as_bytes()[..30]);
    bus.handles(Event::Ended(client));
    assert!(bus.is_closed(client));
    bus.sees_nothing(client);
}

#[test]
fn a_client_that_is_late_with_the_token_gets_one_error_and_is_closed() {
    let mut bus = bus_with_token();
    let (silent, slow) = (bus.client(), bus.client());
    bus.sends_bytes(slow, HELLO_LINE.as_bytes());
    bus.advances(AUTH_TIMEOUT - Duration::from_millis(1));
    assert!(!bus.is_closed(silent) && !bus.is_closed(slow));
    bus.advances(Duration::from_millis(1));
    bus.is_rejected(silent, Value::Null, "unauthorized");
    bus.is_rejected(slow, Value::Null, "unauthorized");
    assert!(bus.bus.is_empty());
}

#[test]
fn a_refused_client_that_does_not_read_is_closed_after_a_while() {
    let mut bus = bus_with_token();
    let client = bus.client();
    bus.stops_reading(client);
    bus.sends(client, WORK);
    bus.sends(client, HELLO_LINE);
    assert!(!bus.is_closed(client));
    bus.advances(FLUSH_ON_CLOSE);
    assert!(bus.is_closed(client) && bus.bus.is_empty());
}

#[test]
fn clients_without_the_token_have_slots_of_their_own_and_the_oldest_makes_room() {
    let mut bus = TestBus::new(with_token(Limits { max_clients: 2, ..Limits::default() }));
    let good = bus.client();
    bus.sends(good, HELLO_LINE);
    bus.sees(good);
    let silent: Vec<Link> = (0..PENDING_AUTH_MAX).map(|_| bus.client()).collect();
    let next = bus.client();
    bus.act();
    bus.is_rejected(silent[0], Value::Null, "busy");
    assert!(!bus.is_closed(silent[1]));
    bus.sends(next, HELLO_LINE);
    assert_eq!(
        bus.sees_json(next)["result"]["bus"],
        "stdio-bus",
        "clients without the token take no slot of a client"
    );
    // Clients with the token do.
    let third = bus.client();
    bus.sends(third, HELLO_LINE);
    bus.is_rejected(third, json!(1), "busy");
    bus.sends(good, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(good)["result"], 1);
}

#[test]
fn the_number_of_clients_without_the_token_is_bounded() {
    let mut bus = bus_with_token();
    for _ in 0..10 * PENDING_AUTH_MAX {
        let client = bus.client();
        bus.stops_reading(client);
        bus.bus.check_invariants();
    }
}

#[test]
fn the_owner_of_the_bus_needs_no_token() {
    let mut bus = bus_with_token();
    let owner = bus.shell.bus.connect_owner(None, bus.shell.now).expect("there is room");
    bus.sends(owner, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(owner)["result"], 1);
}

#[test]
fn a_new_token_applies_to_new_clients_only() {
    let mut bus = bus_with_token();
    let (old, waiting) = (bus.client(), bus.client());
    bus.sends(old, HELLO_LINE);
    bus.sees(old);
    let mut changed = with_token(Limits::default());
    changed.auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of("new") });
    bus.reloads(&changed);
    bus.sends(waiting, HELLO_LINE);
    bus.is_rejected(waiting, json!(1), "unauthorized");
    bus.sends(old, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(old)["result"], 1);
    let new = bus.client();
    bus.sends(new, &HELLO_LINE.replace("right", "new"));
    assert_eq!(bus.sees_json(new)["result"]["bus"], "stdio-bus");
    // A reload without a token admits the clients that had to show it.
    let waiting = bus.client();
    bus.reloads(&Config { auth: None, ..changed });
    bus.advances(AUTH_TIMEOUT);
    bus.sends(waiting, WORK);
    bus.answers(bus.worker(0), "work", "1");
    assert_eq!(bus.sees_json(waiting)["result"], 1);
}

#[test]
fn status_counts_only_clients_with_the_token_and_does_not_show_it() {
    let mut bus = bus_with_token();
    let (client, bad) = (bus.client(), bus.client());
    let _silent = bus.client();
    bus.sends(client, HELLO_LINE);
    bus.sees(client);
    bus.sends(bad, WORK);
    bus.sends(client, r#"{"id":1,"method":"_bus/status"}"#);
    let status = bus.sees(client);
    let answer: Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(
        (&answer["result"]["clients"], &answer["result"]["counters"]["unauthorized"]),
        (&json!(1), &json!(1))
    );
    assert!(!status.contains("right") && !status.contains("/token"), "{status}");
}

#[test]
fn strangers_of_one_origin_push_out_nobody_else() {
    let mut bus = bus_with_token();
    let now = bus.now;
    let honest = bus.shell.bus.connect_from(2, None, now).expect("there is room");
    for _ in 0..3 * PENDING_AUTH_MAX {
        bus.shell.bus.connect_from(1, None, now);
    }
    bus.act();
    bus.sends(honest, HELLO_LINE);
    assert_eq!(bus.sees_json(honest)["result"]["bus"], "stdio-bus");
}
