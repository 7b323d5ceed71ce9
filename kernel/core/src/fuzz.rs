//! What must hold for any bytes: one function for each way in, which panics where it does not.
//!
//! For the fuzzer (`fuzz/`) and the tests, behind the feature `fuzzing`; nothing of the bus uses it.

mod events;

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::api::{Action, Moment};
use crate::bus::Bus;
use crate::config::{Auth, Config, Limits, PoolConfig, Program};
use crate::state::calls::CallKey;
use crate::token::TokenDigest;
use crate::wire::json::DEPTH_MAX;
use crate::wire::line_buffer::{LineBuffer, Piece};
use crate::wire::oracle::{LineGenerator, Oracle};
use crate::wire::partial_scan::PartialScan;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Fault, Kind, Malformed, Span};
use crate::wire::splice::{Edits, splice};

pub use self::events::events;

/// Panics where something does not hold for these bytes.
pub type Target = fn(&[u8]);

/// Each way in, by its name.
pub const TARGETS: [(&str, Target); 5] =
    [("framer", framer), ("scanner", scanner), ("splicer", splicer), ("hello", hello), ("events", events)];

/// Made-up lines of all kinds, the same for the same seed, without an end.
pub fn made_up_lines(seed: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut lines = LineGenerator::new(seed);
    std::iter::repeat_with(move || lines.next_line())
}

/// Every chunking of a stream gives the lines that stand in it. The first two bytes choose limit and chunks.
pub fn framer(bytes: &[u8]) {
    let [limit, chunk, stream @ ..] = bytes else { return };
    let (limit, chunk) = (usize::from(*limit), usize::from(*chunk % 67) + 1);
    let mut expected: Vec<String> = Vec::new();
    let mut lines = stream.split(|byte| *byte == b'\n');
    let rest = lines.next_back().unwrap_or_default();
    for line in lines {
        let stripped = line.strip_suffix(b"\r").unwrap_or(line);
        let mut skim = PartialScan::default();
        skim.feed(line);
        let whole = stripped.len() <= limit;
        expected.push(if whole { format!("{stripped:?}") } else { told(&skim) });
    }
    let mut buffer = LineBuffer::default();
    let mut got = Vec::new();
    for (at, piece) in stream.chunks(chunk).enumerate() {
        let mut piece = piece;
        // Now and then the link is held up, and what comes is kept whole.
        if at % 5 == 4 {
            buffer.hold(piece);
            piece = &[];
        }
        while let Some(piece) = buffer.next(&mut piece, limit) {
            got.push(match piece {
                Piece::Line(line) => format!("{line:?}"),
                Piece::TooLong(skim) => told(&skim),
            });
        }
    }
    assert_eq!(got, expected);
    if rest.len() <= limit {
        assert_eq!(buffer.rest(), rest);
    }
}

fn told(skim: &PartialScan) -> String {
    format!("too long: {:?} {} {}", skim.id(), skim.is_answer(), skim.is_request())
}

/// The scanner says of a line what serde_json and the skim say.
pub fn scanner(line: &[u8]) {
    let got = Envelope::scan(line);
    let mut habit = PrefixCache::learn_at_once();
    // With nothing known, then after itself, then after a piece of itself and before another.
    let (most, some) = (&line[..line.len() * 7 / 8], &line[..line.len() * 3 / 4]);
    for part in [line, line, some, most, line] {
        assert_eq!(habit.scan(part).map(Cow::into_owned), Envelope::scan(part));
    }
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
    let mut skim = PartialScan::default();
    line.chunks(3).for_each(|chunk| skim.feed(chunk));
    let id = envelope.id.map(|id| id.of(line));
    // A longer one is not kept.
    if id.is_none_or(|id| id.len() <= 128) {
        assert_eq!(skim.id(), id);
        assert_eq!(skim.is_request(), matches!(envelope.kind, Kind::Request));
    }
    assert_eq!(skim.is_answer(), matches!(envelope.kind, Kind::Answer { .. }));
}

/// The brackets that are open at most, in whatever comes: an upper bound.
fn depth(line: &[u8]) -> usize {
    line.iter().filter(|byte| matches!(byte, b'{' | b'[')).count()
}

/// A good line with other ids in it is a good line, the same but for these; and so is any line with any spans.
pub fn splicer(line: &[u8]) {
    let (id, session) = (&b"9007199254740991"[..], &br#""a\"b""#[..]);
    if let Ok(envelope) = Envelope::scan(line) {
        let mut cuts = Edits::none();
        let mut spans: Vec<(Span, &[u8])> = Vec::new();
        spans.extend(envelope.session.map(|span| (span, session)));
        spans.extend(envelope.id.map(|span| (span, id)));
        spans.extend(envelope.top_session.map(|span| (span, session)));
        spans.extend(envelope.child.map(|span| (span, session)));
        spans.iter().for_each(|(span, with)| cuts.add(*span, with));
        let mut out = Vec::new();
        splice(&mut out, line, &cuts);
        assert_eq!(out, replaced(line, &mut spans));
        let again = Envelope::scan(&out).expect("still a good line");
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

/// The same by other means.
fn replaced(line: &[u8], spans: &mut [(Span, &[u8])]) -> Vec<u8> {
    spans.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut out = line.to_vec();
    for (span, with) in spans {
        out.splice(span.start as usize..span.end as usize, with.iter().copied());
    }
    out
}

/// What a client begins with: closed without a word unless it begins as an object does, and the same in any chunking.
/// Where there is a token, which these bytes do not hold, nothing of it sets anything in motion.
pub fn hello(bytes: &[u8]) {
    let digest = TokenDigest::of("a token that nobody will think of");
    let guarded = Config { auth: Some(Auth { token_file: "/token".into(), digest }), ..small_config() };
    for config in [small_config(), guarded] {
        let whole = begins(&config, bytes, bytes.len().max(1));
        assert_eq!(begins(&config, bytes, 1), whole);
        assert_eq!(begins(&config, bytes, 7), whole);
        let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
        if first.is_some_and(|first| *first != b'{') {
            assert_eq!(whole, Beginning { closed: true, ..Beginning::default() }, "closed without a word");
        }
        if config.auth.is_some() {
            let lines = whole.said.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines <= 1 && !whole.started, "a stranger was heard: {whole:?}");
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Beginning {
    /// What the client is told.
    said: Vec<u8>,
    closed: bool,
    /// A process was to be started for it.
    started: bool,
}

fn begins(config: &Config, bytes: &[u8], chunk: usize) -> Beginning {
    let mut bus = Bus::new(config, [0; 32], Moment::ZERO);
    let link = bus.connect(None, Moment::ZERO).expect("an empty house has room");
    for chunk in bytes.chunks(chunk) {
        bus.received(link, chunk, Moment::ZERO);
    }
    bus.check_invariants();
    let said = bus.to_send(link).to_vec();
    let actions: Vec<Action> = std::iter::from_fn(|| bus.next_action()).collect();
    let started = actions.iter().any(|action| matches!(action, Action::Spawn(..)));
    Beginning { said, closed: actions.contains(&Action::Close(link)), started }
}

fn small_config() -> Config {
    let program = || Program::InPath("agent".to_owned());
    let pools = ["a", "b"].map(|id| PoolConfig { warm: false, ..PoolConfig::new(id, program()) });
    Config {
        listen: Vec::new(),
        auth: None,
        default_pool: Some("a".into()),
        pools: pools.into_iter().map(std::sync::Arc::new).collect(),
        limits: Limits { max_input_buffer: 4096, max_output_queue: 2048, ..Limits::default() },
        trace_payloads: true,
    }
}
