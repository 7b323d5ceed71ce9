//! The bus is saved and restored in the middle of a world: the same history must follow.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use kernel_core::Bus;
use kernel_core::upgrade::{LeftLogs, LogCopy, copy_logs, take_left_logs};

thread_local! {
    /// Where the choice of the next moment is. 0: the bus of this thread's worlds is never saved.
    static CHOICE: Cell<u64> = const { Cell::new(0) };
    /// The logs that are copied for the next bus, and the copies.
    static COPY: RefCell<(LogCopy, Vec<u8>)> = RefCell::default();
}

/// One of so many moments is chosen.
const MOMENTS: u64 = 12;

/// Plays a world whose bus is saved and restored at moments that this number chooses, if it is not 0.
pub(crate) fn with_upgrades<T>(choice: u64, world: impl FnOnce() -> T) -> T {
    CHOICE.set(choice);
    COPY.take();
    world()
}

/// Between a call of the bus and its actions is a moment at which it may be saved.
pub(crate) fn may_upgrade(bus: &mut Bus) {
    let mut choice = CHOICE.get();
    if choice == 0 {
        return;
    }
    // The world must not notice, so its own random numbers are not used.
    choice ^= choice << 13;
    choice ^= choice >> 7;
    choice ^= choice << 17;
    CHOICE.set(choice);
    let (mut copy, mut copied) = COPY.take();
    if (choice / MOMENTS).is_multiple_of(2) {
        copied.extend(copy_logs(bus, &mut copy).unwrap_or_default());
    }
    if (choice / MOMENTS).is_multiple_of(5) {
        take_left_logs(bus, &mut 0);
    }
    if !choice.is_multiple_of(MOMENTS) {
        return COPY.set((copy, copied));
    }
    let short = bus.save().expect("the state can be written");
    drop(copy);
    let saved = bus.save().expect("the state can be written");
    let range = 0..copied.len();
    let logs = LeftLogs::new(Arc::new(copied), range);
    *bus = Bus::restore(&short, &logs).expect("what was saved can be read");
    bus.check_invariants();
    let again = bus.save().expect("the state can be written");
    // A hash table has an order of its own.
    assert_eq!(again.len(), saved.len(), "what was restored is what was saved");
}
