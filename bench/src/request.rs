//! The requests of a load, and how to recognise their right answers.
//!
//! No two requests of a run are alike: each carries its connection and its id in its params, so that an answer to
//! another connection is noticed even if its id fits.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

pub(crate) const HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
pub(crate) const ASKED: &[u8] = br#","method":"echo","params":"#;
const PARAMS: &[u8] = br#"{"asked":""#;
const PAD: &[u8] = br#"","pad":""#;
const PARAMS_END: &[u8] = br#""}"#;
const END: &[u8] = b"}\n";

/// The length of a line without its numbers and its padding.
const FIXED_BYTES: usize =
    HEAD.len() + ASKED.len() + PARAMS.len() + b"/".len() + PAD.len() + PARAMS_END.len() + END.len();
/// The shortest line that has room for its numbers, however long the run.
pub(crate) const LINE_BYTES_LEAST: usize = 128;
const _: () = assert!(FIXED_BYTES + 10 + 2 * 19 < LINE_BYTES_LEAST);

/// The format of the lines of one load.
pub(crate) struct Shape {
    /// The length of a line, with its newline.
    line_bytes: usize,
    /// More than any line needs.
    pad: Vec<u8>,
}

impl Shape {
    pub(crate) fn new(line_bytes: usize) -> Shape {
        assert!(line_bytes >= LINE_BYTES_LEAST, "{line_bytes} bytes have no room for a request");
        // The bytes differ, so that a shifted piece of the padding is noticed.
        let pad = (b'a'..=b'z').chain(b'0'..=b'9').cycle().take(line_bytes).collect();
        Shape { line_bytes, pad }
    }

    /// Appends request `id` of connection `connection`.
    pub(crate) fn write(&self, into: &mut Vec<u8>, connection: u32, id: u64) {
        let (mut connection_text, mut id_text) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (connection, id) = (connection_text.format(connection).as_bytes(), id_text.format(id).as_bytes());
        let pad = self.pad_of(connection, id);
        for part in [HEAD, id, ASKED, PARAMS, connection, b"/", id, PAD, pad, PARAMS_END, END] {
            into.extend_from_slice(part);
        }
    }

    /// As much padding as a line with so many other bytes needs, and never less than 16 bytes.
    pub(crate) fn pad(&self, other_bytes: usize) -> &[u8] {
        const LEAST: usize = 16;
        &self.pad[..self.line_bytes.saturating_sub(other_bytes).max(LEAST)]
    }

    /// Whether these are the params of that request, byte for byte.
    pub(crate) fn is_params(&self, params: &[u8], connection: u32, id: u64) -> bool {
        let (mut connection_text, mut id_text) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (connection, id) = (connection_text.format(connection).as_bytes(), id_text.format(id).as_bytes());
        let mut rest = params;
        for part in [PARAMS, connection, b"/", id, PAD] {
            let Some(after) = rest.strip_prefix(part) else { return false };
            rest = after;
        }
        rest.strip_suffix(PARAMS_END) == Some(self.pad_of(connection, id))
    }

    fn pad_of(&self, connection: &[u8], id: &[u8]) -> &[u8] {
        &self.pad[..self.line_bytes - FIXED_BYTES - connection.len() - 2 * id.len()]
    }
}

/// The id of an answer and the params that it sends back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    pub(crate) id: u64,
    /// None: the answer is an error, or a result that is no echo.
    pub(crate) params: Option<&'a [u8]>,
}

