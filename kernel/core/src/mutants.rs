//! Guards of the core that the simulation can switch off, one at a time, to show that its oracle would notice.
//!
//! Without the feature `mutants`, which only tests have, every guard stands and asking costs nothing.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Only the one asked can answer.
    Answerer,
    /// An old id does not answer a new call.
    Generation,
    /// What was not written to a peer cannot be answered by it.
    Written,
    /// A call ends with its answer.
    Once,
    /// A session that somebody connected holds cannot be taken up.
    Owner,
    /// A client speaks only of its own sessions.
    OwnNames,
    /// A worker speaks only of its own sessions.
    OwnSessions,
    /// What a worker says of a session before its answer opens it is held.
    Early,
    /// What waits for a worker is said in order.
    BacklogOrder,
    /// Whoever fills a queue is not read until it has room.
    Pause,
    /// A line that is too long is not kept.
    LineLimit,
    /// No call is made that the house has no room for.
    Room,
    /// What a dead worker owed is answered.
    FailCalls,
    /// Only a call whose line has not begun to be written moves.
    Unwritten,
    /// What does not begin like a JSON object is closed.
    FirstLine,
    /// Without the token nothing is heard.
    Token,
    /// A session whose client does not come back ends.
    KeepExpires,
    /// Clients of another handshake meet another worker.
    Handshake,
    /// Who follows the traffic and takes nothing is told nothing more.
    TraceBound,
}

impl Check {
    pub const ALL: [Check; 19] = [
        Check::Answerer,
        Check::Generation,
        Check::Written,
        Check::Once,
        Check::Owner,
        Check::OwnNames,
        Check::OwnSessions,
        Check::Early,
        Check::BacklogOrder,
        Check::Pause,
        Check::LineLimit,
        Check::Room,
        Check::FailCalls,
        Check::Unwritten,
        Check::FirstLine,
        Check::Token,
        Check::KeepExpires,
        Check::Handshake,
        Check::TraceBound,
    ];
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn enabled(_: Check) -> bool {
    true
}

#[cfg(feature = "mutants")]
pub(crate) fn enabled(guard: Check) -> bool {
    switch::OFF.get() != Some(guard)
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

    /// Runs something on this thread without the guard, which stands again afterwards, also after a panic.
    pub fn with_check_off<T>(guard: Check, run: impl FnOnce() -> T) -> T {
        struct Restore(Option<Check>);

        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }

        let _restore = Restore(OFF.replace(Some(guard)));
        run()
    }
}
