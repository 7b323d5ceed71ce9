//! The screen as a terminal emulator shows it.

use std::cell::RefCell;
use std::num::NonZero;
use std::rc::Rc;

use serde_json::json;

use super::super::asked_about::details;
use super::*;
use crate::picture;

const ROWS: NonZero<u16> = NonZero::new(10).unwrap();
const COLUMNS: NonZero<u16> = NonZero::new(30).unwrap();

/// A terminal emulator that interprets what is written to it.
#[derive(Clone)]
struct FakeTerminal(Rc<RefCell<vt100::Parser>>);

impl Write for FakeTerminal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A terminal moves to the first column on a newline.
        let text = String::from_utf8_lossy(bytes).replace('\n', "\r\n");
        self.0.borrow_mut().process(text.as_bytes());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FakeTerminal {
    fn new() -> (FakeTerminal, Screen<FakeTerminal>) {
        let terminal = FakeTerminal(Rc::new(RefCell::new(vt100::Parser::new(ROWS, COLUMNS, 0))));
        let screen = Screen::new(terminal.clone(), true, Box::new(|| (10, 30)));
        (terminal, screen)
    }

    fn shows(&self) -> String {
        self.0.borrow().screen().contents()
    }
}

fn chunk(kind: &str, text: &str) -> Value {
    json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } })
}

fn call(id: &str, title: Option<&str>, status: &str) -> Value {
    json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "title": title, "status": status })
}

#[test]
fn text_streams_and_thoughts_are_dimmed_on_lines_of_their_own() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.turn_started().unwrap();
    for update in [
        chunk("agent_thought_chunk", "Let me "),
        chunk("agent_thought_chunk", "see"),
        chunk("agent_message_chunk", "Hel"),
        chunk("agent_message_chunk", "lo"),
    ] {
        screen.update(&update).unwrap();
    }
    assert_eq!(terminal.shows(), "Let me see\nHello");
    let parser = terminal.0.borrow();
    assert!(parser.screen().cell(0, 0).unwrap().dim() && !parser.screen().cell(1, 0).unwrap().dim());
}

#[test]
fn images_and_links_of_the_agent_stand_on_lines_of_their_own() {
    let said = |content: Value| json!({ "sessionUpdate": "agent_message_chunk", "content": content });
    for colour in [true, false] {
        let (terminal, _) = FakeTerminal::new();
        let mut screen = Screen::new(terminal.clone(), colour, Box::new(|| (10, 30)));
        screen.update(&chunk("agent_message_chunk", "Here")).unwrap();
        screen.update(&said(json!({ "type": "image", "mimeType": "image/png", "data": "QUJD" }))).unwrap();
        screen.update(&said(json!({ "type": "resource_link", "uri": "file:///a" }))).unwrap();
        screen.update(&chunk("agent_message_chunk", "and on")).unwrap();
        assert_eq!(terminal.shows(), "Here\n[image image/png, 3 bytes]\nfile:///a\nand on", "{colour}");
    }
}

#[test]
fn a_tool_call_is_one_line_that_changes_in_place() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.update(&chunk("agent_message_chunk", "I look.")).unwrap();
    screen.update(&call("a", Some("ls"), "pending")).unwrap();
    screen.update(&call("b", Some("cat"), "in_progress")).unwrap();
    assert_eq!(terminal.shows(), "I look.\n● ls\n● cat");
    screen.update(&call("a", None, "completed")).unwrap();
    screen.update(&call("b", Some("cat file"), "failed")).unwrap();
    assert_eq!(terminal.shows(), "I look.\n✓ ls\n✗ cat file");
    screen.update(&chunk("agent_message_chunk", "Done.")).unwrap();
    screen.turn_ended(Status::Completed, &json!({ "inputTokens": 5, "outputTokens": 2 })).unwrap();
    assert_eq!(terminal.shows(), "I look.\n✓ ls\n✗ cat file\nDone.\n5 tokens in, 2 out");
}

#[test]
fn a_call_above_later_text_gets_one_more_line_when_it_ends() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.update(&call("a", Some("ls"), "pending")).unwrap();
    screen.update(&chunk("agent_message_chunk", "meanwhile")).unwrap();
    screen.update(&call("a", None, "in_progress")).unwrap();
    screen.update(&call("a", None, "completed")).unwrap();
    assert_eq!(terminal.shows(), "● ls\nmeanwhile\n✓ ls");
}

#[test]
fn a_plan_is_a_list_that_changes_in_place() {
    let (terminal, mut screen) = FakeTerminal::new();
    let plan = |first: &str, second: &str| {
        let entries = json!([{ "content": "look", "status": first }, { "content": "act", "status": second }]);
        json!({ "sessionUpdate": "plan", "entries": entries })
    };
    screen.update(&plan("in_progress", "pending")).unwrap();
    assert_eq!(terminal.shows(), "plan\n▸ look\n· act");
    screen.update(&call("a", Some("ls"), "completed")).unwrap();
    screen.update(&plan("completed", "in_progress")).unwrap();
    assert_eq!(terminal.shows(), "plan\n✓ look\n▸ act\n✓ ls");
}

