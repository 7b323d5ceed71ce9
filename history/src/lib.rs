//! What was said through the bus, kept on disk: one file a session, which is the truth, and an index beside the files,
//! which can be thrown away.

#![forbid(unsafe_code)]

#[cfg(feature = "process")]
pub mod archive;
pub mod cut;
pub mod earlier;
pub mod entry;
pub mod export;
pub mod folder;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(feature = "process")]
pub mod index;
pub mod joiner;
pub mod message;
pub mod primer;
pub mod reader;
pub mod retention;
pub mod spent;
pub mod store;
pub mod story;
pub mod usage;
#[cfg(feature = "process")]
pub mod writer;

pub use folder::{Folder, SessionId};
