//! A worker: a slot for a process in a pool, what the process there was told, and what waits for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::{Exit, Moment};
use crate::config::{Mode, PoolConfig};
use crate::id::{CallKey, Link, PoolId, SessionKey};
use crate::limit::{
    ELICITATIONS, EXIT_NO_NODE, EXITS_FOR_GOOD, NAME_BYTES, RESTART_AT_ONCE_AFTER, STICKY_NOTIFICATION_BYTES,
    STICKY_NOTIFICATIONS_MAX,
};
use crate::mutants::{Check, enabled};
use crate::state::backlog::{Backlog, Early, HeldBytes, Kept, Queued, Waiting};
use crate::state::calls::EndpointId;
use crate::state::handshake::{AgentCapabilities, Handshake};
use crate::state::lifecycle::{Life, State};
use crate::state::mcp_servers::McpServers;
use crate::state::session_id::Token;
use crate::state::session_names::SessionNames;
use crate::state::stderr_tail::StderrTail;
use crate::wire::error::{Death, RpcError};
use crate::wire::message::Message;
use crate::wire::scan::Span;

#[derive(Serialize, Deserialize)]
pub(crate) struct Worker {
    pub(crate) pool: PoolId,
    /// How it is started. If the pool's has changed since, this worker is `retiring`.
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) index: u32,
    pub(crate) endpoint: EndpointId,
    pub(crate) life: Life,
    /// The node that it works at: another bus, most likely on another machine.
    pub(crate) node: Option<Arc<str>>,
    /// Its process is started for that node, and so is the next one. Else the node is what its process has told.
    pub(crate) is_for_node: bool,
    /// Its last process has not reached that node.
    pub(crate) is_away: bool,
    /// It takes no new work, and leaves when it is idle, at the latest at `retire_by`. One that is to be restarted
    /// after others may have that before.
    pub(crate) retiring: bool,
    pub(crate) retire_by: Option<Moment>,
    /// Set by `_bus/restart` and `_bus/drain`: idle sessions of this worker move to other workers.
    pub(crate) leaves_for: Option<Recycled>,
    pub(crate) hand_over_pass: HandOverPass,
    /// In a dedicated pool: the one client that it serves.
    pub(crate) dedicated_to: Option<Link>,
    /// When it must have answered `initialize`.
    pub(crate) initialize_by: Moment,
    /// When it was told to initialize.
    #[serde(default)]
    pub(crate) initialize_at: Moment,
    /// Since when it has been idle, as far as the bus has looked.
    pub(crate) idle_since: Option<Moment>,
    /// Why the bus has begun to end this life, if it was not for a fault.
    pub(crate) recycling: Option<Recycled>,
    /// Why the bus ended a life for the last time, without a fault.
    pub(crate) last_recycled: Option<Recycled>,
    /// Why the last start failed or how the last life ended, for people.
    pub(crate) last_error: Option<String>,
    pub(crate) last_exit: Option<Exit>,
    /// Requests that clients sent it in all its lives.
    pub(crate) requests: u64,
    /// The worker is replaced after its answers to `session/close`. Its other output is ignored.
    pub(crate) closes_first: bool,
    /// Its output is dropped: its calls have failed already, or it is being replaced.
    pub(crate) ignored: bool,
    /// How this life ends, once it does.
    pub(crate) death: Death,
    /// The error for calls that were never written to the worker. Set when the worker stops reading.
    pub(crate) unseen_error: Option<RpcError>,

    // What follows belongs to one life; see `forget`.
    /// Its pipes, from the order to start until the process is gone.
    pub(crate) link: Option<Link>,
    pub(crate) pid: Option<u32>,
    pub(crate) init: Init,
    pub(crate) capabilities: AgentCapabilities,
    /// How many sessions it takes in all, by what it has said of its room. `None`: as many as its pool says.
    pub(crate) capacity: Option<usize>,
    /// It has said that it takes no new sessions.
    pub(crate) drains: bool,
    /// It was logged that it says something else of its node than it said before.
    pub(crate) node_warned: bool,
    /// What it calls its agent.
    pub(crate) agent: Option<Arc<str>>,
    /// What is written once it is ready, in order.
    pub(crate) backlog: Backlog<Queued>,
    /// How many bytes of `backlog` each client has let wait.
    waiting_of: BTreeMap<Link, usize>,
    /// Its sessions by the agent's names.
    pub(crate) sessions: SessionNames,
    /// The session of its last message, and most likely of its next. It may be gone.
    pub(crate) last_session: Option<SessionKey>,
    /// What the bus has asked it to close and it has not answered, by its names.
    pub(crate) closings: HashMap<Token, CallKey>,
    /// It has told of sessions of subagents that are not in `sessions`: they were too many, or have too long a name.
    pub(crate) has_unknown_children: bool,
    /// How many of `sessions` are labels, which the agent does not know.
    pub(crate) labels: usize,
    /// Clients that it serves or has served.
    pub(crate) clients: BTreeSet<Link>,
    pub(crate) early: Early,
    /// The last session-less notification of each method, for clients that come later.
    pub(crate) sticky_notifications: Vec<StickyNotification>,
    /// The MCP servers that clients offer over their own connections.
    pub(crate) mcp_servers: McpServers,
    /// The client that each elicitation went to.
    elicitations: VecDeque<(Box<[u8]>, Link)>,
    kept: Kept,
    /// When it last wrote a line, or was first asked something.
    pub(crate) last_output: Moment,
    /// How many lines it has written.
    pub(crate) lines_in: u64,
    pub(crate) stderr: StderrTail,
}

