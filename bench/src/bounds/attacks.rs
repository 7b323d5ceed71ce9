//! The attacks: long lines that are cheap to send and dear to take in, and many short ones in one read.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use kernel_core::limit::CLIENT_NAME_BYTES;
use rpc::write;
use serde_json::{Value, json};

use super::Trial;
use super::attack::{Attack, OF_PUPPETS, puppets, with_puppets};
use super::limits::in_pool;
use super::scene::{Scene, answers, ask_all, guest, pin_names};
use super::script::{
    halves, next_question, piece, prompt_to_say, question, until_prompt_ends, update, update_bytes,
};
use super::transcripts::TRANSCRIPTS;
use crate::bus::{Bus, PATIENCE, config, echo};
use crate::client::{Client, grant};

/// In a pool with so much room one client gets three quarters of it.
const ROOM: usize = 20_000;
const QUIET_GUESTS: usize = 150;
const QUIET_HELD_BYTES: u64 = 128 << 20;
const QUIET_QUEUE_BYTES: usize = 2 << 20;
const QUIET_LINE_BYTES: usize = 8 << 20;
const FLOODERS: usize = 100;
const FLOOD_THREADS: usize = 2;

/// A prompt whose blocks take two bytes each.
pub(super) const BLOCKS: [Attack; 3] = [
    Attack {
        what: "a guest's prompt of 8 MB of blocks",
        line: 8_000_000,
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            let guest = guest(stage.bus, &scene.session, "control")?;
            scene.crowd.add(std::mem::replace(&mut scene.attacker, guest).into_stream()?)?;
            Ok(scene)
        },
        play: |stage, scene| prompt_of_blocks(scene, stage.count(8_000_000)),
        ..OF_PUPPETS
    },
    Attack {
        what: "the owner's prompt of 1 MB of blocks beside 20 guests",
        line: 1_000_000,
        set: |stage| Scene::of_owner(stage.bus)?.joined_by(stage.bus, 20, "control"),
        play: |stage, scene| prompt_of_blocks(scene, stage.count(1_000_000)),
        ..OF_PUPPETS
    },
    Attack {
        what: "a join behind a prompt of 1 MB of blocks",
        line: 1_000_000,
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            prompt_of_blocks(&mut scene, stage.count(1_000_000))?;
            let owner = std::mem::replace(&mut scene.attacker, in_pool(stage.bus, "puppet")?);
            scene.silent.push(owner);
            Ok(scene)
        },
        play: |stage, scene| {
            let session = json!({ "session": scene.session });
            ask_all(&mut scene.attacker, &[("_bus/attach", session.clone()), ("_bus/detach", session)])?;
            Ok(stage.count(1_000_000) as u64)
        },
        ..OF_PUPPETS
    },
];

