//! The flags that all commands of the cluster share: how it is reached, and who we are there.

use std::path::PathBuf;

use clients::Fault;
use kernel_core::config::ClusterConfig;
use kernel_shell::config::{self, ClientConfig};

use crate::paths::config_path;

/// The cluster to talk to.
#[derive(clap::Args)]
pub(crate) struct ClusterArgs {
    /// A NATS server, nats://HOST:PORT or tls://HOST:PORT; repeatable [default: cluster.url of bus.json]
    #[arg(long, value_name = "URL", value_parser = config::parse_server)]
    pub(crate) url: Vec<String>,
    #[command(flatten)]
    pub(crate) who: WhoArgs,
    /// The configuration of the bus [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

/// Who we are to the servers.
#[derive(clap::Args)]
pub(crate) struct WhoArgs {
    /// The name of this bus [default: name of bus.json, else that of the machine]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A .creds file [default: cluster.creds of bus.json]
    #[arg(long, value_name = "FILE")]
    creds: Option<PathBuf>,
    /// A file with the seed of an nkey [default: cluster.nkey of bus.json]
    #[arg(long, value_name = "FILE", conflicts_with = "creds")]
    nkey: Option<PathBuf>,
    /// Certificates of the authority of the servers, in PEM [default: cluster.ca of bus.json, else the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Where this machine is; nodes of the same zone come first [default: cluster.zone of bus.json]
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
}

impl ClusterArgs {
    /// The cluster, and the name of this bus if it has one.
    pub(crate) fn resolve(&self) -> Result<(ClusterConfig, Option<String>), Fault> {
        self.who.resolve(&self.url, || config_path(self.config.as_deref()))
    }
}

impl WhoArgs {
    /// What the flags say goes before what bus.json says. If they name the servers, bus.json is not needed.
    pub(crate) fn resolve(
        &self,
        url: &[String],
        path: impl FnOnce() -> Result<PathBuf, String>,
    ) -> Result<(ClusterConfig, Option<String>), Fault> {
        let (mut cluster, name) = match url {
            [] => configured(path)?,
            url => (ClusterConfig { url: url.to_vec(), ..ClusterConfig::at("") }, None),
        };
        if self.creds.is_some() || self.nkey.is_some() {
            (cluster.creds, cluster.nkey) = (self.creds.clone(), self.nkey.clone());
        }
        cluster.ca = self.ca.clone().or(cluster.ca);
        cluster.zone = self.zone.clone().or(cluster.zone);
        Ok((cluster, self.name.clone().or(name)))
    }
}

fn configured(
    path: impl FnOnce() -> Result<PathBuf, String>,
) -> Result<(ClusterConfig, Option<String>), Fault> {
    let path = path().map_err(|why| Fault::NoAddress(format!("{why}; name a NATS server with --url")))?;
    let config = ClientConfig::load(&path).map_err(Fault::Config)?;
    match config.cluster {
        Some(cluster) => Ok((cluster, config.name.map(String::from))),
        None => Err(Fault::NoAddress(format!(
            "{} has no \"cluster\": write \"cluster\": {{\"url\": \"nats://HOST:4222\"}} there, or name a server with \
             --url",
            path.display()
        ))),
    }
}
