//! Attacks on what is kept on disk: floods of what is said, a writer that is stopped or killed meanwhile, and many
//! clients that join where most of it is on disk alone.
//!
//! Afterwards each line of the session must be in its transcript, or be counted there among those that are missing.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Trial;
use super::attack::{Attack, OF_PUPPETS, Stage, with_puppets};
use super::limits::in_pool;
use super::scene::Scene;
use super::script::{prompt_to_say, until_prompt_ends, update, update_bytes};
use crate::bus::{Bus, PATIENCE};
use crate::transcript;

const UPDATES: usize = 20_000;
const UPDATE_BYTES: usize = 1000;
/// No name of a member has it, so that it can be counted in a line.
const FILLER: u8 = b'~';
/// Half of this waits for the writer, which is more than a flood: nothing of it may be missing.
const ROOM_BYTES: usize = 64 << 20;
/// A transcript of 40 MB is made of so many turns, each of which has room in the queue of the writer.
const TURNS: usize = 40;
const UPDATES_OF_TURN: usize = 1000;
const JOINERS: usize = 10;

pub(super) const TRANSCRIPTS: [Attack; 4] = [
    Attack {
        what: "20,000 updates of 1 KB that are kept",
        config: || {
            let mut config = with_history();
            config["limits"] = json!({ "max_output_queue": ROOM_BYTES });
            config
        },
        set,
        play: |stage, scene| {
            begin_flood(stage, scene)?;
            end_flood(scene)?;
            until_written(stage.bus, scene)?;
            Ok(flood_bytes(stage))
        },
        after: Some(all_is_there),
        ..OF_PUPPETS
    },
    Attack {
        what: "20,000 updates while the writer is stopped",
        config: with_history,
        set,
        play: |stage, scene| {
            let writer = writer(stage.bus, None)?;
            kill(writer, Signal::SIGSTOP)?;
            begin_flood(stage, scene)?;
            let ended = end_flood(scene);
            kill(writer, Signal::SIGCONT)?;
            ended?;
            until_written(stage.bus, scene)?;
            Ok(flood_bytes(stage))
        },
        after: Some(all_is_there_or_counted),
        ..OF_PUPPETS
    },
    Attack {
        what: "twice 20,000 updates, and each time the writer is killed",
        config: with_history,
        set,
        play: |stage, scene| {
            let mut pid = writer(stage.bus, None)?;
            for _ in 0..2 {
                begin_flood(stage, scene)?;
                kill(pid, Signal::SIGKILL)?;
                end_flood(scene)?;
                pid = writer(stage.bus, Some(pid))?;
            }
            until_written(stage.bus, scene)?;
            Ok(2 * flood_bytes(stage))
        },
        after: Some(all_is_there_or_counted),
        ..OF_PUPPETS
    },
    Attack {
        what: "10 clients join a session with 40 MB on disk",
        config: with_history,
        set: |stage| {
            let mut scene = set(stage)?;
            for _ in 0..stage.count(TURNS) {
                prompt_to_say(&mut scene, &[filler(UPDATES_OF_TURN)], 0)?;
                end_flood(&mut scene)?;
                until_written(stage.bus, &mut scene)?;
            }
            Ok(scene)
        },
        play: |stage, scene| {
            // Each turn says the text of an update in its prompt, too.
            let due = stage.count(TURNS) * (UPDATES_OF_TURN + 1) * UPDATE_BYTES;
            let session = &scene.session;
            let join = || heard_by_joiner(stage.bus, session);
            let heard = thread::scope(|scope| {
                let joiners: Vec<_> = (0..JOINERS).map(|_| scope.spawn(join)).collect();
                let heard = joiners.into_iter().map(|it| it.join().expect("a joiner does not panic"));
                heard.collect::<io::Result<Vec<_>>>()
            })?;
            if let Some(other) = heard.iter().find(|heard| **heard != due) {
                return Err(io::Error::other(format!("one that joins hears {other} bytes of {due}")));
            }
            Ok(due as u64)
        },
        after: Some(all_is_there),
        ..OF_PUPPETS
    },
];

fn with_history() -> Value {
    let mut config = with_puppets();
    config["history"] = transcript::in_folder();
    config
}

/// A session of the attacker, when there is a writer.
fn set(stage: &Stage<'_>) -> io::Result<Scene> {
    writer(stage.bus, None)?;
    Scene::of_owner(stage.bus)
}

