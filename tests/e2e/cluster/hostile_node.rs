//! A node that claims to be another: it answers in its name, and offers what it does not have. It has a key of its own
//! and the permissions of the documentation, or of documentation that let nodes answer anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use super::nodes::{EDGE_KEY, NODE_KEY, documented_permissions};
use super::raw::RawNats;
use super::{NatsServer, answer_to, edge_config, node, node_config, with_session};
use crate::harness::{Bus, request, write_token};

/// A server that knows n17, e3, and `evil` as one more node that may answer there.
fn server(answers: &str) -> Option<NatsServer> {
    let evil = format!(
        r#"{{ user: evil, password: evil, permissions: {{
        subscribe: ["bus.v1.ask.*", "bus.v1.open.evil", "bus.v1.note.evil", "bus.v1.p.n.evil.>", "$SRV.>"]
        publish: ["bus.v1.p.e.>", "bus.v1.note.evil", "{answers}"] }} }}"#
    );
    let documented = documented_permissions();
    let (start, end) = documented.rsplit_once(']').expect("a list of users");
    NatsServer::start_with(&format!("{start}{evil}\n]{end}"))
}

const ADDRESSES: [&str; 2] = ["n.evil.AAAAAAAAAAAAAAAAAAAAAA", "n.n17.AAAAAAAAAAAAAAAAAAAAAA"];

/// Answers everything that it hears as if it were n17, or as itself, or as somebody who is not there.
struct Evil {
    done: Arc<AtomicBool>,
    /// How many frames of pipes it has heard.
    frames: Arc<AtomicUsize>,
    playing: Option<thread::JoinHandle<()>>,
}

impl Evil {
    fn plays(nats: &NatsServer) -> Evil {
        let (done, frames) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut raw = RawNats::connect_as(nats, "evil");
        for (number, subject) in (1..).zip(["bus.v1.ask.*", "bus.v1.open.evil", "bus.v1.p.n.evil.>"]) {
            raw.subscribes(subject, number);
        }
        let (is_done, heard_frames) = (done.clone(), frames.clone());
        let playing = thread::spawn(move || {
            while let Some(heard) = raw.hears_or(&is_done) {
                if heard.subject.starts_with("bus.v1.p.") {
                    heard_frames.fetch_add(1, Ordering::Relaxed);
                }
                let Some(reply) = heard.reply else { continue };
                if heard.subject.starts_with("bus.v1.ask.") {
                    offers(&mut raw, &reply);
                } else if heard.subject.starts_with("bus.v1.open.") {
                    opens(&mut raw, &reply);
                }
            }
        });
        Evil { done, frames, playing: Some(playing) }
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = self.playing.take().map(thread::JoinHandle::join);
    }
}

/// Where an answer of this name is expected, and where it was asked for.
fn places(reply: &str, name: &str) -> [String; 2] {
    [reply.trim_end_matches('%').to_owned() + name, reply.to_owned()]
}

fn offers(raw: &mut RawNats, reply: &str) {
    let made_up: Vec<String> = (0..20).map(|number| format!("nobody{number}")).collect();
    let names = ["n17", "evil"].into_iter().chain(made_up.iter().map(String::as_str));
    for name in names {
        for addr in ADDRESSES {
            for room in [0_u64, 1_000_000] {
                let offer = json!({ "node": name, "addr": addr, "pool": "echo", "room": room, "load": 0.0,
                    "started": u64::MAX / 2, "version": "9.9.9" });
                for place in places(reply, name).into_iter().chain(places(reply, "evil")) {
                    raw.publishes(&place, offer.to_string().as_bytes());
                }
            }
        }
    }
}

fn opens(raw: &mut RawNats, reply: &str) {
    for addr in ADDRESSES {
        let answer = json!({ "node": "n17", "addr": addr, "started": u64::MAX / 2, "window": 1 << 20,
            "max_frame": 65536, "room": 1000, "drain": false });
        for place in places(reply, "n17").into_iter().chain(places(reply, "evil")) {
            raw.publishes(&place, answer.to_string().as_bytes());
        }
    }
}

fn play(answers: &str) {
    let Some(nats) = server(answers) else { return };
    let key = |name: &str, seed: &str| {
        let path = nats.folder().join(name);
        write_token(&path, seed);
        path
    };
    let _node = node(node_config(&nats.url(), "n17", json!({ "nkey": key("n17.nk", NODE_KEY[0]) })));
    let mut file = edge_config(&nats.url(), "e3");
    file["cluster"]["nkey"] = json!(key("e3.nk", EDGE_KEY[0]));
    let start = |file: &Value| Bus::start(file.clone());
    let session = {
        let edge = start(&file);
        let (mut client, session) = with_session(&edge);
        client.takes_turn(3, &session, "before");
        session
    };
    let (_, at_node) = session.split_once('.').expect("a tag");
    let evil = Evil::plays(&nats);
    for round in 0..3 {
        let edge = start(&file);
        // A new session first: it is placed by offers, and all but one of them are forged.
        let (mut client, new) = with_session(&edge);
        assert!(new.contains(".n17~"), "round {round}: {new}");
        assert_eq!(client.takes_turn(3, &new, "a new one").0.trim(), "a new one");
        let load = json!({ "sessionId": at_node, "cwd": "/", "mcpServers": [] });
        client.sends(&request(4, "session/load", load));
        let answer = answer_to(&mut client, 4);
        assert!(answer.get("result").is_some(), "round {round}: {answer}");
        assert_eq!(client.takes_turn(5, at_node, "to n17 alone").0.trim(), "to n17 alone");
        let nodes: Vec<Value> = edge.client().status()["pools"][0]["workers"]
            .as_array()
            .expect("workers")
            .iter()
            .map(|worker| worker["node"].clone())
            .collect();
        assert!(nodes.iter().all(|node| node == "n17" || node.is_null()), "{nodes:?}");
    }
    assert_eq!(evil.frames.load(Ordering::Relaxed), 0, "nothing was said to it");
}

#[test]
fn a_node_that_claims_to_be_another_gets_none_of_its_sessions() {
    play("_INBOX.*.*.evil");
}

#[test]
fn nor_does_one_that_may_answer_in_the_name_of_others() {
    play("_INBOX.>");
}

#[test]
fn an_answer_that_is_not_believed_is_in_the_log() {
    let Some(nats) = NatsServer::start() else { return };
    let mut raw = RawNats::connect(&nats);
    raw.subscribes("bus.v1.ask.echo", 1);
    let edge = Bus::start(edge_config(&nats.url(), "e3"));
    let asking = thread::spawn({
        let done = Arc::new(AtomicBool::new(false));
        move || {
            let reply = raw.hears_or(&done).and_then(|heard| heard.reply).expect("an ask");
            let place = &places(&reply, "evil")[0];
            raw.publishes(
                place,
                json!({ "node": "n17", "addr": ADDRESSES[0], "pool": "echo", "room": 9 })
                    .to_string()
                    .as_bytes(),
            );
            // The server has it before the connection ends.
            raw.subscribes("nothing", 2);
        }
    });
    asking.join().expect("it has asked");
    edge.log_has("an answer of evil that claims to be of \"n17\" is ignored");
}
