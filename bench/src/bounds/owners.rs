//! Questions of an agent while the owner of a session changes: each reaches the one who can answer it, and nobody is
//! asked what is not asked any more.

use std::io;
use std::time::Duration;

use rpc::write;
use serde_json::{Value, json};

use super::Trial;
use crate::bus::{Bus, PATIENCE};
use crate::client::{Client, prompt};

const FILE: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"fs/read_text_file","params":{"sessionId":"@session","path":"/f"}}"#;
const WITHDRAWN: &str = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":7}}"#;
/// Long enough for anything that comes.
const HEARD: Duration = Duration::from_secs(3);

pub(super) fn questions_reach_the_next_one(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let asked = after_a_take(&bus)?;
    trial.report.holds("owners: who takes a session from one that says no more is asked", asked);
    let asked = after_it_was_withdrawn(&bus)?;
    trial.report.holds("owners: what was withdrawn meanwhile is asked of nobody", !asked);
    Ok(())
}

/// A client that reads files, so that the agent may ask for one.
fn editor(bus: &Bus) -> io::Result<Client> {
    let mut client = bus.client()?;
    let reads = json!({ "fs": { "readTextFile": true } });
    client.ask("initialize", json!({ "protocolVersion": 1, "clientCapabilities": reads }))?;
    Ok(client)
}

fn script(lines: &[&str], wait: usize) -> String {
    let say = lines.iter().map(|line| json!({ "text": format!("{line}\n") })).collect::<Vec<_>>();
    json!({ "say": say, "wait": wait }).to_string()
}

fn questions_of(bus: &Bus) -> io::Result<u64> {
    let sessions = bus.client()?.ask("_bus/sessions", json!({}))?;
    let all = sessions["sessions"].as_array().into_iter().flatten();
    Ok(all.filter_map(|session| session["questions"].as_u64()).sum())
}

/// The owner asks and closes its side; the agent asks for a file; another client takes the session over.
fn after_a_take(bus: &Bus) -> io::Result<bool> {
    let (mut owner, mut next) = (editor(bus)?, editor(bus)?);
    let session = owner.open_session()?;
    owner.send(&write::request(1, "session/prompt", prompt(&session, &script(&[FILE], 1))))?;
    owner.half_close()?;
    bus.until(PATIENCE, |bus| questions_of(bus).is_ok_and(|questions| questions == 1));
    next.ask("_bus/attach", json!({ "session": session }))?;
    next.send(&write::request("take", "_bus/take", json!({ "session": session })))?;
    is_asked(&mut next)
}

/// The owner leaves; the agent asks for a file and withdraws that; another client becomes the owner.
fn after_it_was_withdrawn(bus: &Bus) -> io::Result<bool> {
    let (mut owner, mut next, mut other) = (editor(bus)?, editor(bus)?, editor(bus)?);
    let session = owner.open_session()?;
    let agents = session.rsplit('.').next().unwrap_or_default().to_owned();
    // As the owner's connection has ended, the session is kept for the next.
    drop(owner);
    bus.until(PATIENCE, |bus| kept(bus).is_ok_and(|kept| kept >= 1));
    for line in [FILE, WITHDRAWN] {
        let text = format!("{}\n", line.replace("@session", &agents));
        other.ask("agent/say", json!({ "say": [{ "text": text }] }))?;
    }
    let resume = json!({ "sessionId": session, "cwd": "/", "mcpServers": [] });
    next.send(&write::request("take", "session/resume", resume))?;
    is_asked(&mut next)
}

fn kept(bus: &Bus) -> io::Result<u64> {
    let status = bus.status()?;
    let pools = status["pools"].as_array().into_iter().flatten();
    Ok(pools.filter_map(|pool| pool["kept"].as_u64()).sum())
}

/// Whether this client is asked for a file, before or soon after its request is answered.
fn is_asked(client: &mut Client) -> io::Result<bool> {
    client.set_timeout(HEARD);
    let mut is_answered = false;
    loop {
        let message = match client.message() {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(false),
            Err(error) => return Err(error),
        };
        if message["method"] == "fs/read_text_file" {
            client.send(&json_line(&json!({ "id": message["id"], "result": { "content": "x" } })))?;
            return Ok(true);
        }
        if message["id"] == "take" && !is_answered {
            if let Some(error) = message.get("error") {
                return Err(io::Error::other(format!("it is not taken over: {error}")));
            }
            is_answered = true;
            // What it is asked for comes at once, or not at all.
            client.set_timeout(HEARD / 3);
        }
    }
}

fn json_line(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}
