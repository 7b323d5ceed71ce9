//! Several buses: pools whose workers are at other buses, reached by `connect` as ssh would run it.

use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{BUS, Bus, Client, initialize, puppets, request, session_of, update, write_script};
use crate::history::{files, writes};

/// What several machines share in these tests: a folder with their sockets, what their agents store, and a program
/// that does what ssh does, as far as it finds the machine.
struct Machines {
    shelf: TempDir,
}

impl Machines {
    fn new() -> Machines {
        let shelf = tempfile::tempdir().expect("a folder");
        let folder = shelf.path().display();
        let script = format!(
            "unset STDIO_BUS_NODE\n\
             [ -e {folder}/$1.up ] || {{ echo \"ssh: connect to host $1: No route to host\" >&2; exit 255; }}\n\
             socket={folder}/$1.sock; shift 2; exec {BUS} \"$@\" --unix $socket\n"
        );
        write_script(shelf.path(), "ssh", &script);
        Machines { shelf }
    }

    fn path(&self, name: &str) -> String {
        self.shelf.path().join(name).display().to_string()
    }

    /// A bus of this name with this pool.
    fn bus(&self, name: &str, pool: Value) -> Bus {
        Bus::start(self.config(name, pool))
    }

    /// The same, which keeps what is said in the folder `NAME.kept`.
    fn keeping(&self, name: &str, pool: Value) -> Bus {
        let mut config = self.config(name, pool);
        config["history"] = json!({ "folder": self.path(&format!("{name}.kept")) });
        Bus::start(config)
    }

    fn config(&self, name: &str, pool: Value) -> Value {
        std::fs::write(self.path(&format!("{name}.up")), "").expect("it can be written");
        let listen = format!("unix://{}", self.path(&format!("{name}.sock")));
        json!({ "name": name, "listen": [listen], "pools": [pool] })
    }

    /// A node whose agent stores its sessions on its disk.
    fn node(&self, name: &str) -> Bus {
        let args = json!(["agent", "echo", "--state", self.path(&format!("{name}.state"))]);
        self.bus(name, json!({ "id": "echo", "command": "stdio-bus", "args": args }))
    }

    /// A bus in front of these nodes.
    fn edge(&self, name: &str, nodes: &[&str]) -> Bus {
        self.bus(name, self.agents_at(nodes))
    }

    fn agents_at(&self, nodes: &[&str]) -> Value {
        let args = json!(["{node}", "stdio-bus", "connect", "--pool", "echo"]);
        json!({ "id": "echo", "command": self.path("ssh"), "args": args, "nodes": nodes })
    }

    /// The machine can no longer be reached, and its bus is gone.
    fn lose(&self, name: &str, mut bus: Bus) {
        std::fs::remove_file(self.path(&format!("{name}.up"))).expect("it was up");
        kill_bus(&mut bus);
    }
}

fn kill_bus(bus: &mut Bus) {
    bus.signal(Signal::SIGKILL);
    bus.exit_status();
}

fn initialized(bus: &Bus) -> Client {
    let mut client = bus.client();
    client.sends(&initialize(0, json!({})));
    client.gets(0);
    client
}

/// The answer to a request, whatever comes before it.
fn answer_to(client: &mut Client, id: u32) -> Value {
    loop {
        let message = client.receives();
        if message["id"] == id && message.get("method").is_none() {
            return message;
        }
    }
}

fn opens(client: &mut Client, id: u32) -> String {
    client.sends(&request(id, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] })));
    session_of(&answer_to(client, id)["result"])
}

/// A session at this one of two nodes.
fn opens_at(client: &mut Client, node: &str) -> String {
    let sessions = [opens(client, 1), opens(client, 2)];
    let found = sessions.into_iter().find(|session| session.contains(&format!("{node}~")));
    found.expect("sessions are spread over the nodes")
}

fn loads(client: &mut Client, id: u32, session: &str) -> Value {
    client.sends(&request(
        id,
        "session/load",
        json!({ "sessionId": session, "cwd": "/tmp", "mcpServers": [] }),
    ));
    answer_to(client, id)
}

