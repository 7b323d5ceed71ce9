//! The token file, and to which hosts its token is sent.

use std::net::IpAddr;
use std::path::PathBuf;

use kernel_core::config::Address;
use kernel_shell::config;

use crate::Fault;

/// The file is read anew for each connection, so that a changed token is used at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    pub path: PathBuf,
    /// A token file that the user names is sent to any host. One that bus.json names is sent to this machine
    /// only: bus.json could come from someone else and name a foreign address.
    pub any_host: bool,
}

impl TokenFile {
    /// The token to send to this address, if any.
    pub(crate) fn token_for(&self, at: &Address) -> Result<Option<String>, Fault> {
        if !self.any_host && !is_this_machine(at) {
            return Ok(None);
        }
        config::read_token(&self.path).map(Some).map_err(|fault| Fault::Token(format!("the token: {fault}")))
    }
}

fn is_this_machine(at: &Address) -> bool {
    let Address::Tcp { host, .. } = at else { return true };
    at.is_local() || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::address::parse_host;

    #[test]
    fn a_token_named_by_bus_json_is_never_sent_to_another_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let from_bus_json = TokenFile { path, any_host: false };
        let shown =
            |file: &TokenFile, host: &str| file.token_for(&parse_host(host).unwrap()).unwrap().is_some();
        let local = ["127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1"];
        assert!(local.iter().all(|host| shown(&from_bus_json, host)));
        assert!(from_bus_json.token_for(&Address::Unix("/run/bus.sock".into())).unwrap().is_some());
        let remote = ["192.0.2.1:1", "example.org:1", "localhost.example.org:1"];
        assert!(!remote.iter().any(|host| shown(&from_bus_json, host)));
        let from_flag = TokenFile { any_host: true, ..from_bus_json };
        assert!(remote.iter().all(|host| shown(&from_flag, host)));
    }

    #[test]
    fn an_unreadable_token_is_a_configuration_fault() {
        let missing = TokenFile { path: "/no/such/token".into(), any_host: true };
        let fault = missing.token_for(&Address::Unix("/run/bus.sock".into())).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "the token: there is no /no/such/token, create it with `stdio-bus token`"
        );
        assert_eq!(fault.exit_code(), 78);
    }
}
