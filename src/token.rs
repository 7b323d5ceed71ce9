//! `token`: creates a token file that only its owner can read.

use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{self, Path, PathBuf};
use std::process::{self, ExitCode};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use clients::exit;
use nix::libc::O_NOFOLLOW;
use workers::folders;

use crate::output::{print, report};

/// 256 bits cannot be guessed.
const TOKEN_BYTES: usize = 32;

const EXAMPLES: &str = "\
Examples:
  stdio-bus token                            creates ~/.config/stdio-bus/token
  stdio-bus token --show                     prints it, and creates it first if there is none
  stdio-bus token --force                    replaces it; a running bus asks for the new one after `stdio-bus reload`

Without --show the token itself is not printed.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where to put it [default: $XDG_CONFIG_HOME/stdio-bus/token, else ~/.config/stdio-bus/token]
    path: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Print the token, and nothing else
    #[arg(long)]
    show: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(path) = args.path.clone().or_else(default_path) else {
        return report("stdio-bus: without HOME, say where to put the token: stdio-bus token PATH", 2);
    };
    if args.show
        && !args.force
        && let Ok(token) = kernel_shell::config::read_token(&path)
    {
        return print(&format!("{token}\n"));
    }
    let created = path::absolute(&path).and_then(|path| Ok((create(&path, args.force)?, path)));
    match created {
        Ok((token, _)) if args.show => print(&format!("{token}\n")),
        Ok((_, path)) => print(&instructions(&path)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let path = path.display();
            report(format_args!("stdio-bus: {path} already exists; --force replaces it"), exit::CANNOT_CREATE)
        }
        Err(error) => report(format_args!("stdio-bus: {}: {error}", path.display()), exit::CANNOT_CREATE),
    }
}

fn default_path() -> Option<PathBuf> {
    Some(folders::config()?.join("token"))
}

fn instructions(path: &Path) -> String {
    let in_home = env::var_os("HOME").and_then(|home| path.strip_prefix(home).ok());
    let file = in_home.map_or(path.to_path_buf(), |inner| Path::new("~").join(inner));
    let file = serde_json::Value::from(file.to_string_lossy());
    format!(
        "The token is in {}, and only you can read it. The bus asks for it with this line in bus.json:\n  \
         \"auth\": {{ \"token_file\": {file} }},\nThe commands of stdio-bus find it there; other clients begin with \
         _bus/hello.\n",
        path.display()
    )
}

/// Always creates a new file: an existing file or link is never written into.
fn create(path: &Path, replace: bool) -> io::Result<String> {
    let mut seed = [0; TOKEN_BYTES];
    getrandom::fill(&mut seed)?;
    // These characters need no quoting anywhere.
    let token = BASE64_URL_SAFE_NO_PAD.encode(seed);
    if !replace {
        write_secret(path, &token)?;
        return Ok(token);
    }
    // The new file is renamed over the old one, so that a reader always finds a whole token.
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let new_path = path.with_file_name(format!(".{name}.{}", process::id()));
    write_secret(&new_path, &token)?;
    fs::rename(&new_path, path).inspect_err(|_| drop(fs::remove_file(&new_path)))?;
    Ok(token)
}

/// Writes a secret into a new file that only this user can read, in a folder that is made for this user if there is
/// none. What is there already is not touched.
pub(crate) fn write_secret(path: &Path, secret: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(O_NOFOLLOW).open(path)?;
    let written = writeln!(file, "{secret}").and_then(|()| file.sync_all());
    // A part of it is useless.
    written.inspect_err(|_| drop(fs::remove_file(path)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn a_token_is_private_and_replaced_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/token");
        let first = create(&path, false).unwrap();
        assert_eq!(first.len(), 43);
        assert_eq!(kernel_shell::config::read_token(&path), Ok(first.clone()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        assert_eq!(create(&path, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(kernel_shell::config::read_token(&path), Ok(first.clone()));
        let second = create(&path, true).unwrap();
        assert_ne!(first, second);
        assert_eq!(kernel_shell::config::read_token(&path), Ok(second));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (link, precious) = (folder.path().join("token"), folder.path().join("precious"));
        symlink(&precious, &link).unwrap();
        assert_eq!(create(&link, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(!precious.exists());
        fs::write(&precious, "data").unwrap();
        create(&link, true).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "data");
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
    }
}
