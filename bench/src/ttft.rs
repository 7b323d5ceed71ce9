//! `ttft`: what the OpenAI agent adds to the time until the first token.
//!
//! A server on loopback answers at once. It is asked by a client that does nothing but write a request and read
//! until the first token, and by the agent, whose first chunk is waited for; in turns, so that what else the machine
//! does meets both. What is printed are medians, and the difference between them is what the agent costs.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::print::{answer, complain, micros};
use crate::stage::beside_us;
use crate::table::median;

const TOKEN: &str = "first-token";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many prompts each side sends
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..))]
    prompts: u32,
    /// The binary with the agent [default: beside this one, else in PATH]
    #[arg(long, value_name = "PATH")]
    bus: Option<PathBuf>,
    /// Fail if the agent adds more than so many microseconds
    #[arg(long, value_name = "US", default_value_t = 1000.0)]
    most_us: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = args.bus.clone().unwrap_or_else(beside_us);
    let (direct, agent) = match measure(&stdio_bus, args.prompts) {
        Ok(times) => times,
        Err(error) => return complain(format_args!("{}: {error}", stdio_bus.display()), 1),
    };
    let (direct_us, agent_us) = (median(direct), median(agent));
    let added_us = agent_us - direct_us;
    let text = match args.json {
        true => {
            format!("{}\n", json!({ "direct_us": direct_us, "agent_us": agent_us, "added_us": added_us }))
        }
        false => {
            let (direct, agent, added) = (micros(direct_us), micros(agent_us), micros(added_us));
            let title = format!("time to first token, median of {} prompts each", args.prompts);
            format!(
                "{title}\n  server alone       {direct}\n  through the agent  {agent}\n  added              {added}\n"
            )
        }
    };
    let printed = answer(&text);
    if added_us > args.most_us { ExitCode::FAILURE } else { printed }
}

/// Microseconds of each prompt: straight to the server, and through the agent.
fn measure(stdio_bus: &Path, prompts: u32) -> io::Result<(Vec<f64>, Vec<f64>)> {
    let address = start_server()?;
    let (mut direct, mut agent) = (Direct::connect(address)?, Agent::start(stdio_bus, address)?);
    let (mut direct_us, mut agent_us) = (Vec::new(), Vec::new());
    // The first ones find everything cold on both sides.
    for number in 0..prompts + prompts / 10 {
        let (one, other) = (direct.prompt()?, agent.prompt()?);
        if number >= prompts / 10 {
            direct_us.push(one.as_secs_f64() * 1e6);
            agent_us.push(other.as_secs_f64() * 1e6);
        }
    }
    Ok((direct_us, agent_us))
}

fn start_server() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            thread::spawn(move || serve(&socket));
        }
    });
    Ok(address)
}

/// Answers every request on the connection with one token.
fn serve(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut reader = BufReader::new(socket);
    let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len());
    let event = |delta: Value, finish: Value| {
        chunk(format!(
            "data: {}\n\n",
            json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
        ))
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let first = format!("{head}{}", event(json!({ "content": TOKEN }), Value::Null));
    let rest =
        format!("{}{}0\r\n\r\n", event(json!({}), json!("stop")), chunk("data: [DONE]\n\n".to_owned()));
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line.trim_end().is_empty() {
                break;
            }
        }
        reader.read_exact(&mut vec![0; length])?;
        (&*socket).write_all(first.as_bytes())?;
        (&*socket).write_all(rest.as_bytes())?;
    }
}

/// The least that a client can do.
struct Direct {
    socket: TcpStream,
    request: Vec<u8>,
    heard: Vec<u8>,
}

impl Direct {
    fn connect(address: SocketAddr) -> io::Result<Direct> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let message = json!({ "role": "user", "content": "hi" });
        let body = json!({ "model": "m", "messages": [message], "stream": true }).to_string();
        let head =
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes();
        Ok(Direct { socket, request, heard: Vec::new() })
    }

    fn prompt(&mut self) -> io::Result<Duration> {
        self.heard.clear();
        let began = Instant::now();
        self.socket.write_all(&self.request)?;
        self.hear_until(TOKEN)?;
        let first = began.elapsed();
        self.hear_until("\r\n0\r\n\r\n")?;
        Ok(first)
    }

    fn hear_until(&mut self, words: &str) -> io::Result<()> {
        while memchr::memmem::find(&self.heard, words.as_bytes()).is_none() {
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.heard.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(())
    }
}

struct Agent {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _state: TempDir,
}

impl Agent {
    fn start(stdio_bus: &Path, address: SocketAddr) -> io::Result<Agent> {
        let state = TempDir::with_prefix("bus-bench")?;
        let mut command = Command::new(stdio_bus);
        command.args(["agent", "openai", "--state"]).arg(state.path());
        command.env("OPENAI_BASE_URL", format!("http://{address}/v1")).env("OPENAI_API_KEY", "none");
        command.env("OPENAI_MODELS", "m").env("OPENAI_MODEL", "m").env("NO_PROXY", "127.0.0.1");
        let mut process =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take());
        let (stdin, stdout) = (stdin.expect("piped"), BufReader::new(stdout.expect("piped")));
        Ok(Agent { process, stdin, stdout, _state: state })
    }

    /// In a session of its own, so that every request is as long as the first.
    fn prompt(&mut self) -> io::Result<Duration> {
        self.say("session/new", &json!({ "cwd": "/", "mcpServers": [] }))?;
        let session = self.hear()?["result"]["sessionId"].take();
        let prompt = json!([{ "type": "text", "text": "hi" }]);
        let began = Instant::now();
        self.say("session/prompt", &json!({ "sessionId": session, "prompt": prompt }))?;
        let mut first = None;
        loop {
            let message = self.hear()?;
            if message["params"]["update"]["content"]["text"] == TOKEN {
                first = first.or(Some(began.elapsed()));
            }
            if message.get("result").is_some() {
                self.say("session/delete", &json!({ "sessionId": session }))?;
                self.hear()?;
                return first.ok_or_else(|| io::Error::other(format!("no token, but {message}")));
            }
        }
    }

    fn say(&mut self, method: &str, params: &Value) -> io::Result<()> {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        self.stdin.write_all(format!("{line}\n").as_bytes())
    }

    fn hear(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
