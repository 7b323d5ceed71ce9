//! Configurations of a bus under test.

use serde_json::{Value, json};

/// A pool of puppets. `@sock` becomes the test's socket.
pub(crate) fn puppets(id: &str, instances: u32) -> Value {
    json!({ "id": id, "command": env!("CARGO_BIN_EXE_puppet"), "args": ["@sock", id], "instances": instances,
        "max_instances": instances })
}

/// The same, started by a shell that first runs this.
pub(crate) fn puppets_after(prelude: &str, id: &str) -> Value {
    let script = format!(r#"{prelude}; exec "$0" "$@""#);
    json!({ "id": id, "command": "sh", "args": ["-c", script, env!("CARGO_BIN_EXE_puppet"), "@sock", id],
        "max_instances": 1 })
}

/// A configuration with one pool of puppets, called `p`.
pub(crate) fn one_pool(instances: u32) -> Value {
    json!({ "pools": [puppets("p", instances)] })
}

/// `one_pool` whose sessions nobody else can join.
pub(crate) fn unshared(instances: u32) -> Value {
    json!({ "pools": [with(puppets("p", instances), json!({ "share": false }))] })
}

/// `one_pool` with limits.
pub(crate) fn limited(instances: u32, limits: Value) -> Value {
    json!({ "pools": [puppets("p", instances)], "limits": limits })
}

/// A pool with further settings.
pub(crate) fn with(mut pool: Value, more: Value) -> Value {
    for (key, value) in more.as_object().expect("an object") {
        pool[key] = value.clone();
    }
    pool
}
