//! People who are away are told what waits for them: a small server of our own is the webhook.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{
    Bus, Client, PATIENCE, Puppet, Web, command_line, one_pool, puppets, request, run, unshared, update_of,
    with,
};

/// A request as the server heard it.
struct Heard {
    head: String,
    body: Value,
}

/// A server that answers all requests with this status. Status 0: it never answers.
struct Hook {
    url: String,
    heard: Receiver<Heard>,
}

impl Hook {
    fn answering(status: u16) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/SECRET-hook", listener.local_addr().expect("it has an address"));
        let (heard_tx, heard) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let heard_tx = heard_tx.clone();
                thread::spawn(move || serve(&stream.expect("a connection"), status, &heard_tx));
            }
        });
        Hook { url, heard }
    }

    fn hears(&self, bus: &Bus) -> Heard {
        let heard = self.heard.recv_timeout(PATIENCE);
        heard.unwrap_or_else(|_| panic!("nothing was told\n{}", bus.log.text()))
    }

    /// The next notice, as `EVENT LABEL`.
    fn is_told(&self, bus: &Bus) -> String {
        let Heard { body, .. } = self.hears(bus);
        format!("{} {}", body["event"].as_str().unwrap(), body["label"].as_str().unwrap())
    }

    fn is_told_no_more(&self) {
        if let Ok(heard) = self.heard.try_recv() {
            panic!("{}", heard.body);
        }
    }

    /// The part of a URL that may be shown.
    fn place(&self) -> &str {
        self.url.strip_suffix("/SECRET-hook").expect("it ends so")
    }
}

fn serve(mut stream: &TcpStream, status: u16, heard: &Sender<Heard>) {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        if line != "\r\n" {
            head += &line;
            continue;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("the whole body");
        let body = serde_json::from_slice(&body).expect("JSON");
        let _ = heard.send(Heard { head: std::mem::take(&mut head), body });
        if status == 0 {
            // It reads on until the other end gives up.
            continue;
        }
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}");
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// The configuration with these targets.
fn telling(mut config: Value, targets: &[Value]) -> Value {
    config["notify"] = targets.into();
    config
}

/// A target that is told of all of it, after so many seconds.
fn all(hook: &Hook, after_sec: f64) -> Value {
    json!({ "url": hook.url, "on": ["asked", "ended", "failed"], "after_sec": after_sec })
}

/// Waits until the notifier is there. Returns its process.
fn watches(bus: &Bus) -> i32 {
    let mut client = bus.client();
    let mut pid = 0;
    bus.until("the notifier is up", || {
        let status = client.status();
        pid = status["notify"]["pid"].as_i64().unwrap_or_default() as i32;
        status["notify"]["state"] == "up"
    });
    pid
}

/// The label of the newest session.
fn newest(bus: &Bus) -> String {
    let sessions = bus.client().asks(1, "_bus/sessions", json!({}))["sessions"].clone();
    sessions.as_array().unwrap().last().unwrap()["session"].as_str().unwrap().to_owned()
}

fn opens(bus: &Bus, client: &mut Client, puppet: &mut Puppet, name: &str) -> (String, String) {
    let session = client.opens(puppet, name);
    (session, newest(bus))
}

fn turn(client: &mut Client, puppet: &mut Puppet, session: &str, stop_reason: &str) {
    client.prompts(5, session);
    let prompt = puppet.is_asked("session/prompt");
    puppet.ends_turn(&prompt, stop_reason);
    client.gets(5);
}

/// The client goes away without a word, and its only session is kept.
fn leaves(bus: &Bus, client: Client) {
    client.breaks();
    let mut other = bus.client();
    bus.until("it is kept", || other.asks(1, "_bus/sessions", json!({}))["sessions"][0]["state"] == "kept");
}

fn counted(client: &mut Client) -> Value {
    client.status()["notify"]["counted"].clone()
}

#[test]
fn a_question_that_nobody_answers_is_told_once_and_one_that_is_answered_is_not() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[json!({ "url": hook.url, "after_sec": 3 })]));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (_, answered) = opens(&bus, &mut client, &mut puppet, "first");
    let (session, waiting) = opens(&bus, &mut client, &mut puppet, "second");
    assert!(answered != waiting);
    let title = json!({ "sessionUpdate": "session_info_update", "title": "Fix the build" });
    puppet.sends(&update_of("second", title));
    client.receives();
    puppet.asks_permission(1, "first");
    let question = client.is_asked("session/request_permission");
    client.answers(&question, json!({ "outcome": { "outcome": "selected", "optionId": "a" } }));
    puppet.gets(1);
    client.prompts(5, &session);
    let prompt = puppet.is_asked("session/prompt");
    let asked =
        json!({ "sessionId": "second", "options": [], "toolCall": { "toolCallId": "t", "title": "SAID" } });
    puppet.sends(&request(2, "session/request_permission", asked));
    let question = client.is_asked("session/request_permission");
    // The answered question would be told first.
    let Heard { head, body } = hook.hears(&bus);
    assert!(head.starts_with("POST /SECRET-hook HTTP/1.1\r\n"), "{head}");
    let message = format!("p waits for an answer in \"Fix the build\" ({waiting})");
    let transcript = body["session"].as_str().unwrap();
    let expected = json!({ "event": "asked", "session": transcript, "pool": "p", "title": "Fix the build",
        "label": waiting, "link": null, "text": message, "message": message });
    assert_eq!(body, expected);
    assert!(!body.to_string().contains("SAID") && !session.contains(transcript), "{body}");
    // The one who was away comes and answers. Nothing more is told, not even that the turn has ended.
    client.answers(&question, json!({ "outcome": { "outcome": "cancelled" } }));
    puppet.gets(2);
    puppet.ends_turn(&prompt, "end_turn");
    client.gets(5);
    bus.until("it is counted", || counted(&mut client)["sent"] == 1);
    hook.is_told_no_more();
}

