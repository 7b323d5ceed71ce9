//! `add`: installs an agent of the ACP registry as a pool of bus.json.
//!
//! Nothing is downloaded, written or started before the user has seen what will run and has said yes.

use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clients::run::decides_what_runs;
use kernel_shell::{config, find_program};
use rpc::text::{quoted, replace_control};
use serde_json::{Value, json};
use workers::folders;
use workers::registry::{Binary, Checksum, Entry, Index, Kind, Launch, Package, install, installed_program};

use crate::agents::RegistryArgs;
use crate::output::report;
use crate::pools_file::{WriteArgs, add_pools, next_step};

const USAGE: u8 = 2;
/// The user has said no.
const REFUSED: u8 = 5;

const EXAMPLES: &str = "\
Examples:
  stdio-bus add gemini                       shows what will run, and asks
  stdio-bus add goose --with binary --as goose-next
  stdio-bus add claude-acp --registry ./registry.json --yes

`stdio-bus agents` lists what there is. The pool goes into your bus.json, ~/.config/stdio-bus/bus.json.

Exit codes: 0 added or already there, 1 not available, 2 bad usage, 5 you declined.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The agent, as the registry calls it
    id: String,
    /// The name of the pool [default: ID]
    #[arg(long = "as", value_name = "POOL")]
    pool: Option<String>,
    /// How it is installed: npx, uvx or binary [default: the first of these that works here]
    #[arg(long, value_name = "KIND", value_parser = ["npx", "uvx", "binary"])]
    with: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Also install what the registry warns of, what has no version or checksum, or what sets variables that decide
    /// what runs
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    to: WriteArgs,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Why nothing was added.
struct Refusal(u8, String);

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal(1, why)
    }
}

/// How the agent will be installed and started.
#[derive(Clone, Copy)]
enum Plan<'a> {
    Package(Kind, &'a Package),
    Binary(&'a Binary),
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match add(args) {
        Ok(done) => report(done, 0),
        Err(Refusal(code, why)) => report(format_args!("stdio-bus: {why}"), code),
    }
}

fn add(args: &Args) -> Result<String, Refusal> {
    let index = args.registry.load()?;
    let entry = find(&index, &args.id)?;
    check_quarantine(&index, entry, args.force)?;
    let path = args.to.path()?;
    let pool = args.pool.as_deref().unwrap_or(&entry.id);
    if has_pool(&path, pool) {
        return Err(Refusal(
            0,
            format!("{} has a pool {pool:?} already; --as chooses another name", path.display()),
        ));
    }
    let plan = choose(entry, args.with.as_deref())?;
    let data = folders::data().ok_or_else(|| "HOME or XDG_DATA_HOME must be set".to_owned())?;
    let root = data.join("agents");
    let launch = match plan {
        Plan::Package(Kind::Uvx, package) => package.uvx(),
        Plan::Package(_, package) => package.npx(),
        Plan::Binary(binary) => {
            let program = installed_program(entry, binary, &root)?;
            binary.launch(program.to_string_lossy().into_owned())
        }
    };
    check_launch(plan, &launch, args.force)?;
    let text = describe(entry, plan, &launch, &path, pool);
    let _ = io::stderr().write_all(text.as_bytes());
    ask(args, &format!("Add it to {}?", path.display()))?;
    if let Plan::Binary(binary) = plan {
        install(entry, binary, &root, |checksum| confirm(args, checksum))?;
    }
    let added = add_pools(&path, [pool_of(pool, &launch)].iter())
        .map_err(|why| format!("{}: {why}", path.display()))?;
    if added.ids.is_empty() {
        return Err(Refusal(1, format!("{} has a pool {pool:?} already", path.display())));
    }
    Ok(format!(
        "{}: added {pool}{}. `stdio-bus check --probe` tries it, `stdio-bus agents login {pool}` logs in if it \
         asks for that; {}.",
        path.display(),
        added.about_default(),
        next_step(&path)
    ))
}

fn find<'a>(index: &'a Index, id: &str) -> Result<&'a Entry, Refusal> {
    index.find(id).ok_or_else(|| {
        let similar = index.similar(id);
        let hint = if similar.is_empty() {
            "`stdio-bus agents` lists what there is".to_owned()
        } else {
            format!("did you mean {}?", similar.join(", "))
        };
        Refusal(1, format!("the registry has no agent {id:?}; {hint}"))
    })
}

fn check_quarantine(index: &Index, entry: &Entry, force: bool) -> Result<(), Refusal> {
    match index.quarantined.get(&entry.id) {
        Some(why) if !force => {
            let why = replace_control(why, ' ');
            Err(Refusal(1, format!("the registry warns of {}: {why}; --force installs it anyway", entry.id)))
        }
        _ => Ok(()),
    }
}

fn has_pool(path: &Path, id: &str) -> bool {
    config::load(path).is_ok_and(|config| config.pools.iter().any(|pool| &*pool.id == id))
}

