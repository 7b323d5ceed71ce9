//! The limits that bus.json does not set: what one client or one agent can make the bus take, and what a line costs.

use std::io;

use kernel_core::limit::{
    CLIENT_NAME_BYTES, LABELS, NAME_BYTES, OPENING_BYTES, PENDING_REQUESTS, SESSIONS_PAGE, STDERR_TAIL_BYTES,
    STDERR_TAIL_LINES, STICKY_NOTIFICATIONS_MAX, TRACERS,
};
use rpc::write;
use serde_json::{Value, json};

use super::Trial;
use crate::bus::{Bus, PATIENCE, config, echo};
use crate::client::Client;
use crate::procfs;

const LINE_BYTES: usize = 1 << 20;
const LONG_LINE_BYTES: usize = 60_000_000;
/// What a byte of a long line may cost, from one socket to the other pipe.
const NANOS_A_BYTE: f64 = 10.0;
const ROUNDS_MAX: usize = 5;
/// More questions and notices than the bus takes of an agent.
const QUESTIONS: usize = 600;
const NOTICES: usize = 20;

/// What the scripts of agents begin with: the id of a line, and an answer to it.
const SH: &str = r#"
answer() { l=${line#*\"id\":}; printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "${l%%[,\}]*}" "$1"; }
init='{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"sessionCapabilities":{"close":{}}}}'
"#;

/// A pool whose only process is a shell that reads lines and does this for each.
pub(super) fn shell_agent(id: &str, each: &str) -> Value {
    let script = format!("{SH}while read -r line; do {each}\ndone");
    json!({ "id": id, "command": "sh", "args": ["-c", script], "max_instances": 1 })
}

pub(super) fn small_lines() -> Value {
    let mut config = config(&[echo("echo", 1, &[])]);
    config["limits"] = json!({ "max_input_buffer": LINE_BYTES });
    config
}

/// What a client says is taken up to its limit, and refused with a reason beyond it.
pub(super) fn of_clients(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut client = bus.client()?;
    let long = |bytes: usize| "x".repeat(bytes);
    for (bytes, reason) in [(NAME_BYTES - 2, None), (NAME_BYTES, Some("invalid"))] {
        client.send(&write::request(long(bytes), "any/thing", json!({})))?;
        let got = client.message()?["error"]["data"]["reason"].as_str().map(str::to_owned);
        let what = format!("limits: an id of {} bytes", bytes + 2);
        trial.report.check(&what, format!("{got:?}"), format!("{reason:?}"), got.as_deref() == reason);
    }
    let mut refused = |what: &str, method: &str, params: Value, reason: &str| {
        let got = client.ask_or_reason(method, params)?.err().unwrap_or_default();
        trial.report.check(&format!("limits: {what}"), &got, reason, got == reason);
        Ok::<(), io::Error>(())
    };
    let session = json!({ "sessionId": long(NAME_BYTES + 1), "cwd": "/", "mcpServers": [] });
    refused("a sessionId that is one byte too long", "session/load", session, "invalid")?;
    let handshake = json!({ "protocolVersion": 1, "x": long(OPENING_BYTES) });
    refused("params of initialize that are too long", "initialize", handshake, "invalid")?;
    refused("a line above max_input_buffer", "any/thing", json!(long(LINE_BYTES)), "too_large")?;

    let mut named = bus.client()?;
    named.ask("_bus/hello", json!({ "client": long(1000) }))?;
    for _ in 0..=SESSIONS_PAGE {
        named.open_session()?;
    }
    let page = named.ask("_bus/sessions", json!({}))?;
    let sessions = page["sessions"].as_array().map_or(&[][..], Vec::as_slice);
    trial.report.at_most("limits: sessions on a page", sessions.len() as u64, SESSIONS_PAGE as u64);
    let longest = sessions.iter().filter_map(|session| session["client"].as_str()).map(str::len).max();
    trial.report.at_most("limits: bytes of a name", longest.unwrap_or(0) as u64, CLIENT_NAME_BYTES as u64);

    let mut tracers = (0..=TRACERS).map(|_| bus.client()).collect::<io::Result<Vec<_>>>()?;
    let mut traced = 0;
    for tracer in &mut tracers {
        traced += u64::from(tracer.ask_or_reason("_bus/trace", json!({}))?.is_ok());
    }
    trial.report.at_most("limits: clients that trace", traced, TRACERS as u64);
    drop(tracers);
    labels(trial, &mut bus.client()?)
}

fn labels(trial: &mut Trial<'_>, client: &mut Client) -> io::Result<()> {
    let mut lines = Vec::new();
    for nth in 0..=LABELS {
        let label = format!("{nth}");
        lines.extend(json!({ "jsonrpc": "2.0", "method": "note", "sessionId": label }).to_string().bytes());
        lines.push(b'\n');
    }
    client.send(&lines)?;
    let last = json!({ "jsonrpc": "2.0", "id": 1, "method": "any/thing", "sessionId": "one more" });
    client.send(format!("{last}\n").as_bytes())?;
    let reason = client.message()?["error"]["data"]["reason"].clone();
    trial.report.check("limits: one label too many", &reason, "busy", reason == "busy");
    Ok(())
}

pub(super) fn agents_that_say_much() -> Value {
    let questions = format!(
        r#"case $line in
        *'"initialize"'*) answer "$init";;
        *session/new*) answer '{{"sessionId":"s"}}';;
        *session/prompt*) i=0; while [ $i -lt {QUESTIONS} ]; do i=$((i+1))
          printf '{{"id":%s,"method":"fs/read_text_file","params":{{"sessionId":"s"}}}}\n' $i; done; answer '{{}}';;
        esac"#
    );
    let notices = format!(
        r#"case $line in *'"initialize"'*) answer "$init"; i=0; while [ $i -lt {NOTICES} ]; do i=$((i+1))
        printf '{{"method":"_note/%s"}}\n' $i; done;; esac"#
    );
    let long = r#"long=$(head -c 1100000 /dev/zero | tr '\0' x); answer "\"$long\"""#;
    let mourned = r#"i=0; while [ $i -lt 100 ]; do i=$((i+1)); printf '%0300d\n' $i >&2; done; exit 1"#;
    config(&[
        shell_agent("asks", &questions),
        shell_agent("notes", &notices),
        shell_agent("long", long),
        shell_agent("stderr", mourned),
    ])
}