/// How far its initialization is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Init {
    /// It was told nothing, and suits any client.
    NotSent,
    /// It will be initialized like this once it is up.
    Reserved(Arc<Handshake>),
    /// `initialize` is sent and not answered.
    Sent(Arc<Handshake>),
    /// It serves clients of this handshake. `result`: its answer; none for the plain handshake.
    Ready { handshake: Arc<Handshake>, result: Option<Arc<InitResult>> },
}

/// Why the bus ends a process that has no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Recycled {
    /// A client with other capabilities needs its place.
    Handshake,
    /// It refused an `initialize`, and gets no second one.
    Refused,
    /// It is above `instances` and has had nothing to do.
    Idle,
    /// Its pool has changed or is gone.
    Reload,
    /// It was dedicated to a client that has left.
    ClientLeft,
    /// It has said that it takes no new sessions, or somebody has drained it, and it has none any more.
    Drained,
    /// Somebody asked for a restart.
    Restart,
    /// The bus stops.
    Stop,
}

impl Recycled {
    /// The reason for `_bus/status` and the log.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Recycled::Handshake => "other capabilities",
            Recycled::Refused => "initialize refused",
            Recycled::Idle => "idle",
            Recycled::Reload => "reload",
            Recycled::ClientLeft => "client left",
            Recycled::Drained => "drained",
            Recycled::Restart => "restart",
            Recycled::Stop => "stop",
        }
    }
}

/// The answer of a worker to `initialize`. Every client of the worker gets it, each under its own id.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InitResult {
    #[serde(with = "serde_bytes")]
    pub(crate) line: Box<[u8]>,
    pub(crate) id: Span,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StickyNotification {
    method: Box<[u8]>,
    #[serde(with = "serde_bytes")]
    pub(crate) line: Box<[u8]>,
}

/// How far a worker that is on its way out has looked for sessions that can go on elsewhere.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct HandOverPass {
    /// The last session of the current pass. `None`: the next one begins anew.
    pub(crate) at: Option<SessionKey>,
    /// When the next pass may begin.
    pub(crate) next: Moment,
}

/// How a process ends that finds no node.
const NO_NODE: Exit = Exit::Code(EXIT_NO_NODE);

