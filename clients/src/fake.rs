//! A bus for tests: takes one connection and answers each line with the next of its scripted turns.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use kernel::config::Address;
use tempfile::TempDir;

use crate::Way;

pub(crate) struct FakeBus {
    address: Address,
    heard: JoinHandle<Vec<String>>,
    /// Where its socket is, if it is a Unix one.
    _folder: Option<TempDir>,
}

impl FakeBus {
    /// After the last turn it closes the connection.
    pub(crate) fn answering(turns: &[&[&str]]) -> FakeBus {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let turns = owned(turns);
        let heard = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            converse(stream.try_clone().unwrap(), stream, turns)
        });
        FakeBus { address: Address::Tcp { host: "127.0.0.1".into(), port }, heard, _folder: None }
    }

    pub(crate) fn answering_on_unix(turns: &[&[&str]]) -> FakeBus {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let turns = owned(turns);
        let heard = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            converse(stream.try_clone().unwrap(), stream, turns)
        });
        FakeBus { address: Address::Unix(path), heard, _folder: Some(folder) }
    }

    pub(crate) fn way(&self) -> Way {
        Way { addresses: vec![self.address.clone()], token: None }
    }

    /// The lines that the client sent.
    pub(crate) fn heard(self) -> Vec<String> {
        self.heard.join().unwrap()
    }
}

fn owned(turns: &[&[&str]]) -> Vec<Vec<String>> {
    turns.iter().map(|lines| lines.iter().map(|&line| line.to_owned()).collect()).collect()
}

fn converse(from: impl Read, mut to: impl Write, turns: Vec<Vec<String>>) -> Vec<String> {
    let mut lines = BufReader::new(from).lines();
    let mut heard = Vec::new();
    for turn in turns {
        let Some(Ok(line)) = lines.next() else { break };
        heard.push(line);
        for line in turn {
            writeln!(to, "{line}").unwrap();
        }
    }
    heard
}
