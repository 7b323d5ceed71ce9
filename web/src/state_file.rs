//! A small file of JSON that only its user can read, and that several programs change under a lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a file looks like from outside: as long as it is the same, so is what is in it.
pub(crate) type Stamp = (u64, i64, i64, u64);

pub(crate) fn stamp(path: &Path) -> Option<Stamp> {
    let about = fs::metadata(path).ok()?;
    Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
}

/// A file that is not there, or that nothing can be read from, has nothing in it.
pub(crate) fn read<T: DeserializeOwned + Default>(path: &Path) -> io::Result<T> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}

/// Changes what is in the file, and returns it.
pub(crate) fn update<T: Serialize + DeserializeOwned + Default, R>(
    path: &Path,
    change: impl FnOnce(&mut T) -> R,
) -> io::Result<(T, R)> {
    let _lock = lock(path)?;
    let mut state = read(path)?;
    let outcome = change(&mut state);
    write(path, &state)?;
    Ok((state, outcome))
}

/// The file is replaced as a whole, so that a reader never sees half of it.
fn write(path: &Path, state: &impl Serialize) -> io::Result<()> {
    let fresh = with_ending(path, ".new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(state)?)?;
    drop(file);
    fs::rename(&fresh, path)
}

fn lock(path: &Path) -> io::Result<Flock<File>> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(with_ending(path, ".lock"))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno.into())
}

/// The same path with this behind it.
pub(crate) fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
