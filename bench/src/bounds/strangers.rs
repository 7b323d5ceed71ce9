//! Who does not speak JSON from the first byte on is no client: it gets no word, and no worker hears of it.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{PATIENCE, Trial};
use crate::chance::Chance;
use crate::stage::{Bus, echo};

/// Of each first byte.
const TAILS: usize = 100;
const SILENT: usize = 1000;
/// What a browser sends when a web page posts a line to a port.
const BROWSER: &str =
    "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: 46\r\n\r\n";
const REQUEST: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"any/thing\"}\n";

pub(super) fn run(trial: &mut Trial<'_>) -> io::Result<()> {
    let bus = trial.start(&json!({ "listen": ["tcp://127.0.0.1:0"], "pools": [echo("echo", 1, &[])] }))?;
    bus.until_up(1, PATIENCE)?;
    let (mut chance, mut answered, mut visits) = (Chance::new(7), 0, 0);
    for first in (0..=u8::MAX).filter(|first| *first != b'{' && !first.is_ascii_whitespace()) {
        for _ in 0..trial.count(TAILS) {
            let tail = (0..chance.below(64)).map(|_| chance.next() as u8);
            let bytes = [&[first][..], &tail.collect::<Vec<_>>(), b"\n", REQUEST.as_bytes()].concat();
            answered += usize::from(is_answered(&bus, &bytes)?);
            visits += 1;
        }
    }
    answered += usize::from(is_answered(&bus, &format!("{BROWSER}{REQUEST}").into_bytes())?);
    trial.sheet.judge(&format!("strangers: answered, of {}", visits + 1), answered, 0, answered == 0);
    let requests = bus.status()?["counters"]["requests"].as_u64().unwrap_or(u64::MAX);
    trial.sheet.at_most("strangers: requests that reached a worker", requests, 0);

    let silent = (0..trial.count(SILENT)).map(|_| bus.door().open()).collect::<io::Result<Vec<_>>>()?;
    let begun = Instant::now();
    bus.client()?.ask("hello", "_bus/hello", json!({}))?;
    let what = format!("strangers: hello beside {} that say nothing", silent.len());
    trial.sheet.time_at_most(&what, begun.elapsed(), Duration::from_millis(100));
    Ok(())
}

/// Whether a byte comes back before the end.
fn is_answered(bus: &Bus, bytes: &[u8]) -> io::Result<bool> {
    let mut socket = bus.door().open()?;
    socket.set_patience(Some(PATIENCE))?;
    // It may be closed before all is sent.
    let _ = socket.write_all(bytes);
    match socket.read(&mut [0; 64]) {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(_) => Ok(false),
    }
}
