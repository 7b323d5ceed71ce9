//! How many instructions the core spends on a message: a check of speed that no clock and no neighbour disturbs.
//!
//! Starts itself under `valgrind --tool=callgrind` twice for each case, once for twice as many messages; what
//! both have in common (start, setting up) falls out of the difference. The counts are held against those kept
//! in `instructions.txt` beside this file. They contain the few dozen instructions this file itself needs to
//! play client and worker, and they depend on the compiler and on the instruction set of the processor.
//!
//!     cargo bench -p kernel-core --bench hot_path               # check
//!     cargo bench -p kernel-core --bench hot_path -- --keep     # write the counts as the ones to hold
//!     cargo bench -p kernel-core --bench hot_path -- --profile  # which functions they are spent in

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs, process};

use kernel_core::config::{Config, Limits, PoolConfig, Program};
use kernel_core::id::Link;
use kernel_core::{Action, Bus, Event};

const NOW: Duration = Duration::ZERO;
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// More than this much above what is kept is a fault.
const TOLERANCE: f64 = 0.05;
const TURNS: u64 = 2_000;
/// Of a request and of an answer.
const END: &str = "\"}}\n";
const PROFILE_LINES: usize = 25;
/// Requests in one read, where they are pipelined.
const BATCH: usize = 64;

const CASES: [Case; 6] = [
    Case { name: "round-trip-200", messages: 2, turn: |world| world.round_trips(200, 1) },
    Case { name: "pipelined-200", messages: 2 * BATCH as u64, turn: |world| world.round_trips(200, BATCH) },
    Case { name: "round-trip-4k", messages: 2, turn: |world| world.round_trips(4 << 10, 1) },
    Case { name: "prompt-200", messages: 2, turn: |world| world.prompt(200) },
    Case { name: "update-200", messages: 1, turn: |world| world.updates(200, 1) },
    Case { name: "updates-200", messages: BATCH as u64, turn: |world| world.updates(200, BATCH) },
];

struct Case {
    name: &'static str,
    /// Lines that pass the bus in one turn.
    messages: u64,
    turn: fn(&mut World),
}

fn main() -> ExitCode {
    let args: Vec<_> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--drive", name, turns] => drive(name, turns.parse().expect("a number of turns")),
        [] => check(false),
        ["--keep"] => check(true),
        ["--profile"] => profile(),
        _ => {
            eprintln!("hot_path: --keep, --profile, or nothing");
            ExitCode::from(2)
        }
    }
}

/// What runs under valgrind.
fn drive(name: &str, turns: u64) -> ExitCode {
    let case = CASES.iter().find(|case| case.name == name).expect("a case of this file");
    let mut world = World::new();
    (0..turns).for_each(|_| (case.turn)(&mut world));
    ExitCode::SUCCESS
}

