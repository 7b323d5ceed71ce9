//! How a process of the cluster ends: a sentence for people, and an exit code for the bus that started it.

use std::fmt;

use clients::exit;

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

    /// The node that was wanted, or NATS itself, does not answer.
    pub(crate) fn unavailable(words: impl Into<String>) -> End {
        End { words: words.into(), code: exit::UNAVAILABLE }
    }

    /// Whether waiting may help.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.code == exit::UNAVAILABLE
    }

    /// No node has room now.
    pub(crate) fn no_room(words: impl Into<String>) -> End {
        End { words: words.into(), code: exit::TRY_LATER }
    }

    /// NATS does not let us.
    pub(crate) fn refused(words: impl Into<String>) -> End {
        End { words: words.into(), code: exit::NOT_ALLOWED }
    }

    /// Starting again will not help.
    pub(crate) fn misconfigured(words: impl Into<String>) -> End {
        End { words: words.into(), code: exit::BAD_CONFIGURATION }
    }
}

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.words)
    }
}
