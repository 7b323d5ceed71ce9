//! A client of NATS by hand, for what a well-behaved one does not do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

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
    pub(super) payload: Vec<u8>,
}

impl RawNats {
    pub(super) fn connect(nats: &NatsServer) -> RawNats {
        let socket = TcpStream::connect(("127.0.0.1", nats.port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut raw = RawNats {
            reader: BufReader::new(socket.try_clone().expect("an fd")),
            writer: socket,
            inboxes: 0,
        };
        assert!(raw.line().starts_with("INFO "));
        raw.writes(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n");
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
            let line = self.line();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["PING"] => self.writes(b"PONG\r\n"),
                ["MSG", subject, .., length] | ["HMSG", subject, .., length] => {
                    let mut payload = vec![0; length.parse::<usize>().expect("a length") + 2];
                    self.reader.read_exact(&mut payload).expect("the server writes");
                    payload.truncate(payload.len() - 2);
                    return Heard { subject: subject.to_owned(), payload };
                }
                _ => assert!(!line.is_empty(), "the server has closed the connection"),
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
            if heard.subject == inbox {
                return heard.payload;
            }
        }
    }
}
