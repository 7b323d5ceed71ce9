//! HTTP requests to MCP servers, for both of their HTTP transports.
//!
//! They use the same blocking client as the requests to the model, each on a thread of its own, and are shut down when
//! nobody waits for them any more. Each has a connection of its own: servers close those that wait, and a call must not
//! be lost to that. Headers carry keys, so a redirect to another origin is an error.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use tokio::task::spawn_blocking;
use ureq::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use ureq::{Agent, Body};

use super::events::{Events, InUse, events};
use crate::openai::history::beginning;

/// The largest message of a server.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// What is quoted of an answer that cannot be used.
const QUOTED_BYTES_MAX: usize = 300;
const REDIRECTS_MAX: usize = 3;
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

pub(super) type Headers = HashMap<HeaderName, HeaderValue>;

/// Why a request failed. Secrets are removed elsewhere.
#[derive(Debug)]
pub(super) struct HttpError(pub(super) String);

impl fmt::Display for HttpError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for HttpError {}

impl From<HttpError> for StreamableHttpError<HttpError> {
    fn from(error: HttpError) -> StreamableHttpError<HttpError> {
        StreamableHttpError::Client(error)
    }
}

#[derive(Clone)]
pub(super) struct HttpClient {
    settings: ureq::config::Config,
}

/// An answer: its body is read, unless it is a stream of events.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    pub(super) events: Option<Events>,
}

impl HttpClient {
    pub(super) fn new(settings: ureq::config::Config) -> HttpClient {
        HttpClient { settings }
    }

    pub(super) async fn send(
        &self,
        method: Method,
        uri: &str,
        headers: Headers,
        body: Vec<u8>,
    ) -> Result<Answer, HttpError> {
        let agent = Agent::new_with_config(self.settings.clone());
        let in_use = InUse(agent.clone());
        let uri = uri.to_owned();
        let answer = spawn_blocking(move || exchange(&agent, &method, uri, &headers, &body)).await;
        let response = answer.map_err(|error| HttpError(error.to_string()))??;
        let (parts, body) = response.into_parts();
        let mut answer =
            Answer { status: parts.status, headers: parts.headers, body: Vec::new(), events: None };
        if answer.status.is_success() && answer.has_type(EVENT_STREAM) {
            answer.events = Some(events(body.into_reader(), in_use));
            return Ok(answer);
        }
        let read = spawn_blocking(move || read_body(body)).await;
        answer.body = read.map_err(|error| HttpError(error.to_string()))??;
        drop(in_use);
        Ok(answer)
    }
}

impl Answer {
    fn has_type(&self, wanted: &str) -> bool {
        let content_type = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        content_type.is_some_and(|text| text.trim_start().to_ascii_lowercase().starts_with(wanted))
    }

    fn session_id(&self) -> Option<String> {
        self.headers.get(SESSION_ID)?.to_str().ok().map(str::to_owned)
    }

