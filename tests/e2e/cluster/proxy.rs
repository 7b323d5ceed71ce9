//! A slow line between a bus and its nats-server: what is sent takes its time, or does not arrive at all for a while.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{looks_again, time_passes};

/// What is read at once, and how many such pieces may be on their way.
const PIECE_BYTES: usize = 16 << 10;
const PIECES: usize = 256;

#[derive(Clone, Copy)]
pub(super) struct Line {
    /// How long each byte takes, one way.
    pub(super) delay: Duration,
    pub(super) bytes_per_sec: u32,
}

/// It listens at a free port of loopback as long as the test runs.
pub(super) struct Proxy {
    port: u16,
    /// Nothing arrives, and nobody is told.
    is_cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) fn start(to: u16, line: Line) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = is_cut.clone();
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let pair = |socket: &TcpStream| socket.try_clone().expect("an fd");
                carry(pair(&socket), pair(&server), line, cut.clone());
                carry(server, socket, line, cut.clone());
            }
        });
        Proxy { port, is_cut }
    }

    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

/// One direction: a thread that reads, and one that writes when the time has come.
fn carry(mut from: TcpStream, to: TcpStream, line: Line, is_cut: Arc<AtomicBool>) {
    let (tell, pieces) = sync_channel(PIECES);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if tell.send((Instant::now() + line.delay, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || write(to, &pieces, line, &is_cut));
}

fn write(mut to: TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>, line: Line, is_cut: &AtomicBool) {
    let mut free_at = Instant::now();
    for (due, piece) in pieces {
        let takes = Duration::from_secs_f64(piece.len() as f64 / f64::from(line.bytes_per_sec));
        free_at = free_at.max(Instant::now()) + takes;
        time_passes(due.max(free_at).saturating_duration_since(Instant::now()));
        while is_cut.load(Ordering::Relaxed) {
            looks_again();
        }
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
