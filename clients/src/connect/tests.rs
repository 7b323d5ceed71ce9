//! Stories in which the test plays both the IDE and the bus, with `connect` between them.

mod attach;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernel_core::config::Address;
use serde_json::{Value, json};

use super::*;
use crate::Target;

/// Keeps a missing line from hanging the test.
const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

struct Stage {
    listener: TcpListener,
    ide_out: Option<UnixStream>,
    ide_in: BufReader<UnixStream>,
    ended: JoinHandle<Result<Ended, Fault>>,
}

/// The bus's end of one connection.
struct BusSide {
    reader: BufReader<TcpStream>,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Options)) -> Stage {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let addresses = vec![Address::Tcp { host: "127.0.0.1".into(), port }];
        let target = Target { addresses, token: None, user_bus: None };
        let env = BTreeMap::new();
        let mut options =
            Options { target, pool: None, attach: None, bye: false, env, start: None, node: None };
        change(&mut options);
        let (ide_out, input) = UnixStream::pair().unwrap();
        let (ide_in, output) = UnixStream::pair().unwrap();
        ide_in.set_read_timeout(TEST_TIMEOUT).unwrap();
        let own = |stream| File::from(OwnedFd::from(stream));
        let ended = thread::spawn(move || run(&options, own(input), own(output), &Signals::none().unwrap()));
        Stage { listener, ide_out: Some(ide_out), ide_in: BufReader::new(ide_in), ended }
    }

    /// Accepts the next connection.
    fn accepts(&self) -> BusSide {
        let (stream, _) = self.listener.accept().unwrap();
        stream.set_read_timeout(TEST_TIMEOUT).unwrap();
        BusSide { reader: BufReader::new(stream) }
    }

    /// Accepts the next connection and answers its hello.
    fn admits(&self) -> BusSide {
        let mut bus = self.accepts();
        let hello = bus.is_asked("_bus/hello");
        bus.answers(&hello, json!({ "bus": "stdio-bus" }));
        bus
    }

    fn says(&mut self, line: &str) {
        writeln!(self.ide_out.as_ref().unwrap(), "{line}").unwrap();
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.ide_in.read_line(&mut line).unwrap();
        assert!(line.pop() == Some('\n'), "the IDE was to hear something, not {line:?}");
        line
    }

    /// Expects an error answer with this id, code and reason.
    fn hears_error(&mut self, id: i32, code: i32, reason: &str) {
        let message: Value = self.hears().parse().unwrap();
        let error = &message["error"];
        let heard = (&message["id"], &error["code"], &error["data"]["reason"]);
        assert_eq!(heard, (&json!(id), &json!(code), &json!(reason)), "{message}");
    }

    /// Lets the IDE initialize, with these agent capabilities, and open the session `t.s`.
    fn opens(&mut self, bus: &mut BusSide, offers: Value) {
        self.says(INITIALIZE);
        let asked = bus.is_asked("initialize");
        bus.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": offers }));
        self.hears();
        self.says(r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#);
        let asked = bus.is_asked("session/new");
        bus.answers(&asked, json!({ "sessionId": "t.s" }));
        self.hears();
    }

    /// The IDE closes its side.
    fn closes(&mut self) {
        self.ide_out = None;
    }

    /// Returns how `connect` ended, and checks that the IDE has read everything.
    fn end(mut self) -> Result<Ended, Fault> {
        self.ide_out = None;
        let mut rest = String::new();
        self.ide_in.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.ended.join().unwrap()
    }
}

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0", "id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":1,"clientCapabilities":{}}}"#
);
/// The params with which a session that `opens` opened is reopened.
fn reopened() -> Value {
    json!({ "sessionId": "t.s", "cwd": "/w", "mcpServers": [], "_meta": { "bus/replay": false } })
}

const PERMISSION: &str =
    r#""method":"session/request_permission","params":{"sessionId":"t.s","toolCall":{}}"#;

impl BusSide {
    /// The next line verbatim, without its newline.
    fn reads(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        assert!(line.pop() == Some('\n'), "the bus was to hear something, not {line:?}");
        line
    }

