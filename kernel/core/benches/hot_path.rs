//! Counts the instructions that the core spends on a message. Unlike a clock, the count does not depend on the load.
//!
//! The benchmark runs itself under `valgrind --tool=callgrind` twice for each case, the second time with twice as many
//! messages, so that the difference leaves out the setup. It compares the counts with `instructions.txt` beside this
//! file. They include the few dozen instructions that play client and worker, and they depend on the compiler and on
//! the instruction set of the processor.
//!
//!     cargo bench -p kernel-core --bench hot_path               # check
//!     cargo bench -p kernel-core --bench hot_path -- --keep     # write the counts to instructions.txt
//!     cargo bench -p kernel-core --bench hot_path -- --profile  # show the functions that they are spent in

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, fs, process};

use kernel_core::testkit::OneSession;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.txt");
/// A count above the kept one by more than this part fails the check.
const TOLERANCE: f64 = 0.02;
const TURNS: u64 = 2_000;
/// The end of a request and of an answer.
const END: &str = "\"}}\n";
const PROFILE_LINES: usize = 25;
/// How many lines a pipelined case sends in one write.
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
    /// How many lines pass through the bus in one turn.
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

/// Runs under valgrind.
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

/// The count of each function. The profile has one for each file whose code is inlined into a function; this is their
/// sum. A function with `(Nx)` behind it was called so often, and its count includes what it called.
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

/// `None`: there is no valgrind.
fn instructions_a_message(case: &Case) -> Option<f64> {
    let count = |turns| {
        let (count, path) = callgrind(case, turns)?;
        let _ = fs::remove_file(path);
        Some(count)
    };
    let (once, twice) = (count(TURNS)?, count(2 * TURNS)?);
    Some((twice - once) as f64 / (TURNS * case.messages) as f64)
}

/// The instructions of this many turns, and the file with the profile.
fn callgrind(case: &Case, turns: u64) -> Option<(u64, PathBuf)> {
    let path = env::temp_dir().join(format!("hot-path-{}-{}", process::id(), case.name));
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}", path.display()));
    valgrind.arg(env::current_exe().expect("a path")).args(["--drive", case.name, &turns.to_string()]);
    let output = valgrind.output().ok()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let count = stderr.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    Some((count.expect("valgrind prints the count"), path))
}

/// A bus with one session, and the lines of each turn, which the first turn makes.
struct World {
    session: OneSession,
    lines: Vec<u8>,
    answers: Vec<u8>,
}

impl World {
    fn new() -> World {
        World { session: OneSession::open(), lines: Vec::new(), answers: Vec::new() }
    }

    /// The client sends `count` requests in one write, and the worker answers them in one.
    fn round_trips(&mut self, bytes: usize, count: usize) {
        if self.lines.is_empty() {
            let head = r#"{"jsonrpc":"2.0","id":1234567,"method":"echo","params":{"pad":""#;
            self.lines = padded(head, END, bytes).repeat(count);
        }
        self.ask_and_answer(bytes, count);
        assert!(self.session.to_client.starts_with(br#"{"jsonrpc":"2.0","id":1234567"#));
    }

    /// The client sends a prompt, and the worker answers it.
    fn prompt(&mut self, bytes: usize) {
        if self.lines.is_empty() {
            let head = r#"{"jsonrpc":"2.0","id":1234567,"method":"session/prompt","params":{"sessionId":""#;
            let head = format!(r#"{head}{}","pad":""#, self.session.session);
            self.lines = padded(&head, END, bytes);
        }
        self.ask_and_answer(bytes, 1);
    }

    fn ask_and_answer(&mut self, bytes: usize, count: usize) {
        self.session.send(self.session.client, &self.lines);
        if self.answers.is_empty() {
            let head = r#"{"jsonrpc":"2.0","id":0000000000000000,"result":{"pad":""#;
            self.answers = padded(head, END, bytes).repeat(count);
        }
        let mut requests = &self.session.to_worker[..];
        for answer in self.answers.chunks_exact_mut(bytes) {
            let end = memchr::memchr(b'\n', requests).expect("every request has arrived");
            put_id(answer, &requests[..end]);
            requests = &requests[end + 1..];
        }
        self.session.send(self.session.worker, &self.answers);
    }

    /// The worker sends `count` updates in one write.
    fn updates(&mut self, bytes: usize, count: usize) {
        if self.lines.is_empty() {
            let head = concat!(
                r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":"#,
                r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":""#
            );
            self.lines = padded(head, "\"}}}}\n", bytes).repeat(count);
        }
        self.session.send(self.session.worker, &self.lines);
        assert!(self.session.to_client.starts_with(br#"{"jsonrpc":"2.0","method":"session/update""#));
    }
}

/// A line of this many bytes with this beginning and end.
fn padded(head: &str, end: &str, bytes: usize) -> Vec<u8> {
    let pad = "x".repeat(bytes - head.len() - end.len());
    [head, &pad, end].concat().into_bytes()
}

/// Copies the id of the request into the answer and fills up with spaces. All lines here have it at one position.
fn put_id(answer: &mut [u8], request: &[u8]) {
    const AT: usize = r#"{"jsonrpc":"2.0","id":"#.len();
    // Wire ids stay below 2^53.
    const DIGITS_MAX: usize = 16;
    let digits = request[AT..].iter().take_while(|byte| byte.is_ascii_digit());
    let id = &mut answer[AT..AT + DIGITS_MAX];
    id.fill(b' ');
    id.iter_mut().zip(digits).for_each(|(byte, digit)| *byte = *digit);
}
