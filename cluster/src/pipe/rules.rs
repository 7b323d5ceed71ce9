//! What a pipe decides: what a frame of the peer changes, which frame is sent next, when to send again, ping and die.

use bytes::{Buf, Bytes};

use super::frame::{self, ANSWER, CONFIRMS, FROM_NODE, HEADER_BYTES, Header, Kind, Rejected};
use super::receive::Place;
use super::{
    ACK_AFTER, DEAD_AFTER, Frame, GO_BACK_REST, GO_BACK_REST_MAX, MAX_CONTROL_BYTES, MAX_REASON_BYTES,
    Moment, NACK_REST, PING_AFTER, PING_BYTES, Pipe, RESEND_AFTER, RESEND_AFTER_MAX, Reason, SUSPECT_AFTER,
    Side, State, cut,
};
use crate::mutants::{Check, enabled};

impl Pipe {
    /// Everything that can be wrong with a frame is found before it changes anything.
    pub(super) fn take_frame(&mut self, frame: Bytes, now: Moment) -> Result<(), Rejected> {
        let header = frame::read(&frame)?;
        if header.pipe != self.number && enabled(Check::PipeNumber) {
            return Err(Rejected::OtherPipe);
        }
        if (header.flags & FROM_NODE != 0) == (self.side == Side::Node) && enabled(Check::OwnFrame) {
            return Err(Rejected::OwnFrame);
        }
        let mut payload = frame;
        payload.advance(HEADER_BYTES);
        if !has_right_length(&header, payload.len()) {
            return Err(Rejected::Length);
        }
        match &self.state {
            State::Dead(reason) => {
                // The peer does not know yet.
                let was_told = self.reset_sent.is_some_and(|at| now < at + NACK_REST);
                self.reset_due |= header.kind != Kind::Rst && tells_peer(reason) && !was_told;
                return Ok(());
            }
            State::Finished if self.finished.is_none() || !enabled(Check::Linger) => return Ok(()),
            _ => {}
        }
        if header.kind == Kind::Rst {
            if self.is_alive() {
                self.die(Reason::Reset(readable(&payload)));
            }
            return Ok(());
        }
        let confirms_control = header.kind == Kind::Ctl && header.flags & CONFIRMS != 0;
        if !self.send.can_confirm(header.ack) || confirms_control && !self.control.can_confirm(header.offset)
        {
            return Err(Rejected::Ack);
        }
        let place = match header.kind {
            Kind::Data => Some(self.receive.place(header.offset, payload.len() as u64, false)?),
            Kind::Fin => Some(self.receive.place(header.offset, 1, true)?),
            _ => None,
        };

        self.note_heard(now);
        if self.send.confirmed(header.ack, header.window) {
            self.resends = 0;
            self.resend_at = self.send.waits_for_peer().then(|| now + self.resend_after());
        }
        match header.kind {
            Kind::Data | Kind::Fin => match place {
                Some(Place::Next) => self.accept(header.kind, payload, now),
                Some(Place::Before) => self.confirm_again(now),
                Some(Place::Later) | None => {
                    self.statistics.early += 1;
                    self.lacks(now);
                }
            },
            Kind::Ctl if confirms_control => {
                if self.control.confirmed(header.offset) {
                    self.control_at = None;
                }
            }
            Kind::Ctl => self.control.receive(header.offset, &payload),
            Kind::Ack | Kind::Nack | Kind::Ping => {
                // What the peer has sent before this has arrived, or is lost.
                if header.offset > self.receive.next() {
                    self.lacks(now);
                }
                if header.kind == Kind::Ping && enabled(Check::PingAnswer) {
                    self.answer = payload.as_ref().try_into().ok();
                }
                if header.kind == Kind::Nack && header.ack == self.send.acked() {
                    self.peer_lacks(now);
                }
                if header.flags & ANSWER != 0
                    && let Ok(asked) = payload.as_ref().try_into()
                {
                    let asked = Moment::from_micros(u64::from_be_bytes(asked));
                    let round_trip = now.saturating_sub(asked);
                    self.statistics.round_trip = Some(round_trip);
                    self.nearest = Some(self.nearest.map_or(round_trip, |nearest| nearest.min(round_trip)));
                }
            }
            Kind::Rst => {}
        }
        self.may_be_finished(now);
        Ok(())
    }

    /// The peer is alive. What it may have missed it asks for: every frame tells how far this end is.
    fn note_heard(&mut self, now: Moment) {
        self.heard = now;
        self.grace = None;
        if self.state == State::Finished {
            self.finished = Some(now);
        }
        if self.state == State::Suspect && enabled(Check::Return) {
            self.state = State::Open;
            self.suspect = None;
        }
    }

