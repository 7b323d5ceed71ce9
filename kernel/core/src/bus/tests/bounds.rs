//! What one line, and one chunk of lines, can make the bus do and hold.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Config, Event, Limits, Link, TestBus, limited, pool};
use crate::bus::Bus;
use crate::config::{Permission, PoolConfig};
use crate::limit::{LONG_LINE_BYTES, NESTED_BYTES, SESSIONS_PAGE_BYTES, STICKY_NOTIFICATION_BYTES};

const INIT: &str = concat!(
    r#"{"protocolVersion":1,"agentInfo":{"name":"agent"},"agentCapabilities":{"loadSession":true,"#,
    r#""sessionCapabilities":{"close":{},"resume":{}}}}"#
);

impl TestBus {
    /// A bus whose pool shares, with a worker that is ready.
    fn sharing(limits: Limits) -> (TestBus, Link) {
        let pool = PoolConfig { share: true, max_sessions: 10_000, ..pool("agents", 1) };
        let mut bus = TestBus::new(Config { limits, ..Config::with_pools([pool]) });
        let (first, worker) = (bus.acp_client(), bus.worker(0));
        bus.initializes_with(worker, INIT);
        bus.sees(first);
        (bus, worker)
    }

    /// A client that was initialized like the first one.
    fn ready_client(&mut self) -> Link {
        let client = self.acp_client();
        self.sees(client);
        client
    }

    /// The bytes come in these pieces, read to where the bus wants them if it does, as from a socket.
    fn sends_in_pieces(&mut self, from: Link, bytes: &[u8], piece: usize) {
        let now = self.now;
        for mut chunk in bytes.chunks(piece) {
            while let Some(space) = self.shell.bus.read_space(from) {
                let count = space.len().min(chunk.len());
                space[..count].copy_from_slice(&chunk[..count]);
                self.shell.bus.received_in_space(from, count, now);
                chunk = &chunk[count..];
                if chunk.is_empty() {
                    break;
                }
            }
            self.shell.bus.received(from, chunk, now);
            self.act();
        }
    }
}

fn update(session: &str, text: &str) -> String {
    let update = json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
    json!({"method": "session/update", "params": {"sessionId": session, "update": update}}).to_string()
}

#[test]
fn a_short_update_behind_a_long_one_is_logged_for_its_own_session() {
    for piece in [500, 4096, 70_000, 1 << 20] {
        let (mut bus, worker) = TestBus::sharing(Limits::default());
        let (ann, ben) = (bus.ready_client(), bus.ready_client());
        let first = bus.opens(ann, worker, "one");
        let second = bus.opens(ann, worker, "two");
        // The owner reads slowly, so that its queue holds lines of both sessions.
        bus.stops_reading(ann);
        let mut said = Vec::new();
        for round in 0..6 {
            let texts =
                [format!("long {round} {}", "x".repeat(LONG_LINE_BYTES + 1000)), format!("short {round}")];
            let lines =
                [update("one", &texts[0]), update("two", &texts[1]), update("two", "more")].join("\n");
            bus.sends_in_pieces(worker, format!("{lines}\n").as_bytes(), piece);
            said.extend([texts[1].clone(), "more".to_owned()]);
            bus.reads(ann, 1000 * round);
        }
        bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": second}}).to_string());
        let heard = bus.all_unseen(ben);
        let texts: Vec<&str> = heard
            .iter()
            .filter(|line| line["method"] == "session/update")
            .map(|line| line["params"]["update"]["content"]["text"].as_str().expect("a text"))
            .collect();
        assert_eq!(texts, said, "in pieces of {piece}");
        assert!(heard.iter().all(|line| !line.to_string().contains(&first)));
        bus.reads_again(ann);
        bus.bus.check_invariants();
    }
}