impl Worker {
    pub(crate) fn new(
        pool: PoolId,
        config: Arc<PoolConfig>,
        index: u32,
        node: Option<Arc<str>>,
        endpoint: EndpointId,
        now: Moment,
    ) -> Worker {
        Worker {
            pool,
            config,
            index,
            endpoint,
            life: Life::new(now),
            is_for_node: node.is_some(),
            node,
            is_away: false,
            retiring: false,
            retire_by: None,
            leaves_for: None,
            hand_over_pass: HandOverPass::default(),
            dedicated_to: None,
            initialize_by: Moment::ZERO,
            initialize_at: Moment::ZERO,
            idle_since: None,
            recycling: None,
            last_recycled: None,
            last_error: None,
            last_exit: None,
            requests: 0,
            closes_first: false,
            ignored: false,
            death: Death::Hung,
            unseen_error: None,
            link: None,
            pid: None,
            init: Init::NotSent,
            capabilities: AgentCapabilities::default(),
            capacity: None,
            drains: false,
            node_warned: false,
            agent: None,
            backlog: Backlog::default(),
            waiting_of: BTreeMap::new(),
            has_unknown_children: false,
            closings: HashMap::new(),
            sessions: SessionNames::default(),
            last_session: None,
            labels: 0,
            clients: BTreeSet::new(),
            early: Early::default(),
            sticky_notifications: Vec::new(),
            mcp_servers: McpServers::default(),
            elicitations: VecDeque::new(),
            kept: Kept::default(),
            last_output: now,
            lines_in: 0,
            stderr: StderrTail::default(),
        }
    }

    /// Forgets what was true of this life only. What the next life is reserved for stays.
    pub(crate) fn forget(&mut self, held: &mut HeldBytes) {
        if !matches!(self.init, Init::Reserved(_)) {
            self.init = Init::NotSent;
            self.dedicated_to = None;
            self.sessions = SessionNames::default();
            self.labels = 0;
            self.clients.clear();
            self.mcp_servers = McpServers::default();
        }
        self.capabilities = AgentCapabilities::default();
        (self.capacity, self.drains, self.node_warned) = (None, false, false);
        self.has_unknown_children = false;
        // In a pool that names its nodes, a slot stays with its node. Elsewhere it does while somebody wants the node.
        let is_kept = !self.config.nodes.is_empty() || matches!(self.init, Init::Reserved(_)) || self.is_away;
        if !(self.is_for_node && is_kept) {
            self.leave_node();
        }
        self.agent = None;
        drop(self.early.take(held));
        self.sticky_notifications = Vec::new();
        self.elicitations = VecDeque::new();
        self.count(held);
        self.last_session = None;
        self.closings = HashMap::new();
        self.pid = None;
        self.lines_in = 0;
        self.death = Death::Hung;
        self.recycling = None;
        self.closes_first = false;
    }

    /// Whether it has a session of this name, which it was told to close and has not answered for.
    pub(crate) fn is_closing(&self, agent: &[u8]) -> bool {
        self.ready_link().is_some() && self.closings.contains_key(agent) && enabled(Check::CloseFirst)
    }

    /// What those who called it hear when it is lost. `bus`: the name of this bus.
    pub(crate) fn lost_error(&self, bus: Option<&str>) -> RpcError {
        let error = match &self.node {
            Some(node) if self.is_away => {
                RpcError::node_lost(&self.config, node, &format!("its process {}", self.death))
            }
            _ if self.config.finds_nodes && self.death == Death::Exited(NO_NODE) && self.lines_in == 0 => {
                RpcError::pool_down(&self.config, &self.death.to_string())
            }
            node => RpcError::worker_lost(&self.config, self.index, node.as_deref().or(bus), &self.death),
        };
        self.explain(error)
    }

    /// Adds what its process wrote to stderr. Of one that is for a node or finds one, the last line says why the node
    /// cannot be reached, so the message has it too: people see no more than that.
    pub(crate) fn explain(&self, error: RpcError) -> RpcError {
        let is_far = self.config.finds_nodes || self.node.is_some();
        let reason = if is_far { self.stderr.reason() } else { String::new() };
        error.with_reason(&reason).with_stderr(self.stderr.last_lines())
    }

    /// The bus is about to end this life on purpose. If it has ended already, that was for another reason.
    pub(crate) fn recycle(&mut self, why: Recycled) {
        if matches!(self.life.state(), State::Up | State::Starting) {
            self.recycling = Some(why);
        }
    }

