//! Stories of the writer: sessions that are opened, killed, opened again, and disks that take nothing.

mod disk;
mod steps;

use std::fs::{self, File};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::last::TAIL_BYTES;
use super::*;
use crate::entry::VERSION;
use crate::reader::Transcript;

const LABEL: &str = "s1";

fn header(bus: &str) -> Header {
    let (session, opened) = (format!("{bus}.a"), "2026-11-18T08:00:00.000Z".to_owned());
    let (pool, agent_session) = ("p".to_owned(), "../a".to_owned());
    Header { v: VERSION, session, pool, agent_session, opened, ..Header::default() }
}

fn says(n: u64, kind: &str, text: &str) -> Heard {
    let update = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
    let message = json!({ "method": "session/update", "params": { "sessionId": "x", "update": update } });
    Heard {
        at: String::new(),
        by: "agent".to_owned(),
        before: Some(n),
        n: Some(n + 1),
        is_replay: false,
        is_again: false,
        missed: 0,
        message: serde_json::value::to_raw_value(&message).unwrap(),
    }
}

fn store(path: &Path) -> Store {
    Store::new(Folder::create(path).unwrap())
}

fn file_of(path: &Path) -> std::path::PathBuf {
    path.join(format!("{}.ndjson", SessionId::of("p", None, "../a").as_str()))
}

fn read(path: &Path) -> Transcript {
    Transcript::read(&fs::read(file_of(path)).unwrap_or_default())
}

/// The texts of a file, with `gap N`, `closed` and `reopened` between them.
fn shown(transcript: &Transcript) -> Vec<String> {
    let show = |entry: &Entry| match &entry.what {
        What::Message(message) => {
            let message: Value = serde_json::from_str(message.get()).unwrap();
            message["params"]["update"]["content"]["text"].as_str().unwrap().to_owned()
        }
        What::Gap(gap) => format!("gap {}", gap.lines.unwrap_or_default()),
        What::Event(Event::Closed) => "closed".to_owned(),
        What::Event(Event::Reopened { session, .. }) => format!("reopened {session}"),
    };
    transcript.entries.iter().map(show).collect()
}

#[test]
fn a_session_that_said_nothing_leaves_no_file() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    assert!(store.heard(LABEL, says(0, "available_commands_update", "commands")));
    assert!(!store.heard("s2", says(0, "agent_message_chunk", "whose?")));
    store.ended(LABEL, String::new(), 0, None);
    assert!(store.folder().list().unwrap().is_empty() && store.is_empty());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "available_commands_update", "commands"));
    store.heard(LABEL, says(1, "agent_message_chunk", "Hel"));
    store.heard(LABEL, says(2, "agent_message_chunk", "lo"));
    store.ended(LABEL, String::new(), 0, None);
    assert_eq!(shown(&read(dir.path())), ["commands", "Hello", "closed"]);
}

#[test]
fn a_session_that_is_opened_again_goes_on_in_its_file_and_is_not_written_twice() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, header("A"));
    first.heard(LABEL, says(0, "agent_message_chunk", "one"));
    first.leave();
    let mut second = store(dir.path());
    second.opened("s9", header("B"));
    second.heard("s9", Heard { is_replay: true, ..says(0, "agent_message_chunk", "one") });
    second.heard("s9", says(1, "agent_message_chunk", "two"));
    second.ended("s9", String::new(), 0, None);
    assert_eq!(shown(&read(dir.path())), ["one", "reopened B.a", "two", "closed"]);
    // What was said elsewhere before is new to another folder.
    let other = tempdir().unwrap();
    let mut third = store(other.path());
    third.opened(LABEL, header("C"));
    third.heard(LABEL, Heard { is_replay: true, ..says(0, "agent_message_chunk", "one") });
    third.heard(LABEL, says(1, "agent_message_chunk", "two"));
    third.heard(LABEL, Heard { is_replay: true, ..says(2, "agent_message_chunk", "onetwo") });
    third.leave();
    assert_eq!(shown(&read(other.path())), ["onetwo"]);
}

/// The header of a life of the session, under this id.
fn of_life(bus: &str, life: &str) -> Header {
    Header { life: Some(life.to_owned()), ..header(bus) }
}

