//! A `kill -9` of a bus leaves nothing behind, wherever an upgrade is at that moment.

use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::json;

use super::refused::{ASKED_AGAIN, YES};
use super::upgrades;
use crate::harness::{Bus, Puppet, one_pool, request, time_passes, write_script};

/// Kills at random moments of an upgrade.
const KILLS: u32 = 10;
/// Longer than an upgrade takes.
const LONGEST_DELAY: Duration = Duration::from_millis(250);

/// A bus whose workers stay when they are asked to end, each with a child, and one with a child that has left its
/// session.
fn resisting() -> (Bus, [Puppet; 2]) {
    let bus = Bus::start(one_pool(2));
    let mut workers = bus.puppets::<2>();
    for puppet in &mut workers {
        puppet.has_a_child();
        puppet.stays();
        puppet.ignores_sigterm();
    }
    let left = workers[0].has_a_detached_child();
    bus.until("all are found", || bus.survivors().contains(&left));
    (bus, workers)
}

fn killed_it_leaves_nothing(mut bus: Bus) {
    bus.signal(Signal::SIGKILL);
    bus.leaves_nothing();
    bus.exit_status();
}

#[test]
fn after_a_kill_of_an_upgraded_bus_no_process_is_left() {
    let (bus, _workers) = resisting();
    upgrades(&bus);
    killed_it_leaves_nothing(bus);
}

#[test]
fn after_a_kill_while_the_next_program_is_asked_no_process_is_left() {
    let waits = "mkfifo wait; touch asked; read line < wait";
    for script in [waits.to_owned(), format!("{YES}; {ASKED_AGAIN}; {waits}")] {
        let (bus, _workers) = resisting();
        write_script(bus.folder(), "waits", &script);
        let binary = bus.folder().join("waits");
        let mut client = bus.client();
        client.sends(&request(1, "_bus/upgrade", json!({ "binary": binary })));
        bus.until("it is asked", || bus.folder().join("asked").exists());
        killed_it_leaves_nothing(bus);
    }
}

#[test]
fn after_a_kill_at_any_moment_of_an_upgrade_no_process_is_left() {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later");
    for kill in 0..KILLS {
        let (bus, _workers) = resisting();
        // Each falls into a part of the time of its own, and the clock says where.
        let delay = (LONGEST_DELAY / KILLS).mul_f64(f64::from(kill) + f64::from(clock.subsec_nanos()) / 1e9);
        eprintln!("killed {delay:?} after it was told to upgrade");
        bus.signal(Signal::SIGUSR2);
        time_passes(delay);
        killed_it_leaves_nothing(bus);
    }
}
