//! What all requests share, and which path leads where.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use clients::Target;
use hyper::body::Incoming;
use hyper::header::{
    ALLOW, AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE, USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, StatusCode};
use log::{debug, error, info};
use push::book::Subscription;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::assets::Assets;
use crate::audit::Who;
use crate::bus_link::{BusLink, NoLink};
use crate::figures::figures;
use crate::filter::Filter;
use crate::gate::{Admitted, Gate, Refused, WRONG_ORIGIN};
use crate::http_connection::Connections;
use crate::leases::Leases;
use crate::past::Past;
use crate::reply::{self, Reply};
use crate::request::{CONNECTION_ID, Origin, connection_id, has_word, json_body, refuse, too_many, words};
use crate::scope::Scope;
use crate::subscribers::Subscribers;
use crate::tokens::{Store, Token};
use crate::websocket;
use crate::wrong_codes::{self, WrongCodes};

/// The subprotocol that a browser asks for beside its token, and that it must be given back.
const SUBPROTOCOL: &str = "acp.v1";
const BEARER_SUBPROTOCOL: &str = "bearer.";
/// A login is a short object.
const LOGIN_BYTES: usize = 4 << 10;
/// What a browser tells when it subscribes is hardly longer.
const SUBSCRIPTION_BYTES: usize = 4 << 10;
/// How long it is taken for granted that the bus is ready, or not.
const READY_INTERVAL: Duration = Duration::from_secs(1);
/// How often the tokens are looked at while there are connections.
const REVOCATION_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Door {
    pub(crate) gate: Gate,
    pub(crate) assets: Assets,
    pub(crate) target: Target,
    pub(crate) past: Past,
    pub(crate) tokens: Rc<RefCell<Store>>,
    pub(crate) wrong_codes: Rc<WrongCodes>,
    pub(crate) subscribers: Rc<Subscribers>,
    pub(crate) leases: Rc<Leases>,
    /// The connections over HTTP, by their id.
    pub(crate) connections: RefCell<Connections>,
    /// What their streams keep of what they have sent.
    pub(crate) sent_bytes: Rc<Cell<usize>>,
    pub(crate) stopping: watch::Receiver<bool>,
    /// When it closes, another door opens at the same address.
    pub(crate) comes_back: Cell<bool>,
    /// When the bus was last asked whether it is ready, and why it was not.
    pub(crate) readiness: Cell<Option<(Instant, Option<&'static str>)>>,
}

impl Door {
    /// Answers one request, of whatever kind.
    pub(crate) async fn answer(self: Rc<Self>, request: Request<Incoming>, from: Origin) -> Reply {
        let peer = from.peer;
        let answered = match self.gate.check(request.method(), request.uri(), request.headers()) {
            Ok(Admitted { host, is_link: true }) => {
                self.assets.answer(request.uri().path(), &host, request.headers()).ok_or(WRONG_ORIGIN)
            }
            Ok(Admitted { host, .. }) => {
                if from.stranger.is_unknown() && self.token_of(request.headers(), true).is_ok() {
                    from.stranger.is_known_now();
                }
                let is_https = self.assets.is_https();
                let mut reply = self.clone().route(request, from, &host).await;
                if is_https {
                    reply::only_https(&mut reply, &host);
                }
                Ok(reply)
            }
            Err(refused) => Err(refused),
        };
        reply::finish(answered.unwrap_or_else(|Refused(status, why)| {
            debug!("{peer} was turned away: {why}");
            reply::text(status, why)
        }))
    }

    async fn route(self: Rc<Self>, request: Request<Incoming>, from: Origin, host: &str) -> Reply {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let path = request.uri().path().to_owned();
        match path.as_str() {
            "/healthz" if is_read => reply::text(StatusCode::OK, "ok"),
            "/readyz" if is_read => self.ready().await,
            "/login" if request.method() == Method::POST => self.login(request, &from).await,
            "/login" if request.method() == Method::DELETE => self.logout(request.headers(), &from),
            "/login" => not_allowed("POST, DELETE"),
            "/acp" => self.acp(request, from).await,
            "/push" => self.push(request, &from).await,
            "/metrics" if is_read => self.metrics(request.headers()).await,
            "/usage" if is_read => match self.token_of(request.headers(), false) {
                Ok(_) => self.past.usage(request.uri().query()).await,
                Err(reply) => *reply,
            },
            "/healthz" | "/readyz" | "/metrics" | "/usage" => not_allowed("GET, HEAD"),
            path if path == "/history" || path.starts_with("/history/") => self.past(&request, &from).await,
            path => match self.assets.answer(path, host, request.headers()) {
                Some(_) if !is_read => not_allowed("GET, HEAD"),
                Some(reply) => reply,
                None => reply::text(StatusCode::NOT_FOUND, "there is nothing here"),
            },
        }
    }

    /// Whoever has no token can ask this, so the bus is asked once a second at most.
    async fn ready(&self) -> Reply {
        let known = self.readiness.get().filter(|(since, _)| since.elapsed() < READY_INTERVAL);
        let why_not = match known {
            Some((_, why_not)) => why_not,
            None => {
                let why_not = match BusLink::ask(&self.target, "_bus/status").await {
                    Ok(status) if is_stopping(&status) => Some("the bus stops"),
                    Ok(_) => None,
                    Err(_) => Some("the bus does not answer"),
                };
                self.readiness.set(Some((Instant::now(), why_not)));
                why_not
            }
        };
        match why_not {
            None => reply::text(StatusCode::OK, "ok"),
            Some(why_not) => reply::text(StatusCode::SERVICE_UNAVAILABLE, why_not),
        }
    }

    async fn metrics(&self, headers: &HeaderMap) -> Reply {
        if let Err(reply) = self.token_of(headers, false) {
            return *reply;
        }
        figures(&self.target).await
    }

    /// What was said before. Whoever may look on may read it; who may end sessions may delete it.
    async fn past(&self, request: &Request<Incoming>, from: &Origin) -> Reply {
        let token = match self.token_of(request.headers(), false) {
            Ok(token) => token,
            Err(reply) => return *reply,
        };
        let (path, query) = (request.uri().path(), request.uri().query());
        let id = path.strip_prefix("/history/").filter(|id| !id.is_empty());
        match (request.method(), id) {
            (&Method::GET | &Method::HEAD, None) => self.past.list(query, &self.target).await,
            (&Method::GET | &Method::HEAD, Some(id)) => self.past.read(id, query, &self.target).await,
            (&Method::DELETE, Some(_)) if token.scope < Scope::Control => {
                reply::text(StatusCode::FORBIDDEN, "only who may end sessions may delete them")
            }
            (&Method::DELETE, Some(id)) => {
                self.past.delete(id, format!("token {} from {}", token.id, from.peer)).await
            }
            (_, None) => not_allowed("GET, HEAD"),
            (_, Some(_)) => not_allowed("GET, HEAD, DELETE"),
        }
    }

    /// Whether the browser of this token is told of questions while no page is open. Whoever may look on may be told.
    async fn push(&self, request: Request<Incoming>, from: &Origin) -> Reply {
        let token = match self.token_of(request.headers(), false) {
            Ok(token) => token,
            Err(reply) => return *reply,
        };
        match *request.method() {
            Method::GET | Method::HEAD => {
                let key = self.subscribers.public_key();
                let answer = json!({ "key": key, "subscribed": self.subscribers.has(&token.id) });
                return reply::json(StatusCode::OK, answer);
            }
            Method::POST => {}
            Method::DELETE => return changed(self.subscribers.retain(|one| one.token != token.id)),
            _ => return not_allowed("GET, HEAD, POST, DELETE"),
        }
        let body = match json_body(request, SUBSCRIPTION_BYTES).await {
            Ok(body) => body,
            Err(reply) => return *reply,
        };
        match Subscription::read(&body, &token.id, token.scope == Scope::Admin) {
            Ok(subscription) => {
                info!("token {} from {} has subscribed at {}", token.id, from.peer, subscription.origin());
                changed(self.subscribers.add(subscription))
            }
            Err(why) => reply::text(StatusCode::BAD_REQUEST, why),
        }
    }

    async fn login(&self, request: Request<Incoming>, from: &Origin) -> Reply {
        let agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("");
        let by = format!("{} {agent}", from.peer.ip());
        let body = match json_body(request, LOGIN_BYTES).await {
            Ok(body) => body,
            Err(reply) => return *reply,
        };
        let Some(code) = code_of(&body) else {
            return reply::text(StatusCode::BAD_REQUEST, "{\"code\": CODE} is needed");
        };
        match self.tokens.borrow_mut().exchange(&code, by.trim()) {
            Ok(Some((secret, Token { id, scope, .. }))) => {
                info!("token {id} ({scope}) was given to {}", from.peer);
                reply::json(StatusCode::OK, json!({ "token": secret, "scope": scope }))
            }
            Ok(None) => self.refuse_code(from),
            Err(fault) => broken_store(&fault),
        }
    }

    /// A good code is exchanged however many wrong ones there were, so that nobody can keep others out.
    fn refuse_code(&self, from: &Origin) -> Reply {
        let wrong = self.wrong_codes.note(tokio::time::Instant::now());
        if wrong.is_first {
            info!("a wrong code of {} was refused", from.peer);
            let codes = self.wrong_codes.clone();
            spawn_local(async move {
                tokio::time::sleep(wrong_codes::WINDOW).await;
                if codes.count() > 1 {
                    info!("{} wrong codes were refused within a minute", codes.count());
                }
            });
        }
        let Some(wait) = wrong.retry_after else {
            return unauthorized(
                "this code was used, or is too old: ask for another link with `stdio-bus web url`",
            );
        };
        let mut reply = reply::text(StatusCode::TOO_MANY_REQUESTS, "there were too many wrong codes");
        reply.headers_mut().insert(RETRY_AFTER, (wait.as_secs() + 1).into());
        reply
    }

    /// Ends the token that is shown, and whatever lives by it.
    fn logout(&self, headers: &HeaderMap, from: &Origin) -> Reply {
        let token = match self.token_of(headers, false) {
            Ok(token) => token,
            Err(reply) => return *reply,
        };
        let mut tokens = self.tokens.borrow_mut();
        if let Err(fault) = tokens.revoke(&token.id) {
            return broken_store(&fault);
        }
        info!("token {} was given back by {}", token.id, from.peer);
        self.leases.end_unless(|id| tokens.is_good(id));
        changed(self.subscribers.retain(|one| one.token != token.id))
    }

    async fn acp(self: Rc<Self>, request: Request<Incoming>, from: Origin) -> Reply {
        let upgrades = has_word(request.headers(), &UPGRADE, "websocket");
        let token = match self.token_of(request.headers(), upgrades) {
            Ok(token) => token,
            Err(reply) => return *reply,
        };
        if upgrades && request.method() == Method::GET {
            return self.websocket(request, from, token).await;
        }
        self.streamable(request, from, token).await
    }

    /// The token that a request shows. A browser cannot set the headers of its WebSockets, but subprotocols.
    fn token_of(&self, headers: &HeaderMap, upgrades: bool) -> Result<Token, Box<Reply>> {
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        let offered = subprotocols(headers).find_map(|name| name.strip_prefix(BEARER_SUBPROTOCOL));
        let secret = shown.or(offered.filter(|_| upgrades));
        let found = match secret {
            Some(secret) => self.tokens.borrow_mut().find(secret),
            None => Ok(None),
        };
        match found {
            Ok(Some(token)) => Ok(token),
            Ok(None) => {
                Err(unauthorized("a token is needed: ask for a link with `stdio-bus web url`").into())
            }
            Err(fault) => Err(broken_store(&fault).into()),
        }
    }

    async fn websocket(self: Rc<Self>, mut request: Request<Incoming>, from: Origin, token: Token) -> Reply {
        let headers = request.headers();
        let accepted = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
        let is_upgrade = has_word(headers, &CONNECTION, "upgrade");
        let (Some(accepted), true) = (accepted, is_upgrade) else {
            return reply::text(StatusCode::BAD_REQUEST, "this is not a WebSocket handshake");
        };
        if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            let mut reply =
                reply::text(StatusCode::UPGRADE_REQUIRED, "only version 13 of WebSockets is spoken");
            reply.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
            return reply;
        }
        let wants_subprotocol = subprotocols(headers).any(|name| name == SUBPROTOCOL);
        let Some(lease) = self.leases.take(&token.id) else { return too_many() };
        let link = match self.link(request.uri().query()).await {
            Ok(link) => link,
            Err(reply) => return *reply,
        };
        let who = Who { token: token.id, scope: token.scope, from: from.peer.to_string() };
        debug!("{} opens a WebSocket with token {}", who.from, who.token);
        let upgrade = hyper::upgrade::on(&mut request);
        let door = self.clone();
        spawn_local(async move {
            let Ok(upgraded) = upgrade.await else { return };
            let filter = Filter::new(who);
            let stopping = async {
                door.stopped().await;
                door.comes_back.get()
            };
            websocket::relay(upgraded, link, filter, lease, from.activity, stopping).await;
            drop(from.permit);
        });
        switching(&accepted, wants_subprotocol)
    }

    /// A connection to the bus, bound to the pool that the URL names.
    pub(crate) async fn link(&self, query: Option<&str>) -> Result<BusLink, Box<Reply>> {
        let pool = query.and_then(|query| query.split('&').find_map(|pair| pair.strip_prefix("pool=")));
        BusLink::open(&self.target, pool).await.map_err(|fault| match fault {
            NoLink::Unreachable(why) => {
                debug!("no connection to the bus: {why}");
                refuse(StatusCode::SERVICE_UNAVAILABLE, "the bus cannot be reached")
            }
            NoLink::Refused(why) => refuse(StatusCode::NOT_FOUND, why),
        })
    }

    /// Waits until the door closes.
    pub(crate) async fn stopped(&self) {
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// Ends the connections of revoked tokens, for ever.
    pub(crate) async fn enforce_revocations(self: Rc<Self>) {
        loop {
            self.leases.any().await;
            tokio::time::sleep(REVOCATION_INTERVAL).await;
            let mut tokens = self.tokens.borrow_mut();
            match tokens.refresh() {
                Ok(()) => self.leases.end_unless(|id| tokens.is_good(id)),
                Err(fault) => error!("the tokens cannot be read: {fault}"),
            }
        }
    }
}

fn switching(accepted: &str, wants_subprotocol: bool) -> Reply {
    let mut reply = reply::empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = reply.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accepted) = HeaderValue::from_str(accepted) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    }
    if let Ok(id) = connection_id().parse() {
        headers.insert(CONNECTION_ID, id);
    }
    // Browsers want one of those that they have offered; some clients want none that they have not.
    if wants_subprotocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    reply
}

