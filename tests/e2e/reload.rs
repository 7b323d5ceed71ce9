//! SIGHUP: only what has changed in the file changes, and a bad file changes nothing.

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{Bus, Client, Puppet, bus_puppet_client, one_pool, puppets, request};

fn answers_in(client: &mut Client, session: &str, puppet: &mut Puppet) {
    client.prompts(1, session);
    let asked = puppet.is_asked("session/prompt");
    puppet.answers(&asked, json!({}));
    client.gets(1);
}

fn reloads(bus: &Bus, config: &Value) {
    bus.rewrite(config);
    bus.signal(Signal::SIGHUP);
    bus.log_has("the configuration was reloaded");
}

#[test]
fn a_bad_file_changes_nothing_and_the_log_says_why() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    bus.rewrite_text(r#"{"pools":[{"id":"p","comand":"x"}]}"#);
    bus.signal(Signal::SIGHUP);
    bus.log_has("reload refused");
    bus.log_has("pools[0].comand");
    answers_in(&mut client, &session, &mut puppet);
    bus.rewrite_text("{ broken");
    bus.signal(Signal::SIGHUP);
    answers_in(&mut client, &session, &mut puppet);
    assert!(!bus.has_another_puppet());
}

#[test]
fn a_new_pool_serves_and_sessions_on_unchanged_pools_go_on() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(9, &session);
    let turn = puppet.is_asked("session/prompt");
    reloads(&bus, &json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "p" }));
    let mut new = bus.puppet_of("q");
    client.asks_pool("q", 2, "work");
    let asked = new.is_asked("work");
    new.answers(&asked, json!({}));
    client.gets(2);
    puppet.answers(&turn, json!({}));
    client.gets(9);
    answers_in(&mut client, &session, &mut puppet);
    assert!(!bus.has_another_puppet(), "no process of an unchanged pool was replaced");
}

#[test]
fn a_changed_pool_runs_the_new_command_while_old_sessions_still_answer() {
    let bus = Bus::start(one_pool(1));
    let mut old = bus.puppet();
    let mut client = bus.client();
    let before = client.opens(&mut old, "s1");
    let mut changed = puppets("p", 1);
    changed["args"] = json!(["@sock", "p", "new"]);
    reloads(&bus, &json!({ "pools": [changed] }));
    let mut new = bus.puppet();
    assert_eq!(new.about["args"][2], "new");
    let after = client.opens(&mut new, "s1");
    answers_in(&mut client, &before, &mut old);
    answers_in(&mut client, &after, &mut new);
    client.closes(&mut old, &before);
    old.stdin_ends();
    old.is_gone();
    answers_in(&mut client, &after, &mut new);
}

#[test]
fn a_removed_pool_is_unknown_to_new_requests() {
    let bus = Bus::start(json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "p" }));
    let (mut kept, mut removed) = (bus.puppet_of("p"), bus.puppet_of("q"));
    let mut client = bus.client();
    reloads(&bus, &one_pool(1));
    removed.stdin_ends();
    client.asks_pool("q", 2, "work");
    assert_eq!(client.sees_error(2, -32052, "unknown_pool")["pools"], json!(["p"]));
    client.sends(&request(3, "work", json!({})));
    kept.is_asked("work");
}

#[test]
fn a_reload_adds_and_removes_listeners() {
    let mut config = json!({ "pools": [puppets("p", 1)], "listen": ["unix://@dir/one"] });
    let bus = Bus::start(config.clone());
    bus.client().has_received_nothing();
    config["listen"] = json!(["unix://@dir/two"]);
    reloads(&bus, &config);
    assert!(!bus.folder().join("one").exists());
    assert!(bus.folder().join("two").exists());
}
