//! A connection over HTTP: one connection of the bus, and the streams on which its messages go to the client.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use log::debug;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use crate::bus_link::{BusLink, LineBuffer};
use crate::filter::Filter;
use crate::leases::Lease;
use crate::message::Message;
use crate::outboxes::{Moment, Next, NoStream, Opening, Outboxes, StreamName};
use crate::request::connection_id;

/// The connections over HTTP, by their id.
pub(crate) type Connections = HashMap<String, Rc<HttpConnection>>;

/// More than this waits for no client: the bus is not read any further.
const WAITING_BYTES: usize = 4 << 20;
/// A client that takes nothing for this long while that much waits is gone.
const STALL: Duration = Duration::from_secs(60);
/// A connection without a stream and without a request for this long is over.
const IDLE: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_secs(1);
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) struct HttpConnection {
    pub(crate) id: String,
    pub(crate) token: String,
    pub(crate) filter: Filter,
    begin: Instant,
    outboxes: RefCell<Outboxes>,
    /// Something was put into an outbox, or a stream is open elsewhere.
    filled: Notify,
    /// Something was taken out of one.
    taken: Notify,
    to_bus: mpsc::Sender<Bytes>,
    /// The answer to `initialize`, which goes to the request itself.
    first_answer: RefCell<Option<(Box<str>, oneshot::Sender<String>)>>,
    last_used: Cell<Moment>,
    ended: watch::Sender<bool>,
}

impl HttpConnection {
    /// A connection, and what has to run for it to live.
    pub(crate) fn new(
        link: BusLink,
        token: String,
        filter: Filter,
        lease: Lease,
        sent_bytes_of_door: Rc<Cell<usize>>,
    ) -> (Rc<HttpConnection>, impl Future<Output = ()>) {
        let (to_bus, lines) = mpsc::channel(1);
        let connection = Rc::new(HttpConnection {
            id: connection_id(),
            token,
            filter,
            begin: Instant::now(),
            outboxes: RefCell::new(Outboxes::new(sent_bytes_of_door)),
            filled: Notify::new(),
            taken: Notify::new(),
            to_bus,
            first_answer: RefCell::default(),
            last_used: Cell::default(),
            ended: watch::Sender::new(false),
        });
        let life = connection.clone().live(link, lines, lease);
        (connection, life)
    }

