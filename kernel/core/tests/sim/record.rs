//! What peers have sent and received: the facts that the oracle judges by.

use std::collections::{BTreeMap, BTreeSet};

use kernel_core::Moment;
use kernel_core::id::WorkerId;

use crate::auth::AuthState;
use crate::line::Line;

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
    /// Its number among the lines of that peer.
    pub(crate) seq: usize,
    pub(crate) line: Line,
    pub(crate) what: What,
    /// The number of disruptions so far when the bus was given the whole line.
    pub(crate) read: Option<usize>,
    /// How many lines the world had when the bus read it.
    pub(crate) read_at: usize,
    /// The call of the bus in which it was read.
    pub(crate) read_in: usize,
    /// A worker said it while it worked for a client, or could for several: the clients that it served then.
    pub(crate) in_turn_of: Option<BTreeSet<Conn>>,
    /// How many lines the world had when the bus passed it on.
    pub(crate) sent_at: usize,
    /// The call of the bus in which it was passed on.
    pub(crate) sent_in: usize,
    /// The call of the bus in which it was answered.
    pub(crate) done_in: usize,
    /// The peers that the bus has sent it to.
    pub(crate) sent_to: Vec<Peer>,
    /// The processes that have taken its first byte.
    pub(crate) touched: Vec<Life>,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A client's request. `done`: it was answered.
    Ask { kind: Kind, id: Vec<u8>, done: bool },
    /// A client's notification.
    Tell { about: About },
    /// A client's answer under this id.
    Reply { call_id: Option<u64> },
    /// A worker's answer under this id. `opens`: the session that its result names.
    Answer { call_id: Option<u64>, good: bool, opens: Option<String> },
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
    /// `session/cancel`, which is no request in the protocol.
    Cancel(String),
    Close(String),
    Load(String),
    Fork(String),
    Delete(String),
    List,
    /// A request such as authenticate, which goes to every worker with the same handshake.
    Broadcast,
    /// A request to the bus itself.
    Admin,
    TooLong,
}

impl Kind {
    /// The session that it names.
    pub(crate) fn session(&self) -> Option<&str> {
        match self {
            Kind::Session(name)
            | Kind::Cancel(name)
            | Kind::Close(name)
            | Kind::Load(name)
            | Kind::Fork(name)
            | Kind::Delete(name) => Some(name),
            _ => None,
        }
    }
}

impl Sent {
    pub(crate) fn is_request(&self) -> bool {
        matches!(self.what, What::Ask { .. } | What::AgentAsk { .. })
    }