/// What the agent says in a turn. Other sessions may be told something meanwhile.
fn says(client: &mut Client, id: u32, session: &str, text: &str) -> String {
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    client.sends(&request(id, "session/prompt", prompt));
    let mut said = String::new();
    loop {
        let message = client.receives();
        if message["id"] == id && message.get("method").is_none() {
            assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
            return said;
        }
        let update = &message["params"]["update"];
        if message["params"]["sessionId"] == session && update["sessionUpdate"] == "agent_message_chunk" {
            said += update["content"]["text"].as_str().expect("text");
        }
    }
}

/// The pid of the process at this node, or of the only one of a pool without nodes.
fn process_at(client: &mut Client, node: &str) -> Pid {
    let status = client.status();
    let workers = status["pools"][0]["workers"].as_array().expect("workers");
    let is_there = |worker: &&Value| worker["node"].as_str().unwrap_or_default() == node;
    let worker = workers.iter().find(|worker| is_there(worker) && worker["pid"].is_u64());
    Pid::from_raw(worker.expect("it has a process")["pid"].as_i64().expect("a pid") as i32)
}

/// Looks by a client of its own, which hears of no session.
fn ends_process_at(bus: &Bus, node: &str) {
    let mut client = bus.client();
    let deaths = client.status()["counters"]["worker_deaths"].as_u64();
    kill(process_at(&mut client, node), Signal::SIGKILL).expect("it runs");
    bus.until("the death is known", || client.status()["counters"]["worker_deaths"].as_u64() > deaths);
}

#[test]
fn sessions_are_spread_over_nodes_and_say_where_they_live() {
    let machines = Machines::new();
    let _nodes = [machines.node("n17"), machines.node("n18")];
    let edge = machines.edge("e1", &["n17", "n18"]);
    let mut client = initialized(&edge);
    let at = [opens_at(&mut client, "n17"), opens_at(&mut client, "n18")];
    for (session, node) in at.iter().zip(["n17", "n18"]) {
        assert!(session.starts_with("e1~") && session.contains(&format!(".{node}~")), "{session}");
        assert_eq!(says(&mut client, 7, session, "hello"), "hello");
    }
    let mut client = edge.client();
    assert_eq!(client.status()["name"], "e1");
    let sessions = client.asks(8, "_bus/sessions", json!({}));
    let nodes: Vec<_> =
        sessions["sessions"].as_array().expect("a list").iter().map(|it| &it["node"]).collect();
    assert!(nodes.contains(&&json!("n17")) && nodes.contains(&&json!("n18")), "{sessions}");
}

#[test]
fn a_session_goes_on_after_the_death_of_what_is_between_and_of_either_bus() {
    let machines = Machines::new();
    let (mut far, _other) = (machines.node("n17"), machines.node("n18"));
    let mut edge = machines.edge("e1", &["n17", "n18"]);
    let mut client = initialized(&edge);
    let session = opens_at(&mut client, "n17");
    assert_eq!(says(&mut client, 3, &session, "one"), "one");
    // What ssh would be.
    ends_process_at(&edge, "n17");
    assert_eq!(says(&mut client, 4, &session, "two"), "two");
    // The bus of the node, and with it the agent.
    kill_bus(&mut far);
    let _far = machines.node("n17");
    ends_process_at(&edge, "n17");
    assert_eq!(says(&mut client, 5, &session, "three"), "three");
    // The bus in front.
    kill_bus(&mut edge);
    let edge = machines.edge("e1", &["n17", "n18"]);
    let mut client = initialized(&edge);
    assert!(loads(&mut client, 6, &session).get("error").is_none());
    assert_eq!(says(&mut client, 7, &session, "four"), "four");
}

