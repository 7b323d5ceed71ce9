//! The web door: a process beside the bus, over which browsers and remote clients speak ACP.

mod door;
mod frames;
mod gate;
mod http;
mod life;
mod limits;
mod metrics;
mod past;
mod resumed;
mod shared;
mod tls;
mod tokens;

use serde_json::{Value, json};

use crate::harness::{BUS, Bus};

/// A bus with the echo agent and a door at a free port.
pub(crate) fn bus_with_door() -> Bus {
    let bus = Bus::start(echo_with(json!({ "listen": "http://127.0.0.1:0" })));
    let mut client = bus.client();
    let is_up = |pool: &Value| pool["up"] == 1;
    bus.until("both agents are up", || {
        client.status()["pools"].as_array().is_some_and(|it| it.iter().all(is_up))
    });
    bus
}

pub(crate) fn echo_with(web: Value) -> Value {
    json!({
        "web": web,
        "default_pool": "echo",
        "pools": [
            { "id": "echo", "command": BUS, "args": ["agent", "echo"] },
            { "id": "other", "command": BUS, "args": ["agent", "echo"] },
        ],
    })
}
