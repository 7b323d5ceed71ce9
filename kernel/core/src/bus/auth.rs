//! Strangers: connections that have yet to show the token.
//!
//! Where the configuration names one, the first line of a connection must be a `_bus/hello` that holds it. Until then
//! nothing that it says has any other effect than its being closed: it has a place apart from those of clients, a
//! short line and little time. When all places are taken the oldest makes room, so that those who only sit there
//! keep nobody out.

use std::borrow::Cow;

use log::warn;
use serde::Deserialize;

use crate::api::Moment;
use crate::bus::Bus;
use crate::id::Link;
use crate::limit::{HELLO, HELLO_BYTES, LAST_WORDS, STRANGERS};
use crate::mutants::{Guard, stands};
use crate::state::clients::Standing;
use crate::state::timers::Alarm;
use crate::token::TokenDigest;
use crate::wire::error::Refusal;
use crate::wire::prefix_cache::Habit;
use crate::wire::scan::{Envelope, Fault, Kind};

/// Those who have not shown the token, also those who have been turned away and are about to leave.
#[derive(Default)]
pub(super) struct Strangers {
    /// In the order in which they came. At most `2 * STRANGERS`.
    here: Vec<Stranger>,
    /// The next alarm that is set for them.
    alarm: Option<Moment>,
    /// Not to be complained of before this moment.
    silent_until: Moment,
}

struct Stranger {
    link: Link,
    turned_away: bool,
    /// When its time is over.
    until: Moment,
}

impl Strangers {
    const COMPLAINTS_APART: Moment = Moment::from_secs(1);

    pub(super) fn len(&self) -> usize {
        self.here.len()
    }

    pub(super) fn forget(&mut self, link: Link) {
        self.here.retain(|stranger| stranger.link != link);
    }

    /// The oldest who may still show the token, if there is no place for another.
    fn in_the_way(&self) -> Option<Link> {
        let mut waiting = self.here.iter().filter(|stranger| !stranger.turned_away);
        let oldest = waiting.next()?;
        (waiting.count() + 1 >= STRANGERS).then_some(oldest.link)
    }
}

impl Bus {
    pub(super) fn make_room_for_a_stranger(&mut self) {
        if let Some(oldest) = self.strangers.in_the_way() {
            let crowd = format!("{STRANGERS} others are about to show the token");
            self.turn_away(oldest, None, &Refusal::busy(crowd));
        }
        // One who does not even take its last answer gets no more time once there are many such.
        if self.strangers.len() >= 2 * STRANGERS {
            let leaving = self.strangers.here.iter().find(|stranger| stranger.turned_away);
            if let Some(link) = leaving.map(|stranger| stranger.link) {
                self.client_leaves(link);
            }
        }
    }

    pub(super) fn await_token(&mut self, link: Link) {
        let until = self.now + HELLO;
        self.strangers.here.push(Stranger { link, turned_away: false, until });
        self.watch_strangers();
    }

    /// Whether this client has yet to show the token.
    pub fn awaits_token(&self, link: Link) -> bool {
        self.is_stranger(link)
    }

    pub(super) fn is_stranger(&self, link: Link) -> bool {
        self.stands_as(link, Standing::Stranger)
    }

    pub(super) fn is_turned_away(&self, link: Link) -> bool {
        self.stands_as(link, Standing::TurnedAway)
    }

