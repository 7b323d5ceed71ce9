//! Finds out what is to be started as a worker of a pool.
//!
//! No shell is involved. PATH is searched here, so that the program is known before it is started.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use kernel_core::SpawnFault;
use kernel_core::config::{InheritEnv, PoolConfig, Program};

use crate::errno::errno_of;
use crate::process::starter::Launch;

type Env = BTreeMap<OsString, OsString>;

/// The variable that tells a process the node that it is started for.
const NODE_VARIABLE: &str = "STDIO_BUS_NODE";

/// Where programs are looked for if PATH is not set, as `execvp` does.
pub const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// `node`: the node that the process is started for.
pub(crate) fn launch(
    pool: &PoolConfig,
    node: Option<&str>,
    this_binary: &Path,
) -> Result<Launch, SpawnFault> {
    let Some(node) = node else { return launch_of(pool, this_binary) };
    let mut launch = launch_of(&at_node(pool, node), this_binary)?;
    launch.env.retain(|(name, _)| name != NODE_VARIABLE);
    launch.env.push((NODE_VARIABLE.into(), node.into()));
    Ok(launch)
}

/// The pool with the name of this node where `{node}` stands in its command.
pub fn at_node(pool: &PoolConfig, node: &str) -> PoolConfig {
    let named = |text: &str| text.replace("{node}", node);
    let path_of = |path: &Path| path.to_str().map_or_else(|| path.to_owned(), |path| named(path).into());
    let mut pool = pool.clone();
    pool.program = match &pool.program {
        Program::ThisBinary => Program::ThisBinary,
        Program::InPath(name) => Program::InPath(named(name)),
        Program::At(path) => Program::At(path_of(path)),
    };
    pool.args = pool.args.iter().map(|arg| named(arg)).collect();
    pool.cwd = pool.cwd.as_deref().map(path_of);
    pool.env.values_mut().for_each(|value| *value = named(value));
    pool
}

fn launch_of(pool: &PoolConfig, this_binary: &Path) -> Result<Launch, SpawnFault> {
    if let Some(cwd) = &pool.cwd {
        // The folder is checked first, because exec gives ENOENT for a missing folder and for a missing program.
        check_folder(cwd).map_err(|errno| SpawnFault { errno: errno as i32, cwd: true })?;
    }
    let mut env = environment(env::vars_os(), pool);
    let (file, name) = match &pool.program {
        Program::ThisBinary => (this_binary.to_owned(), this_binary.into()),
        Program::At(path) => (path.clone(), path.into()),
        Program::InPath(name) => {
            let path = env.get(OsStr::new("PATH")).cloned().or_else(|| env::var_os("PATH"));
            let found = find_program(name, path.as_deref().unwrap_or(OsStr::new(DEFAULT_PATH)))
                .map_err(|errno| SpawnFault { errno: errno as i32, cwd: false })?;
            (found, name.into())
        }
    };
    if let (Program::At(path), Some(folder)) = (&pool.program, file.parent()) {
        let is_script = path.is_absolute() && pool.inherit_env != InheritEnv::Nothing;
        is_script.then(|| add_to_path(&mut env, folder));
    }
    let args = pool.args.iter().map(Into::into).collect();
    Ok(Launch { file, name, args, env: env.into_iter().collect(), cwd: pool.cwd.clone() })
}

/// Puts the folder of a program at the end of its PATH. What was installed together, such as a script and the `node`
/// that runs it, is found by a bus that a service manager has started with a short PATH or with none.
fn add_to_path(env: &mut Env, folder: &Path) {
    let path = env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    if env::split_paths(&*path).any(|known| known == folder) {
        return;
    }
    let folders = env::split_paths(&*path).chain([folder.to_owned()]);
    // A folder with a colon in its name cannot be in PATH.
    if let Ok(longer) = env::join_paths(folders) {
        *path = longer;
    }
}

fn check_folder(folder: &Path) -> Result<(), Errno> {
    if !fs::metadata(folder).map_err(errno_of)?.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    access(folder, AccessFlags::X_OK)
}

