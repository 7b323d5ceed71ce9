//! What the kinds of requests have in common: where they come from, their bodies, and how they are refused.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::{Request, StatusCode};
use rpc::text::hex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::activity::Activity;
use crate::reply::{self, Reply};
use crate::strangers::Stranger;

pub(crate) const CONNECTION_ID: HeaderName = HeaderName::from_static("acp-connection-id");
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Where a request comes from.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) peer: SocketAddr,
    pub(crate) activity: Arc<Activity>,
    /// Its place among all connections.
    pub(crate) permit: Rc<OwnedSemaphorePermit>,
    pub(crate) stranger: Rc<Stranger>,
}

/// A random id in the form of a UUID.
pub(crate) fn connection_id() -> String {
    let mut bytes = [0; 16];
    // Without randomness ids would repeat, and they name connections; nothing else of this program would work either.
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = hex(&bytes);
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The body of a request that must be JSON and not too long.
pub(crate) async fn json_body(request: Request<Incoming>, limit: usize) -> Result<Bytes, Box<Reply>> {
    let is_json =
        request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
            value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
        });
    if !is_json {
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the Content-Type must be application/json"));
    }
    match timeout(BODY_TIMEOUT, Limited::new(request.into_body(), limit).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(fault)) if fault.downcast_ref::<LengthLimitError>().is_some() => {
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, format!("a body may have {limit} bytes")))
        }
        Ok(Err(_)) => Err(refuse(StatusCode::BAD_REQUEST, "the body was not sent whole")),
        Err(_) => Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

/// A refusal, boxed because it is large.
pub(crate) fn refuse(status: StatusCode, why: impl Into<String>) -> Box<Reply> {
    Box::new(reply::text(status, why))
}

pub(crate) fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

pub(crate) fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    words(headers, name).any(|one| one.eq_ignore_ascii_case(word))
}

pub(crate) fn too_many() -> Reply {
    reply::text(StatusCode::TOO_MANY_REQUESTS, "this token has too many connections")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_a_connection_looks_like_a_uuid() {
        let id = connection_id();
        assert_eq!((id.len(), id.as_bytes()[14], id.matches('-').count()), (36, b'4', 4));
        assert_ne!(id, connection_id());
    }
}
