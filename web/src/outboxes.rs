//! Which stream of an HTTP connection each message goes to, and what waits there. Pure: no sockets, no clock.
//!
//! A connection has one stream for what belongs to no session, and one for each session that the client has opened one
//! for. What a session says before its stream is open waits for it a moment, and then goes to the connection's stream:
//! some clients never open one after a `session/load`. What was sent is kept for a while, for a client that comes back
//! and says what it had last.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use crate::message::Message;
use crate::sent::{CONNECTION_BYTES, DOOR_BYTES, STREAM_BYTES, Sent};

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
    /// Numbers that events and openings of streams have been given.
    last_number: u64,
    /// What all streams keep of what they have sent, and what all connections of the door keep.
    sent_bytes: usize,
    sent_bytes_of_door: Rc<Cell<usize>>,
}

#[derive(Default)]
struct Outbox {
    queue: VecDeque<Bytes>,
    sent: Sent,
    /// Its stream, while it is open.
    opening: Option<Opening>,
}

impl Outbox {
    fn is_open(&self) -> bool {
        self.opening.is_some()
    }
}

/// One of the times that a stream was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening(u64);

struct SessionBox {
    outbox: Outbox,
    /// The bus has named it; else only the client has.
    is_confirmed: bool,
    /// Until then its messages wait for its stream to be opened.
    waits_until: Moment,
    /// Its stream was open once.
    had_stream: bool,
    /// Since its stream broke, some of its messages have gone to that of the connection.
    has_strayed: bool,
}

impl SessionBox {
    fn new(is_confirmed: bool, waits_until: Moment) -> SessionBox {
        let outbox = Outbox::default();
        SessionBox { outbox, is_confirmed, waits_until, had_stream: false, has_strayed: false }
    }

    /// Whether its messages go to its own stream, which is open or still waited for. A client that has lost all of its
    /// streams is away: it will open them again, in whatever order.
    fn keeps(&self, connection: &Outbox, now: Moment) -> bool {
        let is_away = self.had_stream && !connection.is_open();
        self.outbox.is_open() || self.waits_until > now || is_away
    }

    /// Hands over what has waited too long for its stream. True: something has moved.
    fn give_up(&mut self, connection: &mut Outbox, now: Moment) -> bool {
        let moves = !self.keeps(connection, now) && !self.outbox.queue.is_empty();
        if moves {
            connection.queue.append(&mut self.outbox.queue);
            self.has_strayed = true;
        }
        moves
    }
}

/// Why a stream cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoStream {
    Unknown,
    OpenAlready,
    /// What was sent after the event that the client had last is not kept any more, or there was no such event.
    Forgotten,
}

/// What comes next on a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Event(Bytes),
    Nothing,
    /// The stream is open elsewhere.
    Replaced,
}