/// The environment of a worker: the variables that it may inherit, overridden by those of the pool.
fn environment(inherited: impl Iterator<Item = (OsString, OsString)>, pool: &PoolConfig) -> Env {
    let inherited = inherited.filter(|(name, _)| {
        let wanted = match &pool.inherit_env {
            InheritEnv::All => true,
            InheritEnv::Nothing => false,
            InheritEnv::Only(names) => names.iter().any(|wanted| OsStr::new(wanted) == name.as_os_str()),
        };
        wanted && !is_private(name)
    });
    let own = pool.env.iter().map(|(name, value)| (name.into(), value.into()));
    inherited.chain(own).collect()
}

/// Whether a variable is for the bus only: a setting of its own, or a message of the service manager.
fn is_private(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name == b"NOTIFY_SOCKET"
        || [&b"STDIO_BUS_"[..], b"LISTEN_", b"WATCHDOG_"].iter().any(|prefix| name.starts_with(prefix))
}

/// The environment of a companion of the bus. It has only what it reads, because other processes of this user may see
/// it, and the environment of the bus has the keys of all agents.
pub(super) fn companion_environment() -> impl Iterator<Item = (OsString, OsString)> {
    env::vars_os().filter(|(name, _)| is_for_companions(name))
}

fn is_for_companions(name: &OsStr) -> bool {
    // The last ones are for the command that prepares a folder on a node.
    const NAMES: [&str; 17] = [
        "HOME",
        "HOSTNAME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "NO_COLOR",
        "PATH",
        "RUST_BACKTRACE",
        "RUST_LOG",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
        "SHELL",
        "SSH_AUTH_SOCK",
    ];
    let name = name.as_bytes();
    NAMES.iter().any(|known| known.as_bytes() == name)
        || [&b"LC_"[..], b"XDG_"].iter().any(|prefix| name.starts_with(prefix))
}

