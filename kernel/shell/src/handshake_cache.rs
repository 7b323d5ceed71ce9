//! What the bus remembers from one life to the next: the newest handshake of each pool, in one small file.
//!
//! It only makes a start quicker, so a file that is missing, damaged or cannot be written is no fault of the
//! bus's. It is written when a client of a new kind has come, which is rare, and is not waited for on the disk.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use log::debug;
use serde_json::value::RawValue;

use kernel_core::Bus;

pub(crate) struct Memory {
    file: Option<PathBuf>,
}

impl Memory {
    /// None: nothing is remembered.
    pub(crate) fn new(file: Option<PathBuf>) -> Memory {
        Memory { file }
    }

    pub(crate) fn recall(&self, bus: &mut Bus) {
        let Some(text) = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok()) else { return };
        let known: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap_or_default();
        for (pool, params) in known {
            bus.remember(&pool, params.get().as_bytes());
        }
    }

    /// Writes down what has changed, if anything has.
    pub(crate) fn keep(&self, bus: &mut Bus) {
        let Some(handshakes) = bus.take_handshakes() else { return };
        let Some(file) = &self.file else { return };
        if let Err(fault) = write(file, &handshakes) {
            debug!("{}: {fault}", file.display());
        }
    }
}

/// Under another name first, so that a reader never sees half of it.
fn write(file: &Path, handshakes: &[(String, Vec<u8>)]) -> io::Result<()> {
    let known: BTreeMap<&str, &RawValue> = handshakes
        .iter()
        .filter_map(|(pool, params)| Some((pool.as_str(), serde_json::from_slice(params).ok()?)))
        .collect();
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let unfinished = file.with_extension(format!("{}.tmp", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let written = out.write_all(&serde_json::to_vec(&known)?).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _ = fs::remove_file(unfinished);
    }
    written
}

#[cfg(test)]
mod tests {
    use nix::unistd::mkdtemp;

    use super::*;

    #[test]
    fn what_is_written_can_be_read_again() {
        let root = mkdtemp(&std::env::temp_dir().join("bus-memory-XXXXXX")).unwrap();
        let file = root.join("state/handshakes.json");
        write(&file, &[("echo".to_owned(), br#"{"protocolVersion": 1}"#.to_vec())]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"echo":{"protocolVersion": 1}}"#);
        write(&file, &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
        fs::remove_dir_all(root).unwrap();
    }
}