/// Questions of an agent and answers to them, as long as a line may be.
pub(super) const LONG_QUESTIONS: [Attack; 3] = [
    Attack {
        what: "an answer of 40 MB to a question that is shared",
        line: 40_000_000,
        set: |stage| Scene::of_owner(stage.bus)?.joined_by(stage.bus, 1, "control"),
        play: |stage, scene| {
            let bytes = stage.count(40_000_000);
            prompt_to_say(scene, &[question(1, "")], 1)?;
            let id = next_question(&mut scene.attacker)?;
            let result = r#"{"outcome":{"outcome":"selected","optionId":"yes"},"_meta":["#;
            let mut line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}"#).into_bytes();
            line.extend(b"1,".repeat(bytes / 2));
            line.extend_from_slice(b"1]}}\n");
            scene.attacker.send(&line)?;
            until_prompt_ends(&mut scene.attacker)?;
            Ok(line.len() as u64)
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "a question of 30 MB that the bus itself answers",
        line: 30_000_000,
        config: || {
            let mut config = with_puppets();
            config["pools"][0]["permission"] = json!("allow");
            config
        },
        play: |stage, scene| {
            let bytes = stage.count(30_000_000);
            // The first of its options is long, the second is one that can be chosen.
            let option = r#"[{"optionId":[@here1],"name":"Long","kind":"reject_once"},"#;
            let asked = question(1, "")["text"].as_str().unwrap_or_default().replacen('[', option, 1);
            let [head, tail] = halves(&piece(&asked, 1), "@here");
            let long = [piece(&head, 1), piece("1,", bytes / 2), piece(&tail, 1)];
            prompt_to_say(scene, &long, 1)?;
            until_prompt_ends(&mut scene.attacker)?;
            Ok(bytes as u64)
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "a question with a title of 8 MB, and 10 times the sessions",
        line: 8_000_000,
        set: |stage| Scene::of_owner(stage.bus)?.joined_by(stage.bus, 4, "observe"),
        play: |stage, scene| {
            let bytes = stage.count(8_000_000);
            let [head, tail] = halves(&question(1, "@here"), "@here");
            let long = [piece(&head, 1), piece("title \\u0041", bytes / 12), piece(&tail, 1)];
            prompt_to_say(scene, &long, 1)?;
            let id = next_question(&mut scene.attacker)?;
            // They show what is asked.
            flood(scene, 10, |_| ("_bus/sessions", json!({})))?;
            scene.attacker.send(&grant(&id, &json!("yes")))?;
            until_prompt_ends(&mut scene.attacker)?;
            Ok(bytes as u64)
        },
        ..OF_PUPPETS
    },
];

/// What costs more while many names are pinned or many sessions are open.
pub(super) const NAMES: [Attack; 3] = [
    Attack {
        what: "attach, detach, take, close by a label beside 240,000 names",
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            scene.silent = pin_names(stage.bus, stage.count(240_000), stage.count(60_000))?;
            Ok(scene)
        },
        play: |stage, scene| {
            let methods = ["_bus/attach", "_bus/detach", "_bus/take", "_bus/close"];
            let label = json!({ "session": "s9000000" });
            flood(scene, stage.count(1000), |nth| (methods[nth % methods.len()], label.clone()))
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "3,000 times the room of a worker beside 120,000 names",
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            scene.silent = pin_names(stage.bus, stage.count(120_000), stage.count(60_000))?;
            Ok(scene)
        },
        play: |stage, scene| {
            let room = "{\"jsonrpc\":\"2.0\",\"method\":\"_bus/worker\",\"params\":{\"room\":5}}\n";
            let say = [piece(room, stage.count(3000))];
            scene.attacker.ask("agent/say", json!({ "say": say }))?;
            Ok((room.len() * stage.count(3000)) as u64)
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "500 times session/new over its share beside 15,000 sessions",
        config: || {
            let mut config = with_puppets();
            config["pools"][0]["max_sessions"] = json!(ROOM);
            config
        },
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            scene.silent.push(in_pool(stage.bus, "puppet")?);
            let new = ("session/new", json!({ "cwd": "/", "mcpServers": [] }));
            // A tenth of it where time matters. The pool is then not full, and this is not refused.
            ask_all(&mut scene.attacker, &vec![new; stage.count(ROOM)])?;
            Ok(scene)
        },
        play: |stage, scene| {
            let new = json!({ "cwd": "/", "mcpServers": [] });
            flood(scene, stage.count(500), |_| ("session/new", new.clone()))
        },
        ..OF_PUPPETS
    },
];

