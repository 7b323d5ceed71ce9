//! The flags that all client commands share: which bus to connect to.

use std::ffi::OsString;
use std::path::{self, Path, PathBuf};

use clients::address::TargetArgs;
use clients::{Fault, Target, UserBus};
use kernel_core::config::Address;

use crate::paths::{self, config_path};

/// The bus to talk to.
#[derive(clap::Args)]
pub(crate) struct BusArgs {
    /// Address of the bus [default: listen of bus.json, else the bus of this user that is running]
    #[arg(long, alias = "port", value_name = "HOST:PORT", value_parser = clients::address::parse_host)]
    tcp: Option<Address>,
    /// Unix socket of the bus
    #[arg(long, value_name = "PATH", conflicts_with = "tcp")]
    unix: Option<PathBuf>,
    /// File with the token of the bus [default: auth.token_file of bus.json]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The configuration of the bus [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl BusArgs {
    /// The bus that the flags name, else that of bus.json, else the running bus of this user.
    pub(crate) fn target(&self) -> Result<Target, Fault> {
        self.resolve(paths::user_bus())
    }

    /// Like `target`, for a command that ends or changes a bus: where a folder has a bus.json, its bus is meant and no
    /// other.
    pub(crate) fn own_target(&self) -> Result<Target, Fault> {
        self.resolve(if paths::has_config_here() { None } else { paths::user_bus() })
    }

    fn resolve(&self, user_bus: Option<UserBus>) -> Result<Target, Fault> {
        let Self { tcp, unix, token_file, config } = self;
        let named = TargetArgs { tcp: tcp.clone(), unix: unix.clone(), token_file: token_file.clone() };
        let user_bus = user_bus.filter(|_| paths::named_config(config.as_deref()).is_none());
        Target::resolve(named, || config_path(config.as_deref()), user_bus)
    }

    /// The file that the configuration of the bus is in.
    pub(crate) fn config_path(&self) -> Result<PathBuf, String> {
        config_path(self.config.as_deref()).or_else(|why| paths::running_config().ok_or(why))
    }

    /// The arguments of a `serve` that these flags find, and the folder of its configuration.
    pub(crate) fn serve_args(&self) -> Result<(Vec<OsString>, PathBuf), Fault> {
        let config = self.absolute_config()?;
        let folder = config.parent().unwrap_or(Path::new("/")).to_owned();
        let mut args = vec!["--config".into(), config.into_os_string()];
        args.extend(self.named_address()?);
        Ok((args, folder))
    }

    /// The arguments of a `connect` that finds the bus from any folder. One that `starts` a bus needs its
    /// configuration.
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
        absolute(&self.config_path().map_err(Fault::NoAddress)?)
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
