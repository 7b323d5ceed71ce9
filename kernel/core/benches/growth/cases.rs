//! The cases: what is open, and the one thing that happens.

use std::time::Duration;

use kernel_core::Event;
use kernel_core::config::Mode;

use crate::world::{MANY, World};

/// Runs the one thing that is measured.
pub(crate) type Measure<'a> = &'a mut dyn FnMut(&mut dyn FnMut());

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// How many there are of what is open, for the count of instructions.
    pub(crate) size: usize,
    /// And for the processor time.
    pub(crate) full: usize,
    pub(crate) growth: Growth,
    pub(crate) run: fn(usize, Measure<'_>),
}

/// How the work may grow with the size.
pub(crate) enum Growth {
    /// It does not.
    None,
    Linear,
}

/// Longer than a session is kept whose client has left.
const KEPT: Duration = Duration::from_secs(400);

const fn case(name: &'static str, full: usize, growth: Growth, run: fn(usize, Measure<'_>)) -> Case {
    Case { name, size: 1_000, full, growth, run }
}

pub(crate) const CASES: &[Case] = &[
    case("prompt", 10_000, Growth::None, prompt),
    case("cancel", 100_000, Growth::None, cancel),
    case("agent-cancel", 100_000, Growth::None, agent_cancel),
    case("close", 65_536, Growth::None, close),
    case("list-answer", 10_000, Growth::None, list_answer),
    case("list-entries", 20_000, Growth::Linear, list_entries),
    case("sessions-page", 10_000, Growth::None, sessions_page),
    case("status", 10_000, Growth::None, status),
    case("load", 10_000, Growth::None, load),
    case("new-session", 10_000, Growth::None, new_session),
    case("new-when-full", 10_000, Growth::Linear, new_when_full),
    case("agent-answered", 100_000, Growth::None, agent_answered),
    case("opened-early", 10_000, Growth::None, opened_early),
    case("leave-labels", 65_536, Growth::None, leave_labels),
    case("leave-sessions", 10_000, Growth::None, leave_sessions),
    case("leave-calls", 100_000, Growth::None, leave_calls),
    case("leave-asked", 100_000, Growth::None, leave_asked),
    case("bye-sessions", 10_000, Growth::None, bye_sessions),
    case("bye-subagents", 10_000, Growth::None, bye_subagents),
    case("subagents-expire", 10_000, Growth::None, subagents_expire),
    case("keep-expires", 10_000, Growth::None, keep_expires),
    case("death-labels", 65_536, Growth::Linear, death_labels),
    case("death-sessions", 10_000, Growth::Linear, death_sessions),
    case("death-kept", 10_000, Growth::Linear, death_kept),
    case("death-calls", 100_000, Growth::Linear, death_calls),
    case("drain-sessions", 10_000, Growth::None, drain_sessions),
    case("drain-answer", 10_000, Growth::None, drain_answer),
    case("leave-workers", 1_000, Growth::None, leave_workers),
    case("more-workers", 1_000, Growth::Linear, more_workers),
    case("stop-sent", 10_000, Growth::None, stop_sent),
    case("resumed", 10_000, Growth::Linear, resumed),
    case("blank-line", 60_000_000, Growth::None, blank_line),
    case("long-request", 60_000_000, Growth::Linear, long_request),
    case("long-update", 60_000_000, Growth::Linear, long_update),
];

/// A prompt and its answer beside many clients, sessions and calls.
fn prompt(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let others = world.acp_client();
    let sessions = world.opens(others, "other", size);
    sessions.iter().for_each(|session| world.asks(others, Some(session), 1));
    for _ in 0..size {
        world.connects();
    }
    let client = world.acp_client();
    let session = world.opens(client, "own", 1).remove(0);
    world.to_worker.clear();
    let ask =
        format!("{{\"id\":7,\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n");
    measure(&mut || world.receives(client, ask.as_bytes()));
}

