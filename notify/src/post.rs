//! A webhook: notices are posted from a thread of its own, and again if that fails.
//!
//! Whoever tells it something never waits. While the server is away, notices wait; when too many do, further ones are
//! dropped and counted. Nothing that is shown has more of the URL than its host, and no header.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kernel_core::config::NotifyConfig;
use log::{info, warn};
use rpc::text::replace_control;
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use crate::notice::Notice;
use crate::sink::{Counted, Sink};

/// The waits before a notice is posted again.
const WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(16)];
/// A server that asks for a longer one is asked again then.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long one attempt may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many may wait for one server.
const WAITING_MAX: usize = 256;
/// What is read of an answer, so that its connection can be used again.
const ANSWER_BYTES: u64 = 64 << 10;

/// What an attempt has failed with.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    why: String,
    /// The server may take the same notice later.
    may_pass: bool,
    /// How long it wants to be left alone.
    after: Option<Duration>,
}

/// The wait after so many attempts, the last of which failed like this. `None`: there is no other attempt.
fn wait_after(attempts: usize, failure: &Failure) -> Option<Duration> {
    let wait = WAITS.get(attempts.checked_sub(1)?).filter(|_| failure.may_pass)?;
    Some(failure.after.map_or(*wait, |after| after.clamp(*wait, LONGEST_WAIT)))
}

