//! `web`: what the web door costs: a round trip over WebSocket beside one over TCP, idle WebSockets, and turns that are
//! streamed to many pages at the same time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{Message, WebSocket};

use crate::args::Measured;
use crate::bus::{self, Bus, PATIENCE, echo};
use crate::client::prompt;
use crate::procfs;
use crate::report::{Report, time};
use crate::table::median;

const ROUND_TRIPS: usize = 5_000;
/// A token may have 1024 connections.
const PER_TOKEN: usize = 1_000;
const IDLE_MAX: usize = 10_100;
const OTHER_FILES: usize = 200;
const PAGES: usize = 100;
const UPDATES: usize = 1_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many WebSockets sit idle, as far as the door may have open files
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    idle: u32,
    #[command(flatten)]
    measured: Measured,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let stdio_bus = match args.measured.stdio_bus_with_many_files() {
        Ok(path) => path,
        Err(exit_code) => return exit_code,
    };
    let mut report = Report::default();
    let count = (args.idle as usize).min(with_files());
    let outcomes = [
        ("round trips", round_trips(&stdio_bus, &mut report)),
        ("idle WebSockets", sits_idle(&stdio_bus, count, &mut report)),
        ("streams", streams(&stdio_bus, &mut report)),
        ("one stream to many", watched(&stdio_bus, &mut report)),
    ];
    for (what, outcome) in outcomes {
        if let Err(error) = outcome {
            report.check(what, error, "it can be tried", false);
        }
    }
    report.finish(args.measured.json)
}

/// For how many WebSockets a door has files: each needs one to its client and one to the bus.
fn with_files() -> usize {
    let files =
        getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(_, hard)| usize::try_from(hard).unwrap_or(usize::MAX));
    files.saturating_sub(OTHER_FILES) / 2
}

/// The door of a bus.
struct Door<'a> {
    bus: &'a Bus,
    stdio_bus: &'a Path,
    host: String,
    pid: u32,
}

impl<'a> Door<'a> {
    fn of(bus: &'a Bus, stdio_bus: &'a Path) -> io::Result<Door<'a>> {
        let mut web = Value::Null;
        bus.until(PATIENCE, |bus| {
            web = bus.status().map(|status| status["web"].clone()).unwrap_or_default();
            web["state"] == "up"
        });
        let host = web["listening"].as_str().and_then(|url| url.strip_prefix("http://"));
        let host = host.ok_or_else(|| io::Error::other(format!("no door opens\n{}", bus.log())))?.to_owned();
        Ok(Door { bus, stdio_bus, host, pid: web["pid"].as_u64().unwrap_or_default() as u32 })
    }

    fn token(&self) -> io::Result<String> {
        let mut command = Command::new(self.stdio_bus);
        command.args(["web", "url", "--config"]).arg(self.bus.folder().join("bus.json"));
        let link = command.env("XDG_STATE_HOME", self.bus.folder()).stderr(Stdio::null()).output()?.stdout;
        let link = String::from_utf8_lossy(&link).into_owned();
        let code = link.trim().split_once("#c=").map_or("", |(_, code)| code);
        let body = json!({ "code": code }).to_string();
        let mut socket = TcpStream::connect(&self.host)?;
        write!(
            socket,
            "POST /login HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n{body}",
            self.host,
            body.len()
        )?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let answer = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let answer: Value = serde_json::from_str(answer)?;
        answer["token"].as_str().map(str::to_owned).ok_or_else(|| io::Error::other("no token"))
    }

    fn socket(&self, token: &str) -> io::Result<Page> {
        let mut request =
            format!("ws://{}/acp", self.host).into_client_request().map_err(io::Error::other)?;
        let bearer = format!("Bearer {token}").parse().map_err(io::Error::other)?;
        request.headers_mut().insert("Authorization", bearer);
        let socket = TcpStream::connect(&self.host)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (socket, _) =
            tungstenite::client(request, socket).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Page(socket))
    }
}

struct Page(WebSocket<TcpStream>);

impl Page {
    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        self.0.send(Message::text(line)).map_err(io::Error::other)
    }

    fn receive(&mut self) -> io::Result<String> {
        loop {
            match self.0.read().map_err(io::Error::other)? {
                Message::Text(text) => return Ok(text.to_string()),
                Message::Close(_) => return Err(io::Error::other("the door has closed it")),
                _ => {}
            }
        }
    }

    fn ask(&mut self, id: u32, method: &str, params: Value) -> io::Result<Value> {
        self.send(&rpc::write::request(id, method, params))?;
        loop {
            let message: Value = serde_json::from_str(&self.receive()?)?;
            if message["id"] == id && message.get("method").is_none() {
                return Ok(message["result"].clone());
            }
        }
    }
}

fn config() -> Value {
    let mut config = bus::config(&[echo("echo", 1, &["--chunks", &UPDATES.to_string()])]);
    config["web"] = json!({ "listen": "http://127.0.0.1:0" });
    config["limits"] = json!({ "max_clients": IDLE_MAX });
    config
}

fn round_trips(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let door = Door::of(&bus, stdio_bus)?;
    let request = rpc::write::request(7, "echo", "x".repeat(140));
    let mut tcp = bus.client()?;
    let mut page = door.socket(&door.token()?)?;
    let (mut plain, mut web) = (Vec::new(), Vec::new());
    // In turns, so that what else the machine does slows both.
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        tcp.send(&request)?;
        tcp.line()?;
        plain.push(began.elapsed().as_secs_f64());
        let began = Instant::now();
        page.send(&request)?;
        page.receive()?;
        web.push(began.elapsed().as_secs_f64());
    }
    let [plain, web] = [plain, web].map(|times| Duration::from_secs_f64(median(times)));
    report.note("round trip over TCP, median", time(plain));
    let times = web.as_secs_f64() / plain.as_secs_f64();
    let got = format!("{} ({times:.2} x)", time(web));
    report.check("round trip over WebSocket, median", got, "<= 4 x", times <= 4.0);
    Ok(())
}

