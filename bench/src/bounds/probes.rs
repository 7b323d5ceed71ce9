//! A client that knows another's session still cannot use it, nor tell it from one that does not exist.

use std::io;
use std::time::Instant;

use serde_json::json;

use super::{PATIENCE, Trial};
use crate::chance::Chance;
use crate::stage::echo;

const PROBES: usize = 100_000;
const BATCH: usize = 100;
/// Of the tag that makes a session's name one of a kind, which comes first in it.
const TAG_LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const TAG: usize = 13;
const METHODS: [&str; 4] = ["session/prompt", "session/close", "session/set_mode", "session/load"];

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start(&json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [echo("echo", 2, &[])] }))?;
    bus.until_up(2, PATIENCE)?;
    let (mut owner, mut thief) = (bus.client()?, bus.client()?);
    let session = owner.open_session()?;
    let (mut chance, mut routed, mut told_apart, probes) = (Chance::new(3), 0, 0, trial.count(PROBES));
    for done in 0..probes / BATCH {
        let (mut lines, method) = (String::new(), METHODS[done % METHODS.len()]);
        for probe in 0..BATCH {
            // Every other one is the true name, the rest have another tag.
            let name = match probe % 2 {
                0 => session.clone(),
                _ => (0..TAG)
                    .map(|_| TAG_LETTERS[chance.below(32)] as char)
                    .chain(session.chars().skip(TAG))
                    .collect(),
            };
            let params =
                json!({ "sessionId": name, "cwd": "/", "mcpServers": [], "modeId": "shout", "prompt": [] });
            lines +=
                &format!("{}\n", json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }));
        }
        thief.send(lines.as_bytes())?;
        let mut first = None;
        for _ in 0..BATCH {
            let line = thief.line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let refused = memchr::memmem::find(line, b"\"unknown_session\"").is_some();
            routed += usize::from(!refused);
            told_apart += usize::from(*first.get_or_insert_with(|| line.to_vec()) != line);
        }
        trial.progress.show(Instant::now(), || format!("{} of {probes}", done * BATCH));
    }
    trial.sheet.judge(&format!("probes: routed, of {probes}"), routed, 0, routed == 0);
    trial.sheet.judge("probes: answers that tell the two apart", told_apart, 0, told_apart == 0);
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "still mine" }] });
    let mine = owner.ask("prompt", "session/prompt", params)?["result"]["stopReason"] == "end_turn";
    trial.sheet.judge("probes: the owner's session goes on", if mine { "yes" } else { "no" }, "yes", mine);
    Ok(())
}
