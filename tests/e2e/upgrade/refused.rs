//! A bus that cannot become another program goes on as if nothing had happened, and says why in one line.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::json;

use super::{upgraded_count, upgrades};
use crate::harness::{
    Bus, Client, Puppet, Strace, bus_puppet_client, children_of, open_fds, request, run, update,
    write_script, zombies_of,
};

/// What a program says that could take the place of the bus, in a script.
pub(super) const YES: &str = r#"echo '{"bus":"stdio-bus","version":"9.9.9"}'"#;
/// Waits in a script until the bus stands still and asks again.
pub(super) const ASKED_AGAIN: &str = "dd bs=1 count=1 <&1 >/dev/null 2>&1";

const NO_MEMORY: &str = "there is no memory for the state: Cannot allocate memory";

/// Tries it in the middle of a turn: that ends well, and nothing is left of the try.
fn stays_as_it_is(bus: &Bus, puppet: &mut Puppet, client: &mut Client, tries: impl FnOnce()) {
    let fds = open_fds(bus.pid());
    let session = client.opens(puppet, "s1");
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    tries();
    puppet.sends(&update("s1", "goes on"));
    puppet.ends_turn(&turn, "end_turn");
    assert_eq!(client.receives()["params"]["update"]["text"], "goes on");
    client.gets(2);
    client.closes(puppet, &session);
    assert_eq!(upgraded_count(client), 0);
    bus.until("who was asked is gone", || children_of(bus.pid()).len() == 2);
    bus.until("no file is left open", || open_fds(bus.pid()) <= fds);
    assert!(zombies_of(bus.pid()).is_empty());
}

/// Has the command upgrade the bus, and returns the line that says why that cannot be.
fn command_says(bus: &Bus, binary: &[&str]) -> String {
    let at = ["--config", "bus.json", "--tcp", bus.tcp()];
    let output = run(bus.folder(), &[&["upgrade"], binary, &at].concat(), "");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!((output.status.code(), output.stdout.len(), said.lines().count()), (Some(1), 0, 1), "{said}");
    said
}

#[test]
fn the_bus_goes_on_if_the_system_refuses_what_an_upgrade_needs() {
    for (calls, fault, why) in [
        ("memfd_create", "error=ENOMEM:when=1", NO_MEMORY),
        // The state is written when the program is asked, and again when the bus stands still.
        ("ftruncate", "error=ENOMEM:when=1", NO_MEMORY),
        ("ftruncate", "error=ENOMEM:when=2", NO_MEMORY),
        ("socketpair", "error=EMFILE:when=1", "cannot be started: Too many open files"),
        ("execve", "error=ENOMEM:when=1", "cannot be run: Out of memory"),
    ] {
        let (bus, mut puppet, mut client) = bus_puppet_client();
        client.is_served_by(&mut puppet);
        let fds_of_worker = open_fds(puppet.pid);
        let Some(strace) = Strace::on(&bus, calls, Some(fault)) else { return };
        stays_as_it_is(&bus, &mut puppet, &mut client, || {
            let said = command_says(&bus, &[]);
            assert!(said.contains(why), "{calls}: {said}");
            assert_eq!(strace.failed(), 1, "{calls}");
        });
        drop(strace);
        // What was to stay open for the next program is not left open for a worker.
        puppet.exits(0);
        let mut next = bus.puppet();
        client.is_served_by(&mut next);
        assert_eq!(open_fds(next.pid), fds_of_worker, "{calls}");
        upgrades(&bus);
        client.is_served_by(&mut next);
    }
}

#[test]
fn the_bus_goes_on_if_the_state_cannot_be_sealed() {
    // The call has many uses. An upgrade that nothing disturbs tells which of its calls is the seal.
    let (bus, mut puppet, mut client) = bus_puppet_client();
    client.is_served_by(&mut puppet);
    upgrades(&bus);
    let Some(strace) = Strace::on(&bus, "fcntl", None) else { return };
    let output = run(bus.folder(), &["upgrade", "--config", "bus.json", "--tcp", bus.tcp()], "");
    assert_eq!(output.status.code(), Some(0));
    let seal = strace.seen().lines().position(|call| call.contains("F_ADD_SEALS")).expect("it is sealed") + 1;
    drop(strace);
    bus.until("who was asked is gone", || children_of(bus.pid()).len() == 2);
    let Some(strace) = Strace::on(&bus, "fcntl", Some(&format!("error=EPERM:when={seal}"))) else { return };
    let fds = open_fds(bus.pid());
    let said = command_says(&bus, &[]);
    assert!(said.contains("the state cannot be sealed: Operation not permitted"), "{said}");
    assert_eq!(strace.failed(), 1);
    drop(strace);
    bus.until("no file is left open", || open_fds(bus.pid()) <= fds);
    assert_eq!(upgraded_count(&mut client), 2);
    client.is_served_by(&mut puppet);
    upgrades(&bus);
    client.is_served_by(&mut puppet);
}

