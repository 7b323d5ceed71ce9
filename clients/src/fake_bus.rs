//! A bus for tests: accepts one connection and answers each line with the next scripted reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};

use kernel_core::config::Address;
use tempfile::TempDir;

use crate::Target;

pub(crate) struct FakeBus {
    address: Address,
    received: JoinHandle<Vec<String>>,
    /// Holds the Unix socket.
    _folder: Option<TempDir>,
}

impl FakeBus {
    /// Closes the connection after the last reply.
    pub(crate) fn answering(script: &[&[&str]]) -> FakeBus {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = owned(script);
        let received = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            play_script(stream.try_clone().unwrap(), stream, script)
        });
        FakeBus { address: Address::Tcp { host: "127.0.0.1".into(), port }, received, _folder: None }
    }

    pub(crate) fn answering_on_unix(script: &[&[&str]]) -> FakeBus {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let script = owned(script);
        let received = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            play_script(stream.try_clone().unwrap(), stream, script)
        });
        FakeBus { address: Address::Unix(path), received, _folder: Some(folder) }
    }

    pub(crate) fn target(&self) -> Target {
        Target { addresses: vec![self.address.clone()], token: None, user_bus: None }
    }

    /// The lines that the client sent.
    pub(crate) fn received(self) -> Vec<String> {
        self.received.join().unwrap()
    }
}

fn owned(script: &[&[&str]]) -> Vec<Vec<String>> {
    script.iter().map(|lines| lines.iter().map(|&line| line.to_owned()).collect()).collect()
}

fn play_script(from: impl Read, mut to: impl Write, script: Vec<Vec<String>>) -> Vec<String> {
    let mut lines = BufReader::new(from).lines();
    let mut received = Vec::new();
    for reply in script {
        let Some(Ok(line)) = lines.next() else { break };
        received.push(line);
        for line in reply {
            writeln!(to, "{line}").unwrap();
        }
    }
    received
}
