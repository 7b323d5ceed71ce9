//! Which bus.json, and which bus: what the commands have in common.

use std::env;
use std::path::{Path, PathBuf};

use clients::Fault;
use kernel::config::Address;

/// The configuration: the one named, else `$STDIO_BUS_CONFIG`, else `./bus.json`.
pub(crate) fn config_path(named: Option<&Path>) -> Result<PathBuf, String> {
    let in_env = || env::var_os("STDIO_BUS_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(in_env) {
        return Ok(path);
    }
    let usual = PathBuf::from("bus.json");
    if usual.exists() {
        return Ok(usual);
    }
    Err("stdio-bus: there is no bus.json in this folder, \
         name one with --config PATH or in the variable STDIO_BUS_CONFIG"
        .to_owned())
}

/// Where a bus of this configuration remembers what it can use after a restart.
pub(crate) fn memory_path(config: &Path) -> Option<PathBuf> {
    let config = config.canonicalize().ok()?;
    let name = |path: &Path| path.to_string_lossy().replace(['/', '%'], "%");
    Some(state_folder()?.join(format!("handshakes{}", name(&config))))
}

/// `$XDG_STATE_HOME/stdio-bus`, else `~/.local/state/stdio-bus`.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("stdio-bus"))
}

/// Where the bus to talk to is.
#[derive(clap::Args)]
pub(crate) struct BusArgs {
    /// The bus listens there [default: what bus.json listens on]
    #[arg(long, value_name = "HOST:PORT", value_parser = clients::address::parse_host)]
    tcp: Option<Address>,
    /// The bus listens on this socket
    #[arg(long, value_name = "PATH", conflicts_with = "tcp")]
    unix: Option<PathBuf>,
    /// The configuration of the bus [default: $STDIO_BUS_CONFIG, else ./bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl BusArgs {
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, Fault> {
        clients::address::find(self.tcp.clone(), self.unix.clone(), || config_path(self.config.as_deref()))
    }
}
