//! The connection to NATS: who we are there, over what, and what becomes of it.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ClientError, ConnectErrorKind, ConnectOptions, Event, ServerError};
use kernel_core::config::ClusterConfig;
use kernel_shell::config::is_loopback_server;
use log::{debug, warn};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::End;
use crate::identity::Prover;
use crate::pipe::MIN_FRAME_BYTES;
use crate::pipe::frame::MAX_FRAME_BYTES;
use crate::subjects;

/// A server that hangs is found by two pings that it does not answer.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages that wait for one subscription. Windows keep them far below it.
const SUBSCRIPTION_CAPACITY: usize = 131_072;
/// Messages that wait for the connection.
const CLIENT_CAPACITY: usize = 65_536;
/// The longest pause between two tries to connect.
const LONGEST_PAUSE_MS: u64 = 1000;

/// What becomes of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It was made, or made anew.
    Connected,
    Disconnected,
    /// The server refuses something, such as a subject.
    Refused(String),
    /// The server does not let us in, and why. It is asked again and again.
    ShutOut(String),
}

/// A connection to NATS that is made anew whenever it breaks.
pub(crate) struct Carrier {
    pub(crate) client: Client,
    pub(crate) changes: UnboundedReceiver<Change>,
}

impl Carrier {
    /// Connects once. `name` is ours, and `what` is what the operators of the servers see.
    pub(crate) async fn connect(cluster: &ClusterConfig, name: &str, what: &str) -> Result<Carrier, End> {
        let shown = cluster.url.join(", ");
        let (tell, changes) = unbounded_channel();
        let (ask_reconnect, mut reconnects) = unbounded_channel::<()>();
        let options = options(cluster, name, what)?.event_callback(move |event| {
            let change = match event {
                Event::Connected => Some(Change::Connected),
                Event::Disconnected => Some(Change::Disconnected),
                // The server is about to stop. Its other connections move as well, each after a moment of its own.
                Event::LameDuckMode => {
                    let _ = ask_reconnect.send(());
                    None
                }
                Event::ServerError(ServerError::Other(text)) => Some(Change::Refused(subjects::shown(&text))),
                Event::ServerError(error) => Some(Change::Refused(subjects::shown(&error.to_string()))),
                Event::ClientError(ClientError::Other(what)) if is_shut_out(&what) => {
                    Some(Change::ShutOut(shut_out(&what)))
                }
                Event::SlowConsumer(_) => {
                    warn!("messages of NATS were dropped, because this process did not take them in time");
                    None
                }
                other => {
                    debug!("nats: {other}");
                    None
                }
            };
            if let Some(change) = change {
                let _ = tell.send(change);
            }
            std::future::ready(())
        });
        let client = options.connect(&cluster.url).await.map_err(|error| match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                End::refused(format!("{shown}: {}", shut_out(&error.to_string())))
            }
            _ if !is_local(cluster) => End::unavailable(format!(
                "no NATS server with TLS answers at {shown}, and off loopback there must be TLS: {}",
                cause_of(&error, cluster)
            )),
            _ => {
                End::unavailable(format!("no NATS server answers at {shown}: {}", cause_of(&error, cluster)))
            }
        })?;
        if client.max_payload() < MIN_FRAME_BYTES {
            let most = client.max_payload();
            return Err(End::misconfigured(format!(
                "max_payload of NATS is {most}, and {MIN_FRAME_BYTES} are needed"
            )));
        }
        let reconnecting = client.clone();
        tokio::spawn(async move {
            while reconnects.recv().await.is_some() {
                // Where there is no other server, this one serves us as long as it can.
                if reconnecting.server_pool().await.is_ok_and(|pool| pool.len() > 1) {
                    let _ = reconnecting.force_reconnect().await;
                }
            }
        });
        Ok(Carrier { client, changes })
    }
}

/// Whether nothing leaves this machine before it has reached a server.
fn is_local(cluster: &ClusterConfig) -> bool {
    cluster.url.iter().all(|url| is_loopback_server(url))
}

/// Whether messages are sent now, and not kept for a later connection.
pub(crate) fn is_connected(client: &Client) -> bool {
    client.connection_state() == State::Connected
}

/// The longest frame that the server takes.
pub(crate) fn max_frame_bytes(client: &Client) -> usize {
    client.max_payload().min(MAX_FRAME_BYTES)
}

fn options(cluster: &ClusterConfig, name: &str, what: &str) -> Result<ConnectOptions, End> {
    // Which of several providers TLS takes does not depend on what else is built in.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let is_local = is_local(cluster);
    let options = match Prover::new(cluster).map_err(End::misconfigured)? {
        Some(prover) => {
            ConnectOptions::with_auth_callback(move |nonce| std::future::ready(prover.prove(&nonce)))
        }
        None => ConnectOptions::new(),
    };
    let mut options = options
        .name(what)
        .custom_inbox_prefix(subjects::inbox(name))
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(CLIENT_CAPACITY)
        .read_buffer_capacity(u16::MAX)
        .skip_subject_validation(true)
        .require_tls(!is_local)
        .reconnect_delay_callback(pause);
    if is_local {
        // Servers that these name may be on other machines, and there is no TLS here.
        options = options.ignore_discovered_servers();
    }
    if let Some(ca) = &cluster.ca {
        options = options.add_root_certificates(ca.clone());
    }
    Ok(options)
}

/// Whether this error of a try to connect says that the server does not know us. The async client tells it as text.
fn is_shut_out(error: &str) -> bool {
    [ConnectErrorKind::AuthorizationViolation, ConnectErrorKind::Authentication]
        .iter()
        .any(|kind| kind.to_string() == error)
}

/// What people are told about that.
fn shut_out(error: &str) -> String {
    format!("NATS does not let us in ({error}): see cluster.creds or cluster.nkey")
}

/// The pause before a try to connect: none before the first, then longer ones, none of them alike.
fn pause(attempt: usize) -> Duration {
    let most = match attempt {
        0 | 1 => return Duration::ZERO,
        attempt => (5_u64 << attempt.min(8)).min(LONGEST_PAUSE_MS),
    };
    Duration::from_millis(fastrand::u64(most / 2..=most))
}

/// Why there is no connection. Where a certificate is not believed, also which authorities are.
fn cause_of(error: &async_nats::ConnectError, cluster: &ClusterConfig) -> String {
    let why = cause(error);
    if error.kind() != ConnectErrorKind::Tls && !why.contains("certificate") {
        return why;
    }
    match &cluster.ca {
        Some(path) => {
            format!("{why}: cluster.ca (--ca) names the authorities of servers, and is {}", path.display())
        }
        None => format!(
            "{why}: cluster.ca (--ca) names the authorities of servers; without it they are the system's"
        ),
    }
}

/// The innermost reason of an error: the outer ones only name the step.
fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    subjects::shown(&inner.to_string())
}
