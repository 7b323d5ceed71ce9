//! `agent`: the agent of `compare`. It does as little as an agent can, so that the pipe in front of it is measured and
//! not the agent.
//!
//! It echoes a request by naming the bytes that it has read once more in a vectored write: nothing is parsed, copied or
//! allocated. The updates of a turn are made ahead, and each prompt puts only its own text into them. It understands
//! lines as `compare` spells them and nothing else; the echo agent of `stdio-bus` is for everything else.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use memchr::memchr;
use memchr::memmem;
use serde_json::{Value, json};

use crate::acp::{CHUNK, CHUNK_END, UPDATE};
use crate::print::complain;
use crate::request::{ASKED, HEAD};

const INPUT_BYTES: usize = 1 << 20;
/// The system takes at most so many slices in one write.
const SLICES_MAX: usize = 1024;
const RESULT: &[u8] = br#","result":{"echo":"#;
const RESULT_END: &[u8] = b",\"method\":\"echo\"}}\n";
const TEXT: &[u8] = br#""text":""#;
const TEXT_END: &[u8] = br#""}]}}"#;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Updates of each turn
    #[arg(long, value_name = "N", default_value_t = 0)]
    updates: usize,
    /// Write each update by itself
    #[arg(long)]
    flush_each: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    // Without the buffers of the standard library.
    let raw = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().map(File::from);
    let served = raw(&io::stdin())
        .and_then(|mut input| raw(&io::stdout()).and_then(|mut output| serve(args, &mut input, &mut output)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(error, 1),
    }
}

fn serve(args: &Args, input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut buffer = vec![0; INPUT_BYTES];
    let (mut start, mut end) = (0, 0);
    let mut sessions = Vec::new();
    loop {
        if end == buffer.len() {
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            if end == buffer.len() {
                buffer.resize(2 * end, 0);
            }
        }
        let count = input.read(&mut buffer[end..])?;
        if count == 0 {
            return Ok(());
        }
        // What was there before has no newline.
        let searched = end - start;
        end += count;
        start += answer(args, &buffer[start..end], searched, &mut sessions, output)?;
        if start == end {
            (start, end) = (0, 0);
        }
    }
}

/// Answers all whole lines, and says how many bytes they have.
fn answer(
    args: &Args,
    bytes: &[u8],
    mut searched: usize,
    sessions: &mut Vec<Turn>,
    output: &mut impl Write,
) -> io::Result<usize> {
    let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(SLICES_MAX);
    let mut start = 0;
    while let Some(at) = memchr(b'\n', &bytes[searched..]) {
        let line = &bytes[start..searched + at];
        (start, searched) = (searched + at + 1, searched + at + 1);
        let id_bytes = line.get(HEAD.len()..).map_or(0, digits);
        let (id, rest) = line.split_at((HEAD.len() + id_bytes).min(line.len()));
        if let Some(params) = rest.strip_prefix(ASKED).and_then(|rest| rest.strip_suffix(b"}")) {
            slices.extend([id, RESULT, params, RESULT_END].map(IoSlice::new));
            if slices.len() + 4 > SLICES_MAX {
                write_all(output, &mut slices)?;
            }
            continue;
        }
        write_all(output, &mut slices)?;
        plain(args, line, sessions, output)?;
    }
    write_all(output, &mut slices)?;
    Ok(start)
}

/// The digits at the beginning.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn write_all(output: &mut impl Write, slices: &mut Vec<IoSlice<'_>>) -> io::Result<()> {
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let count = output.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, count);
    }
    slices.clear();
    Ok(())
}

/// Everything but echoes: a handshake, new sessions, prompts.
fn plain(args: &Args, line: &[u8], sessions: &mut Vec<Turn>, output: &mut impl Write) -> io::Result<()> {
    const PROMPT: &[u8] = br#","method":"session/prompt","params":{"sessionId":""#;
    if let Some(at) = memmem::find(line, PROMPT) {
        let number = line.get(at + PROMPT.len() + 1..).unwrap_or_default();
        let number = std::str::from_utf8(&number[..digits(number)]).ok().and_then(|text| text.parse().ok());
        let turn = number.and_then(|number: usize| sessions.get_mut(number));
        let text = memmem::find(line, TEXT).and_then(|at| line[at + TEXT.len()..].strip_suffix(TEXT_END));
        if let (Some(turn), Some(text)) = (turn, text) {
            return turn.stream(args, text, &line[HEAD.len()..at], output);
        }
    }
    let message: Value = serde_json::from_slice(line)?;
    let Some(id) = message.get("id") else { return Ok(()) };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({ "protocolVersion": 1, "agentCapabilities": {} }),
        Some("session/new") => {
            sessions.push(Turn::new(sessions.len()));
            json!({ "sessionId": sessions[sessions.len() - 1].session })
        }
        _ => json!({}),
    };
    let mut answer = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    answer.push('\n');
    output.write_all(answer.as_bytes())
}

