//! Replaces companions that another program has started: one after the other, each when it disturbs nobody.
//!
//! The program that takes the place of a bus finds the companions of the one before, and goes on with them. Each is
//! then asked to end, and started again as what this program has for it.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use log::info;

use kernel_core::{Bus, Moment, upgrade};

use super::{Companion, Companions, Running};
use crate::io::Io;

/// How often is looked whether one can be replaced.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// After this time the web door is replaced anyway: pages connect again by themselves.
const DOOR_PATIENCE: Duration = Duration::from_secs(60);
/// What the web door is told before its stdin ends, so that it can tell its clients.
const REPLACED: &[u8] = b"replaced\n";

/// Pages come back by themselves, so the door waits for no longer than a minute.
pub(super) fn door_may_go(bus: &Bus, _: &Running, waited: Duration) -> bool {
    waited >= DOOR_PATIENCE || upgrade::is_quiet(bus)
}

/// A pipe of another machine would end with the link, and the turns in it.
pub(super) fn link_may_go(_: &Bus, running: &Running, _: Duration) -> bool {
    running.counted["pipes"].as_u64().unwrap_or_default() == 0
}

/// What is said while nobody writes it down is missing in the transcripts.
pub(super) fn history_may_go(bus: &Bus, _: &Running, _: Duration) -> bool {
    upgrade::is_quiet(bus)
}

/// What a notifier waits with is forgotten with it.
pub(super) fn notifier_may_go(bus: &Bus, _: &Running, _: Duration) -> bool {
    upgrade::is_quiet(bus)
}

impl Companions {
    /// All that run now were started by another program.
    pub(super) fn plan_replacements(&mut self, now: Moment) {
        for companion in &mut self.all {
            companion.replace_since = companion.running.as_ref().map(|_| now);
        }
        self.look_at = Some(now + LOOK_AGAIN);
    }

    /// Asks the next one to end, if the one before it is there again.
    pub(super) fn replace_next(&mut self, io: &mut Io) {
        if self.look_at.is_none_or(|look_at| look_at > io.now) {
            return;
        }
        let is_pending = self.all.iter().any(|companion| companion.replace_since.is_some());
        self.look_at = is_pending.then(|| io.now + LOOK_AGAIN);
        if self.all.iter().any(Companion::is_on_its_way) {
            return;
        }
        if let Some(next) = self.all.iter_mut().find(|companion| companion.may_be_replaced(io)) {
            next.replace(io);
        }
    }
}

impl Companion {
    /// It has ended, or is about to, and the next one is not open yet.
    fn is_on_its_way(&self) -> bool {
        let is_ending = self.running.as_ref().is_some_and(|running| running.stdin.is_none());
        let is_opening = self.running.as_ref().is_some_and(|it| it.listening.is_none() && !it.waits);
        self.wanted.is_some()
            && self.last_words.is_none()
            && (is_ending || is_opening || self.start_at.is_some())
    }

    fn may_be_replaced(&self, io: &Io) -> bool {
        let (Some(since), Some(running)) = (self.replace_since, &self.running) else { return false };
        (self.kind.may_be_replaced)(&io.bus, running, io.now.saturating_sub(since))
    }

    fn replace(&mut self, io: &mut Io) {
        self.replace_since = None;
        let Some(running) = &mut self.running else { return };
        if let Some(stdin) = running.stdin.as_ref().and_then(|stdin| stdin.try_clone().ok()) {
            info!("{} is replaced by that of this program", self.kind.name);
            // An end of the pipe that cannot be written is closed in a moment anyway.
            let _ = File::from(stdin).write_all(REPLACED);
        }
        running.end(io.now);
        self.is_replaced = true;
        self.show(io);
    }
}
