//! HTTP requests to the endpoint, which another thread can abort.
//!
//! `ureq` blocks, and only the shutdown of a whole `Agent` wakes a thread that waits in it. So every running prompt has
//! its own agent. Idle agents wait here with their open connections for the next prompt.

use std::io::{self, Read};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader};

use super::api_error::{ApiError, message_of};
use super::config::Config;
use super::refusal::Refusal;
use super::retry::RetryHint;
use super::url::redirection;
use crate::lock::lock;

/// Each idle agent has at most a connection or two.
const IDLE_MAX: usize = 8;
/// The rest of a failure's body is not read.
const FAILURE_BYTES_MAX: u64 = 64 << 10;
/// A server that hangs up on a larger body may do so because of its size.
const SMALL_BODY_BYTES: usize = 1 << 20;
/// The time for a whole `GET`, which runs in the background.
const GET_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) struct Http {
    idle: Mutex<Vec<Agent>>,
    settings: ureq::config::Config,
    headers: Vec<(String, String)>,
}

/// A successful answer whose body was not read yet.
pub(super) struct Answer {
    pub(super) is_stream: bool,
    body: Body,
}

/// A failed request, and what the server says about it.
pub(super) struct Failure {
    pub(super) error: ApiError,
    pub(super) hint: RetryHint,
    pub(super) refusal: Refusal,
}

/// How requests are made. `timeout` is for each wait for the next byte.
pub(super) fn settings(connect_timeout: Option<Duration>, timeout: Option<Duration>) -> ureq::config::Config {
    Agent::config_builder()
        .http_status_as_error(false)
        // A redirect would send the key to another host.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(connect_timeout)
        .timeout_per_read(timeout)
        .timeout_per_write(timeout)
        .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build()
}

impl Http {
    pub(super) fn new(config: &Config) -> Http {
        let settings = settings(config.connect_timeout, config.timeout);
        Http { idle: Mutex::default(), settings, headers: config.headers.clone() }
    }

    pub(super) fn take(&self) -> Agent {
        self.idle().pop().unwrap_or_else(|| Agent::new_with_config(self.settings.clone()))
    }

    /// Takes an agent that was not shut down.
    pub(super) fn give_back(&self, agent: Agent) {
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX {
            idle.push(agent);
        }
    }

    pub(super) fn post(&self, agent: &Agent, url: &str, body: &[u8]) -> Result<Answer, Failure> {
        let mut request = agent.post(url).header("Accept", "text/event-stream");
        if !self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            request = request.header("Content-Type", "application/json");
        }
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| no_answer_to(body, &error))?;
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            let headers = response.headers().clone();
            let hint = RetryHint::read(|name| headers.get(name)?.to_str().ok(), SystemTime::now());
            let body = read_failure(response.into_body());
            let location = headers.get("location").and_then(|location| location.to_str().ok());
            let message = match location.filter(|_| (300..400).contains(&status)) {
                Some(location) => redirection(url, location),
                None => message_of(&body),
            };
            let error = ApiError::Status { status, message };
            return Err(Failure { error, hint, refusal: Refusal::read(&body) });
        }
        let is_json = response.body().mime_type().is_some_and(|kind| kind == "application/json");
        Ok(Answer { is_stream: !is_json, body: response.into_body() })
    }

    /// Returns the body of a successful answer.
    pub(super) fn get(&self, url: &str) -> Result<String, ApiError> {
        let agent = self.take();
        let mut request = agent.get(url).config().timeout_global(Some(GET_TIMEOUT)).build();
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.call().map_err(|error| no_answer(&error).error)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(ApiError::Status {
                status,
                message: message_of(&read_failure(response.into_body())),
            });
        }
        let text = response.body_mut().read_to_string().map_err(|error| no_answer(&error).error)?;
        self.give_back(agent);
        Ok(text)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Agent>> {
        lock(&self.idle)
    }
}

impl Answer {
    pub(super) fn into_reader(self) -> BodyReader<'static> {
        self.body.into_reader()
    }
}

/// A server that was reached but did not answer is not asked again: it may still be working.
fn no_answer(error: &ureq::Error) -> Failure {
    let (message, should_retry) = match error {
        ureq::Error::Io(error) => (error.to_string(), None),
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => (error.to_string(), None),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => (error.to_string(), None),
        ureq::Error::Timeout(_) => ("no answer in time (OPENAI_TIMEOUT_SEC)".to_owned(), Some(false)),
        other => (other.to_string(), Some(false)),
    };
    let hint = RetryHint { should_retry, after: None };
    Failure { error: ApiError::Network { message }, hint, refusal: Refusal::default() }
}

/// Tells apart a server that may have hung up because of the size of the body.
fn no_answer_to(body: &[u8], error: &ureq::Error) -> Failure {
    let failure = no_answer(error);
    match (failure.error, error) {
        (ApiError::Network { message }, ureq::Error::Io(error))
            if body.len() > SMALL_BODY_BYTES && is_hang_up(error.kind()) =>
        {
            Failure { error: ApiError::CutOff { message }, ..failure }
        }
        (error, _) => Failure { error, ..failure },
    }
}

fn is_hang_up(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(kind, ConnectionReset | ConnectionAborted | BrokenPipe | UnexpectedEof)
}

/// Why the body could not be read.
pub(super) fn read_error(error: &io::Error) -> ApiError {
    let message = match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
        Some(ureq::Error::Timeout(_)) => "nothing came in time (OPENAI_TIMEOUT_SEC)".to_owned(),
        _ => error.to_string(),
    };
    ApiError::Broken { message }
}

fn read_failure(body: Body) -> String {
    let mut bytes = Vec::new();
    // A part of the message is better than none, so a read error does not matter.
    let _ = body.into_reader().take(FAILURE_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Shuts an agent down after a time, unless it is dropped before.
pub(super) struct Watchdog {
    _dropped: Sender<()>,
}

impl Watchdog {
    pub(super) fn new(agent: Agent, after: Duration) -> Watchdog {
        let (sender, dropped) = channel::<()>();
        thread::spawn(move || {
            if dropped.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                agent.shutdown();
            }
        });
        Watchdog { _dropped: sender }
    }
}
