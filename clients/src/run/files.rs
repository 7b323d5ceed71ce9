//! Reads and writes files for an agent, inside the folders of the session only.
//!
//! Symbolic links are resolved before a path is checked. A link that replaces the file later is not followed.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc::O_NOFOLLOW;

/// No agent can use more of a file at once.
const MAX_READ_BYTES: u64 = 16 << 20;

pub(super) struct Folders {
    /// Without symbolic links. Relative paths start at the first.
    roots: Vec<PathBuf>,
}

impl Folders {
    /// There is at least one.
    pub(super) fn new<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> io::Result<Folders> {
        Ok(Folders { roots: paths.map(|path| path.canonicalize()).collect::<io::Result<_>>()? })
    }

    /// Resolves a path. Fails if it is outside of the folders, or if its parent does not exist.
    pub(super) fn resolve(&self, path: &str) -> Result<PathBuf, String> {
        let requested = self.roots[0].join(path);
        let real = requested.canonicalize().or_else(|error| match error.kind() {
            ErrorKind::NotFound => {
                let name = requested.file_name().ok_or(ErrorKind::InvalidInput)?;
                Ok(requested.parent().ok_or(ErrorKind::InvalidInput)?.canonicalize()?.join(name))
            }
            _ => Err(error),
        });
        let real = real.map_err(|error: io::Error| format!("{path}: {error}"))?;
        // Writing to a dangling link would create a file outside of the folder.
        let is_dangling = fs::symlink_metadata(&real).is_ok_and(|found| found.is_symlink());
        if is_dangling || !self.roots.iter().any(|root| real.starts_with(root)) {
            return Err(format!("{path} is not inside {}", self.roots[0].display()));
        }
        Ok(real)
    }

    /// `line` counts from 1; `limit` is a number of lines.
    pub(super) fn read(path: &Path, line: Option<u64>, limit: Option<u64>) -> io::Result<String> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a plain file"));
        }
        let file = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW).open(path)?;
        let mut text = String::new();
        file.take(MAX_READ_BYTES).read_to_string(&mut text)?;
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let skipped = count(line.unwrap_or(1).saturating_sub(1));
        let lines = text.split_inclusive('\n').skip(skipped);
        Ok(lines.take(limit.map_or(usize::MAX, count)).collect())
    }

    pub(super) fn write(path: &Path, content: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(O_NOFOLLOW);
        options.open(path)?.write_all(content.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_paths_really_inside_the_folder_resolve() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("work");
        fs::create_dir_all(root.join("sub")).unwrap();
        fs::write(outer.path().join("secret"), "s").unwrap();
        fs::write(root.join("a.txt"), "a").unwrap();
        symlink(outer.path().join("secret"), root.join("link")).unwrap();
        symlink(outer.path().join("nothing yet"), root.join("dangling")).unwrap();
        symlink(outer.path(), root.join("up")).unwrap();
        let other = outer.path().join("other");
        fs::create_dir(&other).unwrap();
        let folder = Folders::new([&root, &other].into_iter()).unwrap();
        assert!(folder.resolve(other.join("new.txt").to_str().unwrap()).is_ok());
        for path in ["a.txt", "sub/../a.txt", "sub/new.txt", root.join("a.txt").to_str().unwrap()] {
            assert!(folder.resolve(path).is_ok(), "{path}");
        }
        for path in
            ["../secret", "link", "dangling", "up/secret", "up/new", "/etc/passwd", "no/such/folder", ".."]
        {
            assert!(folder.resolve(path).is_err(), "{path}");
        }
    }

    #[test]
    fn part_of_a_file_is_read_by_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        Folders::write(&path, "one\ntwo\nthree\n").unwrap();
        let read = |line, limit| Folders::read(&path, line, limit).unwrap();
        assert_eq!(read(None, None), "one\ntwo\nthree\n");
        assert_eq!(read(Some(2), Some(1)), "two\n");
        assert_eq!(read(Some(3), None), "three\n");
        assert_eq!(read(Some(u64::MAX), Some(u64::MAX)), "");
        assert!(Folders::read(folder.path(), None, None).is_err());
    }
}
