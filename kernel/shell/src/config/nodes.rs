//! Parses what bus.json says about many machines: the name of the bus, and the nodes of its pools.

use std::path::PathBuf;

use super::json::join;
use super::reader::{Fields, Node, Reader};
use kernel_core::config::{BUS_NAME_CHARS, ClusterConfig, PoolConfig, Program, is_bus_name};

/// What stands for the name of a node.
const NODE: &str = "{node}";

/// How many processes a pool of the cluster may have when `max_instances` does not say: one a node and kind of client.
const CLUSTER_INSTANCES: u32 = 64;

impl<'a> Reader<'a> {
    pub(super) fn bus_name(&mut self, node: &Node<'a>) -> Option<&'a str> {
        let name = self.non_empty(node)?;
        if is_bus_name(name) {
            return Some(name);
        }
        let message = format!(
            "{name:?} is not 1 to {BUS_NAME_CHARS} letters, digits, underscores and dashes (no dash first)"
        );
        self.error(&node.path, message);
        None
    }

    /// Reads the name of the bus. One that offers pools is called after its machine, as its link is: without a name,
    /// its session ids do not say where they live, and an edge that is started again does not find them.
    pub(super) fn name_of_bus(
        &mut self,
        top: &Fields<'a>,
        cluster: Option<&ClusterConfig>,
    ) -> Option<Box<str>> {
        match top.find("name") {
            Some(node) => self.bus_name(&node).map(Box::from),
            None => cluster.filter(|cluster| !cluster.offer.is_empty()).map(|_| host_name().into()),
        }
    }

    /// Reads the nodes of a pool. A command that does not name them finds the name of its node in its environment.
    pub(super) fn nodes(&mut self, fields: &Fields<'a>, pool: &mut PoolConfig) {
        let places = places_of_node(pool, &fields.path);
        let Some(list) = fields.find("nodes") else {
            for place in places {
                let why =
                    format!("{NODE} stands for one of the nodes of a pool, and this one has none: add nodes");
                self.error(&place, why);
            }
            return;
        };
        for item in self.non_empty_list(&list) {
            let Some(name) = self.bus_name(&item) else { continue };
            if pool.nodes.iter().any(|known| **known == *name) {
                self.error(&item.path, format!("{name:?} is listed twice"));
            }
            pool.nodes.push(name.into());
        }
        if fields.has("instances") {
            let why = "a pool with nodes has one process per node: remove instances";
            self.error(&join(&fields.path, "instances"), why);
        }
        pool.instances = u32::try_from(pool.nodes.len()).unwrap_or(u32::MAX).max(1);
    }

    /// Reads where a pool without a command of its own comes from.
    pub(super) fn from(&mut self, fields: &Fields<'a>, pool: &mut PoolConfig) {
        if self.choice(fields, "from", &[("cluster", ())]).is_none() {
            return;
        }
        for key in ["command", "args", "nodes"].into_iter().filter(|key| fields.has(key)) {
            self.error(&join(&fields.path, key), "remove it: a pool from the cluster has none");
        }
        pool.finds_nodes = true;
        pool.program = Program::ThisBinary;
        pool.args = ["agent", "nats", "--pool", &pool.id].map(str::to_owned).to_vec();
        if !fields.has("max_instances") {
            pool.max_instances = pool.instances.max(CLUSTER_INSTANCES);
        }
    }
}

/// The name of this machine, as far as it can be the name of a bus.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .or_else(|_| std::env::var("HOSTNAME").map_err(std::io::Error::other))
        .unwrap_or_default();
    bus_name_of(&name)
}

fn bus_name_of(machine: &str) -> String {
    let first = machine.trim().split('.').next().unwrap_or_default();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
    let plain: String = first.chars().filter(is_plain).skip_while(|letter| *letter == '-').collect();
    let name: String = plain.chars().take(BUS_NAME_CHARS).collect();
    if name.is_empty() { "edge".to_owned() } else { name }
}

/// What the processes of a pool of this cluster are told of it. `name`: that of the bus.
pub(super) fn cluster_args(cluster: &ClusterConfig, name: Option<&str>) -> Vec<String> {
    let file = |file: &Option<PathBuf>| file.as_ref().map(|path| path.display().to_string());
    let urls = cluster.url.iter().map(|url| ("--url", Some(url.clone())));
    let others = [
        ("--creds", file(&cluster.creds)),
        ("--nkey", file(&cluster.nkey)),
        ("--ca", file(&cluster.ca)),
        ("--zone", cluster.zone.clone()),
        ("--name", name.map(str::to_owned)),
    ];
    let given = urls.chain(others).filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
    given.flatten().collect()
}