#[test]
fn a_question_for_a_client_that_has_left_is_told() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[all(&hook, 0.0)]));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    client.prompts(5, &session);
    let prompt = puppet.is_asked("session/prompt");
    leaves(&bus, client);
    puppet.asks_permission(1, "s1");
    assert_eq!(hook.is_told(&bus), format!("asked {label}"));
    puppet.ends_turn(&prompt, "end_turn");
    assert_eq!(hook.is_told(&bus), format!("ended {label}"));
}

#[test]
fn turns_that_end_or_fail_are_told_and_those_that_somebody_stops_are_not() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[all(&hook, 0.0)]));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    turn(&mut client, &mut puppet, &session, "cancelled");
    turn(&mut client, &mut puppet, &session, "end_turn");
    assert_eq!(hook.is_told(&bus), format!("ended {label}"));
    client.prompts(6, &session);
    let prompt = puppet.is_asked("session/prompt");
    puppet.refuses(&prompt, &json!({ "code": -32603, "message": "SAID" }));
    assert_eq!(client.receives()["error"]["message"], "SAID");
    let Heard { body, .. } = hook.hears(&bus);
    assert_eq!((&body["event"], &body["label"]), (&json!("failed"), &json!(label)));
    assert_eq!(body["message"], json!(format!("a turn of p has failed in {label}")));
    client.prompts(7, &session);
    puppet.is_asked("session/prompt");
    puppet.exits(1);
    client.sees_error(7, -32050, "worker_lost");
    assert_eq!(hook.is_told(&bus), format!("failed {label}"));
}

#[test]
fn an_agent_that_is_lost_while_no_client_is_there_is_told() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[all(&hook, 0.0)]));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    client.prompts(5, &session);
    puppet.is_asked("session/prompt");
    leaves(&bus, client);
    puppet.exits(1);
    assert_eq!(hook.is_told(&bus), format!("failed {label}"));
}

#[test]
fn the_end_of_a_turn_is_not_told_if_somebody_goes_on() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[all(&hook, 3.0)]));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, _) = opens(&bus, &mut client, &mut puppet, "s1");
    let (other, left_alone) = opens(&bus, &mut client, &mut puppet, "s2");
    turn(&mut client, &mut puppet, &session, "end_turn");
    client.prompts(6, &session);
    puppet.is_asked("session/prompt");
    turn(&mut client, &mut puppet, &other, "end_turn");
    assert_eq!(hook.is_told(&bus), format!("ended {left_alone}"));
    hook.is_told_no_more();
}