    /// The first line of one who has to show the token with it.
    pub(super) fn stranger_line(&mut self, link: Link, line: &[u8]) {
        let envelope = match Envelope::scan(line) {
            Ok(envelope) => envelope,
            // As with every client: what is no JSON may be a browser's, and is not answered.
            Err(malformed) if matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                return self.turn_away(link, None, &Refusal::unauthorized(malformed.fault.to_string()));
            }
        };
        let id = envelope.id.filter(|_| envelope.kind == Kind::Request).map(|id| id.of(line));
        if let Err(refusal) = self.look_at_token(line, &envelope)
            && stands(Guard::Token)
        {
            return self.turn_away(link, id, &refusal);
        }
        if self.has_all_clients() {
            return self.turn_away(link, id, &self.too_many_clients());
        }
        self.welcome(link, Standing::Known);
        self.client_line(link, line, &mut Habit::default());
    }

    /// Its end is not waited for, and so neither is its id.
    pub(super) fn stranger_too_long(&mut self, link: Link) {
        let refusal =
            Refusal::unauthorized(format!("before the token a line has at most {HELLO_BYTES} bytes"));
        self.turn_away(link, None, &refusal);
    }

    /// The time of some is over: to show the token, or to take the answer that they did not.
    pub(super) fn strangers_overdue(&mut self) {
        self.strangers.alarm = self.strangers.alarm.filter(|alarm| *alarm > self.now);
        let overdue = |stranger: &&Stranger| stranger.until <= self.now;
        let overdue = self.strangers.here.iter().filter(overdue).map(|stranger| stranger.link);
        for link in overdue.collect::<Vec<_>>() {
            if self.is_stranger(link) {
                let late = format!("no token came within {} s", HELLO.as_secs());
                self.turn_away(link, None, &Refusal::unauthorized(late));
            } else {
                self.client_leaves(link);
            }
        }
        self.watch_strangers();
    }

    /// The token after a reload. Whoever is in stays in.
    pub(super) fn change_token(&mut self, token: Option<TokenDigest>) {
        self.token = token;
        if token.is_none() {
            let waiting = self.strangers.here.iter().filter(|stranger| !stranger.turned_away);
            for link in waiting.map(|stranger| stranger.link).collect::<Vec<_>>() {
                self.welcome(link, Standing::Fresh);
            }
        }
    }

    pub(super) fn too_many_clients(&self) -> Refusal {
        Refusal::busy(format!("max_clients ({}) are connected", self.limits.max_clients))
    }

    pub(super) fn check_strangers(&self) {
        let outside = |standing| matches!(standing, Standing::Stranger | Standing::TurnedAway);
        let clients = self.clients.iter().filter(|(_, client)| outside(client.standing));
        assert_eq!(clients.count(), self.strangers.len(), "who is not in has a place among the strangers");
        for stranger in &self.strangers.here {
            assert!(self.strangers.alarm.is_some(), "a stranger's time ends");
            assert_eq!(self.is_turned_away(stranger.link), stranger.turned_away);
        }
        assert!(self.strangers.len() <= 2 * STRANGERS, "strangers are few");
    }

    fn look_at_token(&self, line: &[u8], envelope: &Envelope) -> Result<(), Refusal> {
        #[derive(Default, Deserialize)]
        struct Shown<'a> {
            #[serde(borrow)]
            token: Option<Cow<'a, str>>,
        }

        let missing =
            || Refusal::unauthorized("this bus asks for a token, in a _bus/hello as the first line");
        if matches!(envelope.kind, Kind::Answer { .. }) || envelope.method.of(line) != b"_bus/hello" {
            return Err(missing());
        }
        let params = envelope.params.ok_or_else(missing)?.of(line);
        // A list would be taken for the parts in their order.
        let object = Some(params).filter(|params| params.starts_with(b"{"));
        let shown = object.and_then(|params| serde_json::from_slice::<Shown<'_>>(params).ok()?.token);
        match (shown, &self.token) {
            (Some(shown), Some(token)) if token.admits(&shown) => Ok(()),
            (Some(_), _) => Err(Refusal::unauthorized("the token is wrong")),
            (None, _) => Err(missing()),
        }
    }

    /// One of us from here on.
    fn welcome(&mut self, link: Link, standing: Standing) {
        self.strangers.forget(link);
        if let Some(client) = self.clients.get_mut(link.0) {
            client.standing = standing;
        }
    }

    /// One answer, and when that is taken, or after a while, the end.
    fn turn_away(&mut self, link: Link, id: Option<&[u8]>, refusal: &Refusal) {
        let Some(client) = self.clients.get_mut(link.0) else { return };
        client.standing = Standing::TurnedAway;
        self.counters.unauthorized += 1;
        if self.now >= self.strangers.silent_until {
            self.strangers.silent_until = self.now + Strangers::COMPLAINTS_APART;
            warn!("connections turned away without the token, so far: {}", self.counters.unauthorized);
        }
        let until = self.now + LAST_WORDS;
        for stranger in self.strangers.here.iter_mut().filter(|stranger| stranger.link == link) {
            (stranger.turned_away, stranger.until) = (true, until);
        }
        self.watch_strangers();
        self.refuse(link, id, refusal);
        if let Some(peer) = self.post.peer_mut(link) {
            peer.ended = true;
        }
    }

    fn watch_strangers(&mut self) {
        let next = self.strangers.here.iter().map(|stranger| stranger.until).min();
        if let Some(next) = next
            && self.strangers.alarm.is_none_or(|alarm| alarm > next)
        {
            self.strangers.alarm = Some(next);
            self.alarms.set(next, Alarm::Strangers);
        }
    }

    fn stands_as(&self, link: Link, standing: Standing) -> bool {
        self.clients.get(link.0).is_some_and(|client| client.standing == standing)
    }
}
