//! Addresses of a bus, and connections to them.

use std::time::Duration;
use std::{env, io};

pub(crate) use kernel_core::config::Address;
use kernel_shell::config::parse_listen;
use rpc::Stream;

/// Long enough for a system that drops the first packets of many connections at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// `tcp://HOST:PORT` or `unix:///PATH`.
pub(crate) fn parse(text: &str) -> Result<Address, String> {
    let folder = env::current_dir().map_err(|error| error.to_string())?;
    let listen = parse_listen(text, &folder)?;
    match (listen.at, listen.pool) {
        (at @ (Address::Tcp { .. } | Address::Unix(_)), None) => Ok(at),
        _ => Err("tcp://HOST:PORT or unix:///PATH is needed".to_owned()),
    }
}

/// A connection that blocks.
pub(crate) fn connect(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp { host, port } => Stream::connect_tcp(host, *port, CONNECT_TIMEOUT),
        Address::Unix(path) => Stream::connect_unix(path),
        Address::Stdio => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_is_written() {
        for text in ["tcp://127.0.0.1:9000", "tcp://[::1]:9000", "unix:///run/bus.sock"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for text in ["127.0.0.1:9000", "tcp://localhost", "stdio:", "tcp://localhost:1?pool=p", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
