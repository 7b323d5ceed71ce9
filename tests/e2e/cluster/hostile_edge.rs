//! An edge that says what it likes: with its key it has the pools that are offered and its own sessions, and nothing
//! else of the node.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use super::{NatsServer, node, node_config, with_session};
use crate::harness::{BUS, Bus, request, run};

/// A pipe to the node n1, at whose near end is no bus but this test.
struct HostileEdge {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl HostileEdge {
    fn start(nats: &NatsServer, pool: &str) -> HostileEdge {
        let mut worker = Command::new(BUS);
        worker.args(["agent", "nats", "--pool", pool, "--url", &nats.url(), "--name", "e9"]);
        worker.env("STDIO_BUS_NODE", "n1").env("HOME", nats.folder());
        worker.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = worker.spawn().expect("it runs");
        let (stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        HostileEdge { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// The answer to a request.
    fn asks(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.says(id, &request(id, method, params))
    }

    fn says(&mut self, id: u32, line: &str) -> Value {
        self.stdin.write_all(format!("{line}\n").as_bytes()).expect("it reads");
        loop {
            let mut line = String::new();
            self.stdout.read_line(&mut line).expect("it writes");
            assert!(!line.is_empty(), "the pipe has ended");
            let message: Value = serde_json::from_str(&line).expect("JSON");
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
        }
    }
}

impl Drop for HostileEdge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_edge_has_the_offered_pool_and_its_own_sessions_and_nothing_else() {
    let Some(nats) = NatsServer::start() else { return };
    let mut file = node_config(&nats.url(), "n1", json!({}));
    let mut own = file["pools"][0].clone();
    own["id"] = json!("own");
    file["pools"].as_array_mut().expect("a list").push(own);
    file["default_pool"] = json!("echo");
    let node = node(file);
    let (mut local, session) = with_session(&node);
    local.takes_turn(3, &session, "a secret of this machine");
    let mut edge = HostileEdge::start(&nats, "echo");
    edge.asks(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }));
    for (id, method) in (10..).zip([
        "hello", "status", "sessions", "trace", "logs", "reload", "stop", "restart", "drain", "close", "bye",
    ]) {
        let answer = edge.asks(id, &format!("_bus/{method}"), json!({ "pool": "own", "session": "s1" }));
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
    }
    let (_, agent) = session.split_once('.').expect("a tag");
    for (id, name) in (30..).zip(["s0", "s1", "s2", agent]) {
        for method in ["_bus/attach", "_bus/take", "session/attach"] {
            let answer = edge.asks(id, method, json!({ "sessionId": name }));
            assert_eq!(answer["error"]["data"]["reason"], "unknown_session", "{method} {name}: {answer}");
        }
    }
    let load = edge.asks(40, "session/load", json!({ "sessionId": agent, "cwd": "/", "mcpServers": [] }));
    assert_eq!(load["error"]["data"]["reason"], "unknown_session", "{load}");
    let listed = edge.asks(41, "session/list", json!({})).to_string();
    assert!(!listed.contains(agent), "{listed}");
    let new = json!({ "jsonrpc": "2.0", "id": 42, "method": "session/new", "pool": "own",
        "params": { "cwd": "/", "mcpServers": [] } });
    let answer = edge.says(42, &new.to_string());
    assert_eq!(answer["error"]["data"]["reason"], "unknown_pool", "{answer}");
    let meta = json!({ "cwd": "/", "mcpServers": [], "_meta": { "bus/pool": "own" } });
    let answer = edge.asks(43, "session/new", meta);
    assert_eq!(answer["error"]["data"]["reason"], "unknown_pool", "{answer}");
    // What it may do, it can, and the node is as it was.
    let answer = edge.asks(44, "session/new", json!({ "cwd": "/", "mcpServers": [] }));
    assert!(answer["result"]["sessionId"].is_string(), "{answer}");
    assert_eq!(local.takes_turn(4, &session, "still here").0.trim(), "still here");
    // It cannot keep others away from the node.
    let mut drain = Command::new(BUS);
    drain.args(["nodes", "--url", &nats.url(), "--name", "e9", "--drain", "n1"]);
    let refused = drain.env("HOME", nats.folder()).output().expect("it runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(77) && words.contains("\"edges_drain\": true"), "{words}");
    let listed = run(nats.folder(), &["nodes", "--url", &nats.url(), "--json"], "");
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    assert_eq!(listed[0]["drain"], false, "{listed}");
    // Nor does it get a pipe to the other pool.
    let mut other = Command::new(BUS);
    other.args(["agent", "nats", "--pool", "own", "--url", &nats.url(), "--name", "e9"]);
    let refused = other.env("STDIO_BUS_NODE", "n1").stdin(Stdio::null()).output().expect("it runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("is not offered"), "{words}");
}

#[test]
fn without_accounts_a_node_offers_nothing_unless_bus_json_says_that_it_is_meant() {
    let Some(nats) = NatsServer::start() else { return };
    let path = nats.folder().join("bus.json");
    let mut file = json!({
        "pools": [{ "id": "echo", "command": BUS, "args": ["agent", "echo"] }],
        "cluster": { "url": nats.url(), "offer": ["echo"] },
    });
    let check = |file: &Value| {
        std::fs::write(&path, file.to_string()).expect("our folder");
        let checked = run(nats.folder(), &["check", "--config", path.to_str().expect("UTF-8")], "");
        (checked.status.success(), String::from_utf8_lossy(&checked.stderr).into_owned())
    };
    let (is_good, words) = check(&file);
    assert!(!is_good && words.contains("cluster.offer") && words.contains("\"insecure\": true"), "{words}");
    file["cluster"]["insecure"] = json!(true);
    let (is_good, words) = check(&file);
    assert!(is_good && words.contains("warning: cluster.insecure"), "{words}");
    file["cluster"].as_object_mut().expect("an object").remove("offer");
    let (is_good, words) = check(&file);
    assert!(is_good && words.contains("can pass for a node"), "{words}");
    let by_hand = run(nats.folder(), &["link", &nats.url(), "--offer", "echo", "--tcp", "127.0.0.1:1"], "");
    let words = String::from_utf8_lossy(&by_hand.stderr).into_owned();
    assert!(by_hand.status.code() == Some(78) && words.contains("--insecure"), "{words}");
    let node = Bus::start(node_config(&nats.url(), "n1", json!({})));
    node.log_has("can run commands here as the user of this bus");
}