#[test]
fn a_prompt_of_very_many_blocks_is_told_to_others_in_a_small_multiple_of_its_bytes() {
    let (mut bus, worker) = TestBus::sharing(Limits::default());
    let (ann, ben) = (bus.ready_client(), bus.ready_client());
    let session = bus.opens(ann, worker, "one");
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    bus.stops_reading(ann);
    bus.stops_reading(ben);
    let prompt = format!("[{}1]", "1,".repeat(500_000));
    let params = format!(r#"{{"sessionId":"{session}","prompt":{prompt}}}"#);
    for from in [ann, ben] {
        let before = bus.bus.held_bytes();
        bus.sends(from, &format!(r#"{{"id":2,"method":"session/prompt","params":{params}}}"#));
        let grown = bus.bus.held_bytes() - before;
        assert!(grown < 4 * prompt.len(), "{grown} bytes for {}", prompt.len());
    }
}

#[test]
fn a_line_that_is_longer_than_a_log_is_not_copied_into_it() {
    let (mut bus, worker) = TestBus::sharing(Limits { session_log_bytes: 10_000, ..Limits::default() });
    let (ann, ben) = (bus.ready_client(), bus.ready_client());
    let session = bus.opens(ann, worker, "one");
    bus.sends(worker, &update("one", "before"));
    bus.sends(worker, &update("one", &"x".repeat(20_000)));
    bus.sends(worker, &update("one", "after"));
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    let heard = bus.all_unseen(ben);
    assert_eq!(heard[0]["params"]["update"]["content"]["text"], "after");
    assert_eq!(heard[1]["result"]["truncated"], true);
}

#[test]
fn the_rest_of_a_chunk_waits_its_turn_while_others_are_served() {
    let (mut bus, worker) = TestBus::sharing(Limits { max_clients: 2000, ..Limits::default() });
    let ann = bus.ready_client();
    let session = bus.opens(ann, worker, "one");
    let attach = |id| format!(r#"{{"id":{id},"method":"_bus/attach","params":{{"session":"{session}"}}}}"#);
    let detach = |id| format!(r#"{{"id":{id},"method":"_bus/detach","params":{{"session":"{session}"}}}}"#);
    for _ in 0..200 {
        let guest = bus.client();
        bus.sends(guest, &attach(0));
    }
    let (busy, other) = (bus.client(), bus.client());
    let lines: Vec<String> = (0..200).flat_map(|id| [attach(2 * id), detach(2 * id + 1)]).collect();
    // One call of the bus, without what follows from it.
    let now = bus.now;
    bus.shell.bus.received(busy, format!("{}\n", lines.join("\n")).as_bytes(), now);
    assert!(!bus.bus.wants_read(busy), "nothing more is read of it");
    bus.shell.bus.received(other, b"{\"id\":1,\"method\":\"_bus/hello\"}\n", now);
    bus.act();
    assert_eq!(bus.sees_json(other)["id"], 1);
    let answers =
        |lines: Vec<Value>| -> Vec<i64> { lines.iter().filter_map(|line| line["id"].as_i64()).collect() };
    let at_once = answers(bus.all_unseen(busy));
    assert!((1..100).contains(&at_once.len()), "{} of 400 at once", at_once.len());
    bus.advances(Duration::ZERO);
    let later = answers(bus.all_unseen(busy));
    assert_eq!([at_once, later].concat(), (0..400).collect::<Vec<_>>(), "all are answered, in their order");
    assert!(bus.bus.wants_read(busy));
}

#[test]
fn what_a_vanished_client_still_wanted_is_not_done_all_at_once() {
    let (mut bus, worker) = TestBus::sharing(Limits { max_clients: 2000, ..Limits::default() });
    let ann = bus.ready_client();
    let session = bus.opens(ann, worker, "one");
    let attach = format!(r#"{{"id":0,"method":"_bus/attach","params":{{"session":"{session}"}}}}"#);
    for _ in 0..200 {
        let guest = bus.client();
        bus.sends(guest, &attach);
    }
    let busy = bus.client();
    let detach = format!(r#"{{"id":0,"method":"_bus/detach","params":{{"session":"{session}"}}}}"#);
    let lines = format!("{attach}\n{detach}\n").repeat(200);
    let (now, before) = (bus.now, bus.bus.counters.requests);
    bus.shell.bus.received(busy, lines.as_bytes(), now);
    bus.handles(Event::Broken(busy));
    bus.advances(Duration::ZERO);
    assert!(bus.bus.counters.requests - before < 200);
    assert!(bus.is_closed(busy));
}

#[test]
fn a_list_of_sessions_with_many_guests_comes_in_pages() {
    let (mut bus, worker) = TestBus::sharing(Limits { max_clients: 2000, ..Limits::default() });
    let ann = bus.ready_client();
    let sessions: Vec<String> = (0..60).map(|at| bus.opens(ann, worker, &format!("a{at}"))).collect();
    for number in 0..60 {
        let guest = bus.client();
        let name = format!("{number} {}", "n".repeat(200));
        bus.sends(guest, &json!({"id": 0, "method": "_bus/hello", "params": {"client": name}}).to_string());
        for session in &sessions {
            let params = json!({"session": session});
            bus.sends(guest, &json!({"id": 1, "method": "_bus/attach", "params": params}).to_string());
            bus.advances(Duration::ZERO);
        }
    }
    bus.all_unseen(ann);
    let (mut cursor, mut shown, mut pages) = (None::<String>, Vec::new(), 0);
    loop {
        let params = json!({"cursor": cursor});
        bus.sends(ann, &json!({"id": 5, "method": "_bus/sessions", "params": params}).to_string());
        let line = bus.sees(ann);
        assert!(line.len() < 2 * SESSIONS_PAGE_BYTES, "{}", line.len());
        let page: Value = serde_json::from_str(&line).expect("JSON");
        let views = page["result"]["sessions"].as_array().expect("a list").clone();
        shown.extend(views.iter().map(|view| view["session"].as_str().expect("a label").to_owned()));
        pages += 1;
        match page["result"]["nextCursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    shown.sort();
    shown.dedup();
    assert_eq!((shown.len(), pages > 2), (60, true));
}

#[test]
fn drains_start_no_more_processes_than_a_pool_may_have_twice() {
    let pool = PoolConfig { share: true, ..pool("agents", 3) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, r#"{"protocolVersion":1,"agentCapabilities":{}}"#);
    bus.sees(ann);
    bus.opens(ann, worker, "one");
    for id in 0..50 {
        bus.sends(ann, &json!({"id": id, "method": "_bus/drain", "params": {"pool": "agents"}}).to_string());
        bus.sees(ann);
        // Each of the new ones has a session, too, which cannot go on elsewhere.
        let link = bus.worker(bus.processes.len() - 1);
        bus.all_unseen(link);
    }
    assert!(bus.bus.process_ids().len() <= 6, "{} processes", bus.bus.process_ids().len());
}

#[test]
fn guests_that_take_nothing_are_closed_before_they_fill_the_bus() {
    let limits = Limits { max_held_bytes: 64 << 20, max_clients: 500, ..Limits::default() };
    let (mut bus, worker) = TestBus::sharing(limits);
    let ann = bus.ready_client();
    let session = bus.opens(ann, worker, "one");
    let guests: Vec<Link> = (0..60).map(|_| bus.client()).collect();
    for guest in &guests {
        bus.stops_reading(*guest);
        bus.sends(
            *guest,
            &json!({"id": 0, "method": "_bus/attach", "params": {"session": session}}).to_string(),
        );
    }
    let text = "x".repeat(60_000);
    for _ in 0..200 {
        bus.sends(worker, &update("one", &text));
    }
    assert!(bus.bus.held_bytes() > 32 << 20, "{}", bus.bus.held_bytes());
    bus.advances(Duration::from_secs(3));
    assert!(bus.bus.held_bytes() <= 34 << 20, "{}", bus.bus.held_bytes());
    bus.advances(Duration::from_secs(120));
    assert!(guests.iter().all(|guest| bus.is_closed(*guest)) && !bus.is_closed(ann));
    assert!(bus.bus.held_bytes() < 2 << 20, "{}", bus.bus.held_bytes());
}

#[test]
fn long_params_to_the_bus_are_refused() {
    let (mut bus, _) = TestBus::sharing(Limits::default());
    let ann = bus.ready_client();
    let params = json!({"session": "x".repeat(100_000)});
    for method in ["_bus/attach", "_bus/hello", "_bus/close", "_bus/drain", "_bus/sessions", "_bus/trace"] {
        bus.sends(ann, &json!({"id": 1, "method": method, "params": params}).to_string());
        assert_eq!(bus.sees_json(ann)["error"]["code"], -32600, "{method}");
    }
}

#[test]
fn a_permission_with_very_many_options_is_answered_by_the_first_that_fits() {
    let pool = PoolConfig { permission: Permission::Allow, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.opens(ann, worker, "one");
    let asks = |options: &[Value]| {
        let params = json!({"sessionId": "one", "options": options});
        json!({"id": 7, "method": "session/request_permission", "params": params}).to_string()
    };
    let option = |id: &str, kind: &str| json!({"optionId": id, "name": "n", "kind": kind});
    let many: Vec<Value> = (0..10_000).map(|at| option(&format!("o{at}"), "reject_once")).collect();
    for (options, chosen) in [
        ([&many[..], &[option("b", "allow_always"), option("a", "allow_once")]].concat(), "a"),
        ([&many[..], &[option("b", "allow_always")]].concat(), "b"),
        (vec![option("first", "allow_once"), option("second", "allow_once")], "first"),
    ] {
        bus.sends(worker, &asks(&options));
        let answer = bus.sees_json(worker);
        assert_eq!(answer["result"]["outcome"], json!({"outcome": "selected", "optionId": chosen}));
    }
    bus.sends(worker, &asks(&many));
    bus.sees_request(ann, "session/request_permission");
}

#[test]
fn a_permission_that_is_too_long_to_be_read_again_is_asked_of_the_client() {
    for permission in [Permission::Allow, Permission::Deny] {
        let pool = PoolConfig { permission, ..pool("agents", 1) };
        let mut bus = TestBus::new(Config::with_pools([pool]));
        let (ann, worker) = (bus.acp_client(), bus.worker(0));
        bus.initializes_with(worker, INIT);
        bus.sees(ann);
        bus.opens(ann, worker, "one");
        let options = json!([{"optionId": "a", "name": "n", "kind": "allow_once"},
            {"optionId": "r", "name": "n", "kind": "reject_once"}]);
        let params = json!({"sessionId": "one", "options": options, "toolCall": "x".repeat(NESTED_BYTES)});
        let asked = json!({"id": 7, "method": "session/request_permission", "params": params}).to_string();
        bus.sends_in_pieces(worker, format!("{asked}\n").as_bytes(), 60_000);
        let (_, request) = bus.sees_request(ann, "session/request_permission");
        assert_eq!(request["params"]["toolCall"], params["toolCall"]);
        bus.sees_nothing(worker);
    }
}

#[test]
fn an_answer_that_is_too_long_to_be_read_again_is_the_one_that_counts() {
    let (mut bus, ann, ben, worker, _) = in_one_session(Limits::default());
    let params = json!({"sessionId": "one", "options": [], "toolCall": {"title": "x".repeat(NESTED_BYTES)}});
    let asked = json!({"id": 7, "method": "session/request_permission", "params": params}).to_string();
    bus.sends_in_pieces(worker, format!("{asked}\n").as_bytes(), 100_000);
    let (of_ann, _) = bus.sees_request(ann, "session/request_permission");
    let (of_ben, _) = bus.sees_request(ben, "session/request_permission");
    let answer = |id: &str, length: usize| {
        let result = json!({"outcome": {"outcome": "cancelled"}, "_meta": "x".repeat(length)});
        format!("{{\"id\":{id},\"result\":{result}}}\n")
    };
    // The turn is not Ben's, so that a short answer like this one would leave it to Ann.
    bus.sends_in_pieces(ben, answer(&of_ben, NESTED_BYTES).as_bytes(), 100_000);
    assert_eq!(bus.sees_json(worker)["result"]["_meta"].as_str().map(str::len), Some(NESTED_BYTES));
    let told = bus.all_unseen(ann);
    assert!(told.iter().any(|line| line["method"] == "$/cancel_request"), "{told:?}");
    bus.sends(ann, &answer(&of_ann, 1));
    bus.sees_nothing(worker);
    bus.bus.check_invariants();
}

#[test]
fn a_long_line_is_checked_as_a_short_one() {
    let (mut bus, ann, _, worker, session) = in_one_session(Limits::default());
    let text = "x\\u00e9é".repeat(LONG_LINE_BYTES / 4);
    for piece in [999, 65_536, 1 << 20] {
        let params = format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"{text}"}}]}}"#);
        let line = |end: &str| format!("{{\"id\":5,\"method\":\"any/thing\",\"params\":{params}{end}\r\n");
        bus.sends_in_pieces(ann, line("}").as_bytes(), piece);
        let (id, request) = bus.sees_request(worker, "any/thing");
        assert_eq!(request["params"]["prompt"][0]["text"], text.replace("\\u00e9", "é"));
        bus.sends(worker, &format!(r#"{{"id":{id},"result":1}}"#));
        assert_eq!(bus.sees_json(ann)["result"], 1);
        // A line that is broken in the end is refused, and so is one that is not UTF-8.
        bus.sends_in_pieces(ann, line("]").as_bytes(), piece);
        assert_eq!(bus.sees_json(ann)["error"]["code"], -32700);
        let mut broken = line("}").into_bytes();
        let middle = broken.len() / 2;
        broken[middle..middle + 4].fill(0xc3);
        bus.sends_in_pieces(ann, &broken, piece);
        assert_eq!(bus.sees_json(ann)["error"]["code"], -32700);
        // White space is no line, however much of it there is, and may stand before one.
        let blank = " ".repeat(LONG_LINE_BYTES * 2);
        bus.sends_in_pieces(ann, format!("{blank}\n{blank}{}", line("}")).as_bytes(), piece);
        bus.answers(worker, "any/thing", "2");
        assert_eq!(bus.sees_json(ann)["result"], 2);
    }
    bus.bus.check_invariants();
}

#[test]
fn a_worker_that_tells_its_room_is_counted_without_a_look_at_all_sessions() {
    let (mut bus, worker) = TestBus::sharing(Limits::default());
    let ann = bus.ready_client();
    for at in 0..5 {
        bus.opens(ann, worker, &format!("a{at}"));
    }
    // One more is being loaded, and does not count.
    bus.asks(ann, 9, "session/load", "old");
    bus.sends(worker, r#"{"method":"_bus/worker","params":{"room":3}}"#);
    let room = |bus: &Bus| bus.workers.iter().next().map(|(_, worker)| worker.capacity);
    assert_eq!(room(&bus.bus), Some(Some(8)));
    bus.answers(worker, "session/load", "{}");
    bus.sends(worker, r#"{"method":"_bus/worker","params":{"room":3}}"#);
    assert_eq!(room(&bus.bus), Some(Some(9)));
}

/// A bus with these limits on which the first client has a session and the second one is in it, and their worker.
fn in_one_session(limits: Limits) -> (TestBus, Link, Link, Link, String) {
    let (mut bus, worker) = TestBus::sharing(limits);
    let (ann, ben) = (bus.ready_client(), bus.ready_client());
    let session = bus.opens(ann, worker, "one");
    bus.sends(ben, &json!({"id": 1, "method": "_bus/attach", "params": {"session": session}}).to_string());
    bus.all_unseen(ben);
    (bus, ann, ben, worker, session)
}

#[test]
fn a_long_stop_reason_is_for_the_client_that_has_asked_alone() {
    let (mut bus, ann, ben, worker, session) = in_one_session(Limits::default());
    for (length, is_told) in [(100, true), (100_000, false)] {
        let reason = "x".repeat(length);
        bus.asks(ann, 2, "session/prompt", &session);
        bus.answers(worker, "session/prompt", &json!({"stopReason": reason}).to_string());
        assert_eq!(bus.sees_json(ann)["result"]["stopReason"], reason);
        let told = bus.all_unseen(ben);
        let last = &told.last().expect("the end of the turn")["params"];
        assert_eq!((&last["turn"], last.get("stopReason").is_some()), (&json!("idle"), is_told), "{last}");
    }
}

#[test]
fn an_event_for_which_a_guest_has_no_room_is_not_told() {
    let (mut bus, ann, ben, worker, session) =
        in_one_session(Limits { max_output_queue: 4096, ..Limits::default() });
    bus.stops_reading(ben);
    bus.asks(ann, 2, "session/prompt", &session);
    bus.sends(worker, &update("one", &"x".repeat(1000)));
    let waiting = bus.bus.to_send(ben).len();
    assert!((1000..2048).contains(&waiting), "{waiting}");
    let (wire, _) = bus.sees_request(worker, "session/prompt");
    let message = "x".repeat(1500);
    bus.sends(worker, &format!(r#"{{"id":{wire},"error":{{"code":1,"message":"{message}"}}}}"#));
    assert_eq!(bus.bus.to_send(ben).len(), waiting);
}

/// Two clients of one process, and the process.
fn two_at_one_process(limits: Limits) -> (TestBus, [Link; 2], Link) {
    let mut bus = TestBus::new(limited(limits));
    let (clients, worker) = ([bus.client(), bus.client()], bus.worker(0));
    for client in clients {
        bus.sends(client, r#"{"id":1,"method":"x"}"#);
        bus.answers(worker, "x", "{}");
        bus.sees(client);
    }
    (bus, clients, worker)
}

#[test]
fn a_long_notification_about_a_process_is_told_to_a_client_that_is_alone() {
    let (mut bus, [ann, ben], worker) = two_at_one_process(Limits::default());
    let tells = |length: usize| json!({"method": "quota/update", "params": "x".repeat(length)}).to_string();
    bus.sends(worker, &tells(STICKY_NOTIFICATION_BYTES - 100));
    assert_eq!((bus.all_unseen(ann).len(), bus.all_unseen(ben).len()), (1, 1));
    assert_eq!(bus.bus.counters.dropped_notifications, 0);
    bus.sends(worker, &tells(STICKY_NOTIFICATION_BYTES));
    assert_eq!((bus.all_unseen(ann).len(), bus.all_unseen(ben).len()), (0, 0));
    assert_eq!(bus.bus.counters.dropped_notifications, 1);
    bus.handles(Event::Broken(ben));
    bus.sends(worker, &tells(STICKY_NOTIFICATION_BYTES));
    assert_eq!(bus.all_unseen(ann).len(), 1);
}

#[test]
fn a_client_that_does_not_keep_up_misses_what_is_about_its_whole_process() {
    let (mut bus, [ann, ben], worker) =
        two_at_one_process(Limits { max_output_queue: 4096, ..Limits::default() });
    bus.stops_reading(ben);
    let line = json!({"method": "session/list_changed", "params": "x".repeat(500)}).to_string();
    for _ in 0..100 {
        bus.sends(worker, &line);
        assert_eq!(bus.sees(ann), line);
        assert!(bus.bus.wants_read(worker));
    }
    assert_eq!(bus.bus.to_send(ben).len(), 3 * (line.len() + 1));
    assert_eq!(bus.bus.counters.dropped_notifications, 97);
}

#[test]
fn a_long_request_for_every_process_is_refused() {
    let mut bus = TestBus::with_workers(2);
    let client = bus.client();
    let params = "x".repeat(STICKY_NOTIFICATION_BYTES);
    bus.sends(client, &json!({"id": 1, "method": "authenticate", "params": params}).to_string());
    let error = bus.sees_error(client, json!(1), "too_large");
    assert_eq!(error["data"]["limit"], STICKY_NOTIFICATION_BYTES);
    for at in 0..2 {
        bus.sees_nothing(bus.worker(at));
    }
}
