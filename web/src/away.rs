//! Tells people who are away that a question waits: follows the bus on one connection while anybody has subscribed.
//!
//! When somebody is told, `push::watch` decides; `pusher` sends.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::debug;
use memchr::memmem;
use push::payload::{Asking, payload};
use push::watch::{Moment, Watch};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::bus_link::{BusLink, LineBuffer};
use crate::message::Message;
use crate::pusher::{Push, Pusher};
use crate::subscribers::Subscribers;
use crate::tokens::Store;

/// How often it is looked whether the tokens of those who have subscribed are still good.
const TICK: Duration = Duration::from_secs(1);
/// How long a bus that has gone is waited for before it is asked again, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(30);
/// A bus that takes or says nothing for this long where it must is taken for gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// The id of a request for the list of sessions.
const LIST_ID: &str = "sessions";

pub(crate) struct Away {
    pub(crate) target: clients::Target,
    pub(crate) tokens: Rc<RefCell<Store>>,
    pub(crate) subscribers: Rc<Subscribers>,
    /// Titles are pushed as well.
    pub(crate) is_full: bool,
}

/// What is asked of the bus at the moment: the list of sessions, page by page.
struct Listing {
    since: Instant,
    asking: Vec<Asking>,
}

/// One event of `_bus/trace`, as far as it matters here.
#[derive(Deserialize)]
struct Event<'a> {
    kind: &'a str,
    #[serde(default)]
    session: Option<String>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
}

/// A page of `_bus/sessions`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    sessions: Vec<Asking>,
    #[serde(default)]
    next_cursor: Option<String>,
}

impl Away {
    /// For ever.
    pub(crate) async fn run(self) {
        let signer = self.subscribers.signer.clone();
        let (pusher, mut gone) = Pusher::start(signer, self.subscribers.subject.clone());
        let begin = Instant::now();
        loop {
            self.subscribers.any().await;
            let mut watch = Watch::default();
            let mut wait = FIRST_WAIT;
            while !self.subscribers.is_empty() {
                let opened = Instant::now();
                let mut follower =
                    Follower { away: &self, pusher: &pusher, watch: &mut watch, begin, listing: None };
                tokio::select! {
                    ended = follower.follow() => {
                        let why = ended.err().map_or_else(String::new, |fault| format!(": {fault}"));
                        debug!("the bus is not watched for now{why}");
                    }
                    () = self.nobody_left(&mut gone) => break,
                }
                wait = if opened.elapsed() > MAX_WAIT { FIRST_WAIT } else { (wait * 2).min(MAX_WAIT) };
                tokio::select! {
                    () = sleep(wait) => {}
                    () = self.nobody_left(&mut gone) => break,
                }
                watch.missed(begin.elapsed());
            }
        }
    }

    /// Takes away what is gone, until nothing is left.
    async fn nobody_left(&self, gone: &mut mpsc::Receiver<String>) {
        while !self.subscribers.is_empty() {
            tokio::select! {
                Some(endpoint) = gone.recv() => self.subscribers.try_retain(|one| one.endpoint != endpoint),
                () = sleep(TICK) => self.forget_revoked(),
            }
        }
    }

    /// A subscription goes with its token.
    fn forget_revoked(&self) {
        let mut tokens = self.tokens.borrow_mut();
        // If they cannot be read, whoever cares about connections says so.
        if tokens.refresh().is_ok() {
            self.subscribers.try_retain(|one| tokens.is_good(&one.token));
        }
    }
}

/// One connection to the bus.
struct Follower<'a> {
    away: &'a Away,
    pusher: &'a Pusher,
    watch: &'a mut Watch,
    begin: Instant,
    listing: Option<Listing>,
}

