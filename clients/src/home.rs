//! `~/` in what a user has typed where no shell expands it, and in what is shown to a user.

use std::env;
use std::path::{Path, PathBuf};

/// The path, with `~/` as the home folder.
pub fn in_home(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => path.into(),
    }
}

/// The path as people write it: `~` stands for the home folder.
pub fn with_tilde(path: &str) -> String {
    let home = env::var("HOME").ok().filter(|home| home.len() > 1);
    let below = home.as_deref().and_then(|home| path.strip_prefix(home));
    match below {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("~{rest}"),
        _ => path.to_owned(),
    }
}
