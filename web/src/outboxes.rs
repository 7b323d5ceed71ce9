//! Which stream of an HTTP connection each message goes to, and what waits there. Pure: no sockets, no clock.
//!
//! A connection has one stream for what belongs to no session, and one for each session that the client has opened one
//! for. What a session says before its stream is open waits for it a moment, and then goes to the connection's stream:
//! some clients never open one after a `session/load`.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use crate::message::Message;

/// Requests of a client that wait for their answers. One more is refused.
const CALLS_MAX: usize = 4096;
/// Streams for sessions that nobody has heard of, such as one that is about to be loaded.
const UNCONFIRMED_MAX: usize = 16;
/// Sessions that are remembered. The streams of others can still be opened, as unconfirmed ones.
const SESSIONS_MAX: usize = 4096;
/// How long the messages of a session wait for its stream.
const GRACE: Duration = Duration::from_secs(5);

/// Methods that are about one session, and name it in the header or in their params.
const OF_SESSIONS: [&str; 10] = [
    "session/prompt",
    "session/cancel",
    "session/close",
    "session/delete",
    "session/fork",
    "session/load",
    "session/resume",
    "session/set_config_option",
    "session/set_mode",
    "session/set_model",
];

/// Time since the connection began.
pub(crate) type Moment = Duration;

pub(crate) fn is_of_session(method: &str) -> bool {
    OF_SESSIONS.contains(&method)
}

/// The name of a stream: `None` is the connection's.
pub(crate) type StreamName = Option<Box<str>>;

#[derive(Default)]
pub(crate) struct Outboxes {
    connection: Outbox,
    sessions: HashMap<Box<str>, SessionBox>,
    /// The requests of the client, by their id as it was spelled, and the session that each is about.
    calls: HashMap<Box<str>, Option<Box<str>>>,
    bytes: usize,
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Bytes>,
    is_open: bool,
}

struct SessionBox {
    outbox: Outbox,
    /// The bus has named it; else only the client has.
    is_confirmed: bool,
    /// Until then its messages wait for its stream to be opened.
    waits_until: Moment,
}

impl SessionBox {
    /// Whether its messages go to its own stream, which is open or still waited for.
    fn keeps(&self, now: Moment) -> bool {
        self.outbox.is_open || self.waits_until > now
    }

    /// Hands over what has waited too long for its stream. True: something has moved.
    fn give_up(&mut self, connection: &mut Outbox, now: Moment) -> bool {
        let moves = !self.keeps(now) && !self.outbox.queue.is_empty();
        if moves {
            connection.queue.append(&mut self.outbox.queue);
        }
        moves
    }
}

/// Why a stream cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoStream {
    Unknown,
    OpenAlready,
}

impl Outboxes {
    /// Remembers a request of the client. False: there are too many.
    pub(crate) fn note_call(&mut self, id: &str, session: Option<&str>) -> bool {
        if self.calls.len() >= CALLS_MAX && !self.calls.contains_key(id) {
            return false;
        }
        self.calls.insert(id.into(), session.map(Box::from));
        true
    }

