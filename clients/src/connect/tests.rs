//! Stories of an IDE and a bus, both played by the test, with `connect` between them.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;

/// Long enough for any line that comes at all; without it, one that does not would hang the test.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

struct Stage {
    bus: TcpListener,
    to_connect: Option<UnixStream>,
    from_connect: BufReader<UnixStream>,
    ended: JoinHandle<Result<Ended, Fault>>,
}

/// One connection, as the bus sees it.
struct Line {
    reader: BufReader<TcpStream>,
}

impl Stage {
    fn new() -> Stage {
        Stage::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Options)) -> Stage {
        let bus = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = bus.local_addr().unwrap().port();
        let addresses = vec![Address::Tcp { host: "127.0.0.1".into(), port }];
        let mut options = Options { way: Way { addresses, token: None }, pool: None, start: None };
        change(&mut options);
        let (to_connect, input) = UnixStream::pair().unwrap();
        let (from_connect, output) = UnixStream::pair().unwrap();
        from_connect.set_read_timeout(PATIENCE).unwrap();
        let own = |stream| File::from(OwnedFd::from(stream));
        let ended = thread::spawn(move || run(&options, own(input), own(output), &Bell::deaf().unwrap()));
        Stage { bus, to_connect: Some(to_connect), from_connect: BufReader::new(from_connect), ended }
    }

    /// The next connection.
    fn accepts(&self) -> Line {
        let (stream, _) = self.bus.accept().unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        Line { reader: BufReader::new(stream) }
    }

    /// The next connection, its hello answered.
    fn welcomes(&self) -> Line {
        let mut line = self.accepts();
        let hello = line.is_asked("_bus/hello");
        line.answers(&hello, json!({ "bus": "stdio-bus" }));
        line
    }

    fn says(&mut self, line: &str) {
        writeln!(self.to_connect.as_ref().unwrap(), "{line}").unwrap();
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.from_connect.read_line(&mut line).unwrap();
        assert!(line.pop() == Some('\n'), "the IDE was to hear something, not {line:?}");
        line
    }

    /// The error, with this code and reason, that answers this.
    fn hears_error(&mut self, id: i32, code: i32, reason: &str) {
        let message: Value = self.hears().parse().unwrap();
        let error = &message["error"];
        let heard = (&message["id"], &error["code"], &error["data"]["reason"]);
        assert_eq!(heard, (&json!(id), &json!(code), &json!(reason)), "{message}");
    }

    /// Initialized by the IDE with these offers of the agent, and this session opened.
    fn opens(&mut self, line: &mut Line, offers: Value) {
        self.says(INITIALIZE);
        let asked = line.is_asked("initialize");
        line.answers(&asked, json!({ "protocolVersion": 1, "agentCapabilities": offers }));
        self.hears();
        self.says(r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#);
        let asked = line.is_asked("session/new");
        line.answers(&asked, json!({ "sessionId": "t.s" }));
        self.hears();
    }

    /// The IDE closes its side.
    fn closes(&mut self) {
        self.to_connect = None;
    }

    /// How it ended, with nothing unheard.
    fn end(mut self) -> Result<Ended, Fault> {
        self.to_connect = None;
        let mut rest = String::new();
        self.from_connect.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        self.ended.join().unwrap()
    }
}

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0", "id":0,"method":"initialize","#,
    r#""params":{"protocolVersion":1,"clientCapabilities":{}}}"#
);
const PERMISSION: &str =
    r#""method":"session/request_permission","params":{"sessionId":"t.s","toolCall":{}}"#;

impl Line {
    /// As it came, without its newline.
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