    async fn live(self: Rc<Self>, link: BusLink, mut lines: mpsc::Receiver<Bytes>, lease: Lease) {
        let to_bus = async {
            while let Some(line) = lines.recv().await {
                if link.send(&line).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = to_bus => {}
            () = self.read_bus(&link) => {}
            () = self.tick() => {}
            () = self.over() => {}
            () = lease.ended() => {}
        }
        debug!("the HTTP connection {} ends", self.id);
        self.end();
        // What was sent right before the end, such as a good-bye, still goes out.
        while let Ok(line) = lines.try_recv() {
            if !matches!(timeout(TICK, link.send(&line)).await, Ok(Ok(()))) {
                break;
            }
        }
    }

    async fn read_bus(&self, link: &BusLink) {
        let mut lines = LineBuffer::default();
        loop {
            while self.outboxes.borrow().bytes() >= WAITING_BYTES {
                if timeout(STALL, self.taken.notified()).await.is_err() {
                    return;
                }
            }
            let Ok(Some(line)) = link.read_line(&mut lines).await else { return };
            let text = String::from_utf8_lossy(&line);
            self.filter.heard(&text);
            if !self.is_first_answer(&text) {
                self.outboxes.borrow_mut().push(line.clone(), &text, self.now());
                self.filled.notify_waiters();
            }
        }
    }

    fn is_first_answer(&self, text: &str) -> bool {
        let mut first = self.first_answer.borrow_mut();
        let Some((id, _)) = &*first else { return false };
        let is_it = Message::parse(text).is_some_and(|message| match message.id {
            Some(own) => message.method.is_none() && *own.get() == **id,
            // An error without an id: nothing but `initialize` was sent, so it is about that.
            None => message.is_response(),
        });
        if is_it && let Some((_, waiting)) = first.take() {
            let _ = waiting.send(text.to_owned());
            self.note_use();
        }
        is_it
    }

    /// Moves what waits for nothing, and ends a connection that nobody uses.
    async fn tick(&self) {
        loop {
            sleep(TICK).await;
            let now = self.now();
            let mut outboxes = self.outboxes.borrow_mut();
            if outboxes.has_waiting() && outboxes.release(now) {
                self.filled.notify_waiters();
            }
            if !outboxes.has_open() && self.is_idle(now) {
                return;
            }
        }
    }

    /// Nobody has said anything for too long. Whoever waits for the answer to `initialize` cannot: the agent may just
    /// be starting.
    fn is_idle(&self, now: Moment) -> bool {
        let is_asked = self.first_answer.borrow().as_ref().is_some_and(|(_, waiting)| !waiting.is_closed());
        !is_asked && now.saturating_sub(self.last_used.get()) > IDLE
    }

    fn now(&self) -> Moment {
        self.begin.elapsed()
    }

    /// The client has said something.
    pub(crate) fn note_use(&self) {
        self.last_used.set(self.now());
    }

    /// Sends a line to the bus. False: it does not take it, or the connection is over.
    pub(crate) async fn send(&self, line: Bytes) -> bool {
        tokio::select! {
            sent = self.to_bus.send_timeout(line, STALL) => sent.is_ok(),
            () = self.over() => false,
        }
    }

    /// Sends `initialize` and waits for its answer. `None`: there is none any more.
    pub(crate) async fn initialize(&self, id: &str, line: Bytes) -> Option<String> {
        let (waiting, answer) = oneshot::channel();
        *self.first_answer.borrow_mut() = Some((id.into(), waiting));
        if !self.send(line).await {
            return None;
        }
        tokio::select! {
            answer = answer => answer.ok(),
            () = self.over() => None,
        }
    }

    /// Remembers a request. False: too many wait for their answers.
    pub(crate) fn note_call(&self, id: &str, session: Option<&str>) -> bool {
        self.outboxes.borrow_mut().note_call(id, session)
    }

    /// Answers a request that the bus does not get, where an answer of the bus would come. False: too much waits.
    pub(crate) fn refuse(&self, id: &str, session: Option<&str>, answer: String) -> bool {
        let mut outboxes = self.outboxes.borrow_mut();
        if outboxes.bytes() >= WAITING_BYTES || !outboxes.note_call(id, session) {
            return false;
        }
        outboxes.push(answer.clone().into(), &answer, self.now());
        drop(outboxes);
        self.filled.notify_waiters();
        true
    }

    /// Opens a stream, after the event with the number `had` if the client comes back.
    pub(crate) fn open_stream(&self, name: &StreamName, had: Option<u64>) -> Result<Opening, NoStream> {
        let opening = self.outboxes.borrow_mut().open(name, had, self.now())?;
        self.filled.notify_waiters();
        Ok(opening)
    }

    /// Writes the events of a stream until the client or the connection leaves, or the client opens it again.
    pub(crate) async fn write_stream(
        self: Rc<Self>,
        name: StreamName,
        opening: Opening,
        events: mpsc::Sender<Bytes>,
    ) {
        while self.outboxes.borrow().is_open_as(&name, opening) {
            let mut filled = pin!(self.filled.notified());
            let room = tokio::select! {
                room = events.reserve() => room,
                // A client that takes nothing may have opened the stream again.
                () = &mut filled => continue,
                () = self.over() => break,
            };
            let Ok(room) = room else { break };
            let next = self.outboxes.borrow_mut().pop(&name, opening);
            match next {
                Next::Replaced => break,
                Next::Event(event) => {
                    self.taken.notify_one();
                    room.send(event);
                    continue;
                }
                Next::Nothing => {}
            }
            tokio::select! {
                () = filled => {}
                () = sleep(KEEP_ALIVE) => room.send(Bytes::from_static(b":\n\n")),
                () = events.closed() => break,
                () = self.over() => break,
            }
        }
        self.note_use();
        self.outboxes.borrow_mut().close(&name, opening, self.now());
    }

    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Waits until the connection is over.
    pub(crate) async fn over(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rpc::Stream;

    use super::*;
    use crate::audit::Who;
    use crate::leases::Leases;
    use crate::scope::Scope;

    fn connection() -> (Rc<HttpConnection>, impl Future<Output = ()>) {
        let (ours, _) = UnixStream::pair().unwrap();
        let link = BusLink::over(Stream::Unix(ours)).unwrap();
        let who = Who { token: "t".to_owned(), scope: Scope::Admin, from: String::new() };
        let lease = Rc::new(Leases::default()).take("t").unwrap();
        HttpConnection::new(link, "t".to_owned(), Filter::new(who), lease, Rc::default())
    }

    #[tokio::test]
    async fn whoever_waits_for_the_first_answer_is_not_idle() {
        let (connection, _life) = connection();
        let late = 2 * IDLE;
        assert!(connection.is_idle(late) && !connection.is_idle(IDLE));
        let (waiting, answer) = oneshot::channel();
        *connection.first_answer.borrow_mut() = Some(("1".into(), waiting));
        assert!(!connection.is_idle(late));
        connection.last_used.set(Moment::ZERO);
        assert!(connection.is_first_answer(r#"{"id":1,"result":{}}"#));
        assert!(connection.last_used.get() > Moment::ZERO, "it may be used from now on");
        assert!(answer.await.is_ok() && connection.is_idle(2 * late));
        // Nor does a client that has left keep it.
        *connection.first_answer.borrow_mut() = Some(("1".into(), oneshot::channel().0));
        assert!(connection.is_idle(2 * late));
    }

    #[tokio::test]
    async fn refusals_that_nobody_takes_are_bounded() {
        let (connection, _life) = connection();
        let answer = "x".repeat(WAITING_BYTES / 4);
        let taken = (0..10).filter(|id| connection.refuse(&id.to_string(), None, answer.clone())).count();
        assert_eq!(taken, 4);
    }

    #[tokio::test]
    async fn an_error_without_an_id_answers_the_first_request() {
        let (connection, _life) = connection();
        let (waiting, answer) = oneshot::channel();
        *connection.first_answer.borrow_mut() = Some(("1".into(), waiting));
        for other in [r#"{"method":"x"}"#, r#"{"id":1,"method":"x"}"#, r#"{"id":2,"result":{}}"#] {
            assert!(!connection.is_first_answer(other), "{other}");
        }
        let refusal = r#"{"id":null,"error":{"code":-32600,"message":"no"}}"#;
        assert!(connection.is_first_answer(refusal));
        assert_eq!(answer.await.unwrap(), refusal);
    }
}
