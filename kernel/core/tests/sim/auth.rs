//! Worlds with a token. Clients send it, or a wrong one, or none, or too late. Without it nothing has an effect.

use kernel_core::Moment;
use kernel_core::config::{Auth, Config};
use kernel_core::limit::AUTH_TIMEOUT;
use kernel_core::token::TokenDigest;
use serde_json::Value;

use crate::line::{self, Slot, mark, object, quoted, slot, text};
use crate::oracle::{Oracle, broken};
use crate::parse::{id_token, shown};
use crate::record::{Conn, Kind, Peer, Serial, What};
use crate::rng::Rng;
use crate::world::World;

/// The token at the start, and the one that a reload may change it to and back.
pub(crate) const TOKENS: [&str; 2] = ["right", "newer"];

/// What a client does about the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenChoice {
    Right,
    Wrong,
    /// It begins as if no token were required.
    Nothing,
    /// It sends nothing.
    Silence,
}

/// What a connection may do, as far as the token goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AuthState {
    #[default]
    Accepted,
    /// No complete line was read yet.
    Awaited { came: Moment },
    /// Its first line was not a hello with the token, so the bus must reject it.
    MustReject,
    /// The bus has rejected it and has told it why.
    Rejected,
}

/// Every fourth world requires a token. A generator of its own decides, so that the other draws do not change.
pub(crate) fn require_token(seed: u64, config: &mut Config) {
    if Rng::new(seed ^ 0x0074_6f6b_656e).percent(25) {
        config.auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of(TOKENS[0]) });
        config.limits.max_clients = 100;
    }
}

impl TokenChoice {
    pub(crate) fn random(rng: &mut Rng) -> TokenChoice {
        let all = [TokenChoice::Wrong, TokenChoice::Nothing, TokenChoice::Silence];
        if rng.percent(60) { TokenChoice::Right } else { rng.one(&all) }
    }
}

impl World {
    /// A reload may change the token.
    pub(crate) fn change_token(&mut self) {
        if self.config.auth.is_some() && self.rng.percent(40) {
            self.oracle.token = self.rng.one(&TOKENS);
            let digest = TokenDigest::of(self.oracle.token);
            self.config.auth = Some(Auth { token_file: "/token".into(), digest });
        }
    }

    /// Sends the first line: a hello with the right token or a wrong one.
    pub(crate) fn send_hello(&mut self, conn: Conn, right: bool) {
        let wrong = ["", "Right", "right ", "righ", "wrong"];
        let token = if right { self.oracle.token } else { self.rng.one(&wrong) };
        let serial = self.oracle.next_serial();
        let id = format!("\"hello {conn}\"").into_bytes();
        let params = vec![("token", text(quoted(token))), ("m", text(quoted(&mark(serial))))];
        let params = object(&mut self.rng, params);
        let method = ("method", text(r#""_bus/hello""#));
        let top = vec![
            ("jsonrpc", text(r#""2.0""#)),
            method,
            ("id", slot(Slot::Id, id.clone())),
            ("params", params),
        ];
        if right {
            self.oracle.conns[conn].hello = Some((serial, token));
        }
        let line = line::line(object(&mut self.rng, top));
        self.send(conn, line, What::Ask { kind: Kind::Admin, id, done: false });
    }
}

impl Oracle {
    /// The bus is given the end of a client's line. Returns whether the line may have an effect.
    pub(crate) fn may_act(&mut self, conn: Conn, serial: Option<Serial>) -> bool {
        let book = &mut self.conns[conn];
        if matches!(book.auth, AuthState::Awaited { .. }) {
            let hello = book.hello.is_some_and(|hello| Some(hello.0) == serial && hello.1 == self.token);
            book.auth = if hello { AuthState::Accepted } else { AuthState::MustReject };
        }
        book.auth == AuthState::Accepted
    }

    pub(crate) fn is_unauthenticated(&self, conn: Conn) -> bool {
        self.conns[conn].auth != AuthState::Accepted
    }

    /// Without the token a connection is sent one line only: the error that says why it is closed.
    pub(crate) fn sent_to_unauthenticated(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let book = &self.conns[conn];
        let error = &value["error"];
        if error["code"] != -32056 || error["data"]["reason"] != "unauthorized" {
            broken!("(12) no effect without the token", "conn {conn} is sent {}", shown(line));
        }
        let on_time = |came: Moment| book.hello.is_some() && self.now < came + AUTH_TIMEOUT;
        match book.auth {
            AuthState::Rejected => {
                broken!("(12) no effect without the token", "conn {conn} is sent more: {}", shown(line))
            }
            AuthState::Awaited { came } if on_time(came) => {
                broken!(
                    "(12) the token is waited for",
                    "conn {conn} came at {came:?}, now it is {:?}",
                    self.now
                )
            }
            _ => {}
        }
        if !value["id"].is_null() {
            let first = self.sent.iter().find(|sent| sent.by == Peer::Client(conn)).map(|sent| &sent.what);
            if !matches!(first, Some(What::Ask { id, .. }) if *id == id_token(line)) {
                broken!(
                    "(1) an answer under its id",
                    "conn {conn} is sent {}, having begun {first:?}",
                    shown(line)
                );
            }
        }
        self.conns[conn].auth = AuthState::Rejected;
    }

    /// Whether the bus may close it because the token is missing.
    pub(crate) fn may_be_rejected(&self, conn: Conn) -> bool {
        let book = &self.conns[conn];
        if book.auth == AuthState::MustReject && !(book.hostile || book.broken || self.causes.stops > 0) {
            broken!("(2) exactly one answer", "conn {conn} was closed without the token, and without a word");
        }
        book.auth == AuthState::Rejected
    }
}
