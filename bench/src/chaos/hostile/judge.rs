//! How a client of the hostile run judges every line that it is sent.
//!
//! Its lines carry sealed texts and so do those of the agents, so that a line which belongs to another session, or
//! which is not whole, is noticed by whoever reads it.

use rpc::write;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::actor::{Actor, Asked, KNOWN_MAX, PRIVATE, Part, SHORT_BYTES, agents};
use super::hearing::Wrong;
use super::line::{Line, Params, TurnResult, Update};
use super::world::{EXCERPT_BYTES, Fault, World};
use crate::puppet::{Script, log_uniform};
use crate::sealed::{self, Place, Seal};

/// The error says what is wrong with a line.
type Verdict = Result<(), (Fault, &'static str)>;

impl Actor {
    /// Judges a line. What it says to it is appended to `out`.
    pub(super) fn receive(&mut self, world: &mut World, line: &[u8], out: &mut Vec<u8>) {
        world.counts.bytes += line.len() as u64;
        world.remember(self.number, "hears", line);
        let wrong = match serde_json::from_slice::<Line<'_>>(line) {
            Ok(line) => match (line.method, line.params, line.id) {
                (None, _, Some(id)) => self.take_answer(world, id, &line),
                (Some(method), Some(params), id) => self.take_message(world, method, params, id, out),
                _ => Err((Fault::Foreign, "neither an answer nor a message")),
            },
            Err(_) => Err((Fault::Foreign, "no JSON")),
        };
        if let Err((fault, why)) = wrong {
            let excerpt = String::from_utf8_lossy(&line[..line.len().min(EXCERPT_BYTES)]);
            let names = self.parts.keys().chain(&self.left).chain(&self.past);
            let session = names.filter(|name| excerpt.contains(agents(name))).max_by_key(|name| name.len());
            let trail =
                session.map(|session| world.trail_of(agents(session), self.number)).unwrap_or_default();
            world.faults.add(fault, || format!("client {}: {why}\n{excerpt}\n{trail}", self.number));
        }
    }

    fn take_message(
        &mut self,
        world: &mut World,
        method: &str,
        params: &RawValue,
        id: Option<&RawValue>,
        out: &mut Vec<u8>,
    ) -> Verdict {
        if method == "$/cancel_request" {
            return Ok(());
        }
        let Ok(params) = serde_json::from_str::<Params<'_>>(params.get()) else {
            return Err((Fault::Foreign, "params that cannot be read"));
        };
        let session = params.session_id.or(params.session).unwrap_or_default();
        let Some(part) = self.parts.get_mut(session) else {
            return match (self.left.contains(session), self.past.contains(session), method) {
                // Others are told of it a moment later.
                (true, _, "session/update") => {
                    Err((Fault::Leaked, "an update of a session that it has left"))
                }
                (true, ..) | (_, true, _) => Ok(()),
                _ => Err((Fault::Leaked, "a line of a session that it is not in")),
            };
        };
        match (method, id, params.update) {
            ("session/update", None, Some(update)) => {
                world.counts.updates += 1;
                part.take_update(agents(session), &update)
            }
            ("session/request_permission", Some(id), _) => {
                world.counts.questions += 1;
                if !part.controls {
                    return Err((Fault::Leaked, "a question to an observer"));
                }
                let title = params.tool_call.and_then(|call| call.title).and_then(sealed::read);
                let Some(seal) = title.filter(|seal| seal.session == agents(session)) else {
                    return Err((Fault::Foreign, "a question of another session, or changed"));
                };
                let decision = Seal { place: Place::Decision, ..seal };
                let most = if self.rng.u32(..10) == 0 { world.longest } else { SHORT_BYTES };
                let text = decision.text(log_uniform(&mut self.rng, most));
                let outcome = json!({ "outcome": "selected", "optionId": "yes" });
                out.extend(write::result(
                    id.into(),
                    json!({ "outcome": outcome, "_meta": { "text": text } }),
                ));
                Ok(())
            }
            ("_bus/session", None, _) => {
                if matches!(params.event, Some("behind" | "ended")) {
                    world.counts.behind += u64::from(params.event == Some("behind"));
                    self.forget(world, session);
                }
                Ok(())
            }
            _ => Err((Fault::Foreign, "a message that nobody sends")),
        }
    }

    /// It is not in this session any more.
    fn forget(&mut self, world: &mut World, session: &str) {
        if world.private.get(session) == Some(&self.connection) {
            world.private.remove(session);
        }
        if let Some(part) = self.parts.remove(session) {
            world.hearings.end(agents(session), part.hearing);
            self.past.insert(session.to_owned());
        }
    }

    fn take_answer(&mut self, world: &mut World, id: &RawValue, line: &Line<'_>) -> Verdict {
        let asked = id.get().parse().ok().and_then(|id: u64| self.waiting.remove(&id));
        let Some((asked, at)) = asked else { return Err((Fault::Doubled, "answered twice, or never asked")) };
        world.is_here(self.connection, at, self.number);
        match (line.result, line.error) {
            (Some(result), None) => {
                world.counts.right += 1;
                self.take_result(world, asked, result.get())
            }
            (None, Some(error)) => {
                let error = serde_json::from_str::<Value>(error.get()).unwrap_or_default();
                let reason = error["data"]["reason"].as_str().unwrap_or("none").to_owned();
                *world.counts.refused.entry(reason.clone()).or_default() += 1;
                self.take_refusal(world, asked, &reason)
            }
            _ => Err((Fault::Foreign, "an answer without a result")),
        }
    }

    fn take_result(&mut self, world: &mut World, asked: Asked, result: &str) -> Verdict {
        match asked {
            Asked::Hello | Asked::Initialize => {}
            Asked::Plain { turn, bytes } => {
                let expected = format!(r#"{{"echo":{{"text":"{}"}}}}"#, self.plain_text(turn, bytes));
                if result != expected {
                    return Err((Fault::Foreign, "not the echo of what was asked"));
                }
            }
            Asked::New { shared } => {
                let result = serde_json::from_str::<Value>(result).unwrap_or_default();
                let Some(session) = result["sessionId"].as_str().map(str::to_owned) else {
                    return Err((Fault::Foreign, "no session"));
                };
                self.parts.insert(session.clone(), Part::new(true, true, world.next_turn));
                if !shared {
                    world.private.insert(session.clone(), self.connection);
                }
                if world.known.len() >= KNOWN_MAX {
                    world.known.remove(0);
                }
                world.known.push(session);
            }
            Asked::Join { session, owner } => {
                if let Some(part) = self.parts.get_mut(&session) {
                    part.is_in = true;
                    part.hearing.begins_live(world.next_turn);
                }
                if let Some(owner) = owner.filter(|owner| world.private.get(&session) == Some(owner)) {
                    let trail = world.trail_of(&session, self.number);
                    let what =
                        format!("client {} joins {session}, which is not shared\n{trail}", self.number);
                    world.suspect(owner, session, what);
                    return Ok(());
                }
                // A load of a session that is gone is tried in the pool of whoever asks. Until its agent refuses it,
                // others join it there; nothing in it is of the session that had this name.
                let result = serde_json::from_str::<Value>(result).unwrap_or_default();
                if result["pool"].as_str().is_some_and(|pool| pool != PRIVATE) {
                    world.tried_elsewhere.insert(session.clone());
                }
                if session.contains(PRIVATE) && !world.tried_elsewhere.contains(&session) {
                    world.private.insert(session, self.connection);
                }
            }
            Asked::Take { session } => {
                if let Some(part) = self.parts.get_mut(&session) {
                    part.owns = true;
                }
            }
            Asked::Leave { session, for_good } => {
                self.forget(world, &session);
                if for_good {
                    self.past.remove(&session);
                    self.left.insert(session);
                } else {
                    world.known.retain(|known| *known != session);
                }
            }
            Asked::Prompt { session, script, since } => {
                return self.take_turn(&session, script, since, result);
            }
        }
        Ok(())
    }

    fn take_turn(&mut self, session: &str, script: Script, since: u64, result: &str) -> Verdict {
        let Ok(result) = serde_json::from_str::<TurnResult<'_>>(result) else {
            return Err((Fault::Foreign, "a turn whose end cannot be read"));
        };
        let part = self.parts.get_mut(session).filter(|part| part.since == since);
        if result.stop_reason == Some("cancelled") {
            part.into_iter().for_each(|part| part.prompts = false);
            return Ok(());
        }
        let seal = Seal { session: agents(session), turn: script.turn, place: Place::Result };
        let Some(meta) = result.meta else {
            return Err((Fault::Foreign, "a turn that ended without its text"));
        };
        if meta.fault.is_some() {
            return Err((Fault::Foreign, "the agent was sent what is not its own"));
        }
        if meta.text.and_then(sealed::read) != Some(seal) {
            return Err((Fault::Foreign, "the end of another turn, or changed"));
        }
        // Who was let go meanwhile has not heard all.
        let Some(part) = part else { return Ok(()) };
        part.prompts = false;
        if !part.hearing.has_all_of(script.turn, script.updates) {
            return Err((Fault::Lost, "a turn of which not all was heard"));
        }
        Ok(())
    }

    fn take_refusal(&mut self, world: &mut World, asked: Asked, reason: &str) -> Verdict {
        match asked {
            Asked::Join { session, owner } => {
                let has_heard = self.parts.get(&session).is_some_and(|part| part.hearing.has_any());
                self.forget(world, &session);
                if let Some(owner) =
                    owner.filter(|owner| has_heard && world.private.get(&session) == Some(owner))
                {
                    let what = format!("client {} hears of {session}, which is not shared", self.number);
                    world.suspect(owner, session.clone(), what);
                }
                if reason == "unknown_session" {
                    // One that is not shared is tried again.
                    world.known.retain(|known| *known != session || world.private.contains_key(known));
                }
            }
            Asked::Prompt { session, .. } => {
                if let Some(part) = self.parts.get_mut(&session) {
                    part.prompts = false;
                }
                if reason == "unknown_session" {
                    self.forget(world, &session);
                }
            }
            Asked::Take { session } | Asked::Leave { session, .. } => {
                if reason == "unknown_session" {
                    self.forget(world, &session);
                }
            }
            Asked::Hello | Asked::Initialize | Asked::Plain { .. } | Asked::New { .. } => {}
        }
        Ok(())
    }
}

