//! `stdio-bus top` at a terminal: the screen, keys, sizes, a bus that is lost and comes back, and the end.

use std::path::Path;

use nix::sys::signal::Signal;
use nix::sys::termios::tcgetattr;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Bus, Program, initialize, one_pool, request, run, session_of};

const CTRL_C: &str = "\x03";
const DOWN: &str = "\x1b[B";
const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";

/// A bus that a client finds by its bus.json.
fn two_workers_on_a_socket() -> Value {
    in_folder("@dir")
}

fn in_folder(folder: &str) -> Value {
    let mut config = one_pool(2);
    config["listen"] = json!([format!("unix://{folder}/bus.sock")]);
    config
}

/// Quits in this way and checks that the terminal is restored.
fn quits_cleanly(mut talk: Program, quit: impl FnOnce(&mut Program), code: i32) {
    let tty = talk.tty();
    talk.looks("a page of its own", |screen| screen.alternate_screen() && screen.hide_cursor());
    let raw = tcgetattr(&tty).expect("a terminal");
    quit(&mut talk);
    assert_eq!(talk.ends(), code);
    talk.looks("the terminal as it was", |screen| !screen.alternate_screen() && !screen.hide_cursor());
    let after = tcgetattr(&tty).expect("a terminal");
    let fresh =
        tcgetattr(nix::pty::openpty(None, None).expect("a pseudo-terminal").slave).expect("a terminal");
    assert_ne!(raw.local_flags, fresh.local_flags, "keys were read one by one");
    assert_eq!((after.local_flags, after.input_flags), (fresh.local_flags, fresh.input_flags));
    assert_eq!(after.output_flags, fresh.output_flags);
}

#[test]
fn it_fits_any_size_and_shows_the_selected_row_in_detail() {
    let bus = Bus::start(two_workers_on_a_socket());
    let puppets = bus.puppets::<2>();
    let mut talk = Program::plan_top(&bus).at_terminal();
    talk.shows("stdio-bus 0.");
    talk.shows("2 of 2");
    talk.shows("q quit");
    talk.resizes(40, 120);
    talk.shows("not carried");
    talk.shows(&puppets[1].pid.to_string());
    let mut client = bus.client();
    client.sends(r#"{"jsonrpc":"2.0","id":1,"method":"work"}"#);
    talk.shows("calls 1");
    talk.types(DOWN);
    talk.types(ENTER);
    talk.shows_so("a worker in detail", |screen| {
        screen.contains("worker p/0") && screen.contains("Esc back")
    });
    talk.types(ESCAPE);
    talk.shows("pools and workers");
    talk.resizes(12, 50);
    talk.shows_so("a small screen", |screen| screen.contains("2 of 2") && !screen.contains("traffic"));
    // crossterm may lose a key that arrives together with a resize, so this ends by a signal.
    quits_cleanly(talk, |talk| talk.signal(Signal::SIGTERM), 128 + 15);
}

#[test]
fn sessions_latencies_and_refusals_are_shown() {
    let echo = json!({ "id": "echo", "command": "stdio-bus", "args": ["agent", "echo"] });
    let bus = Bus::start(json!({ "pools": [echo], "listen": ["unix://@dir/bus.sock"] }));
    let mut client = bus.client();
    client.asks(0, "_bus/hello", json!({ "client": "an editor" }));
    client.sends(&initialize(1, json!({})));
    client.gets(1);
    client.sends(&request(2, "session/new", json!({ "cwd": "/", "mcpServers": [] })));
    let opened = loop {
        let message = client.receives();
        if message["id"] == 2 {
            break message["result"].clone();
        }
    };
    client.takes_turn(3, &session_of(&opened), "Hello.");
    client.sends(&request(4, "_bus/nonsense", json!({})));
    client.sees_error(4, -32601, "no_method");
    let mut talk = Program::plan_top(&bus).at_terminal();
    talk.resizes(40, 120);
    talk.shows("sessions (1)");
    talk.shows("refused no_method 1");
    talk.shows_so("how many answers there were", |screen| {
        screen.lines().any(|line| line.contains(" answers ") && !line.contains(" 0 "))
    });
    talk.types("\t");
    talk.types(ENTER);
    talk.shows_so("the session", |screen| screen.contains("session s") && screen.contains("an editor"));
    quits_cleanly(talk, |talk| talk.types("q"), 0);
}

#[test]
fn a_bus_that_is_killed_is_waited_for() {
    let folder = TempDir::new().expect("a temporary folder");
    let config = in_folder(folder.path().to_str().expect("UTF-8"));
    let bus = Bus::start(config.clone());
    let mut talk = Program::plan_top(&bus).at_terminal();
    talk.resizes(30, 110);
    talk.shows("2 of 2");
    bus.signal(Signal::SIGKILL);
    talk.shows("bus gone, trying again");
    talk.shows("2 of 2");
    let next = Bus::start(config);
    talk.shows_so("the next bus", |screen| screen.contains("2 of 2") && !screen.contains("bus gone"));
    quits_cleanly(talk, |talk| talk.types(CTRL_C), 0);
    drop(next);
}

#[test]
fn sigterm_restores_the_terminal_too() {
    let bus = Bus::start(two_workers_on_a_socket());
    let mut talk = Program::plan_top(&bus).at_terminal();
    talk.shows("2 of 2");
    quits_cleanly(talk, |talk| talk.signal(Signal::SIGTERM), 128 + 15);
}

#[test]
fn no_color_turns_colours_off() {
    let bus = Bus::start(two_workers_on_a_socket());
    for (value, coloured) in [("", true), ("1", false)] {
        let mut talk = Program::plan_top(&bus).env("NO_COLOR", value).at_terminal();
        talk.shows("2 of 2");
        let any_colour = move |screen: &vt100::Screen| {
            let cells = (0..20).flat_map(|row| (0..60).map(move |column| (row, column)));
            let mut cells = cells.filter_map(|(row, column)| screen.cell(row, column));
            cells.any(|cell| cell.fgcolor() != vt100::Color::Default)
        };
        talk.looks("colours, or none", |screen| any_colour(screen) == coloured);
        talk.types("q");
        assert_eq!(talk.ends(), 0);
    }
}

#[test]
fn without_a_terminal_or_a_bus_it_explains_what_to_do() {
    let out = run(Path::new("/"), &["top"], "");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("`stdio-bus status --json`"));
    let bus = Bus::start(two_workers_on_a_socket());
    let mut talk = Program::plan_top(&bus).env("TERM", "dumb").at_terminal();
    assert_eq!(talk.ends(), 2);
    let mut talk = Program::plan(&["--unix", "@dir/none"]).command_is("top").at_terminal();
    assert_eq!(talk.ends(), 69);
}
