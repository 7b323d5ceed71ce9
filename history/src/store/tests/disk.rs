//! Disks that take nothing, a part, or lose what they took.

use std::io::Write;

use super::*;

#[test]
fn what_the_disk_took_and_may_have_lost_is_a_gap() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    store.sync();
    assert!(store.failing().is_none());
    store.paper.sync_file = |_| Err(io::Error::from_raw_os_error(nix::libc::EIO));
    store.heard(LABEL, says(1, "plan", "two"));
    store.heard(LABEL, says(2, "plan", "three"));
    store.sync();
    let why = store.failing().unwrap().to_owned();
    assert!(why.contains("os error 5"), "{why}");
    // As long as the disk does not say that all is well, the status says so.
    store.sync();
    store.heard(LABEL, says(3, "plan", "four"));
    assert!(store.failing().is_some());
    store.paper.sync_file = File::sync_data;
    store.sync();
    assert!(store.failing().is_none());
    assert_eq!(shown(&read(dir.path())), ["one", "two", "three", "gap 2", "four"]);
    assert_eq!((store.counted().missed, store.counted().gaps), (2, 1));
    // Also when the session ends with it.
    store.paper.sync_file = |_| Err(io::Error::from_raw_os_error(nix::libc::ENOSPC));
    store.heard(LABEL, says(4, "plan", "five"));
    store.ended(LABEL, String::new(), 0, None);
    // That it was closed is no line of it.
    assert!(store.failing().is_some() && store.counted().missed == 3);
    assert_eq!(shown(&read(dir.path()))[5..], ["five", "closed"]);
    store.paper.sync_file = File::sync_data;
    store.knows_all();
    assert!(store.is_owing() && store.open_ids().unwrap().contains(&SessionId::of("p", None, "../a")));
    store.sync();
    assert!(!store.is_owing() && store.failing().is_none());
    assert_eq!(shown(&read(dir.path()))[5..], ["five", "closed", "gap 1", "closed"]);
}

pub(super) fn full(_: &mut File, _: &[u8]) -> (usize, io::Result<()>) {
    (0, Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)))
}

/// Takes a part of it before the disk is full.
pub(super) fn nearly_full(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let part = bytes.len() * 2 / 3;
    file.write_all(&bytes[..part]).unwrap();
    (part, Err(io::Error::from_raw_os_error(nix::libc::ENOSPC)))
}

pub(super) fn sync_fails(_: &File) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(nix::libc::EIO))
}

/// The bus tells a new writer all lines of the second life, which has so many.
fn told_again(path: &Path, lines: u64) -> Vec<String> {
    let mut third = store(path);
    third.opened(LABEL, of_life("B", "2.1"));
    for n in 0..lines {
        third.heard(LABEL, Heard { is_again: true, ..says(n, "plan", &format!("new {n}")) });
    }
    shown(&read(path))
}

#[test]
fn a_life_that_could_not_be_begun_is_begun_as_soon_as_something_is_written() {
    let dir = tempdir().unwrap();
    let mut second = in_a_second_life(dir.path());
    let append = std::mem::replace(&mut second.paper.append, full);
    second.heard(LABEL, says(0, "plan", "new 0"));
    second.paper.append = append;
    second.heard(LABEL, says(1, "plan", "new 1"));
    drop(second);
    let expected = ["one", "two", "closed", "reopened B.a", "gap 1", "new 1"];
    assert_eq!(shown(&read(dir.path())), expected);
    assert_eq!(told_again(dir.path(), 2), expected);
}

#[test]
fn a_life_whose_beginning_the_disk_has_lost_is_begun_once_more() {
    let dir = tempdir().unwrap();
    let mut second = in_a_second_life(dir.path());
    let before = length(dir.path());
    second.heard(LABEL, says(0, "plan", "new 0"));
    second.paper.sync_file = sync_fails;
    second.sync();
    File::options().write(true).open(file_of(dir.path())).unwrap().set_len(before).unwrap();
    second.heard(LABEL, says(1, "plan", "new 1"));
    drop(second);
    let expected = ["one", "two", "closed", "reopened B.a", "gap 1", "new 1"];
    assert_eq!(shown(&read(dir.path())), expected);
    assert_eq!(told_again(dir.path(), 2), expected);
}

#[test]
fn a_header_that_the_disk_has_lost_is_written_once_more() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    store.paper.sync_file = sync_fails;
    store.sync();
    store.heard(LABEL, says(1, "plan", "two"));
    let transcript = read(dir.path());
    assert_eq!(
        (shown(&transcript), transcript.bad_lines),
        (vec!["one".into(), "gap 1".into(), "two".into()], 0)
    );
    store.sync();
    File::options().write(true).open(file_of(dir.path())).unwrap().set_len(0).unwrap();
    store.heard(LABEL, says(2, "plan", "three"));
    let transcript = read(dir.path());
    assert_eq!(
        (shown(&transcript), transcript.header),
        (vec!["gap 2".into(), "three".into()], Some(header("A")))
    );
}