    pub(crate) fn handshake(&self) -> Option<&Arc<Handshake>> {
        match &self.init {
            Init::NotSent => None,
            Init::Reserved(handshake) | Init::Sent(handshake) | Init::Ready { handshake, .. } => {
                Some(handshake)
            }
        }
    }

    /// Where its agent keeps sessions. None: as far as it knows, where the others of its pool do.
    pub(crate) fn store(&self) -> Option<&Arc<str>> {
        self.config.store.as_ref().or(self.agent.as_ref())
    }

    /// Whether it has this handshake, or can still get it.
    pub(crate) fn is_compatible(&self, handshake: &Handshake) -> bool {
        self.handshake().is_none_or(|own| **own == *handshake || !enabled(Check::Handshake))
    }

    /// Its processes are started for this node from now on.
    pub(crate) fn go_to_node(&mut self, node: Arc<str>) {
        (self.node, self.is_for_node, self.is_away) = (Some(node), true, false);
    }

    /// Its next process is started for no node.
    pub(crate) fn leave_node(&mut self) {
        (self.node, self.is_for_node, self.is_away) = (None, false, false);
    }

    /// Whether its node is away: its last process has not reached it, and the next one is not started yet.
    pub(crate) fn has_lost_node(&self) -> bool {
        let has_process = matches!(self.life.state(), State::Starting | State::Up);
        self.is_away && !has_process && enabled(Check::NodeAway)
    }

    /// Whether its process finds a node by itself, and has not said that it never will.
    pub(crate) fn looks_for_node(&self) -> bool {
        let is_useless =
            matches!(self.death, Death::Exited(Exit::Code(code)) if EXITS_FOR_GOOD.contains(&code));
        self.config.finds_nodes && !is_useless
    }

    /// Whether its processes are to find a node and have found none for a while, so that nobody waits for the next one.
    pub(crate) fn finds_no_node(&self) -> bool {
        let has_found_none = self.last_exit == Some(NO_NODE);
        self.config.finds_nodes && !self.is_for_node && self.life.rests_long() && has_found_none
    }

    /// Whether it is not known yet if its process reaches a node that the last one did not.
    pub(crate) fn is_doubtful(&self, now: Moment) -> bool {
        let is_young = |since| now < since + RESTART_AT_ONCE_AFTER;
        self.is_away && self.lines_in == 0 && self.life.up_since().is_none_or(is_young)
    }

    /// Whether it is not up but will be soon, so that requests wait for it.
    pub(crate) fn is_coming(&self) -> bool {
        self.life.is_coming() && !self.has_lost_node() && !self.finds_no_node()
    }

    /// Whether it has no process and nobody waits for one, so that its next one can be started for any node.
    pub(crate) fn is_free_slot(&self) -> bool {
        matches!(self.life.state(), State::Backoff { .. })
            && matches!(self.init, Init::NotSent)
            && self.sessions.is_empty()
            && self.backlog.is_empty()
            && !self.retiring
    }

    /// Whether it takes no new sessions, while those that it has go on.
    pub(crate) fn is_draining(&self) -> bool {
        self.drains && enabled(Check::Drain)
    }

