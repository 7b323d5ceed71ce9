//! Checks of the core that the simulation can switch off, one at a time, to show that its oracle would notice.
//!
//! Without the feature `mutants`, which only tests have, every check is enabled and asking costs nothing.

/// A check of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Only the callee of a call can answer it.
    Answerer,
    /// An old id does not answer a new call.
    Generation,
    /// A peer cannot answer what was not written to it.
    Written,
    /// A call ends with its answer.
    Once,
    /// A broken or oversized answer of a worker ends only a call to that worker.
    BadAnswer,
    /// A broken or oversized answer of a client ends only a call to that client.
    BadReply,
    /// A worker can ask in the scope of a request only if the request was sent to it.
    ElicitationScope,
    /// In the scope of an id of its own it can ask only if it serves one client.
    OwnElicitation,
    /// A client cannot load a session that another connected client owns.
    Owner,
    /// A client cannot fork or delete a session that another connected client owns.
    ForkOwner,
    /// A list of sessions does not show those of other connected clients.
    ListOwner,
    /// A kept session goes on with a client only if its worker may serve that client.
    AttachFits,
    /// A client can name only its own sessions.
    OwnNames,
    /// A worker can name only its own sessions.
    OwnSessions,
    /// A message about no session goes to a client only if the worker serves no other.
    OnlyClient,
    /// Nor if a client that has left may have a turn there.
    AbsentClients,
    /// What a worker says about no session is kept for later clients only if it says it in nobody's turn.
    IdleNotice,
    /// And only if no two clients share it.
    SharedNotice,
    /// A client that has half-closed its connection owns its sessions until its calls are answered.
    HalfClosed,
    /// A session that is open in one pool is, through another pool of its store, the same session.
    Store,
    /// An agent that keeps its sessions cannot open one under an id that its store has.
    TakenId,
    /// A session of a pool that does not share is joined by nobody.
    Share,
    /// A guest that only observes is asked nothing and may say nothing.
    Observer,
    /// A guest that does not keep up is let go.
    GuestBehind,
    /// Everybody in a session is told that it has ended, also a client that does not keep up.
    EndTold,
    /// Of a prompt with very many blocks only a part is told to others.
    PromptTold,
    /// A line is logged in the session that it is about.
    LoggedSession,
    /// Of a line in a shared buffer, what follows its edits is queued behind it.
    SharedLine,
    /// The scan of a long line goes on in the middle of a value.
    LongScan,
    /// A client of another version of the protocol cannot join.
    GuestVersion,
    /// What an owner has missed is given to nobody else once more.
    MissedOnce,
    /// A prompt waits for the end of another client's turn.
    OneTurn,
    /// Only so many prompts wait.
    PromptBound,
    /// An error of one of several who were asked is not the answer.
    Abstention,
    /// Those who were asked as well are told that the answer is there.
    Withdrawn,
    /// A worker of a dedicated pool serves one client.
    Dedicated,
    /// Clients with other capabilities are served by another worker.
    Handshake,
    /// What a worker sends about a session before the answer that opens it is held.
    Early,
    /// Only so much of it is held.
    EarlyBound,
    /// Only so much is kept for a client that may come back.
    OfflineBound,
    /// Only so much waits for a worker that is not ready.
    BacklogBound,
    /// What one of several clients lets wait for a worker takes only a part of that.
    BacklogShare,
    /// What waits for a worker is sent in order.
    BacklogOrder,
    /// What an agent tells again while its session is recovered is not shown to the client.
    Replay,
    /// What an agent tells again is not shown to a client that says that it knows it.
    KnownReplay,
    /// A session that its client has open is loaded by the agent.
    LoadOpen,
    /// It is not loaded while a turn runs in it.
    LoadAtRest,
    /// An agent that is asked to close a session is asked to load it again when it has answered that.
    CloseFirst,
    /// A turn that was lost with its worker and goes on behind it is cancelled.
    LostTurn,
    /// A process that has no turn is not told to cancel one.
    TurnGone,
    /// A session that nobody wants any more is not opened again.
    UnsentRecovery,
    /// An agent gets the `session/cancel` that a client sends as a request as the notification that it knows.
    CancelRequest,
    /// Only so many bytes of an agent's requests in one session wait for answers.
    PendingBound,
    /// Only so many of them wait for answers.
    PendingCount,
    /// A session whose client does not come back ends.
    KeepExpires,
    /// A peer that fills a queue is not read until the queue has room.
    Pause,
    /// A peer that takes nothing is given up.
    StallTimeout,
    /// A client that does not finish its line is closed.
    LineTimeout,
    /// A line must end in time, although bytes are added to it.
    LineDeadline,
    /// A line that is too long is not kept.
    LineLimit,
    /// The name of a client is cut.
    NameBound,
    /// A client cannot make the bus keep long params of `initialize`.
    HandshakeBound,
    /// The line of one of several clients takes only a part of what is free.
    LineShare,
    /// Of lines that are too much together the longest is given up.
    LongestLine,
    /// No call is made that exceeds `max_calls` or `max_held_bytes`.
    Room,
    /// A caller has only a part of the calls that are free.
    CallShare,
    /// The calls of a client that has left do not count for `max_calls`.
    CallsGivenBack,
    /// Only so many calls are kept that nobody waits for.
    AbandonedBound,
    /// What a client makes the bus keep takes only a part of what is free.
    KeptShare,
    /// One of several clients has only a part of the sessions that are free.
    SessionShare,
    /// One of several clients cannot have all processes of a pool by being initialized in many ways.
    ProcessShare,
    /// A client that will send nothing more makes room for others.
    MakesRoom,
    /// No more than `max_clients` are connected.
    MaxClients,
    /// A worker has no more than `max_sessions`.
    MaxSessions,
    /// A worker that has told its room gets no more sessions than that.
    ToldRoom,
    /// A worker that drains gets no new session.
    Drain,
    /// A worker on its way out gets no new session.
    Retires,
    /// Workers are restarted one after the other.
    OneByOne,
    /// A restart waits only so long for what cannot go on elsewhere.
    RestartDue,
    /// A session goes to another process only while nothing goes on in it.
    MovesAtRest,
    /// A session that no other process can open stays where it is.
    MovesReopened,
    /// Sessions of an agent that cannot close them leave its process together.
    MovesTogether,
    /// What names a node goes to a worker of that node.
    Node,
    /// Also if its first worker of that node was lost before it could see it.
    MovedNode,
    /// What names a node that is away is refused at once.
    NodeAway,
    /// A node has one process for each handshake.
    OneANode,
    /// A pool has no more than `max_instances`.
    MaxInstances,
    /// A pool none of whose workers can be started does not start more of them.
    GrowAlive,
    /// A client with other capabilities waits for closings that the bus has asked for.
    WaitForClosings,
    /// A closing that the bus has asked for is forgotten if it is not answered.
    CloseTimeout,
    /// A client whose initialize was refused keeps the handshake that it had.
    RefusedHandshake,
    /// What a dead worker owed is answered.
    FailCalls,
    /// Only a call whose line has not begun to be written moves to another worker.
    Unwritten,
    /// A worker that does not answer initialize is stopped.
    InitTimeout,
    /// A worker that owes answers and writes nothing is stopped.
    SilenceTimeout,
    /// A worker that crashed is not started again at once.
    Backoff,
    /// A worker is not started again more often than `max_restarts`.
    RestartLimit,
    /// A process that ignores SIGTERM is killed.
    Kill,
    /// Much work that one event causes is done in pieces.
    WorkPiece,
    /// No request is accepted while the bus stops.
    Stopping,
    /// A connection that does not begin with a JSON object is closed.
    FirstLine,
    /// Nothing that comes without the token has an effect.
    Token,
    /// A connection that does not show the token is closed.
    AuthTimeout,
    /// Of those that have yet to show it, one of the origin that has the most makes room.
    StrangerShare,
    /// Nothing that a rejected connection sends has an effect.
    Rejected,
    /// A tracer that takes nothing is sent nothing more.
    TraceBound,
    /// A tracer sees payloads only where the configuration allows it.
    TracePayloads,
    /// Requests to the bus itself are not traced.
    TraceInternal,
    /// Who has which session is looked up again in a bus that was restored.
    RestoredIndex,
    /// The copy of a log stands behind those that were made before.
    CopyPlace,
    /// Half a line of a peer is saved.
    SavedHalfLine,
    /// The random stream of tags goes on in a bus that was restored.
    SavedTags,
}