fn is_stopping(status: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(status).is_ok_and(|status| status["stopping"] == true)
}

/// The code of a login.
fn code_of(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Login {
        code: String,
    }

    // A list would be taken for the fields in their order.
    let body = body.trim_ascii_start().starts_with(b"{").then_some(body)?;
    serde_json::from_slice(body).ok().map(|Login { code }| code)
}

fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, secret) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

fn subprotocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    words(headers, &SEC_WEBSOCKET_PROTOCOL)
}

fn not_allowed(methods: &'static str) -> Reply {
    let mut reply = reply::text(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}"));
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    reply
}

fn unauthorized(why: &str) -> Reply {
    let mut reply = reply::text(StatusCode::UNAUTHORIZED, why);
    reply.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    reply
}

/// The answer to a change of the subscriptions.
fn changed(outcome: std::io::Result<()>) -> Reply {
    match outcome {
        Ok(()) => reply::empty(StatusCode::NO_CONTENT),
        Err(fault) => {
            error!("the push subscriptions cannot be written: {fault}");
            reply::text(StatusCode::INTERNAL_SERVER_ERROR, "the push subscriptions cannot be written")
        }
    }
}

fn broken_store(fault: &std::io::Error) -> Reply {
    error!("the tokens cannot be read or written: {fault}");
    reply::text(StatusCode::INTERNAL_SERVER_ERROR, "the tokens cannot be read or written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_in_the_header_in_any_case_of_the_scheme() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("Bearer"), None);
    }

    #[test]
    fn a_login_is_an_object_with_a_code() {
        assert_eq!(code_of(b" {\"code\": \"abc\", \"by\": 1}").as_deref(), Some("abc"));
        for odd in [&b"[\"abc\"]"[..], b"\"abc\"", b"{}", b"{\"code\":1}", b"{", b""] {
            assert_eq!(code_of(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn words_of_a_header_may_be_spread_over_several() {
        let mut headers = HeaderMap::new();
        headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("acp.v1, bearer.abc"));
        headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("other"));
        assert_eq!(subprotocols(&headers).collect::<Vec<_>>(), ["acp.v1", "bearer.abc", "other"]);
        assert!(has_word(&headers, &SEC_WEBSOCKET_PROTOCOL, "OTHER"));
    }
}
