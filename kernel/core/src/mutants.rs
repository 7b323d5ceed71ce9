//! Guards of the core that the simulation can switch off, one at a time, to show that its oracle would notice.
//!
//! Without the feature `mutants`, which only tests have, every guard stands and asking costs nothing.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
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
    WaitsInOrder,
    /// Whoever fills a queue is not read until it has room.
    HoldUp,
    /// A line that is too long is not kept.
    LineLimit,
    /// No call is made that the house has no room for.
    Room,
    /// What a dead worker owed is answered.
    Mourning,
    /// Only a call whose line has not begun to be written moves.
    Unwritten,
    /// What does not begin like a JSON object is closed.
    FirstLine,
    /// Without the token nothing is heard.
    Token,
    /// A session whose client does not come back ends.
    KeepEnds,
    /// Clients of another handshake meet another worker.
    Handshake,
    /// Who follows the traffic and takes nothing is told nothing more.
    TraceBound,
}

impl Guard {
    pub const ALL: [Guard; 19] = [
        Guard::Answerer,
        Guard::Generation,
        Guard::Written,
        Guard::Once,
        Guard::Owner,
        Guard::OwnNames,
        Guard::OwnSessions,
        Guard::Early,
        Guard::WaitsInOrder,
        Guard::HoldUp,
        Guard::LineLimit,
        Guard::Room,
        Guard::Mourning,
        Guard::Unwritten,
        Guard::FirstLine,
        Guard::Token,
        Guard::KeepEnds,
        Guard::Handshake,
        Guard::TraceBound,
    ];
}

#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn stands(_: Guard) -> bool {
    true
}

#[cfg(feature = "mutants")]
pub(crate) fn stands(guard: Guard) -> bool {
    switch::OFF.get() != Some(guard)
}

#[cfg(feature = "mutants")]
pub use switch::with_guard_off;

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Guard;

    thread_local! {
        pub(crate) static OFF: Cell<Option<Guard>> = const { Cell::new(None) };
    }

    /// Runs something on this thread without the guard, which stands again afterwards, also after a panic.
    pub fn with_guard_off<T>(guard: Guard, run: impl FnOnce() -> T) -> T {
        struct Restore(Option<Guard>);

        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }

        let _restore = Restore(OFF.replace(Some(guard)));
        run()
    }
}
