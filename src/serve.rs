//! `serve`: runs the bus.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clients::exit;
use kernel_core::config::{Address, Config, Listen, PoolConfig, Program, WebConfig};
use kernel_shell::config::{self, ConfigError, ConfigErrors};
use kernel_shell::{Carried, CompanionArgs, ServeError, UserSocket};
use workers::folders;

use crate::output::report;
use crate::{log_filter, paths, unexpanded};

pub(crate) const EXAMPLES: &str = "\
Examples:
  stdio-bus serve                            what ./bus.json declares
  stdio-bus serve --config my.json --unix /tmp/bus.sock
  stdio-bus serve --stdio                    one client, on stdin and stdout
  stdio-bus serve --config-fd 3 3< my.json   the configuration of a program that keeps it in memory

Prints one JSON line per address on stdout once it accepts connections. SIGTERM lets the calls in flight finish and \
ends every worker; a second one does not wait. SIGHUP reloads the configuration. SIGUSR2 has the bus become the \
program that is now at the path it was started by, as `stdio-bus upgrade` does.";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration [default: $STDIO_BUS_CONFIG, else ./bus.json, else ~/.config/stdio-bus/bus.json]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Read the configuration from this open file descriptor; paths in it are relative to the working folder
    #[arg(long, value_name = "N", conflicts_with = "config", value_parser = clap::value_parser!(i32).range(3..))]
    config_fd: Option<i32>,
    /// Listen on this address instead of those of the configuration; port 0 picks a free port
    #[arg(long, alias = "port", value_name = "HOST:PORT", value_parser = config::parse_tcp)]
    tcp: Vec<Address>,
    /// Listen on this socket instead of the addresses of the configuration
    #[arg(long, value_name = "PATH", value_parser = parse_unix)]
    unix: Vec<Address>,
    /// Serve one client on stdin and stdout instead of listening
    #[arg(long)]
    stdio: bool,
    /// Open the web door at this URL instead of that of the configuration, or not at all
    #[arg(long, value_name = "URL|off", value_parser = parse_web)]
    web: Option<Web>,
    /// Format of the log on stderr: for people, or one JSON object per line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Where the web door is, if the command line says so.
#[derive(Clone)]
enum Web {
    Off,
    At(WebConfig),
}

fn parse_web(text: &str) -> Result<Web, String> {
    if text == "off" { Ok(Web::Off) } else { config::parse_web(text).map(Web::At) }
}

