//! Checks of the core that the simulation can switch off, one at a time, to show that its oracle would notice.
//!
//! Without the feature `mutants`, which only tests have, every check is on and costs nothing extra.

/// A check that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Only the callee can answer a call.
    Answerer,
    /// An old id does not answer a new call.
    Generation,
    /// A peer cannot answer a request that was not written to it.
    Written,
    /// A call ends with its answer.
    Once,
    /// A session of a connected client cannot be taken over.
    Owner,
    /// A client can name only its own sessions.
    OwnNames,
    /// A worker can name only its own sessions.
    OwnSessions,
    /// Messages of a session that arrive before the answer that opens it are kept until then.
    Early,
    /// The backlog of a worker is sent in order.
    BacklogOrder,
    /// A peer that fills a queue is not read until the queue has room.
    Pause,
    /// A line that is too long is not kept.
    LineLimit,
    /// No call is made while the bus holds too much.
    Room,
    /// The calls of a dead worker fail.
    FailCalls,
    /// A call moves to another worker only if none of its line was written.
    Unwritten,
    /// A connection that does not begin with a JSON object is closed.
    FirstLine,
    /// Nothing is handled from a connection that has not shown the token.
    Token,
    /// A session whose client does not come back in time ends.
    KeepExpires,
    /// Clients with different handshakes have different workers.
    Handshake,
    /// A tracer that does not read gets no more events.
    TraceBound,
}

impl Check {
    /// All checks.
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

    /// Runs something on this thread with the check off. The check is on again afterwards, also after a panic.
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
