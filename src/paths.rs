//! The paths of bus.json and of the files that belong to it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use workers::folders;

/// `--config`, else `$STDIO_BUS_CONFIG`, else `./bus.json`, else `$XDG_CONFIG_HOME/stdio-bus/bus.json`.
pub(crate) fn config_path(named: Option<&Path>) -> Result<PathBuf, String> {
    let in_env = || env::var_os("STDIO_BUS_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.map(Path::to_owned).or_else(in_env) {
        return Ok(path);
    }
    let here = PathBuf::from("bus.json");
    if here.exists() {
        return Ok(here);
    }
    let of_user = folders::config().map(|folder| folder.join("bus.json"));
    if let Some(path) = of_user.clone().filter(|path| path.exists()) {
        return Ok(path);
    }
    let nor = of_user.map(|path| format!(", and no {}", path.display())).unwrap_or_default();
    Err(format!(
        "there is no bus.json in this folder{nor}: \
         create one with `stdio-bus detect --write`, or name one with --config PATH or $STDIO_BUS_CONFIG"
    ))
}

/// The file in which a bus of this configuration keeps handshakes across restarts.
pub(crate) fn handshake_cache_path(config: &Path) -> Option<PathBuf> {
    let config = config.canonicalize().ok()?;
    Some(folders::state()?.join(format!("handshakes{}", path_as_name(&config))))
}

/// Removes the handshakes of configurations that are no longer there.
pub(crate) fn forget_old_handshakes() {
    let Some(files) = folders::state().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        // A path with a percent sign reads as another one. Then only the next start is a little slower.
        let config = name
            .to_str()
            .and_then(|name| name.strip_prefix("handshakes%"))
            .map(|path| path.replace('%', "/"));
        if config.is_some_and(|config| !Path::new("/").join(config).exists()) {
            let _ = fs::remove_file(file.path());
        }
    }
}

fn path_as_name(path: &Path) -> String {
    path.to_string_lossy().replace(['/', '%'], "%")
}

/// The file in which the web door of a bus of this configuration keeps its codes and tokens.
#[cfg(feature = "web")]
pub(crate) fn web_state_path(config: &Path) -> Option<PathBuf> {
    Some(folders::state()?.join(format!("web{}", path_as_name(&config.canonicalize().ok()?))))
}

/// The folder in which running buses of this user keep the marks of their processes.
pub(crate) fn mark_folder() -> Option<PathBuf> {
    Some(folders::state()?.join("marks"))
}