impl Outboxes {
    pub(crate) fn new(sent_bytes_of_door: Rc<Cell<usize>>) -> Outboxes {
        let mut outboxes = Outboxes::default();
        outboxes.sent_bytes_of_door = sent_bytes_of_door;
        outboxes
    }

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
                    session.is_confirmed = true;
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
            self.sessions.insert(session.into(), SessionBox::new(true, waits_until));
        }
    }

    /// Whether the next message of a session goes to its own stream. If not, those that still wait there go to the
    /// connection's first, because they are older.
    fn keeps_for(&mut self, session: &str, now: Moment) -> bool {
        let Some(session) = self.sessions.get_mut(session) else { return false };
        session.give_up(&mut self.connection, now);
        let keeps = session.keeps(&self.connection, now);
        session.has_strayed |= !keeps;
        keeps
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
        self.sessions.values().any(|session| !session.outbox.is_open() && !session.outbox.queue.is_empty())
    }

    /// Opens a stream. A client that comes back says the number of the event that it had last, or 0: then all that was
    /// sent after it comes again, and the stream that it has lost ends if it is still there.
    pub(crate) fn open(
        &mut self,
        name: &StreamName,
        had: Option<u64>,
        now: Moment,
    ) -> Result<Opening, NoStream> {
        let (outbox, has_strayed) = match name {
            None => (&mut self.connection, false),
            Some(session) => {
                if !self.sessions.contains_key(session) {
                    if had.is_some_and(|had| had > 0) {
                        return Err(NoStream::Forgotten);
                    }
                    let unconfirmed = self.sessions.values().filter(|session| !session.is_confirmed).count();
                    if unconfirmed >= UNCONFIRMED_MAX {
                        return Err(NoStream::Unknown);
                    }
                    self.sessions.insert(session.clone(), SessionBox::new(false, Moment::ZERO));
                }
                let session = self.sessions.get_mut(session).ok_or(NoStream::Unknown)?;
                (&mut session.outbox, session.has_strayed)
            }
        };
        match had {
            None if outbox.is_open() => return Err(NoStream::OpenAlready),
            None => {}
            // What has come on another stream since then is younger than what would come again.
            Some(had) if has_strayed && had != outbox.sent.newest() => return Err(NoStream::Forgotten),
            Some(had) if !outbox.sent.rewind(had) => return Err(NoStream::Forgotten),
            Some(_) => {}
        }
        self.last_number += 1;
        let opening = Opening(self.last_number);
        outbox.opening = Some(opening);
        match name {
            Some(session) => {
                if let Some(session) = self.sessions.get_mut(session) {
                    (session.had_stream, session.has_strayed) = (true, false);
                }
            }
            // The streams of sessions broke with it, and come back after it.
            None => {
                for session in self.sessions.values_mut().filter(|session| session.had_stream) {
                    session.waits_until = session.waits_until.max(now + GRACE);
                }
            }
        }
        Ok(opening)
    }

    /// The client has left a stream. It may come back at once.
    pub(crate) fn close(&mut self, name: &StreamName, opening: Opening, now: Moment) {
        if !self.is_open_as(name, opening) {
            return;
        }
        match name {
            None => self.connection.opening = None,
            Some(session) => {
                let Some(known) = self.sessions.get_mut(session) else { return };
                known.outbox.opening = None;
                known.waits_until = now + GRACE;
                if !known.is_confirmed {
                    self.sessions.remove(session);
                }
            }
        }
    }

    /// Whether a stream has not been opened again since.
    pub(crate) fn is_open_as(&self, name: &StreamName, opening: Opening) -> bool {
        let outbox = match name {
            None => Some(&self.connection),
            Some(session) => self.sessions.get(session).map(|session| &session.outbox),
        };
        outbox.is_some_and(|outbox| outbox.opening == Some(opening))
    }

    /// The next event of a stream: first what has to be sent again.
    pub(crate) fn pop(&mut self, name: &StreamName, opening: Opening) -> Next {
        if !self.is_open_as(name, opening) {
            return Next::Replaced;
        }
        let outbox = match name {
            None => &mut self.connection,
            Some(session) => match self.sessions.get_mut(session) {
                Some(session) => &mut session.outbox,
                None => return Next::Replaced,
            },
        };
        if let Some(event) = outbox.sent.again() {
            return Next::Event(event);
        }
        let Some(line) = outbox.queue.pop_front() else { return Next::Nothing };
        self.bytes -= line.len();
        self.last_number += 1;
        let event = event(self.last_number, &line);
        outbox.sent.add(self.last_number, event.clone());
        let mut forgotten = 0;
        while outbox.sent.bytes() > STREAM_BYTES {
            forgotten += outbox.sent.forget();
        }
        self.count_sent(event.len(), forgotten);
        self.forget();
        Next::Event(event)
    }

    fn count_sent(&mut self, more: usize, less: usize) {
        self.sent_bytes = self.sent_bytes + more - less;
        self.sent_bytes_of_door.set(self.sent_bytes_of_door.get() + more - less);
    }

    /// Forgets what this connection has sent longest ago, until it and the door keep no more than they may.
    fn forget(&mut self) {
        while self.sent_bytes > CONNECTION_BYTES || self.sent_bytes_of_door.get() > DOOR_BYTES {
            let sessions = self.sessions.values_mut().map(|session| &mut session.outbox.sent);
            let streams = sessions.chain([&mut self.connection.sent]);
            let oldest = streams.filter_map(|sent| Some((sent.oldest()?, sent))).min_by_key(|(at, _)| *at);
            let Some((_, sent)) = oldest else { return };
            let forgotten = sent.forget();
            self.count_sent(0, forgotten);
        }
    }

    /// All that waits.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn has_open(&self) -> bool {
        self.connection.is_open() || self.sessions.values().any(|session| session.outbox.is_open())
    }
}

impl Drop for Outboxes {
    fn drop(&mut self) {
        self.count_sent(0, self.sent_bytes);
    }
}

/// A line is one event. It has no line break, but may have a carriage return, which ends a line in an event and is only
/// white space between tokens in JSON.
fn event(number: u64, line: &[u8]) -> Bytes {
    let text = String::from_utf8_lossy(line);
    let mut event = format!("id: {number}\ndata: {text}\n\n").into_bytes();
    event.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b' ');
    Bytes::from(event)
}

#[cfg(test)]
mod tests;