#[test]
fn a_server_that_fails_is_tried_four_times_and_one_that_hangs_delays_nobody() {
    let (failing, hanging, good) = (Hook::answering(503), Hook::answering(0), Hook::answering(204));
    let targets = [all(&failing, 0.0), all(&hanging, 0.0), all(&good, 0.0)];
    let bus = Bus::start(telling(one_pool(1), &targets));
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    let told = format!("ended {label}");
    for _ in 0..3 {
        turn(&mut client, &mut puppet, &session, "end_turn");
        assert_eq!(good.is_told(&bus), told);
    }
    assert_eq!(hanging.is_told(&bus), told);
    bus.until("all but one are on their way", || counted(&mut client)["sent"] == 3);
    for _ in 0..4 {
        assert_eq!(failing.is_told(&bus), told);
    }
    bus.until("one was given up", || counted(&mut client)["failed"].as_u64() >= Some(1));
    let now = counted(&mut client);
    let target =
        |at: &str| now["targets"].as_array().unwrap().iter().find(|it| it["at"] == at).unwrap().clone();
    let expected =
        json!({ "at": good.place(), "sent": 3, "failed": 0, "dropped": 0, "waiting": 0, "failing": null });
    assert_eq!(target(good.place()), expected);
    assert_eq!(target(failing.place())["failing"], "HTTP status 503");
    bus.log_has(&format!("{} does not take notices: HTTP status 503", failing.place()));
    let printed = run(bus.folder(), &["metrics", "--tcp", bus.tcp()], "");
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(printed.contains("stdio_bus_notices_total{result=\"sent\"} 3\n"), "{printed}");
    let shown = run(bus.folder(), &["status", "--tcp", bus.tcp()], "");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("{} takes no notices: HTTP status 503\n", failing.place())), "{shown}");
}

#[test]
fn headers_and_constants_arrive_and_nothing_of_them_is_shown() {
    let hook = Hook::answering(200);
    let mut target = all(&hook, 0.0);
    target["headers"] = json!({ "Authorization": "Bearer SECRET-header", "X-Key": "${NOTIFY_KEY}" });
    target["body"] = json!({ "topic": "SECRET-topic", "priority": 4 });
    let bus = Bus::plan(telling(one_pool(1), &[target])).env("NOTIFY_KEY", "SECRET-key").start();
    let pid = watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, _) = opens(&bus, &mut client, &mut puppet, "s1");
    turn(&mut client, &mut puppet, &session, "end_turn");
    let Heard { head, body } = hook.hears(&bus);
    let head = head.to_lowercase();
    for header in
        ["authorization: bearer secret-header", "x-key: secret-key", "content-type: application/json"]
    {
        assert!(head.contains(&format!("\r\n{header}\r\n")), "{head}");
    }
    assert_eq!((&body["topic"], &body["priority"]), (&json!("SECRET-topic"), &json!(4)));
    bus.until("it is counted", || counted(&mut client)["sent"] == 1);
    let status = client.status();
    assert_eq!(status["notify"]["listening"], json!(hook.place()));
    assert!(!status.to_string().contains("SECRET"), "{status}");
    assert!(!bus.log.text().contains("SECRET"), "{}", bus.log.text());
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&environment).contains("SECRET"));
    let line = format!("{:?}", command_line(pid as u32));
    assert!(line.contains("notify") && !line.contains("SECRET"), "{line}");
    let checked = run(bus.folder(), &["doctor", "--config", "bus.json", "--tcp", bus.tcp()], "");
    assert!(!format!("{checked:?}").contains("SECRET"), "{checked:?}");
}

#[test]
fn the_link_leads_to_the_console_and_a_pool_that_is_not_shared_has_no_title() {
    let hook = Hook::answering(200);
    let mut config = telling(unshared(1), &[all(&hook, 0.0)]);
    config["web"] = json!({ "listen": "http://127.0.0.1:0" });
    let bus = Bus::start(config);
    let web = Web::of(&bus);
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    puppet.sends(&update_of("s1", json!({ "sessionUpdate": "session_info_update", "title": "SAID" })));
    client.receives();
    turn(&mut client, &mut puppet, &session, "end_turn");
    let Heard { body, .. } = hook.hears(&bus);
    assert_eq!((&body["title"], &body["session"]), (&Value::Null, &json!(label)));
    assert_eq!(body["link"], json!(format!("{}/#/sessions/{label}", web.url)));
    assert!(!body.to_string().contains("SAID"), "{body}");
}

