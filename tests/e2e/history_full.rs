//! A transcript on a disk that is really full: a file system of 1 MiB, which only the bus sees.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Bus, Client, Puppet, request, run, skips};
use crate::history::{files, said, turn, writes};
use crate::history_faults::{folder_of, joined, with_session};

/// A shell that mounts a small disk at `$DISK`, which nobody else sees, and becomes the bus.
const ON_A_SMALL_DISK: &str = concat!(
    r#"exec unshare --mount sh -c 'mount -t tmpfs -o size=1m,mode=700 history "$DISK" && exec "$0" "$@"' "#,
    r#""$0" "$@""#
);
/// The disk is filled so often. Each time a file of this name and length is removed, so that there is room again.
const ROUNDS: [&str; 2] = ["one", "two"];
const BALLAST_BYTES: usize = 300 << 10;
const LONG_BYTES: usize = 32 << 10;
const MANY: usize = 20;
/// How a turn ends, as a transcript has it.
const END: &str = "agent: end_turn";

/// A conversation that is written to a small disk.
struct Talk {
    bus: Bus,
    puppet: Puppet,
    ann: Client,
    session: String,
    /// The disk, as it is seen from outside.
    disk: PathBuf,
    /// All that was said so far, as a transcript has it.
    said: Vec<String>,
    _dir: TempDir,
}

impl Talk {
    /// `None`: nobody may mount anything here.
    fn begin() -> Option<Talk> {
        let dir = tempfile::tempdir().unwrap();
        let mut tries = Command::new("sh");
        tries.args(["-c", ON_A_SMALL_DISK, "true"]).env("DISK", dir.path());
        if !geteuid().is_root() || !tries.output().is_ok_and(|output| output.status.success()) {
            skips("root, who may mount a disk in a namespace of its own");
            return None;
        }
        let mut config = folder_of(dir.path());
        config["limits"] = json!({ "session_log_bytes": 4096 });
        let plan = Bus::plan(config).after(ON_A_SMALL_DISK).env("DISK", dir.path().to_str().unwrap());
        let bus = plan.ignores_stderr().start();
        let disk = PathBuf::from(format!("/proc/{}/root{}", bus.pid(), dir.path().display()));
        for round in ROUNDS {
            fs::write(disk.join(round), vec![0; BALLAST_BYTES]).unwrap();
        }
        let (puppet, ann, session) = with_session(&bus);
        Some(Talk { bus, puppet, ann, session, disk, said: Vec::new(), _dir: dir })
    }

    /// A turn with this text, in which all is answered.
    fn turn(&mut self, text: &str) {
        turn(&mut self.ann, &mut self.puppet, &self.session, text);
        self.said.extend([format!("ann: {text}"), format!("agent: one two {text}"), END.to_owned()]);
    }

    fn turns(&mut self, name: &str, bytes: usize) {
        (0..MANY).for_each(|number| self.turn(&format!("<{name} {number}{}>", "x".repeat(bytes))));
    }

    fn is_full(&mut self) {
        self.bus.until("the status says that the disk is full", || {
            let failing = self.ann.status()["history"]["counted"]["failing"].clone();
            failing.as_str().is_some_and(|why| why.contains("No space left"))
        });
    }

    fn kills_the_writer(&mut self) {
        let pid = writes(&self.bus, &mut self.ann);
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let (bus, ann) = (&self.bus, &mut self.ann);
        bus.until("it is gone", || ann.status()["history"]["pid"].as_i64() != Some(pid.into()));
        writes(bus, ann);
    }

    /// The entries of the transcript, as far as its lines are whole, and its bytes.
    fn kept(&self) -> (Vec<String>, Vec<u8>) {
        let bytes = files(&self.disk).first().map(|file| fs::read(file).unwrap()).unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        (said(&lines.collect::<Vec<_>>()), bytes)
    }

    fn until_all_is_kept_since(&self, first: &str) {
        let said = since(&self.said, first);
        self.bus.until("it is kept", || since(&self.kept().0, first) == said);
    }

    /// `sessions show` prints the texts of these entries, and none of those texts.
    fn shows(&self, entries: &[String], others: &[String]) {
        let config = self.bus.folder().join("reads.json");
        let reads =
            json!({ "history": { "folder": self.disk }, "pools": [{ "id": "a", "command": "true" }] });
        fs::write(&config, reads.to_string()).unwrap();
        let file = files(&self.disk).remove(0);
        let id = Path::file_stem(&file).unwrap().to_str().unwrap();
        let args = ["sessions", "show", id, "--config", config.to_str().unwrap()];
        let output = run(self.bus.folder(), &args, "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let shown = String::from_utf8(output.stdout).unwrap();
        for text in spoken(entries).filter_map(|entry| Some(entry.split_once(": ")?.1)) {
            assert!(shown.contains(text), "{text} is not shown");
        }
        assert!(!others.iter().any(|text| shown.contains(text)), "{others:?} is shown");
    }

    /// What another client hears that joins: the texts, and whether something is missing.
    fn heard(&self) -> (String, bool) {
        let mut ben = self.bus.client();
        ben.sends(&request(5, "_bus/attach", json!({ "session": "s1" })));
        joined(&mut ben, &self.session)
    }
}

/// The entries from this one on.
fn since<'a>(entries: &'a [String], first: &str) -> &'a [String] {
    let at = entries.iter().position(|entry| entry == first);
    &entries[at.unwrap_or(entries.len())..]
}