    fn accept(&mut self, kind: Kind, payload: Bytes, now: Moment) {
        self.nack_at = None;
        self.nack_due = false;
        if kind == Kind::Fin {
            self.receive.accept_end();
            self.ack_due = true;
            return;
        }
        self.receive.accept(payload);
        if self.receive.has_much_to_confirm() {
            self.ack_due = true;
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + ACK_AFTER);
        }
    }

    /// A frame came again, so the peer may not know that it has arrived.
    fn confirm_again(&mut self, now: Moment) {
        self.statistics.duplicates += 1;
        if !enabled(Check::AckAgain) {
            return;
        }
        match self.acked.map(|at| at + NACK_REST).filter(|due| now < *due) {
            Some(due) => self.ack_at = Some(self.ack_at.map_or(due, |at| at.min(due))),
            None => self.ack_due = true,
        }
    }

    /// Something has not arrived that the peer has sent.
    fn lacks(&mut self, now: Moment) {
        if !enabled(Check::Nack) {
            return;
        }
        match self.nacked.map(|at| at + NACK_REST).filter(|due| now < *due && enabled(Check::NackLimit)) {
            Some(due) => self.nack_at = Some(due),
            None => self.nack_due = true,
        }
    }

    /// The peer asks for what has not arrived.
    fn peer_lacks(&mut self, now: Moment) {
        let round_trip = self.statistics.round_trip.unwrap_or_default();
        let rest = (round_trip * 3 / 2).clamp(GO_BACK_REST, GO_BACK_REST_MAX);
        // It may ask twice before what it asks for can have arrived.
        let is_on_its_way =
            self.went_back.is_some_and(|(at, from)| from == self.send.acked() && now < at + rest);
        if !is_on_its_way || !enabled(Check::GoBackLimit) {
            self.go_back(now);
        }
    }

    /// Sends everything again that is not confirmed.
    pub(super) fn go_back(&mut self, now: Moment) {
        self.send.go_back();
        self.first_due = false;
        self.went_back = Some((now, self.send.acked()));
        self.resend_at = self.send.waits_for_peer().then(|| now + self.resend_after());
    }

    pub(super) fn resend_after(&self) -> Moment {
        let round_trip = self.statistics.round_trip.unwrap_or_default();
        let first = (round_trip * 2).clamp(RESEND_AFTER, RESEND_AFTER_MAX);
        (first * (1 << self.resends.min(3))).min(RESEND_AFTER_MAX)
    }

    /// Nothing was confirmed for a while. The first frame is sent again, and a ping behind it tells the peer what else
    /// was sent, so that it asks for what it lacks. Sending everything again would fill a carrier that is only slow.
    pub(super) fn resends_after_silence(&mut self, now: Moment) {
        self.resends += 1;
        self.resend_at = Some(now + self.resend_after());
        // A peer that is suspect is only pinged. When it is heard again, it asks for what it lacks.
        if self.state == State::Open && !self.send.is_sending_again() && enabled(Check::ResendAfterSilence) {
            self.first_due = true;
            self.ping_due = true;
            self.pinged = now;
        }
    }

    pub(super) fn ping_at(&self) -> Moment {
        // Who does not know how far away the peer is asks in any case.
        let since = if self.nearest.is_some() { self.heard.max(self.pinged) } else { self.pinged };
        since + PING_AFTER
    }

    /// When the silence of the peer changes the state.
    pub(super) fn silent_at(&self) -> Option<Moment> {
        match &self.suspect {
            None => enabled(Check::Suspect).then(|| self.heard + SUSPECT_AFTER),
            Some(_) if enabled(Check::Dead) => {
                Some((self.heard + DEAD_AFTER).max(self.grace.unwrap_or_default()))
            }
            Some(_) => None,
        }
    }

    pub(super) fn pings_and_deaths(&mut self, now: Moment) {
        if now >= self.ping_at() {
            self.ping_due = enabled(Check::Ping);
            self.pinged = now;
        }
        // After a long stop both may be due at once.
        while self.is_alive() && self.silent_at().is_some_and(|at| at <= now) {
            match self.suspect.take() {
                None => self.becomes_suspect(Reason::Silent),
                Some(reason) => self.die(reason),
            }
        }
    }

    pub(super) fn becomes_suspect(&mut self, reason: Reason) {
        self.statistics.stalls += 1;
        self.state = State::Suspect;
        self.suspect = Some(reason);
    }

    pub(super) fn die(&mut self, reason: Reason) {
        self.stop_timers();
        self.send.clear();
        self.control.clear();
        self.ack_due = false;
        self.answer = None;
        self.reset_due = tells_peer(&reason) && enabled(Check::TellDeath);
        self.state = State::Dead(reason);
    }

    fn may_be_finished(&mut self, now: Moment) {
        if self.is_alive() && self.send.end_is_confirmed() && self.receive.has_ended() {
            self.stop_timers();
            self.state = State::Finished;
            self.finished = Some(now);
        }
    }

    fn stop_timers(&mut self) {
        self.suspect = None;
        self.resend_at = None;
        self.ack_at = None;
        self.nack_at = None;
        self.control_at = None;
        self.nack_due = false;
        self.ping_due = false;
        self.first_due = false;
    }

    /// The next frame but for pings, which come last.
    pub(super) fn next_bytes(&mut self, now: Moment) -> Option<Bytes> {
        if std::mem::take(&mut self.reset_due)
            && let State::Dead(reason) = &self.state
        {
            let reason = reason.to_string();
            self.reset_sent = Some(now);
            return Some(frame::frame(&self.header(Kind::Rst, 0, 0), cut(&reason)));
        }
        if self.is_over() {
            return None;
        }
        if std::mem::take(&mut self.nack_due) {
            self.nacked = Some(now);
            self.nack_at = None;
            return Some(self.short(Kind::Nack, 0, self.send.position(), &[], now));
        }
        let has_new = self.send.has_new();
        // A frame that is sent again does not tell what has arrived since.
        let rides_on_data = has_new && !self.first_due && !self.send.is_sending_again();
        if let Some(asked) = self.answer.take() {
            return Some(self.short(Kind::Ack, ANSWER, self.send.position(), &asked, now));
        }
        if self.ack_due && !rides_on_data {
            return Some(self.short(Kind::Ack, 0, self.send.position(), &[], now));
        }
        if let Some(number) = self.control.next_confirmation() {
            return Some(self.short(Kind::Ctl, CONFIRMS, number, &[], now));
        }
        if let Some((number, message)) = self.control.next() {
            self.control_at = Some(now + RESEND_AFTER);
            return Some(self.short(Kind::Ctl, 0, number, &message, now));
        }
        let again = if std::mem::take(&mut self.first_due) { self.send.first() } else { None };
        if let Some(frame) = again.or_else(|| self.send.next_again()) {
            self.statistics.resent += 1;
            return Some(frame);
        }
        if !has_new {
            return None;
        }
        let told = self.header(Kind::Data, 0, 0);
        let frame = self.send.next_new(|kind, offset| Header { kind, offset, ..told });
        self.has_told(now);
        if self.resend_at.is_none() {
            self.resend_at = Some(now + self.resend_after());
        }
        Some(frame)
    }

    pub(super) fn ping(&mut self, now: Moment) -> Frame {
        self.ping_due = false;
        self.pinged = now;
        self.statistics.frames_sent += 1;
        let asked = (now.as_micros() as u64).to_be_bytes();
        let bytes = self.short(Kind::Ping, 0, self.send.position(), &asked, now);
        Frame { bytes, wants_reply: true }
    }

    /// A frame beside the stream.
    fn short(&mut self, kind: Kind, flags: u16, offset: u64, payload: &[u8], now: Moment) -> Bytes {
        let frame = frame::frame(&self.header(kind, flags, offset), payload);
        self.has_told(now);
        frame
    }

    fn header(&self, kind: Kind, flags: u16, offset: u64) -> Header {
        let side = if self.side == Side::Node { FROM_NODE } else { 0 };
        Header {
            kind,
            flags: flags | side,
            pipe: self.number,
            offset,
            ack: self.receive.next(),
            window: self.receive.window(),
        }
    }

    /// A frame was made that tells the peer what has arrived, and how much it may send.
    fn has_told(&mut self, now: Moment) {
        self.receive.told();
        self.acked = Some(now);
        self.ack_at = None;
        self.ack_due = false;
    }
}

fn has_right_length(header: &Header, payload_bytes: usize) -> bool {
    match header.kind {
        Kind::Data => payload_bytes > 0,
        Kind::Ctl if header.flags & CONFIRMS == 0 => payload_bytes <= MAX_CONTROL_BYTES,
        Kind::Rst => payload_bytes <= MAX_REASON_BYTES,
        Kind::Ping => payload_bytes == PING_BYTES,
        Kind::Ack if header.flags & ANSWER != 0 => payload_bytes == PING_BYTES,
        Kind::Ack | Kind::Nack | Kind::Fin | Kind::Ctl => payload_bytes == 0,
    }
}

fn tells_peer(reason: &Reason) -> bool {
    !matches!(reason, Reason::Reset(_))
}

/// What a peer says, for a log.
fn readable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}
