//! Accepts connections and speaks HTTP/1.1 and HTTP/2 with them, with a limit for everything a peer can drag out.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use kernel_shell::LocalListener;
use log::{debug, warn};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::activity::{Activity, Transport, Watched};
use crate::door::Door;
use crate::request::Origin;
use crate::strangers::{Stranger, Strangers};

/// How long a peer may take for TLS, and then for its first whole request, and for the head of every later one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_BYTES: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
const STREAMS_MAX: u32 = 128;
const H2_PING: Duration = Duration::from_secs(20);
/// After an accept that failed for want of something, such as open files.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Accepts until the door closes.
pub(crate) async fn accept(
    mut listener: LocalListener,
    tls: Option<TlsAcceptor>,
    room: Arc<Semaphore>,
    strangers: Rc<Strangers>,
    door: Rc<Door>,
) -> io::Result<()> {
    let socket = TcpListener::from_std(listener.listener.try_clone()?)?;
    loop {
        // Who comes when there is no room waits in the backlog of the system.
        let Ok(permit) = room.clone().acquire_owned().await else { return Ok(()) };
        let (stream, peer) = match socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
                    warn!("cannot accept connections for now: {error}");
                    sleep(RETRY_AFTER).await;
                }
                continue;
            }
        };
        if !stream.local_addr().is_ok_and(|here| listener.admits(peer, here)) {
            warn!("a connection from {peer} was turned away: it belongs to another user");
            continue;
        }
        let stranger = strangers.enter();
        let served = serve(stream, peer, tls.clone(), door.clone(), permit, stranger.clone());
        spawn_local(async move {
            tokio::select! {
                () = served => {}
                () = stranger.gives_way() => debug!("{peer} gave way to others: it had shown no token"),
            }
        });
    }
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    door: Rc<Door>,
    permit: OwnedSemaphorePermit,
    stranger: Rc<Stranger>,
) {
    let _ = stream.set_nodelay(true);
    limit_unacknowledged(&stream);
    let transport = match tls {
        None => Transport::Plain(stream),
        Some(tls) => match timeout(HEAD_TIMEOUT, tls.accept(stream)).await {
            Ok(Ok(stream)) => Transport::Tls(Box::new(stream)),
            _ => return debug!("{peer} did not finish the TLS handshake"),
        },
    };
    let activity = Activity::new();
    let io = TokioIo::new(Watched::new(transport, activity.clone()));
    let has_asked = Rc::new(Cell::new(false));
    let asked = has_asked.clone();
    // An upgraded connection outlives the HTTP of it, and still takes its room.
    let permit = Rc::new(permit);
    let origin = Origin { peer, activity, permit, stranger };
    let service = service_fn({
        let door = door.clone();
        move |request| {
            asked.set(true);
            let answer = door.clone().answer(request, origin.clone());
            async move { Ok::<_, Infallible>(answer.await) }
        }
    });
    let builder = builder();
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut first_request = pin!(sleep(HEAD_TIMEOUT));
    let mut is_new = true;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!("{peer}: {error}");
                }
                return;
            }
            () = &mut first_request, if is_new => {
                if !has_asked.get() {
                    return debug!("{peer} did not ask for anything");
                }
                is_new = false;
            }
            () = door.stopped() => {
                connection.as_mut().graceful_shutdown();
                let _ = timeout(Duration::from_secs(1), connection).await;
                return;
            }
        }
    }
}

/// A peer that takes nothing for this long is closed by the system, whatever is written to it.
#[cfg(target_os = "linux")]
fn limit_unacknowledged(stream: &TcpStream) {
    use nix::sys::socket::{setsockopt, sockopt};

    const MILLIS: u32 = 60_000;
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &MILLIS);
}

#[cfg(not(target_os = "linux"))]
fn limit_unacknowledged(_stream: &TcpStream) {}

pub(crate) fn builder() -> Builder<LocalTasks> {
    let mut builder = Builder::new(LocalTasks);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES as u32)
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(H2_PING)
        .keep_alive_timeout(H2_PING);
    builder
}

/// Everything runs on one thread.
#[derive(Clone, Copy)]
pub(crate) struct LocalTasks;

impl<F: Future + 'static> Executor<F> for LocalTasks {
    fn execute(&self, task: F) {
        spawn_local(async move { drop(task.await) });
    }
}
