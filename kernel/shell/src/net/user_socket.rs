//! The socket at which the commands of a user find the running bus, whatever folder they are called in.
//!
//! One bus of a user has it: the first that is started. Beside the socket a symbolic link named `bus.json` points to
//! the configuration of that bus, because a command may need its token file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kernel_core::config::Address;

/// Where the commands of this user look for a bus.
#[derive(Clone, Debug)]
pub struct UserSocket {
    /// The path of the socket.
    pub path: PathBuf,
    /// The configuration of the bus, as an absolute path. `None`: it was not read from a file.
    pub config: Option<PathBuf>,
}

impl UserSocket {
    /// The symbolic link beside the socket at `path` that points to the configuration of its bus.
    pub fn config_link(path: &Path) -> PathBuf {
        path.with_file_name("bus.json")
    }

    pub(crate) fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }

    /// The link that the program before this one has made.
    pub(crate) fn config_link_of_before(&self) -> ConfigLink {
        ConfigLink { path: UserSocket::config_link(&self.path) }
    }

    /// Points to the configuration. Call it only while the bus listens at the socket, because the lock of the socket
    /// keeps other buses from changing the link.
    pub(crate) fn link_config(&self) -> ConfigLink {
        let path = UserSocket::config_link(&self.path);
        let is_ours = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        if is_ours {
            let _ = fs::remove_file(&path);
        }
        if let Some(config) = &self.config {
            let _ = symlink(config, &path);
        }
        ConfigLink { path }
    }
}

/// The symbolic link to the configuration. It is removed when this is dropped.
pub(crate) struct ConfigLink {
    path: PathBuf,
}

impl Drop for ConfigLink {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_symlink()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;

    #[test]
    fn the_link_names_the_configuration_while_the_bus_has_the_socket() {
        let folder = TestFolder::new();
        let link = folder.join("bus.json");
        symlink("/of/a/killed/bus.json", &link).unwrap();
        let user =
            UserSocket { path: folder.join("bus.sock"), config: Some("/home/ann/project/bus.json".into()) };
        let linked = user.link_config();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/home/ann/project/bus.json"));
        drop(linked);
        assert!(fs::symlink_metadata(&link).is_err());
    }

    #[test]
    fn a_file_in_the_place_of_the_link_is_left_alone() {
        let folder = TestFolder::new();
        fs::write(folder.join("bus.json"), "precious").unwrap();
        let user = UserSocket { path: folder.join("bus.sock"), config: Some("/x/bus.json".into()) };
        drop(user.link_config());
        assert_eq!(fs::read(folder.join("bus.json")).unwrap(), b"precious");
    }
}
