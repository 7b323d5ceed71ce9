//! The tables that clients and agents fill: each takes so much and no more, and what leaves is given back.

use std::io;

use kernel_core::limit::{
    ABANDONED_PART, BROADCASTS_MAX, CHILDREN_TIMES, ELICITATIONS, SETTINGS, TRACE_QUEUE_PART, WAITING_PROMPTS,
};
use rpc::write;
use serde_json::{Value, json};

use super::Trial;
use super::limits::{in_pool, shell_agent};
use crate::bus::{Bus, PATIENCE, config};
use crate::client::{Client, prompt};

const CALLS: usize = 1024;
const HELD_BYTES: usize = 64 << 20;
/// More than any of the tables takes.
const MANY: usize = 300;
/// Requests of one client that leaves, and how many such clients come.
const LEFT_CALLS: usize = 200;
const LEAVERS: usize = 5;
/// What a tracer does not read.
const TRACED_LINES: usize = 200;
const TRACED_BYTES: usize = 10_000;
/// What the bus holds for others meanwhile.
const BESIDE_BYTES: u64 = 64 << 10;

/// Agents that count what they are told, that hang, and that announce and ask without end.
pub(super) fn full_tables() -> Value {
    let counts = r#"case $line in
        *'"initialize"'*) answer "$init";;
        *session/new*) answer '{"sessionId":"s"}';;
        *set_config_option*|*providers/set*) n=$((n+1)); answer '{}';;
        *count*) answer "{\"stopReason\":\"end_turn\",\"count\":${n:-0}}";;
        *die*) exit 1;;
        *'"id"'*) answer '{}';;
        esac"#;
    let holds = r#"case $line in
        *'"initialize"'*) answer "$init";;
        *session/new*) answer '{"sessionId":"s"}';;
        esac"#;
    let announces = format!(
        r#"case $line in
        *'"initialize"'*) answer "$init";;
        *session/new*) answer '{{"sessionId":"s"}}';;
        *session/prompt*) i=0; while [ $i -lt {MANY} ]; do i=$((i+1))
          printf '{{"method":"session/update","params":{{"sessionId":"s","update":{{"sessionId":"c%s"}}}}}}\n' $i
          done; answer '{{}}';;
        *any/thing*) i=0; while [ $i -lt {MANY} ]; do i=$((i+1))
         printf '{{"id":%s,"method":"elicitation/create","params":{{"requestId":"own","elicitationId":"e%s"}}}}\n' $i $i
          done; answer '{{}}';;
        *all/done*) i=0; while [ $i -lt {MANY} ]; do i=$((i+1))
          printf '{{"method":"elicitation/complete","params":{{"elicitationId":"e%s"}}}}\n' $i
          done; answer '{{}}';;
        esac"#
    );
    let mut config = config(&[
        shell_agent("counts", counts),
        shell_agent("holds", holds),
        shell_agent("children", &announces),
        shell_agent("elicits", &announces),
    ]);
    config["pools"][2]["max_sessions"] = json!(1);
    config["trace"] = json!({ "payloads": true });
    config["limits"] = json!({ "max_calls": CALLS, "max_held_bytes": HELD_BYTES });
    config
}

pub(super) fn are_full(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    settings(trial, &bus)?;
    broadcasts(trial, &bus)?;
    children(trial, &bus)?;
    elicitations(trial, &bus)?;
    waiting_prompts(trial, &bus)?;
    abandoned_calls(trial, &bus)?;
    trace_queue(trial, &bus)
}

/// Settings are set again after the death of the process, so many of them.
fn settings(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut client = in_pool(bus, "counts")?;
    let session = client.open_session()?;
    for nth in 0..MANY {
        let option = json!({ "sessionId": session, "configId": format!("option {nth}"), "value": "on" });
        client.ask("session/set_config_option", option)?;
    }
    // It dies of this.
    client.ask_or_reason("session/prompt", prompt(&session, "die"))?.err();
    let count = client.ask("session/prompt", prompt(&session, "count"))?["count"].clone();
    trial.report.check("tables: settings that are set again", &count, SETTINGS, count == SETTINGS);
    Ok(())
}

