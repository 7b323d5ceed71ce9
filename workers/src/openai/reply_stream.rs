//! Reads the body of a successful answer into a `Reply`.

use std::io::{ErrorKind, Read};

use serde_json::Value;
use ureq::BodyReader;

use super::api_error::{ApiError, TURN_MIB_MAX};
use super::http::{Answer, read_error};
use super::log::log;
use super::reply::Reply;
use super::sse::{Event, Parser};
use super::think_tags::Piece;

const READ_BYTES: usize = 16 << 10;
/// The largest answer that comes as one JSON object: what a turn may say, and as much for how JSON says it.
const BODY_BYTES_MAX: u64 = (2 * TURN_MIB_MAX as u64) << 20;

/// A streamed answer.
pub(super) struct ReplyStream {
    reader: BodyReader<'static>,
    buffer: Vec<u8>,
    parser: Parser,
    events: Vec<Event>,
    reply: Reply,
    has_data: bool,
    is_over: bool,
}

/// The last pieces, and the whole reply.
pub(super) type Finished = (Vec<Piece>, Result<Reply, ApiError>);

pub(super) enum Next {
    Pieces(Vec<Piece>),
    /// The stream is over. It is broken if it could not be read to its end, and then its connection is useless.
    End {
        is_broken: bool,
    },
}

impl ReplyStream {
    pub(super) fn new(answer: Answer, reply: Reply) -> ReplyStream {
        ReplyStream {
            reader: answer.into_reader(),
            buffer: vec![0; READ_BYTES],
            parser: Parser::default(),
            events: Vec::new(),
            reply,
            has_data: false,
            is_over: false,
        }
    }

    /// Whether nothing can follow but the usage and the end of the stream.
    pub(super) fn is_complete(&self) -> bool {
        self.reply.is_complete()
    }

    /// Reads once. A read error after the reply is complete is only the end.
    pub(super) fn next(&mut self) -> Result<Next, ApiError> {
        if self.is_over {
            return Ok(Next::End { is_broken: false });
        }
        let count = loop {
            match self.reader.read(&mut self.buffer) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) if self.is_complete() => return Ok(Next::End { is_broken: true }),
                Err(error) => return Err(read_error(&error)),
            }
        };
        if count == 0 {
            self.is_over = true;
            std::mem::take(&mut self.parser).finish(&mut self.events);
        } else {
            self.has_data = true;
            if self.parser.push(&self.buffer[..count], &mut self.events).is_err() {
                return Err(ApiError::Broken { message: "an event of it has no end".to_owned() });
            }
        }
        let mut pieces = Vec::new();
        for event in self.events.drain(..) {
            if self.reply.is_done() {
                break;
            }
            if let Some(warning) = self.reply.event(&event, &mut pieces)? {
                log(format_args!("{warning}"));
            }
        }
        Ok(Next::Pieces(pieces))
    }

    pub(super) fn finish(self) -> Finished {
        let (pieces, reply) = finish(self.reply, Vec::new());
        (pieces, if self.has_data { reply } else { Err(ApiError::NoBody) })
    }
}

/// Reads the answer of a server that does not stream, although it was asked to.
pub(super) fn read_body(answer: Answer) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    let mut reader = answer.into_reader().take(BODY_BYTES_MAX + 1);
    reader.read_to_end(&mut body).map_err(|error| read_error(&error))?;
    if body.len() as u64 > BODY_BYTES_MAX { Err(ApiError::TooLong) } else { Ok(body) }
}

/// Parses an answer that came without a stream.
pub(super) fn parse_body(body: &[u8], mut reply: Reply) -> Result<Finished, ApiError> {
    if body.trim_ascii().is_empty() {
        return Err(ApiError::NoBody);
    }
    let Ok(chunk) = serde_json::from_slice::<Value>(body) else {
        return Err(ApiError::Broken { message: "it is no JSON".to_owned() });
    };
    let mut pieces = Vec::new();
    reply.chunk(&chunk, &mut pieces)?;
    Ok(finish(reply, pieces))
}

fn finish(mut reply: Reply, mut pieces: Vec<Piece>) -> Finished {
    let end = reply.end(&mut pieces);
    (pieces, end.map(|()| reply))
}
