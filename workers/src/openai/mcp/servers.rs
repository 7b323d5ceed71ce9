//! The MCP servers of one session, as the threads of the agent see them.
//!
//! Dropping them ends them.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol_schema::v1 as acp;
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::result::CallResult;
use super::runtime::Runtime;
use super::secrets::Secrets;
use super::server::{Phase, Server, Workspace, with_causes};
use super::tools::{McpTool, offered};
use crate::lock::lock;
use crate::openai::session::TurnEvent;

/// More servers of one session are left out.
const SERVERS_MAX: usize = 16;
/// A call that takes longer is given up, because one that never ends would block the turn.
const CALL_TIMEOUT: Duration = Duration::from_secs(600);

pub(in crate::openai) struct Servers {
    specs: Vec<acp::McpServer>,
    servers: Vec<Arc<Server>>,
    told: Mutex<Told>,
    /// Turns that wait until all servers are settled.
    waiting: Arc<Mutex<Vec<Sender<TurnEvent>>>>,
    runtime: Option<Handle>,
    _stop: watch::Sender<()>,
}

/// What the user knows already.
#[derive(Default)]
struct Told {
    failed: Vec<usize>,
    left_out_servers: bool,
    left_out_tools: usize,
}

/// A call that runs. Dropping it cancels it.
pub(in crate::openai) struct Call(AbortHandle);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Servers {
    pub(in crate::openai) fn start(
        runtime: &Runtime,
        specs: Vec<acp::McpServer>,
        workspace: &Workspace,
    ) -> Servers {
        let (stop, stopped) = watch::channel(());
        let server = |spec| Arc::new(Server::new(name_of(spec), Secrets::of(spec)));
        let mut all = Servers {
            servers: specs.iter().take(SERVERS_MAX).map(server).collect(),
            specs,
            told: Mutex::default(),
            waiting: Arc::default(),
            runtime: None,
            _stop: stop,
        };
        for (server, spec) in all.servers.iter().zip(&all.specs) {
            let waiting = all.waiting.clone();
            let settled = move || {
                for turn in lock(&waiting).iter() {
                    let _ = turn.send(TurnEvent::Settled);
                }
            };
            let life = server.clone().run(spec.clone(), workspace.clone(), stopped.clone(), settled);
            match runtime.spawn(life) {
                Ok(handle) => all.runtime = Some(handle),
                Err(why) => *server.phase() = Phase::Failed(why),
            }
        }
        all
    }

    /// Whether they are these servers, and all work or may still do so.
    pub(in crate::openai) fn can_serve(&self, specs: &[acp::McpServer]) -> bool {
        self.specs == specs && !self.servers.iter().any(|server| matches!(*server.phase(), Phase::Failed(_)))
    }

    /// The servers of which it is not known yet if they work.
    pub(in crate::openai) fn starting(&self) -> Vec<&str> {
        let is_starting = |server: &&Arc<Server>| matches!(*server.phase(), Phase::Starting);
        self.servers.iter().filter(is_starting).map(|server| server.name.as_str()).collect()
    }

    /// Sends an event whenever a server settles.
    pub(in crate::openai) fn wake(&self, turn: Sender<TurnEvent>) {
        let mut waiting = lock(&self.waiting);
        waiting.clear();
        waiting.push(turn);
    }

    /// What the user does not know yet: which servers do not work, and what is left out.
    pub(in crate::openai) fn news(&self) -> Vec<String> {
        let mut told = lock(&self.told);
        let mut news = Vec::new();
        for (at, server) in self.servers.iter().enumerate() {
            if let Phase::Failed(why) = &*server.phase()
                && !told.failed.contains(&at)
            {
                told.failed.push(at);
                news.push(format!("The MCP server {} is not used: {why}.\n", server.name));
            }
        }
        let servers = self.specs.len() - self.servers.len();
        if servers > 0 && !told.left_out_servers {
            told.left_out_servers = true;
            news.push(format!("{servers} MCP servers are not used: {SERVERS_MAX} are the most.\n"));
        }
        let (_, tools) = self.offered();
        if tools > told.left_out_tools {
            told.left_out_tools = tools;
            news.push(format!(
                "{tools} tools of MCP servers are not offered: they are too many or too long.\n"
            ));
        }
        news
    }

    /// All tools of the servers that work.
    pub(in crate::openai) fn tools(&self) -> Vec<McpTool> {
        self.offered().0
    }

    /// Starts a call. Its result comes as an event with this number.
    pub(in crate::openai) fn call(
        &self,
        tool: &McpTool,
        arguments: Map<String, Value>,
        number: u64,
        events: Sender<TurnEvent>,
    ) -> Result<Call, String> {
        let server = &self.servers[tool.server];
        let peer = match &*server.phase() {
            Phase::Ready { peer, .. } => peer.clone(),
            _ => return Err(format!("the MCP server {} has ended", server.name)),
        };
        let server = server.clone();
        let runtime = self.runtime.as_ref().ok_or("there is no runtime")?;
        let params = CallToolRequestParams::new(tool.name.clone()).with_arguments(arguments);
        let task = runtime.spawn(async move {
            let outcome = match timeout(CALL_TIMEOUT, peer.call_tool_once(params)).await {
                Ok(Ok(CallToolResponse::Complete(result))) => Ok(CallResult::new(result)),
                Ok(Ok(_)) => Err("the server wants what this agent cannot give".to_owned()),
                Ok(Err(error)) => Err(server.secrets.redact(&with_causes(&error))),
                Err(_) => Err("no answer in time".to_owned()),
            };
            let _ = events.send(TurnEvent::Called(number, outcome));
        });
        Ok(Call(task.abort_handle()))
    }

    fn offered(&self) -> (Vec<McpTool>, usize) {
        let phases: Vec<_> =
            self.servers.iter().map(|server| (server.name.as_str(), server.phase())).collect();
        offered(phases.iter().map(|(name, phase)| {
            let tools = if let Phase::Ready { tools, .. } = &**phase { &tools[..] } else { &[] };
            (*name, tools)
        }))
    }
}

fn name_of(spec: &acp::McpServer) -> String {
    match spec {
        acp::McpServer::Stdio(stdio) => stdio.name.clone(),
        acp::McpServer::Http(http) => http.name.clone(),
        acp::McpServer::Sse(sse) => sse.name.clone(),
        _ => "of an unknown kind".to_owned(),
    }
}
