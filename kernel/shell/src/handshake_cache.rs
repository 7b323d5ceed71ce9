//! Keeps the newest handshake of each pool between two runs of the bus, in one small file.
//!
//! The cache only makes a start quicker, so a file that is missing, damaged or not writable is no error. It is written
//! when a client of a new kind has connected, which is rare, and is not synced to the disk.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use log::debug;
use serde_json::value::{RawValue, to_raw_value};

use kernel_core::Bus;

pub(crate) struct HandshakeCache {
    file: Option<PathBuf>,
}

impl HandshakeCache {
    /// `None`: nothing is kept.
    pub(crate) fn new(file: Option<PathBuf>) -> HandshakeCache {
        HandshakeCache { file }
    }

    pub(crate) fn load(&self, bus: &mut Bus) {
        let Some(file) = &self.file else { return };
        let Ok(text) = fs::read_to_string(file) else { return };
        let handshakes: BTreeMap<String, &RawValue> = serde_json::from_str(&text).unwrap_or_default();
        for (pool, params) in handshakes {
            bus.remember(&pool, params.get().as_bytes());
        }
    }

    pub(crate) fn save_if_changed(&self, bus: &mut Bus) {
        let Some(handshakes) = bus.take_handshakes() else { return };
        let Some(file) = &self.file else { return };
        if let Err(error) = write(file, &handshakes) {
            debug!("{}: {error}", file.display());
        }
    }
}

/// Writes under another name first, so that a reader never sees half of the file.
fn write(file: &Path, handshakes: &[(String, Vec<u8>)]) -> io::Result<()> {
    let mut by_pool: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    for (pool, params) in handshakes {
        if let Ok(params) = serde_json::from_slice(params) {
            by_pool.insert(pool, without_meta(params));
        }
    }
    if let Some(folder) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let unfinished = file.with_extension(format!("{}.tmp", std::process::id()));
    let mut out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
    let written = out.write_all(&serde_json::to_vec(&by_pool)?).and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        let _ = fs::remove_file(unfinished);
    }
    written
}

/// Params without their `_meta`, which makes no difference to a handshake and may hold anything, such as secrets.
fn without_meta(params: Box<RawValue>) -> Box<RawValue> {
    let members: Result<BTreeMap<String, &RawValue>, _> = serde_json::from_str(params.get());
    let rest = members.ok().and_then(|mut members| members.remove("_meta").map(|_| members));
    rest.and_then(|rest| to_raw_value(&rest).ok()).unwrap_or(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn the_file_holds_one_member_per_pool() {
        let folder = TestFolder::new();
        let file = folder.join("state/handshakes.json");
        write(&file, &[("echo".to_owned(), br#"{"protocolVersion": 1}"#.to_vec())]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), r#"{"echo":{"protocolVersion": 1}}"#);
        let params = br#"{"protocolVersion": 1, "_meta": {"key": "secret"}, "n": 1.0e2}"#.to_vec();
        write(&file, &[("echo".to_owned(), params), ("list".to_owned(), b"[1]".to_vec())]).unwrap();
        let expected = r#"{"echo":{"n":1.0e2,"protocolVersion":1},"list":[1]}"#;
        assert_eq!(fs::read_to_string(&file).unwrap(), expected);
        write(&file, &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
    }
}
