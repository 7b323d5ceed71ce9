//! HTTP: requests to the endpoint, and the end of a request from another thread.
//!
//! `ureq` blocks, and only shutting a whole `Agent` down wakes those who wait in it. So every prompt has one of its own
//! while it runs; between prompts they rest here with their open connections. One that was shut down is not taken back.

use std::io::{self, Read};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader};

use super::api_error::{ApiError, message_of};
use super::config::Config;
use super::retry::RetryHint;

/// Agents that rest, each with at most a connection or two.
const RESTING: usize = 8;
/// Read of the body of a failure.
const FAILURE_BYTES: u64 = 64 << 10;
/// For all of a request that nobody waits for.
const BRIEF: Duration = Duration::from_secs(15);

pub(super) struct Http {
    resting: Mutex<Vec<Agent>>,
    settings: ureq::config::Config,
    headers: Vec<(String, String)>,
}

/// An answer that is a success, its body still to be read.
pub(super) struct Answer {
    pub(super) is_stream: bool,
    body: Body,
}

/// A request that failed, and whether it may be made again.
pub(super) struct Failure {
    pub(super) fault: ApiError,
    pub(super) hint: RetryHint,
}

impl Http {
    pub(super) fn new(config: &Config) -> Http {
        let settings = Agent::config_builder()
            .http_status_as_error(false)
            // A key is for the host that it was given for.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(config.connect_timeout)
            .timeout_per_read(config.timeout)
            .timeout_per_write(config.timeout)
            .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .build();
        Http { resting: Mutex::default(), settings, headers: config.headers.clone() }
    }

    pub(super) fn take(&self) -> Agent {
        self.resting().pop().unwrap_or_else(|| Agent::new_with_config(self.settings.clone()))
    }

    /// One that was not shut down.
    pub(super) fn give_back(&self, agent: Agent) {
        let mut resting = self.resting();
        if resting.len() < RESTING {
            resting.push(agent);
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
        let response = request.send(body).map_err(|error| unreached(&error))?;
        let status = response.status().as_u16();
        if !(200..300).contains(&status) {
            let headers = response.headers().clone();
            let hint = RetryHint::read(|name| headers.get(name)?.to_str().ok(), SystemTime::now());
            let fault = ApiError::Status { status, message: message_of(&read_some(response.into_body())) };
            return Err(Failure { fault, hint });
        }
        let is_json = response.body().mime_type().is_some_and(|kind| kind == "application/json");
        Ok(Answer { is_stream: !is_json, body: response.into_body() })
    }

    /// The body of a success, for what is small and nobody waits for.
    pub(super) fn get(&self, url: &str) -> Result<String, ApiError> {
        let agent = self.take();
        let mut request = agent.get(url).config().timeout_global(Some(BRIEF)).build();
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let mut response = request.call().map_err(|error| unreached(&error).fault)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(ApiError::Status { status, message: message_of(&read_some(response.into_body())) });
        }
        let text = response.body_mut().read_to_string().map_err(|error| unreached(&error).fault)?;
        self.give_back(agent);
        Ok(text)
    }

    fn resting(&self) -> std::sync::MutexGuard<'_, Vec<Agent>> {
        self.resting.lock().expect("no thread panics while it holds the lock")
    }
}

impl Answer {
    pub(super) fn into_reader(self) -> BodyReader<'static> {
        self.body.into_reader()
    }
}

/// Why no answer came, and whether to try again: a server that was reached and is silent may still be at work.
fn unreached(error: &ureq::Error) -> Failure {
    let (message, should) = match error {
        ureq::Error::Io(error) => (error.to_string(), None),
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => (error.to_string(), None),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => (error.to_string(), None),
        ureq::Error::Timeout(_) => ("no answer in time (OPENAI_TIMEOUT_SEC)".to_owned(), Some(false)),
        other => (other.to_string(), Some(false)),
    };
    Failure { fault: ApiError::Network { message }, hint: RetryHint { should, after: None } }
}

/// Why a stream could not be read on.
pub(super) fn read_fault(error: &io::Error) -> ApiError {
    let message = match error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>()) {
        Some(ureq::Error::Timeout(_)) => "nothing came in time (OPENAI_TIMEOUT_SEC)".to_owned(),
        _ => error.to_string(),
    };
    ApiError::Broken { message }
}

fn read_some(body: Body) -> String {
    let mut bytes = Vec::new();
    // What could be read is said; that the rest could not is no events in a failure.
    let _ = body.into_reader().take(FAILURE_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Shuts an agent down unless it is dropped before its time.
pub(super) struct Watchdog {
    _leash: Sender<()>,
}

impl Watchdog {
    pub(super) fn new(agent: Agent, after: Duration) -> Watchdog {
        let (leash, dropped) = channel::<()>();
        thread::spawn(move || {
            if dropped.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                agent.shutdown();
            }
        });
        Watchdog { _leash: leash }
    }
}
