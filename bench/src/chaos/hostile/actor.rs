//! A client of the hostile run: it does one thing or another at random.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rpc::write;
use serde_json::{Value, json};

use super::hearing::Hearing;
use super::world::World;
use crate::puppet::{Script, log_uniform};
use crate::sealed::{Place, Seal};

/// The pools, and whether others may join their sessions.
pub(super) const POOLS: [(&str, bool); 3] = [("shared", true), ("other", true), (PRIVATE, false)];
pub(super) const PRIVATE: &str = "private";
/// The longest text of most requests.
pub(super) const SHORT_BYTES: usize = 4 << 10;
const UPDATES_MAX: u32 = 8;
const IN_FLIGHT_MAX: usize = 3;
const SESSIONS_MAX: usize = 5;
pub(super) const KNOWN_MAX: usize = 40;

/// A client, but for its connection.
pub(super) struct Actor {
    pub(super) number: u32,
    /// No other connection has had it.
    pub(super) connection: u64,
    pub(super) rng: Rng,
    next_id: u64,
    pub(super) waiting: BTreeMap<u64, (Asked, Instant)>,
    pub(super) parts: HashMap<String, Part>,
    /// Sessions that it has left on purpose: it hears nothing of them any more.
    pub(super) left: HashSet<String>,
    /// Sessions that it was in and that ended otherwise.
    pub(super) past: HashSet<String>,
    /// It reads nothing until then.
    pub(super) reads_again: Instant,
}

/// What it does when it does not only ask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Goes,
    /// Breaks its connection and comes back.
    Resets,
}

pub(super) struct Part {
    pub(super) hearing: Hearing,
    /// It prompts and is asked.
    pub(super) controls: bool,
    pub(super) owns: bool,
    /// A prompt of its own is in flight.
    pub(super) prompts: bool,
    /// It has been let in. Before, it does nothing there.
    pub(super) is_in: bool,
    /// It has asked to leave, and does nothing more there.
    pub(super) leaves: bool,
    /// The last turn that was thought of when it came.
    pub(super) since: u64,
}

pub(super) enum Asked {
    Hello,
    Initialize,
    Plain {
        turn: u64,
        bytes: usize,
    },
    New {
        shared: bool,
    },
    /// `owner` is the connection that may use it alone.
    Join {
        session: String,
        owner: Option<u64>,
    },
    Take {
        session: String,
    },
    Leave {
        session: String,
        for_good: bool,
    },
    Prompt {
        session: String,
        script: Script,
        since: u64,
    },
}

/// The agent's own id in the id that clients use.
pub(super) fn agents(session: &str) -> &str {
    session.split_once('.').map_or(session, |(_, agents)| agents)
}

impl Actor {
    pub(super) fn new(number: u32, seed: u64) -> Actor {
        Actor {
            number,
            connection: u64::from(number),
            rng: Rng::with_seed(seed),
            next_id: 1,
            waiting: BTreeMap::new(),
            parts: HashMap::new(),
            left: HashSet::new(),
            past: HashSet::new(),
            reads_again: Instant::now(),
        }
    }

    /// The first lines on a connection.
    pub(super) fn begin(&mut self, world: &mut World, out: &mut Vec<u8>) {
        let hello = json!({ "client": format!("client {}", self.number), "events": true });
        self.ask(world, out, Asked::Hello, "_bus/hello", &hello);
        let params = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        self.ask(world, out, Asked::Initialize, "initialize", &params);
    }

    /// Its connection is gone: what it waited for is not answered, and what it was in it has left. Gives back the
    /// sessions that it owned.
    pub(super) fn end(&mut self, world: &mut World) -> Vec<String> {
        world.counts.left += self.waiting.len() as u64;
        world.private.retain(|_, owner| *owner != self.connection);
        world.suspected.retain(|suspicion| suspicion.owner != self.connection);
        self.connection += 1 << 32;
        self.waiting.clear();
        self.left.clear();
        self.past.clear();
        let mut owned = Vec::new();
        for (session, part) in self.parts.drain() {
            world.hearings.end(agents(&session), part.hearing);
            if part.owns {
                owned.push(session);
            }
        }
        owned
    }

    /// Takes sessions up again that it owned on another connection.
    pub(super) fn resume(&mut self, world: &mut World, out: &mut Vec<u8>, sessions: Vec<String>) {
        for session in sessions.into_iter().filter(|_| self.rng.bool()).collect::<Vec<_>>() {
            let method = if self.rng.bool() { "session/resume" } else { "session/load" };
            self.join(world, out, session, method);
        }
    }

    /// Does something at random, if it has not asked for too much already.
    pub(super) fn act(&mut self, world: &mut World, out: &mut Vec<u8>) -> Does {
        if self.waiting.len() >= IN_FLIGHT_MAX
            || self.waiting.values().any(|(asked, _)| matches!(asked, Asked::Initialize))
        {
            return Does::Goes;
        }
        match self.rng.u32(..1000) {
            0..350 => self.prompt(world, out),
            350..600 => self.plain(world, out),
            600..700 => self.open(world, out),
            700..850 => self.join_any(world, out),
            850..900 => self.take(world, out),
            900..950 => self.leave(world, out),
            950..965 => self.cancel(world, out),
            965..990 => self.reads_again = Instant::now() + Duration::from_millis(self.rng.u64(5..300)),
            _ => {
                world.counts.resets += 1;
                return Does::Resets;
            }
        }
        Does::Goes
    }

    pub(super) fn ask(
        &mut self,
        world: &mut World,
        out: &mut Vec<u8>,
        asked: Asked,
        method: &str,
        params: &Value,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        world.counts.asked += 1;
        self.waiting.insert(id, (asked, Instant::now()));
        let line = write::request(id, method, params);
        world.remember(self.number, "asks", &line);
        out.extend(line);
    }

