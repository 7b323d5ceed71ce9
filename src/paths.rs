//! The paths of bus.json and of the files that belong to it.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clients::UserBus;
use kernel_shell::UserSocket;
use workers::folders;

/// The configuration of the folder in which a command is called.
const HERE: &str = "bus.json";

/// `--config`, else `$STDIO_BUS_CONFIG`, else `./bus.json`, else `$XDG_CONFIG_HOME/stdio-bus/bus.json`.
pub(crate) fn config_path(named: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(path) = named_config(named) {
        return Ok(path);
    }
    if has_config_here() {
        return Ok(HERE.into());
    }
    let of_user = user_config();
    if let Some(path) = of_user.clone().filter(|path| path.exists()) {
        return Ok(path);
    }
    let nor = of_user.map(|path| format!(", and no {}", path.display())).unwrap_or_default();
    Err(format!(
        "there is no bus.json in this folder{nor}: \
         create one with `stdio-bus detect --write`, or name one with --config PATH or $STDIO_BUS_CONFIG"
    ))
}

/// The configuration that the user names for this command, with `--config` or with `$STDIO_BUS_CONFIG`.
pub(crate) fn named_config(named: Option<&Path>) -> Option<PathBuf> {
    let in_env = || env::var_os("STDIO_BUS_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    named.map(Path::to_owned).or_else(in_env)
}

/// Whether the folder in which the command is called has a configuration of its own.
pub(crate) fn has_config_here() -> bool {
    Path::new(HERE).exists()
}

/// The configuration to which pools are added: the one that is named, with `here` that of this folder, else that of the
/// user, whose folder is made.
pub(crate) fn config_to_write(named: Option<&Path>, here: bool) -> Result<PathBuf, String> {
    if let Some(path) = named.map(Path::to_owned).or_else(|| here.then(|| HERE.into())) {
        return Ok(path);
    }
    let Some(path) = named_config(None).or_else(user_config) else { return Ok(HERE.into()) };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists()) {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    Ok(path)
}

/// The configuration of the user, for all folders that have none of their own.
pub(crate) fn user_config() -> Option<PathBuf> {
    folders::config().map(|folder| folder.join("bus.json"))
}

/// The socket at which commands find the running bus of this user, from every folder.
pub(crate) fn user_socket() -> Option<PathBuf> {
    Some(folders::runtime()?.join("bus.sock"))
}

/// Where the running bus of this user is found, if one runs.
pub(crate) fn user_bus() -> Option<UserBus> {
    let socket = user_socket()?;
    Some(UserBus { config: UserSocket::config_link(&socket), socket })
}

/// The configuration of the running bus of this user.
pub(crate) fn running_config() -> Option<PathBuf> {
    fs::canonicalize(user_bus()?.config).ok()
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

/// The folder of transcripts, unless the configuration names another.
pub(crate) fn history_folder() -> Option<PathBuf> {
    Some(folders::state()?.join("history"))
}

/// The folder in which running buses of this user keep the marks of their processes.
pub(crate) fn mark_folder() -> Option<PathBuf> {
    Some(folders::state()?.join("marks"))
}
