//! Worker processes: how they are started, found and ended.

pub(crate) mod child;
pub(crate) mod command;
pub(crate) mod companion;
pub(crate) mod env_mark;
pub(crate) mod mark_file;
pub(crate) mod orphan_guard;
pub(crate) mod pre_exec;
pub(crate) mod spawn;
pub(crate) mod starter;
pub(crate) mod stderr;
pub(crate) mod successor;
pub(crate) mod usage;
pub(crate) mod wait;

use std::io;
use std::path::Path;
use std::process::{Child, Stdio};

use kernel_core::config::PoolConfig;

use pre_exec::{InheritedLimits, Role};
use starter::Starter;

/// Starts one worker of a pool without a bus, by the command and in the environment that the bus would use. It
/// leads its own process group, and its stdin, stdout and stderr are pipes.
pub fn spawn_worker(pool: &PoolConfig, this_binary: &Path) -> io::Result<Child> {
    let launch = command::launch(pool, pool.nodes.first().map(|node| &**node), this_binary)
        .map_err(|fault| io::Error::from_raw_os_error(fault.errno))?;
    let starter = Starter::new(this_binary, InheritedLimits::default());
    let (mut child, starting) = starter.start(&launch, Role::Worker, |command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    })?;
    starting.wait(&mut child)?;
    Ok(child)
}
