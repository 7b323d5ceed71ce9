//! The phases of chaos: nothing, kills, misbehaving clients, reloads. And what the bus holds between them.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::checking_client::{CheckingClient, Counts, Kills, LINE_BYTES};
use super::trick::TRICKS;
use super::{CLIENTS, KILL_EVERY, config};
use crate::bus::{Bus, up};
use crate::client::Client;
use crate::print::Progress;
use crate::procfs;
use crate::request::Shape;

const MISBEHAVING_CLIENTS: u32 = 8;
const RELOAD_EVERY: Duration = Duration::from_millis(150);
/// A reload that takes longer has failed.
const RELOAD_PATIENCE: Duration = Duration::from_secs(10);

/// What the bus holds while no request is in flight.
pub(super) struct Holdings {
    pub(super) fds: usize,
    pub(super) processes: usize,
    pub(super) zombies: usize,
    pub(super) calls: usize,
    pub(super) sessions: usize,
    pub(super) held_bytes: usize,
    pub(super) resident_bytes: u64,
}

pub(super) struct Killed {
    pub(super) counts: Counts,
    pub(super) kills: usize,
}

pub(super) struct Tricked {
    pub(super) counts: Counts,
    pub(super) played: u64,
    pub(super) faults: Vec<String>,
}

pub(super) struct Reloaded {
    pub(super) counts: Counts,
    pub(super) reloads: u32,
    pub(super) faults: Vec<String>,
}

impl Holdings {
    pub(super) fn of(bus: &Bus, watcher: &mut Client) -> io::Result<Holdings> {
        let status = watcher.status()?;
        let count = |name: &str| status[name].as_u64().unwrap_or(u64::MAX) as usize;
        Ok(Holdings {
            fds: procfs::open_fds(bus.pid())?,
            processes: bus.survivors().len(),
            zombies: procfs::zombies_of(bus.pid()).len(),
            calls: count("calls"),
            sessions: count("sessions"),
            held_bytes: count("held_bytes"),
            resident_bytes: procfs::resident_bytes(bus.pid())?,
        })
    }

    pub(super) fn is_back_at(&self, before: &Holdings) -> bool {
        (self.fds, self.processes) == (before.fds, before.processes)
            && (self.zombies, self.calls, self.sessions, self.held_bytes) == (0, 0, 0, 0)
    }

    /// Whether nothing goes on, and the only processes are the bus, its orphan guard and these workers.
    pub(super) fn is_quiet(&self, workers: usize) -> bool {
        self.processes == workers + 2
            && (self.zombies, self.calls, self.sessions, self.held_bytes) == (0, 0, 0, 0)
    }
}

pub(super) fn calm(bus: &Bus, length: Duration, progress: Progress) -> io::Result<Counts> {
    Ok(run_clients(bus, length, &Kills::default(), progress, |_| Ok(()))?.0)
}

