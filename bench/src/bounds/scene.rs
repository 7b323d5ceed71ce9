//! Who takes part in an attack: the attacker, and a crowd whose only job is to read what it is sent.

use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use rpc::{Stream, write};
use serde_json::{Value, json};

use super::limits::in_pool;
use crate::bus::Bus;
use crate::client::Client;

/// How many lines are sent before their answers are read, when a scene is set.
const AT_ONCE: usize = 1000;
const READ_BYTES: usize = 256 << 10;
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) struct Scene {
    pub(super) attacker: Client,
    /// The session that the attack is about, as the attacker names it.
    pub(super) session: String,
    /// Others who must be there. They read nothing.
    pub(super) silent: Vec<Client>,
    pub(super) crowd: Crowd,
}

impl Scene {
    pub(super) fn new(attacker: Client, session: String) -> io::Result<Scene> {
        Ok(Scene { attacker, session, silent: Vec::new(), crowd: Crowd::new()? })
    }

    /// A puppet with a session that its owner attacks.
    pub(super) fn of_owner(bus: &Bus) -> io::Result<Scene> {
        let mut owner = in_pool(bus, "puppet")?;
        let session = owner.open_session()?;
        Scene::new(owner, session)
    }

    /// Further clients join the session. Each reads what it is sent, in the crowd.
    pub(super) fn joined_by(self, bus: &Bus, guests: usize, role: &str) -> io::Result<Scene> {
        for _ in 0..guests {
            let guest = guest(bus, &self.session, role)?;
            self.crowd.add(guest.into_stream()?)?;
        }
        Ok(self)
    }
}

/// A client that has joined a session of the puppet and was told nothing of it.
pub(super) fn guest(bus: &Bus, session: &str, role: &str) -> io::Result<Client> {
    let mut guest = in_pool(bus, "puppet")?;
    guest.ask("_bus/attach", json!({ "session": session, "role": role, "history": "none" }))?;
    Ok(guest)
}

/// Sends these requests, as many at a time as a scene may, and reads all their answers. Returns how many had a result.
pub(super) fn ask_all(client: &mut Client, requests: &[(&str, Value)]) -> io::Result<usize> {
    let mut granted = 0;
    for some in requests.chunks(AT_ONCE) {
        let lines: Vec<u8> = (0u64..)
            .zip(some)
            .flat_map(|(id, (method, params))| write::request(id, method, params))
            .collect();
        client.send(&lines)?;
        granted += answers(client, some.len())?;
    }
    Ok(granted)
}

/// Reads until so many answers have come. Returns how many were results.
pub(super) fn answers(client: &mut Client, count: usize) -> io::Result<usize> {
    let (mut read, mut granted) = (0, 0);
    while read < count {
        let line = client.line()?;
        // Requests and notifications have a method in front of whatever may be long.
        let head = &line[..line.len().min(200)];
        if memchr::memmem::find(head, b"\"method\"").is_some() {
            continue;
        }
        read += 1;
        granted += usize::from(memchr::memmem::find(head, b"\"result\"").is_some());
    }
    Ok(granted)
}

/// Pins names to the puppet, from as many clients as it takes.
pub(super) fn pin_names(bus: &Bus, count: usize, of_each: usize) -> io::Result<Vec<Client>> {
    let mut pinned = Vec::new();
    for _ in 0..count.div_ceil(of_each) {
        let mut client = in_pool(bus, "puppet")?;
        let mut lines = Vec::new();
        for nth in 0..of_each.min(count) {
            let line = json!({ "jsonrpc": "2.0", "method": "note", "sessionId": format!("{nth}") });
            lines.extend(line.to_string().bytes());
            lines.push(b'\n');
        }
        client.send(&lines)?;
        client.status()?;
        // The agent has read all of it once it answers this.
        client.ask("any/thing", json!({}))?;
        pinned.push(client);
    }
    Ok(pinned)
}

/// Connections of which a thread reads all that comes.
pub(super) struct Crowd {
    streams: Arc<Mutex<Vec<Stream>>>,
    registry: Registry,
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Crowd {
    fn new() -> io::Result<Crowd> {
        let mut poll = Poll::new()?;
        let registry = poll.registry().try_clone()?;
        let streams = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (of_reader, ends) = (Arc::clone(&streams), Arc::clone(&is_over));
        let reader = thread::spawn(move || {
            let (mut events, mut scratch) = (Events::with_capacity(1024), vec![0; READ_BYTES]);
            while !ends.load(Ordering::Relaxed) {
                let _ = poll.poll(&mut events, Some(LOOK_EVERY));
                for event in &events {
                    let mut streams = of_reader.lock().expect("no thread panics while it holds the lock");
                    if let Some(stream) = streams.get_mut(event.token().0) {
                        read_all(stream, &mut scratch);
                    }
                }
            }
        });
        Ok(Crowd { streams, registry, is_over, reader: Some(reader) })
    }

    pub(super) fn add(&self, stream: Stream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut streams = self.streams.lock().expect("no thread panics while it holds the lock");
        let (fd, token) = (stream.as_fd().as_raw_fd(), Token(streams.len()));
        streams.push(stream);
        self.registry.register(&mut SourceFd(&fd), token, Interest::READABLE)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Until nothing is there. Whoever was closed is not heard of again.
fn read_all(stream: &mut Stream, scratch: &mut [u8]) {
    loop {
        match stream.read(scratch) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