#[test]
fn content_larger_than_the_terminal_is_truncated() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.update(&call("a", Some(&"日本語".repeat(20)), "pending")).unwrap();
    screen.update(&call("a", None, "completed")).unwrap();
    let shown = terminal.shows();
    assert!(shown.starts_with("✓ 日本語") && shown.ends_with('…') && !shown.contains('\n'), "{shown}");
    for number in 0..30 {
        screen.update(&call(&number.to_string(), Some(&format!("call {number}")), "pending")).unwrap();
    }
    screen.update(&call("29", None, "completed")).unwrap();
    assert_eq!(terminal.shows().lines().filter(|line| line.ends_with("call 28")).count(), 1);
    assert!(terminal.shows().contains("✓ call 29"), "{}", terminal.shows());
}

#[test]
fn control_characters_of_an_agent_never_reach_the_terminal() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.update(&chunk("agent_message_chunk", "safe\x1b[2J\x1b]0;title\x07 \u{9b}1mtext")).unwrap();
    screen.update(&call("a", Some("x\x1b[1Ay\nz"), "completed")).unwrap();
    assert_eq!(terminal.shows(), "safe[2J]0;title 1mtext\n✓ x[1Ay z");
}

#[test]
fn without_colour_there_is_none() {
    let mut out = Vec::new();
    let mut screen = Screen::new(&mut out, false, Box::new(|| (10, 30)));
    screen.update(&chunk("agent_thought_chunk", "hm")).unwrap();
    screen.service("no").unwrap();
    screen.invite().unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "hm\nno\n");
}

#[test]
fn prompts_of_others_stand_behind_their_names_and_take_the_place_of_the_prompt_sign() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.invite().unwrap();
    screen.take_back().unwrap();
    screen.prompt(Some("a\x1bn"), "one\ntwo\x1b[2J").unwrap();
    screen.update(&chunk("agent_message_chunk", "Well")).unwrap();
    screen.note("ben has joined").unwrap();
    screen.prompt(None, "more").unwrap();
    assert_eq!(terminal.shows(), "an> one\ntwo[2J\nWell\nben has joined\n> more");
}

#[test]
fn a_change_that_is_asked_about_has_its_colours() {
    let (terminal, mut screen) = FakeTerminal::new();
    screen.ask("The agent asks: edit\n  changes /a\n  - old\n  + new\n  1) Yes\n1-1? ").unwrap();
    assert_eq!(terminal.shows(), "The agent asks: edit\n  changes /a\n  - old\n  + new\n  1) Yes\n1-1? ");
    let parser = terminal.0.borrow();
    let colour = |row| parser.screen().cell(row, 4).unwrap().fgcolor();
    assert_eq!((colour(2), colour(3)), (vt100::Color::Idx(1), vt100::Color::Idx(2)));
    assert_eq!((colour(1), colour(4)), (vt100::Color::Default, vt100::Color::Default));
}

#[test]
fn markdown_is_rendered_as_it_comes() {
    let (terminal, mut screen) = FakeTerminal::new();
    let mut said = |text: &str| screen.update(&chunk("agent_message_chunk", text)).unwrap();
    said("# Ti");
    assert_eq!(terminal.shows(), "Ti");
    said("tle\nSome **bo");
    assert_eq!(terminal.shows(), "Title\nSome **bo");
    said("ld** words that are too many for one line\n");
    assert_eq!(terminal.shows(), "Title\nSome bold words that are too\nmany for one line");
    said("\n```\nlet x = 1;\nlet");
    assert_eq!(
        terminal.shows(),
        "Title\nSome bold words that are too\nmany for one line\n\n  let x = 1;\n  let"
    );
    said(" y;\n```\n- one\n- tw");
    assert!(terminal.shows().ends_with("  let x = 1;\n  let y;\n• one\n• tw"), "{}", terminal.shows());
    screen.update(&call("a", Some("ls"), "completed")).unwrap();
    screen.turn_ended(Status::Completed, &Value::Null).unwrap();
    screen.invite().unwrap();
    assert!(terminal.shows().ends_with("• one\n• tw\n✓ ls"), "{}", terminal.shows());
    let parser = terminal.0.borrow();
    let cell = |row, column| parser.screen().cell(row, column).unwrap();
    assert!(cell(0, 0).bold() && cell(1, 5).bold() && !cell(1, 0).bold());
    assert_eq!(parser.screen().cursor_position(), (9, 0));
}

#[test]
fn a_block_that_is_higher_than_the_screen_scrolls_and_nothing_comes_twice() {
    let (terminal, mut screen) = FakeTerminal::new();
    for number in 0..40 {
        screen.update(&chunk("agent_message_chunk", &format!("line {number}\n"))).unwrap();
        screen.update(&chunk("agent_message_chunk", "*")).unwrap();
        screen.update(&chunk("agent_message_chunk", "*x** ")).unwrap();
    }
    screen.turn_ended(Status::Completed, &Value::Null).unwrap();
    let expected: Vec<_> = (32..40).map(|number| format!("x line {number}")).collect();
    let shown = terminal.shows();
    assert!(shown.starts_with(&expected.join("\n")) && shown.trim_end().ends_with("\nx"), "{shown}");
}