#[test]
fn a_session_that_has_another_name_when_the_writer_comes_back_is_not_written_twice() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, of_life("A", "1.1"));
    first.heard(LABEL, says(0, "plan", "one"));
    first.heard(LABEL, says(1, "plan", "two"));
    drop(first);
    let mut second = store(dir.path());
    second.opened(LABEL, of_life("B", "1.1"));
    for (n, text) in [(0, "one"), (1, "two"), (2, "three")] {
        second.heard(LABEL, Heard { is_again: true, ..says(n, "plan", text) });
    }
    assert_eq!(shown(&read(dir.path())), ["one", "two", "three"]);
    assert_eq!(earlier(&mut second, 3, 1 << 20), (vec!["one".into(), "two".into(), "three".into()], 3, true));
}

#[test]
fn another_life_under_the_same_name_is_not_taken_for_the_one_that_was_not_closed() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, of_life("A", "1.1"));
    first.heard(LABEL, says(0, "plan", "one"));
    first.heard(LABEL, says(1, "plan", "two"));
    drop(first);
    let mut second = store(dir.path());
    second.opened(LABEL, of_life("A", "2.1"));
    // They were said before this writer came, under numbers that the file has already.
    second.heard(LABEL, Heard { is_again: true, ..says(0, "plan", "three") });
    second.heard(LABEL, says(1, "plan", "four"));
    assert_eq!(shown(&read(dir.path())), ["one", "two", "reopened A.a", "three", "four"]);
    let all = ["one", "two", "three", "four"].map(str::to_owned).to_vec();
    assert_eq!(earlier(&mut second, 2, 1 << 20), (all, 2, true));
}

#[test]
fn the_life_of_a_session_is_known_also_when_much_was_said_in_it() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, header("A"));
    first.heard(LABEL, says(0, "plan", "one"));
    first.ended(LABEL, String::new(), 0, None);
    first.opened(LABEL, header("B"));
    for n in 0..40 {
        first.heard(LABEL, says(n, "plan", &"x".repeat(64 << 10)));
    }
    drop(first);
    assert!(length(dir.path()) > 2 * TAIL_BYTES);
    let mut second = store(dir.path());
    second.opened(LABEL, header("B"));
    second.heard(LABEL, Heard { is_again: true, ..says(39, "plan", "again") });
    second.heard(LABEL, says(40, "plan", "last"));
    let shown = shown(&read(dir.path()));
    assert_eq!((shown.len(), &shown[1], shown[43].as_str()), (44, &"closed".to_owned(), "last"));
}

/// A folder that is in the way of the file stands for a disk that takes nothing: it stops root, too.
#[test]
fn what_cannot_be_written_is_a_gap() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    fs::create_dir(file_of(dir.path())).unwrap();
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    store.heard(LABEL, says(1, "plan", "two"));
    assert!(store.failing().is_some());
    fs::remove_dir(file_of(dir.path())).unwrap();
    store.heard(LABEL, says(2, "plan", "three"));
    assert!(store.failing().is_none());
    store.heard(LABEL, Heard { missed: 3, ..says(6, "plan", "four") });
    assert_eq!(shown(&read(dir.path())), ["gap 2", "three", "gap 3", "four"]);
    assert_eq!((store.counted().missed, store.counted().gaps), (5, 2));
}

#[test]
fn what_the_log_drops_while_it_is_told_and_what_is_missed_at_the_end_are_gaps() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    let again = |n: u64| Heard { is_again: true, ..says(n, "agent_message_chunk", &format!("{n} ")) };
    for n in [0, 1, 5, 6] {
        store.heard(LABEL, again(n));
    }
    store.caught_up(LABEL, Some(9), 0);
    store.heard(LABEL, says(9, "agent_message_chunk", "9 "));
    store.ended(LABEL, String::new(), 4, None);
    assert_eq!(shown(&read(dir.path())), ["0 1 ", "gap 3", "5 6 ", "gap 2", "9 ", "gap 4", "closed"]);
    assert_eq!((store.counted().missed, store.counted().gaps), (9, 3));
    // It ends before the log was told, and one line of it could not be told at all.
    store.opened(LABEL, header("B"));
    store.heard(LABEL, again(0));
    store.ended(LABEL, String::new(), 1, Some(5));
    let shown = shown(&read(dir.path()));
    assert_eq!(shown[7..], ["reopened B.a", "0 ", "gap 4", "closed"]);
}