/// Finds the first executable file of this name. Relative folders of PATH are skipped: they would make the program
/// depend on the folder that the agent works in.
pub fn find_program(name: &str, path: &OsStr) -> Result<PathBuf, Errno> {
    let mut error = Errno::ENOENT;
    for folder in env::split_paths(path).filter(|folder| folder.is_absolute()) {
        let candidate = folder.join(name);
        if !fs::metadata(&candidate).is_ok_and(|found| found.is_file()) {
            continue;
        }
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) => return Ok(candidate),
            Err(errno) => error = errno,
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::test_folder::TestFolder;

    fn pool(inherit_env: InheritEnv, env: &[(&str, &str)]) -> PoolConfig {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        PoolConfig { env, inherit_env, ..PoolConfig::new("agents", Program::InPath("agent".to_owned())) }
    }

    fn given(ours: &[&str], pool: &PoolConfig) -> Vec<String> {
        let ours = ours.iter().map(|name| (OsString::from(name), OsString::from("ours")));
        let text = |text: &OsString| text.to_string_lossy().into_owned();
        environment(ours, pool)
            .iter()
            .map(|(name, value)| format!("{}={}", text(name), text(value)))
            .collect()
    }

    #[test]
    fn a_process_is_told_the_node_that_it_is_started_for() {
        let mut pool = pool(InheritEnv::Nothing, &[("AT", "/{node}/{node}"), ("SAME", "node")]);
        pool.program = Program::At("/bin/{node}".into());
        pool.args = vec!["{node}".to_owned(), "x{node}y".to_owned(), "{nodes}".to_owned()];
        let launch = launch(&pool, Some("n17"), Path::new("/bus")).unwrap();
        assert_eq!(launch.file, Path::new("/bin/n17"));
        assert_eq!(launch.args, ["n17", "xn17y", "{nodes}"]);
        let env = [("AT", "/n17/n17"), ("SAME", "node"), ("STDIO_BUS_NODE", "n17")];
        assert_eq!(launch.env, env.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn a_worker_inherits_all_or_nothing_or_what_is_listed() {
        let ours = ["HOME", "LANG", "PATH"];
        assert_eq!(given(&ours, &pool(InheritEnv::All, &[])), ["HOME=ours", "LANG=ours", "PATH=ours"]);
        assert!(given(&ours, &pool(InheritEnv::Nothing, &[])).is_empty());
        let only = InheritEnv::Only(vec!["PATH".to_owned(), "ABSENT".to_owned()]);
        assert_eq!(given(&ours, &pool(only, &[])), ["PATH=ours"]);
    }

    #[test]
    fn variables_for_the_bus_reach_a_worker_only_if_the_pool_sets_them() {
        let ours = ["STDIO_BUS_CONFIG", "NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "LISTEN", "HOME"];
        assert_eq!(given(&ours, &pool(InheritEnv::All, &[])), ["HOME=ours", "LISTEN=ours"]);
        let listed = InheritEnv::Only(ours.map(str::to_owned).to_vec());
        assert_eq!(given(&ours, &pool(listed, &[])), ["HOME=ours", "LISTEN=ours"]);
        let own = pool(InheritEnv::Nothing, &[("LISTEN_FDS", "theirs")]);
        assert_eq!(given(&ours, &own), ["LISTEN_FDS=theirs"]);
    }

    #[test]
    fn a_companion_has_no_key_of_an_agent() {
        let names = ["PATH", "HOME", "XDG_STATE_HOME", "LC_ALL", "SSL_CERT_FILE", "RUST_LOG"];
        assert!(names.iter().all(|name| is_for_companions(OsStr::new(name))));
        let keys =
            ["OPENAI_API_KEY", "STDIO_BUS_CONFIG", "NOTIFY_SOCKET", "LISTEN_FDS", "PATHS", "XPATH", ""];
        assert!(!keys.iter().any(|name| is_for_companions(OsStr::new(name))));
    }

    #[test]
    fn a_program_finds_what_lies_beside_it() {
        let path_with = |before: Option<&str>| {
            let before = before.map(|path| (OsString::from("PATH"), OsString::from(path)));
            let mut env: Env = before.into_iter().collect();
            add_to_path(&mut env, Path::new("/opt/node/bin"));
            env.remove(OsStr::new("PATH")).unwrap().into_string().unwrap()
        };
        assert_eq!(path_with(Some("/bin")), "/bin:/opt/node/bin");
        assert_eq!(path_with(Some("/opt/node/bin:/bin")), "/opt/node/bin:/bin");
        assert_eq!(path_with(None), "/usr/local/bin:/usr/bin:/bin:/opt/node/bin");
    }

    #[test]
    fn the_variables_of_the_pool_override_inherited_ones() {
        let pool = pool(InheritEnv::All, &[("HOME", "/srv")]);
        assert_eq!(given(&["HOME"], &pool), ["HOME=/srv"]);
    }

    #[test]
    fn a_program_is_found_in_the_first_absolute_folder_where_it_can_be_run() {
        let root = TestFolder::new();
        let folders = ["plain", "folder", "first", "second"].map(|name| root.join(name));
        for (folder, mode) in folders.iter().zip([0o644, 0o755, 0o755, 0o755]) {
            fs::create_dir(folder).unwrap();
            let program = folder.join("agent");
            if folder.ends_with("folder") {
                fs::create_dir(&program).unwrap();
                continue;
            }
            fs::write(&program, "").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = env::join_paths(&folders).unwrap();
        assert_eq!(find_program("agent", &path), Ok(folders[2].join("agent")));
        assert_eq!(find_program("agent", folders[0].as_os_str()), Err(Errno::EACCES));
        assert_eq!(find_program("nobody", &path), Err(Errno::ENOENT));
        assert_eq!(find_program("agent", OsStr::new("")), Err(Errno::ENOENT));
        assert_eq!(find_program("Cargo.toml", OsStr::new(".:")), Err(Errno::ENOENT));
    }

    #[test]
    fn a_bad_folder_is_reported_differently_from_a_bad_program() {
        let absent = PoolConfig { cwd: Some("/no/such/folder".into()), ..pool(InheritEnv::All, &[]) };
        let fault = launch(&absent, None, Path::new("/bin/true")).err();
        assert_eq!(fault, Some(SpawnFault { errno: Errno::ENOENT as i32, cwd: true }));
        let file = PoolConfig { cwd: Some("/dev/null".into()), ..pool(InheritEnv::All, &[]) };
        let fault = launch(&file, None, Path::new("/bin/true")).err();
        assert_eq!(fault, Some(SpawnFault { errno: Errno::ENOTDIR as i32, cwd: true }));
        let nowhere = pool(InheritEnv::All, &[("PATH", "/no/such/folder")]);
        let fault = launch(&nowhere, None, Path::new("/bin/true")).err();
        assert_eq!(fault, Some(SpawnFault { errno: Errno::ENOENT as i32, cwd: false }));
    }
}
