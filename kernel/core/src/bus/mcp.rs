//! MCP over ACP: the MCP servers that a client offers to an agent over its own connection.
//!
//! A client names them in `mcpServers` when it opens a session. What the agent says to one of them is about no session:
//! it goes to the client that named the server, and to nobody else. Where another client of the process has given the
//! same name before, the agent is told another one, which is replaced in both directions.

use std::borrow::Cow;

use super::Bus;
use crate::id::{CallKey, Link, WorkerId};
use crate::limit::{LIST_BYTES, MCP_SERVERS, NAME_BYTES, NESTED_BYTES};
use crate::state::session_id::token;
use crate::wire::error::RpcError;
use crate::wire::json::Span;
use crate::wire::message::Message;
use crate::wire::nested::{for_each_element, members_of, string, text, whole, within};
use crate::wire::scan::{Envelope, canonical};
use crate::wire::splice::{Edit, splice, with_nested};

/// What stands in the place of the names of servers.
pub(super) type Names = Vec<(Span, Vec<u8>)>;

/// Whether a message is for an MCP server of a client, or from one.
pub(super) fn is_mcp(method: &[u8]) -> bool {
    method.starts_with(b"mcp/")
}

/// Where the names of the servers stand that a client offers itself, in the params of a request to open a session.
fn offered(line: &[u8], params: Option<Span>) -> Vec<Span> {
    let (mut spans, mut left) = (Vec::new(), MCP_SERVERS);
    for_each_element(line, within(params, NESTED_BYTES), b"mcpServers", |server| {
        let words = members_of(line, Some(server), [b"type", b"serverId"]);
        let [kind, name] = words.map(|word| string(line, word));
        let is_acp = kind.is_some_and(|kind| *canonical(kind.of(line)) == *b"acp");
        spans.extend(name.filter(|name| is_acp && canonical(name.of(line)).len() <= NAME_BYTES));
        left -= 1;
        (left > 0).then_some(())
    });
    spans
}

impl Bus {
    /// Remembers the servers that a client names in a request to open a session. Returns the names that the agent gets
    /// instead of them.
    pub(super) fn note_mcp_servers(
        &mut self,
        link: Link,
        to: WorkerId,
        (line, params): (&[u8], Option<Span>),
    ) -> Names {
        let spans = offered(line, params);
        let names: Vec<_> = spans.iter().map(|span| canonical(span.of(line))).collect();
        name_servers(self, link, to, &spans, &names)
    }

    /// An agent speaks to an MCP server of a client.
    pub(super) fn route_mcp(&mut self, id: WorkerId, message: Message<'_>) {
        let Some(worker) = self.workers.get(id) else { return };
        let server = server_of(message);
        let name = server.map(|span| message.name(span)).unwrap_or_default();
        let to = match worker.mcp_servers.clients(&name) {
            Some(clients) => clients.first().copied().filter(|_| clients.len() == 1),
            // A client that has given this name to a server of its own would take it for that one.
            None => self.only_client(id).filter(|only| !worker.mcp_servers.has(*only, &name)),
        };
        let Some(client) = to else {
            let error = RpcError::invalid("no client, or more than one, has named this MCP server");
            return self.reject_unroutable(id, message, &error);
        };
        let given = worker.mcp_servers.given(&name).map(token);
        let edit = server.zip(given.as_ref()).map(|(span, given)| Edit::new(span, given));
        self.forward_to_client(id, client, message, edit);
    }

    /// The worker to which a client has named the server that this message of it is from.
    #[cold]
    pub(super) fn mcp_worker(&self, link: Link, message: Message<'_>) -> Option<WorkerId> {
        let name = message.name(server_of(message)?);
        let has_it =
            |id: &WorkerId| self.workers.get(*id).is_some_and(|worker| worker.mcp_servers.has(link, &name));
        self.clients.get(link)?.workers.iter().copied().find(has_it)
    }
}

/// A client names servers at these places. Returns the names that the agent gets instead.
fn name_servers(bus: &mut Bus, link: Link, to: WorkerId, spans: &[Span], names: &[Cow<'_, [u8]>]) -> Names {
    let Some(worker) = bus.workers.get_mut(to).filter(|_| !spans.is_empty()) else { return Names::new() };
    let mut renamed = Names::new();
    for (span, name) in spans.iter().zip(names) {
        let agent = worker.mcp_servers.add(name, link);
        renamed.extend(agent.map(|agent| (*span, token(&agent).to_vec())));
    }
    worker.count(&mut bus.held);
    renamed
}

/// The name by which the agent knows the server that this message of a client is from, if that is another.
#[cold]
pub(super) fn renamed(bus: &Bus, link: Link, to: WorkerId, message: Message<'_>) -> Names {
    let Some(span) = server_of(message) else { return Names::new() };
    let servers = bus.workers.get(to).map(|worker| &worker.mcp_servers);
    let agent = servers.and_then(|servers| servers.renamed(link, &message.name(span)));
    agent.map(|agent| (span, token(agent).to_vec())).into_iter().collect()
}

/// This line of a request to open a session, which one process has not seen, as it goes to another.
pub(super) fn named_again(
    bus: &mut Bus,
    link: Link,
    to: WorkerId,
    call: CallKey,
    line: Box<[u8]>,
) -> Box<[u8]> {
    let Ok(envelope) = Envelope::scan(&line) else { return line };
    let spans = offered(&line, envelope.params);
    if spans.is_empty() {
        return line;
    }
    // The line has the names for the other process, and these are the client's.
    let kept = bus.calls.get(call).and_then(|call| call.params.clone()).unwrap_or_default();
    let own = offered(&kept, whole(&kept));
    let (of, own) = if own.len() == spans.len() { (&kept, &own) } else { (&line, &spans) };
    let names: Vec<_> = own.iter().map(|span| canonical(span.of(of))).collect();
    let mut renamed = name_servers(bus, link, to, &spans, &names);
    for (span, name) in spans.iter().zip(&names) {
        if renamed.iter().all(|(other, _)| other != span) {
            renamed.push((*span, token(name).to_vec()));
        }
    }
    let mut named = Vec::new();
    splice(&mut named, &line, &with_nested(&[], &renamed));
    named.into()
}

/// The names that a client has given to the servers in this line, which waits for a process.
pub(super) fn given(bus: &Bus, id: WorkerId, line: &[u8], params: Option<Span>) -> Names {
    let Some(worker) = bus.workers.get(id) else { return Names::new() };
    let own = |span: Span| {
        let name = worker.mcp_servers.given(&canonical(span.of(line))).map(token)?;
        Some((span, name.to_vec()))
    };
    offered(line, params).into_iter().filter_map(own).collect()
}

fn server_of(message: Message<'_>) -> Option<Span> {
    text(message.line, within(message.envelope.params, LIST_BYTES), b"serverId")
}
