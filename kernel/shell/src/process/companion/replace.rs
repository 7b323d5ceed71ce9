//! Replaces companions: one after the other, each when it disturbs nobody.
//!
//! The program that takes the place of a bus finds the companions of the one before, and goes on with them. Each is
//! then asked to end, and started again as what this program has for it. A link whose orders have changed while other
//! machines use it is replaced in the same way.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use log::info;

use kernel_core::{Bus, Companion as Which, Moment, upgrade};

use super::{Companion, Companions, Kind, Running};
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

/// A pipe of another machine would end with the link, and the turns in it. The link counts its pipes only now and then,
/// and the bus knows each as soon as it carries something.
pub(super) fn link_may_go(bus: &Bus, running: &Running, _: Duration) -> bool {
    running.counted["pipes"].as_u64().unwrap_or_default() == 0 && !upgrade::has_pipes(bus)
}

/// Whether calls in flight would fail if this one ended now. Pages connect to the next web door by themselves.
pub(super) fn is_in_use(kind: &Kind, bus: &Bus, running: &Running) -> bool {
    kind.which == Which::Link && !link_may_go(bus, running, Duration::ZERO)
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
        self.look_again(now);
    }

    /// Looks in a moment whether one can be replaced, if any is to be.
    pub(super) fn look_again(&mut self, now: Moment) {
        let is_pending = self.all.iter().any(|companion| companion.replace_since.is_some());
        self.look_at = is_pending.then(|| now + LOOK_AGAIN);
    }

    /// Asks the next one to end, if the one before it is there again.
    pub(super) fn replace_next(&mut self, io: &mut Io) {
        if self.look_at.is_none_or(|look_at| look_at > io.now) {
            return;
        }
        self.look_again(io.now);
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
        // One with other orders, such as another name, does not go on where this one was.
        let has_new_orders = self.has_old_orders();
        self.replace_since = None;
        let Some(running) = &mut self.running else { return };
        if let Some(stdin) = running.stdin.as_ref().and_then(|stdin| stdin.try_clone().ok()) {
            let why =
                if has_new_orders { "by one that knows the new bus.json" } else { "by that of this program" };
            info!("{} is replaced {why}", self.kind.name);
            // An end of the pipe that cannot be written is closed in a moment anyway.
            let _ = File::from(stdin).write_all(REPLACED);
        }
        running.end(io.now);
        self.is_replaced = !has_new_orders;
        self.show(io);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};

    use mio::Poll;

    use kernel_core::upgrade::LeftLogs;

    use super::*;
    use crate::config;
    use crate::process::child::ChildProcess;
    use crate::process::companion::CompanionArgs;

    /// A bus in which an agent works on a prompt.
    fn in_a_turn() -> Bus {
        let saved = concat!(env!("CARGO_MANIFEST_DIR"), "/../core/src/bus/tests/saved-1.bin");
        let bus = Bus::restore(&fs::read(saved).unwrap(), &LeftLogs::default()).unwrap();
        assert!(!upgrade::is_quiet(&bus));
        bus
    }

    fn quiet() -> Bus {
        let text = r#"{"pools":[{"id":"a","command":"agent","warm":false}]}"#;
        Bus::new(&config::parse(text, Path::new("/")).unwrap(), [0; 32], Moment::ZERO)
    }

    /// A web door of another program, which repeats what it is told.
    fn with_door(bus: Bus) -> (Io, Companions, Child) {
        let mut door = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (io, mut companions) = (
            Io::new(bus, Poll::new().unwrap()),
            Companions::new(CompanionArgs::default(), false, String::new()),
        );
        companions.all[0].wanted = Some("orders".to_owned());
        companions.all[0].running = Some(Running {
            child: ChildProcess::with_id(door.id()),
            told: "orders".to_owned(),
            stdin: door.stdin.take().map(Into::into),
            stdout: File::open("/dev/null").unwrap().into(),
            line: Vec::new(),
            since: Moment::ZERO,
            listening: Some("http://127.0.0.1:1".to_owned()),
            waits: false,
            counted: serde_json::Value::Null,
            kill_at: None,
        });
        companions.plan_replacements(io.now);
        (io, companions, door)
    }

    /// When the clock is there, the door is asked to end, and was not asked before.
    fn is_replaced_at(bus: Bus, looks: &[Duration]) {
        let (mut io, mut companions, mut door) = with_door(bus);
        for look in looks {
            assert!(
                companions.all[0].running.as_ref().is_some_and(|it| it.stdin.is_some()),
                "before {look:?}"
            );
            io.now = *look;
            companions.replace_next(&mut io);
        }
        assert!(companions.all[0].running.as_ref().is_some_and(|it| it.stdin.is_none()), "at {looks:?}");
        let mut told = Vec::new();
        door.stdout.take().unwrap().read_to_end(&mut told).unwrap();
        assert_eq!(told, REPLACED);
        assert!(door.wait().unwrap().success());
    }

    #[test]
    fn a_door_whose_pages_watch_a_turn_waits_for_a_minute() {
        let millis = [400, 500, 30_000, 59_000, 59_500, 60_000];
        is_replaced_at(in_a_turn(), &millis.map(Duration::from_millis));
        is_replaced_at(in_a_turn(), &[59_999, 60_499].map(Duration::from_millis));
    }

    #[test]
    fn a_door_of_a_quiet_bus_is_replaced_at_once() {
        is_replaced_at(quiet(), &[Duration::from_millis(499), LOOK_AGAIN]);
    }
}