pub(crate) fn run(args: Args) -> ExitCode {
    // This must happen before the token is read.
    kernel_shell::keep_memory_private();
    // The log has a thread, so this comes before it.
    let handover = match kernel_shell::Handover::from_env() {
        Ok(handover) => handover,
        Err(message) => {
            return report(format_args!("stdio-bus: cannot go on in the place of another: {message}"), 1);
        }
    };
    let listeners = match args.listeners() {
        Ok(listeners) => listeners,
        Err(message) => return report(format_args!("stdio-bus: {message}"), 2),
    };
    let sockets = match kernel_shell::InheritedSockets::from_env() {
        Ok(sockets) => sockets,
        Err(error) => {
            return report(format_args!("stdio-bus: cannot use the sockets of LISTEN_FDS: {error}"), 1);
        }
    };
    let inherited = sockets.addresses();
    let carried = match &handover {
        Some(handover) => handover.carried().clone(),
        None => match Source::find(&args) {
            Ok(Source { path: config_path, text: config_text }) => {
                Carried { config_path, config_text, inherited, since_ms: rpc::text::unix_ms() }
            }
            Err(message) => return report(format_args!("stdio-bus: {message}"), exit::BAD_CONFIGURATION),
        },
    };
    let source = Source { path: carried.config_path.clone(), text: carried.config_text.clone() };
    let addresses = Addresses { listeners, inherited: carried.inherited.clone() };
    let path = source.path.clone();
    let web = args.web;
    // A bus that goes on in the place of another has the configuration of that one, whatever the file says by now.
    let loaded = match &handover {
        Some(handover) => Ok(handover.config().clone()),
        None => load(&source, &addresses, web.as_ref()),
    };
    let config = match loaded {
        Ok(config) => config,
        Err(faults) => return report(faults, exit::BAD_CONFIGURATION),
    };
    let this_binary = match env::current_exe() {
        Ok(path) => path,
        Err(error) => return report(format_args!("stdio-bus: cannot find its own file: {error}"), 1),
    };
    let config_file = source.is_file().then(|| std::path::absolute(&path).unwrap_or_else(|_| path.clone()));
    // Who names an address wants a bus that is found there alone, and who reads stdout has one of its own.
    let is_own =
        !addresses.listeners.is_empty() || config.listen.iter().all(|listen| listen.at == Address::Stdio);
    let user_socket = paths::user_socket().filter(|_| !is_own);
    let user_socket = user_socket.map(|path| UserSocket { path, config: config_file.clone() });
    let handshake_cache = paths::handshake_cache_path(&path);
    paths::forget_old_handshakes();
    let companions = CompanionArgs {
        web: web_args(&path),
        link: link_args(carried.since_ms),
        history: history_args(),
        notify: notify_args(),
    };
    if let Some(fault) = env::var("RUST_LOG").ok().and_then(|filter| log_filter::fault(&filter)) {
        report(format_args!("stdio-bus: {fault}"), 0);
    }
    let log_format = match args.log_format {
        LogFormat::Text => kernel_shell::LogFormat::Text,
        LogFormat::Json => kernel_shell::LogFormat::Json,
    };
    kernel_shell::start_logging(log_format, folders::state().map(|state| state.join("bus.log")).as_deref());
    let text = if handover.is_some() { String::new() } else { source.text() };
    for warning in unexpanded::find(&text).into_iter().chain(config::ignored_keys(&text)) {
        log::warn!("{}: {warning}", path.display());
    }
    let served = kernel_shell::serve(kernel_shell::Options {
        config,
        sockets,
        user_socket,
        config_file,
        commit: option_env!("BUS_COMMIT"),
        reload: Box::new(move || {
            load(&source, &addresses, web.as_ref()).map_err(|faults| faults.to_string())
        }),
        started_by: kernel_shell::started_by(&this_binary),
        this_binary,
        handshake_cache,
        guard_args: vec!["internal-guard".into()],
        mark_folder: paths::mark_folder(),
        companions,
        carried,
        handover,
    });
    kernel_shell::flush_logs();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_misconfigured() => {
            report(format_args!("stdio-bus: {error}"), exit::BAD_CONFIGURATION)
        }
        Err(error) if error.is_locked() => report(format_args!("stdio-bus: {error}"), exit::TRY_LATER),
        Err(error @ ServeError::Poll(_)) => report(format_args!("stdio-bus: {error}"), exit::INTERNAL),
        Err(error) => report(format_args!("stdio-bus: {error}"), 1),
    }
}

/// With these arguments this program is the web door of the bus. Empty: it was built without one.
fn web_args(config: &Path) -> Vec<OsString> {
    if !cfg!(feature = "web") {
        return Vec::new();
    }
    let config = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
    vec!["web".into(), "--supervised".into(), "--config".into(), config.into()]
}

/// With these arguments this program writes down what is said.
fn history_args() -> Vec<OsString> {
    vec!["history".into(), "--supervised".into()]
}

/// With these arguments this program tells people who are away.
fn notify_args() -> Vec<OsString> {
    vec!["notify".into(), "--supervised".into()]
}

/// With these arguments this program links the bus to the cluster. Empty: it was built without that.
#[cfg(feature = "cluster")]
fn link_args(since_ms: u64) -> Vec<OsString> {
    // The next link of this bus has had the name of the node for as long as the bus has.
    vec!["link".into(), "--supervised".into(), "--since".into(), since_ms.to_string().into()]
}

#[cfg(not(feature = "cluster"))]
fn link_args(_since_ms: u64) -> Vec<OsString> {
    Vec::new()
}

/// Where the bus listens, beside what the configuration says.
struct Addresses {
    /// Those of the command line replace the `listen` of the configuration, unless there are none.
    listeners: Vec<Listen>,
    /// Those at which a service manager listens for the bus.
    inherited: Vec<Address>,
}

/// Where the configuration comes from.
struct Source {
    /// Of a text, a name for it in the working folder, which its paths are relative to.
    path: PathBuf,
    /// What was read from a file descriptor. It cannot be read again.
    text: Option<String>,
}

impl Source {
    fn find(args: &Args) -> Result<Source, String> {
        let Some(fd) = args.config_fd else {
            return Ok(Source { path: paths::config_path(args.config.as_deref())?, text: None });
        };
        let text = fs::read_to_string(format!("/dev/fd/{fd}"));
        let text = text.map_err(|error| format!("--config-fd {fd}: {error}"))?;
        // No worker inherits it.
        let _ = nix::unistd::close(fd);
        Ok(Source { path: format!("fd-{fd}").into(), text: Some(text) })
    }

