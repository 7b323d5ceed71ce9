//! Sends pushes, from a thread of its own: a push service that is slow or away holds nobody up. What does not fit into
//! its queue is dropped.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use log::{debug, warn};
use push::book::Subscription;
use push::encrypt::encrypted;
use push::vapid::Signer;
use ring::rand::SystemRandom;
use rpc::text::{replace_control, unix_ms};
use tokio::sync::mpsc;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// Pushes that wait.
const QUEUED_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(10);
/// A service that was away is tried once more.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// How long a push service keeps a push for a device that is not there.
const TTL_SEC: &str = "14400";
/// What is read of an answer that is not good.
const ANSWER_BYTES: u64 = 300;

/// One push to one browser.
pub(crate) struct Push {
    pub(crate) to: Subscription,
    /// The label of the session: a later push about it replaces one that was not delivered yet.
    pub(crate) topic: String,
    pub(crate) text: Vec<u8>,
}

pub(crate) struct Pusher {
    queue: SyncSender<Push>,
}

/// What came of a push.
enum Outcome {
    Taken,
    /// The browser has unsubscribed.
    Gone,
    /// Another attempt may succeed.
    Later(String),
    Refused(String),
}

impl Pusher {
    /// Starts the thread. It tells the endpoints that are there no more.
    pub(crate) fn start(signer: Arc<Signer>, subject: String) -> (Pusher, mpsc::Receiver<String>) {
        let (queue, pushes) = sync_channel(QUEUED_MAX);
        let (gone, told) = mpsc::channel(QUEUED_MAX);
        let service = Service { agent: agent(), signer, subject, random: SystemRandom::new() };
        let started =
            thread::Builder::new().name("push".to_owned()).spawn(move || service.run(&pushes, &gone));
        if let Err(error) = started {
            warn!("nothing can be pushed: {error}");
        }
        (Pusher { queue }, told)
    }

    /// Takes a push over, or drops it.
    pub(crate) fn offer(&self, push: Push) {
        match self.queue.try_send(push) {
            Ok(()) => {}
            Err(TrySendError::Full(push) | TrySendError::Disconnected(push)) => {
                warn!("a push to {} was dropped: {QUEUED_MAX} others wait", push.to.origin());
            }
        }
    }
}

struct Service {
    agent: Agent,
    signer: Arc<Signer>,
    subject: String,
    random: SystemRandom,
}

impl Service {
    /// Until the door closes.
    fn run(&self, pushes: &Receiver<Push>, gone: &mpsc::Sender<String>) {
        for push in pushes {
            let mut outcome = self.send(&push);
            if let Outcome::Later(why) = &outcome {
                debug!("{} is tried again: {why}", push.to.origin());
                thread::sleep(RETRY_AFTER);
                outcome = self.send(&push);
            }
            let (origin, token) = (push.to.origin(), &push.to.token);
            match outcome {
                Outcome::Taken => debug!("{origin} has a push for token {token}"),
                Outcome::Gone => {
                    // If so many wait already, the next push tells it again.
                    let _ = gone.try_send(push.to.endpoint.clone());
                }
                Outcome::Later(why) | Outcome::Refused(why) => {
                    warn!("{origin} does not take a push for token {token}: {why}");
                }
            }
        }
    }

    fn send(&self, push: &Push) -> Outcome {
        let Push { to, topic, text } = push;
        let sealed = to.with_receiver(|receiver| encrypted(text, receiver, &self.random));
        let now = unix_ms() / 1000;
        let authorization = self.signer.authorization(to.origin(), &self.subject, now, &self.random);
        let (Some(Ok(body)), Ok(authorization)) = (sealed, authorization) else {
            return Outcome::Refused("it cannot be encrypted for this browser".to_owned());
        };
        let mut request = self
            .agent
            .post(&to.endpoint)
            .header("Authorization", authorization)
            .header("Content-Encoding", "aes128gcm")
            .header("Content-Type", "application/octet-stream")
            .header("TTL", TTL_SEC)
            .header("Urgency", "high");
        if is_topic(topic) {
            request = request.header("Topic", topic);
        }
        match request.send(&body[..]) {
            Ok(response) => match response.status().as_u16() {
                200..300 => Outcome::Taken,
                404 | 410 => Outcome::Gone,
                status => {
                    let mut answer = Vec::new();
                    // A part of what it says is better than nothing.
                    let _ = response.into_body().into_reader().take(ANSWER_BYTES).read_to_end(&mut answer);
                    let why = format!("HTTP status {status}: {}", String::from_utf8_lossy(&answer).trim());
                    let why = replace_control(&why, ' ');
                    if status == 429 || status >= 500 { Outcome::Later(why) } else { Outcome::Refused(why) }
                }
            },
            Err(error) => Outcome::Later(replace_control(&error.to_string(), ' ')),
        }
    }
}

/// What RFC 8030 allows as one.
fn is_topic(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    (1..=32).contains(&text.len()) && text.chars().all(is_letter)
}

fn agent() -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // A redirect would lead to another host than the one that was looked at.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_global(Some(TIMEOUT))
        .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build();
    Agent::new_with_config(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_topic() {
        assert!(is_topic("s17") && is_topic("a-b_C"));
        assert!(!is_topic("") && !is_topic("s 17") && !is_topic(&"s".repeat(33)));
    }
}
