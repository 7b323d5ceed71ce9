//! The web door of a bus, as a browser or a remote client uses it: plain HTTP by hand, WebSockets by a library.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::CloseFrame;
use tungstenite::{Error, Message};

use super::bus::{BUS, Bus};
use super::messages::{initialize, request, session_of};
use super::waiting::PATIENCE;

pub(crate) struct Web<'a> {
    bus: &'a Bus,
    /// `http://HOST:PORT`.
    pub(crate) url: String,
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl HttpReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl<'a> Web<'a> {
    /// Waits until the door of the bus is open.
    pub(crate) fn of(bus: &'a Bus) -> Web<'a> {
        Web { bus, url: bus.web_door() }
    }

    pub(crate) fn host(&self) -> &str {
        self.url.strip_prefix("http://").expect("http")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.host()).expect("the door listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
        socket
    }

    /// One request on a connection of its own. `headers` are lines; `Host` is ours unless they have one.
    pub(crate) fn http(&self, method: &str, path: &str, headers: &[&str], body: &str) -> HttpReply {
        let mut socket = self.connect();
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|header| header.starts_with("Host:")) {
            head += &format!("Host: {}\r\n", self.host());
        }
        for header in headers {
            head += &format!("{header}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        // A door that refuses may close before it has read everything.
        let _ = socket.write_all(format!("{head}\r\n{body}").as_bytes());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        HttpReply { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Exchanges a code.
    pub(crate) fn login(&self, code: &str) -> HttpReply {
        let body = json!({ "code": code }).to_string();
        self.http("POST", "/login", &["Content-Type: application/json"], &body)
    }

    /// A token of this scope, by a link.
    pub(crate) fn token(&self, scope: &str) -> String {
        let link = self.command(&["url", "--scope", scope]);
        let link = String::from_utf8_lossy(&link.stdout).into_owned();
        let reply = self.login(link.trim().split_once("#c=").expect("a link").1);
        let reply: Value = serde_json::from_str(&reply.body).expect("a token");
        assert_eq!(reply["scope"], scope);
        reply["token"].as_str().expect("a token").to_owned()
    }

    /// Runs `stdio-bus web ..` for this bus.
    pub(crate) fn command(&self, args: &[&str]) -> Output {
        let mut command = Command::new(BUS);
        command.arg("web").args(args).arg("--config").arg(self.bus.config_path());
        command.env("XDG_STATE_HOME", self.bus.folder()).output().expect("the binary starts")
    }

    /// A WebSocket, with the token in a header as programs have it.
    pub(crate) fn socket(&self, token: &str) -> WebSocket {
        self.socket_at("/acp", token)
    }

    pub(crate) fn socket_at(&self, path: &str, token: &str) -> WebSocket {
        self.try_socket(path, &[("Authorization", &format!("Bearer {token}"))]).expect("a WebSocket")
    }

    /// A WebSocket, or the status of the refusal.
    pub(crate) fn try_socket(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<WebSocket, u16> {
        let mut request = format!("ws://{}{path}", self.host()).into_client_request().expect("a URL");
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        match tungstenite::client(request, self.connect()) {
            Ok((socket, response)) => {
                let protocol = response.headers().get("sec-websocket-protocol");
                let protocol = protocol.map(|value| value.to_str().expect("text").to_owned());
                Ok(WebSocket { socket, protocol })
            }
            Err(tungstenite::HandshakeError::Failure(Error::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(error) => panic!("no handshake: {error}"),
        }
    }
}

pub(crate) struct WebSocket {
    pub(crate) socket: tungstenite::WebSocket<TcpStream>,
    /// The subprotocol that the door has chosen.
    pub(crate) protocol: Option<String>,
}

impl WebSocket {
    pub(crate) fn sends(&mut self, line: &str) {
        self.socket.send(Message::text(line)).expect("an open WebSocket");
    }

    /// The next message.
    pub(crate) fn receives(&mut self) -> Value {
        loop {
            match self.socket.read().expect("an open WebSocket") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Close(frame) => panic!("closed: {frame:?}"),
                _ => {}
            }
        }
    }

    /// The answer under this id, and what came before it.
    pub(crate) fn gets(&mut self, id: u32) -> (Value, Vec<Value>) {
        let mut before = Vec::new();
        loop {
            let message = self.receives();
            if message["id"] == id && message.get("method").is_none() {
                return (message, before);
            }
            before.push(message);
        }
    }

    pub(crate) fn asks(&mut self, id: u32, method: &str, params: Value) -> Value {
        self.sends(&request(id, method, params));
        self.gets(id).0
    }

    /// Initializes and opens a session.
    pub(crate) fn opens_session(&mut self) -> String {
        self.sends(&initialize(0, json!({})));
        assert_eq!(self.gets(0).0["result"]["protocolVersion"], 1);
        let opened = self.asks(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] }));
        session_of(&opened["result"])
    }

    /// Prompts, allows what is asked, and returns what was said with the number of questions.
    pub(crate) fn takes_turn(&mut self, id: u32, session: &str, text: &str) -> (String, usize) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.sends(&request(id, "session/prompt", prompt));
        let (mut said, mut questions) = (String::new(), 0);
        loop {
            let message = self.receives();
            if message["method"] == "session/request_permission" {
                questions += 1;
                let option = &message["params"]["options"][0]["optionId"];
                let chosen = json!({ "outcome": { "outcome": "selected", "optionId": option } });
                self.sends(&json!({ "jsonrpc": "2.0", "id": message["id"], "result": chosen }).to_string());
            } else if message["method"] == "session/update" {
                said += message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
            } else if message["id"] == id {
                assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
                return (said, questions);
            }
        }
    }

    /// Waits for the end, and returns the close frame of the door if there was one.
    pub(crate) fn ends(&mut self) -> Option<CloseFrame> {
        loop {
            match self.socket.read() {
                Ok(Message::Close(frame)) => return frame,
                Ok(_) => {}
                Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(_)) => return None,
                Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("it does not end")
                }
                Err(_) => return None,
            }
        }
    }
}
