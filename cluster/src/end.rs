//! How a process of the cluster ends: a sentence for people, and an exit code for the bus that started it.

use std::fmt;

const UNAVAILABLE: u8 = 69;

/// Why a process ends that is not told to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// What its last words are.
    pub words: String,
    /// One of sysexits.h, where one fits.
    pub code: u8,
}

impl End {
    /// The pipe is dead.
    pub(crate) fn lost(words: impl Into<String>) -> End {
        End { words: words.into(), code: 1 }
    }

    /// The node that was wanted, or NATS itself, does not answer (EX_UNAVAILABLE).
    pub(crate) fn unavailable(words: impl Into<String>) -> End {
        End { words: words.into(), code: UNAVAILABLE }
    }

    /// Whether waiting may help.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == UNAVAILABLE
    }

    /// Another link of the same name was started later (EX_CANTCREAT).
    pub(crate) fn replaced(words: impl Into<String>) -> End {
        End { words: words.into(), code: 73 }
    }

    /// No node has room now (EX_TEMPFAIL).
    pub(crate) fn no_room(words: impl Into<String>) -> End {
        End { words: words.into(), code: 75 }
    }

    /// NATS does not let us (EX_NOPERM).
    pub(crate) fn refused(words: impl Into<String>) -> End {
        End { words: words.into(), code: 77 }
    }

    /// Starting again will not help (EX_CONFIG).
    pub(crate) fn misconfigured(words: impl Into<String>) -> End {
        End { words: words.into(), code: 78 }
    }
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}
