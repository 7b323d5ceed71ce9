//! Bounds on what one client takes from others: calls, bytes, sessions.

use std::io;

use rpc::write;
use serde_json::{Value, json};

use super::Trial;
use crate::bus::{Bus, PATIENCE, config, echo};
use crate::client::Client;
use crate::procfs;

/// How often the modest client asks.
const QUESTIONS: usize = 500;
const CROWD: usize = 5;
const CALLS: usize = 4096;
const HELD_BYTES: usize = 64 << 20;
const LINE_BYTES: usize = 16 << 20;
const SESSIONS: usize = 64;
const LABELS: usize = 4000;
const LABEL_BYTES: usize = 4000;
/// What the tables and the allocator may take beside what is held.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// A pool whose agents answer, one whose agent never does, and limits that a client can reach.
pub(super) fn small_limits() -> Value {
    let mut config =
        config(&[echo("echo", 1, &[]), json!({ "id": "hangs", "command": "sleep", "args": ["1000"] })]);
    config["default_pool"] = json!("echo");
    config["pools"][0]["max_instances"] = json!(1);
    config["pools"][0]["max_sessions"] = json!(SESSIONS);
    config["limits"] =
        json!({ "max_calls": CALLS, "max_held_bytes": HELD_BYTES, "max_input_buffer": LINE_BYTES });
    config
}

/// Greedy clients take all that they can get. A modest one beside them is served all the same.
pub(super) fn others_are_greedy(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut modest = bus.client()?;
    let count = trial.count(QUESTIONS);
    for round in ["", ", and again after they have left"] {
        let mut crowd = (0..CROWD).map(|_| in_pool(&bus, "hangs")).collect::<io::Result<Vec<_>>>()?;
        for greedy in &mut crowd {
            let lines: Vec<u8> =
                (0..CALLS as u64).flat_map(|id| write::request(id, "hang", json!({}))).collect();
            greedy.send(&lines)?;
            // Once the bus answers this, it has read all of them.
            greedy.status()?;
        }
        let refused = refused(&mut modest, count)?;
        trial.report.at_most(
            &format!("greedy: refused of {count}, {CROWD} take all calls{round}"),
            refused,
            0,
        );
    }
    let mut begun = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":""#.to_vec();
    begun.resize(LINE_BYTES - 1000, b'x');
    let mut crowd = Vec::new();
    for _ in 0..2 * CROWD {
        let mut greedy = bus.client()?;
        greedy.send(&begun)?;
        crowd.push(greedy);
    }
    let refused_by_bytes = refused(&mut modest, count)?;
    let what = format!("greedy: refused of {count}, {} begin long lines", 2 * CROWD);
    trial.report.at_most(&what, refused_by_bytes, 0);
    drop(crowd);

    let mut greedy = bus.client()?;
    let mut opened = 0;
    while opened < SESSIONS && greedy.open_session().is_ok() {
        opened += 1;
    }
    trial.report.check(
        &format!("greedy: sessions of one, of {SESSIONS}"),
        opened,
        "< all",
        opened < SESSIONS,
    );
    trial.report.holds("greedy: another client opens one", modest.open_session().is_ok());
    Ok(())
}

/// What a client makes the bus keep is in `held_bytes`, and is given back.
pub(super) fn kept_beside_lines(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start()?;
    let mut watcher = bus.client()?;
    let held =
        |watcher: &mut Client| Ok::<_, io::Error>(watcher.status()?["held_bytes"].as_u64().unwrap_or(0));
    let before = (held(&mut watcher)?, procfs::resident_bytes(bus.pid())?).1;
    let mut greedy = bus.client()?;
    for nth in 0..trial.count(LABELS) {
        let label = format!("{nth}{}", "x".repeat(LABEL_BYTES));
        let line = json!({ "jsonrpc": "2.0", "method": "note", "sessionId": label }).to_string();
        greedy.send(format!("{line}\n").as_bytes())?;
    }
    greedy.status()?;
    let kept = held(&mut watcher)?;
    let grown = procfs::resident_bytes(bus.pid())?.saturating_sub(before);
    trial.report.bytes_at_most(
        "kept: growth beside what is held",
        grown.saturating_sub(2 * kept),
        OVERHEAD_BYTES,
    );
    trial.report.bytes_at_most(
        "kept: by one client, of 64 MiB",
        kept,
        HELD_BYTES as u64 / 2 + OVERHEAD_BYTES,
    );
    drop(greedy);
    bus.until_clients(&mut watcher, 1);
    // What it has left is given back in pieces.
    bus.until(PATIENCE, |_| held(&mut watcher).is_ok_and(|held| held == 0));
    trial.report.at_most("kept: held when it has left", held(&mut watcher)?, 0);
    Ok(())
}

fn in_pool(bus: &Bus, pool: &str) -> io::Result<Client> {
    let mut client = bus.client()?;
    client.join_pool(pool)?;
    Ok(client)
}

/// How many requests of this client are not answered with a result.
fn refused(client: &mut Client, count: usize) -> io::Result<u64> {
    let mut refused = 0;
    for _ in 0..count {
        refused += u64::from(client.ask("any/thing", json!({})).is_err());
    }
    Ok(refused)
}