impl Check {
    /// Every check, for tests that switch off each in turn.
    pub const ALL: &[Check] = &[
        Check::Answerer,
        Check::Generation,
        Check::Written,
        Check::Once,
        Check::BadAnswer,
        Check::BadReply,
        Check::ElicitationScope,
        Check::OwnElicitation,
        Check::Owner,
        Check::ForkOwner,
        Check::ListOwner,
        Check::AttachFits,
        Check::OwnNames,
        Check::OwnSessions,
        Check::OnlyClient,
        Check::AbsentClients,
        Check::IdleNotice,
        Check::SharedNotice,
        Check::HalfClosed,
        Check::Store,
        Check::TakenId,
        Check::Share,
        Check::Observer,
        Check::GuestBehind,
        Check::EndTold,
        Check::PromptTold,
        Check::LoggedSession,
        Check::SharedLine,
        Check::LongScan,
        Check::GuestVersion,
        Check::MissedOnce,
        Check::OneTurn,
        Check::PromptBound,
        Check::Abstention,
        Check::Withdrawn,
        Check::Dedicated,
        Check::Handshake,
        Check::Early,
        Check::EarlyBound,
        Check::OfflineBound,
        Check::BacklogBound,
        Check::BacklogShare,
        Check::BacklogOrder,
        Check::Replay,
        Check::KnownReplay,
        Check::LoadOpen,
        Check::LoadAtRest,
        Check::CloseFirst,
        Check::LostTurn,
        Check::TurnGone,
        Check::UnsentRecovery,
        Check::CancelRequest,
        Check::PendingBound,
        Check::PendingCount,
        Check::KeepExpires,
        Check::Pause,
        Check::StallTimeout,
        Check::LineTimeout,
        Check::LineDeadline,
        Check::LineLimit,
        Check::NameBound,
        Check::HandshakeBound,
        Check::LineShare,
        Check::LongestLine,
        Check::Room,
        Check::CallShare,
        Check::CallsGivenBack,
        Check::AbandonedBound,
        Check::KeptShare,
        Check::SessionShare,
        Check::ProcessShare,
        Check::MakesRoom,
        Check::MaxClients,
        Check::MaxSessions,
        Check::ToldRoom,
        Check::Drain,
        Check::Retires,
        Check::OneByOne,
        Check::RestartDue,
        Check::MovesAtRest,
        Check::MovesReopened,
        Check::MovesTogether,
        Check::Node,
        Check::MovedNode,
        Check::NodeAway,
        Check::OneANode,
        Check::MaxInstances,
        Check::GrowAlive,
        Check::WaitForClosings,
        Check::CloseTimeout,
        Check::RefusedHandshake,
        Check::FailCalls,
        Check::Unwritten,
        Check::InitTimeout,
        Check::SilenceTimeout,
        Check::Backoff,
        Check::RestartLimit,
        Check::Kill,
        Check::WorkPiece,
        Check::Stopping,
        Check::FirstLine,
        Check::Token,
        Check::AuthTimeout,
        Check::StrangerShare,
        Check::Rejected,
        Check::TraceBound,
        Check::TracePayloads,
        Check::TraceInternal,
        Check::RestoredIndex,
        Check::CopyPlace,
        Check::SavedHalfLine,
        Check::SavedTags,
    ];

    /// Those that count only where a bus is saved and restored.
    pub const OF_UPGRADES: &[Check] =
        &[Check::RestoredIndex, Check::CopyPlace, Check::SavedHalfLine, Check::SavedTags];
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn enabled(_: Check) -> bool {
    true
}

#[cfg(feature = "mutants")]
pub(crate) fn enabled(check: Check) -> bool {
    switch::OFF.get() != Some(check)
}

#[cfg(feature = "mutants")]
pub use switch::with_check_off;

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Check;

    thread_local! {
        pub(crate) static OFF: Cell<Option<Check>> = const { Cell::new(None) };
    }

    /// Runs something on this thread without this check, which is enabled again afterwards, also after a panic.
    pub fn with_check_off<T>(check: Check, run: impl FnOnce() -> T) -> T {
        struct Restore(Option<Check>);

        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }

        let _restore = Restore(OFF.replace(Some(check)));
        run()
    }
}
