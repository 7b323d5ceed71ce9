//! Parses addresses: the URLs of `listen`, and the flags that replace them.
//!
//! An address is `tcp://HOST:PORT`, `unix://PATH` or `stdio:`, with `?pool=NAME` if its clients belong to a pool.
//! The host of a TCP address is an IP address or localhost, never another name.

use std::net::IpAddr;
use std::path::Path;

use super::resolve::Resolver;
use kernel_core::config::{Address, Listen};

/// The longest path of a Unix socket, without the NUL that ends it.
const UNIX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// Parses one URL of `listen`. A relative path is relative to `folder`, which is absolute.
pub fn parse_listen(text: &str, folder: &Path) -> Result<Listen, String> {
    listen(text, Resolver::of_machine(folder))
}

/// Parses `HOST:PORT`, with an IPv6 address in brackets. A port alone is one of this machine.
pub fn parse_tcp(text: &str) -> Result<Address, String> {
    if let Some(port) = port_alone(text) {
        return Ok(Address::Tcp { host: "127.0.0.1".into(), port });
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(format!("{text:?} has no port: HOST:PORT is needed"));
    };
    // `parse` would take a leading plus sign.
    let port = match port.parse::<u16>() {
        Ok(number) if port.starts_with(|c: char| c.is_ascii_digit()) => number,
        _ => return Err(format!("port {port:?} is not a number from 0 to 65535")),
    };
    if host.eq_ignore_ascii_case("localhost") {
        return Ok(Address::Tcp { host: "localhost".into(), port });
    }
    let ip = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None if host.contains(':') => {
            return Err(format!("write an IPv6 address in brackets: [{host}]:{port}"));
        }
        None => host.parse().ok().map(IpAddr::V4),
    };
    let Some(ip) = ip else {
        return Err(format!("host {host:?} is neither an IP address nor localhost"));
    };
    Ok(Address::Tcp { host: ip.to_string().into(), port })
}

