//! Writes the lines of a scripted client, with ids in every spelling, members in any order and any length.

use crate::line::{self, Slot, Value, mark, noise, object, quoted, slot, text};
use crate::pipe::Mark;
use crate::record::{About, Conn, Kind, Peer, What, behind_tag};
use crate::rng::Rng;
use crate::world::World;

/// The optional parts of a client's message.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) session: Option<String>,
    pub(crate) top: Option<String>,
    pub(crate) request: Option<Vec<u8>>,
    pub(crate) pool: Option<String>,
    pub(crate) params: Vec<(&'static str, Value)>,
}

impl World {
    pub(crate) fn ask(&mut self, conn: Conn, method: &str, kind: Kind, draft: Draft) {
        // These requests have unique ids, because the oracle must know which of them an error answers.
        let clear = matches!(kind, Kind::Load(_) | Kind::Close(_) | Kind::Delete(_) | Kind::Initialize(_));
        let id = self.some_id(conn, clear);
        if kind != Kind::Admin {
            self.clients[conn].ids.push(id.clone());
        }
        if let Kind::Load(name) | Kind::Close(name) | Kind::Delete(name) = &kind {
            let agent = behind_tag(name).to_owned();
            if self.plan.plain && !self.is_settled(&agent) {
                return;
            }
            let under_way = &mut self.clients[conn].under_way;
            // Mostly a client uses a session for one of these at a time.
            if under_way.iter().any(|(other, _)| *other == agent) && !self.rng.percent(5) {
                return;
            }
            under_way.push((agent, id.clone()));
        }
        let (line, long) = self.draft(method, Some(&id), draft);
        let kind = if long { Kind::TooLong } else { kind };
        self.send(conn, line, What::Ask { kind, id, done: false });
    }

    /// Nobody is loading, closing or deleting this session, and nobody has left while doing so.
    fn is_settled(&self, agent: &str) -> bool {
        let busy = |conn: &Conn| self.clients[*conn].under_way.iter().any(|(other, _)| other == agent);
        !self.oracle.spent.contains(agent) && !self.open_clients().iter().any(busy)
    }

    pub(crate) fn tell(&mut self, conn: Conn, method: &str, about: About, draft: Draft) {
        let (line, long) = self.draft(method, None, draft);
        if long {
            self.send_bad(conn, &line.bytes(), Mark::Bad);
        } else {
            self.send(conn, line, What::Tell { about });
        }
    }

