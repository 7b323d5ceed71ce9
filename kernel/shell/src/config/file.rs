//! Reads the files that the bus trusts: bus.json, which names the programs it runs, and the token.
//!
//! A file that other users could have written, or a token that they could have read, is refused, with a message that
//! says what to do. The checks look at the opened file, so that it cannot be swapped in between. No message holds a
//! part of a token.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;
use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid};

const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;
const GROUP_READS: u32 = 0o040;
const NOT_THE_OWNER: u32 = 0o077;

/// A shorter token can be guessed, and a longer one does not fit into the line that carries it.
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 1024;
/// This includes the white space around the token.
const TOKEN_FILE_BYTES: u64 = 4096;
/// A file of NATS credentials has two or three kilobytes.
const SECRET_FILE_BYTES: u64 = 64 << 10;

/// Reads the text of a bus.json.
pub(super) fn read_config(path: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let mut file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "there is no such file; `stdio-bus detect --write --config {}` creates it",
                path.display()
            )
        }
        _ => unreadable(error),
    })?;
    let about = file.metadata().map_err(unreadable)?;
    if about.is_dir() {
        return Err("it is a folder; name the file in it".to_owned());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(unreadable)?;
    let shown = path.display();
    owned_by_us(&about, geteuid())?;
    if about.mode() & OTHERS_WRITE != 0 {
        return Err(format!("everybody may write to it, and so run commands here: chmod o-w {shown}"));
    }
    if about.mode() & GROUP_WRITES != 0 && !is_private(Gid::from_raw(about.gid()), Uid::from_raw(about.uid()))
    {
        return Err(format!("its group may write to it, and so run commands here: chmod g-w {shown}"));
    }
    Ok(text)
}

/// Reads the token in a file that only its owner can read.
pub fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let text = read_private(path, TOKEN_FILE_BYTES, |_| false).map_err(|error| match error {
        Unreadable::Missing => format!("there is no {shown}, create it with `stdio-bus token`"),
        Unreadable::Because(why) => why,
    })?;
    let token = text.trim();
    let fits = (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&token.len());
    if !fits || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{shown} does not hold a token: {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters of ASCII \
             without spaces, as `stdio-bus token` creates it"
        ));
    }
    Ok(token.to_owned())
}

/// Reads a file with a key, which only its owner can read, and a group that this process is in: the secrets of a pod
/// are files of root that its group may read.
pub fn read_secret(path: &Path) -> Result<String, String> {
    let may_be_of_group = |about: &Metadata| about.uid() == 0 || is_in(Gid::from_raw(about.gid()));
    read_private(path, SECRET_FILE_BYTES, may_be_of_group).map_err(|error| match error {
        Unreadable::Missing => format!("there is no {}", path.display()),
        Unreadable::Because(why) => why,
    })
}

enum Unreadable {
    Missing,
    Because(String),
}

