//! The frames of a WebSocket, by hand: what RFC 6455 allows passes, what it forbids ends the connection with the code
//! that it names, and nothing brings the door down. The groups are those of the Autobahn test suite.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::bus_with_door;
use super::limits::pid_of_door;
use crate::harness::Web;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// The last frame of a message.
const FIN: u8 = 0x80;

const PROTOCOL: u16 = 1002;
const NOT_UTF8: u16 = 1007;

/// The head of a request for a WebSocket.
fn upgrade(host: &str, token: &str) -> String {
    format!(
        "GET /acp HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    )
}

/// A masked frame.
fn frame(head: u8, payload: &[u8]) -> Vec<u8> {
    const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut frame = vec![head];
    match payload.len() {
        short @ ..126 => frame.push(0x80 | short as u8),
        middle @ ..65_536 => {
            frame.push(0x80 | 126);
            frame.extend((middle as u16).to_be_bytes());
        }
        long => {
            frame.push(0x80 | 127);
            frame.extend((long as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

/// A request that the agent echoes, of exactly this length, or as short as it can be.
fn ask(length: usize) -> Vec<u8> {
    let with =
        |text: &str| format!(r#"{{"jsonrpc":"2.0","id":1,"method":"any/method","params":{{"a":"{text}"}}}}"#);
    let shortest = with("").len();
    with(&"x".repeat(length.saturating_sub(shortest))).into_bytes()
}

fn asks() -> Vec<u8> {
    frame(FIN | TEXT, &ask(0))
}

/// A text of several frames, with something between them.
fn in_pieces(pieces: &[&[u8]], between: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let opcode = if index == 0 { TEXT } else { CONTINUATION };
        let is_last = index + 1 == pieces.len();
        frames.extend(frame(if is_last { FIN | opcode } else { opcode }, piece));
        if !is_last {
            frames.extend(between);
        }
    }
    frames
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes(), reason].concat())
}

/// What the door does with what it is sent.
#[derive(Debug, PartialEq)]
enum Seen {
    /// It has answered a request and the connection is open.
    Answered { pongs: Vec<Vec<u8>> },
    /// It has closed the connection with this code.
    Closed(Option<u16>),
}

fn answered() -> Seen {
    Seen::Answered { pongs: Vec::new() }
}

fn pongs(payloads: &[&[u8]]) -> Seen {
    Seen::Answered { pongs: payloads.iter().map(|payload| payload.to_vec()).collect() }
}

/// Sends this on a new connection, and looks what comes.
fn looks(web: &Web, token: &str, sent: &[u8], chunk: usize) -> Seen {
    let mut socket = web.connect();
    socket.write_all(upgrade(web.host(), token).as_bytes()).expect("the door listens");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    for part in sent.chunks(chunk) {
        // What follows a wrong frame need not be read.
        if socket.write_all(part).is_err() {
            break;
        }
    }
    let mut heard = Vec::new();
    loop {
        let mut start = [0; 2];
        socket.read_exact(&mut start).expect("a frame");
        assert_eq!(start[1] & 0x80, 0, "a server does not mask");
        let length = match start[1] {
            126 => {
                let mut length = [0; 2];
                socket.read_exact(&mut length).expect("a length");
                u64::from(u16::from_be_bytes(length))
            }
            127 => {
                let mut length = [0; 8];
                socket.read_exact(&mut length).expect("a length");
                u64::from_be_bytes(length)
            }
            short => u64::from(short),
        };
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload).expect("a payload");
        match start[0] {
            head if head == FIN | PONG => heard.push(payload),
            head if head == FIN | TEXT => {
                let answer: Value = serde_json::from_slice(&payload).expect("JSON");
                assert_eq!(answer["id"], 1, "{answer}");
                return Seen::Answered { pongs: heard };
            }
            head if head == FIN | CLOSE => {
                let code = payload.first_chunk().map(|code| u16::from_be_bytes(*code));
                return Seen::Closed(code);
            }
            other => panic!("a frame {other:#x} of {length} bytes"),
        }
    }
}

/// Plays each case in one write and byte by byte.
fn hold(cases: Vec<(String, Vec<u8>, Seen)>) {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    for (name, sent, expected) in cases {
        assert_eq!(looks(&web, &token, &sent, usize::MAX), expected, "{name}");
        if sent.len() < 1024 {
            assert_eq!(looks(&web, &token, &sent, 1), expected, "{name}, byte by byte");
        }
    }
}

fn case(name: &str, sent: Vec<u8>, expected: Seen) -> (String, Vec<u8>, Seen) {
    (name.to_owned(), sent, expected)
}

#[test]
fn frames_of_all_lengths_pings_and_fragments_pass() {
    let mut cases = Vec::new();
    for length in [0, 125, 126, 127, 128, 65_535, 65_536, 1 << 20] {
        cases.push(case(&format!("a text of {length}"), frame(FIN | TEXT, &ask(length)), answered()));
    }
    let whole = ask(0);
    let (first, second) = whole.split_at(9);
    let bytes: Vec<&[u8]> = whole.chunks(1).collect();
    let spaced = [&whole[..], b" \n"].concat();
    let mut spelled =
        r#"{"jsonrpc":"2.0","id":1,"method":"any/method","params":{"a":"✓"}}"#.as_bytes().to_vec();
    // The check mark, cut within its three bytes.
    let at = spelled.len() - 4;
    let rest = spelled.split_off(at);
    let ping = |payload: &[u8]| frame(FIN | PING, payload);
    let long_ping = [0xfe; 125];
    let ten: Vec<u8> = (0..10_u8).flat_map(|number| ping(&[number])).collect();
    let ten_pongs: Vec<[u8; 1]> = (0..10).map(|number| [number]).collect();
    let ten_pongs: Vec<&[u8]> = ten_pongs.iter().map(<[u8; 1]>::as_slice).collect();
    cases.extend([
        case("white space behind it", frame(FIN | TEXT, &spaced), answered()),
        case("a binary frame is ignored", [frame(FIN | BINARY, b"\xff"), asks()].concat(), answered()),
        case("an empty ping", [ping(b""), asks()].concat(), pongs(&[b""])),
        case("the longest ping", [ping(&long_ping), asks()].concat(), pongs(&[&long_ping])),
        case("ten pings", [ten, asks()].concat(), pongs(&ten_pongs)),
        case("a pong that nobody asked for", [frame(FIN | PONG, b"x"), asks()].concat(), answered()),
        case("two fragments", in_pieces(&[first, second], b""), answered()),
        case("a fragment for each byte", in_pieces(&bytes, b""), answered()),
        case("empty fragments", in_pieces(&[b"", &whole, b""], b""), answered()),
        case("a ping between fragments", in_pieces(&[first, second], &ping(b"p")), pongs(&[b"p"])),
        case("a pong between fragments", in_pieces(&[first, second], &frame(FIN | PONG, b"")), answered()),
        case("a character in two fragments", in_pieces(&[&spelled, &rest], b""), answered()),
    ]);
    hold(cases);
}

#[test]
fn what_the_protocol_forbids_ends_the_connection_with_its_code() {
    let mut cases = Vec::new();
    let wrong = || Seen::Closed(Some(PROTOCOL));
    let no_text = || Seen::Closed(Some(NOT_UTF8));
    for reserved in [0x40, 0x20, 0x10] {
        for opcode in [TEXT, BINARY, PING, CLOSE] {
            let sent = frame(FIN | reserved | opcode, b"");
            cases.push(case(&format!("bit {reserved:#x} of opcode {opcode}"), sent, wrong()));
        }
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        cases.push(case(&format!("opcode {opcode}"), frame(FIN | opcode, b""), wrong()));
    }
    let texts: [&[u8]; 6] = [
        b"\xff",
        b"{\x80}",
        // A surrogate, too long, too large, and cut.
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"\xf4\x90\x80\x80",
        b"\xe2\x9c",
    ];
    for text in texts {
        cases.push(case(&format!("the text {text:?}"), frame(FIN | TEXT, text), no_text()));
        let sent = in_pieces(&[b"{}", text, b" "], b"");
        cases.push(case(&format!("the text {text:?} in a fragment"), sent, no_text()));
    }
    let mut unmasked = asks();
    unmasked[1] &= 0x7f;
    cases.extend([
        case("a ping of 126 bytes", frame(FIN | PING, &[0; 126]), wrong()),
        case("a ping in fragments", frame(PING, b"x"), wrong()),
        case("a continuation of nothing", frame(FIN | CONTINUATION, b"x"), wrong()),
        case("a second beginning", [frame(TEXT, b"{"), asks()].concat(), wrong()),
        case("a frame without a mask", unmasked, wrong()),
    ]);
    hold(cases);
}

#[test]
fn a_close_is_answered_with_its_code() {
    let mut cases = Vec::new();
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        cases.push(case(&format!("code {code}"), close(code, b"bye"), Seen::Closed(Some(code))));
    }
    for code in [0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999, 5000, 65_535] {
        cases.push(case(&format!("code {code}"), close(code, b""), Seen::Closed(Some(PROTOCOL))));
    }
    let long = [b'x'; 123];
    cases.extend([
        case("no code", frame(FIN | CLOSE, b""), Seen::Closed(None)),
        case("the longest reason", close(1000, &long), Seen::Closed(Some(1000))),
        case("one byte", frame(FIN | CLOSE, b"x"), Seen::Closed(Some(PROTOCOL))),
        case("too long a reason", close(1000, &[b'x'; 124]), Seen::Closed(Some(PROTOCOL))),
        case("a reason that is no text", close(1000, b"\xff"), Seen::Closed(Some(NOT_UTF8))),
        case("a request behind it", [close(1000, b""), asks()].concat(), Seen::Closed(Some(1000))),
        case("between fragments", in_pieces(&[b"{", b"}"], &close(1000, b"")), Seen::Closed(Some(1000))),
    ]);
    hold(cases);
}

/// Frames of all kinds, most of them wrong. The same seed gives the same bytes.
struct Frames(u64);

impl Frames {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.next().is_multiple_of(count)
    }

    fn pick<'a>(&mut self, from: &[&'a [u8]]) -> &'a [u8] {
        from[self.next() as usize % from.len()]
    }

    fn frame(&mut self) -> Vec<u8> {
        let payloads: [&[u8]; 9] = [
            br#"{"jsonrpc":"2.0","id":1,"method":"_bus/status"}"#,
            br#"{"jsonrpc":"2.0","id":2,"method":"any/method","params":{"a":"\u0000"}}"#,
            b"{",
            b"",
            b"[[[[[[[[[[[[",
            b"\xff\xfe\x80",
            b"\xe2\x9c",
            b"\x03\xe8bye",
            b"\n\n{}\n",
        ];
        let payload = self.pick(&payloads).to_vec();
        let mut head = (self.next() % 16) as u8;
        // Mostly frames that are whole, without reserved bits, masked, and of a kind that exists.
        if !self.one_in(4) {
            head = [0, 1, 1, 1, 2, 8, 9, 10][self.next() as usize % 8];
        }
        if !self.one_in(4) {
            head |= 0x80;
        }
        if self.one_in(8) {
            head |= (self.next() % 8) as u8 * 16;
        }
        let is_masked = !self.one_in(8);
        let mask = self.next().to_be_bytes();
        let mut frame = vec![head];
        let bit = if is_masked { 0x80 } else { 0 };
        match self.next() % 8 {
            0 => frame.extend([bit | 127, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]),
            1 => frame.extend([bit | 127, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            2 => frame.extend([bit | 126, 0, payload.len() as u8]),
            _ => frame.push(bit | payload.len() as u8),
        }
        if is_masked {
            frame.extend(&mask[..4]);
        }
        frame.extend(
            payload
                .iter()
                .zip(mask[..4].iter().cycle())
                .map(|(byte, mask)| byte ^ if is_masked { *mask } else { 0 }),
        );
        if self.one_in(16) {
            frame.truncate(self.next() as usize % frame.len().max(1));
        }
        frame
    }
}

/// Sends frames on a connection until the door closes it, or there are no more.
fn plays(mut socket: TcpStream, host: &str, token: &str, seed: u64) {
    socket.write_all(upgrade(host, token).as_bytes()).expect("the door listens");
    let mut frames = Frames(seed);
    for _ in 0..=frames.next() % 20 {
        let frame = frames.frame();
        if socket.write_all(&frame).is_err() {
            break;
        }
    }
    let _ = socket.shutdown(std::net::Shutdown::Write);
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "seed {seed}: {}", String::from_utf8_lossy(&answer));
}

#[test]
fn no_frame_brings_the_door_down() {
    let bus = bus_with_door();
    let web = Web::of(&bus);
    let token = web.token("control");
    let pid = pid_of_door(&bus);
    let players: Vec<_> = (0..4_u64)
        .map(|player| {
            let (host, token) = (web.host().to_owned(), token.clone());
            thread::spawn(move || {
                for round in 0..100 {
                    let seed = 0x9e37_79b9_7f4a_7c15 ^ (player * 1000 + round + 1);
                    plays(TcpStream::connect(&host).expect("the door listens"), &host, &token, seed);
                }
            })
        })
        .collect();
    for player in players {
        player.join().expect("no round fails");
    }
    assert_eq!(web.http("GET", "/healthz", &[], "").status, 200);
    assert_eq!(pid_of_door(&bus), pid, "it is the same process");
    let mut socket = web.socket(&token);
    let session = socket.opens_session();
    assert_eq!(socket.takes_turn(2, &session, "Still here.").0, "Still here.");
}
