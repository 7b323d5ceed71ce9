//! Clients that misbehave: each trick is one connection, and its error tells what the bus did wrong.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use serde_json::json;

use super::checking_client::LINE_BYTES;
use super::{LINE_BYTES_MOST, STALL_BYTES};
use crate::client::Client;
use crate::request::{Answer, Shape};

/// Sent byte by byte, so not too long.
const SLICED_BYTES: usize = 300;
/// How long a client that never reads stays.
const STALL: Duration = Duration::from_millis(1500);

pub(super) type Trick = fn(Client, u32, &mut Rng) -> io::Result<()>;

pub(super) const TRICKS: [(&str, Trick); 7] = [
    ("vanish", reset),
    ("half-close", half_close),
    ("slices", slices),
    ("huge line", huge_line),
    ("bad lines", bad_lines),
    ("stranger", no_json),
    ("stall", stall),
];

/// Sends requests, begins another line, and resets the connection.
fn reset(mut client: Client, number: u32, rng: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    let mut lines = plain(number, 1..=3, LINE_BYTES);
    lines.truncate(lines.len() - 1 - rng.usize(..LINE_BYTES));
    client.send(&lines)?;
    client.reset()
}

/// Closes its side of the connection, and must still get three answers.
fn half_close(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    client.send(&plain(number, 1..=3, LINE_BYTES))?;
    client.half_close()?;
    expect_answers(&mut client, number, 1..=3, LINE_BYTES)?;
    match client.line_or_end()? {
        None => Ok(()),
        Some(line) => Err(surprise("more than was asked for", line)),
    }
}

fn slices(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    for byte in plain(number, 1..=1, SLICED_BYTES) {
        client.send(&[byte])?;
    }
    expect_answers(&mut client, number, 1..=1, SLICED_BYTES)
}

fn huge_line(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    client.send(&plain(number, 1..=1, 2 * LINE_BYTES_MOST))?;
    expect_reason(&mut client, "too_large")?;
    client.send(&plain(number, 2..=2, LINE_BYTES))?;
    expect_answers(&mut client, number, 2..=2, LINE_BYTES)
}

fn bad_lines(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    let lines: [(&[u8], &str); 6] = [
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"", "parse"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}", "parse"),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\"}]", "invalid"),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"x\"}", "invalid"),
        (
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":{\"\\u0073essionId\":\"y\"}}",
            "invalid",
        ),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"x\"}", "invalid"),
    ];
    for (line, reason) in lines {
        client.send(&[line, b"\n"].concat())?;
        expect_reason(&mut client, reason)?;
    }
    client.send(&plain(number, 9..=9, LINE_BYTES))?;
    expect_answers(&mut client, number, 9..=9, LINE_BYTES)
}

/// Speaks no JSON, and must get no answer.
fn no_json(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    let mut lines = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    lines.extend(plain(number, 1..=1, LINE_BYTES));
    // The bus may close the connection before all is sent.
    let _ = client.send(&lines);
    match client.line_or_end() {
        Ok(Some(line)) => Err(surprise("a stranger was answered", line)),
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
        _ => Ok(()),
    }
}

/// Asks for more than the bus may queue for it, and reads none of it.
fn stall(mut client: Client, number: u32, _: &mut Rng) -> io::Result<()> {
    initialize(&mut client)?;
    client.set_timeout(Duration::from_millis(100));
    let lines = plain(number, 1..=(STALL_BYTES / LINE_BYTES) as u64, LINE_BYTES);
    // The bus need not take all of it.
    let _ = client.send(&lines);
    thread::sleep(STALL);
    Ok(())
}

/// Comes before any nonsense: the bus closes a connection that begins with that.
fn initialize(client: &mut Client) -> io::Result<()> {
    match client.initialize()? {
        Ok(_) => Ok(()),
        Err(reason) => Err(io::Error::other(format!("not initialized: {reason}"))),
    }
}

fn plain(number: u32, ids: std::ops::RangeInclusive<u64>, line_bytes: usize) -> Vec<u8> {
    let shape = Shape::new(line_bytes);
    let mut lines = Vec::new();
    for id in ids {
        shape.write(&mut lines, number, id);
    }
    lines
}

/// Each answer must come once, in any order, and nothing else.
fn expect_answers(
    client: &mut Client,
    number: u32,
    ids: std::ops::RangeInclusive<u64>,
    line_bytes: usize,
) -> io::Result<()> {
    let shape = Shape::new(line_bytes);
    let mut owed = ids.collect::<Vec<_>>();
    while !owed.is_empty() {
        let line = client.line()?;
        let answer = Answer::read(line).filter(|answer| owed.contains(&answer.id));
        let right = |answer: &Answer<'_>| {
            answer.params.is_some_and(|params| shape.is_params(params, number, answer.id))
        };
        match answer.filter(right) {
            Some(answer) => owed.retain(|id| *id != answer.id),
            None => return Err(surprise("not an answer that is owed", line)),
        }
    }
    Ok(())
}

fn expect_reason(client: &mut Client, reason: &str) -> io::Result<()> {
    let message = client.message()?;
    if message["error"]["data"]["reason"] == json!(reason) {
        return Ok(());
    }
    Err(surprise(&format!("not refused as {reason}"), message.to_string().as_bytes()))
}

fn surprise(what: &str, line: &[u8]) -> io::Error {
    let excerpt = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
    io::Error::other(format!("{what}: {excerpt}"))
}