    /// Puts a line of the bus where it belongs, and says where that is.
    pub(crate) fn push(&mut self, line: Bytes, text: &str, now: Moment) -> StreamName {
        let message = Message::parse(text);
        let name = message.and_then(|message| match &message.method {
            Some(_) => message.session().map(|session| session.as_ref().into()),
            None => self.of_answer(&message, now),
        });
        let name = name.filter(|name| self.keeps_for(name, now));
        self.bytes += line.len();
        match &name {
            Some(session) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.outbox.queue.push_back(line);
                }
            }
            None => self.connection.queue.push_back(line),
        }
        name
    }

    /// The session that an answer is about. One that opens a session belongs to the connection, as nobody can have
    /// opened a stream for that before.
    fn of_answer(&mut self, answer: &Message<'_>, now: Moment) -> StreamName {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Opened {
            session_id: Box<str>,
        }

        let about = self.calls.remove(answer.id?.get())?;
        let result = answer.result.map(|result| result.get()).filter(|result| result.starts_with('{'));
        if let Some(Opened { session_id }) = result.and_then(|result| serde_json::from_str(result).ok()) {
            self.confirm(&session_id, now + GRACE);
        }
        if let Some(session) = &about {
            self.confirm(session, now);
        }
        about
    }

    fn confirm(&mut self, session: &str, waits_until: Moment) {
        if let Some(known) = self.sessions.get_mut(session) {
            known.is_confirmed = true;
        } else if self.sessions.len() < SESSIONS_MAX {
            let known = SessionBox { outbox: Outbox::default(), is_confirmed: true, waits_until };
            self.sessions.insert(session.into(), known);
        }
    }

    /// Whether the next message of a session goes to its own stream. If not, those that still wait there go to the
    /// connection's first, because they are older.
    fn keeps_for(&mut self, session: &str, now: Moment) -> bool {
        let Some(session) = self.sessions.get_mut(session) else { return false };
        session.give_up(&mut self.connection, now);
        session.keeps(now)
    }

    /// Gives what has waited too long for a stream to the stream of the connection. True: something has moved.
    pub(crate) fn release(&mut self, now: Moment) -> bool {
        let mut has_moved = false;
        for session in self.sessions.values_mut() {
            has_moved |= session.give_up(&mut self.connection, now);
        }
        has_moved
    }

    /// Whether something waits for a stream that is not open.
    pub(crate) fn has_waiting(&self) -> bool {
        self.sessions.values().any(|session| !session.outbox.is_open && !session.outbox.queue.is_empty())
    }

    pub(crate) fn open(&mut self, name: &StreamName) -> Result<(), NoStream> {
        let outbox = match name {
            None => &mut self.connection,
            Some(session) => {
                if !self.sessions.contains_key(session) {
                    let unconfirmed = self.sessions.values().filter(|session| !session.is_confirmed).count();
                    if unconfirmed >= UNCONFIRMED_MAX {
                        return Err(NoStream::Unknown);
                    }
                    let waits_until = Moment::ZERO;
                    let unheard = SessionBox { outbox: Outbox::default(), is_confirmed: false, waits_until };
                    self.sessions.insert(session.clone(), unheard);
                }
                &mut self.sessions.get_mut(session).ok_or(NoStream::Unknown)?.outbox
            }
        };
        if outbox.is_open {
            return Err(NoStream::OpenAlready);
        }
        outbox.is_open = true;
        Ok(())
    }

    /// The client has left a stream. It may come back at once.
    pub(crate) fn close(&mut self, name: &StreamName, now: Moment) {
        match name {
            None => self.connection.is_open = false,
            Some(session) => {
                let Some(known) = self.sessions.get_mut(session) else { return };
                known.outbox.is_open = false;
                known.waits_until = now + GRACE;
                if !known.is_confirmed && known.outbox.queue.is_empty() {
                    self.sessions.remove(session);
                }
            }
        }
    }

    pub(crate) fn pop(&mut self, name: &StreamName) -> Option<Bytes> {
        let outbox = match name {
            None => &mut self.connection,
            Some(session) => &mut self.sessions.get_mut(session)?.outbox,
        };
        let line = outbox.queue.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }

    /// All that waits.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_open(&self) -> bool {
        self.connection.is_open || self.sessions.values().any(|session| session.outbox.is_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::ZERO;

    fn push(outboxes: &mut Outboxes, line: &str, now: Moment) -> StreamName {
        outboxes.push(Bytes::copy_from_slice(line.as_bytes()), line, now)
    }

    fn update(session: &str) -> String {
        format!(r#"{{"method":"session/update","params":{{"sessionId":"{session}"}}}}"#)
    }

    fn name(session: &str) -> StreamName {
        Some(session.into())
    }

    fn opened() -> Outboxes {
        let mut outboxes = Outboxes::default();
        outboxes.open(&None).unwrap();
        assert!(outboxes.note_call("1", None));
        assert_eq!(push(&mut outboxes, r#"{"id":1,"result":{"sessionId":"s"}}"#, START), None);
        outboxes
    }

    #[test]
    fn the_messages_of_a_new_session_wait_for_its_stream() {
        let mut outboxes = opened();
        assert_eq!(push(&mut outboxes, &update("s"), START), name("s"));
        assert!(outboxes.has_waiting());
        assert_eq!(outboxes.open(&name("s")), Ok(()));
        assert_eq!(outboxes.open(&name("s")), Err(NoStream::OpenAlready));
        assert!(outboxes.pop(&name("s")).is_some() && outboxes.pop(&name("s")).is_none());
        assert!(outboxes.note_call("2", Some("s")));
        assert_eq!(push(&mut outboxes, r#"{"id":2,"result":{"stopReason":"end_turn"}}"#, START), name("s"));
        assert_eq!(push(&mut outboxes, &update("s"), START), name("s"));
    }

    #[test]
    fn a_session_without_a_stream_speaks_on_that_of_the_connection() {
        let mut outboxes = opened();
        push(&mut outboxes, &update("s"), START);
        assert!(!outboxes.release(START));
        assert!(outboxes.release(GRACE) && !outboxes.has_waiting());
        assert_eq!(push(&mut outboxes, &update("s"), GRACE), None);
        // A session that was loaded is not waited for.
        outboxes.note_call("\"l\"", Some("old"));
        assert_eq!(push(&mut outboxes, &update("old"), START), None);
        assert_eq!(push(&mut outboxes, r#"{"id":"l","result":null}"#, START), None);
        let lines: Vec<_> = std::iter::from_fn(|| outboxes.pop(&None)).collect();
        assert_eq!((lines.len(), outboxes.bytes()), (5, 0));
    }

    #[test]
    fn what_has_waited_for_a_stream_comes_before_what_need_not_wait() {
        let mut outboxes = opened();
        outboxes.pop(&None);
        let line = |number| update("s").replacen('{', &format!(r#"{{"number":{number},"#), 1);
        assert_eq!(push(&mut outboxes, &line(0), START), name("s"));
        assert_eq!(push(&mut outboxes, &line(1), START), name("s"));
        // The time is over, and `release` was not called yet.
        assert_eq!(push(&mut outboxes, &line(2), GRACE), None);
        for number in 0..3 {
            assert_eq!(outboxes.pop(&None).unwrap(), line(number));
        }
        // It is the same after a stream that broke, and with the answer that ends a turn.
        outboxes.open(&name("s")).unwrap();
        outboxes.close(&name("s"), GRACE);
        assert_eq!(push(&mut outboxes, &line(3), GRACE), name("s"));
        outboxes.note_call("2", Some("s"));
        let answer = r#"{"id":2,"result":{}}"#;
        assert_eq!(push(&mut outboxes, answer, 2 * GRACE), None);
        assert_eq!(
            (outboxes.pop(&None).unwrap(), outboxes.pop(&None).unwrap()),
            (line(3).into(), answer.into())
        );
        assert_eq!(outboxes.bytes(), 0);
    }

    #[test]
    fn a_stream_that_is_open_before_the_load_gets_its_replay_and_its_answer() {
        let mut outboxes = opened();
        assert_eq!(outboxes.open(&name("old")), Ok(()));
        outboxes.note_call("2", Some("old"));
        assert_eq!(push(&mut outboxes, &update("old"), START), name("old"));
        assert_eq!(push(&mut outboxes, r#"{"id":2,"result":{}}"#, START), name("old"));
        assert!(outboxes.sessions["old"].is_confirmed);
    }

    #[test]
    fn a_stream_that_breaks_can_be_opened_again_and_misses_nothing() {
        let mut outboxes = opened();
        outboxes.open(&name("s")).unwrap();
        outboxes.close(&name("s"), START);
        assert_eq!(push(&mut outboxes, &update("s"), GRACE / 2), name("s"));
        outboxes.open(&name("s")).unwrap();
        assert!(outboxes.pop(&name("s")).is_some());
    }

    #[test]
    fn streams_of_unknown_sessions_and_calls_have_a_bound() {
        let mut outboxes = Outboxes::default();
        for number in 0..UNCONFIRMED_MAX {
            assert_eq!(outboxes.open(&name(&format!("u{number}"))), Ok(()));
        }
        assert_eq!(outboxes.open(&name("more")), Err(NoStream::Unknown));
        outboxes.close(&name("u0"), START);
        assert_eq!(outboxes.open(&name("more")), Ok(()));
        for id in 0..CALLS_MAX {
            assert!(outboxes.note_call(&id.to_string(), None));
        }
        assert!(!outboxes.note_call("x", None));
    }

    #[test]
    fn what_is_about_no_session_goes_to_the_connection() {
        let mut outboxes = opened();
        for line in [r#"{"method":"_auth/status","params":{}}"#, r#"{"id":9,"result":{}}"#, "{", "[]"] {
            assert_eq!(push(&mut outboxes, line, START), None);
        }
        assert_eq!(push(&mut outboxes, &update("unheard"), START), None);
    }
}
