//! The errno of a std error.

use std::io;

use nix::errno::Errno;

/// EINVAL if std itself refused, for example because of a NUL in an argument.
pub(crate) fn errno_of(error: io::Error) -> Errno {
    Errno::try_from(error).unwrap_or(Errno::EINVAL)
}
