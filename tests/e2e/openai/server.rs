//! A model server under the control of the test: each request arrives as an `Exchange`, and the test answers it.
//!
//! It sends exactly the bytes of the test, so it can do what no real server does. It answers `GET /models` by itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::harness::PATIENCE;

pub(super) struct Server {
    pub(super) url: String,
    exchanges: Receiver<Exchange>,
    models: Arc<Mutex<Option<Value>>>,
}

/// One request, and the connection for its answer.
pub(super) struct Exchange {
    pub(super) path: String,
    pub(super) body: Value,
    /// The number of its connection, from 0.
    pub(super) connection: usize,
    headers: Vec<(String, String)>,
    socket: TcpStream,
    /// Gets a value if the connection can take another request, and is dropped if not.
    over: Sender<()>,
}

impl Server {
    pub(super) fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
        let (to_test, exchanges) = channel();
        let models = Arc::new(Mutex::new(None));
        let known = models.clone();
        thread::spawn(move || {
            for (connection, socket) in listener.incoming().flatten().enumerate() {
                let to_test = to_test.clone();
                let known = known.clone();
                thread::spawn(move || serve(connection, &socket, &to_test, &known));
            }
        });
        Server { url, exchanges, models }
    }

    /// Sets the answer to `GET /models`, which is 404 before.
    pub(super) fn lists(&self, models: Value) {
        *self.models.lock().expect("no thread panics while it holds the lock") = Some(models);
    }

    pub(super) fn is_asked(&self) -> Exchange {
        self.exchanges.recv_timeout(PATIENCE).expect("a request in time")
    }

    pub(super) fn is_not_asked_again(&self) {
        assert!(self.exchanges.try_recv().is_err(), "another request");
    }

    /// Answers the next request with this text and returns its messages.
    pub(super) fn says(&self, text: &str) -> Vec<Value> {
        let exchange = self.is_asked();
        let messages = exchange.messages();
        exchange.streams(&[json!({ "content": text })], "stop");
        messages
    }
}

impl Exchange {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn messages(&self) -> Vec<Value> {
        self.body["messages"].as_array().expect("messages").clone()
    }

    pub(super) fn refuses(self, status: u16, headers: &str, body: &str) {
        let length = body.len();
        self.write(&format!("HTTP/1.1 {status} No\r\n{headers}content-length: {length}\r\n\r\n{body}"));
        let _ = self.over.send(());
    }

    /// Sends a whole answer without a stream.
    pub(super) fn answers(self, body: &Value) {
        self.refuses(200, "content-type: application/json\r\n", &body.to_string());
    }

    /// Sends a whole stream of these deltas, as OpenAI does.
    pub(super) fn streams(self, deltas: &[Value], finish: &str) {
        self.begins();
        for delta in deltas {
            self.delta(delta);
        }
        self.chunk(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": finish }] }));
        self.raw("data: [DONE]\n\n");
        self.ends();
    }

    pub(super) fn begins(&self) {
        self.write(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
        );
    }

    pub(super) fn delta(&self, delta: &Value) {
        self.chunk(&json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }));
    }

    pub(super) fn chunk(&self, chunk: &Value) {
        self.raw(&format!("data: {chunk}\n\n"));
    }

    /// Sends bytes of the stream unchanged.
    pub(super) fn raw(&self, bytes: &str) {
        self.write(&format!("{:x}\r\n{bytes}\r\n", bytes.len()));
    }

    /// Ends the body but not the connection.
    pub(super) fn ends(self) {
        self.write("0\r\n\r\n");
        let _ = self.over.send(());
    }

    /// Closes the connection.
    pub(super) fn breaks(self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Waits until the other side has closed the connection.
    pub(super) fn sees_the_end(self) {
        self.socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let left = (&self.socket).read(&mut [0; 64]);
        assert!(!left.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it stays");
    }

    fn write(&self, text: &str) {
        // Some tests close the other side first.
        let _ = (&self.socket).write_all(text.as_bytes());
    }
}

fn serve(connection: usize, socket: &TcpStream, to_test: &Sender<Exchange>, models: &Mutex<Option<Value>>) {
    socket.set_nodelay(true).expect("a socket");
    let mut reader = BufReader::new(socket);
    while let Some((line, headers, body)) = read_request(&mut reader) {
        let mut words = line.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let (over, is_over) = channel();
        let exchange = Exchange {
            path: path.to_owned(),
            body,
            connection,
            headers,
            socket: socket.try_clone().expect("an fd more"),
            over,
        };
        if method == "GET" {
            match &*models.lock().expect("no thread panics while it holds the lock") {
                Some(models) => exchange.answers(models),
                None => exchange.refuses(404, "", ""),
            }
        } else if to_test.send(exchange).is_err() {
            return;
        }
        if is_over.recv().is_err() {
            return;
        }
    }
}

pub(super) type Request = (String, Vec<(String, String)>, Value);

pub(super) fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut lines = lines.into_iter();
    let first = lines.next()?;
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().expect("a number"))];
    reader.read_exact(&mut body).ok()?;
    Some((first, headers, serde_json::from_slice(&body).unwrap_or_default()))
}
