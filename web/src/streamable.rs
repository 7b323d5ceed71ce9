//! ACP over HTTP: messages come as POSTs, and go out on streams of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::task::spawn_local;

use crate::audit::Who;
use crate::door::Door;
use crate::filter::{Filter, Verdict};
use crate::http_connection::HttpConnection;
use crate::message::{Message, error_line, lines_of, malformed_line};
use crate::outboxes::{NoStream, StreamName, is_of_session};
use crate::reply::{self, Reply};
use crate::request::{CONNECTION_ID, Origin, json_body, refuse, too_many};
use crate::tokens::Token;

const SESSION_ID: HeaderName = HeaderName::from_static("acp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const BODY_BYTES: usize = 16 << 20;
/// A longer id of a session or a connection is none of ours.
const ID_BYTES_MAX: usize = 1024;
const FORGOTTEN: &str = "not all that was sent after this Last-Event-ID can be sent again: \
    open the stream without it, and load or resume the session";
const GOOD_BYE: &[u8] = br#"{"jsonrpc":"2.0","method":"_bus/bye"}"#;

impl Door {
    /// `/acp` without an upgrade.
    pub(crate) async fn streamable(
        self: Rc<Self>,
        request: Request<Incoming>,
        from: Origin,
        token: Token,
    ) -> Reply {
        let answered = match *request.method() {
            Method::POST => self.post(request, from, token).await,
            Method::GET => self.get(&request, &token),
            Method::DELETE => self.delete(request.headers(), &token).await,
            _ => {
                let mut reply = refuse(StatusCode::METHOD_NOT_ALLOWED, "only POST, GET and DELETE");
                reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST, GET, DELETE"));
                Err(reply)
            }
        };
        answered.unwrap_or_else(|refusal| *refusal)
    }

    async fn post(
        self: &Rc<Self>,
        request: Request<Incoming>,
        from: Origin,
        token: Token,
    ) -> Result<Reply, Box<Reply>> {
        let headers = request.headers().clone();
        let query = request.uri().query().map(str::to_owned);
        let body = json_body(request, BODY_BYTES).await?;
        let text = str::from_utf8(&body).map_err(|_| no_json("the body is not UTF-8"))?;
        let lines = lines_of(text);
        let [line] = &lines[..] else {
            return Err(no_json("one JSON-RPC message is needed"));
        };
        let message = Message::parse(line)
            .ok_or_else(|| Box::new(reply::json(StatusCode::BAD_REQUEST, malformed_line(line))))?;
        if message.method.as_deref() == Some("initialize") && message.is_request() {
            let id = message.id.map_or("null", |id| id.get());
            let line = Bytes::copy_from_slice(line.as_bytes());
            return self.initialize(id, line, query.as_deref(), from, token).await;
        }
        let connection = self.connection(&headers, &token)?;
        connection.note_use();
        let session = session_of(&message, &headers)?;
        match connection.filter.judge(line) {
            Verdict::Pass => {}
            Verdict::Swallow => return Ok(reply::empty(StatusCode::ACCEPTED)),
            // Clients wait on a stream for the answer, and take a status that is no success for the end of it all.
            Verdict::Refuse(answer) => {
                let id = message.id.map_or("null", |id| id.get());
                let has_room = connection.refuse(id, session.as_deref(), answer);
                return if has_room {
                    Ok(reply::empty(StatusCode::ACCEPTED))
                } else {
                    Err(too_many().into())
                };
            }
            Verdict::RefuseSilent(answer) => return Ok(reply::json(StatusCode::FORBIDDEN, answer)),
        }
        let line = filled(line, &message, session.as_deref())?;
        if let Some(id) = message.id.filter(|_| message.is_request())
            && !connection.note_call(id.get(), session.as_deref())
        {
            return Err(too_many().into());
        }
        if connection.send(line).await {
            Ok(reply::empty(StatusCode::ACCEPTED))
        } else {
            Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "the bus does not take it"))
        }
    }

    /// Makes a connection, and answers with what the agent says.
    async fn initialize(
        self: &Rc<Self>,
        id: &str,
        line: Bytes,
        query: Option<&str>,
        from: Origin,
        token: Token,
    ) -> Result<Reply, Box<Reply>> {
        let lease = self.leases.take(&token.id).ok_or_else(|| Box::new(too_many()))?;
        let link = self.link(query).await?;
        let who = Who { token: token.id.clone(), scope: token.scope, from: from.peer.to_string() };
        let (connection, life) =
            HttpConnection::new(link, token.id, Filter::new(who), lease, self.sent_bytes.clone());
        self.connections.borrow_mut().insert(connection.id.clone(), connection.clone());
        let door = self.clone();
        let name = connection.id.clone();
        spawn_local(async move {
            tokio::select! {
                () = life => {}
                () = door.stopped() => {}
            }
            if let Some(connection) = door.connections.borrow_mut().remove(&name) {
                connection.end();
            }
        });
        let Some(answer) = connection.initialize(id, line).await else {
            connection.end();
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "the bus has closed the connection"));
        };
        let is_result = Message::parse(&answer).is_some_and(|answer| answer.result.is_some());
        let mut reply = reply::json(StatusCode::OK, answer);
        if !is_result {
            // Nothing can be done on a connection that was refused.
            connection.end();
        } else if let Ok(id) = HeaderValue::from_str(&connection.id) {
            reply.headers_mut().insert(CONNECTION_ID, id);
        }
        Ok(reply)
    }

    fn get(&self, request: &Request<Incoming>, token: &Token) -> Result<Reply, Box<Reply>> {
        let headers = request.headers();
        let accepts =
            |value: &HeaderValue| value.to_str().is_ok_and(|value| value.contains("text/event-stream"));
        if !headers.get_all(ACCEPT).iter().any(accepts) {
            return Err(refuse(StatusCode::NOT_ACCEPTABLE, "Accept must have text/event-stream"));
        }
        let connection = self.connection(headers, token)?;
        let name: StreamName = header(headers, &SESSION_ID)?.map(Box::from);
        let opening = match connection.open_stream(&name, last_event(headers)) {
            Ok(opening) => opening,
            Err(NoStream::Unknown) => return Err(refuse(StatusCode::NOT_FOUND, "there is no such session")),
            Err(NoStream::OpenAlready) => {
                return Err(refuse(StatusCode::CONFLICT, "this stream is open already"));
            }
            Err(NoStream::Forgotten) => return Err(refuse(StatusCode::CONFLICT, FORGOTTEN)),
        };
        let (sender, events) = mpsc::channel(1);
        spawn_local(connection.write_stream(name, opening, sender));
        let mut reply = Response::new(Events(events).boxed_unsync());
        reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // A proxy must not wait until it has more.
        reply.headers_mut().insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
        Ok(reply)
    }

    /// The client is done: its sessions are closed, as after a good-bye.
    async fn delete(&self, headers: &HeaderMap, token: &Token) -> Result<Reply, Box<Reply>> {
        let connection = self.connection(headers, token)?;
        connection.send(Bytes::from_static(GOOD_BYE)).await;
        connection.end();
        Ok(reply::empty(StatusCode::ACCEPTED))
    }

    /// The connection that a request names. That of another token is as unknown as one that never was.
    fn connection(&self, headers: &HeaderMap, token: &Token) -> Result<Rc<HttpConnection>, Box<Reply>> {
        let Some(id) = header(headers, &CONNECTION_ID)? else {
            return Err(refuse(StatusCode::BAD_REQUEST, "Acp-Connection-Id is needed"));
        };
        let connections = self.connections.borrow();
        let found = connections.get(id).filter(|connection| connection.token == token.id);
        found.cloned().ok_or_else(|| refuse(StatusCode::NOT_FOUND, "there is no such connection"))
    }
}

