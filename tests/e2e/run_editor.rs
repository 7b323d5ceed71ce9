//! The line editor of `stdio-bus run` at a terminal: real keys, history, paste and completion.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};
use serde_json::json;

use crate::harness::{Program, Puppet, update_of};

const CTRL_A: &str = "\x01";
const CTRL_D: &str = "\x04";
const LEFT: &str = "\x1b[D";
const UP: &str = "\x1b[A";
const TAB: &str = "\t";

/// The text of the next prompt, whose turn then ends.
fn prompted(agent: &mut Puppet) -> String {
    let prompt = agent.is_asked("session/prompt");
    agent.ends_turn(&prompt, "end_turn");
    prompt["params"]["prompt"][0]["text"].as_str().expect("a text").to_owned()
}

/// A puppet whose session is open, with the prompt on the screen.
fn opened(talk: &mut Program) -> Puppet {
    let mut agent = talk.puppet();
    let initialize = agent.is_asked("initialize");
    agent.answers(&initialize, json!({ "protocolVersion": 1 }));
    let new = agent.is_asked("session/new");
    agent.answers(&new, json!({ "sessionId": "s" }));
    talk.shows("> ");
    agent
}

#[test]
fn keys_edit_the_line_and_the_agent_gets_only_its_text() {
    let mut talk = Program::plan(&["--", "@puppet"]).at_terminal();
    let mut agent = opened(&mut talk);
    talk.types(&format!("abc{LEFT}{LEFT}X"));
    talk.shows("> aXbc");
    talk.types(&format!("{CTRL_A}é \r"));
    assert_eq!(prompted(&mut agent), "é aXbc");
    talk.shows("> é aXbc\n> ");
    // A paste of several lines is one prompt, which can still be edited.
    talk.types("\x1b[200~one\rtwo\nthree\x1b[201~");
    talk.shows("> one\n  two\n  three");
    talk.types("!\r");
    assert_eq!(prompted(&mut agent), "one\ntwo\nthree!");
    talk.shows("  three!\n> ");
    // Alt-Enter begins another line.
    talk.types("a\x1b\rb\r");
    assert_eq!(prompted(&mut agent), "a\nb");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn prompts_are_kept_for_the_next_run_and_for_the_user_alone() {
    let state = tempfile::tempdir().expect("a folder");
    let state_path = state.path().to_str().expect("UTF-8");
    let plan = || Program::plan(&["echo"]).env("XDG_STATE_HOME", state_path);
    let mut talk = plan().at_terminal();
    talk.shows("> ");
    for line in ["first", "second", " not kept"] {
        talk.types(&format!("{line}\r"));
        talk.shows(&format!("> {line}\n{}\n> ", line.trim()));
    }
    // An answer to a question is no prompt.
    talk.types("/ask\r");
    talk.shows("1-4? ");
    talk.types("1\n");
    talk.shows("You chose allow_once.\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
    let file = state.path().join("stdio-bus/run-history");
    assert_eq!(fs::read_to_string(&file).expect("a history"), "first\nsecond\n/ask\n");
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    let mut talk = plan().at_terminal();
    talk.shows("> ");
    talk.types(&format!("{UP}{UP}"));
    talk.shows("> second");
    talk.types("\r");
    talk.shows("> second\nsecond\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn commands_of_the_agent_and_files_are_completed() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("notes.txt"), "some notes").expect("a file");
    let cwd = folder.path().to_str().expect("UTF-8");
    let mut talk = Program::plan(&["--cwd", cwd, "echo"]).at_terminal();
    talk.shows("> ");
    // The agent tells its commands after the session is open, and before it answers a prompt.
    talk.types("hi\r");
    talk.shows("> hi\nhi\n> ");
    talk.types(&format!("/thi{TAB}"));
    talk.shows("> /think ");
    talk.types("deeply\r");
    talk.shows("deeply\nI have thought about it.\n> ");
    talk.types(&format!("see @no{TAB}"));
    talk.shows("> see @notes.txt");
    talk.types("\r");
    talk.shows("some notes\n> ");
    // Where there is nothing to complete, no menu opens that would say so and take the next Enter.
    talk.types(&format!("/nothing{TAB}\r"));
    talk.shows("> /nothing\n/nothing\n> ");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn what_is_shown_meanwhile_does_not_spoil_the_line() {
    let mut talk = Program::plan(&["--", "@puppet"]).at_terminal();
    let mut agent = opened(&mut talk);
    talk.types("half a li");
    talk.shows("> half a li");
    let content = json!({ "type": "text", "text": "By the way." });
    agent.sends(&update_of("s", json!({ "sessionUpdate": "agent_message_chunk", "content": content })));
    talk.shows_so("both", |screen| screen.trim_end().ends_with("cancels a turn\nBy the way.\n> half a li"));
    talk.types("ne\r");
    assert_eq!(prompted(&mut agent), "half a line");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn what_is_typed_during_a_turn_is_the_next_prompt() {
    let mut talk = Program::plan(&["hi", "--", "@puppet"]).at_terminal();
    let mut agent = talk.puppet();
    let prompt = agent.is_prompted();
    talk.types(&format!("ne{LEFT}xt\nand ha"));
    talk.shows("and ha");
    talk.clears();
    agent.ends_turn(&prompt, "end_turn");
    talk.shows("> next");
    assert_eq!(prompted(&mut agent), "next");
    talk.shows("> and ha");
    talk.types("lf\r");
    assert_eq!(prompted(&mut agent), "and half");
    talk.types(CTRL_D);
    assert_eq!(talk.ends(), 0);
}

#[test]
fn it_ends_with_its_terminal() {
    let mut talk = Program::plan(&["--", "@puppet"]).at_terminal();
    let _agent = opened(&mut talk);
    talk.types("half");
    talk.shows("> half");
    talk.closes_terminal();
    assert_eq!(talk.ends(), 129);
}

#[test]
fn the_terminal_is_as_it_was_however_it_ends() {
    for (signal, code) in [(Some(Signal::SIGTERM), 143), (Some(Signal::SIGINT), 130), (None, 1)] {
        let mut talk = Program::plan(&["--", "@puppet"]).at_terminal();
        let tty = talk.tty();
        let mut agent = opened(&mut talk);
        talk.types("half");
        talk.shows("> half");
        assert!(!tcgetattr(&tty).expect("a terminal").local_flags.contains(LocalFlags::ICANON));
        match signal {
            Some(signal) => talk.signal(signal),
            None => agent.exits(3),
        }
        assert_eq!(talk.ends(), code);
        let flags = tcgetattr(&tty).expect("a terminal").local_flags;
        assert!(flags.contains(LocalFlags::ICANON | LocalFlags::ECHO | LocalFlags::ISIG), "{flags:?}");
    }
}

/// A shell runs `run`, whose user stops it by Ctrl-Z, looks around, and comes back.
#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_keeps_what_was_typed() {
    let script =
        format!("set -m; {} run echo; echo the turn of the shell; read line; fg", crate::harness::BUS);
    let mut talk = Program::plan(&["-c", &script]).program_is("bash").at_terminal();
    talk.shows("> ");
    talk.types("half");
    talk.shows("> half");
    talk.types("\x1a");
    talk.shows("the turn of the shell");
    talk.types("\r");
    talk.shows_so("the line again", |screen| screen.trim_end().ends_with("> half"));
    talk.types(" a line\r");
    talk.shows_so("its answer", |screen| screen.contains("\nhalf a line"));
    talk.types("\x04");
    assert_eq!(talk.ends(), 0);
}