#[test]
fn a_session_of_which_nothing_could_be_told_has_a_file_that_says_so() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.ended(LABEL, String::new(), 2, None);
    assert_eq!(shown(&read(dir.path())), ["gap 2", "closed"]);
}

#[test]
fn a_file_that_was_removed_is_begun_again() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    fs::remove_file(file_of(dir.path())).unwrap();
    store.heard(LABEL, says(1, "plan", "two"));
    let transcript = read(dir.path());
    assert_eq!((shown(&transcript), transcript.header), (vec!["two".to_owned()], Some(header("A"))));
}

#[test]
fn a_header_that_was_not_written_to_its_end_is_written_again() {
    let dir = tempdir().unwrap();
    fs::write(file_of(dir.path()), r#"{"v":1,"session":"#).unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    let transcript = read(dir.path());
    assert_eq!((shown(&transcript), transcript.header), (vec!["one".to_owned()], Some(header("A"))));
}

#[test]
fn what_is_open_is_not_removed_before_its_first_word_and_nothing_before_all_is_known() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, header("A"));
    first.heard(LABEL, says(0, "plan", "one"));
    first.ended(LABEL, String::new(), 0, None);
    let id = SessionId::of("p", None, "../a");
    let mut second = store(dir.path());
    assert!(second.open_ids().is_none());
    second.opened(LABEL, header("B"));
    second.knows_all();
    assert!(second.open_ids().unwrap().contains(&id));
    assert!(first.folder().is_open(&id) && !first.folder().remove(&id).unwrap());
    // What was opened and never used leaves the file as it was.
    let before = length(dir.path());
    second.ended(LABEL, String::new(), 0, None);
    assert!(second.open_ids().unwrap().is_empty() && !first.folder().is_open(&id));
    assert_eq!(length(dir.path()), before);
}

#[test]
fn very_many_sessions_need_few_files() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    for number in 0..2 * OPEN_FILES {
        let agent_session = number.to_string();
        store.opened(&format!("s{number}"), Header { agent_session, ..header("A") });
        store.heard(&format!("s{number}"), says(0, "plan", "one"));
        assert!(store.open_files.len() <= OPEN_FILES);
    }
    store.heard("s0", says(1, "plan", "two"));
    assert_eq!(store.folder().list().unwrap().len(), 2 * OPEN_FILES);
}

/// The file that is closed is found without a look at the others: of so many sessions a look at all of them for each
/// line would take minutes.
#[test]
fn of_very_many_sessions_those_that_said_nothing_for_the_longest_time_are_closed() {
    const SESSIONS: u64 = 4000;
    const ROUNDS: u64 = 5;
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.paper.sync_file = |_| Ok(());
    for number in 0..SESSIONS {
        store.opened(&number.to_string(), Header { agent_session: number.to_string(), ..header("A") });
    }
    for round in 0..ROUNDS {
        for number in 0..SESSIONS {
            store.heard(&number.to_string(), says(round, "plan", "one"));
        }
    }
    // One that is written to stays, and one that ends makes room.
    store.heard(&(SESSIONS - 100).to_string(), says(ROUNDS, "plan", "one"));
    store.ended("3999", String::new(), 0, None);
    let is_open = |number: u64| store.folder().is_open(&SessionId::of("p", None, &number.to_string()));
    let open = (0..SESSIONS).filter(|number| is_open(*number)).count();
    assert_eq!((open, store.open_files.len()), (OPEN_FILES - 1, OPEN_FILES - 1));
    assert!(is_open(SESSIONS - 100) && is_open(3998) && !is_open(SESSIONS - 1 - OPEN_FILES as u64));
}