    fn is_file(&self) -> bool {
        self.text.is_none()
    }

    fn text(&self) -> String {
        self.text.clone().unwrap_or_else(|| fs::read_to_string(&self.path).unwrap_or_default())
    }

    fn load(&self) -> Result<Config, ConfigErrors> {
        let Some(text) = &self.text else { return config::load(&self.path) };
        let folder = env::current_dir().unwrap_or_default();
        config::parse(text, &folder)
            .map_err(|faults| ConfigErrors::in_file(self.path.display().to_string(), text, faults.errors))
    }
}

/// Loads the configuration.
fn load(source: &Source, addresses: &Addresses, web: Option<&Web>) -> Result<Config, ConfigErrors> {
    let path = source.path.as_path();
    let mut config = source.load()?;
    if let Some(web) = web {
        config.web = door_at(web, config.web.take()).map_err(|message| {
            let error = ConfigError { path: "web".to_owned(), message };
            ConfigErrors::in_file(path.display().to_string(), "", vec![error])
        })?;
    }
    if !addresses.listeners.is_empty() {
        config.listen = addresses.listeners.clone();
    }
    for at in &addresses.inherited {
        if !config.listen.iter().any(|listen| listen.at == *at) {
            config.listen.push(Listen { at: at.clone(), pool: None });
        }
    }
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned();
    let place = place(&path, &addresses.listeners, &config.listen);
    for pool in config.pools.iter_mut().filter(|pool| is_in_cluster(pool)) {
        let args = &mut Arc::make_mut(pool).args;
        if needs_config(args) {
            args.extend(["--config".to_owned(), path.clone()]);
        }
        if let Some(place) = &place {
            args.extend(["--place".to_owned(), place.clone()]);
        }
    }
    Ok(config)
}

/// The door where the command line wants it. The names and the certificate stay those of the file, but a door that
/// speaks http has no use for a certificate.
fn door_at(web: &Web, configured: Option<WebConfig>) -> Result<Option<WebConfig>, String> {
    let Web::At(at) = web else { return Ok(None) };
    let mut door = at.clone();
    if let Some(WebConfig { tls, hosts, origins, push, .. }) = configured {
        (door.tls, door.hosts, door.origins) = (tls.filter(|_| at.https), hosts, origins);
        door.push = push;
    }
    if door.https && door.tls.is_none() {
        return Err(format!(
            "--web {at} needs a certificate: name its files in web.tls.cert and web.tls.key"
        ));
    }
    Ok(Some(door))
}

/// What is the same in each life of this bus, and no other bus has that runs meanwhile: its file, and the addresses
/// that the command line puts in place of those of the file. `None`: another bus could listen just so beside it.
fn place(config: &str, flags: &[Listen], listen: &[Listen]) -> Option<String> {
    let is_taken = |listen: &Listen| listen.at != Address::Stdio && listen.at.is_exclusive();
    let addresses: String = flags.iter().map(|listen| format!(" {listen}")).collect();
    listen.iter().any(is_taken).then(|| format!("{config}{addresses}"))
}

/// Whether the workers of the pool carry one of the cluster.
fn is_in_cluster(pool: &PoolConfig) -> bool {
    pool.program == Program::ThisBinary && pool.args.starts_with(&["agent".into(), "nats".into()])
}

/// Whether the cluster of such a pool is that of this file, because its arguments do not say where it is.
fn needs_config(args: &[String]) -> bool {
    let says = |flag: &str| {
        let with_value = format!("{flag}=");
        args.iter().any(|arg| arg == flag || arg.starts_with(&with_value))
    };
    !says("--url") && !says("--config")
}

impl Args {
    /// The addresses that replace `listen`; empty if there are none.
    pub(crate) fn listeners(&self) -> Result<Vec<Listen>, String> {
        let stdio = self.stdio.then_some(Address::Stdio);
        let addresses = self.tcp.iter().chain(&self.unix).cloned().chain(stdio).collect::<Vec<_>>();
        for (index, address) in addresses.iter().enumerate() {
            if address.is_exclusive() && addresses[..index].contains(address) {
                return Err(format!("{address} is named twice"));
            }
        }
        Ok(addresses.into_iter().map(Listen::from).collect())
    }
}