/// The first way that works here, or the one that the user wants.
fn choose<'a>(entry: &'a Entry, wanted: Option<&str>) -> Result<Plan<'a>, Refusal> {
    let search_path = env::var_os("PATH").unwrap_or_default();
    let is_here = |program: &str| find_program(program, &search_path).is_ok();
    let mut missing = Vec::new();
    for kind in entry.kinds() {
        if wanted.is_some_and(|wanted| wanted != kind.to_string()) {
            continue;
        }
        let package = match kind {
            Kind::Npx => entry.npx(),
            Kind::Uvx => entry.uvx(),
            Kind::Binary => None,
        };
        match (package, entry.binary()) {
            (Some(package), _) if is_here(&kind.to_string()) => return Ok(Plan::Package(kind, package)),
            (Some(_), _) if kind == Kind::Npx => missing.push("npx (of Node.js)"),
            (Some(_), _) => missing.push("uvx (of uv)"),
            (None, Some(binary)) => return Ok(Plan::Binary(binary)),
            (None, None) => {}
        }
    }
    if missing.is_empty() {
        let wanted =
            wanted.map_or("on this machine".to_owned(), |kind| format!("with {kind} on this machine"));
        return Err(Refusal(1, format!("{} is not available {wanted}", entry.id)));
    }
    Err(Refusal(1, format!("{} needs {}, which is not in PATH", entry.id, missing.join(" or "))))
}

/// What the user is better asked about on its own, which `--force` is for.
fn check_launch(plan: Plan<'_>, launch: &Launch, force: bool) -> Result<(), Refusal> {
    if force {
        return Ok(());
    }
    if let Plan::Package(kind, package) = plan {
        package.check_pinned(kind).map_err(|why| Refusal(1, format!("{why}; --force installs it anyway")))?;
    }
    let decides = |name: &&String| decides_what_runs(name) || name.starts_with("STDIO_BUS_");
    match launch.env.keys().find(decides) {
        Some(name) => Err(Refusal(
            1,
            format!("the entry sets {name}, which decides what else runs; --force installs it anyway"),
        )),
        None => Ok(()),
    }
}

fn describe(entry: &Entry, plan: Plan<'_>, launch: &Launch, path: &Path, pool: &str) -> String {
    let clean = |text: &str| replace_control(text, ' ');
    let license = entry.license.as_deref().map(|license| format!(", {}", clean(license))).unwrap_or_default();
    let mut text = format!("{} {} ({}{license})\n", clean(&entry.name), entry.version, entry.id);
    let _ = writeln!(text, "{}", clean(&entry.description));
    for link in [&entry.repository, &entry.website].into_iter().flatten() {
        let _ = writeln!(text, "{}", clean(link));
    }
    let words = [&launch.program].into_iter().chain(&launch.args).map(|word| quoted(word));
    let _ = writeln!(
        text,
        "\nPool {pool} of {} will run, as you and with all your rights:\n  {}",
        path.display(),
        words.collect::<Vec<_>>().join(" ")
    );
    for (name, value) in &launch.env {
        let _ = writeln!(text, "  with {}={}", clean(name), quoted(value));
    }
    match plan {
        Plan::Package(kind, _) => {
            let _ = writeln!(text, "{kind} downloads the package, and what it needs, when it first starts.");
        }
        Plan::Binary(binary) => {
            let _ = writeln!(text, "It will be downloaded now, from\n  {}", clean(&binary.archive));
            let checked = match &binary.sha256 {
                Some(sha256) => format!("and must have the SHA-256 {}", clean(sha256)),
                None => "The registry publishes no checksum for it.".to_owned(),
            };
            let _ = writeln!(text, "{checked}");
        }
    }
    text
}

/// Fails unless the user says yes.
fn ask(args: &Args, question: &str) -> Result<(), Refusal> {
    if args.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Refusal(USAGE, "there is no terminal to ask at; --yes answers yes".to_owned()));
    }
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    let _ = io::stdin().read_line(&mut answer);
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Refusal(REFUSED, "nothing was added".to_owned())),
    }
}

/// An archive without a published checksum is a question of its own.
fn confirm(args: &Args, checksum: &Checksum) -> Result<(), String> {
    if checksum.is_published || args.force {
        return Ok(());
    }
    let digest = &checksum.sha256;
    if args.yes {
        return Err(format!(
            "the registry publishes no checksum of the archive (its SHA-256 is {digest}); --force installs it anyway"
        ));
    }
    let question = format!("The archive has the SHA-256 {digest}. Is it the right one?");
    ask(args, &question).map_err(|Refusal(_, why)| why)
}

fn pool_of(id: &str, launch: &Launch) -> Value {
    // A bus that a service manager starts may have another PATH.
    let found = find_program(&launch.program, &env::var_os("PATH").unwrap_or_default());
    let program = found.map_or_else(|_| launch.program.clone(), |path| path.display().to_string());
    let mut pool = json!({ "id": id, "command": program, "args": launch.args, "warm": false });
    if !launch.env.is_empty() {
        // bus.json would fill in `${NAME}`.
        let literal = |value: &String| value.replace("${", "$${");
        pool["env"] = launch.env.iter().map(|(name, value)| (name.clone(), literal(value))).collect();
    }
    pool
}