#[test]
fn what_a_session_ends_with_is_written_when_the_disk_takes_it_again() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    let append = std::mem::replace(&mut store.paper.append, full);
    store.heard(LABEL, says(1, "plan", "two"));
    store.ended(LABEL, "2026-11-18T09:00:00.000Z".into(), 2, None);
    assert!(store.is_owing() && store.failing().is_some() && store.counted().sessions == 0);
    store.sync();
    assert_eq!(shown(&read(dir.path())), ["one"]);
    // It stays in its order also when the session goes on meanwhile.
    store.opened(LABEL, header("B"));
    store.heard(LABEL, says(0, "plan", "three"));
    assert!(!store.is_owing());
    store.paper.append = append;
    store.heard(LABEL, says(1, "plan", "four"));
    let transcript = read(dir.path());
    assert_eq!(shown(&transcript), ["one", "gap 3", "closed", "reopened B.a", "gap 1", "four"]);
    assert_eq!(transcript.entries[1].at, "2026-11-18T09:00:00.000Z");
    assert_eq!((store.counted().missed, store.counted().sessions), (4, 1));
    store.paper.append = full;
    store.ended(LABEL, String::new(), 1, None);
    store.paper.append = append;
    store.sync();
    assert!(!store.is_owing() && store.failing().is_none());
    assert_eq!(shown(&read(dir.path()))[6..], ["gap 1", "closed"]);
    // Who has removed a transcript does not want the end of it.
    store.opened(LABEL, header("C"));
    store.heard(LABEL, says(0, "plan", "five"));
    store.paper.append = full;
    store.ended(LABEL, String::new(), 1, None);
    store.paper.append = append;
    fs::remove_file(file_of(dir.path())).unwrap();
    store.sync();
    assert!(!store.is_owing() && store.folder().list().unwrap().is_empty());
}

#[test]
fn a_session_of_which_nothing_could_be_written_is_one_gap_in_its_next_life() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, of_life("A", "1.1"));
    let append = std::mem::replace(&mut store.paper.append, full);
    store.heard(LABEL, says(0, "plan", "one"));
    store.heard(LABEL, says(1, "plan", "two"));
    store.ended(LABEL, String::new(), 0, None);
    store.opened(LABEL, of_life("B", "2.1"));
    store.paper.append = append;
    store.heard(LABEL, says(0, "plan", "new 0"));
    let transcript = read(dir.path());
    assert_eq!(
        (shown(&transcript), transcript.header),
        (vec!["gap 2".into(), "new 0".into()], Some(of_life("B", "2.1")))
    );
    drop(store);
    assert_eq!(told_again(dir.path(), 1), ["gap 2", "new 0"]);
}

#[test]
fn what_waits_for_a_disk_is_bounded() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    let append = std::mem::replace(&mut store.paper.append, full);
    for number in 0..OWED_MAX + 10 {
        store.opened(LABEL, Header { agent_session: number.to_string(), ..header("A") });
        store.heard(LABEL, says(0, "plan", "lost"));
    }
    store.ended(LABEL, String::new(), 0, None);
    assert_eq!(store.owed.len(), OWED_MAX);
    // Neither does one that is opened again and again grow.
    for n in 0..200 {
        store.opened(LABEL, of_life("A", &n.to_string()));
        store.heard(LABEL, says(0, "plan", "lost"));
    }
    store.ended(LABEL, String::new(), 0, None);
    assert!(store.owed.iter().all(|session| session.debt.len() <= 64));
    store.paper.append = append;
    store.sync();
    assert!(store.owed.is_empty() && store.failing().is_none());
    let gaps = shown(&read(dir.path()))
        .into_iter()
        .filter_map(|text| text.strip_prefix("gap ")?.parse::<u64>().ok());
    assert_eq!(gaps.sum::<u64>(), 200);
}

#[test]
fn a_writer_that_leaves_says_what_is_missing() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "plan", "one"));
    let append = std::mem::replace(&mut store.paper.append, full);
    store.heard(LABEL, says(1, "plan", "two"));
    store.paper.append = append;
    store.leave();
    assert_eq!(shown(&read(dir.path())), ["one", "gap 1"]);
    // What the disk says at the last moment is not lost either, and nothing stands there twice.
    store.heard(LABEL, says(2, "plan", "three"));
    store.sync();
    store.heard(LABEL, says(3, "agent_message_chunk", "four"));
    store.paper.sync_file = |_| {
        static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let is_first = CALLS.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        if is_first { Err(io::Error::from_raw_os_error(nix::libc::EIO)) } else { Ok(()) }
    };
    store.leave();
    assert_eq!(shown(&read(dir.path())), ["one", "gap 1", "three", "four", "gap 1"]);
    assert!(store.failing().is_none());
}

#[test]
fn what_was_taken_of_a_write_that_failed_is_not_missing() {
    let dir = tempdir().unwrap();
    let mut store = store(dir.path());
    store.opened(LABEL, header("A"));
    store.heard(LABEL, says(0, "available_commands_update", "commands"));
    store.heard(LABEL, says(1, "available_commands_update", "commands again"));
    let append = std::mem::replace(&mut store.paper.append, nearly_full);
    store.heard(LABEL, says(2, "plan", "one"));
    store.paper.append = append;
    store.heard(LABEL, says(3, "plan", "two"));
    let transcript = read(dir.path());
    let (texts, missed) = (shown(&transcript), store.counted().missed);
    assert_eq!(transcript.header, Some(header("A")));
    assert_eq!(texts.len() as u64 - 1 + missed, 4, "{texts:?}");
    assert!(texts[0] == "commands" && texts.contains(&format!("gap {missed}")), "{texts:?}");
}
