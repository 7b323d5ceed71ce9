//! Parses `cluster` of bus.json: the NATS servers, who we are to them, and what this machine offers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use super::address::is_pool_id;
use super::json::{Json, join};
use super::reader::{Fields, Node, Reader};
use kernel_core::config::{ClusterConfig, PoolConfig};

pub(super) const CLUSTER_KEYS: [&str; 10] =
    ["url", "creds", "nkey", "ca", "insecure", "edges_drain", "zone", "offer", "map", "prepare"];

/// Where a NATS server listens unless it is told otherwise.
const NATS_PORT: u16 = 4222;

/// What it means to offer pools over servers that do not know who this is.
pub const NO_ACCOUNT: &str = "without \"creds\" or \"nkey\" everybody who reaches the NATS server, each user of this \
                              machine too, can run commands here as your user: name one of them, or write \
                              \"insecure\": true if that is meant";

const ZONE_CHARS_MAX: usize = 32;

/// Parses the address of a NATS server: `nats://HOST:PORT` or `tls://HOST:PORT`, also without the port. Whether TLS is
/// spoken to the first one, its server says; off loopback it must be.
pub fn parse_server(text: &str) -> Result<String, String> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme @ ("nats" | "tls"), rest)) => (scheme, rest),
        Some(_) => return Err(format!("{text:?} is neither nats://HOST:PORT nor tls://HOST:PORT")),
        None => ("nats", text),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains('@') {
        let what =
            "a name or a password does not belong in a URL: name a file in cluster.creds or cluster.nkey";
        return Err(what.to_owned());
    }
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inner, port)) if inner.parse::<std::net::Ipv6Addr>().is_ok() => {
            (format!("[{inner}]"), port.strip_prefix(':').or(port.is_empty().then_some("")))
        }
        Some(_) => (String::new(), None),
        None => match rest.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (rest.to_owned(), Some("")),
        },
    };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._[]:".contains(letter);
    let port = match port {
        Some("") if !rest.ends_with(':') => Some(NATS_PORT),
        Some(port) => port.parse::<u16>().ok().filter(|port| *port > 0),
        None => None,
    };
    match port {
        Some(port) if !host.is_empty() && host.chars().all(is_name) => {
            Ok(format!("{scheme}://{host}:{port}"))
        }
        _ => Err(format!("{text:?} is neither nats://HOST:PORT nor tls://HOST:PORT")),
    }
}

/// Whether nothing that is sent to this server leaves the machine.
pub fn is_loopback_server(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Parses `FROM=TO`, folders of clients and what they are called here.
pub fn parse_map(text: &str) -> Result<(String, String), String> {
    let (from, to) = text.split_once('=').ok_or_else(|| format!("{text:?} is not FROM=TO"))?;
    Ok((folder(from)?, folder(to)?))
}

/// An absolute path without a slash at its end.
fn folder(text: &str) -> Result<String, String> {
    if !Path::new(text).is_absolute() {
        return Err(format!("{text:?} is not an absolute path"));
    }
    let trimmed = text.trim_end_matches('/');
    Ok(if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() })
}

impl<'a> Reader<'a> {
    pub(super) fn cluster(&mut self, top: &Fields<'a>) -> Option<ClusterConfig> {
        let fields = self.object(&top.find("cluster")?, &CLUSTER_KEYS)?;
        let Some(url) = fields.find("url") else {
            // Any other key has been reported already, and is perhaps a misspelling of this one.
            if fields.nodes().all(|(key, _)| CLUSTER_KEYS.contains(&key)) {
                self.error(&join(&fields.path, "url"), "missing");
            }
            return None;
        };
        let [creds, nkey, ca] = ["creds", "nkey", "ca"].map(|key| {
            let node = fields.find(key)?;
            self.path(&node)
        });
        if creds.is_some() && nkey.is_some() {
            self.error(&join(&fields.path, "nkey"), "cluster.creds is set too: use one of them");
        }
        Some(ClusterConfig {
            url: self.servers(&url),
            creds,
            nkey,
            ca,
            insecure: fields.find("insecure").and_then(|node| self.boolean(&node)).unwrap_or_default(),
            edges_drain: fields.find("edges_drain").and_then(|node| self.boolean(&node)).unwrap_or_default(),
            zone: fields.find("zone").and_then(|node| self.zone(&node)),
            offer: fields.find("offer").map(|node| self.offer(&node)).unwrap_or_default(),
            map: fields.find("map").map(|node| self.folders(&node)).unwrap_or_default(),
            prepare: fields.find("prepare").map(|node| self.command(&node)).unwrap_or_default(),
        })
    }

