//! The life of one MCP server: connect, list the tools, serve calls, end.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, PaginatedRequestParams, Tool};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, Peer, RoleClient, ServiceExt};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use ureq::http::{HeaderName, HeaderValue};

use super::http::{Headers, HttpClient};
use super::process::Process;
use super::secrets::Secrets;
use super::sse_transport::SseTransport;
use crate::lock::lock;

/// Where the servers of a session work.
#[derive(Clone)]
pub(in crate::openai) struct Workspace {
    pub(in crate::openai) cwd: PathBuf,
    /// How HTTP requests are made.
    pub(in crate::openai) http: ureq::config::Config,
}

/// A server may have to be downloaded first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// More tools cannot be offered anyway.
const LISTED_TOOLS_MAX: usize = 1000;

pub(super) struct Server {
    pub(super) name: String,
    pub(super) secrets: Secrets,
    phase: Mutex<Phase>,
}

pub(super) enum Phase {
    Starting,
    Ready {
        peer: Peer<RoleClient>,
        tools: Vec<Tool>,
    },
    /// The server does not work, and this is why.
    Failed(String),
}

/// What the server may tell us. It may ask nothing.
struct Handler {
    tools_changed: Arc<Notify>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::default();
        ClientConfig::new(capabilities, Implementation::new("stdio-bus", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.tools_changed.notify_one();
    }
}

type Running = RunningService<RoleClient, Handler>;

impl Server {
    pub(super) fn new(name: String, secrets: Secrets) -> Server {
        Server { name, secrets, phase: Mutex::new(Phase::Starting) }
    }

    pub(super) fn phase(&self) -> MutexGuard<'_, Phase> {
        lock(&self.phase)
    }

    /// Runs until `stop` or the end of the server. Calls `settled` when it is known whether the server works.
    pub(super) async fn run(
        self: Arc<Server>,
        spec: acp::McpServer,
        workspace: Workspace,
        mut stop: watch::Receiver<()>,
        settled: impl Fn() + Send,
    ) {
        let tools_changed = Arc::new(Notify::new());
        let handler = Handler { tools_changed: tools_changed.clone() };
        let mut process = None;
        let connecting =
            timeout(CONNECT_TIMEOUT, connect(&spec, &workspace, &self.secrets, handler, &mut process));
        let connected = tokio::select! {
            connected = connecting => connected.unwrap_or_else(|_| Err("no answer in time".to_owned())),
            _ = stop.changed() => return,
        };
        let running = match connected {
            Ok((running, tools)) => {
                *self.phase() = Phase::Ready { peer: running.peer().clone(), tools };
                settled();
                running
            }
            Err(why) => {
                self.fail(why, process).await;
                settled();
                return;
            }
        };
        let peer = running.peer().clone();
        let token = running.cancellation_token();
        let mut ended = pin!(running.waiting());
        loop {
            tokio::select! {
                _ = stop.changed() => break,
                _ = &mut ended => {
                    self.fail("it has ended".to_owned(), process).await;
                    settled();
                    return;
                }
                () = tools_changed.notified() => {
                    if let Ok(Ok(listed)) = timeout(LIST_TIMEOUT, list_tools(&peer)).await
                        && let Phase::Ready { tools, .. } = &mut *self.phase()
                    {
                        *tools = listed;
                    }
                }
            }
        }
        token.cancel();
        let _ = timeout(CLOSE_TIMEOUT, ended).await;
        if let Some(process) = process {
            process.end().await;
        }
    }

    async fn fail(&self, why: String, process: Option<Process>) {
        let last_line = match process {
            Some(mut process) => process.last_line().await,
            None => String::new(),
        };
        let gap = if last_line.is_empty() { "" } else { "; its last words: " };
        *self.phase() = Phase::Failed(self.secrets.redact(&format!("{why}{gap}{last_line}")));
    }
}

async fn connect(
    spec: &acp::McpServer,
    workspace: &Workspace,
    secrets: &Secrets,
    handler: Handler,
    process: &mut Option<Process>,
) -> Result<(Running, Vec<Tool>), String> {
    let running = match spec {
        acp::McpServer::Stdio(stdio) => {
            let (transport, started) = Process::start(stdio, &workspace.cwd, secrets)?;
            *process = Some(started);
            handler.serve(transport).await
        }
        acp::McpServer::Http(http) => {
            let client = HttpClient::new(workspace.http.clone());
            let config = StreamableHttpClientTransportConfig::with_uri(http.url.as_str())
                .custom_headers(headers(&http.headers)?);
            handler.serve(StreamableHttpClientTransport::with_client(client, config)).await
        }
        acp::McpServer::Sse(sse) => {
            let client = HttpClient::new(workspace.http.clone());
            let connected = SseTransport::connect(client, &sse.url, headers(&sse.headers)?).await;
            handler.serve(connected.map_err(|error| error.to_string())?).await
        }
        _ => return Err("its kind is not supported".to_owned()),
    };
    let running = running.map_err(|error| with_causes(&error))?;
    let has_tools = running.peer().peer_info().is_some_and(|info| info.capabilities.tools.is_some());
    let tools = if has_tools { list_tools(running.peer()).await? } else { Vec::new() };
    Ok((running, tools))
}

async fn list_tools(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, String> {
    let mut tools = Vec::new();
    let mut cursor = None;
    loop {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let listed = peer.list_tools(Some(page)).await.map_err(|error| with_causes(&error))?;
        tools.extend(listed.tools);
        cursor = listed.next_cursor;
        if cursor.is_none() || tools.len() >= LISTED_TOOLS_MAX {
            return Ok(tools);
        }
    }
}

fn headers(headers: &[acp::HttpHeader]) -> Result<Headers, String> {
    let header = |header: &acp::HttpHeader| {
        let name = HeaderName::try_from(header.name.as_str()).ok()?;
        Some((name, HeaderValue::try_from(header.value.as_str()).ok()?))
    };
    let all: Option<HashMap<_, _>> = headers.iter().map(header).collect();
    all.ok_or_else(|| "one of its headers cannot be sent".to_owned())
}

/// An error and what it comes from: the last is often the only one of use.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
