//! What peers have sent and seen: the facts that the oracle judges by. Knows nothing of the core.

use std::collections::{BTreeMap, BTreeSet};

use kernel_core::Moment;

use crate::line::Line;
use crate::stranger::Pass;

/// A line of a peer, counted over the whole run.
pub(crate) type Serial = usize;
/// A connection of a client, counted over the whole run.
pub(crate) type Conn = usize;
/// A process, counted over the whole run.
pub(crate) type Life = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    Client(Conn),
    Worker(Life),
}

/// A marked line that a peer has written.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) by: Peer,
    /// Its place among the lines of that peer.
    pub(crate) seq: usize,
    pub(crate) line: Line,
    pub(crate) what: What,
    /// Given whole to the bus, after so many troubles with processes.
    pub(crate) read: Option<usize>,
    /// How many lines there were in the world when the bus read it.
    pub(crate) read_at: usize,
    /// The same when the bus said it.
    pub(crate) said_at: usize,
    /// In which call of the bus.
    pub(crate) said_in: usize,
    /// To whom the bus has said it.
    pub(crate) said_to: Vec<Peer>,
    /// Processes that took its first byte.
    pub(crate) touched: Vec<Life>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A client's request. `done`: it was answered.
    Ask { kind: Kind, id: Vec<u8>, done: bool },
    /// A client's notification.
    Tell { about: About },
    /// A client's answer under this id.
    Reply { wire: Option<u64> },
    /// A worker's answer under this id. `opens`: the session that its result names.
    Answer { wire: Option<u64>, good: bool, opens: Option<String> },
    /// A worker's request. `done`: it was answered.
    AgentAsk { about: About, id: Vec<u8>, done: bool },
    /// A worker's notification. `early`: the session is not open yet.
    AgentTell { about: About, child: Option<String>, early: bool },
}

/// What a line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Nothing,
    /// A session, by the sender's name for it.
    Session(String),
    /// A label, by the sender's name for it.
    Label(String),
    /// A request, by the sender's id for it.
    Request(Vec<u8>),
    /// An elicitation that this line began.
    Elicited(Serial),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Label(String),
    Initialize(usize),
    New,
    Session(String),
    Close(String),
    Load(String),
    Fork(String),
    Delete(String),
    List,
    /// authenticate and its like: to every worker of a kind.
    TellAll,
    /// To the bus itself.
    House,
    TooLong,
}

impl Kind {
    /// The session that it names.
    pub(crate) fn session(&self) -> Option<&str> {
        match self {
            Kind::Session(name)
            | Kind::Close(name)
            | Kind::Load(name)
            | Kind::Fork(name)
            | Kind::Delete(name) => Some(name),
            _ => None,
        }
    }
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct ConnBook {
    pub(crate) open: bool,
    /// It has told its end.
    pub(crate) ended: bool,
    /// It is gone, and the bus was told.
    pub(crate) broken: bool,
    /// What it sent first was no JSON object: it must be closed, and nothing of it may have an effect.
    pub(crate) hostile: bool,
    pub(crate) pass: Pass,
    /// Its first line, if that shows a token that was right when it was written.
    pub(crate) hello: Option<(Serial, &'static str)>,
    pub(crate) lines: usize,
    /// It follows the traffic.
    pub(crate) traces: bool,
    /// Requests not answered.
    pub(crate) waits_for: Vec<Serial>,
    /// Lines that must each be answered by an error without an id.
    pub(crate) bad_lines: usize,
    pub(crate) null_errors: usize,
    /// What agents asked it, by the id it saw.
    pub(crate) asked: BTreeMap<u64, Serial>,
    /// Handshakes it has sent, by the place of the line.
    pub(crate) handshakes: Vec<(Serial, usize)>,
    /// The newest line of each process that it was told directly.
    pub(crate) newest_of: BTreeMap<Life, usize>,
    /// When it last took a byte, or was told the first one after it had taken all.
    pub(crate) took: Moment,
    /// Said and not taken.
    pub(crate) untaken: usize,
    /// When it gave the bus the last byte so far of a line that has no end yet.
    pub(crate) unfinished: Option<Moment>,
}

/// One process.
#[derive(Debug, Default)]
pub(crate) struct LifeBook {
    pub(crate) pool: String,
    pub(crate) dedicated: bool,
    /// The option that its pool chooses where it asks for permission.
    pub(crate) permits: Option<&'static str>,
    /// It runs, and the bus has not begun to end it.
    pub(crate) well: bool,
    /// The bus was told of its exit, or has given it up.
    pub(crate) over: bool,
    pub(crate) lines: usize,
    /// The handshake it was initialized with.
    pub(crate) handshake: Option<usize>,
    /// What clients asked it, by the id it saw.
    pub(crate) asked: BTreeMap<u64, Serial>,
    /// Its requests that are not answered.
    pub(crate) waits_for: Vec<Serial>,
    /// The newest line of each client that it was told.
    pub(crate) newest_of: BTreeMap<Conn, usize>,
    /// The same of each of their sessions.
    pub(crate) newest_about: BTreeMap<(Conn, String), usize>,
    /// Clients that have spoken to it, or heard its greeting.
    pub(crate) serves: BTreeSet<Conn>,
    /// Labels as it knows them: whose, and that client's name.
    pub(crate) labels: BTreeMap<String, (Conn, String)>,
    /// What it said of sessions that were not open yet.
    pub(crate) early_bytes: usize,
}

/// A session as clients and workers have come to know it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) life: Life,
    /// The worker's name for it.
    pub(crate) agent: String,
    /// The owner's name for it.
    pub(crate) name: String,
    pub(crate) owner: Option<Conn>,
    /// How many lines there were in the world when it became the owner's.
    pub(crate) since: usize,
    /// The place of the line of the worker that opened it.
    pub(crate) opened_at: usize,
    /// It has had more than one owner.
    pub(crate) moved: bool,
    pub(crate) open: bool,
    /// In which call of the bus it was closed.
    pub(crate) closed_in: usize,
    /// Who left it last, and in which call: what it had said before is still carried in that one.
    pub(crate) left: Option<(Conn, usize)>,
    /// The newest line about it that its owner was told.
    pub(crate) newest: Option<usize>,
}

/// The agent's name in a bus name, if it has the form of one.
pub(crate) fn behind_tag(name: &str) -> &str {
    let is_tag = |tag: &str| tag.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
    match name.split_at_checked(13) {
        Some((tag, rest)) if is_tag(tag) && rest.len() > 1 && rest.starts_with('.') => &rest[1..],
        _ => name,
    }
}
