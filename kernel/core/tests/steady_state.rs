//! The hot path allocates nothing: prompts, updates and answers of a busy bus use memory that it already has.

use std::alloc::System;
use std::io::Write;

use kernel_core::testkit::OneSession;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

const UPDATE: &str = concat!(
    r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","#,
    r#""content":{"type":"text","text":"hello"}}}}"#
);

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// An id as long as those of real clients.
const ID: &str = r#""0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f""#;

/// A prompt, three updates and the answer. The lines are cut at odd places.
fn turn(world: &mut OneSession, prompt: &[u8], answer: &mut Vec<u8>) {
    let (head, tail) = prompt.split_at(prompt.len() / 2);
    world.send(world.client, head);
    world.send(world.client, tail);
    for _ in 0..3 {
        world.send(world.worker, UPDATE.as_bytes());
        world.send(world.worker, b"\n");
        assert!(world.to_client.starts_with(br#"{"method":"session/update""#));
    }
    answer.clear();
    writeln!(answer, r#"{{"id":{},"result":{{"stopReason":"end_turn"}}}}"#, world.request_id())
        .expect("a Vec takes every write");
    world.send(world.worker, answer);
    assert!(world.to_client[b"{\"id\":".len()..].starts_with(ID.as_bytes()));
}

/// There is no test harness, because the allocations of its thread would be counted too.
fn main() {
    let mut world = OneSession::open();
    let session = &world.session;
    let prompt =
        format!("{{\"id\":{ID},\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n");
    let mut answer = Vec::with_capacity(1 << 10);
    // Until the log of the session is full.
    for _ in 0..3_000 {
        turn(&mut world, prompt.as_bytes(), &mut answer);
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..10_000 {
        turn(&mut world, prompt.as_bytes(), &mut answer);
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    println!("a busy bus does not allocate: ok");
}
