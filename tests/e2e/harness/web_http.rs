//! A client of ACP over HTTP: POSTs, and streams of server-sent events.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::messages::{initialize, request, session_of};
use super::web::{HttpReply, Web};

pub(crate) struct HttpClient<'a> {
    web: &'a Web<'a>,
    token: String,
    /// Its `Acp-Connection-Id`.
    pub(crate) id: String,
}

impl<'a> HttpClient<'a> {
    /// Initializes.
    pub(crate) fn new(web: &'a Web<'a>, token: &str) -> HttpClient<'a> {
        let mut client = HttpClient { web, token: token.to_owned(), id: String::new() };
        let reply = client.posts(&initialize(0, json!({})), None);
        assert_eq!(reply.status, 200, "{reply:?}");
        let answer: Value = serde_json::from_str(&reply.body).expect("the answer");
        assert_eq!(answer["result"]["protocolVersion"], 1);
        client.id = reply.header("acp-connection-id").expect("an id").to_owned();
        client
    }

    /// The headers of a request about this session.
    pub(crate) fn headers(&self, session: Option<&str>) -> Vec<String> {
        let mut headers = vec![format!("Authorization: Bearer {}", self.token)];
        if !self.id.is_empty() {
            headers.push(format!("Acp-Connection-Id: {}", self.id));
        }
        headers.extend(session.map(|session| format!("Acp-Session-Id: {session}")));
        headers
    }

    pub(crate) fn posts(&self, line: &str, session: Option<&str>) -> HttpReply {
        let mut headers = self.headers(session);
        headers.push("Content-Type: application/json".to_owned());
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.web.http("POST", "/acp", &headers, line)
    }

    pub(crate) fn deletes(&self) -> HttpReply {
        let headers = self.headers(None);
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        self.web.http("DELETE", "/acp", &headers, "")
    }

    /// The stream of the connection or of a session, or the status of the refusal.
    pub(crate) fn try_stream(&self, session: Option<&str>) -> Result<Events, u16> {
        self.try_stream_after(session, None)
    }

    /// The same, after the event that the client had last.
    pub(crate) fn try_stream_after(
        &self,
        session: Option<&str>,
        last_event: Option<&str>,
    ) -> Result<Events, u16> {
        let mut socket = self.web.connect();
        let mut headers = self.headers(session);
        headers.extend(last_event.map(|id| format!("Last-Event-ID: {id}")));
        let headers = headers.join("\r\n");
        let host = self.web.host();
        let head =
            format!("GET /acp HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n{headers}\r\n\r\n");
        socket.write_all(head.as_bytes()).expect("the door listens");
        let mut events =
            Events { socket: BufReader::new(socket), text: String::new(), last_event: String::new() };
        let head = events.head();
        match head.split(' ').nth(1).and_then(|status| status.parse().ok()) {
            Some(200) => {
                assert!(head.contains("text/event-stream"), "{head}");
                Ok(events)
            }
            status => Err(status.unwrap_or(0)),
        }
    }

    pub(crate) fn stream(&self, session: Option<&str>) -> Events {
        self.try_stream(session).expect("a stream")
    }

    /// Opens a session, whose id comes on the stream of the connection.
    pub(crate) fn opens_session(&self, connection: &mut Events) -> String {
        let new = request(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] }));
        assert_eq!(self.posts(&new, None).status, 202);
        loop {
            let message = connection.receives().expect("an answer");
            if message["id"] == 1 {
                return session_of(&message["result"]);
            }
        }
    }

    pub(crate) fn prompts(&self, id: u32, session: &str, text: &str) {
        let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        assert_eq!(self.posts(&request(id, "session/prompt", prompt), Some(session)).status, 202);
    }
}

/// A stream of events.
pub(crate) struct Events {
    socket: BufReader<TcpStream>,
    /// What has come and is no whole event yet.
    text: String,
    /// The id of the last event.
    pub(crate) last_event: String,
}

impl Events {
    fn head(&mut self) -> String {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.socket.read_line(&mut head).expect("an answer") == 0 {
                break;
            }
        }
        head
    }

    /// The next message. `None`: the stream has ended.
    pub(crate) fn receives(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                // A comment.
                let Some(event) = event.strip_prefix("id: ") else { continue };
                let (id, data) = event.split_once("\ndata: ").expect("the data of an event");
                id.clone_into(&mut self.last_event);
                return Some(serde_json::from_str(data).expect("JSON"));
            }
            let chunk = self.chunk()?;
            self.text += &chunk;
        }
    }

    /// One chunk of the body.
    fn chunk(&mut self) -> Option<String> {
        let mut size = String::new();
        match self.socket.read_line(&mut size) {
            Ok(0) => return None,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("nothing comes"),
            Err(_) => return None,
            Ok(_) => {}
        }
        let size = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
        let mut chunk = vec![0; size + 2];
        self.socket.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        (size > 0).then(|| String::from_utf8(chunk).expect("UTF-8"))
    }

    /// Everything of a turn, until its answer: what was said, and the questions.
    pub(crate) fn turn(&mut self, id: u32) -> (String, Vec<Value>) {
        let (mut said, mut questions) = (String::new(), Vec::new());
        loop {
            let message = self.receives().expect("the turn goes on");
            if message["method"] == "session/request_permission" {
                questions.push(message);
                return (said, questions);
            } else if message["id"] == id {
                assert_eq!(message["result"]["stopReason"], "end_turn", "{message}");
                return (said, questions);
            }
            said += message["params"]["update"]["content"]["text"].as_str().unwrap_or_default();
        }
    }
}
