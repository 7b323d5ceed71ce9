//! Keeping: what the client that writes down what is said hears, and that nobody notices it.

mod again;

use std::time::Duration;

use serde_json::{Value, json};

use super::{Bus, Config, Event, Link, TestBus, pool};
use crate::config::{Limits, Permission, PoolConfig};

const INIT: &str =
    r#"{"protocolVersion":1,"agentInfo":{"name":"actor"},"agentCapabilities":{"loadSession":true}}"#;

fn shared() -> PoolConfig {
    PoolConfig { share: true, ..pool("agents", 1) }
}

/// A bus with a pool like this, ann with a session, the keeper, the worker, and the name of the session.
fn kept(config: PoolConfig, limits: Limits) -> (TestBus, Link, Link, Link, String) {
    let mut bus = TestBus::new(Config { limits, ..Config::with_pools([config]) });
    bus.shell.bus.kept_by("secret");
    let keeper = bus.keeper();
    bus.knows_all(keeper);
    let ann = bus.acp_client();
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    bus.sends(ann, r#"{"id":0,"method":"_bus/hello","params":{"client":"ann"}}"#);
    bus.sees(ann);
    let session = bus.opens(ann, worker, "s1");
    (bus, ann, keeper, worker, session)
}

impl TestBus {
    fn keeper(&mut self) -> Link {
        let keeper = self.client();
        self.sends(keeper, r#"{"id":1,"method":"_bus/keep","params":{"secret":"secret"}}"#);
        assert_eq!(self.sees_json(keeper)["result"], json!({}));
        keeper
    }

    /// The keeper has nothing more to hear than that these were all sessions.
    fn knows_all(&mut self, keeper: Link) {
        self.advances(Duration::ZERO);
        let told = self.told(keeper);
        assert_eq!((&told["session"], &told["all"]), (&json!(""), &json!(true)));
    }

    /// A client loads the session, and the worker is asked for it. Returns the id of that.
    fn loads(&mut self, client: Link, worker: Link) -> String {
        let params = r#"{"sessionId":"s1","cwd":"/srv","mcpServers":[]}"#;
        self.sends(client, &format!(r#"{{"id":2,"method":"session/load","params":{params}}}"#));
        self.sees_request(worker, "session/load").0
    }

    /// The next question of the bus what was said before.
    fn asked_for_past(&mut self, keeper: Link) -> Value {
        let asked = self.sees_json(keeper);
        assert_eq!(asked["method"], json!("_bus/past"), "{asked}");
        asked["params"].clone()
    }

    /// The keeper answers it with what these updates say.
    fn answers_past(&mut self, keeper: Link, asked: &Value, texts: &[&str], upto: u64, is_end: bool) {
        let line = |text: &&str| {
            let update =
                json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
            json!({"said": {"method": "session/update", "params": {"sessionId": "old.s1", "update": update}}})
        };
        let lines: Vec<Value> = texts.iter().map(line).collect();
        let params = json!({"ask": asked["ask"], "cursor": upto.to_string(), "upto": upto, "whole": true,
            "end": is_end, "lines": lines});
        self.sends(keeper, &json!({"method": "_bus/past", "params": params}).to_string());
        // What follows from it has a turn of its own.
        self.advances(Duration::ZERO);
    }

    /// What a client hears until it has joined: the texts, and whether something is missing.
    fn joined(&mut self, client: Link, session: &str) -> (Vec<String>, bool) {
        let mut texts = Vec::new();
        loop {
            let line = self.sees_json(client);
            if line["id"] == "attach" {
                return (texts, line["result"]["truncated"] == true);
            }
            assert_eq!(line["params"]["sessionId"], json!(session), "{line}");
            texts.push(line["params"]["update"]["content"]["text"].as_str().unwrap().to_owned());
        }
    }

    fn utters(&mut self, worker: Link, text: &str) {
        let content = format!(r#"{{"type":"text","text":"{text}"}}"#);
        let update = format!(r#"{{"sessionUpdate":"agent_message_chunk","content":{content}}}"#);
        let params = format!(r#"{{"sessionId":"s1","update":{update}}}"#);
        self.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
    }

    /// The params of the next thing that the keeper is told.
    fn told(&mut self, keeper: Link) -> Value {
        let told = self.sees_json(keeper);
        assert_eq!((&told["method"], told.get("id")), (&json!("_bus/kept"), None), "{told}");
        told["params"].clone()
    }

    /// The same for a message: who says it, and its method or its result.
    fn said(&mut self, keeper: Link) -> (String, Value) {
        let told = self.told(keeper);
        let message = &told["message"];
        let what = if message["method"].is_string() { &message["method"] } else { &message["result"] };
        (told["by"].as_str().unwrap_or_default().to_owned(), what.clone())
    }
}

#[test]
fn the_keeper_hears_a_turn_as_its_owner_does_and_is_no_guest() {
    let (mut bus, ann, keeper, worker, session) = kept(shared(), Limits::default());
    let params = format!(r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"hi"}}]}}"#);
    bus.sends(ann, &format!(r#"{{"id":7,"method":"session/prompt","params":{params}}}"#));
    let opened = bus.told(keeper)["opened"].clone();
    assert_eq!(
        (&opened["id"], &opened["agent_session"], &opened["pool"], &opened["agent"]),
        (&json!(session), &json!("s1"), &json!("agents"), &json!("actor"))
    );
    let prompt = bus.told(keeper);
    assert_eq!((&prompt["session"], &prompt["by"]), (&json!("s1"), &json!("ann")));
    assert_eq!((&prompt["before"], &prompt["n"]), (&json!(0), &json!(1)));
    assert_eq!(prompt["message"]["params"]["sessionId"], json!(session));
    bus.utters(worker, "hello");
    let heard = bus.sees_json(ann);
    let update = bus.told(keeper);
    assert_eq!((&update["message"], &update["by"], &update["n"]), (&heard, &json!("agent"), &json!(2)));
    let ask = r#"{"sessionId":"s1","options":[{"optionId":"yes","kind":"allow_once"}]}"#;
    bus.sends(worker, &format!(r#"{{"id":5,"method":"session/request_permission","params":{ask}}}"#));
    let asked = bus.told(keeper);
    assert_eq!((&asked["message"]["id"], &asked["by"]), (&json!(5), &json!("agent")));
    let id = bus.sees_json(ann)["id"].clone();
    bus.sends(ann, &json!({"id": id, "result": {"outcome": {"outcome": "cancelled"}}}).to_string());
    let decided = bus.told(keeper);
    assert_eq!((&decided["message"]["id"], &decided["by"]), (&json!(5), &json!("ann")));
    bus.sends(worker, r#"{"id":6,"method":"fs/read_text_file","params":{"sessionId":"s1","path":"/a"}}"#);
    bus.sees_nothing(keeper);
    let id = bus.sees_json(ann)["id"].clone();
    bus.sends(ann, &json!({"id": id, "result": {"content": "x"}}).to_string());
    bus.sees_nothing(keeper);
    bus.sees(worker);
    bus.sees(worker);
    bus.sees(worker);
    let call = prompt["message"]["id"].clone();
    bus.sends(worker, &json!({"id": call, "result": {"stopReason": "end_turn"}}).to_string());
    let answer = bus.told(keeper);
    assert_eq!(answer["message"], json!({"id": call, "result": {"stopReason": "end_turn"}}));
    // It is nowhere to be seen.
    bus.sees(ann);
    bus.sends(ann, r#"{"id":8,"method":"_bus/sessions"}"#);
    let shown = bus.sees_json(ann)["result"]["sessions"][0].clone();
    assert_eq!((shown.get("guests"), &shown["client"]), (None, &json!("ann")));
    bus.sends(ann, r#"{"id":9,"method":"_bus/status"}"#);
    assert_eq!(bus.sees_json(ann)["result"]["clients"], json!(1));
    bus.sends(ann, &format!(r#"{{"id":10,"method":"_bus/close","params":{{"session":"{session}"}}}}"#));
    assert_eq!(bus.told(keeper)["ended"], json!(true));
}

#[test]
fn what_a_client_says_meanwhile_and_what_it_sets_is_told() {
    let (mut bus, ann, keeper, worker, session) = kept(shared(), Limits::default());
    bus.asks(ann, 7, "session/prompt", &session);
    assert!(bus.told(keeper)["opened"].is_object());
    bus.told(keeper);
    bus.sees(worker);
    for method in ["_session/steering", "session/inject", "session/set_mode", "session/set_config_option"] {
        bus.asks(ann, 8, method, &session);
        let call = bus.sees_request(worker, method).0;
        let told = bus.told(keeper);
        assert_eq!((&told["by"], &told["message"]["method"]), (&json!("ann"), &json!(method)));
        assert_eq!(told["message"]["id"].to_string(), call);
        assert_eq!(told["message"]["params"]["sessionId"], json!(session));
        // It is in no log, so it is not counted among the lines.
        assert_eq!((&told["before"], &told["n"]), (&json!(1), &json!(1)));
        bus.sends(worker, &format!(r#"{{"id":{call},"result":{{}}}}"#));
        bus.sees(ann);
        // Whether a setting was made is worth a line.
        if method.starts_with("session/set") {
            assert_eq!(bus.said(keeper), ("agent".to_owned(), json!({})));
        }
    }
    bus.asks(ann, 9, "_example.com/other", &session);
    bus.sees_nothing(keeper);
}

#[test]
fn only_who_knows_the_secret_is_told() {
    let (mut bus, ann, keeper, worker, _) = kept(shared(), Limits::default());
    for params in ["{}", r#"{"secret":""}"#, r#"{"secret":"secre"}"#] {
        bus.sends(ann, &format!(r#"{{"id":1,"method":"_bus/keep","params":{params}}}"#));
        let answer = bus.sees_json(ann);
        assert!(answer["error"].is_object(), "{answer}");
    }
    // A later one takes the place of an earlier one, and is told of the session anew.
    let later = bus.keeper();
    bus.advances(Duration::ZERO);
    assert!(bus.told(later)["opened"].is_object());
    assert_eq!(bus.told(later)["again"], json!(true));
    bus.knows_all(later);
    bus.utters(worker, "a");
    assert_eq!(bus.said(later).0, "agent");
    bus.sees_nothing(keeper);
}

#[test]
fn nothing_is_told_of_a_pool_that_keeps_nothing() {
    let (mut bus, _, keeper, worker, _) = kept(PoolConfig { keep: false, ..shared() }, Limits::default());
    bus.utters(worker, "a");
    bus.sees_nothing(keeper);
    // From then on.
    bus.reloads(&Config::with_pools([shared()]));
    bus.utters(worker, "b");
    assert!(bus.told(keeper)["opened"].is_object());
    bus.told(keeper);
    bus.reloads(&Config::with_pools([PoolConfig { keep: false, ..shared() }]));
    bus.utters(worker, "c");
    bus.sees_nothing(keeper);
}

#[test]
fn a_pool_that_others_may_not_join_is_kept_where_it_says_so() {
    let config = PoolConfig { share: false, permission: Permission::Allow, ..shared() };
    let (mut bus, _, keeper, worker, _) = kept(config, Limits::default());
    bus.utters(worker, "a");
    assert!(bus.told(keeper)["opened"].is_object());
    let told = bus.told(keeper);
    assert_eq!((told.get("n"), told["message"]["method"].as_str()), (None, Some("session/update")));
    let ask = r#"{"sessionId":"s1","options":[{"optionId":"yes","kind":"allow_once"}]}"#;
    bus.sends(worker, &format!(r#"{{"id":5,"method":"session/request_permission","params":{ask}}}"#));
    assert_eq!(bus.said(keeper).0, "agent");
    let (by, outcome) = bus.said(keeper);
    assert_eq!((by.as_str(), &outcome["outcome"]["optionId"]), ("bus", &json!("yes")));
}

#[test]
fn a_keeper_that_comes_later_hears_of_sessions_without_a_log_too() {
    let config = PoolConfig { share: false, ..shared() };
    let (mut bus, ann, keeper, worker, session) = kept(config, Limits::default());
    bus.utters(worker, "a");
    bus.all_unseen(keeper);
    let later = bus.keeper();
    // What is said before it was told of the session is not in any log.
    bus.asks(ann, 7, "session/prompt", &session);
    assert!(bus.told(later)["opened"].is_object());
    bus.told(later);
    assert_eq!(bus.said(later), ("ann".to_owned(), json!("session/prompt")));
    bus.knows_all(later);
}

#[test]
fn a_keeper_that_does_not_read_holds_nobody_up_and_hears_how_much_it_has_missed() {
    let limits = Limits { max_output_queue: 4 << 10, ..Limits::default() };
    let (mut bus, ann, keeper, worker, _) = kept(shared(), limits);
    bus.utters(worker, "first");
    bus.told(keeper);
    bus.told(keeper);
    bus.stops_reading(keeper);
    for number in 0..100 {
        bus.utters(worker, &format!("{number}"));
        assert_eq!(bus.sees_json(ann)["method"], json!("session/update"));
    }
    assert!(!bus.is_closed(keeper));
    bus.reads_again(keeper);
    let before = bus.all_unseen(keeper).len();
    assert!((1..100).contains(&before), "{before}");
    bus.utters(worker, "last");
    let told = bus.told(keeper);
    assert_eq!((&told["missed"], &told["n"]), (&json!(100 - before), &json!(102)));
}

#[test]
fn a_session_has_the_same_life_under_another_name_and_after_an_upgrade() {
    let (mut bus, ann, keeper, worker, session) = kept(shared(), Limits::default());
    bus.utters(worker, "a");
    let first = bus.told(keeper)["opened"].clone();
    bus.all_unseen(ann);
    bus.opens(ann, worker, "s2");
    let params = r#"{"sessionId":"s2","update":{"sessionUpdate":"plan","entries":[]}}"#;
    bus.all_unseen(keeper);
    bus.sends(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
    let other = bus.told(keeper)["opened"].clone();
    let ben = bus.acp_client();
    bus.sends(ben, &format!(r#"{{"id":2,"method":"session/load","params":{{"sessionId":"{session}"}}}}"#));
    bus.sends(ben, r#"{"id":3,"method":"_bus/take","params":{"session":"s1"}}"#);
    bus.sends(ben, r#"{"id":4,"method":"_bus/detach","params":{"session":"s1"}}"#);
    let saved = bus.bus.save().unwrap();
    bus.shell.bus = Bus::restore(&saved, &Default::default()).unwrap();
    bus.shell.bus.kept_by("secret");
    let later = bus.keeper();
    bus.advances(Duration::from_millis(1));
    let again = bus.told(later)["opened"].clone();
    assert_eq!((&again["agent_session"], &again["life"]), (&json!("s1"), &first["life"]));
    assert!(first["life"].is_string() && first["life"] != other["life"]);
    // Another bus, which may give the session the same id, has another life of it.
    let config = Config::with_pools([shared()]);
    let lives = [[1; 32], [2; 32]].map(|seed| Bus::new(&config, seed, Duration::ZERO).tags.life());
    assert_ne!(lives[0], lives[1]);
}

#[test]
fn what_is_told_again_is_marked_or_left_out() {
    let mut bus = TestBus::new(Config::with_pools([shared()]));
    bus.shell.bus.kept_by("secret");
    let keeper = bus.keeper();
    bus.knows_all(keeper);
    let (ann, worker) = (bus.acp_client(), bus.worker(0));
    bus.initializes_with(worker, INIT);
    bus.sees(ann);
    let load = bus.loads(ann, worker);
    bus.utters(worker, "before");
    assert_eq!(bus.told(keeper)["opened"]["cwd"], json!("/srv"));
    assert_eq!(bus.told(keeper)["replay"], json!(true));
    bus.sends(worker, &format!(r#"{{"id":{load},"result":{{}}}}"#));
    bus.utters(worker, "now");
    assert_eq!(bus.told(keeper).get("replay"), None);
    // The log has it, so the agent tells it for the client alone.
    bus.all_unseen(ann);
    let load = bus.loads(ann, worker);
    bus.utters(worker, "before");
    bus.sees_nothing(keeper);
    bus.sends(worker, &format!(r#"{{"id":{load},"result":{{}}}}"#));
}

/// A bus whose log has room for a few lines, in which the worker has said ten of them, each a number.
fn with_a_short_log() -> (TestBus, Link, Link, Link, String) {
    let limits = Limits { session_log_bytes: 600, ..Limits::default() };
    let (mut bus, ann, keeper, worker, session) = kept(shared(), limits);
    for number in 0..10 {
        bus.utters(worker, &number.to_string());
    }
    bus.all_unseen(ann);
    (bus, ann, keeper, worker, session)
}

const ATTACH: &str = r#"{"id":"attach","method":"_bus/attach","params":{"session":"s1"}}"#;

#[test]
fn a_keeper_that_comes_later_is_told_what_the_log_has() {
    let (mut bus, _, first, worker, _) = with_a_short_log();
    let heard = bus.all_unseen(first);
    assert_eq!(heard.len(), 11);
    let later = bus.keeper();
    bus.advances(Duration::from_millis(1));
    assert!(bus.told(later)["opened"].is_object());
    let mut told: Vec<Value> = bus.all_unseen(later).iter().map(|line| line["params"].clone()).collect();
    assert_eq!(told.pop().unwrap()["all"], json!(true));
    let all = told.pop().unwrap();
    assert_eq!((&all["before"], &all["again"], all.get("message")), (&json!(10), &json!(true), None));
    assert!((1..10).contains(&told.len()), "{told:?}");
    for (params, n) in told.iter().rev().zip((1..=10).rev()) {
        assert_eq!(
            (&params["n"], &params["before"], &params["again"]),
            (&json!(n), &json!(n - 1), &json!(true))
        );
        assert_eq!(params["message"], heard[n]["params"]["message"]);
    }
    bus.utters(worker, "now");
    assert_eq!(bus.told(later).get("again"), None);
}

#[test]
fn a_keeper_without_room_is_told_the_log_when_it_has_some() {
    let limits = Limits { max_output_queue: 4 << 10, ..Limits::default() };
    let (mut bus, ann, _, worker, _) = kept(shared(), limits);
    for number in 0..40 {
        bus.utters(worker, &number.to_string());
        bus.sees(ann);
    }
    let later = bus.keeper();
    bus.stops_reading(later);
    bus.advances(Duration::from_millis(100));
    bus.utters(worker, "40");
    bus.reads_again(later);
    let mut numbers = Vec::new();
    while numbers.len() < 41 {
        bus.advances(Duration::from_millis(20));
        let told = bus.all_unseen(later);
        let messages = told.iter().map(|line| &line["params"]).filter(|it| it["message"].is_object());
        numbers.extend(messages.filter_map(|params| params["n"].as_u64()));
    }
    bus.advances(Duration::from_millis(20));
    bus.all_unseen(later);
    assert_eq!(numbers, (1..=41).collect::<Vec<_>>());
    bus.utters(worker, "now");
    assert_eq!(bus.told(later)["n"], json!(42));
}

#[test]
fn a_session_that_ends_says_how_much_of_it_was_not_told() {
    let limits = Limits { max_output_queue: 4 << 10, ..Limits::default() };
    let (mut bus, ann, keeper, worker, session) = kept(shared(), limits);
    bus.utters(worker, "first");
    bus.all_unseen(keeper);
    bus.stops_reading(keeper);
    for number in 0..40 {
        bus.utters(worker, &number.to_string());
        bus.sees(ann);
    }
    let close = format!(r#"{{"id":10,"method":"_bus/close","params":{{"session":"{session}"}}}}"#);
    bus.sends(ann, &close);
    bus.reads_again(keeper);
    let told = bus.all_unseen(keeper);
    let last = &told.last().unwrap()["params"];
    assert_eq!((&last["ended"], &last["missed"]), (&json!(true), &json!(41 - told.len())));
}

#[test]
fn a_session_that_ends_before_its_log_was_told_says_how_long_it_was() {
    let limits = Limits { max_output_queue: 4 << 10, ..Limits::default() };
    let (mut bus, ann, _, worker, session) = kept(shared(), limits);
    for number in 0..40 {
        bus.utters(worker, &number.to_string());
        bus.sees(ann);
    }
    let later = bus.keeper();
    bus.stops_reading(later);
    bus.advances(Duration::from_millis(100));
    bus.sends(ann, &format!(r#"{{"id":10,"method":"_bus/close","params":{{"session":"{session}"}}}}"#));
    bus.reads_again(later);
    let told = bus.all_unseen(later);
    assert!(told.len() < 40, "{told:?}");
    let last = &told.last().unwrap()["params"];
    assert_eq!((&last["ended"], &last["n"]), (&json!(true), &json!(40)));
    assert!(bus.bus.keeper.missed_lines >= 40 - told.len() as u64);
}

#[test]
fn a_long_log_is_told_in_parts() {
    let (max_output_queue, session_log_bytes) = (8 << 20, 8 << 20);
    let limits = Limits { work_piece: 4, max_output_queue, session_log_bytes, ..Limits::default() };
    let (mut bus, ann, _, worker, _) = kept(shared(), limits);
    for _ in 0..200 {
        bus.utters(worker, &"x".repeat(10_000));
        bus.sees(ann);
    }
    let later = bus.keeper();
    bus.stops_reading(later);
    let mut most = 0;
    for _ in 0..100 {
        let before = bus.bus.links.queued_bytes(later);
        bus.shell.now += Duration::from_micros(1);
        bus.handles(Event::Alarm);
        most = most.max(bus.bus.links.queued_bytes(later) - before);
    }
    assert!((1 << 17..1 << 19).contains(&most), "{most}");
    // A line that is said meanwhile does not make the bus look at the log.
    bus.reads_again(later);
    let told = bus.all_unseen(later);
    assert_eq!(told.iter().filter(|line| line["params"]["message"].is_object()).count(), 200);
}

#[test]
fn what_the_log_has_dropped_is_told_by_the_keeper_without_a_seam() {
    let (mut bus, _, keeper, worker, session) = with_a_short_log();
    bus.all_unseen(keeper);
    let ben = bus.acp_client();
    bus.all_unseen(ben);
    bus.sends(ben, ATTACH);
    let asked = bus.asked_for_past(keeper);
    assert_eq!((&asked["session"], &asked["cursor"]), (&json!("s1"), &json!("")));
    let before = asked["before"].as_u64().unwrap();
    assert!((1..9).contains(&before), "{asked}");
    bus.answers_past(keeper, &asked, &["earlier", "0"], 1, false);
    // What is said meanwhile is heard too, and what the log drops meanwhile is asked for.
    let asked = bus.asked_for_past(keeper);
    assert_eq!(asked["cursor"], json!("1"));
    bus.utters(worker, "10");
    assert_eq!(bus.told(keeper)["n"], json!(11));
    let rest: Vec<String> = (1..=before + 1).map(|number| number.to_string()).collect();
    // A message of the file may be of several lines, of which the log still has some.
    bus.answers_past(keeper, &asked, &rest.iter().map(String::as_str).collect::<Vec<_>>(), before + 2, true);
    let (texts, is_truncated) = bus.joined(ben, &session);
    let all: Vec<String> = (0..11).map(|number| number.to_string()).collect();
    assert_eq!((&texts[0], &texts[1..], is_truncated), (&"earlier".to_owned(), &all[..], false));
    bus.all_unseen(ben);
    bus.utters(worker, "live");
    assert_eq!(bus.sees_json(ben)["params"]["update"]["content"]["text"], json!("live"));
    // Nobody else can tell what was said.
    bus.sends(ben, r#"{"id":3,"method":"_bus/past","params":{}}"#);
    assert!(bus.sees_json(ben)["error"].is_object());
}

#[test]
fn a_client_joins_also_when_the_keeper_leaves_or_says_nothing() {
    for leaves in [true, false] {
        let (mut bus, _, keeper, _, session) = with_a_short_log();
        bus.all_unseen(keeper);
        let ben = bus.acp_client();
        bus.all_unseen(ben);
        bus.sends(ben, ATTACH);
        bus.asked_for_past(keeper);
        bus.sees_nothing(ben);
        if leaves {
            bus.handles(Event::Broken(keeper));
        }
        bus.advances(Duration::from_secs(20));
        let (texts, is_truncated) = bus.joined(ben, &session);
        assert_eq!((texts.last().map(String::as_str), is_truncated), (Some("9"), true));
    }
}

#[test]
fn clients_that_wait_and_do_not_read_do_not_keep_the_bus_busy() {
    let limits = Limits {
        session_log_bytes: 20_000,
        max_output_queue: 8192,
        work_piece: 4,
        session_keep: Duration::from_secs(60),
        ..Limits::default()
    };
    let (mut bus, _, keeper, worker, _) = kept(shared(), limits);
    for _ in 0..40 {
        bus.utters(worker, &"x".repeat(1000));
    }
    bus.advances(Duration::from_millis(1));
    bus.all_unseen(keeper);
    for _ in 0..2 {
        let client = bus.acp_client();
        bus.all_unseen(client);
        bus.stops_reading(client);
        // The answer, which repeats the id, leaves no room for a page.
        bus.sends(client, &json!({"id": "i".repeat(3500), "method": "_bus/none"}).to_string());
        bus.sends(client, ATTACH);
    }
    assert!(bus.all_unseen(keeper).is_empty(), "there is no room for a page");
    let (until, mut rung) = (bus.now + Duration::from_millis(100), 0);
    while let Some(at) = bus.bus.next_alarm().filter(|at| *at <= until) {
        rung += 1;
        assert!(rung < 100, "the bus looks again and again");
        bus.shell.now = at.max(bus.now);
        bus.handles(Event::Alarm);
    }
    assert!(rung > 1, "it does look again");
}

#[test]
fn a_client_that_leaves_while_it_waits_is_forgotten() {
    let (mut bus, _, keeper, _, _) = with_a_short_log();
    bus.all_unseen(keeper);
    let ben = bus.acp_client();
    bus.sends(ben, ATTACH);
    let asked = bus.asked_for_past(keeper);
    bus.handles(Event::Broken(ben));
    bus.answers_past(keeper, &asked, &["0"], 1, false);
    bus.sees_nothing(keeper);
}

#[test]
fn what_is_said_to_a_client_of_another_bus_is_kept_there_and_not_here() {
    let (mut bus, _, keeper, worker, _) = kept(shared(), Limits::default());
    let pipe = bus.acp_client();
    bus.sends(pipe, r#"{"id":0,"method":"_bus/hello","params":{"pool":"agents","role":"pipe"}}"#);
    bus.all_unseen(pipe);
    bus.opens(pipe, worker, "s2");
    let params = r#"{"sessionId":"s2","update":{"sessionUpdate":"plan","entries":[]}}"#;
    let tells = format!(r#"{{"method":"session/update","params":{params}}}"#);
    bus.sends(worker, &tells);
    bus.reloads(&Config::with_pools([PoolConfig { max_sessions: 7, ..shared() }]));
    bus.sends(worker, &tells);
    bus.sees_nothing(keeper);
}
