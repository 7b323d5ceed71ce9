//! Writes the files of an archive into a new folder, and nothing anywhere else.
//!
//! Names that leave the folder, links that point out of it, files behind links, devices and hard links end it, and so
//! does more than any agent needs.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::MultiGzDecoder;
use tar::EntryType;
use zip::ZipArchive;

const FILES_MAX: usize = 100_000;
const BYTES_MAX: u64 = 4 << 30;
/// The type bits of a symbolic link in a Unix mode.
const LINK_TYPE: u32 = 0o120_000;
const TYPE_BITS: u32 = 0o170_000;
/// No path of a link is longer.
const TARGET_BYTES_MAX: u64 = 4096;

/// Unpacks the archive by the ending of its `name` into `folder`, which is new. A file of another kind is the program
/// itself, and is called `program`.
pub(super) fn unpack(archive: &Path, name: &str, folder: &Path, program: &Path) -> Result<(), String> {
    let name = name.split(['?', '#']).next().unwrap_or_default().to_lowercase();
    let file = File::open(archive).map_err(|error| error.to_string())?;
    let mut target = Target::new(folder, FILES_MAX, BYTES_MAX)?;
    let is = |ending: &[&str]| ending.iter().any(|ending| name.ends_with(ending));
    if is(&[".zip"]) {
        target.unzip(file)
    } else if is(&[".tar.gz", ".tgz"]) {
        target.untar(MultiGzDecoder::new(BufReader::new(file)))
    } else if is(&[".tar.bz2", ".tbz2"]) {
        // There is no decoder with a licence that we may use, but every system has the program.
        let mut child = Command::new("bzip2").arg("-dc").stdin(file).stdout(Stdio::piped()).spawn();
        let child = child.as_mut().map_err(|error| format!("bzip2 cannot be started: {error}"))?;
        let done = target.untar(child.stdout.take().expect("piped"));
        let _ = child.kill();
        let _ = child.wait();
        done
    } else if is(&[".dmg", ".pkg", ".msi", ".deb", ".rpm", ".appimage", ".xz", ".zst", ".7z"]) {
        Err(format!("archives such as {name} are not unpacked"))
    } else {
        target.file(program, file, 0o755)
    }
}

struct Target<'a> {
    folder: &'a Path,
    files_left: usize,
    bytes_left: u64,
}

impl<'a> Target<'a> {
    fn new(folder: &'a Path, files_max: usize, bytes_max: u64) -> Result<Target<'a>, String> {
        DirBuilder::new().mode(0o700).create(folder).map_err(|error| error.to_string())?;
        Ok(Target { folder, files_left: files_max, bytes_left: bytes_max })
    }

    fn untar(&mut self, tar: impl Read) -> Result<(), String> {
        let mut archive = tar::Archive::new(tar);
        for entry in archive.entries().map_err(|error| error.to_string())? {
            let mut entry = entry.map_err(|error| error.to_string())?;
            let path = entry.path().map_err(|error| error.to_string())?.into_owned();
            let mode = entry.header().mode().unwrap_or(0o644);
            match entry.header().entry_type() {
                EntryType::Directory => self.folder(&path)?,
                EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                    self.file(&path, &mut entry, mode)?;
                }
                EntryType::Symlink => {
                    let to = entry.link_name().map_err(|error| error.to_string())?;
                    self.link(&path, &to.unwrap_or_default())?;
                }
                EntryType::XGlobalHeader | EntryType::XHeader => {}
                other => return Err(format!("{}: it is a {other:?}, which no agent needs", path.display())),
            }
        }
        Ok(())
    }

    fn unzip(&mut self, file: File) -> Result<(), String> {
        let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
        for at in 0..archive.len() {
            let mut entry = archive.by_index(at).map_err(|error| error.to_string())?;
            let path = PathBuf::from(entry.name().map_err(|error| error.to_string())?.into_owned());
            let mode = entry.unix_mode().unwrap_or(0o644);
            if entry.is_dir() {
                self.folder(&path)?;
            } else if mode & TYPE_BITS == LINK_TYPE {
                let mut to = String::new();
                let read = entry.by_ref().take(TARGET_BYTES_MAX).read_to_string(&mut to);
                read.map_err(|error| error.to_string())?;
                self.link(&path, Path::new(&to))?;
            } else {
                self.file(&path, &mut entry, mode)?;
            }
        }
        Ok(())
    }

