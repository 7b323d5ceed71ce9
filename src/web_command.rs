//! `web`: opens the web door, makes links for it, lists and revokes these and its tokens.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clients::address::TargetArgs;
use clients::table::{self, Cell};
use clients::{Fault, Target, status};
use kernel_core::config::WebConfig;
use kernel_shell::config::{self, ClientConfig};
use rpc::text::{rfc3339_of_millis, unix_ms};
use serde_json::{Value, json};
use web::scope::Scope;
use web::tokens::{DoorPlace, Store};
use web::{Options, Orders};

use crate::bus_args::BusArgs;
use crate::kept_sessions;
use crate::output::{print, report, report_fault};
use crate::paths::{self, config_path, web_state_path};
use crate::reach::{Reach, reach};

/// A door answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  stdio-bus web url                          a link that opens the console of the running bus, once
  stdio-bus web url --scope approve --qr     one for a phone, which may answer questions and nothing more
  stdio-bus web links                        links that nobody has used yet
  stdio-bus web tokens                       tokens that links have given out
  stdio-bus web revoke 3f9a01cc              end one of either
  stdio-bus web                              open the door by hand, for a bus whose bus.json has no \"web\"

`serve` opens the door by itself where bus.json has \"web\": {\"listen\": \"http://127.0.0.1:9001\"}. A link is good \
once and for ten minutes; what it gives is a token, good for thirty days or until it is revoked.

Scopes: observe can watch, approve can also answer the questions of agents, control can also open sessions and \
prompt, admin can also manage pools and workers.";

const URL_EXAMPLES: &str = "\
Examples:
  stdio-bus web url --open                   the console, in the browser
  stdio-bus web url --scope approve --qr     for a phone";

const LINKS_EXAMPLES: &str = "\
Examples:
  stdio-bus web links
  stdio-bus web links --json | jq -r '.[].id'";

const TOKENS_EXAMPLES: &str = "\
Examples:
  stdio-bus web tokens
  stdio-bus web tokens --json | jq -r '.[] | select(.scope == \"admin\").id'";

const REVOKE_EXAMPLES: &str = "\
Examples:
  stdio-bus web revoke 3f9a01cc";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<WebCommand>,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(clap::Args)]
struct OpenArgs {
    /// Listen on this URL [default: web.listen of bus.json, else http://127.0.0.1:9001]
    #[arg(long, value_name = "URL", value_parser = config::parse_web)]
    listen: Option<WebConfig>,
    /// Serve the console from this folder, while you work on it
    #[arg(long, value_name = "DIR")]
    assets: Option<PathBuf>,
    /// A bus has started it, and tells it the rest on stdin
    #[arg(long, hide = true)]
    supervised: bool,
    #[command(flatten)]
    bus: BusArgs,
}

#[derive(clap::Subcommand)]
enum WebCommand {
    /// Print a link that opens the console, good once and for ten minutes
    #[command(after_help = URL_EXAMPLES)]
    Url(UrlArgs),
    /// List the links that were made and not used yet, without their codes
    #[command(after_help = LINKS_EXAMPLES)]
    Links(LinksArgs),
    /// List the tokens that links have given out
    #[command(after_help = TOKENS_EXAMPLES)]
    Tokens(TokensArgs),
    /// Revoke a link that was not used yet, or a token, and end its connections
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(RevokeArgs),
}

#[derive(clap::Args)]
struct UrlArgs {
    /// What the link allows: observe, approve, control or admin
    #[arg(long, value_name = "SCOPE", default_value = "admin")]
    scope: Scope,
    /// Also draw it as a QR code, on stderr
    #[arg(long)]
    qr: bool,
    /// Also open it in the browser
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(clap::Args)]
struct LinksArgs {
    /// Print the links as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(clap::Args)]
struct TokensArgs {
    /// Print the tokens as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(clap::Args)]
struct RevokeArgs {
    /// The id, as `web links` or `web tokens` shows it
    id: String,
    #[command(flatten)]
    config: ConfigArg,
}

#[derive(clap::Args)]
struct ConfigArg {
    /// The configuration of the bus [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
}

impl ConfigArg {
    /// What the door of the bus has given out: of the bus that is named, else of the running bus of this user where the
    /// folder has no bus.json, or one whose bus has no door.
    fn store(&self) -> Result<Store, Fault> {
        self.store_and_config().map(|(store, _)| store)
    }