impl Part {
    fn take_update(&mut self, agents: &str, update: &Update<'_>) -> Verdict {
        let text = update.content.as_ref().and_then(|content| content.text.as_deref()).unwrap_or_default();
        let kind = update.session_update.unwrap_or_default();
        // The first block of a prompt is its script.
        if kind == "user_message_chunk" && text.starts_with('{') {
            return Ok(());
        }
        let Some(seal) = sealed::read(text) else {
            return Err((Fault::Foreign, "an update that was changed"));
        };
        if seal.session != agents {
            return Err((Fault::Leaked, "an update of another session"));
        }
        match (kind, seal.place) {
            ("agent_message_chunk", Place::Update { nth, .. }) => match self.hearing.add((seal.turn, nth)) {
                Ok(()) => Ok(()),
                Err(Wrong::Doubled) => Err((Fault::Doubled, "an update that came before")),
                Err(Wrong::Lost) => Err((Fault::Lost, "an update before this one has not come")),
            },
            ("user_message_chunk", Place::Prompt) => Ok(()),
            _ => Err((Fault::Foreign, "an update that is something else")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::Faults;
    use super::*;

    const MINE: &str = "tag.shared-1-1";

    /// A client that has one session, as its owner, and has asked for a turn there under the id 1.
    fn in_a_turn(script: Script) -> (Actor, World) {
        let (mut actor, mut world) = (Actor::new(7, 1), World { next_turn: 9, ..World::default() });
        let part = Part { prompts: true, ..Part::new(true, true, 8) };
        actor.parts.insert(MINE.to_owned(), part);
        let asked = Asked::Prompt { session: MINE.to_owned(), script, since: 8 };
        actor.ask(&mut world, &mut Vec::new(), asked, "session/prompt", &Value::Null);
        (actor, world)
    }

    fn script(updates: u32) -> Script {
        Script { turn: 9, seed: 1, updates, most: 100, ask: None }
    }

    fn update(session: &str, agents: &str, nth: u32) -> String {
        let seal = Seal { session: agents, turn: 9, place: Place::Update { nth, of: 2 } };
        json!({ "method": "session/update", "params": { "sessionId": session, "update": {
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": seal.text(90) } } } })
        .to_string()
    }

    fn end(turn: u64) -> String {
        let seal = Seal { session: "shared-1-1", turn, place: Place::Result };
        json!({ "id": 1, "result": { "stopReason": "end_turn", "_meta": { "text": seal.text(90), "fault": null } } })
            .to_string()
    }

    /// Lost, doubled, foreign and leaked, after these lines.
    fn faults(updates: u32, lines: &[String]) -> [u64; 4] {
        let (mut actor, mut world) = in_a_turn(script(updates));
        for line in lines {
            actor.receive(&mut world, line.as_bytes(), &mut Vec::new());
        }
        let Faults { lost, doubled, foreign, leaked, .. } = world.faults;
        [lost, doubled, foreign, leaked]
    }

    #[test]
    fn a_turn_that_was_heard_whole_is_right() {
        let heard = |nth| update(MINE, "shared-1-1", nth);
        assert_eq!(faults(2, &[heard(0), heard(1), end(9)]), [0, 0, 0, 0]);
        assert_eq!(faults(0, &[end(9)]), [0, 0, 0, 0]);
    }

    #[test]
    fn whatever_is_wrong_has_its_name() {
        let heard = |nth| update(MINE, "shared-1-1", nth);
        assert_eq!(faults(2, &[heard(0), end(9)]), [1, 0, 0, 0], "the last update is missing");
        assert_eq!(faults(2, &[heard(1)]), [1, 0, 0, 0], "the first update is missing");
        assert_eq!(faults(2, &[heard(0), heard(0)]), [0, 1, 0, 0]);
        assert_eq!(faults(0, &[end(9), end(9)]), [0, 1, 0, 0], "it is answered twice");
        assert_eq!(faults(0, &[end(8)]), [0, 0, 1, 0], "the end of another turn");
        assert_eq!(faults(2, &[heard(0).replace(" 9 u", " 8 u")]), [0, 0, 1, 0], "it was changed");
        assert_eq!(faults(2, &["{".to_owned()]), [0, 0, 1, 0]);
        assert_eq!(faults(2, &[update(MINE, "shared-1-2", 0)]), [0, 0, 0, 1], "of another session");
        assert_eq!(faults(2, &[update("tag.shared-1-2", "shared-1-2", 0)]), [0, 0, 0, 1]);
    }

    #[test]
    fn a_private_session_is_leaked_only_if_its_owner_is_still_there() {
        for (is_there, leaked) in [(true, 1), (false, 0)] {
            let (mut owner, mut world) = in_a_turn(script(0));
            let mut thief = Actor::new(8, 2);
            let session = "tag.private-1-1".to_owned();
            world.private.insert(session.clone(), owner.connection);
            thief.join(&mut world, &mut Vec::new(), session, "session/resume");
            thief.receive(&mut world, br#"{"id":1,"result":{}}"#, &mut Vec::new());
            if is_there {
                owner.plain(&mut world, &mut Vec::new());
                let refused = br#"{"id":2,"error":{"code":1,"data":{"reason":"worker_lost"}}}"#;
                owner.receive(&mut world, refused, &mut Vec::new());
            } else {
                owner.end(&mut world);
            }
            assert_eq!(world.faults.leaked, leaked);
        }
    }
}
