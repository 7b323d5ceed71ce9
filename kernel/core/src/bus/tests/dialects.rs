//! Stories of methods that came to ACP later, or that only some agents and clients know.

use serde_json::{Value, json};

use super::*;

const INIT: &str = concat!(
    r#"{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"#,
    r#""sessionCapabilities":{"close":{},"resume":{},"list":{}}}}"#
);

/// Two clients of one process, the second one's session and the first one's, as each calls its own.
fn two(shares: bool) -> (TestBus, [Link; 2], Link) {
    let pool = PoolConfig { share: shares, ..pool("agents", 1) };
    let mut bus = TestBus::new(Config::with_pools([pool]));
    let clients = [bus.acp_client(), bus.acp_client()];
    let worker = bus.worker(0);
    bus.initializes_with(worker, INIT);
    for client in clients {
        bus.sees(client);
    }
    (bus, clients, worker)
}

fn tells(bus: &mut TestBus, worker: Link, update: &Value) {
    let params = json!({"sessionId": "s1", "update": update});
    bus.sends(worker, &json!({"method": "session/update", "params": params}).to_string());
}

#[test]
fn a_session_that_is_not_open_is_renamed_archived_and_looked_at() {
    let (mut bus, [ann, _], worker) = two(true);
    let methods = [
        "session/set_title",
        "session/archive",
        "session/unarchive",
        "session/status",
        "_session/rename",
        "_session/archive",
        "_session/unarchive",
    ];
    for method in methods {
        bus.asks(ann, 1, method, "past");
        let request = bus.answers(worker, method, r#"{"seen":true}"#);
        assert_eq!(request["params"]["sessionId"], "past", "{method}");
        assert_eq!(bus.sees_json(ann)["result"]["seen"], true, "{method}");
    }
    bus.is_idle();
}

#[test]
fn who_archives_its_session_closes_it_and_nobody_ends_what_another_has_open() {
    let (mut bus, [ann, ben], worker) = two(true);
    let session = bus.opens(ann, worker, "s1");
    for method in ["session/archive", "_session/archive", "session/delete", "session/fork"] {
        bus.asks(ben, 1, method, "s1");
        bus.sees_error(ben, json!(1), "unknown_session");
    }
    // Its title and its state are for everybody who may join it.
    for method in ["session/set_title", "session/status"] {
        bus.asks(ben, 2, method, "s1");
        bus.answers(worker, method, "{}");
        bus.sees(ben);
    }
    bus.asks(ann, 3, "session/archive", &session);
    bus.answers(worker, "session/archive", "{}");
    bus.sees(ann);
    bus.asks(ann, 4, "session/prompt", &session);
    bus.sees_error(ann, json!(4), "unknown_session");
    bus.is_idle();
}

#[test]
fn a_private_session_that_another_has_open_is_not_even_looked_at() {
    let (mut bus, [ann, ben], worker) = two(false);
    bus.opens(ann, worker, "s1");
    for method in ["session/set_title", "session/status", "session/unarchive", "_session/rename"] {
        bus.asks(ben, 1, method, "s1");
        bus.sees_error(ben, json!(1), "unknown_session");
    }
    bus.sees_nothing(worker);
}

#[test]
fn what_is_about_a_whole_process_reaches_all_its_clients_and_those_who_come_later() {
    let (mut bus, clients, worker) = two(true);
    for client in clients {
        bus.sends(client, r#"{"id":1,"method":"x"}"#);
        bus.answers(worker, "x", "{}");
        bus.sees(client);
    }
    let quota = json!({"update": {"sessionUpdate": "quota_update", "used": 1}});
    let told = [
        json!({"method": "auth/status_update", "params": {"status": "ok"}}),
        json!({"method": "session/update", "params": quota}),
        json!({"method": "session/list_changed", "params": {"cwd": "/"}}),
    ];
    for line in &told {
        bus.sends(worker, &line.to_string());
        for client in clients {
            assert_eq!(bus.sees_json(client), *line);
        }
    }
    // What may be about one of them reaches none.
    bus.sends(worker, r#"{"method":"_private","params":{}}"#);
    clients.iter().for_each(|client| bus.sees_nothing(*client));
    let late = bus.acp_client();
    let heard = bus.all_unseen(late);
    let kept: Vec<&Value> = heard.iter().filter(|line| line.get("method").is_some()).collect();
    assert!(kept.contains(&&told[0]) && kept.contains(&&told[1]), "{heard:?}");
    assert!(!kept.contains(&&told[2]), "{heard:?}");
    assert!(kept.iter().all(|line| line["method"] != "_private"), "{heard:?}");
    // What its only client heard is about the process or about it, and says so to whoever comes.
    for client in [clients[1], late] {
        bus.handles(Event::Broken(client));
    }
    bus.sends(worker, r#"{"method":"_vendor/told","params":{}}"#);
    assert_eq!(bus.sees_json(clients[0])["method"], "_vendor/told");
    let late = bus.acp_client();
    assert!(bus.all_unseen(late).iter().any(|line| line["method"] == "_vendor/told"));
}

#[test]
fn what_one_client_sets_the_others_in_the_session_hear() {
    let (mut bus, [ann, ben], worker) = two(true);
    bus.sends(ann, r#"{"id":1,"method":"session/new","params":{"cwd":"/"}}"#);
    let modes =
        r#"{"sessionId":"s1","modes":{"currentModeId":"ask","availableModes":[]},"configOptions":[]}"#;
    bus.answers(worker, "session/new", modes);
    let session = bus.sees_json(ann)["result"]["sessionId"].as_str().unwrap().to_owned();
    bus.asks(ben, 2, "session/resume", &session);
    let answer = bus.sees_json(ben);
    assert_eq!(answer["id"], 2, "{answer}");
    let set = |id: u32, mode: &str| {
        let params = json!({"sessionId": session, "modeId": mode});
        json!({"id": id, "method": "session/set_mode", "params": params}).to_string()
    };
    bus.sends(ann, &set(3, "code"));
    bus.answers(worker, "session/set_mode", "{}");
    bus.sees(ann);
    let heard = bus.sees_json(ben)["params"]["update"].clone();
    assert_eq!(heard, json!({"sessionUpdate": "current_mode_update", "currentModeId": "code"}));
    // An agent that says it itself is enough.
    bus.sends(ben, &set(4, "ask"));
    tells(&mut bus, worker, &json!({"sessionUpdate": "current_mode_update", "currentModeId": "ask"}));
    bus.answers(worker, "session/set_mode", "{}");
    assert_eq!(bus.all_unseen(ann).len(), 1);
    assert_eq!(bus.all_unseen(ben).len(), 2);
    let params = json!({"sessionId": session, "configId": "depth", "value": "deep"});
    bus.sends(ben, &json!({"id": 5, "method": "session/set_config_option", "params": params}).to_string());
    let options = json!([{"id": "depth", "currentValue": "deep"}]);
    bus.answers(worker, "session/set_config_option", &json!({"configOptions": options}).to_string());
    bus.sees(ben);
    let heard = bus.sees_json(ann)["params"].clone();
    assert_eq!(heard["sessionId"], *session);
    assert_eq!(heard["update"], json!({"sessionUpdate": "config_option_update", "configOptions": options}));
    bus.is_idle();
}

#[test]
fn who_resumes_a_session_is_told_its_commands() {
    let (mut bus, [ann, ben], worker) = two(true);
    let session = bus.opens(ann, worker, "s1");
    let commands = |name: &str| {
        let commands = json!([{"name": name, "description": "d"}]);
        json!({"_meta": {"k": 1}, "sessionUpdate": "available_commands_update", "availableCommands": commands})
    };
    for name in ["old", "new"] {
        tells(&mut bus, worker, &commands(name));
        bus.sees(ann);
    }
    bus.asks(ben, 1, "session/resume", &session);
    assert_eq!(bus.sees_json(ben)["id"], 1);
    let told = bus.sees_json(ben)["params"].clone();
    assert_eq!(told["update"], commands("new"));
    assert_eq!(told["sessionId"], *session);
    // And whoever takes up a session that was left.
    bus.handles(Event::Broken(ann));
    bus.handles(Event::Broken(ben));
    let carl = bus.acp_client();
    bus.sees(carl);
    bus.asks(carl, 2, "session/resume", &session);
    let heard = bus.all_unseen(carl);
    let last = heard.last().expect("an update");
    assert_eq!(last["params"]["update"], commands("new"), "{heard:?}");
}