fn check(keep: bool) -> ExitCode {
    let kept = fs::read_to_string(KEPT).unwrap_or_default();
    let mut counts = String::from("# Instructions a message; see hot_path.rs.\n");
    let mut worse = false;
    println!("{:<16}{:>10}{:>10}{:>9}", "case", "now", "kept", "change");
    for case in &CASES {
        let Some(now) = instructions_a_message(case) else {
            println!("no valgrind: instructions are not counted");
            return ExitCode::SUCCESS;
        };
        counts += &format!("{} {now:.0}\n", case.name);
        let before = kept.lines().find_map(|line| line.strip_prefix(case.name)?.trim().parse::<f64>().ok());
        let change = before.map(|before| now / before - 1.0);
        let before = before.map_or("-".to_owned(), |before| format!("{before:.0}"));
        let percent = change.map_or("-".to_owned(), |change| format!("{:+.1} %", 100.0 * change));
        println!("{:<16}{now:>10.0}{before:>10}{percent:>9}", case.name);
        worse |= change.is_none_or(|change| change > TOLERANCE);
    }
    if keep {
        fs::write(KEPT, counts).expect("the repository can be written");
        return ExitCode::SUCCESS;
    }
    if worse {
        println!(
            "more than {:.0} % worse than kept; to keep these: cargo bench -p kernel-core --bench hot_path -- --keep",
            100.0 * TOLERANCE
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn profile() -> ExitCode {
    for case in &CASES {
        let Some((total, path)) = callgrind(case, TURNS) else {
            println!("no valgrind: nothing to profile with");
            return ExitCode::SUCCESS;
        };
        println!("\n== {}: {TURNS} turns, messages in each: {}", case.name, case.messages);
        let mut annotate = Command::new("callgrind_annotate");
        let annotated = annotate.arg("--threshold=100").arg(&path).output().expect("it comes with valgrind");
        let _ = fs::remove_file(path);
        let mut functions = by_function(&String::from_utf8_lossy(&annotated.stdout));
        functions.sort_by_key(|(_, count)| Reverse(*count));
        for (function, count) in functions.iter().take(PROFILE_LINES) {
            let each = count / (TURNS * case.messages);
            println!("{:>5.1} %{each:>7} a message  {function}", 100.0 * *count as f64 / total as f64);
        }
    }
    ExitCode::SUCCESS
}

/// The counts of a function stand apart for each file that something inlined into it comes from: their sums.
/// A function with `(Nx)` behind it was called so often, and what it called is counted with it.
fn by_function(annotated: &str) -> Vec<(String, u64)> {
    let mut sums = BTreeMap::new();
    for line in annotated.lines() {
        let Some((count, place)) = line.trim_start().split_once(" (") else { continue };
        let Ok(count) = count.replace(',', "").parse::<u64>() else { continue };
        let Some((_, place)) = place.split_once("%)  ") else { continue };
        let Some((_, function)) = place.split_once(':') else { continue };
        let function = function.split(" [").next().unwrap_or(function);
        *sums.entry(function.to_owned()).or_default() += count;
    }
    sums.into_iter().collect()
}

/// None: valgrind is not there.
fn instructions_a_message(case: &Case) -> Option<f64> {
    let count = |turns| {
        let (count, path) = callgrind(case, turns)?;
        let _ = fs::remove_file(path);
        Some(count)
    };
    let (once, twice) = (count(TURNS)?, count(2 * TURNS)?);
    Some((twice - once) as f64 / (TURNS * case.messages) as f64)
}

/// All instructions of so many turns, and the file with the profile.
fn callgrind(case: &Case, turns: u64) -> Option<(u64, PathBuf)> {
    let path = env::temp_dir().join(format!("hot-path-{}-{}", process::id(), case.name));
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", path.display()));
    valgrind.arg(env::current_exe().expect("a path")).args(["--drive", case.name, &turns.to_string()]);
    let output = valgrind.output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let count = said.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    Some((count.expect("valgrind says what it has collected"), path))
}

/// A bus with a client, a worker and a session. The lines are made beforehand.
struct World {
    bus: Bus,
    client: Link,
    worker: Link,
    /// What each was last sent.
    to_client: Vec<u8>,
    to_worker: Vec<u8>,
    /// The session's name as the client knows it.
    session: String,
    /// What is said in each turn, made in the first.
    said: Vec<u8>,
    answers: Vec<u8>,
}

impl World {
    fn new() -> World {
        let config = Config {
            listen: Vec::new(),
            auth: None,
            default_pool: None,
            pools: vec![Arc::new(PoolConfig::new("agents", Program::ThisBinary))],
            limits: Limits::default(),
            trace_payloads: false,
        };
        let mut bus = Bus::new(&config, [0; 32], NOW);
        let Some(Action::Spawn(id, worker)) = bus.next_action() else { panic!("a worker is started") };
        bus.handle(Event::Spawned { worker: id, pid: 1 }, NOW);
        let client = bus.connect(None, NOW).expect("there is room");
        let (to_client, to_worker, said, answers) = Default::default();
        let session = String::new();
        let mut world = World { bus, client, worker, to_client, to_worker, session, said, answers };
        world.say(client, b"{\"id\":1,\"method\":\"session/new\",\"params\":{}}\n");
        let opened = format!("{{\"id\":{},\"result\":{{\"sessionId\":\"s\"}}}}\n", ids(&world.to_worker)[0]);
        world.say(worker, opened.as_bytes());
        let answer: serde_json::Value = serde_json::from_slice(&world.to_client).expect("JSON");
        world.session = answer["result"]["sessionId"].as_str().expect("a session").to_owned();
        world
    }

    /// Requests in one read, and their answers in one.
    fn round_trips(&mut self, bytes: usize, count: usize) {
        if self.said.is_empty() {
            let head = r#"{"jsonrpc":"2.0","id":1234567,"method":"echo","params":{"pad":""#;
            self.said = padded(head, END, bytes).repeat(count);
        }
        self.ask_and_answer(bytes, count);
        assert!(self.to_client.starts_with(br#"{"jsonrpc":"2.0","id":1234567"#));
    }

    fn prompt(&mut self, bytes: usize) {
        if self.said.is_empty() {
            let session = &self.session;
            let head = r#"{"jsonrpc":"2.0","id":1234567,"method":"session/prompt","params":{"sessionId":""#;
            let head = format!(r#"{head}{session}","pad":""#);
            self.said = padded(&head, END, bytes);
        }
        self.ask_and_answer(bytes, 1);
    }

    fn ask_and_answer(&mut self, bytes: usize, count: usize) {
        let said = std::mem::take(&mut self.said);
        self.say(self.client, &said);
        self.said = said;
        let mut answers = std::mem::take(&mut self.answers);
        if answers.is_empty() {
            let head = r#"{"jsonrpc":"2.0","id":0000000000000000,"result":{"pad":""#;
            answers = padded(head, END, bytes).repeat(count);
        }
        let mut asked = &self.to_worker[..];
        for answer in answers.chunks_exact_mut(bytes) {
            let line = memchr::memchr(b'\n', asked).expect("every request has arrived");
            put_id(answer, &asked[..line]);
            asked = &asked[line + 1..];
        }
        self.say(self.worker, &answers);
        self.answers = answers;
    }

    /// Updates in one read.
    fn updates(&mut self, bytes: usize, count: usize) {
        if self.said.is_empty() {
            let head = concat!(
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":"#,
                r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#
            );
            self.said = padded(head, "\"}}}}\n", bytes).repeat(count);
        }
        let said = std::mem::take(&mut self.said);
        self.say(self.worker, &said);
        self.said = said;
        assert!(self.to_client.starts_with(br#"{"jsonrpc":"2.0","method":"session/update""#));
    }

    fn say(&mut self, from: Link, lines: &[u8]) {
        self.bus.received(from, lines, NOW);
        while let Some(action) = self.bus.next_action() {
            let Action::Flush(link) = action else { continue };
            let seen = if link == self.client { &mut self.to_client } else { &mut self.to_worker };
            seen.clear();
            seen.extend_from_slice(self.bus.to_send(link));
            self.bus.sent(link, seen.len(), NOW);
        }
    }
}

/// A line of so many bytes that begins and ends so.
fn padded(head: &str, end: &str, bytes: usize) -> Vec<u8> {
    let pad = "x".repeat(bytes - head.len() - end.len());
    [head, &pad, end].concat().into_bytes()
}

/// The ids of lines in which they come first or second.
fn ids(lines: &[u8]) -> Vec<u64> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let id = |line| serde_json::from_slice::<serde_json::Value>(line).expect("JSON")["id"].as_u64();
    lines.map(|line| id(line).expect("a number")).collect()
}

/// The id of that request, where all lines of this file have it, into this answer, filled up with spaces.
fn put_id(answer: &mut [u8], request: &[u8]) {
    const AT: usize = r#"{"jsonrpc":"2.0","id":"#.len();
    // Wire ids stay below 2^53.
    const DIGITS_MOST: usize = 16;
    let digits = request[AT..].iter().take_while(|byte| byte.is_ascii_digit());
    let place = &mut answer[AT..AT + DIGITS_MOST];
    place.fill(b' ');
    place.iter_mut().zip(digits).for_each(|(place, digit)| *place = *digit);
}
