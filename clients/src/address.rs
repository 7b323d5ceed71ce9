//! Where the bus is: what the command line names, else what bus.json listens on. And with which token.

use std::path::{Path, PathBuf};

use kernel::config::{self, Address, Doors};

use crate::{Fault, TokenFile};

/// How to reach a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Where it may be, to be tried in this order. Never empty.
    pub addresses: Vec<Address>,
    pub token: Option<TokenFile>,
}

/// What the command line names.
#[derive(Clone, Debug, Default)]
pub struct Named {
    pub tcp: Option<Address>,
    pub unix: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
}

impl Way {
    /// An address that is named is the only one, and a token that is named the right one. What is not named stands in
    /// the file that `bus_json` finds; where only the token is missing, there need be none.
    pub fn find(named: Named, bus_json: impl FnOnce() -> Result<PathBuf, String>) -> Result<Way, Fault> {
        let token = named.token_file.map(|path| TokenFile { path, anywhere: true });
        if let Some(address) = named.tcp.or(named.unix.map(Address::Unix)) {
            // That file may be of another bus, so what is wrong with it is not this one's fault.
            let in_file = || Doors::load(&bus_json().ok()?).ok()?.token_file;
            let usable = |path: &PathBuf| config::read_token(path).is_ok();
            let found = || Some(TokenFile { path: in_file().filter(usable)?, anywhere: false });
            return Ok(Way { addresses: vec![address], token: token.or_else(found) });
        }
        let path = bus_json().map_err(Fault::NoAddress)?;
        let doors = Doors::load(&path).map_err(Fault::Config)?;
        let found = doors.token_file.clone().map(|path| TokenFile { path, anywhere: false });
        Ok(Way { addresses: reachable(doors, &path)?, token: token.or(found) })
    }
}

/// `HOST:PORT` of a bus to connect to. Unlike one to listen on, the host may be any name.
pub fn parse_host(text: &str) -> Result<Address, String> {
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err("HOST:PORT is needed".to_owned());
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if inner.is_none() && host.contains(':') {
        return Err(format!("an IPv6 address stands in brackets: [{host}]:{port}"));
    }
    let host = inner.unwrap_or(host);
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    match port.parse() {
        Ok(port) if port != 0 => Ok(Address::Tcp { host: host.into(), port }),
        _ => Err(format!("port {port:?} is not a number from 1 to 65535")),
    }
}

fn reachable(doors: Doors, path: &Path) -> Result<Vec<Address>, Fault> {
    // Which port a 0 became is known only to the bus, and its stdio to whoever started it.
    let reachable = |address: &Address| !matches!(address, Address::Stdio | Address::Tcp { port: 0, .. });
    let addresses = doors.listen.into_iter().map(|door| door.at).filter(reachable).collect::<Vec<_>>();
    if addresses.is_empty() {
        let file = path.display();
        return Err(Fault::NoAddress(format!(
            "{file}: listen: no address that a client can know, name one with --tcp or --unix"
        )));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn urls(listen: &str) -> Result<Vec<String>, Fault> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        fs::write(&path, format!(r#"{{"listen":{listen},"pools":[]}}"#)).unwrap();
        let way = Way::find(Named::default(), || Ok(path))?;
        Ok(way.addresses.iter().map(Address::to_string).collect())
    }

    #[test]
    fn what_is_named_wins_and_no_file_is_read() {
        let unread = || panic!("the file is not needed");
        let tcp = Some(parse_host("example.org:7").unwrap());
        let token_file = Some(PathBuf::from("/token"));
        let way = Way::find(Named { tcp, unix: None, token_file: token_file.clone() }, unread).unwrap();
        assert_eq!(way.addresses[0].to_string(), "tcp://example.org:7");
        assert_eq!(way.token, Some(TokenFile { path: "/token".into(), anywhere: true }));
        let unix = Some("/run/bus.sock".into());
        let way = Way::find(Named { tcp: None, unix, token_file }, unread).unwrap();
        assert_eq!(way.addresses[0].to_string(), "unix:///run/bus.sock");
    }

    #[test]
    fn a_token_that_is_not_named_is_the_one_of_the_file_if_there_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        fs::write(&path, r#"{"auth":{"token_file":"token"}}"#).unwrap();
        let token = folder.path().join("token");
        let found = Some(TokenFile { path: token.clone(), anywhere: false });
        assert_eq!(Way::find(Named::default(), || Ok(path.clone())).unwrap().token, found);
        let unix = || Named { unix: Some("/run/bus.sock".into()), ..Named::default() };
        assert_eq!(Way::find(unix(), || Ok(path.clone())).unwrap().token, None, "it is not there");
        fs::write(&token, "0123456789abcdef").unwrap();
        fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Way::find(unix(), || Ok(path)).unwrap().token, found);
        assert_eq!(Way::find(unix(), || Err("no bus.json".to_owned())).unwrap().token, None);
        assert_eq!(Way::find(unix(), || Ok("/no/such/bus.json".into())).unwrap().token, None);
    }

    #[test]
    fn the_file_gives_every_address_that_can_be_known() {
        let listen = r#"["stdio:","tcp://127.0.0.1:0","unix:///run/bus.sock?pool=x","tcp://[::1]:9000"]"#;
        assert_eq!(urls(listen).unwrap(), ["unix:///run/bus.sock", "tcp://[::1]:9000"]);
    }

    #[test]
    fn a_file_that_names_no_address_is_a_fault_of_the_configuration() {
        let none = urls(r#"["stdio:"]"#).unwrap_err();
        assert!(none.to_string().ends_with("name one with --tcp or --unix"), "{none}");
        let bad = urls("[7]").unwrap_err();
        assert!(bad.to_string().ends_with("bus.json: listen[0]: must be a string, not 7"), "{bad}");
        let absent = Way::find(Named::default(), || Err("no bus.json".to_owned())).unwrap_err();
        assert_eq!([none.exit_code(), bad.exit_code(), absent.exit_code()], [78, 78, 78]);
    }

    #[test]
    fn a_host_to_connect_to_may_be_any() {
        let cases = [
            ("localhost:9000", Ok("tcp://localhost:9000")),
            ("[::1]:9000", Ok("tcp://[::1]:9000")),
            ("10.0.0.7:9000", Ok("tcp://10.0.0.7:9000")),
            ("::1:9000", Err("an IPv6 address stands in brackets: [::1]:9000")),
            ("localhost", Err("HOST:PORT is needed")),
            (":9000", Err("the host is missing")),
            ("localhost:0", Err(r#"port "0" is not a number from 1 to 65535"#)),
            ("localhost:x", Err(r#"port "x" is not a number from 1 to 65535"#)),
        ];
        for (text, expected) in cases {
            let parsed = parse_host(text).map(|address| address.to_string());
            assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }
}