fn parse_unix(path: &str) -> Result<Address, String> {
    let here = env::current_dir().map_err(|error| format!("the working folder is gone: {error}"))?;
    config::parse_unix(path, &here)
}

#[cfg(test)]
mod tests {
    use kernel_core::config::WebTls;

    use super::*;

    fn args(tcp: &[&str], unix: &[&str], stdio: bool) -> Args {
        let tcp = tcp.iter().map(|text| config::parse_tcp(text).unwrap()).collect();
        let unix = unix.iter().map(|path| config::parse_unix(path, Path::new("/run")).unwrap()).collect();
        Args { config: None, config_fd: None, tcp, unix, stdio, web: None, log_format: LogFormat::Text }
    }

    #[test]
    fn the_flags_of_the_command_line_add_up() {
        assert_eq!(args(&[], &[], false).listeners(), Ok(Vec::new()));
        let listeners =
            args(&["[::1]:1", "localhost:0", "localhost:0"], &["bus.sock"], true).listeners().unwrap();
        let urls = listeners.iter().map(Listen::to_string).collect::<Vec<_>>();
        assert_eq!(
            urls,
            ["tcp://[::1]:1", "tcp://localhost:0", "tcp://localhost:0", "unix:///run/bus.sock", "stdio:"]
        );
    }

    #[test]
    fn a_door_of_the_command_line_has_the_certificate_of_the_file_if_it_speaks_https() {
        let at = |url: &str| parse_web(url).unwrap();
        let tls = Some(WebTls { cert: "c.pem".into(), key: "k.pem".into() });
        let hosts = vec!["bus.example".to_owned()];
        let own = config::parse_web("https://0.0.0.0:9443").unwrap();
        let own = || Some(WebConfig { tls: tls.clone(), hosts: hosts.clone(), ..own.clone() });
        let moved = |url: &str| door_at(&at(url), own()).unwrap().unwrap();
        let plain = moved("http://127.0.0.1:1");
        assert_eq!(
            (plain.to_string().as_str(), plain.tls, &plain.hosts),
            ("http://127.0.0.1:1", None, &hosts)
        );
        let secure = moved("https://127.0.0.1:2");
        assert_eq!((secure.to_string().as_str(), &secure.tls), ("https://127.0.0.1:2", &tls));
        assert_eq!(door_at(&at("off"), own()), Ok(None));
        assert!(door_at(&at("http://127.0.0.1:1"), None).unwrap().is_some());
        let refused = door_at(&at("https://127.0.0.1:1"), None).unwrap_err();
        assert!(refused.starts_with("--web https://127.0.0.1:1 needs a certificate"), "{refused}");
    }

    #[test]
    fn workers_in_the_cluster_are_told_which_file_has_it() {
        let asks =
            |args: &[&str]| needs_config(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert!(asks(&["agent", "nats", "--pool", "a"]));
        assert!(!asks(&["agent", "nats", "--pool", "a", "--url=nats://hub"]));
        assert!(!asks(&["agent", "nats", "--config", "x"]));
        let mut pool = PoolConfig::new("a", Program::ThisBinary);
        pool.args = ["agent", "nats"].map(str::to_owned).to_vec();
        assert!(is_in_cluster(&pool));
        pool.args[1] = "echo".to_owned();
        assert!(!is_in_cluster(&pool));
    }

    #[test]
    fn a_bus_has_a_place_if_only_one_can_be_there() {
        let listeners = |tcp: &[&str], stdio| args(tcp, &[], stdio).listeners().unwrap();
        let (fixed, free, stdio) =
            (listeners(&["[::1]:1"], false), listeners(&["[::1]:0"], false), listeners(&[], true));
        assert_eq!(place("/a/bus.json", &[], &fixed).as_deref(), Some("/a/bus.json"));
        // The same file, with other addresses.
        assert_eq!(place("/a/bus.json", &fixed, &fixed).as_deref(), Some("/a/bus.json tcp://[::1]:1"));
        assert_eq!([place("/a/bus.json", &[], &free), place("/a/bus.json", &stdio, &stdio)], [None, None]);
    }

    #[test]
    fn no_address_is_taken_twice() {
        let twice = args(&["127.0.0.1:1", "127.0.0.1:1"], &[], false).listeners();
        assert_eq!(twice, Err("tcp://127.0.0.1:1 is named twice".to_owned()));
        assert_eq!(
            args(&[], &["a", "/run/a"], false).listeners(),
            Err("unix:///run/a is named twice".to_owned())
        );
    }
}
