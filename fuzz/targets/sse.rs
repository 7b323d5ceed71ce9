//! The fuzzer of the OpenAI agent's event streams: no bytes make the parser panic, no chunking changes the events.
//!
//! The file itself is compiled in, so that the fuzzer needs nothing of HTTP and TLS.

#![no_main]

#[path = "../../workers/src/openai/sse.rs"]
mod sse;

use sse::{Event, Parser};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&step, stream)) = bytes.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(step).max(1)), whole);
    assert_eq!(read(stream, 1), whole);
    for event in &whole {
        assert!(!event.data.contains('\r') && !event.kind.contains(['\r', '\n']), "a line end is no content");
    }
});

fn read(stream: &[u8], step: usize) -> Vec<Event> {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    for chunk in stream.chunks(step) {
        parser.push(chunk, &mut events).expect("it is short");
    }
    parser.finish(&mut events);
    events
}
