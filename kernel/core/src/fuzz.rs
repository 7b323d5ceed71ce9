//! Properties that hold for any bytes: one function for each kind of input, which panics if they do not hold.
//!
//! They are for the fuzzer in `fuzz/` and for tests, behind the feature `fuzzing`. The bus does not use them.

mod events;

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::config::{Auth, Config, Limits, PoolConfig, Program};
use crate::id::CallKey;
use crate::testkit::TestShell;
use crate::token::TokenDigest;
use crate::wire::json::DEPTH_MAX;
use crate::wire::line_buffer::{LineBuffer, Piece};
use crate::wire::long_line::LongBuffer;
use crate::wire::long_scan::LongScan;
use crate::wire::oracle::{LineGenerator, Oracle};
use crate::wire::partial_scan::PartialScan;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Fault, Kind, Malformed, Span};
use crate::wire::splice::{Edits, splice};

pub use self::events::events;

/// Panics if a property does not hold for these bytes.
pub type Target = fn(&[u8]);

/// Each target by its name.
pub const TARGETS: [(&str, Target); 5] =
    [("framer", framer), ("scanner", scanner), ("splicer", splicer), ("hello", hello), ("events", events)];

/// An endless series of valid and broken lines, the same ones for the same seed.
pub fn generated_lines(seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut lines = LineGenerator::new(seed);
    std::iter::repeat_with(move || lines.next_line())
}

/// Every chunking of a stream gives its lines. The first two bytes choose the limit and the size of the chunks.
pub fn framer(bytes: &[u8]) {
    let [limit, chunk, stream @ ..] = bytes else { return };
    let limit = usize::from(*limit);
    let chunk = usize::from(*chunk % 67) + 1;
    let mut expected: Vec<String> = Vec::new();
    let mut lines = stream.split(|byte| *byte == b'\n');
    let rest = lines.next_back().unwrap_or_default();
    for line in lines {
        let stripped = line.strip_suffix(b"\r").unwrap_or(line);
        let mut partial = PartialScan::default();
        partial.feed(line);
        expected.push(if stripped.len() <= limit { format!("{stripped:?}") } else { too_long(&partial) });
    }
    let mut buffer = LineBuffer::default();
    let mut got = Vec::new();
    for (index, mut chunk) in stream.chunks(chunk).enumerate() {
        // Now and then the link is paused, and the buffer holds the bytes. Others go to the memory of a long line.
        if index % 5 == 4 {
            buffer.hold(chunk);
            chunk = &[];
        } else if index % 2 == 0
            && let Some(space) = buffer.space()
        {
            space[..chunk.len()].copy_from_slice(chunk);
            buffer.add(chunk.len());
            chunk = &[];
        }
        while let Some(piece) = buffer.next(&mut chunk, limit) {
            got.push(match piece {
                Piece::Line(line) => format!("{line:?}"),
                Piece::Long(long) => format!("{:?}", long.bytes()),
                Piece::TooLong(partial) => too_long(&partial),
            });
        }
        if buffer.is_long(true) {
            buffer.move_to(LongBuffer::default());
        }
    }
    assert_eq!(got, expected);
    if rest.len() <= limit {
        assert_eq!(buffer.rest(), rest);
    }
}

fn too_long(partial: &PartialScan) -> String {
    format!("too long: {:?} {} {}", partial.id(), partial.is_answer(), partial.is_request())
}

/// The scanner, the prefix cache, the scan of long lines, serde_json and the partial scan agree on a line.
pub fn scanner(line: &[u8]) {
    let got = Envelope::scan(line);
    let mut cache = PrefixCache::learn_at_once();
    // The cache sees the line first, then after itself, then after parts of itself.
    let most = &line[..line.len() * 7 / 8];
    let some = &line[..line.len() * 3 / 4];
    for part in [line, line, some, most, line] {
        assert_eq!(cache.scan(part).map(Cow::into_owned), Envelope::scan(part));
    }
    // A long line is scanned while it comes. Its own bytes choose how it is cut.
    let cuts: Vec<usize> = line.iter().map(|byte| usize::from(*byte % 61)).take(7).collect();
    assert_eq!(LongScan::scan(line, &cuts), got);
    assert_eq!(LongScan::scan(line, &[1]), got);
    let expected = Oracle::scan(line);
    match (&got, &expected) {
        (Err(Malformed { fault: Fault::TooDeep, .. }), _) => assert!(depth(line) > DEPTH_MAX),
        (Err(Malformed { fault: Fault::Syntax { at }, .. }), Err(expected)) => {
            assert!(matches!(expected.fault, Fault::Syntax { .. }), "{expected:?}");
            assert!(*at <= line.len());
        }
        _ => assert_eq!(got, expected),
    }
    if let Err(Malformed { id: Some(id), .. }) = got {
        assert!(serde_json::from_slice::<&RawValue>(id.of(line)).is_ok(), "an id that is sent back is JSON");
    }
    let Ok(envelope) = got else { return };
    let mut partial = PartialScan::default();
    line.chunks(3).for_each(|chunk| partial.feed(chunk));
    let id = envelope.id.map(|id| id.of(line));
    // The partial scan does not keep a longer id.
    if id.is_none_or(|id| id.len() <= 128) {
        assert_eq!(partial.id(), id);
        assert_eq!(partial.is_request(), matches!(envelope.kind, Kind::Request));
    }
    assert_eq!(partial.is_answer(), matches!(envelope.kind, Kind::Answer { .. }));
}

