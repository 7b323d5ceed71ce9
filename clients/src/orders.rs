//! What a bus and a companion that it starts, the web door or the link to a cluster, tell each other: one line of JSON
//! on its stdin, and lines of JSON on its stdout.

use std::io::{self, Write};
use std::path::PathBuf;

use kernel_shell::config::parse_listen;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Target, TokenFile};

#[derive(Deserialize)]
struct Orders<Own> {
    #[serde(flatten)]
    own: Own,
    bus: Vec<String>,
    token_file: Option<PathBuf>,
}

/// Reads from stdin what is for this kind of process alone, and the bus that has started it.
pub fn read_orders<Own: DeserializeOwned>() -> Result<(Own, Target), String> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(|error| format!("stdin: {error}"))?;
    let orders: Orders<Own> = serde_json::from_str(&line).map_err(|error| format!("stdin: {error}"))?;
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    let addresses = orders.bus.iter().map(|address| parse_listen(address, &here).map(|listen| listen.at));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    // The bus has named both, so the token goes where it says.
    let token = orders.token_file.map(|path| TokenFile { path, any_host: true });
    Ok((orders.own, Target { addresses, token, user_bus: None }))
}

/// Tells the bus, or whoever reads stdout. If nobody does, there is nobody to tell.
pub fn say(what: &Value) {
    let mut stdout = io::stdout();
    let _ = writeln!(stdout, "{what}").and_then(|()| stdout.flush());
}
