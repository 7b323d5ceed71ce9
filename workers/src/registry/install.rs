//! Downloads the archive of a binary entry, and installs it if it is what it should be.
//!
//! Until it is checked and unpacked, all of it is in a quarantine folder that nobody else can look into, and nothing is
//! started from there. Then one rename makes it the agent's folder.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use super::index::{Binary, Entry, platform};
use super::source::{create_private, get};
use super::unpack::unpack;

const ARCHIVE_BYTES: u64 = 1 << 30;

/// What is known of an archive once it is here.
pub struct Checksum {
    /// In hexadecimal digits.
    pub sha256: String,
    /// The registry has published the same.
    pub is_published: bool,
}

/// Where the program of an entry is, or will be.
pub fn installed_program(entry: &Entry, binary: &Binary, root: &Path) -> Result<PathBuf, String> {
    Ok(folder_of(entry, root).join(program_path(&binary.cmd)?))
}

fn folder_of(entry: &Entry, root: &Path) -> PathBuf {
    root.join(platform()).join(&entry.id).join(&entry.version)
}

/// Installs the binary of an entry below `root`, unless it is there, and returns its program. `is_wanted` is asked when
/// the checksum is known. An archive that the registry publishes another checksum for is never kept.
pub fn install(
    entry: &Entry,
    binary: &Binary,
    root: &Path,
    is_wanted: impl FnOnce(&Checksum) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let program = program_path(&binary.cmd)?;
    let folder = folder_of(entry, root);
    if folder.join(&program).is_file() {
        return Ok(folder.join(program));
    }
    let quarantine = root.join(format!(".quarantine-{}", std::process::id()));
    let _ = fs::remove_dir_all(&quarantine);
    let failed = |error: io::Error| format!("{}: {error}", root.display());
    create_private(root).and_then(|()| create_private(&quarantine)).map_err(failed)?;
    let done = fill(binary, &program, &quarantine, is_wanted).and_then(|files| {
        let parent = folder.parent().expect("it is below the root");
        let _ = fs::remove_dir_all(&folder);
        create_private(parent).and_then(|()| fs::rename(files, &folder)).map_err(failed)
    });
    let _ = fs::remove_dir_all(&quarantine);
    done.map(|()| folder.join(program))
}

/// Downloads, checks and unpacks into the quarantine. Returns the folder of the files.
fn fill(
    binary: &Binary,
    program: &Path,
    quarantine: &Path,
    is_wanted: impl FnOnce(&Checksum) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let archive = quarantine.join("archive");
    let sha256 = download(&binary.archive, &archive)?;
    let published = binary.sha256.as_deref();
    if let Some(published) = published.filter(|published| !published.eq_ignore_ascii_case(&sha256)) {
        return Err(format!(
            "the archive is not the published one: its SHA-256 is {sha256}, not {published}"
        ));
    }
    is_wanted(&Checksum { sha256, is_published: published.is_some() })?;
    let files = quarantine.join("files");
    unpack(&archive, &binary.archive, &files, program)?;
    let path = files.join(program);
    // It may be a link, but not one that leads out.
    let real = path.canonicalize().map_err(|_| format!("the archive has no {}", program.display()))?;
    let inside = files.canonicalize().map_err(|error| error.to_string())?;
    if !real.starts_with(inside) || !real.is_file() {
        return Err(format!("{} is no file of the archive", program.display()));
    }
    fs::set_permissions(&real, Permissions::from_mode(0o700)).map_err(|error| error.to_string())?;
    Ok(files)
}

/// Returns the SHA-256 of what was downloaded. `file://` is for an index of one's own.
fn download(from: &str, to: &Path) -> Result<String, String> {
    let failed = |error: io::Error| format!("{from}: {error}");
    let mut reader: Box<dyn Read> = match from.strip_prefix("file://") {
        Some(path) => Box::new(File::open(path).map_err(failed)?.take(ARCHIVE_BYTES)),
        None => Box::new(get(from, ARCHIVE_BYTES)?),
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to).map_err(failed)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; 64 << 10];
    loop {
        match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => {
                digest.update(&chunk[..count]);
                file.write_all(&chunk[..count]).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The program of an entry, as a path within its folder.
fn program_path(cmd: &str) -> Result<PathBuf, String> {
    let parts = Path::new(cmd).components().filter(|part| *part != Component::CurDir);
    let path: PathBuf = parts.clone().collect();
    if path.as_os_str().is_empty() || !parts.clone().all(|part| matches!(part, Component::Normal(_))) {
        return Err(format!("{cmd:?} is no program of an archive"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::super::index::Index;
    use super::*;
    use serde_json::json;

    fn entry(archive: &str, cmd: &str, sha256: Option<&str>) -> Entry {
        let binary = json!({ "archive": archive, "cmd": cmd, "sha256": sha256 });
        let agent = json!({ "id": "a", "name": "A", "version": "1.0", "description": "d",
            "distribution": { "binary": { platform(): binary } } });
        Index::parse(&json!({ "agents": [agent] }).to_string()).unwrap().entries.remove(0)
    }

    #[test]
    fn a_program_is_installed_only_if_it_is_what_was_published() {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("tool");
        fs::write(&tool, "#!/bin/sh\n").unwrap();
        let url = format!("file://{}", tool.display());
        let root = folder.path().join("agents");
        let right =
            Sha256::digest(b"#!/bin/sh\n").iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        let wrong = right.replace(['A', '1'], "B");
        let try_install = |sha256: Option<&str>, wanted: bool| {
            let entry = entry(&url, "./bin/tool", sha256);
            let mut asked = None;
            let done = install(&entry, entry.binary().unwrap(), &root, |checksum| {
                asked = Some(checksum.is_published);
                if wanted { Ok(()) } else { Err("no".to_owned()) }
            });
            (done, asked)
        };
        let (done, asked) = try_install(Some(&wrong), true);
        assert!(done.unwrap_err().contains("not the published one"));
        assert_eq!(asked, None);
        assert_eq!(try_install(None, false), (Err("no".to_owned()), Some(false)));
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "nothing is left of it");
        let (done, asked) = try_install(Some(&right), true);
        let program = done.unwrap();
        assert!(program.ends_with("a/1.0/bin/tool") && asked == Some(true), "{program:?}");
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(try_install(Some(&right), false), (Ok(program), None), "it is there already");
        for cmd in ["/bin/sh", "../x", ".", "a/../../b"] {
            assert!(program_path(cmd).is_err(), "{cmd}");
        }
    }
}
