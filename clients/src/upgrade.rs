//! `upgrade`: asks a bus to become another program.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use crate::connection::Connection;
use crate::{Fault, Target};

/// The bus asks the other program first, which may take a while for a bus with much to hand over.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a bus says of the program that it has become, or could become.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Upgraded {
    /// The process, which is the same as before.
    pub pid: Option<u64>,
    /// The version of the program.
    pub version: String,
    /// What went on, beside the client that has asked.
    pub clients: u64,
    /// All open sessions.
    pub sessions: u64,
    /// Those in which an agent works.
    pub turns: u64,
    /// How long nobody was served.
    pub pause_us: u64,
}

/// Asks a bus to become the program at this path, or the one that it was started by. `check`: only whether it could.
pub fn upgrade(target: &Target, binary: Option<&Path>, check: bool) -> Result<Upgraded, Fault> {
    let binary = match binary.map(|binary| binary.to_str().ok_or(binary)) {
        None => None,
        Some(Ok(binary)) => Some(binary),
        Some(Err(binary)) => {
            return Err(Fault::Failed(format!("{}: the name is not Unicode", binary.display())));
        }
    };
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    let greeted = connection.hello("stdio-bus upgrade", None);
    let params = json!({ "binary": binary, "check": check });
    let answer = greeted.and_then(|()| connection.request("_bus/upgrade", params));
    Ok(serde_json::from_str(answer?.get()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_bus::FakeBus;

    #[test]
    fn the_bus_is_asked_and_tells_what_it_has_become() {
        let result = r#"{"pid":7,"version":"0.2.0","clients":1,"sessions":2,"turns":3,"pause_us":4,"new":5}"#;
        let bus = FakeBus::answering(&[&[&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)]]);
        let upgraded = upgrade(&bus.target(), Some(Path::new("/b")), true).unwrap();
        assert_eq!((upgraded.pid, upgraded.turns, upgraded.version.as_str()), (Some(7), 3, "0.2.0"));
        let asked = bus.received().join("");
        assert!(asked.contains(r#""method":"_bus/upgrade""#) && asked.contains(r#""/b""#), "{asked}");
    }
}
