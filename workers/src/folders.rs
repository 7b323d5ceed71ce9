//! The user's folders of stdio-bus, by the XDG Base Directory Specification.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::unistd::geteuid;

/// `$XDG_STATE_HOME/stdio-bus`, else `~/.local/state/stdio-bus`.
pub fn state() -> Option<PathBuf> {
    folder("XDG_STATE_HOME", ".local/state", |name| std::env::var_os(name))
}

/// `$XDG_CONFIG_HOME/stdio-bus`, else `~/.config/stdio-bus`.
pub fn config() -> Option<PathBuf> {
    folder("XDG_CONFIG_HOME", ".config", |name| std::env::var_os(name))
}

/// `$XDG_DATA_HOME/stdio-bus`, else `~/.local/share/stdio-bus`.
pub fn data() -> Option<PathBuf> {
    folder("XDG_DATA_HOME", ".local/share", |name| std::env::var_os(name))
}

/// The folder of what lives no longer than its process: `$XDG_RUNTIME_DIR/stdio-bus`, else `/run/user/UID/stdio-bus`,
/// else the state folder. A folder that is missing or of another user counts as unset: `su` and `sudo` keep it.
pub fn runtime() -> Option<PathBuf> {
    let own = geteuid().as_raw();
    let is_ours =
        |path: &PathBuf| path.is_absolute() && path.metadata().is_ok_and(|it| it.is_dir() && it.uid() == own);
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(is_ours);
    // A program that was started without an environment still finds what others put there.
    let usual = || Some(PathBuf::from(format!("/run/user/{own}"))).filter(is_ours);
    named.or_else(usual).map(|base| base.join("stdio-bus")).or_else(state)
}

/// A relative path in a variable counts as unset.
fn folder(name: &str, in_home: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(name).or_else(|| Some(absolute("HOME")?.join(in_home)))?;
    Some(base.join("stdio-bus"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_stored_where_the_system_keeps_state() {
        let state = |variables: &[(&str, &str)]| {
            let find = |name: &str| Some(variables.iter().find(|(known, _)| *known == name)?.1.into());
            folder("XDG_STATE_HOME", ".local/state", find)
        };
        let expected = |path: &str| Some(PathBuf::from(path));
        assert_eq!(state(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]), expected("/s/stdio-bus"));
        let in_home = expected("/h/.local/state/stdio-bus");
        assert_eq!(state(&[("XDG_STATE_HOME", "s"), ("HOME", "/h")]), in_home);
        assert_eq!(state(&[]), None);
    }
}
