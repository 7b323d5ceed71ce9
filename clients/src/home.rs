//! `~/` in what a user has typed where no shell expands it.

use std::path::{Path, PathBuf};

/// The path, with `~/` as the home folder.
pub fn in_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}
