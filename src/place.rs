//! Which bus.json, and which bus: what the commands have in common.

use std::env;
use std::ffi::OsString;
use std::path::{self, Path, PathBuf};

use clients::address::Named;
use clients::{Fault, Way};
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
    Err("there is no bus.json in this folder, \
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
    own_folder("XDG_STATE_HOME", ".local/state")
}

/// `$XDG_CONFIG_HOME/stdio-bus`, else `~/.config/stdio-bus`.
pub(crate) fn config_folder() -> Option<PathBuf> {
    own_folder("XDG_CONFIG_HOME", ".config")
}

fn own_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let folder = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = folder(variable).or_else(|| Some(folder("HOME")?.join(in_home)))?;
    Some(base.join("stdio-bus"))
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
    /// A file that holds the token that the bus asks for [default: the auth.token_file of bus.json]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The configuration of the bus [default: $STDIO_BUS_CONFIG, else ./bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl BusArgs {
    pub(crate) fn way(&self) -> Result<Way, Fault> {
        let Self { tcp, unix, token_file, config } = self;
        let named = Named { tcp: tcp.clone(), unix: unix.clone(), token_file: token_file.clone() };
        Way::find(named, || config_path(config.as_deref()))
    }

    /// The arguments of a `serve` that is found there, and the folder of its configuration.
    pub(crate) fn serve_args(&self) -> Result<(Vec<OsString>, PathBuf), Fault> {
        let config = self.absolute_config()?;
        let folder = config.parent().unwrap_or(Path::new("/")).to_owned();
        let mut args = vec!["--config".into(), config.into_os_string()];
        args.extend(self.named_address()?);
        Ok((args, folder))
    }

    /// The arguments of a `connect` that finds it from any folder. One that `starts` a bus needs its configuration.
    pub(crate) fn connect_args(&self, starts: bool) -> Result<Vec<String>, Fault> {
        let mut args = self.named_address()?;
        if starts || args.is_empty() || self.config.is_some() {
            args.extend(["--config".into(), self.absolute_config()?.into_os_string()]);
        }
        if let Some(file) = &self.token_file {
            args.extend(["--token-file".into(), absolute(file)?.into_os_string()]);
        }
        Ok(args.iter().map(|word| word.to_string_lossy().into_owned()).collect())
    }

    fn absolute_config(&self) -> Result<PathBuf, Fault> {
        absolute(&config_path(self.config.as_deref()).map_err(Fault::NoAddress)?)
    }

    fn named_address(&self) -> Result<Vec<OsString>, Fault> {
        Ok(match (&self.tcp, &self.unix) {
            (Some(tcp), _) => {
                vec!["--tcp".into(), tcp.to_string().trim_start_matches("tcp://").into()]
            }
            (None, Some(unix)) => vec!["--unix".into(), absolute(unix)?.into_os_string()],
            (None, None) => Vec::new(),
        })
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Fault> {
    path::absolute(path).map_err(|error| Fault::Failed(format!("{}: {error}", path.display())))
}
