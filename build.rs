//! Determines the commit for `--version`.
//!
//! Reads git's files directly, so it needs no git program. Without them (in a tarball) the version has no
//! commit. It reruns only when HEAD or the branch moves.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=build.rs");
    let commit = git_folder(&root).and_then(|git| head(&git)).or_else(|| packaged(&root));
    let version = env!("CARGO_PKG_VERSION");
    match commit.as_deref().and_then(|commit| commit.get(..9)) {
        Some(commit) => {
            println!("cargo::rustc-env=BUS_VERSION={version} ({commit})");
            println!("cargo::rustc-env=BUS_COMMIT={commit}");
        }
        None => println!("cargo::rustc-env=BUS_VERSION={version}"),
    }
}

/// In a worktree, `.git` is a file with the path of the git folder.
fn git_folder(root: &Path) -> Option<PathBuf> {
    let dot_git = root.join(".git");
    if dot_git.is_dir() {
        return Some(dot_git);
    }
    let text = fs::read_to_string(dot_git).ok()?;
    Some(root.join(text.strip_prefix("gitdir:")?.trim()))
}

fn head(git: &Path) -> Option<String> {
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    watch(&git.join("HEAD"));
    let Some(name) = head.strip_prefix("ref:").map(str::trim) else { return hash(&head) };
    // A worktree has its own HEAD, but shares its branches.
    let shared = fs::read_to_string(git.join("commondir")).map_or(git.into(), |path| git.join(path.trim()));
    let branch = shared.join(name);
    // Watching a missing path would make cargo rerun this at every build.
    watch(branch.ancestors().find(|path| path.exists())?);
    if let Ok(text) = fs::read_to_string(branch) {
        return hash(&text);
    }
    let packed = fs::read_to_string(shared.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').and_then(hash))
}

/// The commit that `cargo package` has recorded.
fn packaged(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join(".cargo_vcs_info.json")).ok()?;
    let (_, after) = text.split_once("\"sha1\"")?;
    hash(after.split('"').nth(1)?)
}

fn hash(text: &str) -> Option<String> {
    let text = text.trim();
    let good = text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    good.then(|| text.to_owned())
}

fn watch(path: &Path) {
    println!("cargo::rerun-if-changed={}", path.display());
}
