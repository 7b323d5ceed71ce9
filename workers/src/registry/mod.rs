//! The ACP registry: which agents there are, and how each is installed and started.
//!
//! `index` reads the registry's index, `source` finds and keeps it, `install` downloads an archive, and `unpack` writes
//! its files. Nothing of an agent is started here.

mod index;
mod install;
mod source;
mod unpack;

pub use index::{Binary, Entry, Index, Kind, Launch, Package};
pub use install::{Checksum, install, installed_program};
pub use source::{Loaded, Source};
