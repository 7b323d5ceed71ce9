//! Resolves the address and the token file of the bus: from flags first, then from bus.json.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kernel_core::config::Address;
use kernel_shell::config::{self, ClientConfig};
use rpc::Stream;

use crate::peer_check::{self, Peer};
use crate::{Fault, TokenFile};

/// How to connect to a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Candidate addresses in the order in which they are tried. Never empty.
    pub addresses: Vec<Address>,
    pub token: Option<TokenFile>,
    /// The running bus of this user. If it is not the bus of bus.json, it has a token of its own.
    pub user_bus: Option<UserBus>,
}

/// The bus of this user that listens at the well-known socket, if one does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserBus {
    pub socket: PathBuf,
    /// The configuration of that bus, which names its token.
    pub config: PathBuf,
}

impl UserBus {
    fn address(&self) -> Address {
        Address::Unix(self.socket.clone())
    }

    fn token(&self) -> Option<TokenFile> {
        // Paths in the file are relative to its own folder, not to that of the link.
        let config = fs::canonicalize(&self.config).ok()?;
        let path = ClientConfig::load(&config).ok()?.token_file?;
        Some(TokenFile { path, any_host: false })
    }
}

/// The address and the token file that flags name.
#[derive(Clone, Debug, Default)]
pub struct TargetArgs {
    pub tcp: Option<Address>,
    pub unix: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
}

impl Target {
    /// A flag overrides bus.json. With an address flag, bus.json is only looked at for the token and may be missing.
    /// Without one, the addresses of bus.json come first, then the running bus of this user; one of both is needed.
    pub fn resolve(
        named: TargetArgs,
        bus_json: impl FnOnce() -> Result<PathBuf, String>,
        user_bus: Option<UserBus>,
    ) -> Result<Target, Fault> {
        let token = named.token_file.map(|path| TokenFile { path, any_host: true });
        if let Some(address) = named.tcp.or(named.unix.map(Address::Unix)) {
            // This bus.json may belong to another bus, so its faults do not concern this connection.
            let configured = || ClientConfig::load(&bus_json().ok()?).ok()?.token_file;
            let is_usable = |path: &PathBuf| config::read_token(path).is_ok();
            let found = || Some(TokenFile { path: configured().filter(is_usable)?, any_host: false });
            return Ok(Target { addresses: vec![address], token: token.or_else(found), user_bus: None });
        }
        let path = match (bus_json(), &user_bus) {
            (Ok(path), _) => path,
            (Err(_), Some(user)) if user.socket.exists() => {
                return Ok(Target { addresses: vec![user.address()], token, user_bus });
            }
            (Err(why), _) => return Err(Fault::NoAddress(why)),
        };
        let clients = ClientConfig::load(&path).map_err(Fault::Config)?;
        let found = clients.token_file.clone().map(|path| TokenFile { path, any_host: false });
        let mut addresses = match (connectable(clients, &path), &user_bus) {
            // A bus at a free port is found at that socket, or nowhere.
            (Err(_), Some(user)) => vec![user.address()],
            (addresses, _) => addresses?,
        };
        let user = user_bus.as_ref().filter(|user| user.socket.exists()).map(UserBus::address);
        addresses.extend(user.filter(|user| !addresses.contains(user)));
        Ok(Target { addresses, token: token.or(found), user_bus })
    }

    /// The file with the token for this address.
    fn token_file(&self, address: &Address) -> Option<TokenFile> {
        match &self.user_bus {
            Some(user)
                if user.address() == *address && !self.token.as_ref().is_some_and(|it| it.any_host) =>
            {
                user.token()
            }
            _ => self.token.clone(),
        }
    }

    /// The token to send over this connection to this address, if any. Fails if it would be shown to another user.
    pub(crate) fn token_for(
        &self,
        address: &Address,
        stream: &Stream,
        timeout: Duration,
    ) -> Result<Option<String>, Fault> {
        let Some(file) = self.token_file(address) else { return Ok(None) };
        let Some(token) = file.token_for(address)? else { return Ok(None) };
        match peer_check::check(stream, address, timeout)? {
            Peer::Trusted => Ok(Some(token)),
            Peer::Closed => Ok(None),
            // The user has named the token for this connection.
            Peer::Unknown if file.any_host => Ok(Some(token)),
            Peer::Unknown => Err(peer_check::cannot_tell(address)),
        }
    }
}