    /// How many sessions of the agent are open, which is what `max_sessions` limits.
    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.len() - self.labels
    }

    /// Its link, if lines can be written to it now.
    pub(crate) fn ready_link(&self) -> Option<Link> {
        match self.init {
            Init::Ready { .. } => self.link,
            _ => None,
        }
    }

    /// This of a client waits until it is ready.
    pub(crate) fn queue_for(&mut self, client: Link, item: Queued, held: &mut HeldBytes) {
        *self.waiting_of.entry(client).or_default() += item.bytes();
        self.backlog.push(item, held);
    }

    /// How many bytes of this client wait for it.
    pub(crate) fn waiting_of(&self, client: Link) -> usize {
        self.waiting_of.get(&client).copied().unwrap_or(0)
    }

    /// Takes out what waits for it, which still counts as held.
    pub(crate) fn move_backlog(&mut self) -> Backlog<Queued> {
        self.waiting_of.clear();
        std::mem::take(&mut self.backlog)
    }

    /// Takes out what waits for it.
    pub(crate) fn take_backlog(&mut self, held: &mut HeldBytes) -> VecDeque<Queued> {
        self.waiting_of.clear();
        let mut backlog = self.backlog.take(held);
        if !enabled(Check::BacklogOrder) {
            backlog.make_contiguous().reverse();
        }
        backlog
    }

    /// A client was placed here.
    pub(crate) fn serve(&mut self, client: Link) {
        self.clients.insert(client);
        self.idle_since = None;
        self.dedicate(client);
    }

    /// In a dedicated pool: it serves this client alone from now on.
    pub(crate) fn dedicate(&mut self, client: Link) {
        if self.config.mode == Mode::Dedicated {
            self.dedicated_to = Some(client);
        }
    }

    /// Keeps a session-less notification for clients that come later. A newer one of its method replaces it.
    pub(crate) fn keep_notification(&mut self, message: Message<'_>, held: &mut HeldBytes) {
        if message.line.len() > STICKY_NOTIFICATION_BYTES {
            return;
        }
        let method = message.method();
        self.sticky_notifications.retain(|kept| *kept.method != *method);
        if self.sticky_notifications.len() < STICKY_NOTIFICATIONS_MAX {
            let kept = StickyNotification { method: method.into(), line: message.line.into() };
            self.sticky_notifications.push(kept);
        }
        self.count(held);
    }

    /// A client has left.
    pub(crate) fn forget_client(&mut self, client: Link, held: &mut HeldBytes) {
        self.clients.remove(&client);
        self.mcp_servers.remove_client(client);
        self.count(held);
    }

    /// Remembers the client that an elicitation went to.
    pub(crate) fn add_elicitation(&mut self, name: &[u8], client: Link, held: &mut HeldBytes) {
        if name.len() > NAME_BYTES {
            return;
        }
        if self.elicitations.len() >= ELICITATIONS {
            self.elicitations.pop_front();
        }
        self.elicitations.push_back((name.into(), client));
        self.count(held);
    }

    /// The client that this elicitation went to. It is forgotten.
    pub(crate) fn take_elicitation(&mut self, name: &[u8], held: &mut HeldBytes) -> Option<Link> {
        let at = self.elicitations.iter().position(|(known, _)| **known == *name)?;
        let (_, client) = self.elicitations.remove(at)?;
        self.count(held);
        Some(client)
    }

    /// What its process makes the bus keep beside lines.
    fn kept_bytes(&self) -> usize {
        let notifications = self.sticky_notifications.iter().map(|kept| kept.method.len() + kept.line.len());
        let elicitations = self.elicitations.iter().map(|(name, _)| name.len());
        notifications.chain(elicitations).sum::<usize>() + self.mcp_servers.bytes()
    }

    /// The bytes of it that count as held.
    pub(crate) fn check_kept(&self) -> usize {
        self.kept.check(self.kept_bytes())
    }

    pub(crate) fn count(&mut self, held: &mut HeldBytes) {
        self.kept.set(self.kept_bytes(), held);
    }

    /// Its state for `_bus/status`.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.life.state() {
            State::Backoff { .. } => "resting",
            State::Starting => "starting",
            State::Up if self.retiring => "retiring",
            State::Up if self.is_draining() => "draining",
            State::Up if matches!(self.init, Init::Sent(_)) => "initializing",
            State::Up => "up",
            State::Closing { .. }
            | State::Ending { .. }
            | State::Terminating { .. }
            | State::Killed { .. } => "stopping",
            State::Exhausted { .. } => "broken",
            State::Gone => "gone",
        }
    }
}

/// `POOL/INDEX`, and `@NODE` behind it, as logs and errors name a worker.
impl fmt::Display for Worker {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.config.id, self.index)?;
        match &self.node {
            Some(node) => write!(out, "@{node}"),
            None => Ok(()),
        }
    }
}
