//! `ttft`: what the OpenAI agent adds to the time until the first token.
//!
//! A server on loopback answers at once. A client that only writes a request and reads until the first token asks it,
//! and so does the agent, in turns, so that what else the machine does slows both. The medians are printed, and their
//! difference is what the agent costs.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rpc::write;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bus::beside_us;
use crate::client::{Client, prompt};
use crate::print::{answer, complain, micros};
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
    let text = if args.json {
        format!("{}\n", json!({ "direct_us": direct_us, "agent_us": agent_us, "added_us": added_us }))
    } else {
        let (direct, agent, added) = (micros(direct_us), micros(agent_us), micros(added_us));
        let title = format!("time to first token, median of {} prompts each", args.prompts);
        format!(
            "{title}\n  server alone       {direct}\n  through the agent  {agent}\n  added              {added}\n"
        )
    };
    let printed = answer(&text);
    if added_us > args.most_us { ExitCode::FAILURE } else { printed }
}

/// Microseconds of each prompt: straight to the server, and through the agent.
fn measure(stdio_bus: &Path, prompts: u32) -> io::Result<(Vec<f64>, Vec<f64>)> {
    let address = start_server()?;
    let (mut direct, mut agent) = (Direct::connect(address)?, Agent::start(stdio_bus, address)?);
    let (mut direct_us, mut agent_us) = (Vec::new(), Vec::new());
    // The first prompts find cold caches on both sides and do not count.
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

/// Answers every request of the connection with one token.
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

/// A client that does no more than it must.
struct Direct {
    socket: TcpStream,
    request: Vec<u8>,
    read: Vec<u8>,
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
        Ok(Direct { socket, request, read: Vec::new() })
    }

    fn prompt(&mut self) -> io::Result<Duration> {
        self.read.clear();
        let began = Instant::now();
        self.socket.write_all(&self.request)?;
        self.read_until(TOKEN)?;
        let first = began.elapsed();
        self.read_until("\r\n0\r\n\r\n")?;
        Ok(first)
    }

    fn read_until(&mut self, text: &str) -> io::Result<()> {
        while memchr::memmem::find(&self.read, text.as_bytes()).is_none() {
            let mut chunk = [0; 4096];
            match self.socket.read(&mut chunk)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.read.extend_from_slice(&chunk[..count]),
            }
        }
        Ok(())
    }
}

struct Agent {
    process: Child,
    client: Client,
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
        let client = Client::of_child(&mut process);
        Ok(Agent { process, client, _state: state })
    }

    /// Prompts in a session of its own, so that every request is as long as the first.
    fn prompt(&mut self) -> io::Result<Duration> {
        let session = self.client.open_session()?;
        let line = write::request("prompt", "session/prompt", prompt(&session, "hi"));
        let began = Instant::now();
        self.client.send(&line)?;
        let mut first = None;
        loop {
            let message = self.client.message()?;
            if first.is_none() && message["params"]["update"]["content"]["text"] == TOKEN {
                first = Some(began.elapsed());
            }
            if message.get("result").is_some() {
                self.client.ask("session/delete", json!({ "sessionId": session }))?;
                return first.ok_or_else(|| io::Error::other(format!("no token, but {message}")));
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