impl Follower<'_> {
    /// Follows the bus until the connection ends.
    async fn follow(&mut self) -> io::Result<()> {
        let link = BusLink::open(&self.away.target, None).await;
        let link = link.map_err(|fault| io::Error::other(format!("{fault:?}")))?;
        send(&link, "hello", "_bus/hello", json!({ "client": "web push" })).await?;
        send(&link, "trace", "_bus/trace", json!({})).await?;
        self.ask(&link, None).await?;
        let mut lines = LineBuffer::default();
        loop {
            let next = self.next_wakeup();
            let line = {
                let mut alarm = pin!(async {
                    match next {
                        Some(wait) => sleep(wait).await,
                        None => std::future::pending().await,
                    }
                });
                tokio::select! {
                    line = link.read_line(&mut lines) => Some(line?),
                    () = &mut alarm => None,
                }
            };
            match line {
                Some(Some(line)) => self.heard(&link, &line).await?,
                Some(None) => return Ok(()),
                None if self.listing.is_some() => return Err(io::ErrorKind::TimedOut.into()),
                None => self.ask(&link, None).await?,
            }
        }
    }

    fn now(&self) -> Moment {
        self.begin.elapsed()
    }

    /// When something is to be done although nothing is heard.
    fn next_wakeup(&self) -> Option<Duration> {
        match &self.listing {
            Some(listing) => Some(ANSWER_TIMEOUT.saturating_sub(listing.since.elapsed())),
            None => Some(self.watch.next_look()?.saturating_sub(self.now())),
        }
    }

    /// Asks for the list of sessions, or for the next page of it.
    async fn ask(&mut self, link: &BusLink, cursor: Option<&str>) -> io::Result<()> {
        let params = cursor.map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
        self.listing.get_or_insert_with(|| Listing { since: Instant::now(), asking: Vec::new() }).since =
            Instant::now();
        send(link, LIST_ID, "_bus/sessions", params).await
    }

    async fn heard(&mut self, link: &BusLink, line: &Bytes) -> io::Result<()> {
        // Nearly all that is heard is what agents say, and not looked at any further.
        let has = |word: &str| memmem::find(line, word.as_bytes()).is_some();
        let is_event = has("\"_bus/event\"");
        let is_question =
            is_event && (has("\"session/request_permission\"") || has("\"elicitation/create\""));
        let is_answer = is_event && has("\"direction\":\"client->") && has("\"kind\":\"result\"");
        if is_event && !is_question && !is_answer {
            return Ok(());
        }
        let text = String::from_utf8_lossy(line);
        let Some(message) = Message::parse(&text) else { return Ok(()) };
        match (message.method.as_deref(), message.params, message.result) {
            (Some("_bus/event"), Some(params), _) => self.event(params),
            (Some("_bus/dropped"), ..) => self.watch.missed(self.now()),
            (None, _, Some(result)) if message.id.is_some_and(|id| id.get().trim_matches('"') == LIST_ID) => {
                self.page(link, result).await?;
            }
            (None, ..) if message.is_response() && message.result.is_none() => {
                return Err(io::Error::other("the bus refuses to be watched"));
            }
            _ => {}
        }
        Ok(())
    }

    fn event(&mut self, params: &RawValue) {
        let Ok(Event { kind, session: Some(session), id: Some(id) }) = serde_json::from_str(params.get())
        else {
            return;
        };
        match kind {
            "request" => self.watch.asked(&session, id.get(), self.now()),
            "result" => self.watch.answered(&session, id.get()),
            _ => {}
        }
    }

    async fn page(&mut self, link: &BusLink, result: &RawValue) -> io::Result<()> {
        let Page { sessions, next_cursor } = serde_json::from_str(result.get())?;
        let Some(listing) = &mut self.listing else { return Ok(()) };
        listing.asking.extend(sessions.into_iter().filter(|view| view.questions > 0));
        if let Some(cursor) = next_cursor {
            return self.ask(link, Some(&cursor)).await;
        }
        let asking = self.listing.take().map(|listing| listing.asking).unwrap_or_default();
        for view in self.watch.listed(&asking, self.now()) {
            self.tell(&view);
        }
        Ok(())
    }

    fn tell(&self, asking: &Asking) {
        self.away.forget_revoked();
        let text = payload(asking, self.away.is_full);
        for to in self.away.subscribers.browsers() {
            self.pusher.offer(Push { to, topic: asking.label.clone(), text: text.clone() });
        }
    }
}

async fn send(link: &BusLink, id: &str, method: &str, params: serde_json::Value) -> io::Result<()> {
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    match timeout(ANSWER_TIMEOUT, link.send(request.to_string().as_bytes())).await {
        Ok(sent) => sent,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}