fn sits_idle(stdio_bus: &Path, count: usize, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let door = Door::of(&bus, stdio_bus)?;
    let mut watcher = bus.client()?;
    watcher.status()?;
    // The first connection sets up what all of them share.
    let first = door.socket(&door.token()?)?;
    let before = [procfs::resident_bytes(door.pid)?, procfs::resident_bytes(bus.pid())?];
    let mut pages = Vec::new();
    let mut token = String::new();
    for number in 0..count {
        if number % PER_TOKEN == 0 {
            token = door.token()?;
        }
        pages.push(door.socket(&token)?);
    }
    if !bus.until_clients(&mut watcher, count + 2) {
        return Err(io::Error::other("not all WebSockets are clients of the bus"));
    }
    let after = [procfs::resident_bytes(door.pid)?, procfs::resident_bytes(bus.pid())?];
    let [web, core] = [0, 1].map(|at| after[at].saturating_sub(before[at]) / count as u64);
    report.note("idle door: memory", format!("{:.2} MB", before[0] as f64 / 1e6));
    report.check(
        &format!("each of {count} idle WebSockets: memory of the door"),
        format!("{web} B"),
        "<= 24 KiB",
        web <= 24 << 10,
    );
    report.check("the same: memory of the bus", format!("{core} B"), "<= 1500 B", core <= 1500);
    let cpu_before = procfs::main_thread_time(door.pid)?;
    // Longer than the time between two pings.
    let length = Duration::from_secs(20);
    thread::sleep(length);
    let share =
        procfs::main_thread_time(door.pid)?.saturating_sub(cpu_before).as_secs_f64() / length.as_secs_f64();
    report.share_at_most("the same: processor time of the door", share, 20.0);
    drop((first, pages));
    Ok(())
}

/// A page with a session of its own.
fn with_session(door: &Door<'_>, token: &str) -> io::Result<(Page, String)> {
    let mut page = door.socket(token)?;
    page.ask(0, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} }))?;
    let opened = page.ask(1, "session/new", json!({ "cwd": "/tmp", "mcpServers": [] }))?;
    Ok((page, opened["sessionId"].as_str().unwrap_or_default().to_owned()))
}

/// Turns of many updates on as many pages, all at once. Every update must arrive.
fn streams(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let door = Door::of(&bus, stdio_bus)?;
    let token = door.token()?;
    let mut pages = (0..PAGES).map(|_| with_session(&door, &token)).collect::<io::Result<Vec<_>>>()?;
    let began = Instant::now();
    for (page, session) in &mut pages {
        page.send(&rpc::write::request(2, "session/prompt", prompt(session, "x")))?;
    }
    let updates = hear_all(pages.into_iter().map(|(page, _)| page))?;
    let rate = updates as f64 / began.elapsed().as_secs_f64();
    report.holds(&format!("every update of {PAGES} turns of {UPDATES} arrives"), updates == PAGES * UPDATES);
    report.note(&format!("updates a second to {PAGES} pages"), format!("{rate:.0}"));
    let most = procfs::peak_bytes(door.pid)?;
    report.note("the same: most memory of the door", format!("{:.1} MB", most as f64 / 1e6));
    Ok(())
}

/// One turn that many pages look at. Every page must hear all of it.
fn watched(stdio_bus: &Path, report: &mut Report) -> io::Result<()> {
    let bus = Bus::start(stdio_bus, &config())?;
    let door = Door::of(&bus, stdio_bus)?;
    let token = door.token()?;
    let (mut owner, session) = with_session(&door, &token)?;
    let mut pages = Vec::new();
    for _ in 0..PAGES {
        let mut page = door.socket(&token)?;
        let attached =
            page.ask(1, "_bus/attach", json!({ "session": session, "role": "observe", "history": "none" }))?;
        if attached["role"] != "observe" {
            return Err(io::Error::other(format!("a page cannot attach: {attached}")));
        }
        pages.push(page);
    }
    let began = Instant::now();
    owner.send(&rpc::write::request(2, "session/prompt", prompt(&session, "x")))?;
    let updates = hear_all(pages.into_iter())?;
    let rate = updates as f64 / began.elapsed().as_secs_f64();
    report.holds(
        &format!("{PAGES} pages that look at one turn of {UPDATES} hear all of it"),
        updates == PAGES * UPDATES,
    );
    report.note("the same: updates a second", format!("{rate:.0}"));
    Ok(())
}

/// The updates that all pages hear of a turn.
fn hear_all(pages: impl Iterator<Item = Page>) -> io::Result<usize> {
    let readers: Vec<_> = pages.map(|page| thread::spawn(move || hear_turn(page))).collect();
    let heard = readers
        .into_iter()
        .map(|reader| reader.join().map_err(|_| io::Error::other("a reader has failed"))?);
    heard.sum()
}

/// The updates of a turn, until its answer, or until there are as many as it has.
fn hear_turn(mut page: Page) -> io::Result<usize> {
    let mut updates = 0;
    while updates < UPDATES {
        let line = page.receive()?;
        if line.contains("agent_message_chunk") {
            updates += 1;
        } else if line.contains("stopReason") || line.contains("\"behind\"") {
            break;
        }
    }
    Ok(updates)
}
