//! The MCP servers that the clients of a worker offer over their own connections.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::Link;
use crate::limit::MCP_SERVERS_KEPT;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct McpServers {
    by_name: BTreeMap<Box<[u8]>, BTreeSet<Link>>,
    /// The names that each client has given.
    by_client: BTreeMap<Link, BTreeSet<Box<[u8]>>>,
    bytes: usize,
}

/// What one server of a client takes: its name stands in both tables.
fn bytes_of(name: &[u8]) -> usize {
    2 * (size_of::<Box<[u8]>>() + name.len()) + size_of::<Link>()
}

impl McpServers {
    /// This client offers a server of this name. Of very many, only the first are remembered.
    pub(crate) fn add(&mut self, name: &[u8], client: Link) {
        let names = self.by_client.entry(client).or_default();
        if names.len() < MCP_SERVERS_KEPT && names.insert(name.into()) {
            self.by_name.entry(name.into()).or_default().insert(client);
            self.bytes += bytes_of(name);
        }
    }

    /// A client has left.
    pub(crate) fn remove_client(&mut self, client: Link) {
        for name in self.by_client.remove(&client).unwrap_or_default() {
            self.bytes -= bytes_of(&name);
            if let Some(clients) = self.by_name.get_mut(&name) {
                clients.remove(&client);
                if clients.is_empty() {
                    self.by_name.remove(&name);
                }
            }
        }
    }

    /// The clients that offer a server of this name.
    pub(crate) fn clients(&self, name: &[u8]) -> Option<&BTreeSet<Link>> {
        self.by_name.get(name)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Key;

    #[test]
    fn servers_are_found_by_name_and_go_with_their_client() {
        let link = |index| Link(Key { index, generation: 1 });
        let mut servers = McpServers::default();
        for (name, client) in [("a", 1), ("b", 1), ("b", 2), ("b", 2)] {
            servers.add(name.as_bytes(), link(client));
        }
        let of = |servers: &McpServers, name: &[u8]| -> Vec<Link> {
            servers.clients(name).into_iter().flatten().copied().collect()
        };
        assert_eq!((of(&servers, b"a"), of(&servers, b"b")), (vec![link(1)], vec![link(1), link(2)]));
        assert_eq!(servers.bytes(), 3 * bytes_of(b"x"));
        servers.remove_client(link(1));
        assert_eq!((of(&servers, b"a"), of(&servers, b"b")), (vec![], vec![link(2)]));
        for number in 0..2 * MCP_SERVERS_KEPT {
            servers.add(number.to_string().as_bytes(), link(3));
        }
        assert_eq!(servers.by_client[&link(3)].len(), MCP_SERVERS_KEPT);
        servers.remove_client(link(2));
        servers.remove_client(link(3));
        assert!(servers.by_name.is_empty() && servers.by_client.is_empty() && servers.bytes() == 0);
    }
}