    /// One address, or a list of them.
    fn servers(&mut self, node: &Node<'a>) -> Vec<String> {
        let items = match node.json {
            Json::List(_) => self.non_empty_list(node),
            Json::String(_) => vec![Node { path: node.path.clone(), json: node.json }],
            _ => return self.must_be(node, "a string or a list").unwrap_or_default(),
        };
        let mut servers = Vec::new();
        for item in items {
            let Some(text) = self.non_empty(&item) else { continue };
            servers.extend(self.ok_or_note(&item.path, parse_server(text)));
        }
        servers
    }

    fn zone(&mut self, node: &Node<'a>) -> Option<String> {
        let zone = self.non_empty(node)?;
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
        if zone.chars().all(plain) && zone.len() <= ZONE_CHARS_MAX {
            return Some(zone.to_owned());
        }
        self.error(&node.path, format!("{zone:?} is not 1 to {ZONE_CHARS_MAX} letters, digits, - and _"));
        None
    }

    fn offer(&mut self, node: &Node<'a>) -> Vec<String> {
        let mut offer = Vec::new();
        for item in self.list(node).unwrap_or_default() {
            match self.non_empty(&item) {
                Some(pool) if is_pool_id(pool) => offer.push(pool.to_owned()),
                Some(pool) => self.error(&item.path, format!("{pool:?} cannot be the id of a pool")),
                None => {}
            }
        }
        offer
    }

    fn folders(&mut self, node: &Node<'a>) -> BTreeMap<String, String> {
        let Json::Object(pairs) = node.json else {
            return self.must_be(node, "an object").unwrap_or_default();
        };
        let mut map = BTreeMap::new();
        for (from, node) in (Fields { path: node.path.clone(), pairs }).nodes() {
            let from = self.ok_or_note(&node.path, folder(from));
            let to = self.non_empty(&node).map(folder);
            let to = to.and_then(|to| self.ok_or_note(&node.path, to));
            map.extend(from.zip(to));
        }
        map
    }

    /// A program and its arguments. A relative path of the program is relative to bus.json.
    fn command(&mut self, node: &Node<'a>) -> Vec<String> {
        let mut items = self.non_empty_list(node).into_iter();
        let Some(program) = items.next() else { return Vec::new() };
        let Some(text) = self.non_empty(&program) else { return Vec::new() };
        let at = if text.contains('/') {
            self.path(&program).map(|path| path.to_string_lossy().into_owned())
        } else {
            Some(text.to_owned())
        };
        let args: Vec<_> = items.filter_map(|item| self.string(&item).map(str::to_owned)).collect();
        at.into_iter().chain(args).collect()
    }