/// Parses `HOST:PORT` of a bus to connect to. Unlike a listen address, the host may be any name. A port alone is one of
/// this machine.
pub fn parse_host(text: &str) -> Result<Address, String> {
    if let Some(port) = config::port_alone(text).filter(|port| *port != 0) {
        return Ok(Address::Tcp { host: "127.0.0.1".into(), port });
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err("HOST:PORT is needed, such as 127.0.0.1:9000".to_owned());
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if inner.is_none() && host.contains(':') {
        return Err(format!("write an IPv6 address in brackets: [{host}]:{port}"));
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

fn connectable(clients: ClientConfig, path: &Path) -> Result<Vec<Address>, Fault> {
    // Only the bus knows which port a 0 became, and only its parent process can use its stdio.
    let connectable = |address: &Address| !matches!(address, Address::Stdio | Address::Tcp { port: 0, .. });
    let addresses =
        clients.listen.into_iter().map(|listen| listen.at).filter(connectable).collect::<Vec<_>>();
    if addresses.is_empty() {
        let file = path.display();
        return Err(Fault::NoAddress(format!(
            "{file}: listen: no address that a client can use; name one with --tcp or --unix"
        )));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn urls(listen: &str) -> Result<Vec<String>, Fault> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        fs::write(&path, format!(r#"{{"listen":{listen},"pools":[]}}"#)).unwrap();
        let target = Target::resolve(TargetArgs::default(), || Ok(path), None)?;
        Ok(target.addresses.iter().map(Address::to_string).collect())
    }

    #[test]
    fn flags_win_and_no_file_is_read() {
        let unread = || panic!("the file is not needed");
        let tcp = Some(parse_host("example.org:7").unwrap());
        let token_file = Some(PathBuf::from("/token"));
        let target =
            Target::resolve(TargetArgs { tcp, unix: None, token_file: token_file.clone() }, unread, None)
                .unwrap();
        assert_eq!(target.addresses[0].to_string(), "tcp://example.org:7");
        assert_eq!(target.token, Some(TokenFile { path: "/token".into(), any_host: true }));
        let unix = Some("/run/bus.sock".into());
        let target = Target::resolve(TargetArgs { tcp: None, unix, token_file }, unread, None).unwrap();
        assert_eq!(target.addresses[0].to_string(), "unix:///run/bus.sock");
    }

    #[test]
    fn without_a_flag_the_token_is_the_one_of_bus_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bus.json");
        fs::write(&path, r#"{"auth":{"token_file":"token"}}"#).unwrap();
        let token = folder.path().join("token");
        let found = Some(TokenFile { path: token.clone(), any_host: false });
        assert_eq!(Target::resolve(TargetArgs::default(), || Ok(path.clone()), None).unwrap().token, found);
        let unix = || TargetArgs { unix: Some("/run/bus.sock".into()), ..TargetArgs::default() };
        assert_eq!(
            Target::resolve(unix(), || Ok(path.clone()), None).unwrap().token,
            None,
            "it is not there"
        );
        fs::write(&token, "0123456789abcdef").unwrap();
        fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(Target::resolve(unix(), || Ok(path), None).unwrap().token, found);
        assert_eq!(Target::resolve(unix(), || Err("no bus.json".to_owned()), None).unwrap().token, None);
        assert_eq!(Target::resolve(unix(), || Ok("/no/such/bus.json".into()), None).unwrap().token, None);
    }

    #[test]
    fn bus_json_gives_every_address_that_a_client_can_connect_to() {
        let listen = r#"["stdio:","tcp://127.0.0.1:0","unix:///run/bus.sock?pool=x","tcp://[::1]:9000"]"#;
        assert_eq!(urls(listen).unwrap(), ["unix:///run/bus.sock", "tcp://[::1]:9000"]);
    }

    #[test]
    fn a_bus_json_without_an_address_is_a_configuration_fault() {
        let none = urls(r#"["stdio:"]"#).unwrap_err();
        assert!(none.to_string().ends_with("name one with --tcp or --unix"), "{none}");
        let bad = urls("[7]").unwrap_err();
        assert!(bad.to_string().ends_with("bus.json:1:12: listen[0]: must be a string, not 7"), "{bad}");
        let absent =
            Target::resolve(TargetArgs::default(), || Err("no bus.json".to_owned()), None).unwrap_err();
        assert_eq!([none.exit_code(), bad.exit_code(), absent.exit_code()], [78, 78, 78]);
    }

    #[test]
    fn any_host_name_can_be_connected_to() {
        let cases = [
            ("localhost:9000", Ok("tcp://localhost:9000")),
            ("[::1]:9000", Ok("tcp://[::1]:9000")),
            ("10.0.0.7:9000", Ok("tcp://10.0.0.7:9000")),
            ("9000", Ok("tcp://127.0.0.1:9000")),
            ("::1:9000", Err("write an IPv6 address in brackets: [::1]:9000")),
            ("localhost", Err("HOST:PORT is needed, such as 127.0.0.1:9000")),
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
