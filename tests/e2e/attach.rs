//! The commands with which people see and join the sessions of others: `sessions`, `run --attach`, `connect --attach`.

use serde_json::{Value, json};

use crate::harness::{Bus, Client, Program, Puppet, one_pool, run};

/// A bus with a session of Ann's.
fn anns() -> (Bus, Puppet, Client, String) {
    let mut config = one_pool(1);
    config["listen"] = json!(["tcp://127.0.0.1:0", "unix://@dir/bus.sock"]);
    let bus = Bus::start(config);
    let (mut puppet, mut ann) = (bus.puppet(), bus.client());
    ann.asks(1, "_bus/hello", json!({ "client": "ann" }));
    let session = ann.opens(&mut puppet, "s");
    (bus, puppet, ann, session)
}

/// What the label of the only session is.
fn label(client: &mut Client) -> String {
    let sessions = client.asks(90, "_bus/sessions", json!({}));
    sessions["sessions"][0]["session"].as_str().expect("a label").to_owned()
}

#[test]
fn sessions_are_listed_with_owner_guests_and_questions() {
    let (bus, mut puppet, mut ann, session) = anns();
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    ben.asks(2, "_bus/attach", json!({ "session": session, "role": "observe" }));
    puppet.asks_permission(7, "s");
    ann.is_asked("session/request_permission");
    let label = label(&mut ann);
    let list = |more: &[&str]| run(bus.folder(), &[&["sessions", "--tcp", bus.tcp()], more].concat(), "");
    let out = list(&[]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let words: Vec<_> = text.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!((words[..4].to_vec(), out.status.code()), (vec![&*label, "live", "p/0", "1"], Some(0)));
    assert!(text.trim_end().ends_with("ann     ben (observes)"), "{text}");
    let out = list(&["--json"]);
    let all: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let guests = json!([{ "client": "ben", "role": "observe" }]);
    assert_eq!((&all[0]["client"], &all[0]["guests"]), (&json!("ann"), &guests));
    assert_eq!((&all[0]["session"], &all[0]["questions"]), (&json!(label), &json!(1)));
    let out = run(bus.folder(), &["sessions", "--unix", "/no/such.sock"], "");
    assert_eq!(out.status.code(), Some(69));
}

#[test]
fn top_shows_guests_and_open_questions() {
    let (bus, mut puppet, mut ann, session) = anns();
    let mut ben = bus.client();
    ben.asks(1, "_bus/hello", json!({ "client": "ben" }));
    ben.asks(2, "_bus/attach", json!({ "session": session }));
    puppet.asks_permission(7, "s");
    ann.is_asked("session/request_permission");
    let mut top = Program::plan_top(&bus).at_terminal();
    top.shows("stdio-bus 0.");
    top.resizes(40, 130);
    top.shows_so("a session with its guest", |screen| {
        let row = screen.lines().find(|line| line.contains("ann +1")).unwrap_or_default();
        row.contains("ben") && row.contains("live") && screen.contains("ASKS")
    });
    top.types("\t\r");
    top.shows_so("the session in detail", |screen| {
        screen.contains("guests         ben") && screen.contains("questions      1")
    });
    top.types("q");
    assert_eq!(top.ends(), 0);
}