#[test]
fn a_narrower_terminal_leaves_no_old_lines_behind() {
    let terminal = FakeTerminal(Rc::new(RefCell::new(vt100::Parser::new(ROWS, COLUMNS, 0))));
    let columns = Rc::new(std::cell::Cell::new(30));
    let its = columns.clone();
    let mut screen = Screen::new(terminal.clone(), true, Box::new(move || (10, its.get())));
    screen.update(&call("a", Some("twenty letters, about"), "pending")).unwrap();
    // The terminal breaks the line in two, as those do that break lines again.
    columns.set(15);
    terminal.0.borrow_mut().process(b"\x1b[2J\x1b[H* twenty letter\r\ns, about\r\n");
    screen.update(&call("a", None, "completed")).unwrap();
    assert_eq!(terminal.shows(), "✓ twenty lett…");
}

#[test]
fn an_empty_line_stands_between_two_messages() {
    for colour in [true, false] {
        let (terminal, mut screen) = FakeTerminal::new();
        screen.colour = colour;
        let mut say = |kind: &str, id: &str, text: &str| {
            let mut chunk = chunk(kind, text);
            chunk["messageId"] = id.into();
            screen.update(&chunk).unwrap();
        };
        say("agent_thought_chunk", "a", "hm\n");
        say("agent_message_chunk", "b", "One is ");
        say("agent_message_chunk", "b", "cut");
        say("agent_message_chunk", "c", "Two");
        say("agent_message_chunk", "c", "!");
        say("agent_message_chunk", "d", "Three");
        assert_eq!(terminal.shows(), "hm\nOne is cut\n\nTwo!\n\nThree", "colour: {colour}");
        // What stands between them separates them already.
        screen.update(&call("x", Some("ls"), "completed")).unwrap();
        let mut last = chunk("agent_message_chunk", "Four");
        last["messageId"] = "e".into();
        screen.update(&last).unwrap();
        assert!(terminal.shows().ends_with("Three\n✓ ls\nFour"), "{}", terminal.shows());
    }
}

#[test]
fn the_picture_of_run_in_the_docs_is_current() {
    let (rows, columns) = (34, 84);
    let size = [rows, columns].map(|side| NonZero::new(side).unwrap());
    let terminal = FakeTerminal(Rc::new(RefCell::new(vt100::Parser::new(size[0], size[1], 0))));
    let mut typing = terminal.clone();
    let mut screen =
        Screen::new(terminal.clone(), true, Box::new(move || (usize::from(rows), usize::from(columns))));
    typing.write_all(b"$ stdio-bus run --pool claude\n").unwrap();
    for words in [
        "Claude Code 2.1, through the bus",
        "model sonnet, mode default, in ~/shop",
        "/help lists the commands, /quit leaves, Ctrl-C cancels a turn",
    ] {
        screen.note(words).unwrap();
    }
    // The line editor writes the sign and what is typed.
    typing.write_all(b"> The total is wrong when a voucher is used twice. Why?\n").unwrap();
    screen.turn_started().unwrap();
    screen.update(&chunk("agent_thought_chunk", "The voucher is taken off in two places.\n")).unwrap();
    screen.update(&call("a", Some("Read src/cart.rs"), "completed")).unwrap();
    screen.update(&call("b", Some("cargo test cart"), "failed")).unwrap();
    let entries = json!([{ "content": "find where the voucher is taken off", "status": "completed" },
        { "content": "take it off once", "status": "in_progress" },
        { "content": "run the tests again", "status": "pending" }]);
    screen.update(&json!({ "sessionUpdate": "plan", "entries": entries })).unwrap();
    let said = "`total` and `checkout` both take the voucher off. **Only `total` should:**\n";
    screen.update(&chunk("agent_message_chunk", said)).unwrap();
    let diff = json!([{ "type": "diff", "path": "src/cart.rs",
        "oldText": "let due = cart.total() - voucher;\n", "newText": "let due = cart.total();\n" }]);
    let asked = details(&json!({ "content": diff }), "Edit src/cart.rs");
    let choices = "  1) Yes\n  2) Yes, and do not ask again for this file\n  3) No\n1-3? ";
    screen.ask(&format!("The agent asks: Edit src/cart.rs{asked}\n{choices}")).unwrap();
    typing.write_all(b"1\n").unwrap();
    screen.update(&call("c", Some("Edit src/cart.rs"), "completed")).unwrap();
    screen.update(&call("d", Some("cargo test cart"), "completed")).unwrap();
    screen.update(&chunk("agent_message_chunk", "The tests pass. A voucher now counts once.")).unwrap();
    let usage = json!({ "inputTokens": 18_204, "outputTokens": 611 });
    screen.turn_ended(Status::Completed, &usage).unwrap();
    typing.write_all(b"> ").unwrap();
    picture::is_current("run.svg", &picture::of_terminal(terminal.0.borrow().screen()));
}