    /// It is a request and was answered.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.what, What::Ask { done: true, .. } | What::AgentAsk { done: true, .. })
    }
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct ClientRecord {
    pub(crate) open: bool,
    /// The bus does not read it: what it has written is not handled yet.
    pub(crate) paused: bool,
    /// It has half-closed its connection.
    pub(crate) ended: bool,
    /// Whether it waited for answers when this call of the bus began, and whether it waits for some when it ends.
    pub(crate) waited: bool,
    pub(crate) waits: bool,
    /// It is gone, and the bus was told so.
    pub(crate) broken: bool,
    /// Its first bytes were no JSON object, so it must be closed, and nothing that it sends may have an effect.
    pub(crate) hostile: bool,
    pub(crate) auth: AuthState,
    /// Its first line and token, if the token was right when it was written.
    pub(crate) hello: Option<(Serial, &'static str)>,
    /// Ids under which it has written an answer that is broken or too long.
    pub(crate) bad_replies: BTreeSet<u64>,
    /// What it was asked and is told to need no answer: its session has ended, or the agent is gone.
    pub(crate) needless: BTreeSet<u64>,
    /// It has said goodbye.
    pub(crate) bye: bool,
    /// The pools that it has chosen, and with which line.
    pub(crate) bound: Vec<(Serial, String)>,
    pub(crate) lines: usize,
    /// It traces the traffic.
    pub(crate) traces: bool,
    /// Its requests that are not answered.
    pub(crate) unanswered: Vec<Serial>,
    /// How many of its lines must be answered by an error without an id.
    pub(crate) bad_lines: usize,
    pub(crate) null_errors: usize,
    /// Requests of agents, by the id that it received.
    pub(crate) asked: BTreeMap<u64, Serial>,
    /// The handshakes that it has sent, with the line.
    pub(crate) handshakes: Vec<(Serial, usize)>,
    /// Those that were refused, and how many lines were sent by then.
    pub(crate) refusals: Vec<(Serial, usize)>,
    /// The newest line of each process that was delivered to it directly.
    pub(crate) newest_of: BTreeMap<Life, usize>,
    pub(crate) came: Moment,
    /// The call in which it left.
    pub(crate) left_in: usize,
    /// When it last took a byte, or when its empty queue was last filled.
    pub(crate) took: Moment,
    /// Bytes that are queued for it.
    pub(crate) untaken: usize,
    /// Since when its queue is over the limit and it has taken nothing.
    pub(crate) full_since: Option<Moment>,
    /// What it has begun is more than white space.
    pub(crate) has_begun_line: bool,
    /// When it gave the bus the last byte so far of a line that has no end yet.
    pub(crate) unfinished: Option<Moment>,
    /// When the line that is not finished began.
    pub(crate) line_began: Option<Moment>,
}

/// One process.
#[derive(Debug, Default)]
pub(crate) struct ProcessRecord {
    pub(crate) pool: String,
    /// How its agent calls itself in its answer to initialize.
    pub(crate) agent: Option<String>,
    /// It can open the sessions of other processes.
    pub(crate) keeps_sessions: bool,
    /// Its place in the pool, which its next life takes over.
    pub(crate) slot: Option<WorkerId>,
    /// Bytes that the bus had for it when it began to end it.
    pub(crate) untaken: usize,
    /// Ids of the requests that it was sent and has not answered.
    pub(crate) owed: BTreeSet<u64>,
    /// Those of them by which the bus itself closes sessions.
    pub(crate) closings: BTreeSet<u64>,
    /// The sessions that the bus itself closes, by these ids, and when it asked for that.
    pub(crate) closing: BTreeMap<u64, (String, Moment)>,
    /// The sessions that the bus has asked it to open again.
    pub(crate) reopens: BTreeSet<String>,
    /// How many lines had been written when these sessions were ended.
    pub(crate) ended_at: BTreeMap<String, usize>,
    /// Ids of requests to load or resume a session that it has answered by telling that a turn runs in it.
    pub(crate) far_turns: BTreeSet<u64>,
    /// Ids under which it has written an answer that is broken or too long, and how many lines it had written by then.
    pub(crate) bad_answers: BTreeMap<u64, usize>,
    /// Ids of the requests that it has begun to read.
    pub(crate) begun: BTreeSet<u64>,
    /// The bus does not read it: what it has written is not handled yet.
    pub(crate) paused: bool,
    /// Ids that it has answered and that are still in `owed`. What it answers while it is ended may be ignored.
    pub(crate) answered: Vec<u64>,
    pub(crate) dedicated: bool,
    /// It has declared that it loads sessions.
    pub(crate) loads: bool,
    /// The option that its pool chooses where it asks for permission.
    pub(crate) permits: Option<&'static str>,
    /// It runs, and the bus has not begun to end it.
    pub(crate) healthy: bool,
    /// The call of the bus in which that ended.
    pub(crate) ended_in: usize,
    /// The bus was told of its exit, or has given it up.
    pub(crate) over: bool,
    pub(crate) lines: usize,
    /// The handshake it was initialized with.
    pub(crate) handshake: Option<usize>,
    /// Requests of clients, by the id that it received.
    pub(crate) asked: BTreeMap<u64, Serial>,
    /// Its requests that are not answered.
    pub(crate) unanswered: Vec<Serial>,
    /// The newest line of each client that was delivered to it.
    pub(crate) newest_of: BTreeMap<Conn, usize>,
    /// The same for each of their sessions.
    pub(crate) newest_about: BTreeMap<(Conn, String), usize>,
    /// Clients whose lines it was sent, or who were sent its initialize result.
    pub(crate) serves: BTreeSet<Conn>,
    /// Labels as it knows them, with the client that they belong to and that client's name for them.
    pub(crate) labels: BTreeMap<String, (Conn, String)>,
    /// Bytes that it sent about sessions that were not open yet.
    pub(crate) early_bytes: usize,
}

impl ProcessRecord {
    pub(crate) fn answers_badly(&mut self, call_id: u64) {
        self.bad_answers.entry(call_id).or_insert(self.lines);
    }
}

/// A session as clients and workers know it.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) life: Life,
    /// The worker's name for it.
    pub(crate) agent: String,
    /// The owner's name for it.
    pub(crate) name: String,
    pub(crate) owner: Option<Conn>,
    /// How many lines the world had when the owner got it.
    pub(crate) since: usize,
    /// The number of the worker's line that opened it.
    pub(crate) opened_at: usize,
    /// A request of a client has opened it in this process.
    pub(crate) is_new: bool,
    /// The request with which the bus makes this process load it again.
    pub(crate) reload: Option<u64>,
    /// The request with which the bus makes this process load or resume it.
    pub(crate) reopened_by: Option<u64>,
    /// It has had more than one owner.
    pub(crate) moved: bool,
    pub(crate) open: bool,
    /// The call of the bus in which it was closed.
    pub(crate) closed_in: usize,
    /// The client that left it last, and in which call. What it had sent before is still passed on in that call.
    pub(crate) left: Option<(Conn, usize)>,
    /// The bus is opening it again in this process. Whether that succeeds shows in the next line to it.
    pub(crate) recovering: bool,
    /// The call of the bus in which it was seen to be open again.
    pub(crate) recovered_in: usize,
    /// The newest line about it that was delivered to its owner.
    pub(crate) newest: Option<usize>,
}

/// The agent's name in a name of the bus. A name of another form is returned as it is.
pub(crate) fn behind_tag(name: &str) -> &str {
    let is_tag = |tag: &str| tag.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
    match name.split_at_checked(13) {
        Some((tag, rest)) if is_tag(tag) && rest.len() > 1 && rest.starts_with('.') => &rest[1..],
        _ => name,
    }
}