/// What an agent says is taken up to its limit.
pub(super) fn of_agents(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut client = in_pool(&bus, "asks")?;
    let session = client.open_session()?;
    client.prompt(&session, "x")?;
    let mut asked = 0;
    while client.message()?["method"] == "fs/read_text_file" {
        asked += 1;
    }
    let most = PENDING_REQUESTS as u64;
    trial.report.check("limits: questions that wait in a session", asked, most, asked == most);

    let mut first = in_pool(&bus, "notes")?;
    for _ in 0..NOTICES {
        first.line()?;
    }
    let mut later = in_pool(&bus, "notes")?;
    later.send(&write::request("end", "_bus/status", json!({})))?;
    let mut told = 0;
    while later.message()?["id"] != "end" {
        told += 1;
    }
    let most = STICKY_NOTIFICATIONS_MAX as u64;
    trial.report.check("limits: notices that later clients hear", told, most, told == most);

    let mut client = bus.client()?;
    client.join_pool("long")?;
    let reason = client.initialize()?.err().unwrap_or_default();
    let what = "limits: an answer to initialize that is too long";
    trial.report.check(what, &reason, "no_start", reason == "no_start");

    let mut client = bus.client()?;
    client.join_pool("stderr")?;
    client.send(&write::request(1, "any/thing", json!({})))?;
    let error = client.message()?;
    let said = error["error"]["data"]["stderr"].as_str().unwrap_or_default();
    trial.report.holds("limits: an error shows what the agent wrote last", said.ends_with("00100"));
    trial.report.at_most(
        "limits: lines of stderr in an error",
        said.lines().count() as u64,
        STDERR_TAIL_LINES as u64,
    );
    trial.report.at_most("limits: bytes of stderr in an error", said.len() as u64, STDERR_TAIL_BYTES as u64);
    Ok(())
}

/// A client of this pool that is initialized.
pub(super) fn in_pool(bus: &Bus, pool: &str) -> io::Result<Client> {
    let mut client = bus.client()?;
    client.join_pool(pool)?;
    client.initialize()?.map_err(io::Error::other)?;
    Ok(client)
}

pub(super) fn long_lines_pass() -> Value {
    // The agent reads what it is sent and says nothing. It keeps its stdout open: the bus stops one that closes it.
    let reads = "exec 3>&1; exec cat > /dev/null";
    config(&[json!({ "id": "reads", "command": "sh", "args": ["-c", reads], "max_instances": 1 })])
}

/// A long line costs the bus at most so much for each byte, and those of others go on meanwhile.
pub(super) fn of_long_lines(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut client = bus.client()?;
    let bytes = trial.count(LONG_LINE_BYTES);
    for (what, text) in [("plain text", "0123456789 abcde "), ("many escapes", "line\\n\\\"quoted\\\" ")] {
        let text = text.repeat(bytes / text.len());
        let line =
            format!("{{\"jsonrpc\":\"2.0\",\"method\":\"note\",\"params\":{{\"text\":\"{text}\"}}}}\n");
        let mut each = f64::INFINITY;
        // What the host of a virtual machine takes away counts as time of the bus, so the best of some rounds counts.
        for _ in 0..ROUNDS_MAX {
            let before = procfs::cpu_time(bus.pid())?;
            client.send(line.as_bytes())?;
            // Until all of it is written.
            bus.until(PATIENCE, |_| client.status().is_ok_and(|status| status["held_bytes"] == 0));
            let spent = procfs::cpu_time(bus.pid())?.saturating_sub(before);
            each = each.min(spent.as_nanos() as f64 / line.len() as f64);
            if each <= NANOS_A_BYTE {
                break;
            }
        }
        let goal = format!("<= {NANOS_A_BYTE} ns");
        trial.report.check(
            &format!("lines: a byte of {what}"),
            format!("{each:.1} ns"),
            goal,
            each <= NANOS_A_BYTE,
        );
    }
    Ok(())
}