    /// Others may use only pools that there are, and only others who say who they are.
    pub(super) fn check_offers(&mut self, top: &Fields<'a>, cluster: &ClusterConfig, pools: &[PoolConfig]) {
        let may_be_anybody = !cluster.has_account() && !cluster.insecure;
        if may_be_anybody && !cluster.offer.is_empty() {
            let path = format!("{}.offer", join(&top.path, "cluster"));
            self.error(&path, NO_ACCOUNT);
        }
        // An id that could not be read may be the one that is meant.
        if pools.is_empty() || pools.iter().any(|pool| pool.id.is_empty()) {
            return;
        }
        let names: Vec<&str> = pools.iter().map(|pool| &*pool.id).collect();
        for (index, pool) in cluster.offer.iter().enumerate() {
            let path = format!("{}.offer[{index}]", join(&top.path, "cluster"));
            self.refuse_unknown_pool(&path, Some(pool), &names);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::{parse, schema_json, with_top};
    use super::*;

    #[test]
    fn the_schema_knows_the_keys_that_the_parser_knows() {
        let schema = &schema_json()["properties"]["cluster"];
        let named = schema["properties"].as_object().unwrap().keys().map(String::as_str);
        assert_eq!(named.collect::<BTreeSet<_>>(), CLUSTER_KEYS.into_iter().collect());
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn a_server_is_a_host_and_a_port_and_never_a_password() {
        for (text, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://hub.example.org", "nats://hub.example.org:4222"),
            ("hub", "nats://hub:4222"),
            ("tls://hub:443/", "tls://hub:443"),
            ("nats://[::1]:4223", "nats://[::1]:4223"),
            ("nats://[::1]", "nats://[::1]:4222"),
        ] {
            assert_eq!(parse_server(text), Ok(shown.to_owned()));
        }
        for bad in [
            "",
            "http://hub:1",
            "nats://",
            "nats://hub:",
            "nats://hub:0",
            "nats://hub:x",
            "a b",
            "nats://[x]:1",
        ] {
            assert!(parse_server(bad).unwrap_err().contains("neither nats://"), "{bad}");
        }
        let secret = parse_server("nats://me:secret@hub:4222").unwrap_err();
        assert!(secret.contains("cluster.creds") && !secret.contains("secret"), "{secret}");
    }

    #[test]
    fn a_server_on_loopback_is_known_by_its_address() {
        for here in ["nats://127.0.0.1:4222", "nats://localhost:1", "tls://[::1]:1", "nats://127.9.9.9:1"] {
            assert!(is_loopback_server(here), "{here}");
        }
        for away in ["nats://hub:4222", "nats://10.0.0.1:4222", "nats://localhost.example.org:1"] {
            assert!(!is_loopback_server(away), "{away}");
        }
    }

    #[test]
    fn a_cluster_has_servers_files_and_what_it_offers() {
        let cluster = |keys: &str| parse(&with_top(&format!(r#","cluster":{{{keys}}}"#)));
        let plain = cluster(r#""url":"nats://hub""#).unwrap().cluster.unwrap();
        assert_eq!(plain, ClusterConfig::at("nats://hub:4222"));
        let full = cluster(
            r#""url":["nats://a:1","tls://b:2"],"creds":"n17.creds","ca":"~/ca.pem","zone":"eu","offer":["a"],
                "map":{"/home/me/":"/srv/me"},"prepare":["./fetch","-q"]"#,
        );
        let full = full.unwrap().cluster.unwrap();
        assert!(full.has_account() && !full.insecure);
        let meant = cluster(r#""url":"nats://a","insecure":true,"offer":["a"]"#).unwrap().cluster.unwrap();
        assert!(meant.insecure && !meant.has_account() && !meant.edges_drain);
        let told = cluster(r#""url":"nats://a","edges_drain":true"#).unwrap().cluster.unwrap();
        assert!(told.edges_drain);
        assert_eq!(full.url, ["nats://a:1", "tls://b:2"]);
        assert_eq!(full.creds.unwrap(), Path::new("/srv/bus/n17.creds"));
        assert_eq!(full.ca.unwrap(), Path::new("/home/ann/ca.pem"));
        assert_eq!((full.zone.as_deref(), &full.offer[..]), (Some("eu"), &["a".to_owned()][..]));
        assert_eq!(full.map["/home/me"], "/srv/me");
        assert_eq!(full.prepare, ["/srv/bus/fetch", "-q"]);
        for (keys, path, message) in [
            ("", "cluster.url", "missing"),
            (r#""urls":"nats://a""#, "cluster.urls", "did you mean \"url\"?"),
            (r#""url":1"#, "cluster.url", "must be a string or a list"),
            (r#""url":[]"#, "cluster.url", "must not be empty"),
            (r#""url":"nats://a","creds":"c","nkey":"n""#, "cluster.nkey", "one of them"),
            (r#""url":"nats://a","zone":"e u""#, "cluster.zone", "is not 1 to 32"),
            (r#""url":"nats://a","insecure":true,"offer":["c"]"#, "cluster.offer[0]", "there is no pool"),
            (r#""url":"nats://a","offer":["a"]"#, "cluster.offer", "\"insecure\": true"),
            (r#""url":"nats://a","insecure":1"#, "cluster.insecure", "true or false"),
            (r#""url":"nats://a","edges_drain":1"#, "cluster.edges_drain", "true or false"),
            (r#""url":"nats://a","map":{"me":"/x"}"#, "cluster.map.me", "not an absolute path"),
            (r#""url":"nats://a","prepare":[]"#, "cluster.prepare", "must not be empty"),
        ] {
            let errors = cluster(keys).unwrap_err();
            assert!(
                errors.len() == 1 && errors[0].0 == path && errors[0].1.contains(message),
                "{keys}: {errors:?}"
            );
        }
    }
}
