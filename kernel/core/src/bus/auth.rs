//! The token: a connection must show it before anything else.
//!
//! Where the configuration names a token, the first line of a connection must be a `_bus/hello` that holds it. Until
//! then a connection has a slot apart from those of clients, a short line and little time, and nothing that it says
//! has any other effect than that it is closed.

use std::borrow::Cow;

use log::warn;
use serde::Deserialize;

use super::Bus;
use crate::id::Link;
use crate::limit::{AUTH_LINE_BYTES, AUTH_TIMEOUT, PENDING_AUTH_MAX};
use crate::mutants::{Check, enabled};
use crate::state::calls::Endpoint;
use crate::state::clients::{AuthState, Client};
use crate::token::TokenDigest;
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::scan::{Envelope, Fault, Kind};

impl Bus {
    /// Whether there is a slot for one more client.
    pub(super) fn check_client_slots(&self) -> Result<(), RpcError> {
        let max_clients = self.limits.max_clients;
        let clients = self.clients.len() - self.pending_auth.len();
        if clients >= max_clients && enabled(Check::MaxClients) {
            return Err(RpcError::busy(format!("max_clients ({max_clients}) are connected")));
        }
        Ok(())
    }

    /// Like `check_client_slots`, after a half-closed client has made room.
    pub(super) fn find_client_slot(&mut self) -> Result<(), RpcError> {
        if self.check_client_slots().is_err()
            && let Some(half_closed) = self.clients.first_half_closed()
        {
            self.client_leaves(half_closed);
        }
        self.check_client_slots()
    }

    pub(super) fn add_client(&mut self, pool: Option<&str>, auth: AuthState) -> Link {
        let link = self.links.next_link();
        let endpoint = self.calls.add_endpoint(Endpoint::Client(link));
        let opened = self.links.open(None, endpoint);
        debug_assert_eq!(link, opened);
        let pool = pool.and_then(|name| self.pools.named(name));
        self.clients.insert(link, Client::new(endpoint, pool, self.plain.clone(), auth));
        link
    }

    /// Adds a connection that must show the token. Another such connection makes room if there are too many.
    pub(super) fn add_pending_client(&mut self, origin: u64, pool: Option<&str>) -> Link {
        if let Some(oldest) = self.pending_auth.oldest_if_full() {
            let crowd = format!("{PENDING_AUTH_MAX} others are about to show the token");
            self.reject(oldest, None, &RpcError::busy(crowd));
        }
        if let Some(rejected) = self.pending_auth.rejected_if_crowded() {
            self.client_leaves(rejected);
        }
        let link = self.add_client(pool, AuthState::AwaitingToken);
        self.pending_auth.add(link, origin, self.now);
        self.pending_auth.set_alarm(&mut self.alarms);
        link
    }

    /// Handles the first line of a connection that must show the token with it.
    pub(super) fn auth_line(&mut self, link: Link, line: &[u8]) {
        let envelope = match Envelope::scan(line) {
            Ok(envelope) => envelope,
            // What is not JSON may come from a browser, and is not answered, as with every client.
            Err(malformed) if matches!(malformed.fault, Fault::Syntax { .. }) => {
                return self.client_leaves(link);
            }
            Err(malformed) => {
                return self.reject(link, None, &RpcError::unauthorized(malformed.fault.to_string()));
            }
        };
        let message = Message::new(line, &envelope);
        let id = if message.is_request() { message.id() } else { None };
        if let Err(error) = check_token(self.token.as_ref(), message)
            && enabled(Check::Token)
        {
            return self.reject(link, id, &error);
        }
        if let Err(error) = self.find_client_slot() {
            return self.reject(link, id, &error);
        }
        self.accept(link, AuthState::Accepted);
        self.client_message(link, message);
    }

    /// Rejects a line that is too long. Its end, and so its id, is not waited for.
    pub(super) fn auth_line_too_long(&mut self, link: Link) {
        let error =
            RpcError::unauthorized(format!("before the token a line has at most {AUTH_LINE_BYTES} bytes"));
        self.reject(link, None, &error);
    }

    /// Some connections have not shown the token in time, or have not taken the error that they were sent.
    pub(super) fn auth_overdue(&mut self) {
        for link in self.pending_auth.take_expired(self.now) {
            if self.awaits_token(link) {
                let late = format!("no token came within {} s", AUTH_TIMEOUT.as_secs());
                self.reject(link, None, &RpcError::unauthorized(late));
            } else {
                self.client_leaves(link);
            }
        }
        self.pending_auth.set_alarm(&mut self.alarms);
    }

    /// Changes the token after a reload. Clients that are connected stay.
    pub(super) fn change_token(&mut self, token: Option<TokenDigest>) {
        self.token = token;
        if token.is_none() {
            for link in self.pending_auth.waiting().collect::<Vec<_>>() {
                self.accept(link, AuthState::AwaitingFirstLine);
            }
        }
    }

    fn accept(&mut self, link: Link, auth: AuthState) {
        self.pending_auth.remove(link);
        if let Some(client) = self.clients.get_mut(link) {
            client.auth = auth;
        }
    }

    /// Sends one error, then closes when it is flushed or after `FLUSH_ON_CLOSE`.
    fn reject(&mut self, link: Link, id: Option<&[u8]>, error: &RpcError) {
        let Some(client) = self.clients.get_mut(link) else { return };
        client.auth = AuthState::Rejected;
        self.counters.unauthorized += 1;
        if self.pending_auth.may_warn(self.now) {
            warn!("connections turned away without the token, so far: {}", self.counters.unauthorized);
        }
        self.pending_auth.reject(link, self.now);
        self.pending_auth.set_alarm(&mut self.alarms);
        self.send_error(link, id, error);
        if let Some(peer) = self.links.peer_mut(link) {
            peer.ended = true;
        }
    }
}

fn check_token(token: Option<&TokenDigest>, message: Message<'_>) -> Result<(), RpcError> {
    #[derive(Default, Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        token: Option<Cow<'a, str>>,
    }

    let missing = || RpcError::unauthorized("this bus asks for a token, in a _bus/hello as the first line");
    if matches!(message.envelope.kind, Kind::Answer { .. }) || message.method() != b"_bus/hello" {
        return Err(missing());
    }
    let params = message.params().ok_or_else(missing)?;
    // serde would read an array as the fields in their order.
    if !params.starts_with(b"{") {
        return Err(missing());
    }
    let shown = serde_json::from_slice::<Params<'_>>(params).ok().and_then(|params| params.token);
    match (shown, token) {
        (Some(shown), Some(token)) if token.admits(&shown) => Ok(()),
        (Some(_), _) => Err(RpcError::unauthorized("the token is wrong")),
        (None, _) => Err(missing()),
    }
}