    fn store_and_config(&self) -> Result<(Store, PathBuf), Fault> {
        let running =
            || paths::running_config().filter(|_| paths::named_config(self.config.as_deref()).is_none());
        match config_path(self.config.as_deref()) {
            Ok(config) => {
                let store = ConfigArg::store_of(&config)?;
                let has_door = store.doors().any(answers);
                match running().filter(|_| !has_door) {
                    Some(other) => Ok((ConfigArg::store_of(&other)?, other)),
                    None => Ok((store, config)),
                }
            }
            Err(why) => {
                let config = running().ok_or(Fault::NoAddress(why))?;
                Ok((ConfigArg::store_of(&config)?, config))
            }
        }
    }

    fn store_of(config: &Path) -> Result<Store, Fault> {
        let Some(path) = web_state_path(config) else {
            return Err(Fault::Failed(format!(
                "{}: there is no folder to keep its tokens in: set HOME or XDG_STATE_HOME",
                config.display()
            )));
        };
        Store::open(Some(path.clone())).map_err(|error| Fault::Failed(format!("{}: {error}", path.display())))
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    let outcome = match args.command {
        None => return open(args.open),
        Some(WebCommand::Url(args)) => url(&args),
        Some(WebCommand::Links(args)) => links(&args),
        Some(WebCommand::Tokens(args)) => tokens(&args),
        Some(WebCommand::Revoke(args)) => revoke(&args),
    };
    outcome.unwrap_or_else(|fault| report_fault(&fault))
}

fn url(args: &UrlArgs) -> Result<ExitCode, Fault> {
    let (mut store, config) = args.config.store_and_config()?;
    let at = store.doors().find(|door| answers(door)).map(|door| door.public.clone());
    let Some(at) = at else {
        return Err(no_door(&config));
    };
    let web = ClientConfig::load(&config).ok().and_then(|clients| clients.web);
    // A code that is drawn is for another device, and so is one that may only approve.
    let is_for_phone = args.qr || args.scope == Scope::Approve;
    let (at, missing) = match reach(&at, web.as_ref()) {
        Reach::At(url) if is_for_phone => (url, None),
        Reach::Nowhere(missing) if is_for_phone => (at, Some(missing)),
        _ => (at, None),
    };
    let code = store.add_code(args.scope).map_err(cannot_keep)?;
    let link = web::link::link(&at, &code);
    if args.qr {
        match web::link::qr(&link) {
            Some(drawn) => eprint!("{drawn}"),
            None => return Err(Fault::Failed("the link is too long for a QR code".to_owned())),
        }
    }
    if let Some(missing) = missing {
        report(missing, 0);
    }
    if args.open {
        let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        let started = Command::new(opener).arg(&link).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        if let Err(error) = started {
            report(
                format_args!("stdio-bus: no browser opens here ({opener}: {error}); open the link yourself:"),
                0,
            );
        }
    }
    Ok(print(&format!("{link}\n")))
}

/// Why the bus of this configuration has no door: it does not run, or runs without one.
fn no_door(config: &Path) -> Fault {
    let user_bus = paths::user_bus().filter(|user| {
        fs::canonicalize(&user.config).ok().is_some_and(|its| fs::canonicalize(config).ok() == Some(its))
    });
    let target = Target::resolve(TargetArgs::default(), || Ok(config.to_owned()), user_bus);
    let Ok(status) = target.and_then(|target| status::fetch(&target)) else {
        return Fault::Unreachable("no web door of this bus is open".to_owned());
    };
    let status: Value = serde_json::from_str(status.get()).unwrap_or_default();
    Fault::Failed(match status::why_down(&status["web"]) {
        _ if status["web"].is_null() => {
            let file = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
            let file = clients::with_tilde(&file.to_string_lossy());
            format!("this bus has no web door: set \"web\" in {file} or start with --web")
        }
        why => format!("the web door of this bus is not open: {why}; `stdio-bus status` shows it"),
    })
}

/// Whether this door is open. Without TLS it is asked; with it, it is enough that something listens. Its name may be
/// one that is known elsewhere alone, so it is reached by its address.
fn answers(door: &DoorPlace) -> bool {
    let Some((scheme, host)) = door.public.split_once("://") else { return false };
    let Ok(mut socket) = TcpStream::connect_timeout(&door.local, ANSWER_TIMEOUT) else { return false };
    let mut answer = [0; "HTTP/1.1 200".len()];
    let asked = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let _ = socket.set_read_timeout(Some(ANSWER_TIMEOUT));
    scheme == "https"
        || socket.write_all(asked.as_bytes()).and_then(|()| socket.read_exact(&mut answer)).is_ok()
            && answer == *b"HTTP/1.1 200"
}

fn links(args: &LinksArgs) -> Result<ExitCode, Fault> {
    let store = args.config.store()?;
    let links: Vec<_> = store.links().collect();
    if args.json {
        let shown = |seconds: u64| rfc3339_of_millis(seconds * 1000);
        let all = links.iter().map(|link| {
            let (created, expires) = (shown(link.created), shown(link.expires));
            json!({ "id": link.id, "scope": link.scope, "created": created, "expires": expires })
        });
        return Ok(print(&format!("{}\n", all.collect::<Value>())));
    }
    if links.is_empty() {
        return Ok(print("no links\n"));
    }
    let now = unix_ms() / 1000;
    let mut rows = vec![Vec::from(["ID", "SCOPE", "AGE", "EXPIRES"].map(Cell::new))];
    for link in links {
        let age = minutes(now.saturating_sub(link.created));
        let left = format!("in {}", minutes(link.expires.saturating_sub(now)));
        rows.push(Vec::from([link.id, link.scope.to_string(), age, left].map(Cell::new)));
    }
    Ok(print(&table::lines(&rows).iter().map(|line| format!("{line}\n")).collect::<String>()))
}

/// No link lives for an hour.
fn minutes(seconds: u64) -> String {
    format!("{}m {}s", seconds / 60, seconds % 60)
}

fn tokens(args: &TokensArgs) -> Result<ExitCode, Fault> {
    let store = args.config.store()?;
    let shown = |seconds: u64| rfc3339_of_millis(seconds * 1000);
    if args.json {
        let all: Vec<_> = store
            .tokens()
            .map(|token| {
                json!({
                    "id": token.id,
                    "scope": token.scope,
                    "created": shown(token.created),
                    "expires": shown(token.expires),
                    "by": token.by,
                })
            })
            .collect();
        return Ok(print(&format!("{}\n", json!(all))));
    }
    if store.tokens().next().is_none() {
        return Ok(print("no tokens\n"));
    }
    let mut rows = vec![Vec::from(["ID", "SCOPE", "CREATED", "BY"].map(Cell::new))];
    for token in store.tokens() {
        let row = [token.id.clone(), token.scope.to_string(), shown(token.created), token.by.clone()];
        rows.push(Vec::from(row.map(Cell::new)));
    }
    Ok(print(&table::lines(&rows).iter().map(|line| format!("{line}\n")).collect::<String>()))
}

fn revoke(args: &RevokeArgs) -> Result<ExitCode, Fault> {
    match args.config.store()?.revoke(&args.id).map_err(cannot_keep)? {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Fault::Failed(format!(
            "there is no link and no token {:?}: see `stdio-bus web links` and `stdio-bus web tokens`",
            args.id
        ))),
    }
}

fn cannot_keep(error: std::io::Error) -> Fault {
    Fault::Failed(format!("cannot write the tokens: {error}"))
}

/// Runs the door until it is told to end.
fn open(args: OpenArgs) -> ExitCode {
    kernel_shell::keep_memory_private();
    kernel_shell::start_logging(kernel_shell::LogFormat::Text, None);
    let outcome = options(args).and_then(|options| web::run(options).map_err(Fault::Failed));
    kernel_shell::flush_logs();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => report_fault(&fault),
    }
}

fn options(args: OpenArgs) -> Result<Options, Fault> {
    let OpenArgs { listen, assets, supervised, bus } = args;
    let path = bus.config_path();
    let state = path.as_deref().ok().and_then(web_state_path);
    if supervised {
        let (Orders { web, history }, target) = clients::read_orders().map_err(Fault::Failed)?;
        let history = history.and_then(|history| history.folder.or_else(paths::history_folder));
        return Ok(Options { web, target, state, history, assets, ends_with_stdin: true });
    }
    let web = match listen {
        Some(web) => web,
        None => configured(path.as_deref().ok())?,
    };
    let history = kept_sessions::folder(&bus).ok();
    Ok(Options { web, target: bus.target()?, state, history, assets, ends_with_stdin: false })
}

/// The door of bus.json, else one at the usual address.
fn configured(path: Option<&Path>) -> Result<WebConfig, Fault> {
    let configured = match path {
        Some(path) => ClientConfig::load(path).map_err(Fault::Config)?.web,
        None => None,
    };
    match configured {
        Some(web) => Ok(web),
        None => config::parse_web("http://127.0.0.1:9001").map_err(Fault::Failed),
    }
}