/// Reads at most so many bytes of a file that only its owner can read, or its group where that may.
fn read_private(
    path: &Path,
    most: u64,
    group_may_read: impl Fn(&Metadata) -> bool,
) -> Result<String, Unreadable> {
    let shown = path.display();
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Unreadable::Missing,
        _ => Unreadable::Because(format!("{shown} cannot be read: {error}")),
    };
    // The path may name a pipe, and opening that must not block.
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(unreadable)?;
    let about = file.metadata().map_err(unreadable)?;
    if !about.is_file() {
        return Err(Unreadable::Because(format!("{shown} is not a file")));
    }
    owned_by_us(&about, geteuid()).map_err(|error| Unreadable::Because(format!("{shown}: {error}")))?;
    let refused = if group_may_read(&about) { NOT_THE_OWNER & !GROUP_READS } else { NOT_THE_OWNER };
    if about.mode() & refused != 0 {
        let mode = about.mode() & 0o777;
        let what = format!("others may read or write {shown} (mode {mode:04o}): chmod 600 {shown}");
        return Err(Unreadable::Because(what));
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

fn owned_by_us(about: &Metadata, us: Uid) -> Result<(), String> {
    let owner = Uid::from_raw(about.uid());
    if owner == us || owner.is_root() {
        return Ok(());
    }
    Err(format!(
        "it belongs to uid {owner}, and this runs as uid {us}: run it as its owner, or make it yours with chown"
    ))
}

/// Whether this process is in the group.
fn is_in(group: Gid) -> bool {
    // The system call means something else on macOS.
    #[cfg(not(target_os = "macos"))]
    if nix::unistd::getgroups().is_ok_and(|groups| groups.contains(&group)) {
        return true;
    }
    group == getegid()
}

/// Whether only `owner` is in the group. Many systems give each user such a group, and a umask that lets it write.
fn is_private(group: Gid, owner: Uid) -> bool {
    let (Ok(Some(group)), Ok(Some(owner))) = (Group::from_gid(group), User::from_uid(owner)) else {
        return false;
    };
    group.name == owner.name && group.gid == owner.gid && group.mem.iter().all(|member| *member == owner.name)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    use nix::unistd::mkfifo;

    use super::*;
    use crate::test_folder::TestFolder;

    const GOOD: &str = "0123456789abcdef";

    /// A file in a folder of its own.
    struct Written {
        folder: TestFolder,
        path: PathBuf,
    }

    impl Written {
        fn new(text: &str, mode: u32) -> Written {
            let folder = TestFolder::new();
            let path = folder.join("file");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            Written { folder, path }
        }

        /// The error of reading it, without its folder.
        fn error(&self, read: impl Fn(&Path) -> Result<String, String>) -> String {
            read(&self.path).unwrap_err().replace(&format!("{}/", self.folder.display()), "")
        }
    }

    #[test]
    fn a_token_is_read_from_a_file_that_only_its_owner_can_open() {
        for mode in [0o600, 0o400, 0o700] {
            assert_eq!(read_token(&Written::new(&format!(" {GOOD}\r\n"), mode).path), Ok(GOOD.to_owned()));
        }
        for mode in [0o640, 0o604, 0o620, 0o602, 0o601, 0o777] {
            let error = Written::new(GOOD, mode).error(read_token);
            assert_eq!(error, format!("others may read or write file (mode {mode:04o}): chmod 600 file"));
        }
    }

    #[test]
    fn a_key_may_be_read_by_a_group_that_this_process_is_in_and_written_by_nobody_else() {
        for mode in [0o600, 0o400, 0o640, 0o440] {
            assert_eq!(read_secret(&Written::new("key", mode).path), Ok("key".to_owned()), "{mode:o}");
        }
        for mode in [0o660, 0o604, 0o620, 0o644, 0o650, 0o777] {
            let error = Written::new("key", mode).error(read_secret);
            assert_eq!(error, format!("others may read or write file (mode {mode:04o}): chmod 600 file"));
        }
        // Without root no file can be given to a group of others, and the owner of a file of root is root.
        let foreign = Written::new("key", 0o640);
        if chown(&foreign.path, None, Some(54_321)).is_ok() {
            assert_eq!(read_secret(&foreign.path), Ok("key".to_owned()));
            assert!(read_private(&foreign.path, 9, |_| false).is_err());
        }
    }

    #[test]
    fn a_token_is_read_through_a_symbolic_link_as_secrets_are_often_mounted() {
        let linked = Written::new(GOOD, 0o600);
        let link = linked.path.with_extension("link");
        symlink(&linked.path, &link).unwrap();
        assert_eq!(read_token(&link), Ok(GOOD.to_owned()));
    }

    #[test]
    fn a_bad_token_is_refused_and_not_shown() {
        let long = "x".repeat(TOKEN_CHARS_MAX + 1);
        let longer = " ".repeat(TOKEN_FILE_BYTES as usize) + GOOD;
        for text in ["", "\n", "0123456789abcde", "two words are not one", "0123456789abcdéf", &long, &longer]
        {
            let error = Written::new(text, 0o600).error(read_token);
            assert!(error.starts_with("file does not hold a token: 16 to 1024 characters"), "{error}");
            assert!(text.len() < 3 || !error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_missing_token_file_or_a_pipe_is_refused_without_hanging() {
        let gone = Written::new(GOOD, 0o600);
        fs::remove_file(&gone.path).unwrap();
        assert_eq!(gone.error(read_token), "there is no file, create it with `stdio-bus token`");
        mkfifo(&gone.path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(gone.error(read_token), "file is not a file");
    }

    #[test]
    fn a_configuration_that_others_could_have_written_is_refused() {
        for mode in [0o600, 0o644, 0o444, 0o755] {
            assert_eq!(read_config(&Written::new("{}", mode).path), Ok("{}".to_owned()));
        }
        let open = Written::new("{}", 0o646).error(read_config);
        assert_eq!(open, "everybody may write to it, and so run commands here: chmod o-w file");
    }

    #[test]
    fn a_group_may_write_only_if_the_owner_is_its_only_member() {
        let written = Written::new("{}", 0o664);
        let about = fs::metadata(&written.path).unwrap();
        let private = is_private(Gid::from_raw(about.gid()), Uid::from_raw(about.uid()));
        assert_eq!(read_config(&written.path).is_ok(), private);
        assert!(!is_private(Gid::from_raw(54_321), geteuid()), "a group that nobody knows");
    }

    #[test]
    fn a_file_of_another_user_is_refused_unless_it_is_root() {
        let written = Written::new(GOOD, 0o600);
        let about = fs::metadata(&written.path).unwrap();
        let us = Uid::from_raw(about.uid());
        assert_eq!(owned_by_us(&about, us), Ok(()));
        let other = Uid::from_raw(us.as_raw() + 1);
        assert_eq!(owned_by_us(&about, other).is_ok(), us.is_root());
        // Only root can change the owner of a file.
        if chown(&written.path, Some(65_534), None).is_ok() {
            let whose = "it belongs to uid 65534, and this runs as uid 0: run it as its owner";
            assert!(written.error(read_config).starts_with(whose));
            assert!(written.error(read_token).starts_with(&format!("file: {whose}")));
        }
    }
}
