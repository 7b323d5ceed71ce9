//! Serves the figures of a bus to Prometheus: one path, no token, nothing but numbers and the names of pools and nodes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use clients::{Target, say};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use log::{debug, warn};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::figures::figures;
use crate::reply::{self, Reply};
use crate::run::until_told;
use crate::server;

/// Each asks the bus on a connection of its own.
const CONNECTIONS_MAX: usize = 16;
/// A connection that lasts longer is closed; Prometheus makes another.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Listens there until a signal ends it, and says on stdout, as one line of JSON, where that is.
pub fn export(host: &str, port: u16, target: Target) -> Result<(), String> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(CONNECTIONS_MAX)
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind((host, port))
            .await
            .map_err(|error| format!("cannot listen at {host}:{port}: {error}"))?;
        let here = listener.local_addr().map_err(|error| error.to_string())?;
        say(&json!({ "listening": format!("http://{here}/metrics") }));
        tokio::select! {
            () = accept(listener, Arc::new(target)) => {}
            _ = until_told(false) => {}
        }
        Ok(())
    })
}

async fn accept(listener: TcpListener, target: Arc<Target>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => drop(spawn_local(serve(stream, target.clone(), permit))),
            Err(error) => {
                warn!("cannot accept connections for now: {error}");
                sleep(RETRY_AFTER).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, target: Arc<Target>, _permit: OwnedSemaphorePermit) {
    let service = service_fn(move |request| {
        let target = target.clone();
        async move { Ok::<_, Infallible>(reply::finish(answer(&request, &target).await)) }
    });
    let builder = server::builder();
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(CONNECTION_TIMEOUT, connection).await {
        debug!("{error}");
    }
}

async fn answer(request: &Request<Incoming>, target: &Target) -> Reply {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return reply::text(StatusCode::METHOD_NOT_ALLOWED, "GET is what this is for");
    }
    match request.uri().path() {
        "/metrics" => figures(target).await,
        _ => reply::text(StatusCode::NOT_FOUND, "the figures are at /metrics"),
    }
}
