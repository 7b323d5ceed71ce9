//! An MCP server over HTTP, in both forms: `/mcp` answers each message itself, and at `/sse` the answers come in one
//! stream of events. It has the tool `add`, and takes nobody without the right key.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::server::{Request, read_request};

pub(super) const MCP_KEY: &str = "Bearer mcp-key-never-shown";

#[derive(Default)]
struct Shared {
    /// The open stream of `/sse`.
    stream: Mutex<Option<TcpStream>>,
    /// Methods in order, with the transport that they came by.
    seen: Mutex<Vec<String>>,
}

pub(super) struct McpServer {
    pub(super) url: String,
    shared: Arc<Shared>,
}

impl McpServer {
    pub(super) fn start() -> McpServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let shared = serving.clone();
                thread::spawn(move || serve(&socket, &shared));
            }
        });
        McpServer { url, shared }
    }

    pub(super) fn seen(&self) -> Vec<String> {
        self.shared.seen.lock().expect("no thread panics while it holds the lock").clone()
    }
}

fn serve(socket: &TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(socket);
    while let Some(request) = read_request(&mut reader) {
        if !answer(socket, &request, shared) {
            return;
        }
    }
}

/// False: the connection is a stream from now on.
fn answer(socket: &TcpStream, (line, headers, body): &Request, shared: &Shared) -> bool {
    let respond = |status: &str, headers: &str, body: &str| {
        let length = body.len();
        write(socket, &format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}"));
    };
    if !headers.iter().any(|(name, value)| name == "authorization" && value == MCP_KEY) {
        respond("401 No", "", &format!("not {headers:?}"));
        return true;
    }
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let asked = body["method"].as_str().unwrap_or_default();
    let mut seen = shared.seen.lock().expect("no thread panics while it holds the lock");
    seen.push(format!("{method} {path} {asked}").trim().to_owned());
    drop(seen);
    match (method, path) {
        ("POST", "/old") => respond("307 Moved", "location: /mcp\r\n", ""),
        ("POST", "/mcp") if body["params"]["arguments"]["fail"] == true => {
            respond("500 No", "", &format!("not {headers:?}"));
        }
        ("POST", "/mcp") => match result(body) {
            None => respond("202 Accepted", "", ""),
            // A call is answered by a stream of its own.
            Some(result) if asked == "tools/call" => {
                respond("200 OK", "content-type: text/event-stream\r\n", &format!("data: {result}\n\n"));
            }
            Some(result) => {
                let headers = "content-type: application/json\r\nmcp-session-id: s1\r\n";
                respond("200 OK", headers, &result.to_string());
            }
        },
        ("GET", "/sse") => {
            write(socket, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
            write(socket, "event: endpoint\ndata: /messages?session=1\n\n");
            let mut stream = shared.stream.lock().expect("no thread panics while it holds the lock");
            *stream = Some(socket.try_clone().expect("an fd more"));
            return false;
        }
        ("POST", "/messages?session=1") => {
            respond("202 Accepted", "", "");
            let stream = shared.stream.lock().expect("no thread panics while it holds the lock");
            if let (Some(result), Some(stream)) = (result(body), stream.as_ref()) {
                write(stream, &format!("event: message\ndata: {result}\n\n"));
            }
        }
        ("DELETE", _) => respond("200 OK", "", ""),
        _ => respond("405 No", "", ""),
    }
    true
}

/// The answer to a message, if it is a request.
fn result(message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "sums", "version": "1" },
        }),
        "tools/list" => json!({ "tools": [{ "name": "add", "inputSchema": { "type": "object" } }] }),
        _ => {
            let numbers = &message["params"]["arguments"];
            let sum = numbers["a"].as_i64()? + numbers["b"].as_i64()?;
            json!({ "content": [{ "type": "text", "text": sum.to_string() }] })
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

fn write(mut socket: &TcpStream, text: &str) {
    // The other side may have left.
    let _ = socket.write_all(text.as_bytes());
}