    fn is_asked(&mut self, method: &str) -> Value {
        let message: Value = self.reads().parse().unwrap();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    fn writes(&mut self, line: &str) {
        writeln!(self.reader.get_mut(), "{line}").unwrap();
    }

    fn answers(&mut self, asked: &Value, result: Value) {
        self.writes(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string());
    }

    fn refuses(&mut self, asked: &Value, code: i32, reason: &str) {
        let error = json!({ "code": code, "message": "no", "data": { "reason": reason } });
        self.writes(&json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }).to_string());
    }

    /// Expects the end of the connection.
    fn is_closed(&mut self) {
        let mut rest = String::new();
        self.reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn a_hello_goes_first_and_lines_pass_verbatim() {
    let mut stage = Stage::with(|options| options.pool = Some("claude".to_owned()));
    stage.says(r#"{ "id" : 1.0, "method":"m" }"#);
    let mut bus = stage.accepts();
    let hello = bus.is_asked("_bus/hello");
    let params = json!({ "client": "stdio-bus connect", "pool": "claude" });
    assert_eq!(hello["params"], params);
    bus.answers(&hello, json!({}));
    assert_eq!(bus.reads(), r#"{ "id" : 1.0, "method":"m" }"#);
    bus.writes("not a message");
    bus.writes("{\"method\":\"tell\",  \"params\":\"\\u0041\"}\r");
    assert_eq!(stage.hears(), "{\"method\":\"tell\",  \"params\":\"\\u0041\"}\r");
    bus.writes(r#"{"result":{"x":1.50} , "id":1.0}"#);
    assert_eq!(stage.hears(), r#"{"result":{"x":1.50} , "id":1.0}"#);
    stage.closes();
    assert_eq!(bus.reads(), r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
    bus.is_closed();
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn pending_answers_are_delivered_after_the_ide_has_closed_its_side() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.says(r#"{"id":1,"method":"one"}"#);
    bus.writes(&format!(r#"{{"id":7,{PERMISSION}}}"#));
    stage.hears();
    // The last line lacks its newline.
    write!(stage.ide_out.as_ref().unwrap(), r#"{{"id":2,"method":"two"}}"#).unwrap();
    stage.closes();
    assert_eq!((bus.is_asked("one")["id"].clone(), bus.is_asked("two")["id"].clone()), (json!(1), json!(2)));
    // No IDE is left to answer the agent.
    let gone: Value = bus.reads().parse().unwrap();
    assert_eq!((&gone["id"], &gone["error"]["data"]["reason"]), (&json!(7), &json!("client_gone")));
    bus.writes(&format!(r#"{{"id":8,{PERMISSION}}}"#));
    assert!(bus.reads().contains("client_gone"));
    for id in [2, 1] {
        bus.writes(&format!(r#"{{"id":{id},"result":{{}}}}"#));
        assert_eq!(stage.hears(), format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert_eq!(bus.reads(), r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
    bus.is_closed();
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_refusal_is_the_answer_to_the_first_request() {
    let mut stage = Stage::new();
    let mut bus = stage.accepts();
    let hello = bus.is_asked("_bus/hello");
    let error = r#"{"code":-32052,"message":"there is no pool \"x\"","data":{"pools":["a","b"]}}"#;
    bus.writes(&format!(r#"{{"id":{},"error":{error}}}"#, hello["id"]));
    bus.is_closed();
    stage.says(r#"{"method":"told"}"#);
    stage.says(r#"{"id":"i","method":"initialize"}"#);
    assert_eq!(stage.hears(), format!(r#"{{"jsonrpc":"2.0","id":"i","error":{error}}}"#));
    let fault = stage.end().unwrap_err();
    assert!(fault.to_string().ends_with(r#"refuses: there is no pool "x" (it has a, b)"#), "{fault}");
    assert_eq!(fault.exit_code(), 1);
}

#[test]
fn a_bus_that_comes_back_without_the_pool_is_a_refusal() {
    let mut stage = Stage::new();
    drop(stage.admits());
    let mut bus = stage.accepts();
    let hello = bus.is_asked("_bus/hello");
    bus.refuses(&hello, -32052, "unknown_pool");
    bus.is_closed();
    stage.says(r#"{"id":1,"method":"m"}"#);
    stage.hears_error(1, -32052, "unknown_pool");
    assert_eq!(stage.end().unwrap_err().exit_code(), 1);
}

#[test]
fn a_missing_bus_and_another_server_are_the_same_fault() {
    for said in ["", "HTTP/1.1 400 Bad Request\n"] {
        let stage = Stage::new();
        let mut bus = stage.accepts();
        bus.is_asked("_bus/hello");
        bus.reader.get_mut().write_all(said.as_bytes()).unwrap();
        drop(bus);
        let fault = stage.end().unwrap_err();
        assert!(fault.to_string().starts_with("no bus answers at tcp://127.0.0.1:"), "{fault}");
        assert_eq!(fault.exit_code(), 69);
    }
    let stage = Stage::with(|options| options.target.addresses = vec![Address::Unix("/no/such.sock".into())]);
    assert_eq!(stage.end().unwrap_err().exit_code(), 69);
}

#[test]
fn a_broken_connection_is_replaced_and_sessions_are_reopened() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({ "loadSession": true }));
    stage.says(r#"{"id":2,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    bus.is_asked("session/prompt");
    drop(bus);
    stage.hears_error(2, -32050, "worker_lost");
    stage.says(r#"{"id":3,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    stage.says(r#"{"method":"session/cancel","params":{"sessionId":"t.s"}}"#);

    let mut bus = stage.admits();
    let again = bus.reads();
    let message: Value = again.parse().unwrap();
    assert_eq!(again, INITIALIZE.replace(r#""id":0"#, &format!(r#""id":{}"#, message["id"])));
    bus.answers(&message, json!({ "agentCapabilities": { "loadSession": true } }));
    let resume = bus.is_asked("session/resume");
    assert_eq!(resume["params"], reopened());
    bus.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","missed":1}}"#);
    bus.answers(&resume, json!({}));
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"t.s","missed":1}}"#);
    assert_eq!(bus.is_asked("session/prompt")["id"], 3);
    bus.is_asked("session/cancel");
    bus.writes(r#"{"id":3,"result":{}}"#);
    assert_eq!(stage.hears(), r#"{"id":3,"result":{}}"#);
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_login_is_replayed_before_sessions_are_reopened_until_its_logout() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    let end = |bus: &mut BusSide, asked: &Value, good: bool| {
        if good {
            bus.answers(asked, json!({}));
        } else {
            bus.refuses(asked, -32000, "no_login");
        }
    };
    let say = |stage: &mut Stage, bus: &mut BusSide, method: &str, good: bool| {
        stage.says(&format!(r#"{{"id":2,"method":"{method}","params":{{"methodId":"key","good":{good}}}}}"#));
        let asked = bus.is_asked(method);
        end(bus, &asked, good);
        stage.hears();
    };
    say(&mut stage, &mut bus, "authenticate", true);
    say(&mut stage, &mut bus, "authenticate", false);
    for login_holds in [true, false] {
        drop(bus);
        bus = stage.admits();
        let asked = bus.is_asked("initialize");
        bus.answers(&asked, json!({ "agentCapabilities": {} }));
        let asked = bus.is_asked("authenticate");
        assert_eq!(asked["params"], json!({ "methodId": "key", "good": true }));
        end(&mut bus, &asked, login_holds);
        let asked = bus.is_asked("session/resume");
        bus.answers(&asked, json!({}));
    }
    say(&mut stage, &mut bus, "logout", true);
    drop(bus);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({ "agentCapabilities": {} }));
    let asked = bus.is_asked("session/resume");
    bus.answers(&asked, json!({}));
    say(&mut stage, &mut bus, "anything", true);
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn updates_replayed_by_a_load_are_not_forwarded() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({ "loadSession": true }));
    drop(bus);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({ "agentCapabilities": { "loadSession": true } }));
    let asked = bus.is_asked("session/resume");
    bus.refuses(&asked, -32601, "no_method");
    let asked = bus.is_asked("session/load");
    assert_eq!(asked["params"], reopened());
    bus.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","old":1}}"#);
    bus.writes(r#"{"method":"session/update","params":{"sessionId":"other"}}"#);
    bus.answers(&asked, json!({}));
    bus.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","new":1}}"#);
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"other"}}"#);
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"t.s","new":1}}"#);
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn sessions_that_are_closed_or_cannot_be_reopened_are_dropped() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    stage.says(r#"{"id":2,"method":"session/load","params":{"sessionId":"mine","cwd":"/"}}"#);
    let asked = bus.is_asked("session/load");
    bus.answers(&asked, json!({}));
    stage.hears();
    stage.says(r#"{"id":3,"method":"session/close","params":{"sessionId":"t.s"}}"#);
    let asked = bus.is_asked("session/close");
    bus.answers(&asked, json!({}));
    stage.hears();
    drop(bus);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({ "agentCapabilities": {} }));
    let asked = bus.is_asked("session/resume");
    assert_eq!(asked["params"]["sessionId"], "mine");
    bus.refuses(&asked, -32051, "unknown_session");
    stage.says(r#"{"id":4,"method":"session/prompt","params":{"sessionId":"mine"}}"#);
    stage.hears_error(4, -32051, "unknown_session");
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_repeated_request_of_an_agent_reaches_the_ide_once() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    let other = PERMISSION.replace("{}", r#"{"x":1}"#);
    bus.writes(&format!(r#"{{"id":5,{PERMISSION}}}"#));
    bus.writes(&format!(r#"{{"id":6,{other}}}"#));
    assert_eq!(stage.hears(), format!(r#"{{"id":5,{PERMISSION}}}"#));
    assert_eq!(stage.hears(), format!(r#"{{"id":6,{other}}}"#));
    drop(bus);
    // One answer comes while there is no bus.
    stage.says(r#"{"id":6,"result":"lost"}"#);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({}));
    let asked = bus.is_asked("session/resume");
    bus.writes(&format!(r#"{{"id":6,{PERMISSION}}}"#));
    bus.writes(r#"{"id":5,"method":"fs/read_text_file","params":{}}"#);
    bus.writes(r#"{"method":"$/cancel_request","params":{"requestId":6}}"#);
    bus.answers(&asked, json!({}));
    // Neither the same id nor the same request arrives twice.
    let fresh: Value = stage.hears().parse().unwrap();
    assert_eq!(fresh["method"], "fs/read_text_file");
    assert!(fresh["id"].is_string(), "{fresh}");
    assert_eq!(stage.hears(), r#"{"method":"$/cancel_request","params":{"requestId":5}}"#);
    stage.says(&format!(r#"{{"id":{},"result":"file"}}"#, fresh["id"]));
    stage.says(r#"{"result":"yes", "id":5}"#);
    stage.says(r#"{"id":5,"result":"twice"}"#);
    assert_eq!(bus.reads(), r#"{"id":5,"result":"file"}"#);
    assert_eq!(bus.reads(), r#"{"result":"yes", "id":6}"#);
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_bus_that_is_not_ready_is_dialed_again() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    drop(bus);
    let mut bus = stage.accepts();
    let asked = bus.is_asked("_bus/hello");
    bus.refuses(&asked, -32055, "stopping");
    bus.is_closed();
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.refuses(&asked, -32053, "pool_down");
    bus.is_closed();
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({}));
    let asked = bus.is_asked("session/resume");
    bus.answers(&asked, json!({}));
    stage.says(r#"{"id":9,"method":"m"}"#);
    assert_eq!(bus.is_asked("m")["id"], 9);
    bus.writes(r#"{"id":9,"result":1}"#);
    stage.hears();
    stage.closes();
    bus.is_asked("_bus/bye");
    drop(bus);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn large_lines_pass_both_ways_at_once_at_the_speed_of_the_ide() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    let big = format!(r#"{{"id":1,"method":"m","params":"{}"}}"#, "x".repeat(9 << 20));
    let notification = big.replace(r#""id":1,"#, "");
    let reader = bus.reader.get_ref().try_clone().unwrap();
    thread::scope(|scope| {
        let (mut ide, big) = (stage.ide_out.as_ref().unwrap(), &big);
        scope.spawn(move || writeln!(ide, "{big}").unwrap());
        // Nothing is read until both sides have written.
        scope.spawn(|| writeln!(&reader, "{notification}").unwrap());
        assert_eq!(bus.reads(), *big);
        let mut heard = String::new();
        stage.ide_in.read_line(&mut heard).unwrap();
        assert_eq!(heard.trim_end(), notification);
    });
    stage.says(r#"{"id":2,"method":"m"}"#);
    bus.is_asked("m");
    drop(bus);
    drop(reader);
    stage.hears_error(1, -32050, "worker_lost");
    stage.hears_error(2, -32050, "worker_lost");
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn an_ide_that_closes_its_output_is_gone() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.says(r#"{"id":1,"method":"m"}"#);
    bus.is_asked("m");
    stage.ide_in.get_ref().shutdown(Shutdown::Both).unwrap();
    bus.is_asked("_bus/bye");
    bus.is_closed();
    assert_eq!(stage.ended.join().unwrap().unwrap(), Ended::Done);
}

#[test]
fn a_session_that_is_not_opened_again_is_told_as_lost() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    drop(bus);
    let mut bus = stage.admits();
    let asked = bus.is_asked("initialize");
    bus.answers(&asked, json!({}));
    let asked = bus.is_asked("session/resume");
    bus.refuses(&asked, -32051, "unknown_session");
    stage.says(r#"{"id":2,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    let heard: Value = stage.hears().parse().unwrap();
    assert_eq!((&heard["id"], &heard["error"]["code"]), (&json!(2), &json!(-32051)));
    assert_eq!(heard["error"]["data"], json!({ "reason": "unknown_session", "lost": true }));
    // It may be there again, and others are none of connect's business.
    stage.says(r#"{"id":3,"method":"session/prompt","params":{"sessionId":"t.other"}}"#);
    let asked = bus.is_asked("session/prompt");
    bus.answers(&asked, json!({}));
    stage.hears();
    stage.says(r#"{"id":4,"method":"session/load","params":{"sessionId":"t.s"}}"#);
    let asked = bus.is_asked("session/load");
    bus.answers(&asked, json!({}));
    stage.hears();
    stage.says(r#"{"id":5,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    bus.is_asked("session/prompt");
}

#[test]
fn a_bus_at_a_node_is_not_waited_for() {
    let mut stage = Stage::with(|options| options.node = Some("k1".to_owned()));
    let mut bus = stage.admits();
    stage.says(r#"{"id":1,"method":"m"}"#);
    bus.is_asked("m");
    drop(bus);
    let heard: Value = stage.hears().parse().unwrap();
    assert_eq!(heard["error"]["data"], json!({ "reason": "worker_lost", "node": "k1" }), "{heard}");
    // Whoever has started it answers what comes now.
    let fault = stage.end().unwrap_err();
    assert!(fault.exit_code() == 69 && fault.to_string().contains("k1"), "{fault}");
}

#[test]
fn the_bus_refuses_what_is_no_message() {
    let mut stage = Stage::new();
    let mut bus = stage.admits();
    stage.opens(&mut bus, json!({}));
    for line in ["nonsense", "[]", "{}", r#"{"id":null,"method":"m"}"#, r#"{"id":[],"method":"m"}"#] {
        stage.says(line);
        assert_eq!(bus.reads(), line);
        bus.writes(r#"{"id":null,"error":{"code":-32600,"message":"no"}}"#);
        assert!(stage.hears().contains("-32600"));
    }
    for line in [r#"{"id":@}"#, r#"{"id":@,"result":1,"error":{}}"#] {
        stage.says(&line.replace('@', "7"));
        let passed: Value = bus.reads().parse().unwrap();
        assert!(passed["id"].is_string(), "the id of no request of an agent: {passed}");
    }
    // An agent that waits is told that the answer was none.
    bus.writes(&format!(r#"{{"id":7,{PERMISSION}}}"#));
    stage.hears();
    stage.says(r#"{"id":7}"#);
    assert_eq!(bus.reads(), r#"{"id":7}"#);
    // An answer that nobody waits for is answered by nobody.
    stage.says(r#"{"id":7,"result":{}}"#);
    stage.says(r#"{"id":8,"method":"m"}"#);
    bus.is_asked("m");
}

#[test]
fn what_is_no_message_is_refused_also_without_a_bus() {
    for (line, code) in
        [("nonsense", -32700), ("[]", -32600), (r#"{"id":1}"#, -32600), (r#"{"id":1,"method":7}"#, -32600)]
    {
        let mut stage = Stage::new();
        let mut bus = stage.accepts();
        let hello = bus.is_asked("_bus/hello");
        bus.refuses(&hello, -32052, "unknown_pool");
        stage.says(line);
        let heard: Value = stage.hears().parse().unwrap();
        assert_eq!((&heard["id"], &heard["error"]["code"]), (&Value::Null, &json!(code)), "{heard}");
        assert!(stage.end().is_err());
    }
}

#[test]
fn variables_for_the_agent_are_part_of_initialize_also_after_a_restart_of_the_bus() {
    let mut stage = Stage::with(|options| _ = options.env.insert("KEY".to_owned(), "a\"b".to_owned()));
    let mut bus = stage.admits();
    let asked = |bus: &mut BusSide| bus.is_asked("initialize")["params"].clone();
    stage.says(r#"{"id":0,"method":"initialize","params":{"protocolVersion":1,"_meta":{"x":1}}}"#);
    let params = json!({ "protocolVersion": 1, "_meta": { "x": 1, "bus/env": { "KEY": "a\"b" } } });
    let initialize = bus.is_asked("initialize");
    assert_eq!(initialize["params"], params);
    bus.answers(&initialize, json!({ "protocolVersion": 1 }));
    stage.hears();
    drop(bus);
    let mut bus = stage.admits();
    assert_eq!(asked(&mut bus), params);
}