/// The session that a message is about: in its params, or in the header where they have none. Both must agree.
fn session_of(message: &Message<'_>, headers: &HeaderMap) -> Result<Option<String>, Box<Reply>> {
    let method = message.method.as_deref().unwrap_or_default();
    let named = header(headers, &SESSION_ID)?;
    let own = message.session();
    // A cancelled request is named by its id, whatever the header says.
    if method.starts_with("$/") {
        return Ok(None);
    }
    match (own, named) {
        (Some(own), Some(named)) if own != named => {
            Err(refuse(StatusCode::BAD_REQUEST, "Acp-Session-Id is not the sessionId of the params"))
        }
        (None, None) if is_of_session(method) => {
            Err(refuse(StatusCode::BAD_REQUEST, "Acp-Session-Id is needed"))
        }
        (own, named) => Ok(own.map(|own| own.into_owned()).or_else(|| named.map(str::to_owned))),
    }
}

/// The line as the bus gets it: where only the header names the session, the params name it now.
fn filled(line: &str, message: &Message<'_>, session: Option<&str>) -> Result<Bytes, Box<Reply>> {
    let is_of_session = message.method.as_deref().is_some_and(is_of_session);
    let missing = session.filter(|_| is_of_session && message.session().is_none());
    let Some(session) = missing else { return Ok(Bytes::copy_from_slice(line.as_bytes())) };
    let filled = message.with_session(line, session);
    filled.map(Bytes::from).ok_or_else(|| {
        refuse(StatusCode::BAD_REQUEST, "the params must be an object, and sessionId in it a string")
    })
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Box<Reply>> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| text.len() <= ID_BYTES_MAX && !text.is_empty());
    text.map(Some).ok_or_else(|| refuse(StatusCode::BAD_REQUEST, format!("{name} is not good")))
}

/// The number of the event that the client had last. An id that is none of ours is that of no event.
fn last_event(headers: &HeaderMap) -> Option<u64> {
    let id = headers.get(&LAST_EVENT_ID).filter(|id| !id.is_empty())?;
    let digits = id.to_str().ok().filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
    Some(digits.and_then(|id| id.parse().ok()).unwrap_or(u64::MAX))
}

fn no_json(why: &str) -> Box<Reply> {
    Box::new(reply::json(StatusCode::BAD_REQUEST, error_line(None, -32_700, "parse", why)))
}

/// The body of a stream of events.
struct Events(mpsc::Receiver<Bytes>);

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}
