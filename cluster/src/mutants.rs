//! Checks of the pipe that the simulation can switch off, one at a time, to show that its oracle would notice.
//!
//! Without the feature `mutants`, which only tests have, every check is enabled and asking costs nothing.

/// A check of the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// A frame of another version is not read.
    Version,
    /// A frame whose bytes have changed is not read.
    Checksum,
    /// A frame of an older pipe is not read.
    PipeNumber,
    /// A frame that comes from this end is not read.
    OwnFrame,
    /// A frame that has arrived before is not taken again.
    Duplicate,
    /// A frame is taken only when all before it has arrived.
    Order,
    /// A frame that overlaps what has arrived is not taken.
    Overlap,
    /// What lies beyond the offered window is not taken.
    ReceiveCredit,
    /// Nothing follows the end of a stream.
    AfterEnd,
    /// No more is sent than the peer has offered to take.
    SendCredit,
    /// No more frames are on their way than a peer has to expect.
    FrameLimit,
    /// The owner cannot write more than a window ahead.
    WriteLimit,
    /// Nothing is confirmed that was not sent.
    AckClamp,
    /// What is not confirmed is kept.
    KeepUntilAcked,
    /// What is missing is asked for, and sent again.
    Nack,
    /// It is asked for at most every 50 ms.
    NackLimit,
    /// A peer that asks again and again is not sent everything each time.
    GoBackLimit,
    /// What was not confirmed is sent again over a new connection.
    ResendOnConnect,
    /// The peer is asked for what it lacks over a new connection.
    AskOnConnect,
    /// What is not confirmed in 400 ms is sent again.
    ResendAfterSilence,
    /// A frame that comes again is confirmed again.
    AckAgain,
    /// What has arrived is confirmed after 200 ms.
    AckInTime,
    /// Room that the owner has made is told.
    WindowUpdate,
    /// A pipe to a peer far away wants a larger window.
    WindowGrows,
    /// A peer that is not heard is asked for a sign of life.
    Ping,
    /// A ping is answered.
    PingAnswer,
    /// A peer that is silent is suspect.
    Suspect,
    /// A suspect peer that is heard again is open again.
    Return,
    /// A peer that stays silent is dead.
    Dead,
    /// A pipe that is dead tells its peer.
    TellDeath,
    /// A pipe that was stopped itself gives its peer a moment.
    LateAlarm,
    /// The end of a stream is sent behind its last byte.
    FinLast,
    /// A control message is sent again until it is confirmed.
    ControlAgain,
    /// An older control message does not replace a newer one.
    ControlOrder,
    /// A control message that follows another is sent once that is confirmed.
    ControlNext,
    /// A pipe that is finished still confirms what its peer sends again.
    Linger,
}

impl Check {
    /// Every check, for tests that switch off each in turn.
    pub const ALL: &[Check] = &[
        Check::Version,
        Check::Checksum,
        Check::PipeNumber,
        Check::OwnFrame,
        Check::Duplicate,
        Check::Order,
        Check::Overlap,
        Check::ReceiveCredit,
        Check::AfterEnd,
        Check::SendCredit,
        Check::FrameLimit,
        Check::WriteLimit,
        Check::AckClamp,
        Check::KeepUntilAcked,
        Check::Nack,
        Check::NackLimit,
        Check::GoBackLimit,
        Check::ResendOnConnect,
        Check::AskOnConnect,
        Check::ResendAfterSilence,
        Check::AckAgain,
        Check::AckInTime,
        Check::WindowUpdate,
        Check::WindowGrows,
        Check::Ping,
        Check::PingAnswer,
        Check::Suspect,
        Check::Return,
        Check::Dead,
        Check::TellDeath,
        Check::LateAlarm,
        Check::FinLast,
        Check::ControlAgain,
        Check::ControlOrder,
        Check::ControlNext,
        Check::Linger,
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