    fn most(&mut self, world: &World) -> usize {
        if self.rng.u32(..10) < 3 { world.longest } else { SHORT_BYTES }
    }

    fn next_turn(world: &mut World) -> u64 {
        world.next_turn += 1;
        world.next_turn
    }

    fn pick(&mut self, fits: impl Fn(&Part) -> bool) -> Option<String> {
        let fits = |(_, part): &(&String, &Part)| part.is_in && !part.leaves && fits(part);
        let mut all = self.parts.iter().filter(fits).map(|(id, _)| id).collect::<Vec<_>>();
        // A map has an order of its own, and a seed should play the same.
        all.sort();
        (!all.is_empty()).then(|| all[self.rng.usize(..all.len())].clone())
    }

    fn prompt(&mut self, world: &mut World, out: &mut Vec<u8>) {
        let Some(session) = self.pick(|part| part.controls && !part.prompts) else {
            return self.open(world, out);
        };
        let most = self.most(world);
        let updates = self.rng.u32(..=UPDATES_MAX);
        let ask = (self.rng.u32(..5) == 0).then(|| self.rng.u32(..=updates));
        let script = Script { turn: Self::next_turn(world), seed: self.rng.u64(..), updates, most, ask };
        let params = script.prompt(&session, agents(&session), log_uniform(&mut self.rng, most));
        let Some(part) = self.parts.get_mut(&session) else { return };
        part.prompts = true;
        let since = part.since;
        self.ask(world, out, Asked::Prompt { session, script, since }, "session/prompt", &params);
    }

    pub(super) fn plain(&mut self, world: &mut World, out: &mut Vec<u8>) {
        let (turn, most) = (Self::next_turn(world), self.most(world));
        let bytes = log_uniform(&mut self.rng, most);
        let text = self.plain_text(turn, bytes);
        self.ask(world, out, Asked::Plain { turn, bytes }, "any/thing", &json!({ "text": text }));
    }

    pub(super) fn plain_text(&self, turn: u64, bytes: usize) -> String {
        Seal { session: &format!("client-{}", self.number), turn, place: Place::Prompt }.text(bytes)
    }

    fn open(&mut self, world: &mut World, out: &mut Vec<u8>) {
        if self.parts.len() >= SESSIONS_MAX {
            return self.leave(world, out);
        }
        let (pool, shared) = POOLS[self.rng.usize(..POOLS.len())];
        let params = json!({ "cwd": "/", "mcpServers": [], "_meta": { "bus/pool": pool } });
        self.ask(world, out, Asked::New { shared }, "session/new", &params);
    }

    fn join_any(&mut self, world: &mut World, out: &mut Vec<u8>) {
        if world.known.is_empty() || self.parts.len() >= SESSIONS_MAX {
            return self.leave(world, out);
        }
        let session = world.known[self.rng.usize(..world.known.len())].clone();
        if self.parts.contains_key(&session) {
            return;
        }
        let method = ["_bus/attach", "_bus/attach", "_bus/attach", "session/load", "session/resume"];
        let method = method[self.rng.usize(..method.len())];
        self.join(world, out, session, method);
    }

    pub(super) fn join(&mut self, world: &mut World, out: &mut Vec<u8>, session: String, method: &str) {
        if self.parts.contains_key(&session) {
            return;
        }
        let controls = method != "_bus/attach" || self.rng.u32(..3) > 0;
        let role = if controls { "control" } else { "observe" };
        let history = ["full", "full", "full", "pending", "none"][self.rng.usize(..5)];
        let params = match method {
            "_bus/attach" => json!({ "session": session, "role": role, "history": history }),
            _ => json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }),
        };
        // What was said comes before the answer.
        self.left.remove(&session);
        self.parts.insert(session.clone(), Part::new(controls, false, world.next_turn));
        world.counts.joins += 1;
        let owner = world.private.get(&session).copied();
        self.ask(world, out, Asked::Join { session, owner }, method, &params);
    }

    fn take(&mut self, world: &mut World, out: &mut Vec<u8>) {
        let Some(session) = self.pick(|part| part.controls && !part.owns) else { return };
        world.counts.takes += 1;
        let params = json!({ "session": session });
        self.ask(world, out, Asked::Take { session }, "_bus/take", &params);
    }

    fn leave(&mut self, world: &mut World, out: &mut Vec<u8>) {
        let Some(session) = self.pick(|part| !part.prompts) else { return };
        let Some(part) = self.parts.get_mut(&session) else { return };
        part.leaves = true;
        let closes = part.owns && self.rng.bool();
        let method = if closes { "session/close" } else { "_bus/detach" };
        // From the moment that the bus reads this, it belongs to nobody.
        world.private.remove(&session);
        let params = if closes { json!({ "sessionId": session }) } else { json!({ "session": session }) };
        self.ask(world, out, Asked::Leave { session, for_good: !closes }, method, &params);
    }

    fn cancel(&mut self, world: &mut World, out: &mut Vec<u8>) {
        if let Some(session) = self.pick(|part| part.prompts) {
            let line = write::notification("session/cancel", json!({ "sessionId": session }));
            world.remember(self.number, "says", &line);
            out.extend(line);
        }
    }
}

impl Part {
    /// `since` is the last turn that was thought of before. An owner is in, a guest has yet to be let in.
    pub(super) fn new(controls: bool, owns: bool, since: u64) -> Part {
        // What a guest is told first may begin anywhere.
        let hearing = Hearing::since(if owns { since } else { u64::MAX });
        Part { hearing, controls, owns, prompts: false, is_in: owns, leaves: false, since }
    }
}