#[test]
fn a_hundred_thousand_open_sessions_and_a_line_of_64_mib_take_little() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.paper.sync_file = |_| Ok(());
    for number in 0..100_000 {
        store.opened(&number.to_string(), Header { agent_session: number.to_string(), ..header("A") });
    }
    store.knows_all();
    assert!(store.len() == 100_000 && store.open_ids().unwrap().len() == 100_000);
    assert!(store.folder().list().unwrap().is_empty() && store.open_files.is_empty());
    for number in (0..100_000).step_by(500) {
        store.heard(&number.to_string(), says(0, "agent_message_chunk", "one"));
    }
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", &"y".repeat(64 << 20)));
    store.leave();
    let files = store.folder().list().unwrap();
    assert_eq!((files.len(), files.iter().filter(|file| file.bytes > 4096).count()), (201, 1));
    // As much of a string is kept as of any other.
    let (bytes, entries) = (store.counted().bytes, read(dir.path()).entries);
    assert!(bytes < 2 << 20 && entries.len() == 1 && entries[0].cut > Some(62 << 20));
}

/// A life that was written to its end, and a writer of the next one.
fn in_a_second_life(path: &Path) -> Store {
    let mut first = store(path);
    first.opened(LABEL, of_life("A", "1.1"));
    first.heard(LABEL, says(0, "plan", "one"));
    first.heard(LABEL, says(1, "plan", "two"));
    first.ended(LABEL, String::new(), 0, None);
    let mut second = store(path);
    second.opened(LABEL, of_life("B", "2.1"));
    second
}

