//! The MCP servers that the clients of a worker offer over their own connections.
//!
//! The agent knows each by one name: the one that its client has given, unless another client has given it before.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::Link;
use crate::limit::MCP_SERVERS_KEPT;

/// One name of a server by another.
type OtherNames = BTreeMap<Box<[u8]>, Box<[u8]>>;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct McpServers {
    /// By the names that the agent knows. An earlier version of the bus let several clients have one.
    by_name: BTreeMap<Box<[u8]>, BTreeSet<Link>>,
    /// The names that each client has given.
    by_client: BTreeMap<Link, BTreeSet<Box<[u8]>>>,
    /// Where the agent knows another name: that one by the client's, and the client's by that one.
    #[serde(default)]
    renamed: BTreeMap<Link, OtherNames>,
    #[serde(default)]
    given: OtherNames,
    /// How many names were made here.
    #[serde(default)]
    made: u64,
    bytes: usize,
}

/// What one server of a client takes: its name stands in both tables.
fn bytes_of(name: &[u8]) -> usize {
    2 * (size_of::<Box<[u8]>>() + name.len()) + size_of::<Link>()
}

/// What it takes more if the agent knows it by another name.
fn bytes_renamed(name: &[u8], agent: &[u8]) -> usize {
    2 * (2 * size_of::<Box<[u8]>>() + name.len() + agent.len())
}

impl McpServers {
    /// This client offers a server of this name. Returns the name for the agent, if that is another. Of very many, only
    /// the first are remembered.
    pub(crate) fn add(&mut self, name: &[u8], client: Link) -> Option<Box<[u8]>> {
        let names = self.by_client.entry(client).or_default();
        if names.contains(name) {
            return self.renamed.get(&client)?.get(name).cloned();
        }
        let (is_kept, is_taken) = (names.len() < MCP_SERVERS_KEPT, self.by_name.contains_key(name));
        if is_kept {
            names.insert(name.into());
            self.bytes += bytes_of(name);
        }
        let agent: Box<[u8]> = if is_taken { self.fresh(name) } else { name.into() };
        if is_kept {
            self.by_name.entry(agent.clone()).or_default().insert(client);
        }
        if is_kept && is_taken {
            self.bytes += bytes_renamed(name, &agent);
            self.renamed.entry(client).or_default().insert(name.into(), agent.clone());
            self.given.insert(agent.clone(), name.into());
        }
        is_taken.then_some(agent)
    }

    /// A name like this one that nobody has.
    fn fresh(&mut self, name: &[u8]) -> Box<[u8]> {
        loop {
            self.made += 1;
            let fresh: Box<[u8]> = [name, format!("~{}", self.made).as_bytes()].concat().into();
            if !self.by_name.contains_key(&fresh) {
                return fresh;
            }
        }
    }

    /// A client has left.
    pub(crate) fn remove_client(&mut self, client: Link) {
        let mut renamed = self.renamed.remove(&client).unwrap_or_default();
        for name in self.by_client.remove(&client).unwrap_or_default() {
            self.bytes -= bytes_of(&name);
            let agent = renamed.remove(&name);
            if let Some(agent) = &agent {
                self.given.remove(agent);
                self.bytes -= bytes_renamed(&name, agent);
            }
            let agent = agent.unwrap_or(name);
            if let Some(clients) = self.by_name.get_mut(&agent) {
                clients.remove(&client);
                if clients.is_empty() {
                    self.by_name.remove(&agent);
                }
            }
        }
    }

    /// The clients that offer the server that the agent knows by this name.
    pub(crate) fn clients(&self, agent: &[u8]) -> Option<&BTreeSet<Link>> {
        self.by_name.get(agent)
    }

    /// The name that its client has given the server that the agent knows by this one, if that is another.
    pub(crate) fn given(&self, agent: &[u8]) -> Option<&[u8]> {
        self.given.get(agent).map(|name| &**name)
    }

    /// Whether this client has given a server this name.
    pub(crate) fn has(&self, client: Link, name: &[u8]) -> bool {
        self.by_client.get(&client).is_some_and(|names| names.contains(name))
    }

    /// The name by which the agent knows this server of a client, if that is another.
    pub(crate) fn renamed(&self, client: Link, name: &[u8]) -> Option<&[u8]> {
        self.renamed.get(&client)?.get(name).map(|agent| &**agent)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Key;

    fn link(index: u32) -> Link {
        Link(Key { index, generation: 1 })
    }

    #[test]
    fn servers_are_found_by_name_and_go_with_their_client() {
        let mut servers = McpServers::default();
        let mut names = Vec::new();
        for (name, client) in [("a", 1), ("b", 1), ("b~1", 1), ("b", 2), ("b", 2), ("b", 1)] {
            names.push(servers.add(name.as_bytes(), link(client)));
        }
        let fresh = Some(Box::from(&b"b~2"[..]));
        assert_eq!(names, [None, None, None, fresh.clone(), fresh, None]);
        let of = |servers: &McpServers, name: &[u8]| -> Vec<Link> {
            servers.clients(name).into_iter().flatten().copied().collect()
        };
        assert_eq!((of(&servers, b"b"), of(&servers, b"b~2")), (vec![link(1)], vec![link(2)]));
        assert_eq!((servers.given(b"b~2"), servers.given(b"b")), (Some(&b"b"[..]), None));
        assert_eq!(servers.renamed(link(2), b"b"), Some(&b"b~2"[..]));
        assert!(servers.has(link(2), b"b") && !servers.has(link(2), b"b~2"));
        assert_eq!(servers.bytes(), 3 * bytes_of(b"x") + bytes_of(b"b~1") + bytes_renamed(b"b", b"b~2"));
        servers.remove_client(link(1));
        assert_eq!(
            (of(&servers, b"a"), of(&servers, b"b"), of(&servers, b"b~2")),
            (vec![], vec![], vec![link(2)])
        );
        for number in 0..2 * MCP_SERVERS_KEPT {
            servers.add(number.to_string().as_bytes(), link(3));
        }
        assert_eq!(servers.by_client[&link(3)].len(), MCP_SERVERS_KEPT);
        // What is not remembered does not take the name of another.
        assert!(servers.add(b"b~2", link(3)).is_some());
        servers.remove_client(link(2));
        servers.remove_client(link(3));
        assert!(servers.by_name.is_empty() && servers.by_client.is_empty() && servers.bytes() == 0);
        assert!(servers.renamed.is_empty() && servers.given.is_empty());
    }

    #[test]
    fn what_an_earlier_version_has_saved_is_read() {
        #[derive(Serialize)]
        struct Earlier {
            by_name: BTreeMap<Box<[u8]>, BTreeSet<Link>>,
            by_client: BTreeMap<Link, BTreeSet<Box<[u8]>>>,
            bytes: usize,
        }
        let name = || Box::<[u8]>::from(&b"both"[..]);
        let both = [link(1), link(2)];
        let saved = rmp_serde::to_vec_named(&Earlier {
            by_name: [(name(), both.into())].into(),
            by_client: both.map(|client| (client, [name()].into())).into(),
            bytes: 2 * bytes_of(b"both"),
        });
        let mut servers: McpServers = rmp_serde::from_slice(&saved.unwrap()).unwrap();
        assert_eq!(servers.clients(b"both").map(BTreeSet::len), Some(2));
        assert_eq!(servers.add(b"both", link(1)), None);
        assert!(servers.add(b"both", link(3)).is_some());
        both.iter().chain([&link(3)]).for_each(|client| servers.remove_client(*client));
        assert_eq!((servers.bytes(), servers.by_name.len()), (0, 0));
    }
}