/// The port, if the text is nothing but digits that name one.
pub fn port_alone(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Parses the path of a Unix socket. A relative path is relative to `folder`, which is absolute.
pub fn parse_unix(path: &str, folder: &Path) -> Result<Address, String> {
    unix(path, Resolver::of_machine(folder))
}

pub(super) fn listen(text: &str, resolver: Resolver<'_>) -> Result<Listen, String> {
    let (address, query) = match text.split_once('?') {
        Some((address, query)) => (address, Some(query)),
        None => (text, None),
    };
    let at = if let Some(host_port) = address.strip_prefix("tcp://") {
        parse_tcp(host_port)?
    } else if let Some(path) = address.strip_prefix("unix://") {
        unix(path, resolver)?
    } else if address == "stdio:" {
        Address::Stdio
    } else {
        return Err(format!("{text:?} is not tcp://HOST:PORT, unix:///PATH or stdio:"));
    };
    let pool = match query.map(|query| (query, query.strip_prefix("pool="))) {
        None => None,
        Some((_, Some(pool))) if is_pool_id(pool) => Some(pool.into()),
        Some((query, _)) => return Err(format!("\"?{query}\" is not ?pool=NAME")),
    };
    Ok(Listen { at, pool })
}

fn unix(path: &str, resolver: Resolver<'_>) -> Result<Address, String> {
    let path = resolver.path(path)?;
    let length = path.as_os_str().len();
    if length > UNIX_PATH_BYTES {
        return Err(format!("the path is {length} bytes long, a Unix socket takes {UNIX_PATH_BYTES}"));
    }
    Ok(Address::Unix(path))
}

/// Whether this is 1 to 64 characters that need no quoting in a URL, a log line or a shell.
pub(super) fn is_pool_id(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=64).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use std::env::VarError;

    use super::*;

    fn read(text: &str) -> Result<Listen, String> {
        let variable = |name: &str| match name {
            "HOME" => Ok("/home/ann".to_owned()),
            _ => Err(VarError::NotPresent),
        };
        let token = &|_: &Path| unreachable!("no token is read");
        listen(text, Resolver { folder: Path::new("/srv/bus"), variable: &variable, token })
    }

    #[test]
    fn a_good_url_is_printed_in_its_normal_form() {
        let cases = [
            ("tcp://127.0.0.1:9000", "tcp://127.0.0.1:9000"),
            ("tcp://127.1.2.3:0", "tcp://127.1.2.3:0"),
            ("tcp://LocalHost:65535?pool=a.b_c-1", "tcp://localhost:65535?pool=a.b_c-1"),
            ("tcp://[::1]:9000?pool=echo", "tcp://[::1]:9000?pool=echo"),
            ("tcp://[0:0::1]:9000", "tcp://[::1]:9000"),
            ("tcp://[::ffff:127.0.0.1]:9000", "tcp://[::ffff:127.0.0.1]:9000"),
            ("tcp://0.0.0.0:9000", "tcp://0.0.0.0:9000"),
            ("tcp://[::]:9000", "tcp://[::]:9000"),
            ("unix:///run/bus.sock", "unix:///run/bus.sock"),
            ("unix://run/bus.sock?pool=x", "unix:///srv/bus/run/bus.sock?pool=x"),
            ("unix://./bus.sock", "unix:///srv/bus/bus.sock"),
            ("unix://~/bus.sock", "unix:///home/ann/bus.sock"),
            ("stdio:", "stdio:"),
            ("stdio:?pool=x", "stdio:?pool=x"),
        ];
        for (text, normal) in cases {
            let listen = read(text).unwrap_or_else(|message| panic!("{text}: {message}"));
            assert_eq!(listen.to_string(), normal);
            assert_eq!(read(normal), Ok(listen), "{normal} is read as what it was printed from");
        }
    }

    #[test]
    fn a_bad_url_is_refused_with_the_reason() {
        let cases = [
            ("", r#""" is not tcp://HOST:PORT, unix:///PATH or stdio:"#),
            ("127.0.0.1:9000", r#""127.0.0.1:9000" is not tcp://HOST:PORT, unix:///PATH or stdio:"#),
            ("http://localhost:1", r#""http://localhost:1" is not tcp://HOST:PORT, unix:///PATH or stdio:"#),
            ("stdio:x", r#""stdio:x" is not tcp://HOST:PORT, unix:///PATH or stdio:"#),
            ("tcp://localhost", r#""localhost" has no port: HOST:PORT is needed"#),
            ("tcp://localhost:", r#"port "" is not a number from 0 to 65535"#),
            ("tcp://localhost:+80", r#"port "+80" is not a number from 0 to 65535"#),
            ("tcp://localhost:65536", r#"port "65536" is not a number from 0 to 65535"#),
            ("tcp://localhost:80/", r#"port "80/" is not a number from 0 to 65535"#),
            ("tcp://:80", r#"host "" is neither an IP address nor localhost"#),
            ("tcp://example.org:80", r#"host "example.org" is neither an IP address nor localhost"#),
            ("tcp://[127.0.0.1]:80", r#"host "[127.0.0.1]" is neither an IP address nor localhost"#),
            ("tcp://::1:80", "write an IPv6 address in brackets: [::1]:80"),
            ("unix://", "must not be empty"),
            ("unix://a\0b", "must not hold a NUL character"),
            ("stdio:?", r#""?" is not ?pool=NAME"#),
            ("stdio:?pool=", r#""?pool=" is not ?pool=NAME"#),
            ("stdio:?pol=x", r#""?pol=x" is not ?pool=NAME"#),
            ("stdio:?pool=a&b=c", r#""?pool=a&b=c" is not ?pool=NAME"#),
        ];
        for (text, message) in cases {
            assert_eq!(read(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn only_loopback_sockets_and_stdio_are_local() {
        let local = ["127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "[::ffff:127.0.0.1]:1"];
        assert!(local.iter().all(|text| parse_tcp(text).unwrap().is_local()));
        assert!(Address::Stdio.is_local() && Address::Unix("/run/x".into()).is_local());
        for open in ["0.0.0.0:1", "[::]:1", "192.168.0.7:1", "[::ffff:10.0.0.1]:1", "[2001:db8::1]:1"] {
            assert!(!parse_tcp(open).unwrap().is_local(), "{open}");
        }
    }

    #[test]
    fn a_path_longer_than_a_socket_takes_is_refused() {
        let path_of = |length: usize| format!("unix:///{}", "x".repeat(length - 1));
        assert!(read(&path_of(UNIX_PATH_BYTES)).is_ok());
        let message = read(&path_of(UNIX_PATH_BYTES + 1)).unwrap_err();
        let (length, most) = (UNIX_PATH_BYTES + 1, UNIX_PATH_BYTES);
        assert_eq!(message, format!("the path is {length} bytes long, a Unix socket takes {most}"));
    }

    #[test]
    fn a_path_from_the_command_line_is_taken_as_it_is() {
        let address = parse_unix("odd?pool=name", Path::new("/tmp")).unwrap();
        assert_eq!(address, Address::Unix("/tmp/odd?pool=name".into()));
    }
}