#[test]
fn an_id_is_good_at_every_bus_in_front_of_its_node() {
    let machines = Machines::new();
    let (far, _other) = (machines.node("n17"), machines.node("n18"));
    let own = {
        let mut at_node = initialized(&far);
        let session = opens(&mut at_node, 1);
        says(&mut at_node, 2, &session, "mine");
        session
    };
    assert!(own.starts_with("n17~"), "{own}");
    let first = machines.edge("e1", &["n17", "n18"]);
    let of_first = {
        let mut client = initialized(&first);
        let session = opens_at(&mut client, "n18");
        says(&mut client, 3, &session, "first");
        session
    };
    let second = machines.edge("e2", &["n17", "n18"]);
    let mut client = initialized(&second);
    for (id, session) in [(4, own), (5, of_first)] {
        let answer = loads(&mut client, id, &session);
        assert!(answer.get("error").is_none(), "{answer}");
        assert_eq!(says(&mut client, id + 10, &session, "again"), "again");
    }
}

#[test]
fn a_node_that_is_away_is_named_and_others_serve_meanwhile() {
    let machines = Machines::new();
    let (_near, far) = (machines.node("n17"), machines.node("n18"));
    let edge = machines.edge("e1", &["n17", "n18"]);
    let mut client = initialized(&edge);
    let session = opens_at(&mut client, "n18");
    assert_eq!(says(&mut client, 3, &session, "one"), "one");
    machines.lose("n18", far);
    ends_process_at(&edge, "n18");
    // The next process finds no machine.
    let mut error = Value::Null;
    edge.until("the node is known to be away", || {
        client.prompts(4, &session);
        error = answer_to(&mut client, 4)["error"].clone();
        error["code"] == -32059
    });
    assert_eq!(
        (&error["data"]["reason"], &error["data"]["node"]),
        (&json!("node_lost"), &json!("n18")),
        "{error}"
    );
    assert!(error["data"]["stderr"].as_str().expect("last lines").contains("No route to host"), "{error}");
    for id in 5..8 {
        assert!(opens(&mut client, id).contains(".n17~"));
    }
    let _far = machines.node("n18");
    edge.until("the node is back", || {
        client.prompts(9, &session);
        answer_to(&mut client, 9).get("result").is_some()
    });
    assert_eq!(says(&mut client, 10, &session, "two"), "two");
}

#[test]
fn a_node_whose_bus_is_gone_is_not_waited_for_and_good_again_when_it_is_back() {
    let machines = Machines::new();
    let node = || {
        let state = machines.path("k1.state");
        let args = json!(["agent", "echo", "--state", state, "--chunks", "10", "--delay-ms", "100"]);
        machines.bus("k1", json!({ "id": "echo", "command": "stdio-bus", "args": args }))
    };
    let mut far = node();
    let args = json!(["connect", "--unix", machines.path("{node}.sock"), "--pool", "echo"]);
    let edge =
        machines.bus("e1", json!({ "id": "echo", "command": "stdio-bus", "args": args, "nodes": ["k1"] }));
    let mut client = initialized(&edge);
    let session = opens(&mut client, 1);
    says(&mut client, 2, &session, "one");
    client.prompts(3, &session);
    client.is_asked("session/update");
    let start = Instant::now();
    kill_bus(&mut far);
    let error = answer_to(&mut client, 3)["error"].clone();
    assert_eq!((&error["code"], &error["data"]["node"]), (&json!(-32050), &json!("k1")), "{error}");
    for id in 4..7 {
        client.prompts(id, &session);
        let error = answer_to(&mut client, id)["error"].clone();
        assert_eq!((&error["code"], &error["data"]["node"]), (&json!(-32059), &json!("k1")), "{error}");
    }
    // A client whose bus is lost waits half a minute for it.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let _far = node();
    edge.until("the node is back", || {
        client.prompts(8, &session);
        answer_to(&mut client, 8).get("result").is_some()
    });
    let text = "and it goes on";
    assert_eq!(says(&mut client, 9, &session, text), text);
}