/// The updates of a session's turn, which are made with its first prompt.
struct Turn {
    session: String,
    lines: Vec<u8>,
    line_bytes: usize,
    text_bytes: usize,
}

impl Turn {
    fn new(number: usize) -> Turn {
        Turn { session: format!("s{number}"), lines: Vec::new(), line_bytes: 0, text_bytes: 0 }
    }

    /// Streams the text of the prompt in each update, and answers.
    fn stream(&mut self, args: &Args, text: &[u8], id: &[u8], output: &mut impl Write) -> io::Result<()> {
        let head = UPDATE.len() + self.session.len() + CHUNK.len();
        if self.text_bytes != text.len() || self.lines.is_empty() {
            let line = [UPDATE, self.session.as_bytes(), CHUNK, text, CHUNK_END, b"\n"].concat();
            (self.line_bytes, self.text_bytes) = (line.len(), text.len());
            self.lines = line.repeat(args.updates);
        } else {
            for line in self.lines.chunks_exact_mut(self.line_bytes) {
                line[head..head + text.len()].copy_from_slice(text);
            }
        }
        let end = [HEAD, id, b",\"result\":{\"stopReason\":\"end_turn\"}}\n"].concat();
        if args.flush_each {
            for line in self.lines.chunks_exact(self.line_bytes) {
                output.write_all(line)?;
            }
            return output.write_all(&end);
        }
        write_all(output, &mut vec![IoSlice::new(&self.lines), IoSlice::new(&end)])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::acp::{Acp, Turns};
    use crate::ledger::{Ledger, Verdict};
    use crate::request::Shape;

    /// What it says to these bytes, however they are cut.
    fn said(args: &Args, bytes: &[u8], piece: usize) -> Vec<u8> {
        struct Pieces<'a>(std::slice::Chunks<'a, u8>);
        impl Read for Pieces<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let Some(piece) = self.0.next() else { return Ok(0) };
                into[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }
        }
        let mut output = Vec::new();
        serve(args, &mut Pieces(bytes.chunks(piece)), &mut output).unwrap();
        output
    }

    #[test]
    fn every_request_is_echoed_as_the_load_expects_it() {
        let args = Args { updates: 0, flush_each: false };
        for piece in [1, 7, 100_000] {
            let (mut ledger, shape, now) = (Ledger::new(3), Shape::new(200), Instant::now());
            let mut asked = Vec::new();
            (0..300).for_each(|_| ledger.ask(&shape, &mut asked, now));
            let said = said(&args, &asked, piece);
            for line in said.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n') {
                assert_eq!(ledger.judge(&shape, line), Verdict::Right(now));
            }
            assert_eq!(ledger.in_flight(), 0);
        }
    }

    #[test]
    fn every_turn_streams_the_text_of_its_own_prompt() {
        let args = Args { updates: 5, flush_each: false };
        let turns = Turns { sessions: 1, updates: Some(5), ask_every: None };
        let (mut acp, shape, now) = (Acp::new(1, turns), Shape::new(200), Instant::now());
        let (mut asked, mut answered) = (Vec::new(), 0);
        acp.begin(&mut asked);
        for right in 0..4 {
            let said = said(&args, &asked, 64);
            let mut rights = 0;
            for line in said.split(|byte| *byte == b'\n').skip(answered).filter(|line| !line.is_empty()) {
                let verdict = acp.judge(line, &mut asked);
                rights += u32::from(matches!(verdict, Verdict::Right(_)));
                assert!(matches!(verdict, Verdict::Right(_) | Verdict::Passing), "{verdict:?}");
                answered += 1;
            }
            assert_eq!(rights, u32::from(right > 1));
            if right > 0 {
                acp.ask(&shape, &mut asked, now);
            }
        }
    }
}