/// Whether a server that answers with this status may take the same notice later.
fn may_pass(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

pub(crate) struct Webhook {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    queue: VecDeque<Notice>,
    counted: Counted,
    is_closing: bool,
}

impl Webhook {
    pub(crate) fn start(config: NotifyConfig) -> Result<Webhook, String> {
        let counted = Counted { at: config.place().to_owned(), ..Counted::default() };
        let state = State { queue: VecDeque::new(), counted, is_closing: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let poster = Poster { shared: shared.clone(), agent: agent(&config), config };
        let started = thread::Builder::new().name("post".to_owned()).spawn(move || poster.run());
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Webhook { shared })
    }
}

impl Sink for Webhook {
    fn tell(&self, notice: &Notice) {
        let mut state = self.shared.lock();
        if state.counted.waiting < WAITING_MAX {
            state.queue.push_back(notice.clone());
            state.counted.waiting += 1;
        } else {
            state.counted.dropped += 1;
        }
        self.shared.changed.notify_one();
    }

    fn counted(&self) -> Counted {
        self.shared.lock().counted.clone()
    }
}

/// The thread ends by itself.
impl Drop for Webhook {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next notice. `None`: it is closed.
    fn next(&self) -> Option<Notice> {
        let waits = |state: &mut State| state.queue.is_empty() && !state.is_closing;
        let mut state = self.changed.wait_while(self.lock(), waits).unwrap_or_else(PoisonError::into_inner);
        if state.is_closing { None } else { state.queue.pop_front() }
    }

    /// Waits for so long. False: it was closed meanwhile.
    fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while !state.is_closing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

fn agent(config: &NotifyConfig) -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    let settings = Agent::config_builder()
        .http_status_as_error(false)
        // A redirect would send the headers, which are secrets, to another host.
        .max_redirects(0)
        .max_redirects_will_error(false)
        // What is for this machine is not sent through another one.
        .proxy(None)
        .https_only(config.url.starts_with("https://"))
        .timeout_global(Some(TIMEOUT))
        .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    Agent::new_with_config(settings)
}

/// The thread that posts.
struct Poster {
    shared: Arc<Shared>,
    agent: Agent,
    config: NotifyConfig,
}

impl Poster {
    fn run(self) {
        while let Some(notice) = self.shared.next() {
            let body = notice.body(&self.config.body).to_string();
            let mut attempts = 0;
            loop {
                attempts += 1;
                let Err(failure) = self.post(&body) else {
                    self.has_sent();
                    break;
                };
                self.has_failed(&failure.why);
                let Some(wait) = wait_after(attempts, &failure) else {
                    self.gives_up();
                    break;
                };
                if !self.shared.sleep(wait) {
                    return;
                }
            }
        }
    }

    fn post(&self, body: &str) -> Result<(), Failure> {
        let mut request = self.agent.post(&self.config.url).header("Content-Type", "application/json");
        for (name, value) in &self.config.headers {
            request = request.header(name, value);
        }
        let response = request.send(body).map_err(|error| match error {
            // These would be the same the next time, and the error may show the URL.
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure {
                why: "the URL or a header is not understood".to_owned(),
                may_pass: false,
                after: None,
            },
            error => Failure { why: replace_control(&error.to_string(), ' '), may_pass: true, after: None },
        })?;
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let _ = response.into_body().into_reader().take(ANSWER_BYTES).read_to_end(&mut Vec::new());
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(Failure { why: format!("HTTP status {status}"), may_pass: may_pass(status), after })
    }

    fn has_sent(&self) {
        let mut state = self.shared.lock();
        state.counted.sent += 1;
        state.counted.waiting -= 1;
        if state.counted.failing.take().is_some() {
            info!("{} takes notices again", state.counted.at);
        }
    }

    fn has_failed(&self, why: &str) {
        let mut state = self.shared.lock();
        if state.counted.failing.replace(why.to_owned()).is_none() {
            warn!("{} does not take notices: {why}", state.counted.at);
        }
    }

    fn gives_up(&self) {
        let mut state = self.shared.lock();
        state.counted.failed += 1;
        state.counted.waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};

    use kernel_core::config::NoticeKind;
    use serde_json::{Value, json};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn failure(may_pass: bool, after: Option<u64>) -> Failure {
        Failure { why: String::new(), may_pass, after: after.map(Duration::from_secs) }
    }

    #[test]
    fn a_notice_is_posted_again_three_times() {
        let waits = |may_pass, after| {
            (1..=5)
                .map_while(|it| wait_after(it, &failure(may_pass, after)))
                .map(|it| it.as_secs())
                .collect::<Vec<_>>()
        };
        assert_eq!(waits(true, None), [1, 4, 16]);
        assert_eq!(waits(true, Some(0)), [1, 4, 16]);
        assert_eq!(waits(true, Some(10)), [10, 10, 16]);
        assert_eq!(waits(true, Some(1 << 40)), [60, 60, 60]);
        assert_eq!(waits(false, Some(1)), [0; 0]);
        assert_eq!(wait_after(0, &failure(true, None)), None);
    }

    #[test]
    fn what_the_server_does_not_understand_is_not_said_again() {
        let passing: Vec<u16> = (200..600).filter(|status| may_pass(*status)).collect();
        assert_eq!((passing[..4].to_vec(), passing.len()), (vec![408, 425, 429, 500], 103));
    }

    /// A server that answers one request after the other with these statuses, and hands over what it was sent.
    fn server(statuses: &'static [u16]) -> (String, Receiver<(Vec<String>, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook?key=SECRET", listener.local_addr().unwrap());
        let (heard_tx, heard) = channel();
        thread::spawn(move || {
            for status in statuses {
                let (stream, _) = listener.accept().unwrap();
                let _ = heard_tx.send(answer(stream, *status));
            }
        });
        (url, heard)
    }

    fn answer(mut stream: TcpStream, status: u16) -> (Vec<String>, Value) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_lowercase());
        }
        let length = head.iter().find_map(|line| line.strip_prefix("content-length:")).unwrap();
        let mut body = vec![0; length.trim().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    }

    fn config(url: String) -> NotifyConfig {
        NotifyConfig {
            url,
            on: vec![NoticeKind::Asked],
            after: Duration::ZERO,
            pools: Vec::new(),
            headers: [("X-Key".to_owned(), "SECRET".to_owned())].into(),
            body: [("topic".to_owned(), json!("bus"))].into_iter().collect(),
        }
    }

    fn notice(label: &str) -> Notice {
        let label = label.to_owned();
        Notice { kind: NoticeKind::Asked, label, transcript: None, pool: None, title: None, link: None }
    }

    fn until(webhook: &Webhook, is_so: impl Fn(&Counted) -> bool) -> Counted {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counted = webhook.counted();
            if is_so(&counted) {
                return counted;
            }
            assert!(Instant::now() < deadline, "{counted:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_notice_comes_with_its_headers_and_is_counted() {
        let (url, heard) = server(&[204]);
        let place = url.split("/hook").next().unwrap().to_owned();
        let webhook = Webhook::start(config(url)).unwrap();
        webhook.tell(&notice("s1"));
        let (head, body) = heard.recv_timeout(PATIENCE).unwrap();
        assert!(head[0].starts_with("post /hook?key=secret http/1.1"), "{head:?}");
        assert!(head.contains(&"x-key: secret".to_owned()), "{head:?}");
        assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
        assert_eq!((&body["label"], &body["topic"]), (&json!("s1"), &json!("bus")));
        let counted = until(&webhook, |counted| counted.waiting == 0);
        assert_eq!(counted, Counted { at: place, sent: 1, ..Counted::default() });
    }

    #[test]
    fn a_refusal_is_final_and_an_error_of_the_server_is_not() {
        let (url, heard) = server(&[500, 200, 404, 302]);
        let webhook = Webhook::start(config(url)).unwrap();
        ["s1", "s2", "s3"].iter().for_each(|label| webhook.tell(&notice(label)));
        let labels: Vec<Value> =
            (0..4).map(|_| heard.recv_timeout(PATIENCE).unwrap().1["label"].take()).collect();
        assert_eq!(labels, ["s1", "s1", "s2", "s3"]);
        let counted = until(&webhook, |counted| counted.waiting == 0);
        assert_eq!((counted.sent, counted.failed, counted.dropped), (1, 2, 0));
        assert_eq!(counted.failing.as_deref(), Some("HTTP status 302"));
    }

    #[test]
    fn a_server_that_is_away_holds_nobody_up_and_what_is_too_much_is_dropped() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let webhook = Webhook::start(config(url)).unwrap();
        // It accepts connections and says nothing.
        for number in 0..WAITING_MAX + 7 {
            webhook.tell(&notice(&format!("s{number}")));
        }
        let counted = webhook.counted();
        assert_eq!((counted.waiting, counted.dropped, counted.sent), (WAITING_MAX, 7, 0));
    }

    #[test]
    fn a_failure_is_told_without_secrets() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/SECRET", listener.local_addr().unwrap());
        drop(listener);
        let webhook = Webhook::start(config(url)).unwrap();
        webhook.tell(&notice("s1"));
        let counted = until(&webhook, |counted| counted.failing.is_some());
        assert!(!serde_json::to_string(&counted).unwrap().contains("SECRET"), "{counted:?}");
    }
}