/// Many requests in one read.
pub(super) const READS: [Attack; 6] = [
    Attack {
        what: "600 times attach and detach beside 1,000 guests",
        set: |stage| beside_session(stage.bus, stage.count(1000)),
        play: |stage, scene| come_and_go(scene, stage.count(600), "none"),
        ..OF_PUPPETS
    },
    Attack {
        what: "300 joins of a log of 1 MiB",
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            prompt_to_say(&mut scene, &[update(&"x".repeat(100), 4000)], 0)?;
            until_prompt_ends(&mut scene.attacker)?;
            let owner = std::mem::replace(&mut scene.attacker, in_pool(stage.bus, "puppet")?);
            scene.crowd.add(owner.into_stream()?)?;
            Ok(scene)
        },
        play: |stage, scene| come_and_go(scene, stage.count(300), "full"),
        ..OF_PUPPETS
    },
    Attack {
        what: "300 times attach and detach of a session with 1,000 subagents",
        set: |stage| {
            let mut scene = beside_session(stage.bus, 0)?;
            let owner = &mut scene.silent[0];
            let announced = (0..stage.count(1000)).map(|nth| {
                piece(
                    &format!(
                        "{{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{{\"sessionId\":\"@session\",\
                         \"update\":{{\"sessionId\":\"child {nth}\"}}}}}}\n"
                    ),
                    1,
                )
            });
            owner.prompt(&scene.session, &json!({ "say": announced.collect::<Vec<_>>() }).to_string())?;
            until_prompt_ends(owner)?;
            Ok(scene)
        },
        play: |stage, scene| come_and_go(scene, stage.count(300), "none"),
        ..OF_PUPPETS
    },
    Attack {
        what: "1,000 times the status",
        play: |stage, scene| flood(scene, stage.count(1000), |_| ("_bus/status", json!({}))),
        ..OF_PUPPETS
    },
    Attack {
        what: "10 times the sessions, 500 with 300 guests each",
        set: |stage| {
            let mut owner = in_pool(stage.bus, "puppet")?;
            let (sessions, guests) = (stage.count(500), stage.count(300));
            let opened = (0..sessions).map(|_| owner.open_session()).collect::<io::Result<Vec<_>>>()?;
            let scene = Scene::new(owner, opened[0].clone())?;
            for _ in 0..guests {
                let mut guest = stage.bus.client()?;
                let name = "n".repeat(CLIENT_NAME_BYTES);
                guest.ask("_bus/hello", json!({ "client": name, "pool": "puppet" }))?;
                guest.initialize()?.map_err(io::Error::other)?;
                let resume = |id: &String| {
                    ("session/resume", json!({ "sessionId": id, "cwd": "/", "mcpServers": [] }))
                };
                ask_all(&mut guest, &opened.iter().map(resume).collect::<Vec<_>>())?;
                scene.crowd.add(guest.into_stream()?)?;
            }
            Ok(scene)
        },
        play: |_, scene| flood(scene, 10, |_| ("_bus/sessions", json!({}))),
        ..OF_PUPPETS
    },
    Attack {
        what: "params of 30 MB for methods of the bus",
        line: 30_000_000,
        play: |stage, scene| {
            let bytes = stage.count(30_000_000);
            let mut line = Vec::new();
            for method in ["hello", "status", "sessions", "logs", "attach", "close", "drain", "trace"] {
                line.clear();
                line.extend(
                    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"_bus/{method}","params":{{"#).bytes(),
                );
                line.extend_from_slice(br#""session":"s9000000","pool":"none","x":["#);
                line.extend(b"1,".repeat(bytes / 2));
                line.extend_from_slice(b"1]}}\n");
                scene.attacker.send(&line)?;
                answers(&mut scene.attacker, 1)?;
            }
            Ok(line.len() as u64)
        },
        ..OF_PUPPETS
    },
];

/// One line that many are told.
pub(super) const GUESTS: [Attack; 3] = [
    Attack {
        what: "500 questions of 500 guests, and their answers",
        set: |stage| Scene::of_owner(stage.bus)?.joined_by(stage.bus, stage.count(500), "control"),
        play: |stage, scene| {
            let count = stage.count(500);
            let say = (1..=count as u64).map(|id| question(id, "")).collect::<Vec<_>>();
            prompt_to_say(scene, &say, count)?;
            until_prompt_ends(&mut scene.attacker)?;
            let each = say[0]["text"].as_str().map_or(0, str::len);
            Ok((count * count * each) as u64)
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "5,000 updates to 500 guests",
        set: |stage| Scene::of_owner(stage.bus)?.joined_by(stage.bus, stage.count(500), "observe"),
        play: |stage, scene| {
            let (count, guests) = (stage.count(5000), stage.count(500));
            prompt_to_say(scene, &[update("x", count)], 0)?;
            until_prompt_ends(&mut scene.attacker)?;
            Ok((count * (guests + 1) * update_bytes(1)) as u64)
        },
        ..OF_PUPPETS
    },
    Attack {
        what: "8 MB to 150 guests that do not read",
        line: 0,
        config: || {
            let mut config = with_puppets();
            // The system keeps little for a Unix socket, and megabytes for a connection over TCP.
            config["listen"] = json!(["unix://@dir/bus.sock"]);
            config["limits"] =
                json!({ "max_held_bytes": QUIET_HELD_BYTES, "max_output_queue": QUIET_QUEUE_BYTES });
            config
        },
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            for _ in 0..QUIET_GUESTS {
                scene.silent.push(guest(stage.bus, &scene.session, "observe")?);
            }
            Ok(scene)
        },
        play: |_, scene| {
            prompt_to_say(scene, &[update(&"x".repeat(4000), 2000)], 0)?;
            until_prompt_ends(&mut scene.attacker)?;
            Ok(QUIET_HELD_BYTES / 2)
        },
        after: Some(quiet_guests_are_let_go),
    },
];

/// Processes that are asked to be replaced, and connections that never stop.
pub(super) const FLOODS: [Attack; 2] = [
    Attack {
        what: "5,000 times drain",
        config: || {
            let mut pool = echo("spare", 1, &[]);
            pool["max_instances"] = json!(2);
            config(&[pool, puppets("puppet")])
        },
        play: |stage, scene| flood(scene, stage.count(5000), |_| ("_bus/drain", json!({ "pool": "spare" }))),
        ..OF_PUPPETS
    },
    Attack {
        what: "100 connections that never stop asking",
        set: |stage| {
            let mut scene = Scene::of_owner(stage.bus)?;
            for _ in 0..FLOODERS {
                scene.silent.push(in_pool(stage.bus, "puppet")?);
            }
            Ok(scene)
        },
        play: |stage, scene| {
            let until =
                Instant::now() + Duration::from_millis(if stage.count(10) == 10 { 2000 } else { 400 });
            let mut lines = Vec::new();
            while lines.len() < 64 << 10 {
                lines.extend(write::request(1, "any/thing", json!({})));
                lines.extend(write::request(2, "_bus/hello", json!({})));
            }
            let streams = scene.silent.drain(..).map(Client::into_stream).collect::<io::Result<Vec<_>>>()?;
            let mut writers = Vec::new();
            for stream in streams {
                writers.push(stream.try_clone()?);
                scene.crowd.add(stream)?;
            }
            thread::scope(|scope| {
                for part in writers.chunks_mut(FLOODERS / FLOOD_THREADS) {
                    let lines = &lines;
                    scope.spawn(move || {
                        // A line that is cut off is bad, and so is what follows it: also that must be taken.
                        while Instant::now() < until {
                            part.iter_mut().for_each(|stream| drop(stream.write(lines)));
                            thread::sleep(Duration::from_millis(1));
                        }
                    });
                }
            });
            for _ in 0..FLOODERS {
                scene.silent.push(in_pool(stage.bus, "puppet")?);
            }
            // Each may have much on its way in and on its way out.
            Ok((16 * FLOODERS * lines.len()) as u64)
        },
        ..OF_PUPPETS
    },
];

/// All in the order in which they are listed, with the names of their bounds.
pub(super) const ATTACKS: [(&str, &[Attack]); 7] = [
    ("blocks", &BLOCKS),
    ("questions", &LONG_QUESTIONS),
    ("names", &NAMES),
    ("reads", &READS),
    ("guests", &GUESTS),
    ("floods", &FLOODS),
    ("transcripts", &TRANSCRIPTS),
];

fn prompt_of_blocks(scene: &mut Scene, bytes: usize) -> io::Result<u64> {
    let params = format!(r#"{{"sessionId":"{}","prompt":["#, scene.session);
    let mut line = format!(r#"{{"jsonrpc":"2.0","id":"prompt","method":"session/prompt","params":{params}"#)
        .into_bytes();
    line.extend(b"1,".repeat(bytes / 2));
    line.extend_from_slice(b"1]}}\n");
    scene.attacker.send(&line)?;
    until_prompt_ends(&mut scene.attacker)?;
    Ok(line.len() as u64)
}

/// A session of another client with so many guests, and an attacker who is none of them.
fn beside_session(bus: &Bus, guests: usize) -> io::Result<Scene> {
    let mut scene = Scene::of_owner(bus)?.joined_by(bus, guests, "observe")?;
    let owner = std::mem::replace(&mut scene.attacker, in_pool(bus, "puppet")?);
    if guests > 0 {
        scene.crowd.add(owner.into_stream()?)?;
    } else {
        scene.silent.push(owner);
    }
    Ok(scene)
}

/// Sends all of these at once and reads their answers.
fn flood(
    scene: &mut Scene,
    count: usize,
    request: impl Fn(usize) -> (&'static str, Value),
) -> io::Result<u64> {
    let mut lines = Vec::new();
    for nth in 0..count {
        let (method, params) = request(nth);
        lines.extend(write::request(nth as u64, method, params));
    }
    scene.attacker.send(&lines)?;
    answers(&mut scene.attacker, count)?;
    Ok(lines.len() as u64)
}

/// Joins and leaves so many times, all in one go.
fn come_and_go(scene: &mut Scene, times: usize, history: &str) -> io::Result<u64> {
    let attach = json!({ "session": scene.session, "role": "observe", "history": history });
    let detach = json!({ "session": scene.session });
    flood(scene, 2 * times, |nth| {
        if nth % 2 == 0 { ("_bus/attach", attach.clone()) } else { ("_bus/detach", detach.clone()) }
    })
}

/// The guests read nothing, and yet what was kept for them goes, and others have room again.
fn quiet_guests_are_let_go(trial: &mut Trial<'_>, bus: &Bus) -> io::Result<()> {
    let mut watcher = bus.client()?;
    let mut held = || watcher.status().map_or(u64::MAX, |status| status["held_bytes"].as_u64().unwrap_or(0));
    bus.until(PATIENCE / 3, |_| held() <= QUIET_HELD_BYTES / 2);
    trial.report.bytes_at_most("guests: held for those that do not read", held(), QUIET_HELD_BYTES / 2);
    let line = json!({ "text": "x".repeat(QUIET_LINE_BYTES) });
    let answer = bus.client()?.ask_or_reason("any/thing", line)?;
    let got = answer.err().unwrap_or("served".to_owned());
    trial.report.check("guests: a line of 8 MiB of another client", &got, "served", got == "served");
    Ok(())
}
