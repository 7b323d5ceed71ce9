//! Variables that a client wants for its agent reach a process that only clients with the same variables share.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, request, run};

fn pool() -> Value {
    let puppet = env!("CARGO_BIN_EXE_puppet");
    let args = ["agent", "env", "--allow", "MY_*", "--allow", "KEY", "--", puppet, "@sock", "p"];
    json!({ "pools": [{ "id": "p", "command": "stdio-bus", "args": args, "instances": 1, "max_instances": 3 }] })
}

fn initializes(client: &mut Client, env: Value) {
    let params = json!({ "protocolVersion": 1, "_meta": { "bus/env": env } });
    client.sends(&request(1, "initialize", params));
}

#[test]
fn each_client_has_its_variables_in_a_process_of_its_own() {
    let mut bus = Bus::start(pool());
    let (mut ann, mut ben, mut eve) = (bus.client(), bus.client(), bus.client());
    initializes(&mut ann, json!({ "MY_KEY": "ann's", "KEY": "k", "PATH": "/nowhere" }));
    let mut first = bus.puppet();
    let env = &first.about["env"];
    assert_eq!((&env["MY_KEY"], &env["KEY"]), (&json!("ann's"), &json!("k")));
    assert_ne!(env["PATH"], "/nowhere", "only what the pool allows");
    bus.log_has("variables that --allow does not name: PATH");
    let asked = first.is_asked("initialize");
    first.answers(&asked, json!({ "protocolVersion": 1 }));
    ann.gets(1);
    let session = ann.opens(&mut first, "s1");
    // Who wants another value gets another process, and so does who wants none.
    initializes(&mut ben, json!({ "MY_KEY": "ben's" }));
    let mut second = bus.puppet();
    assert_eq!(second.about["env"]["MY_KEY"], "ben's");
    let asked = second.is_asked("initialize");
    second.answers(&asked, json!({ "protocolVersion": 1 }));
    ben.gets(1);
    ben.opens(&mut second, "s1");
    initializes(&mut eve, json!({}));
    let third = bus.puppet();
    assert!(third.about["env"].get("MY_KEY").is_none());
    // What the client says reaches the agent behind it, and the agent's end is the worker's.
    ann.sends(&request(5, "session/prompt", json!({ "sessionId": session, "prompt": [] })));
    assert_eq!(first.is_asked("session/prompt")["params"]["sessionId"], "s1");
    first.exits(7);
    bus.log_has("code 7");
    drop((second, third));
    bus.signal(Signal::SIGTERM);
    assert!(bus.exit_status().success());
}

#[test]
fn connect_hands_over_variables_of_its_own() {
    let bus = Bus::start(pool());
    let lines = format!("{}\n", request(1, "initialize", json!({ "protocolVersion": 1 })));
    let args = ["connect", "--tcp", bus.tcp(), "--env", "MY_KEY=given", "--env", "NOT_SET_ANYWHERE"];
    let folder = bus.folder();
    std::thread::scope(|scope| {
        let ide = scope.spawn(|| run(folder, &args, &lines));
        let mut agent = bus.puppet();
        assert_eq!(agent.about["env"]["MY_KEY"], "given");
        let asked = agent.is_asked("initialize");
        assert_eq!(asked["params"]["_meta"]["bus/env"], json!({ "MY_KEY": "given" }));
        agent.answers(&asked, json!({ "protocolVersion": 1 }));
        assert!(ide.join().unwrap().status.success());
    });
}
