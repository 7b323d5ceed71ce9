//! Sessions that the client names itself, with a top-level `sessionId`.

use serde_json::{Value, json};

use crate::harness::{Bus, bus_puppet_client, first_asked, one_pool, puppets};

fn named(id: u32, session: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"work","sessionId":"{session}","params":{{}}}}"#)
}

#[test]
fn a_client_given_session_name_is_pinned_to_one_worker_and_restored_in_answers() {
    let bus = Bus::start(one_pool(3));
    let mut workers = bus.puppets::<3>();
    let mut client = bus.client();
    let mut pinned: Option<(u32, Value)> = None;
    for id in 0..5 {
        client.sends(&named(id, "my session"));
        let puppet = first_asked(&mut workers);
        let asked = puppet.is_asked("work");
        let name = asked["sessionId"].clone();
        let (pid, known) = pinned.get_or_insert((puppet.pid, name.clone()));
        assert_eq!((puppet.pid, &name), (*pid, &*known));
        puppet.sends(&format!(
            r#"{{"jsonrpc":"2.0","method":"news","sessionId":{name},"params":{{"n":{id}}}}}"#
        ));
        puppet
            .sends(&format!(r#"{{"jsonrpc":"2.0","id":{},"sessionId":{name},"result":"ok"}}"#, asked["id"]));
        let note =
            format!(r#"{{"jsonrpc":"2.0","method":"news","sessionId":"my session","params":{{"n":{id}}}}}"#);
        assert_eq!(client.reads(), note);
        assert_eq!(
            client.reads(),
            format!(r#"{{"jsonrpc":"2.0","id":{id},"sessionId":"my session","result":"ok"}}"#)
        );
    }
}

#[test]
fn the_same_session_name_of_two_clients_means_two_sessions() {
    let bus = Bus::start(one_pool(1));
    let mut puppet = bus.puppet();
    let (mut ann, mut ben) = (bus.client(), bus.client());
    ann.sends(&named(1, "s"));
    let of_ann = puppet.is_asked("work");
    ben.sends(&named(1, "s"));
    let of_ben = puppet.is_asked("work");
    assert_ne!(of_ann["sessionId"], of_ben["sessionId"]);
    for (asked, text) in [(&of_ben, "for ben"), (&of_ann, "for ann")] {
        let name = &asked["sessionId"];
        puppet.sends(&format!(r#"{{"jsonrpc":"2.0","method":"news","sessionId":{name},"params":"{text}"}}"#));
        puppet.sends(&format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"ask","sessionId":{name},"params":"{text}"}}"#
        ));
    }
    let mut answered = Vec::new();
    for (client, text) in [(&mut ann, "for ann"), (&mut ben, "for ben")] {
        let note = client.is_asked("news");
        assert_eq!((&note["sessionId"], &note["params"]), (&json!("s"), &json!(text)));
        let asked = client.is_asked("ask");
        assert_eq!((&asked["sessionId"], &asked["params"]), (&json!("s"), &json!(text)));
        client.answers(&asked, json!(text));
        answered.push(puppet.gets(7)["result"].clone());
        client.has_received_nothing();
    }
    assert_eq!(answered, [json!("for ann"), json!("for ben")]);
}

#[test]
fn a_session_name_belongs_to_a_pool() {
    let bus = Bus::start(json!({ "pools": [puppets("a", 1), puppets("b", 1)], "default_pool": "a" }));
    let (mut a, mut b) = (bus.puppet_of("a"), bus.puppet_of("b"));
    let mut client = bus.client();
    client.sends(r#"{"jsonrpc":"2.0","id":1,"method":"work","pool":"b","sessionId":"s","params":{}}"#);
    let asked = b.is_asked("work");
    b.answers(&asked, json!({}));
    client.gets(1);
    client.sends(&named(2, "s"));
    let asked = b.is_asked("work");
    b.answers(&asked, json!({}));
    client.gets(2);
    client.sends(&named(3, "t"));
    let asked = a.is_asked("work");
    a.answers(&asked, json!({}));
    client.gets(3);
}

#[test]
fn a_session_name_is_free_again_after_its_worker_is_lost() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.sends(&named(1, "s"));
    puppet.is_asked("work");
    puppet.exits(1);
    client.sees_error(1, -32050, "worker_lost");
    let mut next = bus.puppet();
    client.sends(&named(2, "s"));
    assert_eq!(client.sees_error(2, -32051, "unknown_session")["lost"], true);
    client.sends(&named(3, "s"));
    let asked = next.is_asked("work");
    next.answers(&asked, json!({}));
    client.gets(3);
}
