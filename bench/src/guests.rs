//! `guests`: what a line costs the bus in a session that several clients have joined.
//!
//! An agent streams turns of many updates to the owner of a session and to its guests, who all read. The cost is the
//! CPU time of the bus for a delivered line. The sizes are measured in turns, each on a bus of its own, and the result
//! is the minimum of the rounds, because what else the machine does can only add to it.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::args::{Measured, Turns};
use crate::bus::{self, Bus, echo};
use crate::client::Client;
use crate::print::complain;
use crate::procfs::cpu_time;
use crate::report::Report;

const SIZES: [usize; 4] = [0, 1, 10, 100];
/// The updates of a turn.
const UPDATES: usize = 2_000;
const UPDATE: &[u8] = b"\"session/update\"";
/// A delivered copy costs at most this part of a line in a session without guests.
const COPY_MOST: f64 = 1.0;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    turns: Turns,
    #[command(flatten)]
    measured: Measured,
}

/// A bus with a session.
struct Shared {
    bus: Bus,
    owner: Client,
    session: String,
    guests: Vec<Client>,
}

/// What one turn cost.
#[derive(Clone, Copy)]
struct Cost {
    us_a_line: f64,
    turn: Duration,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let costs = match measure(&stdio_bus, args.turns.rounds as usize) {
        Ok(costs) => costs,
        Err(error) => return complain(format_args!("{}: {error}", stdio_bus.display()), 1),
    };
    let mut report = Report::default();
    for (size, cost) in SIZES.iter().zip(&costs) {
        report.note(&format!("{size} guests: CPU a delivered line"), format!("{:.3} us", cost.us_a_line));
        report.note(
            &format!("{size} guests: a turn of {UPDATES} updates"),
            format!("{:.1} ms", cost.turn.as_secs_f64() * 1e3),
        );
    }
    let (alone, many) = (costs[0].us_a_line, costs[SIZES.len() - 1].us_a_line);
    let got = format!("{:.2} times", many / alone);
    report.check(
        "a copy for one of 100 guests, beside a line without guests",
        got,
        format!("at most {COPY_MOST} times"),
        many <= alone * COPY_MOST,
    );
    report.finish(args.measured.json)
}

fn measure(stdio_bus: &Path, rounds: usize) -> io::Result<Vec<Cost>> {
    let mut all = SIZES.iter().map(|size| open(stdio_bus, *size)).collect::<io::Result<Vec<_>>>()?;
    let mut least = vec![Cost { us_a_line: f64::INFINITY, turn: Duration::MAX }; all.len()];
    for _ in 0..=rounds {
        for (shared, least) in all.iter_mut().zip(&mut least) {
            let cost = turn(shared)?;
            least.us_a_line = least.us_a_line.min(cost.us_a_line);
            least.turn = least.turn.min(cost.turn);
        }
    }
    Ok(least)
}

fn open(stdio_bus: &Path, guests: usize) -> io::Result<Shared> {
    let chunks = UPDATES.to_string();
    let bus = Bus::start(stdio_bus, &bus::config(&[echo("echo", 1, &["--chunks", &chunks])]))?;
    let mut owner = bus.client()?;
    owner.initialize()?.map_err(io::Error::other)?;
    let session = owner.open_session()?;
    let join = |_| {
        let mut guest = bus.client()?;
        guest.ask("_bus/attach", json!({ "session": session, "role": "observe", "history": "none" }))?;
        Ok(guest)
    };
    let guests = (0..guests).map(join).collect::<io::Result<Vec<_>>>()?;
    Ok(Shared { bus, owner, session, guests })
}

/// One turn, which everybody reads to its last update.
fn turn(shared: &mut Shared) -> io::Result<Cost> {
    let Shared { bus, owner, session, guests } = shared;
    let before = cpu_time(bus.pid())?;
    let began = Instant::now();
    owner.prompt(session, &"x".repeat(UPDATES * 100))?;
    let lines = guests.len() + 1;
    let turn = thread::scope(|scope| -> io::Result<Duration> {
        let readers: Vec<_> = guests.iter_mut().map(|guest| scope.spawn(|| read_updates(guest))).collect();
        read_updates(owner)?;
        while !owner.line()?.windows(10).any(|part| part == b"stopReason") {}
        let turn = began.elapsed();
        for reader in readers {
            reader.join().map_err(|_| io::Error::other("a guest has failed"))??;
        }
        Ok(turn)
    })?;
    let cpu = cpu_time(bus.pid())? - before;
    Ok(Cost { us_a_line: cpu.as_secs_f64() * 1e6 / (UPDATES * lines) as f64, turn })
}

/// Reads the updates of a turn. What else is said, such as the prompt and the events of the session, does not count.
fn read_updates(client: &mut Client) -> io::Result<()> {
    let mut read = 0;
    while read < UPDATES {
        let line = client.line()?;
        let is_update = memchr::memmem::find(line, UPDATE).is_some();
        let is_prompt = memchr::memmem::find(line, b"user_message_chunk").is_some();
        read += usize::from(is_update && !is_prompt);
    }
    Ok(())
}
