//! Fuzzes the parser of the OpenAI agent's event streams: no bytes make it panic, and no chunking changes the events.
//!
//! The parser's file is compiled in, so that the fuzzer does not depend on HTTP and TLS.

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
        assert!(!event.data.contains('\r') && !event.kind.contains(['\r', '\n']), "an event holds no line end");
    }
});

fn read(stream: &[u8], step: usize) -> Vec<Event> {
    let mut parser = Parser::default();
    let mut events = Vec::new();
    for chunk in stream.chunks(step) {
        parser.push(chunk, &mut events).expect("the stream is short");
    }
    parser.finish(&mut events);
    events
}
