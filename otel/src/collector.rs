//! One request to the collector, and what came of it.

use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use rpc::text::replace_control;
use ureq::Agent;

use crate::retry::{asked_delay, is_retryable};
use crate::settings::{Settings, without_secrets};
use crate::span::{Span, cut};

/// What is read of an answer.
const ANSWER_BYTES: u64 = 64 << 10;

pub(crate) struct Collector {
    agent: Agent,
    settings: Settings,
}

/// The collector has taken the spans, or not all of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) refused: u64,
    /// What it says about them, or a warning.
    pub(crate) why: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) may_pass: bool,
    /// How long the collector wants to be left alone.
    pub(crate) after: Option<Duration>,
}

impl Collector {
    pub(crate) fn new(settings: Settings) -> Collector {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect would send the headers, which may have secrets, to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(settings.timeout))
            .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
            .tls_config(settings.tls.clone())
            .build();
        Collector { agent: Agent::new_with_config(config), settings }
    }

    /// Where it is, for people.
    pub(crate) fn name(&self) -> String {
        without_secrets(&self.settings.url)
    }

    pub(crate) fn post(&self, spans: &[Span]) -> Result<Taken, Failure> {
        let Settings { url, encoding, gzip, headers, resource, .. } = &self.settings;
        let mut body = encoding.request(resource, spans);
        let mut request = self.agent.post(url).header("Content-Type", encoding.content_type());
        if *gzip {
            body = compressed(&body);
            request = request.header("Content-Encoding", "gzip");
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        // A server that has hung up or was not reached may take the same request later.
        let response = request.send(&body[..]).map_err(|error| {
            let may_pass = !matches!(error, ureq::Error::Http(_) | ureq::Error::BadUri(_));
            Failure { why: shown(&error.to_string()), may_pass, after: None }
        })?;
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after").and_then(|it| it.to_str().ok());
        let after = after.and_then(|header| asked_delay(header, SystemTime::now()));
        let mut answer = Vec::new();
        // A part of what it says is better than nothing.
        let _ = response.into_body().into_reader().take(ANSWER_BYTES).read_to_end(&mut answer);
        if !(200..300).contains(&status) {
            let may_pass = is_retryable(status);
            return Err(Failure { why: format!("HTTP status {status}"), may_pass, after });
        }
        let (refused, why) = encoding.rejected(&answer).unwrap_or_default();
        Ok(Taken { refused: refused.min(spans.len() as u64), why: shown(&why) })
    }
}

fn compressed(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).and_then(|()| encoder.finish()).expect("memory can be written")
}

/// What another program says, for a terminal.
fn shown(text: &str) -> String {
    replace_control(&cut(text), ' ')
}
