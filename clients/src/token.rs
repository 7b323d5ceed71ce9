//! The token that a bus may ask for: where it is, and to whom it is shown.

use std::net::IpAddr;
use std::path::PathBuf;

use kernel::config::{self, Address};

use crate::Fault;

/// Read anew for each connection, so that a token that has changed meanwhile is the one that is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFile {
    pub path: PathBuf,
    /// The user named it, so it is shown wherever the user connects to. One that a bus.json names is shown on this
    /// machine only: whoever wrote that file could have named an address of their own.
    pub anywhere: bool,
}

impl TokenFile {
    /// What to show at this address, if anything.
    pub(crate) fn token_for(&self, at: &Address) -> Result<Option<String>, Fault> {
        if !self.anywhere && !is_here(at) {
            return Ok(None);
        }
        config::read_token(&self.path).map(Some).map_err(|fault| Fault::Token(format!("the token: {fault}")))
    }
}

fn is_here(at: &Address) -> bool {
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
    fn a_token_that_a_bus_json_names_is_not_shown_to_other_machines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let found = TokenFile { path, anywhere: false };
        let shown =
            |file: &TokenFile, host: &str| file.token_for(&parse_host(host).unwrap()).unwrap().is_some();
        let here = ["127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1"];
        assert!(here.iter().all(|host| shown(&found, host)));
        assert!(found.token_for(&Address::Unix("/run/bus.sock".into())).unwrap().is_some());
        let there = ["192.0.2.1:1", "example.org:1", "localhost.example.org:1"];
        assert!(!there.iter().any(|host| shown(&found, host)));
        let named = TokenFile { anywhere: true, ..found };
        assert!(there.iter().all(|host| shown(&named, host)));
    }

    #[test]
    fn a_token_that_cannot_be_used_is_a_fault_of_the_configuration() {
        let absent = TokenFile { path: "/no/such/token".into(), anywhere: true };
        let fault = absent.token_for(&Address::Unix("/run/bus.sock".into())).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "the token: there is no /no/such/token, make it with `stdio-bus token`"
        );
        assert_eq!(fault.exit_code(), 78);
    }
}
