//! Answers to HTTP requests, with the headers that every one of them has.

use std::convert::Infallible;
use std::net::IpAddr;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY, STRICT_TRANSPORT_SECURITY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Reply = Response<Body>;

const ON_ALL: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A sentence for people.
pub(crate) fn text(status: StatusCode, text: impl Into<String>) -> Reply {
    with_type(status, "text/plain; charset=utf-8", text.into() + "\n")
}

pub(crate) fn json(status: StatusCode, value: impl ToString) -> Reply {
    with_type(status, "application/json", value.to_string())
}

pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(full(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let mut reply = Response::new(full(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Adds what every answer has. An answer that says nothing of caches is kept in none.
pub(crate) fn finish(mut reply: Reply) -> Reply {
    let headers = reply.headers_mut();
    for (name, value) in ON_ALL {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    reply
}

/// Tells a browser that came by TLS never to come without it again, as long as a token lives. That holds for all ports
/// of a name; so `localhost`, which all programs of a machine share, is left out, and addresses cannot have it.
pub(crate) fn only_https(reply: &mut Reply, host: &str) {
    let name =
        host.rsplit_once(':').map_or(host, |(name, port)| if port.ends_with(']') { host } else { name });
    let is_address = name.starts_with('[') || name.parse::<IpAddr>().is_ok();
    if !is_address && name != "localhost" {
        let age = HeaderValue::from_static("max-age=2592000");
        reply.headers_mut().insert(STRICT_TRANSPORT_SECURITY, age);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_https_only_but_neither_addresses_nor_localhost() {
        let told = |host: &str| {
            let mut reply = empty(StatusCode::OK);
            only_https(&mut reply, host);
            reply.headers().contains_key(STRICT_TRANSPORT_SECURITY)
        };
        assert!(told("bus.example.org") && told("bus.example.org:9443"));
        for host in ["localhost", "localhost:9443", "10.0.0.7:9443", "10.0.0.7", "[::1]", "[::1]:9443"] {
            assert!(!told(host), "{host}");
        }
    }
}