/// An upper bound of the depth.
fn depth(line: &[u8]) -> usize {
    line.iter().filter(|byte| matches!(byte, b'{' | b'[')).count()
}

/// A valid line with other ids in it is still valid, and the same except for the ids.
pub fn splicer(line: &[u8]) {
    let id = &b"9007199254740991"[..];
    let session = &br#""a\"b""#[..];
    if let Ok(envelope) = Envelope::scan(line) {
        let mut edits = Edits::none();
        let mut spans: Vec<(Span, &[u8])> = Vec::new();
        spans.extend(envelope.session.map(|span| (span, session)));
        spans.extend(envelope.id.map(|span| (span, id)));
        spans.extend(envelope.top_session.map(|span| (span, session)));
        spans.extend(envelope.child.map(|span| (span, session)));
        spans.iter().for_each(|(span, with)| edits.add(*span, with));
        let mut out = Vec::new();
        splice(&mut out, line, &edits);
        assert_eq!(out, replaced(line, &mut spans));
        let again = Envelope::scan(&out).expect("the line is still valid");
        assert_eq!(again.kind, envelope.kind);
        assert_eq!(again.id.map(|span| span.of(&out)), envelope.id.map(|_| id));
        assert_eq!(again.session.map(|span| span.of(&out)), envelope.session.map(|_| session));
        assert_eq!(again.top_session.map(|span| span.of(&out)), envelope.top_session.map(|_| session));
        assert_eq!(again.method.of(&out), envelope.method.of(line));
    }
    if let Some(call) = CallKey::from_wire(line) {
        assert_eq!(call.spelled(&mut itoa::Buffer::new()), line);
    }
}

/// Replaces the spans by other means than `splice`.
fn replaced(line: &[u8], spans: &mut [(Span, &[u8])]) -> Vec<u8> {
    spans.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut out = line.to_vec();
    for (span, with) in spans {
        out.splice(span.start as usize..span.end as usize, with.iter().copied());
    }
    out
}

/// The first bytes of a client have the same effect in any chunking, and the bus closes without an answer if they do
/// not begin an object. Where a token is needed, which these bytes do not hold, they have no effect beyond one error.
pub fn hello(bytes: &[u8]) {
    let digest = TokenDigest::of("a token that these bytes do not hold");
    let with_token = Config { auth: Some(Auth { token_file: "/token".into(), digest }), ..small_config() };
    for config in [small_config(), with_token] {
        let whole = first_bytes(&config, bytes, bytes.len().max(1));
        assert_eq!(first_bytes(&config, bytes, 1), whole);
        assert_eq!(first_bytes(&config, bytes, 7), whole);
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|first| *first != b'{') {
            assert_eq!(whole, Effect { closed: true, ..Effect::default() }, "closed without an answer");
        }
        if config.auth.is_some() {
            let lines = whole.sent.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines <= 1 && !whole.spawned, "a client without the token had an effect: {whole:?}");
        }
    }
}

/// The effect of a client's first bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effect {
    /// The bytes that are sent to the client.
    sent: Vec<u8>,
    /// The client is closed.
    closed: bool,
    /// A process is started.
    spawned: bool,
}

fn first_bytes(config: &Config, bytes: &[u8], chunk: usize) -> Effect {
    let mut shell = TestShell::new(config);
    let link = shell.bus.connect(None, shell.now).expect("an empty bus has room");
    for chunk in bytes.chunks(chunk) {
        shell.bus.received(link, chunk, shell.now);
    }
    shell.bus.check_invariants();
    let sent = shell.bus.to_send(link).to_vec();
    shell.act(|_, _| {});
    Effect { sent, closed: shell.closed.contains(&link), spawned: !shell.processes.is_empty() }
}

fn small_config() -> Config {
    let program = || Program::InPath("agent".to_owned());
    let pools = ["a", "b"].map(|id| PoolConfig { warm: false, ..PoolConfig::new(id, program()) });
    Config {
        default_pool: Some("a".into()),
        limits: Limits { max_input_buffer: 4096, max_output_queue: 2048, ..Limits::default() },
        trace_payloads: true,
        ..Config::with_pools(pools)
    }
}