/// Those of these entries that have texts: prompts, and what the agent says.
fn spoken(entries: &[String]) -> impl Iterator<Item = &String> {
    entries.iter().filter(|entry| *entry != END && !entry.starts_with("bus: {"))
}

fn texts(entries: &[String]) -> String {
    spoken(entries).filter_map(|entry| Some(entry.split_once(": ")?.1)).collect()
}

/// How many lines of a session these entries were: a prompt is one, and what the agent says has come in three chunks.
fn lines(entries: &[String]) -> u64 {
    spoken(entries).map(|entry| if entry.starts_with("ann: ") { 1 } else { 3 }).sum()
}

/// The conversation fills the disk, and goes on while it is full and when there is room again. Returns the gap.
fn fills_the_disk(talk: &mut Talk, round: &str, is_killed: bool) -> Value {
    let (said_before, kept_before) = (talk.said.len(), talk.kept().0.len());
    talk.turns(&format!("{round} long"), LONG_BYTES);
    talk.is_full();
    let (before, bytes) = talk.kept();
    let newly = &before[kept_before..];
    assert!((1..3 * MANY).contains(&newly.len()), "the transcript itself has filled the disk");
    assert!(talk.said[said_before..].starts_with(newly), "other texts are on the disk than were said");

    talk.turns(&format!("{round} full"), 0);
    if is_killed {
        // The next writer finds what is there, and is told what the log has.
        talk.kills_the_writer();
        talk.is_full();
        talk.turns(&format!("{round} later"), 0);
    }
    assert!(talk.kept().1 == bytes, "the disk is full, and yet the transcript has changed");
    talk.shows(&before, &[format!("<{round} full"), format!("<{round} later")]);
    let (heard, is_truncated) = talk.heard();
    let rest = heard.strip_prefix(&texts(&before)).expect("what is on the disk comes first");
    let lacking = &talk.said[said_before + newly.len()..];
    assert!(is_truncated && !rest.is_empty() && texts(lacking).ends_with(rest), "{rest}");

    fs::remove_file(talk.disk.join(round)).unwrap();
    let found = format!("ann: <{round} found>");
    talk.turn(&found["ann: ".len()..]);
    talk.until_all_is_kept_since(&found);
    talk.bus.until("all is well", || talk.ann.status()["history"]["counted"]["failing"].is_null());
    if is_killed {
        talk.kills_the_writer();
    }
    talk.turns(&format!("{round} again"), 0);
    talk.until_all_is_kept_since(&found);
    let (kept, now) = talk.kept();
    assert!(now.starts_with(&bytes) && kept.starts_with(&before), "what was on the disk has changed");
    let rest = since(&talk.said, &found);
    assert!(talk.heard().0.ends_with(&texts(rest)));

    // What was said between is missing, and the transcript says how much of it.
    let lost = &talk.said[said_before + newly.len()..talk.said.len() - rest.len()];
    let between = &kept[before.len()..kept.len() - rest.len()];
    let (gap, there) = between.split_first().expect("a gap");
    let mut in_order = lost.iter();
    assert!(there.iter().all(|entry| in_order.any(|one| one == entry)), "{there:?}");
    let gap: Value = serde_json::from_str(gap.strip_prefix("bus: ").expect("a gap")).unwrap();
    let missing = lines(lost) - lines(there);
    // An answer to a prompt is no line of the session, but counts where the writer knows that it could not be written.
    let answers = lost.iter().filter(|entry| *entry == END).count() as u64;
    let counted = gap["lines"].as_u64().unwrap();
    assert!((missing..=missing + answers).contains(&counted), "{missing} and {answers} of {gap}");
    talk.shows(&[format!("bus: {counted} lines missing here: ")], &[]);
    gap
}

#[test]
fn a_disk_that_is_full_is_a_gap_and_what_it_had_stays_also_if_the_writer_is_killed() {
    let Some(mut talk) = Talk::begin() else { return };
    talk.turns("first", 0);
    talk.until_all_is_kept_since("ann: <first 0>");
    let gap = fills_the_disk(&mut talk, ROUNDS[0], false);
    assert!(gap["why"].as_str().unwrap().contains("No space left"), "{gap}");
    // What the one that was killed knew of the disk is gone with it.
    let gap = fills_the_disk(&mut talk, ROUNDS[1], true);
    assert_eq!(gap["why"], "the writer was away");
}