#[test]
fn three_buses_in_a_row_carry_a_session_and_find_it_again() {
    let machines = Machines::new();
    let _far = machines.node("n17");
    let through = |name: &str| {
        let args = json!(["connect", "--pool", "echo", "--unix", machines.path(&format!("{name}.sock"))]);
        json!({ "id": "echo", "command": "stdio-bus", "args": args })
    };
    let mut middle = machines.bus("m1", through("n17"));
    let edge = machines.bus("e1", through("m1"));
    let mut client = initialized(&edge);
    let session = opens(&mut client, 1);
    let names: Vec<_> = session.split('~').filter_map(|part| part.rsplit('.').next()).collect();
    assert_eq!(names[..3], ["e1", "m1", "n17"], "{session}");
    assert_eq!(says(&mut client, 2, &session, "one"), "one");
    kill_bus(&mut middle);
    let _middle = machines.bus("m1", through("n17"));
    ends_process_at(&edge, "");
    assert_eq!(says(&mut client, 3, &session, "two"), "two");
    let mut other = initialized(&edge);
    let bare = session.split_once('.').expect("a tag").1;
    assert!(loads(&mut other, 4, bare).get("error").is_none(), "{bare}");
}

#[test]
fn errors_and_questions_pass_through_and_name_the_node() {
    let machines = Machines::new();
    let far = machines.bus("n17", puppets("echo", 1));
    let edge = machines.edge("e1", &["n17"]);
    let (mut client, mut puppet) = (edge.client(), far.puppet());
    let session = client.opens(&mut puppet, "s1");
    // A question of the agent, and its answer.
    client.prompts(1, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.asks_permission(7, "s1");
    let question = client.is_asked("session/request_permission");
    assert_eq!(question["params"]["sessionId"], session);
    client.answers(&question, json!({ "outcome": { "outcome": "cancelled" } }));
    puppet.gets(7);
    // What is between dies in the turn, which goes on.
    kill(process_at(&mut client, "n17"), Signal::SIGKILL).expect("it runs");
    let error = client.sees_error(1, -32050, "worker_lost");
    assert_eq!((&error["node"], &error["turn"]), (&json!("n17"), &json!("running")), "{error}");
    puppet.ends_turn(&turn, "end_turn");
    // The agent dies at the node, which says so.
    let session = client.opens(&mut puppet, "s2");
    client.prompts(2, &session);
    puppet.is_asked("session/prompt");
    puppet.dies_by(9);
    let error = client.sees_error(2, -32050, "worker_lost");
    assert_eq!((&error["node"], &error["turn"]), (&json!("n17"), &json!(null)), "{error}");
}

#[test]
fn guests_of_two_edges_share_the_session_of_a_node() {
    let machines = Machines::new();
    let far = machines.bus("n17", puppets("echo", 1));
    let edges = [machines.edge("e1", &["n17"]), machines.edge("e2", &["n17"])];
    let (mut ann, mut ben, mut puppet) = (edges[0].client(), edges[1].client(), far.puppet());
    let session = ann.opens(&mut puppet, "s1");
    ben.loads(1, &session);
    ben.gets(1);
    ann.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    puppet.sends(&update("s1", "one"));
    assert_eq!(ann.reads(), update(&session, "one"));
    loop {
        let heard = ben.receives();
        if heard["params"]["update"]["text"] == "one" {
            assert_eq!(heard["params"]["sessionId"], session);
            break;
        }
    }
    puppet.ends_turn(&turn, "end_turn");
    ann.gets(2);
}

#[test]
fn an_edge_keeps_the_sessions_of_its_nodes_with_the_name_of_the_node() {
    let machines = Machines::new();
    let _node = machines.node("north");
    let edge = machines.keeping("edge", machines.agents_at(&["north"]));
    let mut client = initialized(&edge);
    writes(&edge, &mut client);
    let session = opens(&mut client, 1);
    says(&mut client, 2, &session, "zebra");
    let kept = machines.shelf.path().join("edge.kept");
    let mut text = String::new();
    edge.until("it is kept at the edge", || {
        let file = files(&kept).pop();
        text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        text.contains("end_turn")
    });
    let header: Value = serde_json::from_str(text.lines().next().expect("a header")).expect("JSON");
    assert_eq!((&header["node"], &header["pool"]), (&json!("north"), &json!("echo")), "{header}");
    assert!(text.contains("zebra"), "{text}");
}