/// The JSON paths at which the name of a node stands in the command of a pool.
fn places_of_node(pool: &PoolConfig, path: &str) -> Vec<String> {
    let mut places = Vec::new();
    let mut look = |place: String, text: &str| {
        if text.contains(NODE) {
            places.push(place);
        }
    };
    look(join(path, "command"), &pool.program.to_string());
    for (index, arg) in pool.args.iter().enumerate() {
        look(format!("{}[{index}]", join(path, "args")), arg);
    }
    for (name, value) in &pool.env {
        look(join(&join(path, "env"), name), value);
    }
    if let Some(cwd) = &pool.cwd {
        look(join(path, "cwd"), &cwd.to_string_lossy());
    }
    places
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::parse;

    fn pool_errors(pool: &str) -> Vec<String> {
        errors(&format!(r#"{{"pools":[{{"id":"claude",{pool}}}]}}"#))
    }

    #[test]
    fn a_pool_may_have_nodes() {
        let text =
            r#"{"pools":[{"id":"claude","command":"ssh","args":["{node}","x"],"nodes":["n17","n18"]}]}"#;
        let pool = parse(text, Path::new("/etc")).unwrap().pools[0].clone();
        assert_eq!(pool.nodes.iter().map(|node| &**node).collect::<Vec<_>>(), ["n17", "n18"]);
        assert_eq!((pool.instances, pool.max_instances, pool.finds_nodes), (2, 8, false));
        for used in [
            r#""command":"{node}""#,
            // The process has the name in STDIO_BUS_NODE.
            r#""command":"a""#,
            r#""command":"a","cwd":"/{node}""#,
            r#""command":"a","env":{"N":"{node}"}"#,
        ] {
            assert_eq!(pool_errors(&format!(r#"{used},"nodes":["n17"]"#)), [""; 0], "{used}");
        }
    }

    #[test]
    fn what_is_wrong_about_nodes_is_said() {
        let ssh = r#""command":"ssh","args":["{node}"]"#;
        let cases = [
            (
                ssh.to_owned(),
                "pools[0].args[0]: {node} stands for one of the nodes of a pool, and this one has none: add nodes",
            ),
            (format!(r#"{ssh},"nodes":[]"#), "pools[0].nodes: must not be empty"),
            (format!(r#"{ssh},"nodes":["a","a"]"#), r#"pools[0].nodes[1]: "a" is listed twice"#),
            (
                format!(r#"{ssh},"nodes":["me@a"]"#),
                r#"pools[0].nodes[0]: "me@a" is not 1 to 32 letters, digits, underscores and dashes (no dash first)"#,
            ),
            (
                format!(r#"{ssh},"nodes":["-V"]"#),
                r#"pools[0].nodes[0]: "-V" is not 1 to 32 letters, digits, underscores and dashes (no dash first)"#,
            ),
            (
                format!(r#"{ssh},"nodes":["a"],"instances":2"#),
                "pools[0].instances: a pool with nodes has one process per node: remove instances",
            ),
            (r#""from":"nats""#.to_owned(), r#"pools[0].from: must be "cluster", not "nats""#),
        ];
        for (pool, error) in cases {
            assert_eq!(pool_errors(&pool), [error], "{pool}");
        }
    }

    #[test]
    fn a_pool_from_the_cluster_runs_this_binary() {
        let cluster = r#""cluster":{"url":"nats://127.0.0.1:4222","zone":"eu"}"#;
        let text = format!(r#"{{"name":"e1",{cluster},"pools":[{{"id":"claude","from":"cluster"}}]}}"#);
        let pool = parse(&text, Path::new("/etc")).unwrap().pools[0].clone();
        assert_eq!(pool.program, kernel_core::config::Program::ThisBinary);
        let args = "agent nats --pool claude --url nats://127.0.0.1:4222 --zone eu --name e1";
        assert_eq!(pool.args.join(" "), args);
        assert_eq!(pool_errors(r#""from":"cluster""#), [r#"pools[0].from: the file has no "cluster""#]);
        assert_eq!((pool.instances, pool.max_instances, pool.finds_nodes), (1, 64, true));
    }

    fn errors(text: &str) -> Vec<String> {
        let errors = parse(text, Path::new("/etc")).err().map(|errors| errors.errors).unwrap_or_default();
        errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    #[test]
    fn a_bus_that_offers_pools_is_called_after_its_machine_unless_it_has_a_name() {
        let named = |name: &str, offer: &str| {
            let cluster = format!(r#""cluster":{{"url":"nats://127.0.0.1:1","insecure":true{offer}}}"#);
            let text = format!(r#"{{{name}{cluster},"pools":[{{"id":"a","command":"b"}}]}}"#);
            parse(&text, Path::new("/etc")).unwrap().name.map(String::from)
        };
        let offer = r#","offer":["a"]"#;
        assert_eq!(named("", offer), Some(super::host_name()));
        assert_eq!(named(r#""name":"n17","#, offer).as_deref(), Some("n17"));
        assert_eq!(named("", ""), None);
        for (machine, name) in
            [("n17.example.org\n", "n17"), ("--n_1 7", "n_17"), ("", "edge"), ("ü", "edge")]
        {
            assert_eq!(super::bus_name_of(machine), name);
        }
    }

    #[test]
    fn a_bus_may_have_a_name() {
        let named = |name: &str| format!(r#"{{"name":{name},"pools":[{{"id":"a","command":"b"}}]}}"#);
        let longest = format!("\"{}\"", "n".repeat(32));
        for name in [r#""n17""#, r#""a-b_C""#, &longest] {
            let config = parse(&named(name), Path::new("/etc")).unwrap();
            assert_eq!(config.name.as_deref(), Some(name.trim_matches('"')));
        }
        let is_not = "is not 1 to 32 letters, digits, underscores and dashes (no dash first)";
        assert_eq!(errors(&named(r#""-n""#)), [format!(r#"name: "-n" {is_not}"#)]);
        assert_eq!(errors(&named(r#""n.17""#)), [format!(r#"name: "n.17" {is_not}"#)]);
        assert_eq!(errors(&named(r#""a~b""#)), [format!(r#"name: "a~b" {is_not}"#)]);
        let long = "n".repeat(33);
        assert_eq!(errors(&named(&format!("{long:?}"))), [format!(r#"name: "{long}" {is_not}"#)]);
        assert_eq!(errors(&named(r#""""#)), ["name: must not be empty"]);
        assert_eq!(errors(&named("1")), ["name: must be a string, not 1"]);
    }
}
