//! How bytes move in worlds with guests. Usually a line is given at once, and whoever reads takes everything at once.
//! In worlds with long lines, both come in pieces, and the rest of a long line is read to where the bus keeps it, as
//! the shell does it.

use std::collections::BTreeMap;
use std::time::Duration;

use kernel_core::Event;
use kernel_core::id::Link;
use serde_json::Value;

use super::{Asked, World};
use crate::oracle::broken;
use crate::pipe::Pipe;
use crate::upgrade::may_upgrade;

/// What a client and an agent have to do with the bus beside the lines themselves: envelopes, events, tables.
const SMALL_BYTES: usize = 8 << 10;
/// A prompt that is told takes at most so many times its length, and what is kept of it may get longer names.
pub(super) const TOLD_TIMES: usize = 9;

/// What a line is, for the oracle, once the bus has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    Line,
    /// A client joins a session, and so may hear what was said there.
    Join,
    /// The agent says something in this session.
    Said(usize),
    /// A client chooses an answer to a question, which it knows under this id.
    Choice {
        question: usize,
        id: u64,
    },
    /// The agent withdraws this question.
    Withdrawal(usize),
}

impl World {
    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        if self.print {
            let what = what.to_string();
            let shown = what.char_indices().nth(400).map_or(&*what, |(end, _)| &what[..end]);
            println!("{:?} {shown} ({})", self.shell.now, what.len());
        }
    }

    pub(super) fn gives(&mut self, link: Link, line: &Value, mark: Mark) {
        self.gives_line(link, format!("{line}\n").as_bytes(), mark);
    }

    /// A peer writes a line, which has its newline.
    pub(super) fn gives_line(&mut self, link: Link, line: &[u8], mark: Mark) {
        self.note(format_args!("{link:?} gives {}", String::from_utf8_lossy(line).trim_end()));
        if self.is_long {
            return self.wire(link).write(line, Some(mark));
        }
        self.gives_bytes(link, line);
        self.is_given(link, mark);
        self.after();
    }

    /// What comes in two pieces may be a long line, whose buffer the queues of all clients of a session share.
    fn gives_bytes(&mut self, link: Link, bytes: &[u8]) {
        let (begin, end) = bytes.split_at(bytes.len() - 1);
        self.shell.bus.received(link, begin, self.shell.now);
        self.shell.bus.received(link, end, self.shell.now);
    }

    fn wire(&mut self, link: Link) -> &mut Pipe<Mark> {
        self.wires.entry(link).or_insert_with(|| Pipe::new(link, usize::MAX))
    }

    /// Whether it has written what the bus has not read.
    pub(super) fn has_written(&self, link: Link) -> bool {
        self.wires.get(&link).is_some_and(|wire| !wire.up.is_empty())
    }

    /// The bus has this line.
    fn is_given(&mut self, link: Link, mark: Mark) {
        match mark {
            Mark::Line | Mark::Join => {}
            Mark::Said(session) => self.sessions[session].given += 1,
            Mark::Choice { question, id } => {
                let is_certain = !self.is_behind(link)
                    && self.clients.iter().any(|client| client.link == link && !client.late.contains(&id));
                let question = &mut self.questions[question];
                (question.chosen, question.may_be_chosen) = (question.chosen || is_certain, true);
            }
            // It may be among the lines of an agent that must wait.
            Mark::Withdrawal(_) if !self.shell.bus.wants_read(link) => self.unhandled.push((link, mark)),
            Mark::Withdrawal(question) => {
                let ends = self.clients.iter().map(|client| (client.link, self.stream_end(client.link)));
                self.questions[question].withdrawn = Some(ends.collect());
            }
        }
    }

    /// The position of the next byte that a client will be sent.
    fn stream_end(&self, link: Link) -> u64 {
        let taken = self.clients.iter().find(|client| client.link == link).map_or(0, |client| client.taken);
        taken + self.shell.bus.pieces_to_send(link).map(|piece| piece.len() as u64).sum::<u64>()
    }

    /// Whether something waits that this client was sent, or it has half a line.
    pub(super) fn is_behind(&self, link: Link) -> bool {
        let has_part = |client: &super::Client| client.link == link && client.taken > client.heard;
        self.shell.bus.pieces_to_send(link).next().is_some() || self.clients.iter().any(has_part)
    }

    /// Whether the bus has handled all that it was given of this session. It keeps lines of a peer that must wait.
    pub(super) fn is_handled(&self, session: usize) -> bool {
        let home = self.shell.processes.get(self.sessions[session].home);
        home.is_none_or(|process| self.shell.bus.wants_read(process.link))
    }

    // Pieces.

    /// Somebody's bytes go on a little.
    pub(super) fn moves(&mut self) {
        // Those that send nothing more are closed in the end.
        if self.clients.len() < 2 {
            return self.comes();
        }
        match self.rng.below(200) {
            0..80 => {
                let waiting: Vec<Link> = self
                    .wires
                    .iter()
                    .filter(|(_, wire)| !wire.up.is_empty())
                    .map(|(link, _)| *link)
                    .collect();
                let Some(link) = self.rng.pick(&waiting).copied() else { return self.acts() };
                let left = self.wire(link).up.len();
                let most = self.rng.one(&[1, 20, 100, 300, 300, 5_000, 70_000, 300_000]);
                let count = self.rng.within(1, most).max(left / 16);
                self.carries(link, count);
            }
            80..140 => {
                let at = self.rng.below(self.clients.len());
                if self.clients[at].reads {
                    let most = self.clients[at].takes_at_most;
                    let count = self.rng.within(1, most);
                    self.takes_bytes(at, count);
                }
            }
            140 if self.clients.iter().filter(|client| !client.ended).count() > 2 => self.half_closes(),
            141..143 => self.agent_withdraws(),
            143..149 => self.goes_on_without_owner(),
            _ => self.acts(),
        }
    }

    /// The bus reads some of what a peer has written. Returns whether it did. Of a client no two lines come at once, so
    /// that the oracle knows what came of each.
    pub(super) fn carries(&mut self, link: Link, most: usize) -> bool {
        if !self.shell.bus.wants_read(link) {
            return false;
        }
        let is_agent = self.process_of(link).is_some();
        // Of a peer that must wait the bus may have lines, which come on top when it need not any more.
        let has_waiting = self.wires.keys().any(|link| !self.shell.bus.wants_read(*link));
        let Some(wire) = self.wires.get_mut(&link).filter(|wire| !wire.up.is_empty()) else { return false };
        let (before, finished) = (self.shell.bus.held_bytes(), wire.finished());
        let mut count = most.max(1).min(wire.up.len());
        if !is_agent {
            count = count.min(wire.one_line());
        }
        let (bus, now) = (&mut self.shell.bus, self.shell.now);
        let space = bus.read_space(link);
        count = count.min(space.as_ref().map_or(count, |space| space.len()));
        let (bytes, marks) = wire.give(count);
        match space {
            Some(space) => {
                space[..count].copy_from_slice(&bytes);
                bus.received_in_space(link, count, now);
            }
            None => bus.received(link, &bytes, now),
        }
        let lines = (wire.finished() - finished) as usize;
        for mark in &marks {
            self.is_given(link, *mark);
        }
        let joins = marks.iter().any(|mark| matches!(mark, Mark::Join));
        if !has_waiting {
            self.check_growth(before, count + lines, joins);
        }
        self.after();
        true
    }

    /// One line makes the bus hold no more than a small multiple of it for each client, beside what it makes the bus
    /// tell of what it had already.
    fn check_growth(&self, before: usize, given: usize, joins: bool) {
        let prompts = self.clients.iter().flat_map(|client| client.asked.values()).map(|asked| match asked {
            Asked::Prompt { prompt: Some(prompt), .. } => self.prompts[*prompt].line_bytes,
            _ => 0,
        });
        let history = if joins { TOLD_TIMES * self.log_bytes } else { 0 };
        let questions: usize = self.questions.iter().filter(|it| !it.answered).map(|it| it.line_bytes).sum();
        let of_each = TOLD_TIMES * (given + prompts.sum::<usize>()) + history + questions + SMALL_BYTES;
        let (held, most) = (self.shell.bus.held_bytes(), before + (self.clients.len() + 3) * of_each);
        if held > most {
            broken!(
                "(6) bounded memory",
                "{given} bytes make {held} of {before} that are held, at most {most}"
            );
        }
    }

    /// A client takes some of what waits for it.
    pub(super) fn takes_bytes(&mut self, at: usize, most: usize) -> bool {
        let link = self.clients[at].link;
        let (mut taken, mut left) = (Vec::new(), most);
        for piece in self.shell.bus.pieces_to_send(link) {
            taken.extend_from_slice(&piece[..piece.len().min(left)]);
            left = most - taken.len();
            if left == 0 {
                break;
            }
        }
        if taken.is_empty() {
            return false;
        }
        self.shell.bus.sent(link, taken.len(), self.shell.now);
        self.clients[at].taken += taken.len() as u64;
        let wire = self.wire(link);
        wire.down = taken;
        for line in wire.read_lines(usize::MAX) {
            self.reads_line(link, &line);
        }
        self.after();
        true
    }

    fn reads_line(&mut self, link: Link, line: &[u8]) {
        self.hashes(line);
        self.client_reads(link, line);
        if let Some(client) = self.clients.iter_mut().find(|client| client.link == link) {
            client.heard += line.len() as u64 + 1;
        }
    }

    /// Everything that was written comes, and whoever reads has taken all that waits for it.
    pub(super) fn drains(&mut self) {
        while self.is_long {
            let mut moved = false;
            for link in self.wires.keys().copied().collect::<Vec<_>>() {
                let most = self.rng.one(&[300, 5_000, 300_000]);
                let left = self.wires.get(&link).map_or(0, |wire| wire.up.len());
                moved |= self.carries(link, most.max(left / 4));
            }
            for link in
                self.clients.iter().filter(|client| client.reads).map(|it| it.link).collect::<Vec<_>>()
            {
                if let Some(at) = self.clients.iter().position(|client| client.link == link) {
                    moved |= self.takes_bytes(at, usize::MAX);
                }
            }
            if !moved {
                break;
            }
        }
    }

    /// Whether the bus will read what this client says next at once. It may have another place among the clients then.
    pub(super) fn is_heard_at_once(&mut self, at: usize) -> Option<usize> {
        let link = self.clients[at].link;
        self.flushes(link);
        let may_speak = !self.has_written(link) && (!self.is_long || self.shell.bus.wants_read(link));
        self.clients.iter().position(|client| client.link == link).filter(|_| may_speak)
    }

    /// All that this peer has written comes, as long as the bus reads it.
    pub(super) fn flushes(&mut self, link: Link) {
        while self.is_long {
            let count = self.rng.within(1, 300_000);
            if !self.carries(link, count) {
                break;
            }
        }
    }

    // What is read.

    /// Carries out what the bus wants, and lets the peers read.
    pub(super) fn after(&mut self) {
        may_upgrade(&mut self.shell.bus);
        loop {
            let mut read: BTreeMap<Link, Vec<u8>> = BTreeMap::new();
            let now = self.shell.now;
            let (clients, is_long) = (&self.clients, self.is_long);
            self.shell.act(|bus, link| {
                if clients.iter().any(|client| client.link == link && (is_long || !client.reads)) {
                    return;
                }
                let bytes = bus.to_send(link).to_vec();
                bus.sent(link, bytes.len(), now);
                read.entry(link).or_default().extend(bytes);
            });
            self.calls += 1;
            // Much work is done in pieces.
            let is_due = self.is_long && self.shell.bus.next_alarm().is_some_and(|at| at <= now);
            if is_due {
                self.shell.bus.handle(Event::Alarm, now);
            }
            if read.is_empty() && !is_due {
                break;
            }
            // What an agent is told comes first: it says which questions are answered.
            let (of_agents, of_clients): (Vec<_>, Vec<_>) =
                read.into_iter().partition(|(link, _)| self.process_of(*link).is_some());
            let mut answers = Vec::new();
            for (link, bytes) in of_agents {
                for line in lines(&bytes) {
                    self.hashes(line);
                    answers.extend(self.agent_reads(link, line).map(|answer| (link, answer)));
                }
            }
            for (link, bytes) in of_clients {
                for line in lines(&bytes) {
                    self.reads_line(link, line);
                }
            }
            self.check_withdrawn();
            for (link, answer) in answers {
                self.answers_at_once(link, &answer);
            }
        }
        for session in 0..self.sessions.len() {
            if self.is_handled(session) {
                self.sessions[session].given_before = self.sessions[session].given;
            }
        }
        for (link, mark) in std::mem::take(&mut self.unhandled) {
            self.is_given(link, mark);
        }
        self.sees_closed();
        if self.is_long || self.calls.is_multiple_of(4) {
            self.shell.bus.check_invariants();
        }
    }

    /// An agent answers what opens and closes sessions before it says anything else.
    fn answers_at_once(&mut self, link: Link, answer: &Value) {
        self.note(format_args!("{link:?} gives {answer}"));
        let line = format!("{answer}\n");
        if self.is_long {
            self.wire(link).write(line.as_bytes(), Some(Mark::Line));
            return self.flushes(link);
        }
        self.gives_bytes(link, line.as_bytes());
    }

    pub(super) fn reads_all(&mut self, link: Link) {
        if self.is_long {
            if let Some(at) = self.clients.iter().position(|client| client.link == link) {
                self.takes_bytes(at, usize::MAX);
            }
            return;
        }
        let bytes = self.shell.bus.to_send(link).to_vec();
        self.shell.bus.sent(link, bytes.len(), self.shell.now);
        for line in lines(&bytes) {
            self.reads_line(link, line);
        }
    }

    fn hashes(&mut self, line: &[u8]) {
        self.note(format_args!("  {}", String::from_utf8_lossy(line)));
        self.hash = self.hash.rotate_left(5) ^ line.len() as u64;
    }

    pub(super) fn some_time(&mut self) {
        let time = Duration::from_millis(self.rng.below(12_000) as u64);
        self.passes(time);
    }

    pub(super) fn passes(&mut self, time: Duration) {
        // Half a line, or a full queue, would soon be too old.
        if self.is_long {
            self.drains();
        }
        let until = self.shell.now + time;
        while let Some(at) = self.shell.bus.next_alarm().filter(|at| *at <= until) {
            self.shell.now = at.max(self.shell.now);
            self.shell.bus.handle(Event::Alarm, self.shell.now);
            self.after();
            // What is not taken when the bus stops is lost.
            if self.is_stopping {
                self.drains();
            }
        }
        self.shell.now = until;
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}
