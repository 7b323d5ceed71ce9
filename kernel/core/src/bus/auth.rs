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
use crate::limit::{AUTH_LINE_BYTES, AUTH_TIMEOUT, FLUSH_ON_CLOSE, PENDING_AUTH_MAX};
use crate::mutants::{Check, enabled};
use crate::state::clients::AuthState;
use crate::state::timers::Alarm;
use crate::token::TokenDigest;
use crate::wire::error::RpcError;
use crate::wire::prefix_cache::PrefixCache;
use crate::wire::scan::{Envelope, Fault, Kind};

/// Those who have not shown the token, also those who have been turned away and are about to leave.
#[derive(Default)]
pub(super) struct PendingAuth {
    /// In the order in which they came. At most `2 * STRANGERS`.
    here: Vec<PendingClient>,
    /// The next alarm that is set for them.
    alarm: Option<Moment>,
    /// Not to be complained of before this moment.
    silent_until: Moment,
}

struct PendingClient {
    link: Link,
    rejected: bool,
    /// When its time is over.
    until: Moment,
}

impl PendingAuth {
    const COMPLAINTS_APART: Moment = Moment::from_secs(1);

    pub(super) fn len(&self) -> usize {
        self.here.len()
    }

    pub(super) fn forget(&mut self, link: Link) {
        self.here.retain(|stranger| stranger.link != link);
    }

    /// The oldest who may still show the token, if there is no place for another.
    fn in_the_way(&self) -> Option<Link> {
        let mut waiting = self.here.iter().filter(|stranger| !stranger.rejected);
        let oldest = waiting.next()?;
        (waiting.count() + 1 >= PENDING_AUTH_MAX).then_some(oldest.link)
    }
}

impl Bus {
    pub(super) fn make_auth_room(&mut self) {
        if let Some(oldest) = self.pending_auth.in_the_way() {
            let crowd = format!("{PENDING_AUTH_MAX} others are about to show the token");
            self.reject(oldest, None, &RpcError::busy(crowd));
        }
        // One who does not even take its last answer gets no more time once there are many such.
        if self.pending_auth.len() >= 2 * PENDING_AUTH_MAX {
            let leaving = self.pending_auth.here.iter().find(|stranger| stranger.rejected);
            if let Some(link) = leaving.map(|stranger| stranger.link) {
                self.client_leaves(link);
            }
        }
    }

    pub(super) fn await_token(&mut self, link: Link) {
        let until = self.now + AUTH_TIMEOUT;
        self.pending_auth.here.push(PendingClient { link, rejected: false, until });
        self.set_auth_timer();
    }

    /// Whether this client has yet to show the token.
    pub fn awaits_token(&self, link: Link) -> bool {
        self.is_awaiting_token(link)
    }

    pub(super) fn is_awaiting_token(&self, link: Link) -> bool {
        self.has_auth(link, AuthState::AwaitingToken)
    }

    pub(super) fn is_rejected(&self, link: Link) -> bool {
        self.has_auth(link, AuthState::Rejected)
    }

