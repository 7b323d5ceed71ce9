//! How long tests wait. Nothing else of them sleeps.

use std::thread;
use std::time::Duration;

/// How long a test waits before it fails. Long, because the machine may be busy with all other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that is not announced.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Before a test looks once more at something that is not announced.
pub(crate) fn looks_again() {
    thread::sleep(LOOK_AGAIN);
}

/// The time itself is what is tested: an outage is so long, or something is measured for so long. It stands for no
/// event, so there is nothing that could be waited for instead. The tidy test counts these.
pub(crate) fn time_passes(time: Duration) {
    thread::sleep(time);
}
