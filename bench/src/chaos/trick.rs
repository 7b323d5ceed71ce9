//! Clients that do what they should not: each trick is one visit, and says what the bus did wrong about it.

use std::io::{self, ErrorKind, Write};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::LINE_BYTES;
use super::{LINE_BYTES_MOST, STALL_BYTES};
use crate::chance::Chance;
use crate::request::{Answer, Shape};
use crate::talk::Talk;

/// Of one byte each, so not too long.
const SLICED_BYTES: usize = 300;
/// How long one that never reads stays.
const STALL: Duration = Duration::from_millis(1500);

pub(super) type Trick = fn(Talk, u32, &mut Chance) -> io::Result<()>;

pub(super) const TRICKS: [(&str, Trick); 7] = [
    ("vanish", vanish),
    ("half-close", half_close),
    ("slices", slices),
    ("huge line", huge_line),
    ("bad lines", bad_lines),
    ("stranger", stranger),
    ("stall", stall),
];

/// Asks, begins another line, and resets the connection.
fn vanish(mut talk: Talk, number: u32, chance: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
    let mut lines = plain(number, 1..=3, LINE_BYTES);
    lines.truncate(lines.len() - 1 - chance.below(LINE_BYTES));
    talk.send(&lines)?;
    talk.vanish()
}

/// Says that nothing more will come, and is owed three answers.
fn half_close(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
    talk.send(&plain(number, 1..=3, LINE_BYTES))?;
    talk.socket().half_close()?;
    expect_answers(&mut talk, number, 1..=3, LINE_BYTES)?;
    match talk.line()? {
        None => Ok(()),
        Some(line) => Err(surprise("more than was asked for", line)),
    }
}

fn slices(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
    for byte in plain(number, 1..=1, SLICED_BYTES) {
        talk.send(&[byte])?;
    }
    expect_answers(&mut talk, number, 1..=1, SLICED_BYTES)
}

fn huge_line(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
    talk.send(&plain(number, 1..=1, 2 * LINE_BYTES_MOST))?;
    expect_reason(&mut talk, "too_large")?;
    talk.send(&plain(number, 2..=2, LINE_BYTES))?;
    expect_answers(&mut talk, number, 2..=2, LINE_BYTES)
}

fn bad_lines(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
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
        talk.send(&[line, b"\n"].concat())?;
        expect_reason(&mut talk, reason)?;
    }
    talk.send(&plain(number, 9..=9, LINE_BYTES))?;
    expect_answers(&mut talk, number, 9..=9, LINE_BYTES)
}

/// Speaks another language, and gets no word back.
fn stranger(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    let mut lines = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    lines.extend(plain(number, 1..=1, LINE_BYTES));
    // It may have been closed before all was sent.
    let _ = talk.send(&lines);
    match talk.line() {
        Ok(Some(line)) => Err(surprise("a stranger was answered", line)),
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
        _ => Ok(()),
    }
}

/// Asks for more than it is let have, and takes none of it.
fn stall(mut talk: Talk, number: u32, _: &mut Chance) -> io::Result<()> {
    greet(&mut talk)?;
    talk.socket().set_patience(Some(Duration::from_millis(100)))?;
    let lines = plain(number, 1..=(STALL_BYTES / LINE_BYTES) as u64, LINE_BYTES);
    // Nobody is obliged to take all of it.
    let _ = talk.socket().write_all(&lines);
    thread::sleep(STALL);
    Ok(())
}

/// Before any nonsense: who begins with that is a stranger.
fn greet(talk: &mut Talk) -> io::Result<()> {
    match talk.initialize()? {
        None => Ok(()),
        Some(reason) => Err(io::Error::other(format!("not initialized: {reason}"))),
    }
}

fn plain(number: u32, ids: std::ops::RangeInclusive<u64>, line_bytes: usize) -> Vec<u8> {
    let (shape, mut lines) = (Shape::new(line_bytes), Vec::new());
    ids.for_each(|id| shape.write(&mut lines, number, id));
    lines
}

/// Each of them once, in any order, and nothing else.
fn expect_answers(
    talk: &mut Talk,
    number: u32,
    ids: std::ops::RangeInclusive<u64>,
    line_bytes: usize,
) -> io::Result<()> {
    let shape = Shape::new(line_bytes);
    let mut owed = ids.collect::<Vec<_>>();
    while !owed.is_empty() {
        let line = talk.line()?.ok_or(ErrorKind::UnexpectedEof)?;
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

fn expect_reason(talk: &mut Talk, reason: &str) -> io::Result<()> {
    let message: Value = talk.message()?;
    match message["error"]["data"]["reason"] == json!(reason) {
        true => Ok(()),
        false => Err(surprise(&format!("not refused as {reason}"), message.to_string().as_bytes())),
    }
}

fn surprise(what: &str, line: &[u8]) -> io::Error {
    let excerpt = String::from_utf8_lossy(&line[..line.len().min(300)]).into_owned();
    io::Error::other(format!("{what}: {excerpt}"))
}