    /// The first line of one who has to show the token with it.
    pub(super) fn auth_line(&mut self, link: Link, line: &[u8]) {
        let envelope = match Envelope::scan(line) {
            Ok(envelope) => envelope,
            // As with every client: what is no JSON may be a browser's, and is not answered.
            Err(malformed) if matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                return self.reject(link, None, &RpcError::unauthorized(malformed.fault.to_string()));
            }
        };
        let id = envelope.id.filter(|_| envelope.kind == Kind::Request).map(|id| id.of(line));
        if let Err(error) = self.check_token(line, &envelope)
            && enabled(Check::Token)
        {
            return self.reject(link, id, &error);
        }
        if self.has_all_clients() {
            return self.reject(link, id, &self.too_many_clients());
        }
        self.admit(link, AuthState::Accepted);
        self.client_line(link, line, &mut PrefixCache::default());
    }

    /// Its end is not waited for, and so neither is its id.
    pub(super) fn auth_line_too_long(&mut self, link: Link) {
        let error =
            RpcError::unauthorized(format!("before the token a line has at most {AUTH_LINE_BYTES} bytes"));
        self.reject(link, None, &error);
    }

    /// The time of some is over: to show the token, or to take the answer that they did not.
    pub(super) fn auth_overdue(&mut self) {
        self.pending_auth.alarm = self.pending_auth.alarm.filter(|alarm| *alarm > self.now);
        let overdue = |stranger: &&PendingClient| stranger.until <= self.now;
        let overdue = self.pending_auth.here.iter().filter(overdue).map(|stranger| stranger.link);
        for link in overdue.collect::<Vec<_>>() {
            if self.is_awaiting_token(link) {
                let late = format!("no token came within {} s", AUTH_TIMEOUT.as_secs());
                self.reject(link, None, &RpcError::unauthorized(late));
            } else {
                self.client_leaves(link);
            }
        }
        self.set_auth_timer();
    }

    /// The token after a reload. Whoever is in stays in.
    pub(super) fn change_token(&mut self, token: Option<TokenDigest>) {
        self.token = token;
        if token.is_none() {
            let waiting = self.pending_auth.here.iter().filter(|stranger| !stranger.rejected);
            for link in waiting.map(|stranger| stranger.link).collect::<Vec<_>>() {
                self.admit(link, AuthState::AwaitingFirstLine);
            }
        }
    }

    pub(super) fn too_many_clients(&self) -> RpcError {
        RpcError::busy(format!("max_clients ({}) are connected", self.limits.max_clients))
    }

    pub(super) fn check_pending_auth(&self) {
        let outside = |auth| matches!(auth, AuthState::AwaitingToken | AuthState::Rejected);
        let clients = self.clients.iter().filter(|(_, client)| outside(client.auth));
        assert_eq!(clients.count(), self.pending_auth.len(), "who is not in has a place among the strangers");
        for stranger in &self.pending_auth.here {
            assert!(self.pending_auth.alarm.is_some(), "a stranger's time ends");
            assert_eq!(self.is_rejected(stranger.link), stranger.rejected);
        }
        assert!(self.pending_auth.len() <= 2 * PENDING_AUTH_MAX, "strangers are few");
    }

    fn check_token(&self, line: &[u8], envelope: &Envelope) -> Result<(), RpcError> {
        #[derive(Default, Deserialize)]
        struct Shown<'a> {
            #[serde(borrow)]
            token: Option<Cow<'a, str>>,
        }

        let missing =
            || RpcError::unauthorized("this bus asks for a token, in a _bus/hello as the first line");
        if matches!(envelope.kind, Kind::Answer { .. }) || envelope.method.of(line) != b"_bus/hello" {
            return Err(missing());
        }
        let params = envelope.params.ok_or_else(missing)?.of(line);
        // A list would be taken for the parts in their order.
        let object = Some(params).filter(|params| params.starts_with(b"{"));
        let shown = object.and_then(|params| serde_json::from_slice::<Shown<'_>>(params).ok()?.token);
        match (shown, &self.token) {
            (Some(shown), Some(token)) if token.admits(&shown) => Ok(()),
            (Some(_), _) => Err(RpcError::unauthorized("the token is wrong")),
            (None, _) => Err(missing()),
        }
    }

    /// One of us from here on.
    fn admit(&mut self, link: Link, auth: AuthState) {
        self.pending_auth.forget(link);
        if let Some(client) = self.clients.get_mut(link.0) {
            client.auth = auth;
        }
    }

    /// One answer, and when that is taken, or after a while, the end.
    fn reject(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        let Some(client) = self.clients.get_mut(link.0) else { return };
        client.auth = AuthState::Rejected;
        self.counters.unauthorized += 1;
        if self.now >= self.pending_auth.silent_until {
            self.pending_auth.silent_until = self.now + PendingAuth::COMPLAINTS_APART;
            warn!("connections turned away without the token, so far: {}", self.counters.unauthorized);
        }
        let until = self.now + FLUSH_ON_CLOSE;
        for stranger in self.pending_auth.here.iter_mut().filter(|stranger| stranger.link == link) {
            (stranger.rejected, stranger.until) = (true, until);
        }
        self.set_auth_timer();
        self.send_error(link, id, error);
        if let Some(peer) = self.links.peer_mut(link) {
            peer.ended = true;
        }
    }

    fn set_auth_timer(&mut self) {
        let next = self.pending_auth.here.iter().map(|stranger| stranger.until).min();
        if let Some(next) = next
            && self.pending_auth.alarm.is_none_or(|alarm| alarm > next)
        {
            self.pending_auth.alarm = Some(next);
            self.alarms.set(next, Alarm::Auth);
        }
    }

    fn has_auth(&self, link: Link, auth: AuthState) -> bool {
        self.clients.get(link.0).is_some_and(|client| client.auth == auth)
    }
}
