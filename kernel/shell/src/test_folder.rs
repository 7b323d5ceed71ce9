//! A temporary folder for tests.

use std::env;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::unistd::mkdtemp;

/// The umask that a socket file is made with belongs to the whole process, so only one test at a time makes files.
static MAKING_FILES: Mutex<()> = Mutex::new(());

/// A folder of mode 0700. It is removed when it is dropped. A test can have only one at a time.
pub(crate) struct TestFolder {
    path: PathBuf,
    _lock: MutexGuard<'static, ()>,
}

impl TestFolder {
    pub(crate) fn new() -> TestFolder {
        let lock = MAKING_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        TestFolder { path: mkdtemp(&env::temp_dir().join("bus-test-XXXXXX")).unwrap(), _lock: lock }
    }
}

impl Deref for TestFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