    /// Writes a message. Also returns whether it is too long for the bus.
    fn draft(&mut self, method: &str, id: Option<&[u8]>, draft: Draft) -> (line::Line, bool) {
        let serial = self.oracle.next_serial();
        let rng = &mut self.rng;
        let mut params = draft.params;
        let mut top = vec![("jsonrpc", text(r#""2.0""#)), ("method", text(quoted(method)))];
        params.push(("m", text(quoted(&mark(serial)))));
        if rng.percent(40) {
            params.push(("n", noise(rng)));
        }
        if rng.percent(20) {
            top.push(("x", noise(rng)));
        }
        if let Some(name) = draft.session {
            params.push(("sessionId", slot(Slot::Session, spelled(rng, &name))));
        }
        if let Some(request) = draft.request {
            params.push(("requestId", slot(Slot::Request, request)));
        }
        if let Some(name) = draft.top {
            top.push(("sessionId", slot(Slot::Top, spelled(rng, &name))));
        }
        if let Some(pool) = draft.pool {
            top.push(("pool", text(quoted(&pool))));
        }
        if let Some(id) = id {
            top.push(("id", slot(Slot::Id, id)));
        }
        top.push(("params", object(rng, params)));
        let long = self.pad(&mut top);
        (line::line(object(&mut self.rng, top)), long)
    }

    /// Makes a message longer, and now and then too long. Returns whether it is too long.
    pub(crate) fn pad(&mut self, members: &mut Vec<(&str, Value)>) -> bool {
        let limit = self.config.limits.max_input_buffer;
        let long = !self.quiet && self.rng.percent(self.plan.too_long_chance);
        let bytes = if long { limit + 2 } else { self.rng.below(self.plan.pad_bytes + 1) };
        if bytes > 0 {
            members.push(("pad", text(format!("\"{}\"", "p".repeat(bytes)))));
        }
        long
    }

    /// Sends one more request without a line end, because the end of the stream ends a line too.
    pub(crate) fn last_word(&mut self, conn: Conn) -> bool {
        if !self.clients[conn].started || self.clients[conn].half {
            return false;
        }
        let id = self.some_id(conn, true);
        let (line, long) = self.draft("work/do", Some(&id), Draft::default());
        if long {
            return false;
        }
        let bytes = line.bytes();
        self.note(format_args!("conn {conn} writes at last"), &bytes);
        let what = What::Ask { kind: Kind::Plain, id, done: false };
        let serial = self.oracle.writes(Peer::Client(conn), line, what);
        self.clients[conn].pipe.write(&bytes, Some(Mark::Line(serial)));
        true
    }

    pub(crate) fn send(&mut self, conn: Conn, line: line::Line, what: What) {
        let mut bytes = line.bytes();
        bytes.extend_from_slice(self.rng.one(&[b"\n" as &[u8], b"\n", b"\r\n", b"\n\n", b"\n \t\n"]));
        // The line is complete with the first line end.
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        self.note(format_args!("conn {conn} writes"), &bytes[..end - 1]);
        let serial = self.oracle.writes(Peer::Client(conn), line, what);
        let client = &mut self.clients[conn];
        client.started = true;
        client.pipe.write(&bytes[..end], Some(Mark::Line(serial)));
        client.pipe.write(&bytes[end..], None);
    }

    pub(crate) fn send_bad(&mut self, conn: Conn, bytes: &[u8], mark: Mark) {
        let client = &mut self.clients[conn];
        client.started = true;
        client.pipe.write(bytes, None);
        client.pipe.write(b"\n", Some(mark));
    }

    pub(crate) fn some_pool(&mut self) -> String {
        if self.rng.percent(10) {
            return "nowhere".to_owned();
        }
        self.config.pools[self.rng.below(self.config.pools.len())].id.to_string()
    }

    /// Chooses a session, mostly one of its own.
    pub(crate) fn some_session(&mut self, conn: Conn) -> Option<String> {
        let own = self.rng.percent(85);
        self.rng.pick(if own { &self.clients[conn].sessions } else { &self.leaked.sessions }).cloned()
    }

    fn some_id(&mut self, conn: Conn, clear: bool) -> Vec<u8> {
        let rng = &mut self.rng;
        let client = &mut self.clients[conn];
        client.next_id += 1;
        let number = client.next_id;
        let kinds = if self.plan.plain { 12 } else { 14 };
        let id = match if clear { rng.within(5, 10) } else { rng.below(kinds) } {
            0..5 => number.to_string(),
            5 => format!("\"id-{number}\""),
            6 => format!("{number}.0"),
            7 => format!("{number}e0"),
            8 => format!("-{number}"),
            9 => format!("\"\\u0061{number}\""),
            10 => format!("\"{}{number}\"", "long".repeat(12)),
            11 => format!("\"{number}\""),
            12 => rng.pick(&self.leaked.call_ids).map_or(number.to_string(), u64::to_string),
            _ => rng.within(1, 3).to_string(),
        };
        id.into_bytes()
    }
}

/// Writes a name as a JSON string, now and then with an escape that it does not need.
fn spelled(rng: &mut Rng, name: &str) -> Vec<u8> {
    if let Some(first) = name.chars().next()
        && first.is_ascii_alphanumeric()
        && rng.percent(15)
    {
        return format!("\"\\u{:04x}{}", first as u32, &quoted(name)[2..]).into_bytes();
    }
    quoted(name).into_bytes()
}