    /// The error that an answer without success is.
    pub(super) fn error(&self) -> HttpError {
        let text = String::from_utf8_lossy(&self.body);
        let quoted = beginning(text.trim(), QUOTED_BYTES_MAX);
        let gap = if quoted.is_empty() { "" } else { ": " };
        HttpError(format!("HTTP {}{gap}{quoted}", self.status.as_u16()))
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        mut headers: Headers,
    ) -> Result<StreamableHttpPostResponse, StreamableHttpError<HttpError>> {
        let has_session = session_id.is_some();
        add(&mut headers, SESSION_ID, session_id.as_deref());
        add_common(&mut headers, auth_header);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        let wants_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        let body = serde_json::to_vec(&message)?;
        let mut answer = self.send(Method::POST, &uri, headers, body).await?;
        let session_id = answer.session_id();
        if let Some(events) = answer.events.take() {
            return Ok(StreamableHttpPostResponse::Sse(events, session_id));
        }
        let status = answer.status;
        if status.is_success() && (!wants_answer || status == StatusCode::ACCEPTED) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let is_error = |message: &ServerJsonRpcMessage| matches!(message, ServerJsonRpcMessage::Error(_));
        match serde_json::from_slice::<ServerJsonRpcMessage>(&answer.body) {
            Ok(message) if status.is_success() || is_error(&message) => {
                Ok(StreamableHttpPostResponse::Json(message, session_id))
            }
            _ => Err(answer.error().into()),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        mut headers: Headers,
    ) -> Result<(), StreamableHttpError<HttpError>> {
        add(&mut headers, SESSION_ID, Some(&session_id));
        add_common(&mut headers, auth_header);
        // A server that keeps its sessions is within its rights.
        self.send(Method::DELETE, &uri, headers, Vec::new()).await?;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        mut headers: Headers,
    ) -> Result<Events, StreamableHttpError<HttpError>> {
        add(&mut headers, SESSION_ID, session_id.as_deref());
        add(&mut headers, LAST_EVENT_ID, last_event_id.as_deref());
        add_common(&mut headers, auth_header);
        let mut answer = self.send(Method::GET, &uri, headers, Vec::new()).await?;
        match answer.events.take() {
            Some(events) => Ok(events),
            None if answer.status.is_success() || answer.status.is_client_error() => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            None => Err(answer.error().into()),
        }
    }
}

fn add(headers: &mut Headers, name: HeaderName, value: Option<&str>) {
    if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
        headers.insert(name, value);
    }
}

fn add_common(headers: &mut Headers, auth_header: Option<String>) {
    let bearer = auth_header.map(|token| format!("Bearer {token}"));
    add(headers, header::AUTHORIZATION, bearer.as_deref());
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
}

/// Sends a request. Redirects are followed only as far as the headers may go.
fn exchange(
    agent: &Agent,
    method: &Method,
    mut uri: String,
    headers: &Headers,
    body: &[u8],
) -> Result<Response<Body>, HttpError> {
    for _ in 0..=REDIRECTS_MAX {
        let mut request = Request::builder().method(method.clone()).uri(&uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = if *method == Method::POST {
            let request = request.body(body).map_err(|error| HttpError(error.to_string()))?;
            agent.run(request)
        } else {
            let request = request.body(()).map_err(|error| HttpError(error.to_string()))?;
            agent.run(request)
        };
        let response = response.map_err(|error| HttpError(error.to_string()))?;
        if !matches!(response.status().as_u16(), 307 | 308) {
            return Ok(response);
        }
        let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        uri = join(&uri, location.unwrap_or_default())?;
    }
    Err(HttpError("too many redirects".to_owned()))
}

/// A reference of the server as a URL of the same origin.
pub(super) fn join(base: &str, reference: &str) -> Result<String, HttpError> {
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..].find(['/', '?', '#']).map_or(base.len(), |at| authority + at);
    let (origin, path) = base.split_at(end);
    if let Some(rest) = reference.strip_prefix(origin)
        && rest.starts_with(['/', '?'])
    {
        return Ok(reference.to_owned());
    }
    if reference.is_empty() || reference.starts_with("//") || reference.contains("://") {
        return Err(HttpError("the server names another origin".to_owned()));
    }
    if reference.starts_with('/') {
        return Ok(format!("{origin}{reference}"));
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    Ok(format!("{origin}{folder}{reference}"))
}

fn read_body(body: Body) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    let mut reader = body.into_reader().take(MESSAGE_BYTES_MAX as u64 + 1);
    reader.read_to_end(&mut bytes).map_err(|error| HttpError(error.to_string()))?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(HttpError("an answer is too long".to_owned()));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_origin_is_followed() {
        let join = |reference| join("https://h:1/a/mcp?x=/y", reference).ok();
        assert_eq!(join("/b?s=1").as_deref(), Some("https://h:1/b?s=1"));
        assert_eq!(join("mcp/").as_deref(), Some("https://h:1/a/mcp/"));
        assert_eq!(join("https://h:1/c").as_deref(), Some("https://h:1/c"));
        for other in
            ["https://h:12/c", "https://h:1.evil/c", "//evil/c", "http://h:1/c", "https://h:1@evil/", ""]
        {
            assert_eq!(join(other), None, "{other}");
        }
    }
}
