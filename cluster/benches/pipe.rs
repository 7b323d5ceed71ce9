//! How many bytes and lines two ends of a pipe carry in memory in a second of processor time: `cargo bench -p cluster`.
//!
//! Each figure is the best of several runs, so that other load on the machine hardly matters.

use std::fs;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cluster::pipe::{Config, MAX_FRAME_BYTES, MIN_WINDOW, Moment, Pipe, Side};

const RUNS: usize = 5;

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let bytes: usize = if is_test { 1 << 20 } else { 2 << 30 };
    println!("{:<52} {:>8} {:>12}", "one pipe, one direction, both ends in one thread", "MB/s", "writes/s");
    for (name, window, write_bytes) in [
        ("window 1 MiB, writes of 64 KiB", 1 << 20, MAX_FRAME_BYTES),
        ("window 64 KiB, writes of 64 KiB", MIN_WINDOW, MAX_FRAME_BYTES),
        ("window 1 MiB, a frame for each line of 200 bytes", 1 << 20, 200),
    ] {
        let bytes = if write_bytes < 1000 { bytes / 16 } else { bytes };
        let took = (0..RUNS).map(|_| one_run(window, write_bytes, bytes)).min().unwrap_or_default();
        let seconds = took.as_secs_f64();
        let (rate, writes) = (bytes as f64 / 1e6 / seconds, bytes as f64 / write_bytes as f64 / seconds);
        println!("{name:<52} {rate:>8.0} {writes:>12.0}");
    }
}

/// Carries so many bytes from an edge to a node, and the acknowledgements back.
fn one_run(window: usize, write_bytes: usize, bytes: usize) -> Duration {
    let now = Moment::ZERO;
    let end = |side| Pipe::new(1, Config { window, peer_window: window, ..Config::new(side) }, now);
    let (mut edge, mut node) = (end(Side::Edge), end(Side::Node));
    let source = vec![b'x'; write_bytes];
    let (mut written, mut received) = (0, 0);
    let begin = processor_time();
    while received < bytes {
        written += edge.write(&source[..write_bytes.min(bytes - written)]);
        while let Some(frame) = edge.next_frame(now) {
            node.frame_received(frame.bytes, now).expect("a good frame");
            while let Some(chunk) = node.take_received() {
                received += chunk.len();
                node.consumed(chunk.len(), now);
            }
        }
        while let Some(frame) = node.next_frame(now) {
            edge.frame_received(frame.bytes, now).expect("a good frame");
        }
    }
    processor_time() - begin
}

/// The processor time of this thread where the system tells it, else the time.
fn processor_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse().ok());
    nanos.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}
