//! A port for a program that has to be told one.

use std::io;
use std::net::TcpListener;
use std::ops::Range;

/// Systems take the ports of outgoing connections from above, so none of these is taken while its program is away.
const PORTS: Range<u16> = 10_000..32_768;

/// How many are tried before something else must be wrong.
const TRIES: usize = 1000;

/// A port that is free now. If another program takes it before the one that is told it, that one fails.
pub(crate) fn free_port() -> io::Result<u16> {
    let mut tried = Ok(0);
    for _ in 0..TRIES {
        let port = fastrand::u16(PORTS);
        tried = TcpListener::bind(("127.0.0.1", port)).map(|_| port);
        if tried.is_ok() {
            break;
        }
    }
    tried
}