/// Requests for every process of a pool are repeated to the next one, so many of them.
fn broadcasts(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut client = in_pool(bus, "counts")?;
    for nth in 0..MANY {
        client.ask("providers/set", json!({ "id": format!("provider {nth}") }))?;
    }
    client.ask_or_reason("any/die", json!({}))?.err();
    let count = client.ask("any/count", json!({}))?["count"].clone();
    trial.report.check("tables: requests that are repeated", &count, BROADCASTS_MAX, count == BROADCASTS_MAX);
    Ok(())
}

/// An agent with `max_sessions` 1 announces sessions of subagents.
fn children(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut client = in_pool(bus, "children")?;
    let session = client.open_session()?;
    client.prompt(&session, "x")?;
    while client.message()?["id"] != "prompt" {}
    let sessions = client.ask("_bus/sessions", json!({}))?;
    let of_pool = |session: &&Value| session["pool"] == "children";
    let count = sessions["sessions"].as_array().map_or(0, |all| all.iter().filter(of_pool).count());
    let what = "tables: sessions of a process that may have 1, with those of its subagents";
    trial.report.check(what, count, CHILDREN_TIMES, count == CHILDREN_TIMES);
    Ok(())
}

/// An agent asks in a browser and later tells that it is answered: the client hears of the last ones.
fn elicitations(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut client = in_pool(bus, "elicits")?;
    for (id, method) in [("ask", "any/thing"), ("end", "all/done")] {
        client.send(&write::request(id, method, json!({})))?;
        let mut heard = 0;
        loop {
            let message = client.message()?;
            if message["id"] == id && message.get("method").is_none() {
                break;
            }
            heard += usize::from(message["method"] == "elicitation/complete");
        }
        if id == "end" {
            let what = "tables: elicitations of one agent that can be completed";
            trial.report.check(what, heard, ELICITATIONS, heard == ELICITATIONS);
        }
    }
    Ok(())
}

/// Prompts of a second client wait for the turn of the first one.
fn waiting_prompts(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let (mut owner, mut guest) = (in_pool(bus, "holds")?, in_pool(bus, "holds")?);
    let session = owner.open_session()?;
    owner.prompt(&session, "x")?;
    owner.status()?;
    guest.ask("_bus/attach", json!({ "session": session }))?;
    for nth in 0..=WAITING_PROMPTS {
        guest.send(&write::request(1000 + nth as u64, "session/prompt", prompt(&session, "y")))?;
    }
    let refused = loop {
        let message = guest.message()?;
        if message["error"]["data"]["reason"] == "busy" {
            break message["id"].as_u64().map_or(0, |id| id - 1000);
        }
    };
    let most = WAITING_PROMPTS as u64;
    trial.report.check("tables: prompts that wait for a turn", refused, most, refused == most);
    Ok(())
}

/// Clients leave with requests that are never answered.
fn abandoned_calls(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut watcher = bus.client()?;
    let before = watcher.status()?["calls"].as_u64().unwrap_or(0);
    for _ in 0..LEAVERS {
        let mut client = in_pool(bus, "holds")?;
        for id in 0..LEFT_CALLS as u64 {
            client.send(&write::request(id, "any/thing", json!({})))?;
        }
        // What was sent before is read by now. A connection that is only closed could still read answers.
        client.status()?;
        client.reset()?;
    }
    let most = before + (CALLS / ABANDONED_PART) as u64;
    let calls = |watcher: &mut Client| watcher.status().map(|status| status["calls"].as_u64().unwrap_or(0));
    bus.until(PATIENCE, |_| calls(&mut watcher).is_ok_and(|calls| calls <= most));
    trial.report.at_most("tables: calls of clients that have left", calls(&mut watcher)?, most);
    Ok(())
}

/// A tracer does not read.
fn trace_queue(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut tracer = bus.client()?;
    tracer.ask("_bus/trace", json!({ "payloads": true }))?;
    let mut client = in_pool(bus, "counts")?;
    let mut held = 0;
    for _ in 0..TRACED_LINES {
        client.ask("any/thing", json!("x".repeat(TRACED_BYTES)))?;
        held = held.max(client.status()?["held_bytes"].as_u64().unwrap_or(0));
    }
    let most = (HELD_BYTES / TRACE_QUEUE_PART) as u64 + BESIDE_BYTES;
    trial.report.bytes_at_most("tables: held for a tracer that does not read", held, most);
    Ok(())
}