#[test]
fn only_the_pools_that_are_named_are_told_of() {
    let hook = Hook::answering(200);
    let pools = json!({ "pools": [puppets("p", 1), puppets("q", 1)], "default_pool": "p" });
    let bus = Bus::start(telling(pools, &[with(all(&hook, 0.0), json!({ "pools": ["q"] }))]));
    watches(&bus);
    let (mut client, mut p, mut q) = (bus.client(), bus.puppet_of("p"), bus.puppet_of("q"));
    let (session, _) = opens(&bus, &mut client, &mut p, "s1");
    turn(&mut client, &mut p, &session, "end_turn");
    let mut client = bus.client();
    client.asks(1, "_bus/hello", json!({ "pool": "q" }));
    let (session, label) = opens(&bus, &mut client, &mut q, "s2");
    turn(&mut client, &mut q, &session, "end_turn");
    assert_eq!(hook.is_told(&bus), format!("ended {label}"));
    hook.is_told_no_more();
}

#[test]
fn a_reload_changes_who_is_told() {
    let (first, second) = (Hook::answering(200), Hook::answering(200));
    let bus = Bus::start(telling(one_pool(1), &[all(&first, 0.0)]));
    let before = watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    bus.rewrite(&telling(one_pool(1), &[all(&second, 0.0)]));
    bus.signal(Signal::SIGHUP);
    bus.until("another one is there", || {
        let status = client.status();
        status["notify"]["pid"].as_i64() != Some(before.into()) && status["notify"]["state"] == "up"
    });
    turn(&mut client, &mut puppet, &session, "end_turn");
    assert_eq!(second.is_told(&bus), format!("ended {label}"));
    first.is_told_no_more();
    bus.rewrite(&telling(one_pool(1), &[]));
    bus.signal(Signal::SIGHUP);
    bus.until("there is none", || client.status()["notify"].is_null());
    turn(&mut client, &mut puppet, &session, "end_turn");
    bus.until("it is gone", || client.status()["tracers"] == 0);
    second.is_told_no_more();
}

#[test]
fn a_notifier_that_is_killed_or_replaced_goes_on() {
    let hook = Hook::answering(200);
    let bus = Bus::start(telling(one_pool(1), &[all(&hook, 0.0)]));
    let killed = watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    let replaced = |client: &mut Client, old: i32| {
        bus.until("another one is there", || {
            let status = client.status();
            status["notify"]["pid"].as_i64() != Some(old.into()) && status["notify"]["state"] == "up"
        });
    };
    kill(Pid::from_raw(killed), Signal::SIGKILL).unwrap();
    replaced(&mut client, killed);
    turn(&mut client, &mut puppet, &session, "end_turn");
    assert_eq!(hook.is_told(&bus), format!("ended {label}"));
    let old = watches(&bus);
    // It waits with a turn while the program changes, and is replaced when none is under way.
    client.prompts(6, &session);
    let prompt = puppet.is_asked("session/prompt");
    bus.client().asks(1, "_bus/upgrade", json!({}));
    assert_eq!(watches(&bus), old);
    puppet.ends_turn(&prompt, "end_turn");
    client.gets(6);
    assert_eq!(hook.is_told(&bus), format!("ended {label}"));
    replaced(&mut client, old);
    puppet.asks_permission(1, "s1");
    client.is_asked("session/request_permission");
    assert_eq!(hook.is_told(&bus), format!("asked {label}"));
}

#[test]
fn a_question_that_was_open_before_the_notifier_is_told() {
    let hook = Hook::answering(200);
    let bus = Bus::start(one_pool(1));
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (_, label) = opens(&bus, &mut client, &mut puppet, "s1");
    puppet.asks_permission(1, "s1");
    client.is_asked("session/request_permission");
    bus.rewrite(&telling(one_pool(1), &[all(&hook, 0.0)]));
    bus.signal(Signal::SIGHUP);
    assert_eq!(hook.is_told(&bus), format!("asked {label}"));
}