/// A cancel for an id that the client does not have.
fn cancel(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    world.asks(client, None, size);
    let line = b"{\"method\":\"$/cancel_request\",\"params\":{\"requestId\":\"none\"}}\n";
    measure(&mut || world.receives(client, line));
}

fn agent_cancel(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    world_with_questions(&mut world, size);
    let worker = world.worker();
    let line = b"{\"method\":\"$/cancel_request\",\"params\":{\"requestId\":\"none\"}}\n";
    measure(&mut || world.receives(worker, line));
}

/// The agent has asked the owner of its session this many questions. Returns the owner.
fn world_with_questions(world: &mut World, size: usize) -> kernel_core::id::Link {
    let client = world.acp_client();
    world.opens(client, "s", 1);
    let worker = world.worker();
    for nth in 0..size {
        let line = format!(r#"{{"id":"q{nth}","method":"fs/read_text_file","params":{{"sessionId":"s0"}}}}"#);
        world.line(worker, &line);
    }
    client
}

/// A session is closed beside many labels of the same worker.
fn close(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    let session = world.opens(client, "s", 1).remove(0);
    world.labels(client, size);
    let line = format!(r#"{{"id":7,"method":"session/close","params":{{"sessionId":"{session}"}}}}"#);
    world.line(client, &line);
    let id = world.last_request().expect("a request");
    let (worker, answer) = (world.worker(), format!("{{\"id\":{id},\"result\":{{}}}}\n"));
    measure(&mut || world.receives(worker, answer.as_bytes()));
}

/// The answer of an agent that lists `entries` sessions which the bus does not know.
fn listed(world: &mut World, entries: usize) -> Vec<u8> {
    let client = world.acp_client();
    world.line(client, r#"{"id":7,"method":"session/list","params":{}}"#);
    let id = world.last_request().expect("a request");
    let entries: Vec<_> = (0..entries).map(|nth| format!(r#"{{"sessionId":"unknown {nth}"}}"#)).collect();
    format!("{{\"id\":{id},\"result\":{{\"sessions\":[{}]}}}}\n", entries.join(",")).into_bytes()
}

const DRAIN: &[u8] = b"{\"id\":8,\"method\":\"_bus/drain\",\"params\":{\"pool\":\"agents\"}}\n";

/// A worker with many sessions at rest is told to leave.
fn drain_sessions(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    measure(&mut || world.receives(client, DRAIN));
}

/// An answer of a worker that leaves, all of whose sessions have something to wait for.
fn drain_answer(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    let worker = world.worker();
    let sessions = world.opens(client, "s", size);
    sessions.iter().for_each(|session| world.asks(client, Some(session), 2));
    let requests = world.requests();
    world.receives(client, DRAIN);
    world.act();
    world.settles();
    let answer = format!("{{\"id\":{},\"result\":{{}}}}\n", requests[0]);
    measure(&mut || world.receives(worker, answer.as_bytes()));
}

/// A list of a hundred sessions beside many that were lost and many that are open.
fn list_answer(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let others = world.acp_client();
    world.opens(others, "lost", size);
    world.dies();
    world.act();
    world.passes(Duration::from_secs(1));
    world.settles();
    let others = world.acp_client();
    world.opens(others, "open", size);
    let answer = listed(&mut world, 100);
    let worker = world.worker();
    measure(&mut || world.receives(worker, &answer));
}

fn list_entries(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let others = world.acp_client();
    world.opens(others, "open", 1_000);
    let answer = listed(&mut world, size);
    let worker = world.worker();
    measure(&mut || world.receives(worker, &answer));
}

fn sessions_page(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    let sessions = world.opens(client, "s", size);
    world.asks(client, Some(&sessions[0]), 10 * size);
    measure(&mut || world.receives(client, b"{\"id\":7,\"method\":\"_bus/sessions\"}\n"));
}

fn status(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    world.asks(client, None, size);
    measure(&mut || world.receives(client, b"{\"id\":7,\"method\":\"_bus/status\"}\n"));
}

/// A client loads a session that another has left, beside many sessions and calls.
fn load(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let (others, gone) = (world.acp_client(), world.acp_client());
    let session = world.opens(gone, "s", 1).remove(0);
    let other = world.opens(others, "other", size);
    world.asks(others, Some(&other[0]), 10 * size);
    world.handles(Event::Broken(gone));
    world.act();
    let client = world.acp_client();
    let line =
        format!("{{\"id\":7,\"method\":\"session/load\",\"params\":{{\"sessionId\":\"{session}\"}}}}\n");
    measure(&mut || world.receives(client, line.as_bytes()));
}

fn new_session(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    measure(&mut || world.receives(client, b"{\"id\":7,\"method\":\"session/new\",\"params\":{}}\n"));
}

/// A new session where `max_sessions` are open and owned, so that none can be ended.
fn new_when_full(size: usize, measure: Measure<'_>) {
    let mut world = World::with_pool(size as u32, 1, Mode::Shared);
    let client = world.acp_client();
    let sessions = world.opens(client, "s", size);
    world.asks(client, Some(&sessions[0]), 10 * size);
    measure(&mut || world.receives(client, b"{\"id\":7,\"method\":\"session/new\",\"params\":{}}\n"));
}

/// The owner answers one of many questions of its agent.
fn agent_answered(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world_with_questions(&mut world, size);
    let last: serde_json::Value = serde_json::from_slice(&world.to_client).expect("the last question");
    let answer = format!("{{\"id\":{},\"result\":{{}}}}\n", last["id"]);
    measure(&mut || world.receives(client, answer.as_bytes()));
}

/// A session is opened while the agent has already spoken of many others that are not open yet.
fn opened_early(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    let worker = world.worker();
    for _ in 0..2 {
        world.line(client, r#"{"id":7,"method":"session/new","params":{}}"#);
    }
    let id = world.last_request().expect("a request");
    for nth in 0..size {
        let line = format!(r#"{{"method":"session/update","params":{{"sessionId":"early {nth}"}}}}"#);
        world.line(worker, &line);
    }
    let answer = format!("{{\"id\":{id},\"result\":{{\"sessionId\":\"s\"}}}}\n");
    measure(&mut || world.receives(worker, answer.as_bytes()));
}

fn leave_labels(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    world.labels(client, size);
    measure(&mut || world.handles(Event::Broken(client)));
}

fn leave_sessions(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    measure(&mut || world.handles(Event::Broken(client)));
}

fn leave_calls(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    world.asks(client, None, size);
    measure(&mut || world.handles(Event::Broken(client)));
}

/// The client has not answered many questions of its agent.
fn leave_asked(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world_with_questions(&mut world, size);
    measure(&mut || world.handles(Event::Broken(client)));
}

fn bye_sessions(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    world.line(client, r#"{"method":"_bus/bye"}"#);
    measure(&mut || world.handles(Event::Ended(client)));
}

/// The agent announces a chain of subagents.
fn announces_chain(world: &mut World, size: usize) {
    let worker = world.worker();
    let mut parent = "s0".to_owned();
    for nth in 0..size {
        let child = format!("child {nth}");
        let update = format!(r#"{{"sessionUpdate":"subagent_update","sessionId":"{child}"}}"#);
        let params = format!(r#"{{"sessionId":"{parent}","update":{update}}}"#);
        world.line(worker, &format!(r#"{{"method":"session/update","params":{params}}}"#));
        parent = child;
    }
}

fn bye_subagents(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", 1);
    announces_chain(&mut world, size);
    world.line(client, r#"{"method":"_bus/bye"}"#);
    measure(&mut || world.handles(Event::Ended(client)));
}

/// A session that was left ends with all its subagents.
fn subagents_expire(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", 1);
    world.handles(Event::Broken(client));
    world.act();
    announces_chain(&mut world, size);
    world.passes(KEPT);
    measure(&mut || world.handles(Event::Alarm));
}

/// Many sessions that were left together end together.
fn keep_expires(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    world.handles(Event::Broken(client));
    world.act();
    world.settles();
    world.passes(KEPT);
    measure(&mut || world.handles(Event::Alarm));
}

fn death_labels(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    world.labels(client, size);
    measure(&mut || world.dies());
}

fn death_sessions(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    measure(&mut || world.dies());
}

fn death_kept(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", size);
    world.handles(Event::Broken(client));
    world.act();
    world.settles();
    measure(&mut || world.dies());
}

fn death_calls(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    world.asks(client, None, size);
    measure(&mut || world.dies());
}

/// A client leaves that was served by one of many workers.
fn leave_workers(size: usize, measure: Measure<'_>) {
    let mut world = World::with_pool(MANY, size as u32, Mode::Shared);
    let client = world.connects();
    world.line(client, r#"{"id":7,"method":"ask"}"#);
    measure(&mut || world.handles(Event::Broken(client)));
}

/// One more worker is started beside many.
fn more_workers(size: usize, measure: Measure<'_>) {
    let mut world = World::with_pool(MANY, size as u32 + 1, Mode::Dedicated);
    for _ in 0..size {
        let client = world.connects();
        world.line(client, r#"{"id":7,"method":"ask"}"#);
    }
    let client = world.connects();
    measure(&mut || world.receives(client, b"{\"id\":7,\"method\":\"ask\"}\n"));
}

/// The bus stops, and a client has read its last answer while many others have not.
fn stop_sent(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let mut last = None;
    for nth in 0..size {
        let client = world.connects();
        world.line(client, &format!(r#"{{"id":{nth},"method":"ask"}}"#));
        world.deaf.insert(client);
        last = Some(client);
    }
    let last = last.expect("there are clients");
    world.handles(Event::Stop);
    world.handles(Event::Stop);
    world.dies();
    let count = world.shell.bus.to_send(last).len();
    assert!(count > 0, "it has something to read");
    measure(&mut || world.shell.bus.sent(last, count, world.shell.now));
}

/// A worker whose queue was full takes all of it, and many clients that it paused go on.
fn resumed(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let worker = world.worker();
    world.deaf.insert(worker);
    let line = format!("{{\"method\":\"note\",\"params\":\"{}\"}}\n", "x".repeat(1_000));
    let first = world.connects();
    while world.shell.bus.wants_read(first) {
        world.receives(first, line.as_bytes());
    }
    for _ in 0..size {
        let client = world.connects();
        world.receives(client, line.as_bytes());
        world.receives(client, line.as_bytes());
    }
    let count = world.shell.bus.to_send(worker).len();
    measure(&mut || world.shell.bus.sent(worker, count, world.shell.now));
}

/// A connection has sent nothing but white space, and sends one byte more.
fn blank_line(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    let spaces = [b' '; 1 << 16];
    let mut left = size;
    while left > 0 {
        let count = left.min(spaces.len());
        world.receives(client, &spaces[..count]);
        left -= count;
    }
    world.receives(client, b"{");
    measure(&mut || world.receives(client, b"\"a\""));
}

/// Reads a line of this many bytes in pieces, as the shell does, and returns when it is delivered.
fn reads_line(world: &mut World, from: kernel_core::id::Link, line: &[u8], measure: Measure<'_>) {
    measure(&mut || {
        for piece in line.chunks(64 << 10) {
            world.receives(from, piece);
        }
    });
}

fn long_request(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.connects();
    let line = format!("{{\"id\":7,\"method\":\"ask\",\"params\":{{\"text\":\"{}\"}}}}\n", "x".repeat(size));
    reads_line(&mut world, client, line.as_bytes(), measure);
}

fn long_update(size: usize, measure: Measure<'_>) {
    let mut world = World::new();
    let client = world.acp_client();
    world.opens(client, "s", 1);
    let worker = world.worker();
    let text = r#"line\n\"quoted\" "#.repeat(size / 16);
    let params = format!(r#"{{"sessionId":"s0","update":{{"text":"{text}"}}}}"#);
    let line = format!("{{\"method\":\"session/update\",\"params\":{params}}}\n");
    reads_line(&mut world, worker, line.as_bytes(), measure);
}
