//! The hot path allocates nothing: prompts, updates and answers of a busy bus run in memory it already has.

use std::alloc::System;
use std::sync::Arc;
use std::time::Duration;

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::{Action, Bus, Event};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

const UPDATE: &str = concat!(
    r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","#,
    r#""content":{"type":"text","text":"hello"}}}}"#
);

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NOW: Duration = Duration::ZERO;
/// As long as the ids of real clients are.
const ID: &str = r#""0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f""#;

struct World {
    bus: Bus,
    client: Link,
    worker: Link,
    /// What the last flush of each side was.
    to_client: Vec<u8>,
    to_worker: Vec<u8>,
}

impl World {
    fn new() -> World {
        let pool = PoolConfig::new("agents", Program::ThisBinary);
        let limits = Limits::default();
        let config = Config {
            listen: Vec::new(),
            auth: None,
            default_pool: None,
            pools: vec![Arc::new(pool)],
            limits,
            trace_payloads: false,
        };
        let mut bus = Bus::new(&config, [0; 32], NOW);
        let Some(Action::Spawn(id, worker)) = bus.next_action() else { panic!("a worker is started") };
        bus.handle(Event::Spawned { worker: id, pid: 1 }, NOW);
        let client = bus.connect(None, NOW).expect("there is room");
        let room = || Vec::with_capacity(1 << 16);
        World { bus, client, worker, to_client: room(), to_worker: room() }
    }

    fn says(&mut self, from: Link, line: &[u8]) {
        self.bus.received(from, line, NOW);
        while let Some(action) = self.bus.next_action() {
            let Action::Flush(link) = action else { continue };
            let seen = if link == self.client { &mut self.to_client } else { &mut self.to_worker };
            seen.clear();
            seen.extend_from_slice(self.bus.to_send(link));
            let count = seen.len();
            self.bus.sent(link, count, NOW);
        }
    }

    /// The id of the request that the worker was last sent.
    fn wire(&self) -> u64 {
        let digits = self.to_worker.split(|byte| *byte == b':').nth(1).expect("an id comes first");
        let digits = digits.split(|byte| *byte == b',').next().expect("then something else");
        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).expect("a number")
    }

    /// A prompt, three updates and the answer, the lines cut at odd places.
    fn turn(&mut self, prompt: &[u8], line: &mut Vec<u8>) {
        let (client, worker) = (self.client, self.worker);
        let (head, tail) = prompt.split_at(prompt.len() / 2);
        self.says(client, head);
        self.says(client, tail);
        for _ in 0..3 {
            self.says(worker, UPDATE.as_bytes());
            self.says(worker, b"\n");
            assert!(self.to_client.starts_with(br#"{"method":"session/update""#));
        }
        line.clear();
        write_answer(line, self.wire());
        self.says(worker, line);
        assert!(self.to_client[b"{\"id\":".len()..].starts_with(ID.as_bytes()));
    }
}

fn write_answer(line: &mut Vec<u8>, wire: u64) {
    use std::io::Write;
    writeln!(line, r#"{{"id":{wire},"result":{{"stopReason":"end_turn"}}}}"#).expect("memory takes it");
}

/// Without the harness, whose own thread would be counted with it.
fn main() {
    let mut world = World::new();
    let (client, worker) = (world.client, world.worker);
    world.says(client, b"{\"id\":1,\"method\":\"session/new\",\"params\":{}}\n");
    let opened = format!("{{\"id\":{},\"result\":{{\"sessionId\":\"s\"}}}}\n", world.wire());
    world.says(worker, opened.as_bytes());
    let answer: serde_json::Value = serde_json::from_slice(&world.to_client).expect("JSON");
    let session = answer["result"]["sessionId"].as_str().expect("a session");
    let prompt =
        format!("{{\"id\":{ID},\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n");
    // The worker reads the id first, so that the test need not look for it.
    assert!(prompt.starts_with("{\"id\":"));
    let mut line = Vec::with_capacity(1 << 10);
    for _ in 0..100 {
        world.turn(prompt.as_bytes(), &mut line);
    }
    let region = Region::new(ALLOCATOR);
    for _ in 0..10_000 {
        world.turn(prompt.as_bytes(), &mut line);
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    println!("a busy bus does not allocate: ok");
}