/// The writer once it is up, and is another process than this one.
fn writer(bus: &Bus, before: Option<Pid>) -> io::Result<Pid> {
    let mut pid = None;
    bus.until(PATIENCE, |bus| {
        let status = bus.status().unwrap_or_default();
        let up = status["history"]["pid"].as_i64().filter(|_| status["history"]["state"] == "up");
        pid =
            up.and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw).filter(|pid| Some(*pid) != before);
        pid.is_some()
    });
    pid.ok_or_else(|| io::Error::other("nobody writes transcripts"))
}

fn filler(times: usize) -> Value {
    update(&char::from(FILLER).to_string().repeat(UPDATE_BYTES), times)
}

fn begin_flood(stage: &Stage<'_>, scene: &mut Scene) -> io::Result<()> {
    prompt_to_say(scene, &[filler(stage.count(UPDATES))], 0)
}

fn end_flood(scene: &mut Scene) -> io::Result<()> {
    until_prompt_ends(&mut scene.attacker)
}

fn flood_bytes(stage: &Stage<'_>) -> u64 {
    (stage.count(UPDATES) * update_bytes(UPDATE_BYTES)) as u64
}

/// Plays one more turn, and waits until the transcript ends with what is said in it: what was said before is written by
/// then, or missing.
fn until_written(bus: &Bus, scene: &mut Scene) -> io::Result<()> {
    let mark = format!("mark {:016x}", fastrand::u64(..));
    prompt_to_say(scene, &[update(&mark, 1)], 0)?;
    end_flood(scene)?;
    // The prompt has it as well, but not at the beginning of a text.
    transcript::until_it_ends_with(bus, &format!(r#""text":"{mark}""#))
}

/// How many bytes of filler one hears that joins, until that is answered.
fn heard_by_joiner(bus: &Bus, session: &str) -> io::Result<usize> {
    let mut joiner = in_pool(bus, "puppet")?;
    joiner.send(&rpc::write::request(
        "join",
        "_bus/attach",
        json!({ "session": session, "role": "observe" }),
    ))?;
    let mut heard = 0;
    loop {
        let line = joiner.line()?;
        if memchr::memmem::find(&line[..line.len().min(200)], br#""id":"join""#).is_some() {
            let is_whole = memchr::memmem::find(line, br#""truncated":false"#).is_some();
            let refused = || io::Error::other(String::from_utf8_lossy(line).into_owned());
            return is_whole.then_some(heard).ok_or_else(refused);
        }
        heard += memchr::memchr_iter(FILLER, line).count();
    }
}

/// What the transcript has of its session.
#[derive(Default)]
struct Written {
    /// How many lines the session had, by the numbers in the transcript.
    said: u64,
    there: u64,
    missing: u64,
    /// How many turns it had. Their answers are no lines, but one that is known to be missing is counted as such.
    turns: u64,
}

impl Written {
    fn read(bus: &Bus) -> io::Result<Written> {
        let mut written = Written::default();
        let mut filler = 0;
        for line in BufReader::new(File::open(transcript::path(bus)?)?).split(b'\n') {
            // One that the writer has not ended before it was killed is none.
            let Ok(entry) = serde_json::from_slice::<Value>(&line?) else { continue };
            written.said = written.said.max(entry["n"].as_u64().unwrap_or(0));
            written.missing += entry["gap"]["lines"].as_u64().unwrap_or(0);
            let message = &entry["message"];
            match message["params"]["update"]["content"]["text"].as_str() {
                Some(text) if text.starts_with(char::from(FILLER)) => filler += text.len() as u64,
                Some(_) => written.there += 1,
                None => written.turns += u64::from(message["method"] == "session/prompt"),
            }
        }
        written.there += written.turns + filler / UPDATE_BYTES as u64;
        Ok(written)
    }

    fn lost(&self) -> u64 {
        self.said.saturating_sub(self.there + self.missing)
    }

    fn doubled(&self) -> u64 {
        (self.there + self.missing).saturating_sub(self.said + self.turns)
    }
}

fn all_is_there(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let written = all_is_counted(trial, bus)?;
    trial.report.at_most("transcripts: counted as missing", written.missing, 0);
    Ok(())
}

fn all_is_there_or_counted(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let written = all_is_counted(trial, bus)?;
    trial.report.note("transcripts: counted as missing", written.missing);
    Ok(())
}

fn all_is_counted(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<Written> {
    let written = Written::read(bus)?;
    let of = format!("of {} lines", written.said);
    trial.report.at_most(&format!("transcripts: neither on disk nor counted {of}"), written.lost(), 0);
    trial.report.at_most(&format!("transcripts: on disk twice {of}"), written.doubled(), 0);
    Ok(written)
}
