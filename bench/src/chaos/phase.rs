//! What happens while the clients talk: nothing, kills, tricks, reloads. And what the bus holds in between.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::client::{Client, Kills, LINE_BYTES, Tally};
use super::trick::TRICKS;
use super::{CLIENTS, KILL_EVERY, config};
use crate::chance::Chance;
use crate::cost;
use crate::print::Progress;
use crate::request::Shape;
use crate::stage::{Bus, up};
use crate::talk::Talk;

const TRICKSTERS: u32 = 8;
const RELOAD_EVERY: Duration = Duration::from_millis(150);
/// A reload that takes longer was not heard of.
const RELOAD_PATIENCE: Duration = Duration::from_secs(10);

/// What the bus holds while nobody asks anything of it.
pub(super) struct Rest {
    pub(super) fds: usize,
    pub(super) processes: usize,
    pub(super) zombies: usize,
    pub(super) calls: usize,
    pub(super) sessions: usize,
    pub(super) held_bytes: usize,
    pub(super) resident_bytes: u64,
}

pub(super) struct Killed {
    pub(super) tally: Tally,
    pub(super) kills: usize,
}

pub(super) struct Tricked {
    pub(super) tally: Tally,
    pub(super) played: u64,
    pub(super) faults: Vec<String>,
}

pub(super) struct Reloaded {
    pub(super) tally: Tally,
    pub(super) reloads: u32,
    pub(super) faults: Vec<String>,
}

impl Rest {
    pub(super) fn of(bus: &Bus, watcher: &mut Talk) -> io::Result<Rest> {
        let status = watcher.status()?;
        let count = |name: &str| status[name].as_u64().unwrap_or(u64::MAX) as usize;
        let unseen = || io::Error::other("the bus cannot be seen in /proc");
        Ok(Rest {
            fds: cost::open_fds(bus.pid()).ok_or_else(unseen)?,
            processes: bus.survivors().len(),
            zombies: cost::zombies_of(bus.pid()).len(),
            calls: count("calls"),
            sessions: count("sessions"),
            held_bytes: count("held_bytes"),
            resident_bytes: cost::resident_bytes(bus.pid()).ok_or_else(unseen)?,
        })
    }

    pub(super) fn is_back_at(&self, before: &Rest) -> bool {
        (self.fds, self.processes) == (before.fds, before.processes)
            && (self.zombies, self.calls, self.sessions, self.held_bytes) == (0, 0, 0, 0)
    }

    /// Nothing goes on, and just these workers are there, beside the bus and its guard.
    pub(super) fn is_quiet(&self, workers: usize) -> bool {
        self.processes == workers + 2
            && (self.zombies, self.calls, self.sessions, self.held_bytes) == (0, 0, 0, 0)
    }
}

pub(super) fn calm(bus: &Bus, length: Duration, progress: Progress) -> io::Result<Tally> {
    Ok(talk_while(bus, length, &Kills::default(), progress, |_| Ok(()))?.0)
}

/// One random worker after the other, as fast as that.
pub(super) fn kills(bus: &Bus, length: Duration, seed: u64, progress: Progress) -> io::Result<Killed> {
    let kills = Kills::default();
    let (tally, ()) = talk_while(bus, length, &kills, progress, |until| {
        let (mut chance, mut watcher) = (Chance::new(seed), bus.client()?);
        let mut next = Instant::now();
        while Instant::now() < until {
            let status = watcher.status()?;
            let up = up(&status);
            if !up.is_empty() {
                let (worker, pid) = up[chance.below(up.len())];
                kills.add(worker);
                // It may have ended just now, like those before it.
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            next += KILL_EVERY;
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    })?;
    Ok(Killed { tally, kills: kills.count() })
}

pub(super) fn tricks(bus: &Bus, length: Duration, seed: u64, progress: Progress) -> io::Result<Tricked> {
    let (faults, played) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let (tally, ()) = talk_while(bus, length, &Kills::default(), progress, |until| {
        let play = |number: u32| {
            let mut chance = Chance::new(seed ^ u64::from(number));
            while Instant::now() < until {
                let (name, trick) = TRICKS[chance.below(TRICKS.len())];
                // Tricksters are numbered above the clients.
                let done = bus.client().and_then(|talk| trick(talk, CLIENTS + number, &mut chance));
                played.fetch_add(1, Ordering::Relaxed);
                if let Err(fault) = done {
                    faults.lock().expect("nobody panics with it").push(format!("{name}: {fault}"));
                }
            }
        };
        thread::scope(|scope| {
            let play = &play;
            (0..TRICKSTERS).for_each(|number| drop(scope.spawn(move || play(number))));
        });
        Ok(())
    })?;
    let faults = faults.into_inner().expect("nobody panics with it");
    Ok(Tricked { tally, played: played.into_inner(), faults })
}

/// The configuration as it was, with a pool that nobody uses changed, and a bad one, in turns.
pub(super) fn reloads(bus: &Bus, length: Duration, progress: Progress) -> io::Result<Reloaded> {
    let (tally, (reloads, faults)) = talk_while(bus, length, &Kills::default(), progress, |until| {
        let (mut count, mut faults, mut watcher) = (0, Vec::new(), bus.client()?);
        let (mut taken, mut refused) = (said(bus, TAKEN), said(bus, REFUSED));
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
            *(if good { &mut taken } else { &mut refused }) += 1;
            let heard = bus.until(RELOAD_PATIENCE, |bus| {
                said(bus, TAKEN) == taken && (good || said(bus, REFUSED) >= refused)
            });
            if !heard {
                faults.push(format!("reload {count} was not taken as it should be"));
            }
            refused = said(bus, REFUSED);
            let pools = watcher.status()?["pools"].as_array().map_or(0, Vec::len);
            // The pool that goes away may take a moment.
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
    Ok(Reloaded { tally, reloads, faults })
}

const TAKEN: &str = "the configuration was read again";
const REFUSED: &str = "reload refused";

fn said(bus: &Bus, words: &str) -> usize {
    bus.log().matches(words).count()
}

/// All clients talk until the time is over, and `meanwhile` something happens.
fn talk_while<T>(
    bus: &Bus,
    length: Duration,
    kills: &Kills,
    mut progress: Progress,
    meanwhile: impl FnOnce(Instant) -> io::Result<T> + Send,
) -> io::Result<(Tally, T)>
where
    T: Send,
{
    let shape = Shape::new(LINE_BYTES);
    let talks = (0..CLIENTS).map(|_| bus.client()).collect::<io::Result<Vec<Talk>>>()?;
    let begun = Instant::now();
    let until = begun + length;
    thread::scope(|scope| {
        let shape = &shape;
        let run = |(number, talk)| {
            scope.spawn(move || Client::new(number, talk, shape, kills).map(|client| client.run(until)))
        };
        let clients = (0..CLIENTS).zip(talks).map(run).collect::<Vec<_>>();
        let meanwhile = scope.spawn(move || meanwhile(until));
        while clients.iter().any(|client| !client.is_finished()) {
            let now = Instant::now();
            progress
                .show(now, || format!("{:.0} of {:.0} s", (now - begun).as_secs_f64(), length.as_secs_f64()));
            thread::sleep(Duration::from_millis(20));
        }
        let mut tally = Tally::default();
        for client in clients {
            tally.add(client.join().expect("a client does not panic")?);
        }
        Ok((tally, meanwhile.join().expect("what happens meanwhile does not panic")?))
    })
}