/// The items in the documentation, whose servers are played here.
#[test]
fn ntfy_slack_and_matrix_read_what_they_need_out_of_it() {
    let hooks = [(); 3].map(|()| Hook::answering(200));
    let text = include_str!("../../docs/NOTIFY.md");
    let items = text.lines().filter(|line| line.starts_with("    { \"url\""));
    let mut items: Vec<Value> = items.map(|line| serde_json::from_str(line).expect("an item")).collect();
    assert_eq!(items.len(), 3);
    for item in &mut items {
        (item["after_sec"], item["on"]) = (json!(0), json!(["ended"]));
    }
    items[0]["url"] = json!(hooks[0].url);
    let plan = Bus::plan(telling(one_pool(1), &items));
    let bus = plan.env("SLACK_WEBHOOK", &hooks[1].url).env("MATRIX_WEBHOOK", &hooks[2].url).start();
    watches(&bus);
    let (mut client, mut puppet) = (bus.client(), bus.puppet());
    let (session, label) = opens(&bus, &mut client, &mut puppet, "s1");
    let title = json!({ "sessionUpdate": "session_info_update", "title": "<!channel> & more" });
    puppet.sends(&update_of("s1", title));
    client.receives();
    turn(&mut client, &mut puppet, &session, "end_turn");
    let [ntfy, slack, matrix] = hooks.each_ref().map(|hook| hook.hears(&bus).body);
    // ntfy wants text, a number and a list there, and skips members that it does not know.
    assert_eq!(
        (&ntfy["topic"], &ntfy["priority"], &ntfy["tags"]),
        (&json!("mybus-3kq9"), &json!(4), &json!(["robot"]))
    );
    let sentence = |title: &str| format!("p has ended its turn in \"{title}\" ({label})");
    let plain = sentence("<!channel> & more");
    assert_eq!((&ntfy["title"], &ntfy["message"]), (&json!("<!channel> & more"), &json!(plain)));
    assert!(
        ["click", "icon", "actions", "attach", "delay", "email"].iter().all(|key| ntfy.get(key).is_none())
    );
    // Slack shows `text`, and so does hookshot if there is no `html` and no `username`.
    let escaped = sentence("&lt;!channel&gt; &amp; more");
    assert_eq!((&slack["text"], &matrix["text"]), (&json!(escaped), &json!(escaped)));
    assert!(["html", "username", "blocks", "channel"].iter().all(|key| matrix.get(key).is_none()));
}

#[test]
fn what_is_wrong_in_the_file_is_told_with_its_place_and_its_cure() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = |notify: &str| {
        let text = format!("{{\"pools\": [{{\"id\": \"a\", \"command\": \"sh\"}}],\n \"notify\": {notify}}}");
        fs::write(folder.path().join("bus.json"), text).expect("the folder is ours");
        let out = run(folder.path(), &["check", "--config", "bus.json"], "");
        let [stdout, stderr] = [&out.stdout, &out.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
        assert!(!format!("{stdout}{stderr}").contains("SECRET"), "{stdout}{stderr}");
        (out.status.success(), stdout, stderr)
    };
    for (notify, place, cure) in [
        (
            r#"[{"url": "http://ntfy.example/SECRET"}]"#,
            "bus.json:2:21: notify[0].url",
            "write https://ntfy.example",
        ),
        (r#"[{"url": "ntfy.sh/SECRET"}]"#, "bus.json:2:21: notify[0].url", "must be https://HOST/PATH"),
        (r#"[{"on": ["asked"]}]"#, "notify[0].url", "such as \"https://ntfy.sh\""),
        (r#"[{"url": "https://a", "on": ["done"]}]"#, "notify[0].on[0]", r#""asked", "ended", "failed""#),
        (r#"[{"url": "https://a", "pools": ["b"]}]"#, "notify[0].pools[0]", r#"the pools are "a""#),
        (r#"[{"url": "https://a", "after": 1}]"#, "notify[0].after", r#"did you mean "after_sec"?"#),
        (r#"{"url": "https://a"}"#, "notify", "must be a list"),
    ] {
        let (is_good, _, said) = check(notify);
        assert!(!is_good && said.contains(place) && said.contains(cure), "{notify}: {said}");
    }
    let good =
        r#"[{"url": "https://ntfy.example/SECRET", "on": ["asked", "failed"], "headers": {"A": "SECRET"}}]"#;
    let (is_good, said, _) = check(good);
    assert!(is_good && said.contains("tells https://ntfy.example of asked, failed after 10s\n"), "{said}");
}
