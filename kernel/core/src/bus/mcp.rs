//! MCP over ACP: the MCP servers that a client offers to an agent over its own connection.
//!
//! A client names them in `mcpServers` when it opens a session. What the agent says to one of them is about no session:
//! it goes to the client that named the server, and to nobody else.

use std::borrow::Cow;

use super::Bus;
use crate::id::{Link, WorkerId};
use crate::limit::{MCP_SERVERS, NAME_BYTES};
use crate::wire::error::RpcError;
use crate::wire::message::Message;
use crate::wire::nested::{for_each_element, text, whole};
use crate::wire::scan::canonical;

/// Whether a message is for an MCP server of a client, or from one.
pub(super) fn is_mcp(method: &[u8]) -> bool {
    method.starts_with(b"mcp/")
}

impl Bus {
    /// Remembers the servers that a client names in the params of a request to open a session.
    pub(super) fn note_mcp_servers(&mut self, link: Link, to: WorkerId, params: &[u8]) {
        let Some(worker) = self.workers.get_mut(to) else { return };
        let mut left = MCP_SERVERS;
        for_each_element(params, whole(params), b"mcpServers", |server| {
            let word = |key: &[u8]| text(params, Some(server), key).map(|value| canonical(value.of(params)));
            let is_acp = word(b"type").is_some_and(|kind| *kind == *b"acp");
            if let Some(name) = word(b"serverId").filter(|name| is_acp && name.len() <= NAME_BYTES) {
                worker.mcp_servers.add(&name, link);
            }
            left -= 1;
            (left > 0).then_some(())
        });
        worker.count(&mut self.held);
    }

    /// An agent speaks to an MCP server of a client.
    pub(super) fn route_mcp(&mut self, id: WorkerId, message: Message<'_>) {
        let worker = self.workers.get(id);
        let named = server_of(message).and_then(|name| worker?.mcp_servers.clients(&name));
        let to = match named {
            // Which of several is meant cannot be told.
            Some(clients) => clients.first().copied().filter(|_| clients.len() == 1),
            None => self.only_client(id),
        };
        match to {
            Some(client) => self.forward_to_client(id, client, message, None),
            None => {
                let error = RpcError::invalid("no client, or more than one, has named this MCP server");
                self.reject_unroutable(id, message, &error);
            }
        }
    }

    /// The worker to which a client has named the server that this message of it is from.
    #[cold]
    pub(super) fn mcp_worker(&self, link: Link, message: Message<'_>) -> Option<WorkerId> {
        let name = server_of(message)?;
        let has_it = |id: &WorkerId| {
            let clients = self.workers.get(*id).and_then(|worker| worker.mcp_servers.clients(&name));
            clients.is_some_and(|clients| clients.contains(&link))
        };
        self.clients.get(link)?.workers.iter().copied().find(has_it)
    }
}

fn server_of(message: Message<'_>) -> Option<Cow<'_, [u8]>> {
    text(message.line, message.envelope.params, b"serverId").map(|name| message.name(name))
}