#[test]
fn the_bus_goes_on_if_the_program_dies_while_it_reads_the_state() {
    let dies = "ulimit -c 0; head -c 64 /dev/stdin >/dev/null; kill -s SEGV $$";
    for script in [dies.to_owned(), format!("{YES}; {ASKED_AGAIN}; {dies}")] {
        let (bus, mut puppet, mut client) = bus_puppet_client();
        write_script(bus.folder(), "dies", &script);
        stays_as_it_is(&bus, &mut puppet, &mut client, || {
            let said = command_says(&bus, &["dies"]);
            assert!(said.contains("dies is not a stdio-bus that can take the place of this one"), "{said}");
        });
    }
}

#[test]
fn the_bus_goes_on_if_the_program_hangs_when_it_is_asked_again() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    write_script(bus.folder(), "hangs", &format!("{YES}; {ASKED_AGAIN}; exec sleep 1000"));
    stays_as_it_is(&bus, &mut puppet, &mut client, || {
        let said = command_says(&bus, &["hangs"]);
        assert!(said.contains("hangs did not say in time whether it can go on with this bus"), "{said}");
    });
    upgrades(&bus);
    client.is_served_by(&mut puppet);
}

#[test]
fn a_bus_that_cannot_become_another_program_goes_on_and_says_why() {
    let (bus, mut puppet, mut client) = bus_puppet_client();
    let session = client.opens(&mut puppet, "s1");
    client.prompts(2, &session);
    let turn = puppet.is_asked("session/prompt");
    let folder = bus.folder();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    fs::write(folder.join("text"), "no program").unwrap();
    write_script(folder, "silent", "exit 0");
    write_script(folder, "talks", "echo hello; echo world");
    write_script(
        folder,
        "newer",
        r#"echo '{"bus":"stdio-bus","version":"9.9.9","cannot":"the state is of version 1"}'"#,
    );
    // It says yes once, and no when it counts.
    write_script(folder, "fickle", &format!("{YES}; {ASKED_AGAIN}; echo '{{}}'"));
    let mut other = bus.client();
    for (binary, why) in [
        (file("missing"), "no such file"),
        (file("text"), "is not executable"),
        (folder.to_str().unwrap().to_owned(), "is not executable"),
        ("stdio-bus".to_owned(), "whole path"),
        (file("silent"), "is not a stdio-bus"),
        (file("talks"), "is not a stdio-bus"),
        ("/bin/cat".to_owned(), "is not a stdio-bus"),
        (file("newer"), "stdio-bus 9.9.9 cannot go on with this bus: the state is of version 1"),
        (file("fickle"), "is not a stdio-bus"),
    ] {
        for check in [true, false] {
            if check && binary.ends_with("fickle") {
                continue;
            }
            other.sends(&request(5, "_bus/upgrade", json!({ "binary": binary, "check": check })));
            let error = other.receives()["error"].clone();
            let message = error["message"].as_str().unwrap_or_default();
            assert!(error["data"]["reason"] == "invalid" && message.contains(why), "{binary}: {error}");
        }
    }
    // Nothing has happened.
    puppet.ends_turn(&turn, "end_turn");
    client.gets(2);
    assert_eq!(upgraded_count(&mut client), 0);
    bus.until("who was asked is gone", || children_of(bus.pid()).len() == 2);
    let error = run(folder, &["upgrade", "missing", "--config", "bus.json", "--tcp", bus.tcp()], "");
    assert_eq!(error.status.code(), Some(1));
    let said = String::from_utf8(error.stderr).unwrap();
    assert_eq!(said, format!("stdio-bus: {}: no such file\n", file("missing")));
}

#[test]
fn a_program_that_says_nothing_is_waited_for_and_another_upgrade_is_refused_meanwhile() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    client.opens(&mut puppet, "s1");
    write_script(bus.folder(), "sleeps", "exec sleep 1000");
    let binary = bus.folder().join("sleeps");
    let mut other = bus.client();
    other.sends(&request(1, "_bus/upgrade", json!({ "binary": binary })));
    bus.until("it runs", || children_of(bus.pid()).len() == 3);
    client.sends(&request(5, "_bus/upgrade", json!({})));
    assert_eq!(client.receives()["error"]["message"], "another upgrade is under way");
    client.is_served_by(&mut puppet);
    other.sees_error(1, -32600, "invalid");
    bus.until("it is gone", || children_of(bus.pid()).len() == 2);
    // A bus that stops does not become another program.
    other.sends(&request(2, "_bus/upgrade", json!({ "binary": binary })));
    bus.until("it runs", || children_of(bus.pid()).len() == 3);
    bus.signal(Signal::SIGTERM);
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
}

#[test]
fn a_bus_that_stops_does_not_become_another_program() {
    let (mut bus, mut puppet, mut client) = bus_puppet_client();
    client.sends(&request(1, "work", json!({})));
    let asked = puppet.is_asked("work");
    bus.signal(Signal::SIGTERM);
    bus.log_has("stopping");
    client.sends(&request(2, "_bus/upgrade", json!({})));
    client.sees_error(2, -32055, "stopping");
    bus.signal(Signal::SIGUSR2);
    bus.log_has("not upgraded: the bus is stopping");
    puppet.answers(&asked, json!({}));
    client.gets(1);
    assert_eq!(bus.exit_status().code(), Some(0));
    bus.leaves_nothing();
}