impl<'a> Answer<'a> {
    /// Reads an answer of the echo agent, or of a server that sends the line back. None: it answers no request of ours.
    pub(crate) fn read(line: &'a [u8]) -> Option<Answer<'a>> {
        Answer::read_usual(line).or_else(|| Answer::read_any(line))
    }

    /// Reads an answer that is spelled as usual, as every right answer is. The params are compared byte for byte, so
    /// the rest need not be parsed.
    fn read_usual(line: &'a [u8]) -> Option<Answer<'a>> {
        let rest = line.strip_prefix(HEAD)?;
        let (id, rest) = rest.split_at(rest.iter().position(|byte| !byte.is_ascii_digit())?);
        let from_agent =
            || rest.strip_prefix(br#","result":{"echo":"#)?.strip_suffix(br#","method":"echo"}}"#);
        let sent_back = || rest.strip_prefix(ASKED)?.strip_suffix(b"}");
        let params = from_agent().or_else(sent_back)?;
        Some(Answer { id: std::str::from_utf8(id).ok()?.parse().ok()?, params: Some(params) })
    }

    /// Reads any JSON-RPC answer.
    fn read_any(line: &'a [u8]) -> Option<Answer<'a>> {
        type Members<'a> = BTreeMap<&'a str, &'a RawValue>;
        let message = serde_json::from_slice::<Members<'_>>(line).ok()?;
        let id = message.get("id")?.get().parse().ok()?;
        let echo = |result: &&'a RawValue| {
            serde_json::from_str::<Members<'_>>(result.get()).ok()?.get("echo").copied()
        };
        let params = message.get("result").and_then(echo).or_else(|| message.get("params").copied());
        Some(Answer { id, params: params.map(|params| params.get().as_bytes()) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn line(shape: &Shape, connection: u32, id: u64) -> Vec<u8> {
        let mut line = Vec::new();
        shape.write(&mut line, connection, id);
        line
    }

    #[test]
    fn every_line_is_json_of_just_the_size_asked_for() {
        for bytes in [LINE_BYTES_LEAST, 200, 65536] {
            let shape = Shape::new(bytes);
            for id in [1, 9, 10, 123_456_789, i64::MAX as u64] {
                let line = line(&shape, u32::MAX, id);
                assert_eq!((line.len(), line.iter().filter(|byte| **byte == b'\n').count()), (bytes, 1));
                let value = serde_json::from_slice::<Value>(&line).unwrap();
                assert_eq!((&value["id"], &value["method"]), (&id.into(), &"echo".into()));
                assert_eq!(value["params"]["asked"], format!("{}/{id}", u32::MAX));
            }
        }
    }

    #[test]
    fn params_are_right_for_their_own_request_only() {
        let shape = Shape::new(200);
        let sent_back = line(&shape, 3, 77);
        let params = Answer::read(sent_back.trim_ascii_end()).unwrap().params.unwrap();
        assert!(shape.is_params(params, 3, 77));
        assert!(!shape.is_params(params, 3, 78) && !shape.is_params(params, 4, 77));
        for at in 0..params.len() {
            let mut spoiled = params.to_vec();
            spoiled[at] ^= 1;
            assert!(!shape.is_params(&spoiled, 3, 77), "byte {at}");
            spoiled.remove(at);
            assert!(!shape.is_params(&spoiled, 3, 77), "without byte {at}");
        }
    }

    #[test]
    fn an_answer_may_be_spelt_in_any_way() {
        let params = Some(&br#"{"a": 1}"#[..]);
        for (line, answer) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"echo":{"a": 1},"method":"echo"}}"#, Some((7, params))),
            (r#"{ "result" : {"method":"echo", "echo" : {"a": 1} }, "id" : 7 }"#, Some((7, params))),
            (r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"a": 1}}"#, Some((7, params))),
            (r#"{"params":{"a": 1},"id":7}"#, Some((7, params))),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32054,"message":"busy"}}"#, Some((7, None))),
            (r#"{"jsonrpc":"2.0","id":7,"result":[1]}"#, Some((7, None))),
            (r#"{"jsonrpc":"2.0","id":"7","result":{"echo":{"a": 1}}}"#, None),
            (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, None),
            (r#"{"jsonrpc":"2.0","method":"note"}"#, None),
            (r#"{"jsonrpc":"2.0","id":7,"result""#, None),
            ("", None),
        ] {
            let expected = answer.map(|(id, params)| Answer { id, params });
            assert_eq!(Answer::read(line.as_bytes()), expected, "{line}");
        }
    }
}