/// Kills one random worker after the other.
pub(super) fn kills(bus: &Bus, length: Duration, seed: u64, progress: Progress) -> io::Result<Killed> {
    let kills = Kills::default();
    let (counts, ()) = run_clients(bus, length, &kills, progress, |until| {
        let mut rng = Rng::with_seed(seed);
        let mut watcher = bus.client()?;
        let mut next = Instant::now();
        while Instant::now() < until {
            let status = watcher.status()?;
            let up = up(&status);
            if !up.is_empty() {
                let (worker, pid) = up[rng.usize(..up.len())];
                kills.add(worker);
                // The worker may have exited just now.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            next += KILL_EVERY;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    })?;
    Ok(Killed { counts, kills: kills.count() })
}

pub(super) fn tricks(bus: &Bus, length: Duration, seed: u64, progress: Progress) -> io::Result<Tricked> {
    let faults = Mutex::new(Vec::new());
    let played = AtomicU64::new(0);
    let (counts, ()) = run_clients(bus, length, &Kills::default(), progress, |until| {
        let play = |number: u32| {
            let mut rng = Rng::with_seed(seed ^ u64::from(number));
            while Instant::now() < until {
                let (name, trick) = TRICKS[rng.usize(..TRICKS.len())];
                // They are numbered above the clients that behave.
                let done = bus.client().and_then(|client| trick(client, CLIENTS + number, &mut rng));
                played.fetch_add(1, Ordering::Relaxed);
                if let Err(fault) = done {
                    faults
                        .lock()
                        .expect("no thread panics while it holds the lock")
                        .push(format!("{name}: {fault}"));
                }
            }
        };
        thread::scope(|scope| {
            let play = &play;
            (0..MISBEHAVING_CLIENTS).for_each(|number| drop(scope.spawn(move || play(number))));
        });
        Ok(())
    })?;
    let faults = faults.into_inner().expect("no thread panics while it holds the lock");
    Ok(Tricked { counts, played: played.into_inner(), faults })
}

/// Reloads in turns: with a changed pool that no client uses, with the configuration as it was, and with a bad one.
pub(super) fn reloads(bus: &Bus, length: Duration, progress: Progress) -> io::Result<Reloaded> {
    let (counts, (reloads, faults)) = run_clients(bus, length, &Kills::default(), progress, |until| {
        let mut count = 0;
        let mut faults = Vec::new();
        let mut watcher = bus.client()?;
        let mut taken = times_logged(bus, TAKEN);
        let mut refused = times_logged(bus, REFUSED);
        let mut next = Instant::now();
        while Instant::now() < until {
            count += 1;
            let good = count % 3 != 0;
            match count % 3 {
                0 => bus.rewrite_text(r#"{"pools": [{"id": "other", "command": "stdio-bus"}"#)?,
                1 => bus.rewrite(&config(Some(count as usize)))?,
                _ => bus.rewrite(&config(None))?,
            }
            bus.signal(Signal::SIGHUP)?;
            if good {
                taken += 1;
            } else {
                refused += 1;
            }
            let is_done = bus.until(RELOAD_PATIENCE, |bus| {
                times_logged(bus, TAKEN) == taken && (good || times_logged(bus, REFUSED) >= refused)
            });
            if !is_done {
                faults.push(format!("reload {count} was not taken as it should be"));
            }
            refused = times_logged(bus, REFUSED);
            let pools = watcher.status()?["pools"].as_array().map_or(0, Vec::len);
            // A pool that is removed may take a moment to go.
            if !(1..=2).contains(&pools) || count % 3 == 1 && pools != 2 {
                faults.push(format!("reload {count} has left {pools} pools"));
            }
            next += RELOAD_EVERY;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        bus.rewrite(&config(None))?;
        bus.signal(Signal::SIGHUP)?;
        Ok((count, faults))
    })?;
    Ok(Reloaded { counts, reloads, faults })
}

const TAKEN: &str = "the configuration was reloaded";
const REFUSED: &str = "reload refused";

fn times_logged(bus: &Bus, text: &str) -> usize {
    bus.log().matches(text).count()
}

/// All clients send requests until the time is over, while `meanwhile` runs.
pub(super) fn run_clients<T>(
    bus: &Bus,
    length: Duration,
    kills: &Kills,
    mut progress: Progress,
    meanwhile: impl FnOnce(Instant) -> io::Result<T> + Send,
) -> io::Result<(Counts, T)>
where
    T: Send,
{
    let shape = Shape::new(LINE_BYTES);
    let clients = (0..CLIENTS).map(|_| bus.client()).collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    let until = began + length;
    thread::scope(|scope| {
        let shape = &shape;
        let start = |(number, client)| {
            let client = move || CheckingClient::new(number, client, shape, kills);
            scope.spawn(move || client().map(|client| client.run(until)))
        };
        let clients = (0..CLIENTS).zip(clients).map(start).collect::<Vec<_>>();
        let meanwhile = scope.spawn(move || meanwhile(until));
        while clients.iter().any(|client| !client.is_finished()) {
            let now = Instant::now();
            progress
                .show(now, || format!("{:.0} of {:.0} s", (now - began).as_secs_f64(), length.as_secs_f64()));
            thread::sleep(Duration::from_millis(20));
        }
        let mut counts = Counts::default();
        for client in clients {
            counts.add(client.join().expect("a client does not panic")?);
        }
        Ok((counts, meanwhile.join().expect("what happens meanwhile does not panic")?))
    })
}
