//! Who is told: what each way to reach people has in common.

use serde::Serialize;

use crate::notice::Notice;

/// A way to reach people. Who tells it something never waits for it.
pub(crate) trait Sink {
    fn tell(&self, notice: &Notice);

    /// What became of what it was told.
    fn counted(&self) -> Counted;
}

/// What became of the notices of one sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counted {
    /// Where it is, without its secrets.
    pub(crate) at: String,
    pub(crate) sent: u64,
    /// Given up after all attempts.
    pub(crate) failed: u64,
    /// Not tried, because too many waited.
    pub(crate) dropped: u64,
    /// On their way.
    pub(crate) waiting: usize,
    /// Why the last attempt was in vain, until one is not.
    pub(crate) failing: Option<String>,
}
