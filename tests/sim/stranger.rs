//! Worlds with a token: clients that show it, and those that do not, or too late. A byte of a stranger has no effect.

use kernel_core::Moment;
use kernel_core::config::{Auth, Config};
use kernel_core::limit::AUTH_TIMEOUT;
use kernel_core::token::TokenDigest;
use serde_json::Value;

use crate::ledger::{Conn, Kind, Peer, Serial, What};
use crate::line::{self, Hole, hole, mark, object, quoted, text};
use crate::oracle::{Oracle, broken};
use crate::rng::Rng;
use crate::said::{id_token, shown};
use crate::world::World;

/// The first, and the one that it may be changed to and back.
pub(crate) const TOKENS: [&str; 2] = ["right", "newer"];

/// What a client does about the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    Right,
    Wrong,
    /// It begins as if there were none.
    Nothing,
    /// It does not even begin.
    Silence,
}

/// What a connection may do, as far as the token goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pass {
    #[default]
    Free,
    /// The token is still to come. Nothing was read that it did not begin with.
    Awaited { came: Moment },
    /// It began with something else: it must be turned away.
    Doomed,
    /// It was turned away, and has heard why.
    Refused,
}

/// Every fourth world has one. Chosen apart from all else, so that the other worlds stay what they were.
pub(crate) fn guard(seed: u64, config: &mut Config) {
    if Rng::new(seed ^ 0x0074_6f6b_656e).percent(25) {
        config.auth = Some(Auth { token_file: "/token".into(), digest: TokenDigest::of(TOKENS[0]) });
        config.limits.max_clients = 100;
    }
}

impl Shows {
    pub(crate) fn some(rng: &mut Rng) -> Shows {
        let all = [Shows::Wrong, Shows::Nothing, Shows::Silence];
        if rng.percent(60) { Shows::Right } else { rng.one(&all) }
    }
}

impl World {
    /// Somebody has changed the token too.
    pub(crate) fn changes_token(&mut self) {
        if self.config.auth.is_some() && self.rng.percent(40) {
            self.oracle.token = self.rng.one(&TOKENS);
            let digest = TokenDigest::of(self.oracle.token);
            self.config.auth = Some(Auth { token_file: "/token".into(), digest });
        }
    }

    /// Its first line, which is a hello with the right token or with another.
    pub(crate) fn shows_token(&mut self, conn: Conn, right: bool) {
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
            ("id", hole(Hole::Id, id.clone())),
            ("params", params),
        ];
        if right {
            self.oracle.conns[conn].hello = Some((serial, token));
        }
        let line = line::line(object(&mut self.rng, top));
        self.send(conn, line, What::Ask { kind: Kind::House, id, done: false });
    }
}

impl Oracle {
    /// The bus is given the end of a client's line. False: it must have no effect.
    pub(crate) fn may_act(&mut self, conn: Conn, serial: Option<Serial>) -> bool {
        let book = &mut self.conns[conn];
        if matches!(book.pass, Pass::Awaited { .. }) {
            let hello = book.hello.is_some_and(|hello| Some(hello.0) == serial && hello.1 == self.token);
            book.pass = if hello { Pass::Free } else { Pass::Doomed };
        }
        book.pass == Pass::Free
    }

    pub(crate) fn is_stranger(&self, conn: Conn) -> bool {
        self.conns[conn].pass != Pass::Free
    }

    /// A stranger hears one thing, and that is why it must go.
    pub(crate) fn said_to_stranger(&mut self, conn: Conn, value: &Value, line: &[u8]) {
        let book = &self.conns[conn];
        let error = &value["error"];
        if error["code"] != -32056 || error["data"]["reason"] != "unauthorized" {
            broken!("(12) no effect without the token", "conn {conn} hears {}", shown(line));
        }
        let on_time = |came: Moment| book.hello.is_some() && self.now < came + AUTH_TIMEOUT;
        match book.pass {
            Pass::Refused => {
                broken!("(12) no effect without the token", "conn {conn} hears more: {}", shown(line))
            }
            Pass::Awaited { came } if on_time(came) => {
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
                    "conn {conn} hears {}, having begun {first:?}",
                    shown(line)
                );
            }
        }
        self.conns[conn].pass = Pass::Refused;
    }

    /// Whether the bus may close it for want of the token.
    pub(crate) fn may_be_turned_away(&self, conn: Conn) -> bool {
        let book = &self.conns[conn];
        if book.pass == Pass::Doomed && !(book.hostile || book.broken || self.causes.stops > 0) {
            broken!("(2) exactly one answer", "conn {conn} was closed without the token, and without a word");
        }
        book.pass == Pass::Refused
    }
}