#[test]
fn what_is_only_set_begins_no_file() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    let other = |n: u64, message: &str| {
        let message = RawValue::from_string(message.to_owned()).unwrap();
        Heard { message, n: Some(n), ..says(n, "", "") }
    };
    store.opened(LABEL, header("A"));
    store.heard(LABEL, other(0, r#"{"id":1,"method":"session/set_mode","params":{"modeId":"plan"}}"#));
    store.heard(LABEL, other(0, r#"{"id":1,"result":{}}"#));
    assert!(store.folder().list().unwrap().is_empty());
    store.heard(LABEL, says(0, "plan", "one"));
    assert_eq!(read(dir.path()).entries.len(), 3);
    // Once somebody has said something, answers are a part of it, also where nothing can be written.
    fs::remove_file(file_of(dir.path())).unwrap();
    fs::create_dir(file_of(dir.path())).unwrap();
    store.heard(LABEL, says(1, "plan", "two"));
    store.heard(LABEL, other(1, r#"{"id":2,"result":{}}"#));
    assert_eq!(store.counted().missed, 2);
}

fn length(path: &Path) -> u64 {
    fs::metadata(file_of(path)).map_or(0, |it| it.len())
}

#[test]
fn a_last_line_without_its_newline_is_there_or_missing_but_not_both() {
    let dir = tempdir().unwrap();
    let path = dir.path();
    let mut writer = store(path);
    writer.opened(LABEL, header("A"));
    writer.heard(LABEL, says(0, "plan", "0"));
    writer.heard(LABEL, says(1, "plan", "1"));
    drop(writer);
    let file = File::options().write(true).open(file_of(path)).unwrap();
    file.set_len(length(path) - 1).unwrap();
    let mut writer = store(path);
    writer.opened(LABEL, header("A"));
    writer.heard(LABEL, says(2, "plan", "2"));
    assert_eq!(shown(&read(path)), ["0", "1", "2"]);
}

/// All pages of what was said before this line, as texts, with how many lines they have and whether nothing is missing.
fn earlier(store: &mut Store, before: u64, bytes: usize) -> (Vec<String>, u64, bool) {
    let (mut texts, mut cursor, mut is_whole) = (Vec::new(), String::new(), true);
    loop {
        let asked = Asked { cursor, before, bytes, older: false };
        let page = store.earlier(LABEL, &asked).unwrap().unwrap();
        let answer: Value = serde_json::from_str(&page.answer(1)).unwrap();
        let params = &answer["params"];
        for line in params["lines"].as_array().unwrap() {
            let (kind, message) = line.as_object().unwrap().iter().next().unwrap();
            let text = message["params"]["update"]["content"]["text"].as_str();
            texts.push(text.map_or_else(|| kind.clone(), str::to_owned));
        }
        is_whole &= params["whole"] == true;
        cursor = params["cursor"].as_str().unwrap().to_owned();
        let upto = params["upto"].as_u64().unwrap();
        if params["end"] == true || upto >= before && !texts.is_empty() {
            return (texts, upto, is_whole);
        }
    }
}

#[test]
fn what_was_said_before_is_read_back_without_a_seam() {
    let dir = tempdir().unwrap();
    let mut first = store(dir.path());
    first.opened(LABEL, header("A"));
    first.heard(LABEL, says(0, "plan", "0"));
    first.heard(LABEL, says(1, "agent_message_chunk", "1 "));
    first.heard(LABEL, says(2, "agent_message_chunk", "2 "));
    // What waits is read back too, and what is asked for may end within a message: then all of it comes.
    assert_eq!(earlier(&mut first, 2, 1), (vec!["0".into(), "1 2 ".into()], 3, true));
    first.heard(LABEL, says(3, "agent_message_chunk", "3 "));
    assert_eq!(earlier(&mut first, 4, 1).0, ["0", "1 2 ", "3 "]);
    assert_eq!(earlier(&mut first, 1, 1 << 20).0, ["0"]);
    let question = r#"{"id":1,"method":"session/request_permission","params":{"sessionId":"x"}}"#;
    let child =
        r#"{"method":"session/update","params":{"sessionId":"A.b","update":{"content":{"text":"c"}}}}"#;
    for (n, message) in [(4, question), (5, child)] {
        let message = RawValue::from_string(message.to_owned()).unwrap();
        first.heard(LABEL, Heard { message, n: Some(n), ..says(4, "", "") });
    }
    assert_eq!(earlier(&mut first, 5, 1).0.last().unwrap(), "c");
    first.ended(LABEL, String::new(), 0, None);
    // Another bus opens it. Its agent tells three lines again, of which the bus still has the last.
    let mut second = store(dir.path());
    second.opened(LABEL, header("B"));
    for n in 0..3 {
        second.heard(LABEL, Heard { is_replay: true, ..says(n, "plan", "replayed") });
    }
    assert_eq!(
        earlier(&mut second, 2, 1),
        (vec!["0".into(), "1 2 ".into(), "3 ".into(), "c".into()], 3, true)
    );
    second.heard(LABEL, says(3, "plan", "4"));
    assert_eq!(earlier(&mut second, 2, 1).1, 3);
    let (texts, upto, is_whole) = earlier(&mut second, 4, 1);
    assert_eq!((texts.last().unwrap().as_str(), upto, is_whole), ("4", 4, true));
    // A writer that takes its place knows the same.
    drop(second);
    let mut third = store(dir.path());
    third.opened(LABEL, header("B"));
    assert_eq!(earlier(&mut third, 4, 100), (texts, 4, true));
    third.heard(LABEL, Heard { missed: 2, ..says(6, "plan", "7") });
    assert!(!earlier(&mut third, 7, 100).2);
    let older = Asked { older: true, ..Asked::default() };
    assert!(third.earlier(LABEL, &older).unwrap().unwrap().is_whole, "it was open before");
    assert!(third.earlier("s9", &older).is_none());
}

/// The bus counts none of these lines, and asks until the end is told.
#[test]
fn the_end_of_what_was_said_in_earlier_lives_is_told() {
    let dir = tempdir().unwrap();
    let mut store = in_a_second_life(dir.path());
    for is_begun in [false, true] {
        if is_begun {
            store.heard(LABEL, says(0, "plan", "new 0"));
        }
        let (mut cursor, mut lines, mut pages) = (String::new(), 0, 0);
        loop {
            let asked = Asked { cursor, before: 0, bytes: 1, older: true };
            let page = store.earlier(LABEL, &asked).unwrap().unwrap();
            let answer: Value = serde_json::from_str(&page.answer(1)).unwrap();
            (lines, pages) = (lines + page.lines.len(), pages + 1);
            if page.is_end {
                break;
            }
            cursor = answer["params"]["cursor"].as_str().unwrap().to_owned();
        }
        assert!((lines, pages > 1) == (2, true), "{lines} lines on {pages} pages");
    }
}
