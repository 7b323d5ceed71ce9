//! A client of NATS by hand, for what a well-behaved one does not do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::NatsServer;
use crate::harness::PATIENCE;

pub(super) struct RawNats {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    inboxes: u32,
}

/// A message: its subject and its payload.
pub(super) struct Heard {
    pub(super) subject: String,
    /// Where an answer is expected.
    pub(super) reply: Option<String>,
    pub(super) payload: Vec<u8>,
}

impl RawNats {
    pub(super) fn connect(nats: &NatsServer) -> RawNats {
        RawNats::connect_as(nats, "")
    }

    /// As this user, whose password is its name.
    pub(super) fn connect_as(nats: &NatsServer, user: &str) -> RawNats {
        let socket = TcpStream::connect(("127.0.0.1", nats.port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut raw = RawNats {
            reader: BufReader::new(socket.try_clone().expect("an fd")),
            writer: socket,
            inboxes: 0,
        };
        assert!(raw.line().starts_with("INFO "));
        let who =
            if user.is_empty() { String::new() } else { format!(r#","user":"{user}","pass":"{user}""#) };
        let options = format!(r#"{{"verbose":false,"headers":true,"no_responders":true{who}}}"#);
        raw.writes(format!("CONNECT {options}\r\n").as_bytes());
        raw
    }

    fn writes(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).expect("the server reads");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("the server writes");
        line.trim_end().to_owned()
    }

    pub(super) fn subscribes(&mut self, subject: &str, number: u32) {
        self.writes(format!("SUB {subject} {number}\r\nPING\r\n").as_bytes());
        while self.line() != "PONG" {}
    }

    pub(super) fn publishes(&mut self, subject: &str, payload: &[u8]) {
        let mut message = format!("PUB {subject} {}\r\n", payload.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        self.writes(&message);
    }

    /// The next message.
    pub(super) fn hears(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.reads() {
                return heard;
            }
        }
    }

    /// Reads what the server says, which may be something else than a message.
    fn reads(&mut self) -> Option<Heard> {
        let line = self.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["PING"] => self.writes(b"PONG\r\n"),
            ["MSG", subject, _, ref reply @ .., length] | ["HMSG", subject, _, ref reply @ .., length] => {
                let mut payload = vec![0; length.parse::<usize>().expect("a length") + 2];
                self.reader.read_exact(&mut payload).expect("the server writes");
                payload.truncate(payload.len() - 2);
                // Behind the reply, a message with headers has their length.
                let reply = reply.first().filter(|reply| reply.contains('.')).map(|&reply| reply.to_owned());
                return Some(Heard { subject: subject.to_owned(), reply, payload });
            }
            _ => assert!(!line.is_empty(), "the server has closed the connection"),
        }
        None
    }

    /// The next message. `None`: it is done, which is looked at whenever the server is silent for a moment.
    pub(super) fn hears_or(&mut self, is_done: &AtomicBool) -> Option<Heard> {
        let moment = Some(Duration::from_millis(50));
        loop {
            self.writer.set_read_timeout(moment).expect("a socket");
            let is_there = self.reader.fill_buf().is_ok_and(|bytes| !bytes.is_empty());
            self.writer.set_read_timeout(Some(PATIENCE)).expect("a socket");
            if is_there {
                if let Some(heard) = self.reads() {
                    return Some(heard);
                }
            } else if is_done.load(Ordering::Relaxed) {
                return None;
            }
        }
    }

    /// The first answer to a request.
    pub(super) fn asks(&mut self, subject: &str, payload: &[u8]) -> Vec<u8> {
        self.inboxes += 1;
        let inbox = format!("_INBOX.raw.{}", self.inboxes);
        self.subscribes(&inbox, 1000 + self.inboxes);
        let mut message = format!("PUB {subject} {inbox} {}\r\n", payload.len()).into_bytes();
        message.extend_from_slice(payload);
        message.extend_from_slice(b"\r\n");
        self.writes(&message);
        loop {
            let heard = self.hears();
            if heard.subject == inbox || heard.subject.starts_with(&format!("{inbox}.")) {
                return heard.payload;
            }
        }
    }
}