    fn folder(&mut self, path: &Path) -> Result<(), String> {
        let path = self.place(path)?;
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| error.to_string())
    }

    fn file(&mut self, path: &Path, from: impl Read, mode: u32) -> Result<(), String> {
        let place = self.place(path)?;
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        // Only the right to run it is taken over.
        let mode = if mode & 0o111 == 0 { 0o600 } else { 0o700 };
        // An existing name, a link among them, is never written to.
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(place).map_err(failed)?;
        let written = io::copy(&mut from.take(self.bytes_left + 1), &mut file).map_err(failed)?;
        self.bytes_left =
            self.bytes_left.checked_sub(written).ok_or("it is larger than any agent needs to be")?;
        Ok(())
    }

    fn link(&mut self, path: &Path, to: &Path) -> Result<(), String> {
        let place = self.place(path)?;
        let names = path.components().filter(|part| matches!(part, Component::Normal(_))).count();
        let mut depth = names.saturating_sub(1);
        let mut goes_down = false;
        for part in to.components() {
            match part {
                Component::Normal(_) => goes_down = true,
                Component::CurDir => {}
                // Behind a name, which may be a link itself, it would lead anywhere.
                Component::ParentDir if depth > 0 && !goes_down => depth -= 1,
                _ => return Err(format!("{}: it is a link out of its folder", path.display())),
            }
        }
        symlink(to, place).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Where a file of the archive goes. Its folders are made.
    fn place(&mut self, path: &Path) -> Result<PathBuf, String> {
        self.files_left = self.files_left.checked_sub(1).ok_or("it has more files than any agent needs")?;
        let mut place = self.folder.to_owned();
        for part in path.components() {
            match part {
                Component::Normal(name) => {
                    if place.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
                        return Err(format!("{}: it lies behind a link", path.display()));
                    }
                    place.push(name);
                }
                Component::CurDir => {}
                _ => return Err(format!("{}: it would leave its folder", path.display())),
            }
        }
        if place == self.folder && !path.components().all(|part| part == Component::CurDir) {
            return Err("a file without a name".to_owned());
        }
        if let Some(parent) = place.parent().filter(|parent| parent.starts_with(self.folder)) {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tempfile::TempDir;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    /// A part of an archive: its name, its type, and its content or target.
    type Part<'a> = (&'a str, EntryType, &'a str);
    const FILE: EntryType = EntryType::Regular;
    const LINK: EntryType = EntryType::Symlink;

    /// The builder of the crate refuses bad names, so the name is written by hand.
    fn tar(parts: &[Part<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, content) in parts {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o4755);
            let body = if *kind == FILE { content.as_bytes() } else { b"" };
            if !matches!(*kind, EntryType::Regular | EntryType::Directory) {
                header.as_gnu_mut().unwrap().linkname[..content.len()].copy_from_slice(content.as_bytes());
            }
            header.set_size(body.len() as u64);
            header.set_cksum();
            builder.append(&header, body).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(name: &str, bytes: &[u8]) -> (TempDir, Result<(), String>) {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, bytes).unwrap();
        let done = unpack(&archive, name, &folder.path().join("files"), Path::new("prog"));
        (folder, done)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(bytes).unwrap();
        gzip.finish().unwrap()
    }

    #[test]
    fn files_folders_and_links_within_are_written() {
        let tar = tar(&[
            ("a/", EntryType::Directory, ""),
            ("./a/run", FILE, "#!"),
            ("b/run", LINK, "../a/run"),
            ("deep/er/file", FILE, "x"),
        ]);
        let (folder, done) = unpacked("https://x/y.tar.gz?z", &gzip(&tar));
        done.unwrap();
        let files = folder.path().join("files");
        assert_eq!(fs::read_to_string(files.join("b/run")).unwrap(), "#!");
        let mode = fs::metadata(files.join("a/run")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "no set-user-id bit, and nobody else");
        assert!(files.join("deep/er/file").exists());
        let (folder, done) = unpacked("https://x/tool", b"#!/bin/sh");
        done.unwrap();
        assert_eq!(fs::read(folder.path().join("files/prog")).unwrap(), b"#!/bin/sh");
    }

    #[test]
    fn nothing_is_written_outside_of_the_folder() {
        let cases: [&[Part<'_>]; 10] = [
            &[("../out", FILE, "x")],
            &[("a/../../out", FILE, "x")],
            &[("/tmp/registry-out", FILE, "x")],
            &[("l", LINK, "/etc"), ("l/x", FILE, "x")],
            &[("l", LINK, ".."), ("x", FILE, "x")],
            &[("a/l", LINK, "../../out")],
            &[("a/b/l", LINK, "../.."), ("a/b/m", LINK, "l/../../out")],
            &[("d/", EntryType::Directory, ""), ("l", LINK, "d"), ("l/x", FILE, "x")],
            &[("a", FILE, "x"), ("h", EntryType::Link, "a")],
            &[("p", EntryType::Fifo, "")],
        ];
        for parts in cases {
            let (folder, done) = unpacked("x.tgz", &gzip(&tar(parts)));
            assert!(done.is_err(), "{parts:?}");
            assert!(!folder.path().join("out").exists() && !Path::new("/tmp/registry-out").exists());
        }
        // The same name twice is not written twice.
        let (_folder, done) = unpacked("x.tgz", &gzip(&tar(&[("a", FILE, "1"), ("a", FILE, "2")])));
        assert!(done.is_err());
    }

    #[test]
    fn zip_archives_have_the_same_limits() {
        let zipped = |name: &str, mode: u32, content: &str| {
            let mut zip = ZipWriter::new(io::Cursor::new(Vec::new()));
            let options = SimpleFileOptions::default().unix_permissions(mode);
            zip.start_file(name, options).unwrap();
            zip.write_all(content.as_bytes()).unwrap();
            zip.finish().unwrap().into_inner()
        };
        let (folder, done) = unpacked("x.zip", &zipped("bin/a", 0o755, "#!"));
        done.unwrap();
        assert_eq!(fs::read_to_string(folder.path().join("files/bin/a")).unwrap(), "#!");
        assert!(unpacked("x.zip", &zipped("../a", 0o755, "#!")).1.is_err());
        assert!(unpacked("x.zip", b"no zip").1.is_err());
        assert!(unpacked("x.dmg", b"x").1.unwrap_err().contains("not unpacked"));
    }

    #[test]
    fn an_archive_that_grows_without_end_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("files");
        let mut target = Target::new(&files, 2, 10).unwrap();
        target.file(Path::new("a"), &b"12345"[..], 0).unwrap();
        assert!(target.file(Path::new("b"), io::repeat(0), 0).unwrap_err().contains("larger"));
        assert!(target.file(Path::new("c"), &b""[..], 0).unwrap_err().contains("more files"));
    }
}
