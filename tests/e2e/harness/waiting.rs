//! How long tests wait.

use std::time::Duration;

/// How long a test waits before it fails. Long, because the machine may be busy with all other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is not announced.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);