    /// Nothing more comes.
    fn is_closed(&mut self) {
        let mut rest = String::new();
        self.reader.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn a_hello_is_said_first_and_lines_pass_as_they_are() {
    let mut stage = Stage::with(|options| options.pool = Some("claude".to_owned()));
    stage.says(r#"{ "id" : 1.0, "method":"m" }"#);
    let mut line = stage.accepts();
    let hello = line.is_asked("_bus/hello");
    let params = json!({ "client": "stdio-bus connect", "pool": "claude" });
    assert_eq!(hello["params"], params);
    line.answers(&hello, json!({}));
    assert_eq!(line.reads(), r#"{ "id" : 1.0, "method":"m" }"#);
    line.writes("not a message");
    line.writes("{\"method\":\"tell\",  \"params\":\"\\u0041\"}\r");
    assert_eq!(stage.hears(), "{\"method\":\"tell\",  \"params\":\"\\u0041\"}\r");
    line.writes(r#"{"result":{"x":1.50} , "id":1.0}"#);
    assert_eq!(stage.hears(), r#"{"result":{"x":1.50} , "id":1.0}"#);
    stage.closes();
    assert_eq!(line.reads(), r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
    line.is_closed();
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn answers_in_flight_are_delivered_when_the_ide_has_closed_its_side() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.says(r#"{"id":1,"method":"one"}"#);
    line.writes(&format!(r#"{{"id":7,{PERMISSION}}}"#));
    stage.hears();
    // The last line lacks its newline.
    write!(stage.to_connect.as_ref().unwrap(), r#"{{"id":2,"method":"two"}}"#).unwrap();
    stage.closes();
    assert_eq!(
        (line.is_asked("one")["id"].clone(), line.is_asked("two")["id"].clone()),
        (json!(1), json!(2))
    );
    // Nobody is left to answer the agent.
    let gone: Value = line.reads().parse().unwrap();
    assert_eq!((&gone["id"], &gone["error"]["data"]["reason"]), (&json!(7), &json!("client_gone")));
    line.writes(&format!(r#"{{"id":8,{PERMISSION}}}"#));
    assert!(line.reads().contains("client_gone"));
    for id in [2, 1] {
        line.writes(&format!(r#"{{"id":{id},"result":{{}}}}"#));
        assert_eq!(stage.hears(), format!(r#"{{"id":{id},"result":{{}}}}"#));
    }
    assert_eq!(line.reads(), r#"{"jsonrpc":"2.0","method":"_bus/bye"}"#);
    line.is_closed();
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_refusal_is_the_answer_to_the_first_request() {
    let mut stage = Stage::new();
    let mut line = stage.accepts();
    let hello = line.is_asked("_bus/hello");
    let error = r#"{"code":-32052,"message":"there is no pool \"x\"","data":{"pools":["a","b"]}}"#;
    line.writes(&format!(r#"{{"id":{},"error":{error}}}"#, hello["id"]));
    line.is_closed();
    stage.says(r#"{"method":"told"}"#);
    stage.says(r#"{"id":"i","method":"initialize"}"#);
    assert_eq!(stage.hears(), format!(r#"{{"jsonrpc":"2.0","id":"i","error":{error}}}"#));
    let fault = stage.end().unwrap_err();
    assert!(fault.to_string().ends_with(r#"refuses: there is no pool "x" (it has a, b)"#), "{fault}");
    assert_eq!(fault.exit_code(), 1);
}

#[test]
fn a_bus_that_comes_back_without_our_pool_is_a_refusal() {
    let mut stage = Stage::new();
    drop(stage.welcomes());
    let mut line = stage.accepts();
    let hello = line.is_asked("_bus/hello");
    line.refuses(&hello, -32052, "unknown_pool");
    line.is_closed();
    stage.says(r#"{"id":1,"method":"m"}"#);
    stage.hears_error(1, -32052, "unknown_pool");
    assert_eq!(stage.end().unwrap_err().exit_code(), 1);
}

#[test]
fn no_bus_and_what_is_no_bus_are_the_same() {
    for said in ["", "HTTP/1.1 400 Bad Request\n"] {
        let stage = Stage::new();
        let mut line = stage.accepts();
        line.is_asked("_bus/hello");
        line.reader.get_mut().write_all(said.as_bytes()).unwrap();
        drop(line);
        let fault = stage.end().unwrap_err();
        assert!(fault.to_string().starts_with("no bus answers at tcp://127.0.0.1:"), "{fault}");
        assert_eq!(fault.exit_code(), 69);
    }
    let stage = Stage::with(|options| options.way.addresses = vec![Address::Unix("/no/such.sock".into())]);
    assert_eq!(stage.end().unwrap_err().exit_code(), 69);
}

#[test]
fn a_broken_connection_is_made_again_and_sessions_are_taken_up() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({ "loadSession": true }));
    stage.says(r#"{"id":2,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    line.is_asked("session/prompt");
    drop(line);
    stage.hears_error(2, -32050, "worker_lost");
    stage.says(r#"{"id":3,"method":"session/prompt","params":{"sessionId":"t.s"}}"#);
    stage.says(r#"{"method":"session/cancel","params":{"sessionId":"t.s"}}"#);

    let mut line = stage.welcomes();
    let again = line.reads();
    let message: Value = again.parse().unwrap();
    assert_eq!(again, INITIALIZE.replace(r#""id":0"#, &format!(r#""id":{}"#, message["id"])));
    line.answers(&message, json!({ "agentCapabilities": { "loadSession": true } }));
    let resume = line.is_asked("session/resume");
    assert_eq!(resume["params"], json!({ "sessionId": "t.s", "cwd": "/w", "mcpServers": [] }));
    line.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","missed":1}}"#);
    line.answers(&resume, json!({}));
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"t.s","missed":1}}"#);
    assert_eq!(line.is_asked("session/prompt")["id"], 3);
    line.is_asked("session/cancel");
    line.writes(r#"{"id":3,"result":{}}"#);
    assert_eq!(stage.hears(), r#"{"id":3,"result":{}}"#);
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_login_is_made_again_before_sessions_are_taken_up_until_its_logout() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({}));
    let end = |line: &mut Line, asked: &Value, good: bool| match good {
        true => line.answers(asked, json!({})),
        false => line.refuses(asked, -32000, "no_login"),
    };
    let say = |stage: &mut Stage, line: &mut Line, method: &str, good: bool| {
        stage.says(&format!(r#"{{"id":2,"method":"{method}","params":{{"methodId":"key","good":{good}}}}}"#));
        let asked = line.is_asked(method);
        end(line, &asked, good);
        stage.hears();
    };
    say(&mut stage, &mut line, "authenticate", true);
    say(&mut stage, &mut line, "authenticate", false);
    for login_holds in [true, false] {
        drop(line);
        line = stage.welcomes();
        let asked = line.is_asked("initialize");
        line.answers(&asked, json!({ "agentCapabilities": {} }));
        let asked = line.is_asked("authenticate");
        assert_eq!(asked["params"], json!({ "methodId": "key", "good": true }));
        end(&mut line, &asked, login_holds);
        let asked = line.is_asked("session/resume");
        line.answers(&asked, json!({}));
    }
    say(&mut stage, &mut line, "logout", true);
    drop(line);
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.answers(&asked, json!({ "agentCapabilities": {} }));
    let asked = line.is_asked("session/resume");
    line.answers(&asked, json!({}));
    say(&mut stage, &mut line, "anything", true);
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn what_a_load_tells_again_is_swallowed() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({ "loadSession": true }));
    drop(line);
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.answers(&asked, json!({ "agentCapabilities": { "loadSession": true } }));
    let asked = line.is_asked("session/resume");
    line.refuses(&asked, -32601, "no_method");
    let asked = line.is_asked("session/load");
    assert_eq!(asked["params"], json!({ "sessionId": "t.s", "cwd": "/w", "mcpServers": [] }));
    line.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","old":1}}"#);
    line.writes(r#"{"method":"session/update","params":{"sessionId":"other"}}"#);
    line.answers(&asked, json!({}));
    line.writes(r#"{"method":"session/update","params":{"sessionId":"t.s","new":1}}"#);
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"other"}}"#);
    assert_eq!(stage.hears(), r#"{"method":"session/update","params":{"sessionId":"t.s","new":1}}"#);
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn sessions_that_are_closed_or_cannot_be_taken_up_are_let_go() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({}));
    stage.says(r#"{"id":2,"method":"session/load","params":{"sessionId":"mine","cwd":"/"}}"#);
    let asked = line.is_asked("session/load");
    line.answers(&asked, json!({}));
    stage.hears();
    stage.says(r#"{"id":3,"method":"session/close","params":{"sessionId":"t.s"}}"#);
    let asked = line.is_asked("session/close");
    line.answers(&asked, json!({}));
    stage.hears();
    drop(line);
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.answers(&asked, json!({ "agentCapabilities": {} }));
    let asked = line.is_asked("session/resume");
    assert_eq!(asked["params"]["sessionId"], "mine");
    line.refuses(&asked, -32051, "unknown_session");
    stage.says(r#"{"id":4,"method":"session/prompt","params":{"sessionId":"mine"}}"#);
    let asked = line.is_asked("session/prompt");
    line.refuses(&asked, -32051, "unknown_session");
    stage.hears_error(4, -32051, "unknown_session");
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_question_that_is_asked_again_is_put_to_the_ide_once() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({}));
    let other = PERMISSION.replace("{}", r#"{"x":1}"#);
    line.writes(&format!(r#"{{"id":5,{PERMISSION}}}"#));
    line.writes(&format!(r#"{{"id":6,{other}}}"#));
    assert_eq!(stage.hears(), format!(r#"{{"id":5,{PERMISSION}}}"#));
    assert_eq!(stage.hears(), format!(r#"{{"id":6,{other}}}"#));
    drop(line);
    // One answer comes while there is no bus.
    stage.says(r#"{"id":6,"result":"lost"}"#);
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.answers(&asked, json!({}));
    let asked = line.is_asked("session/resume");
    line.writes(&format!(r#"{{"id":6,{PERMISSION}}}"#));
    line.writes(r#"{"id":5,"method":"fs/read_text_file","params":{}}"#);
    line.writes(r#"{"method":"$/cancel_request","params":{"requestId":6}}"#);
    line.answers(&asked, json!({}));
    // Neither the same id nor the same question twice.
    let fresh: Value = stage.hears().parse().unwrap();
    assert_eq!(fresh["method"], "fs/read_text_file");
    assert!(fresh["id"].is_string(), "{fresh}");
    assert_eq!(stage.hears(), r#"{"method":"$/cancel_request","params":{"requestId":5}}"#);
    stage.says(&format!(r#"{{"id":{},"result":"file"}}"#, fresh["id"]));
    stage.says(r#"{"result":"yes", "id":5}"#);
    stage.says(r#"{"id":5,"result":"twice"}"#);
    assert_eq!(line.reads(), r#"{"id":5,"result":"file"}"#);
    assert_eq!(line.reads(), r#"{"result":"yes", "id":6}"#);
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn a_bus_that_is_not_ready_is_tried_again() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.opens(&mut line, json!({}));
    drop(line);
    let mut line = stage.accepts();
    let asked = line.is_asked("_bus/hello");
    line.refuses(&asked, -32055, "stopping");
    line.is_closed();
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.refuses(&asked, -32053, "pool_down");
    line.is_closed();
    let mut line = stage.welcomes();
    let asked = line.is_asked("initialize");
    line.answers(&asked, json!({}));
    let asked = line.is_asked("session/resume");
    line.answers(&asked, json!({}));
    stage.says(r#"{"id":9,"method":"m"}"#);
    assert_eq!(line.is_asked("m")["id"], 9);
    line.writes(r#"{"id":9,"result":1}"#);
    stage.hears();
    stage.closes();
    line.is_asked("_bus/bye");
    drop(line);
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn large_lines_pass_both_ways_at_once_and_a_slow_ide_is_waited_for() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    let big = format!(r#"{{"id":1,"method":"m","params":"{}"}}"#, "x".repeat(9 << 20));
    let told = big.replace(r#""id":1,"#, "");
    let reader = line.reader.get_ref().try_clone().unwrap();
    thread::scope(|scope| {
        let (mut ide, big) = (stage.to_connect.as_ref().unwrap(), &big);
        scope.spawn(move || writeln!(ide, "{big}").unwrap());
        // Nobody reads until both have written.
        scope.spawn(|| writeln!(&reader, "{told}").unwrap());
        assert_eq!(line.reads(), *big);
        let mut heard = String::new();
        stage.from_connect.read_line(&mut heard).unwrap();
        assert_eq!(heard.trim_end(), told);
    });
    stage.says(r#"{"id":2,"method":"m"}"#);
    line.is_asked("m");
    drop(line);
    drop(reader);
    stage.hears_error(1, -32050, "worker_lost");
    stage.hears_error(2, -32050, "worker_lost");
    assert_eq!(stage.end().unwrap(), Ended::Done);
}

#[test]
fn an_ide_that_reads_nothing_more_is_gone() {
    let mut stage = Stage::new();
    let mut line = stage.welcomes();
    stage.says(r#"{"id":1,"method":"m"}"#);
    line.is_asked("m");
    stage.from_connect.get_ref().shutdown(Shutdown::Both).unwrap();
    line.is_asked("_bus/bye");
    line.is_closed();
    assert_eq!(stage.ended.join().unwrap().unwrap(), Ended::Done);
}
