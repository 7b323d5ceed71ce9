//! The transcript of a bus under test that keeps what is said in `@dir/history`, and has one session.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::bus::{Bus, PATIENCE};

/// Where the end of a transcript is looked for.
const END_BYTES: u64 = 4096;

/// The key `history` of its configuration.
pub(crate) fn in_folder() -> Value {
    json!({ "folder": "@dir/history" })
}

pub(crate) fn path(bus: &Bus) -> io::Result<PathBuf> {
    let mut paths = fs::read_dir(bus.folder().join("history"))?.flatten().map(|entry| entry.path());
    let found = paths.find(|path| path.extension().is_some_and(|ending| ending == "ndjson"));
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Waits until its last lines have this text.
pub(crate) fn until_it_ends_with(bus: &Bus, text: &str) -> io::Result<()> {
    if bus.until(PATIENCE, |bus| end(bus).is_ok_and(|end| end.contains(text))) {
        return Ok(());
    }
    let log = bus.log();
    Err(io::Error::other(format!("the transcript is not written to its end within {PATIENCE:?}\n{log}")))
}

fn end(bus: &Bus) -> io::Result<String> {
    let mut file = File::open(path(bus)?)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(END_BYTES)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}
