//! bus.json: what the user declares. Text in, `Config` out; a `Config` that exists is valid.
//!
//! One reading finds every fault of the file, each with its JSON path. Nothing here looks whether a program
//! or a folder exists, and no message holds the value of an environment variable.

mod address;
mod fault;
mod file;
mod json;
mod parse;
mod place;
mod schema;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{self, Path, PathBuf};

pub use address::{parse_listen, parse_tcp, parse_unix};
pub use fault::{ConfigFault, ConfigFaults};
pub use file::read_token;
pub(crate) use parse::OFF_LOOPBACK;
pub use schema::schema;

use place::Place;

use kernel_core::config::{Config, Listen};

/// Reads the file; relative paths in it are relative to its folder.
pub fn load(path: &Path) -> Result<Config, ConfigFaults> {
    load_with(path, parse::config)
}

/// Reads the text of a bus.json that stands in `folder`.
pub fn parse(text: &str, folder: &Path) -> Result<Config, ConfigFaults> {
    parse_with(text, folder, parse::config)
}

/// Where the bus of a file listens, and where the token is that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doors {
    pub listen: Vec<Listen>,
    pub token_file: Option<PathBuf>,
}

impl Doors {
    /// The other faults of the file are not looked at, and no variable of the environment that its pools ask for is
    /// needed: this is for clients.
    pub fn load(path: &Path) -> Result<Doors, ConfigFaults> {
        load_with(path, parse::doors)
    }
}

type Parse<T> = fn(&str, Place<'_>) -> Result<T, Vec<ConfigFault>>;

fn load_with<T>(path: &Path, parse: Parse<T>) -> Result<T, ConfigFaults> {
    let in_file = |faults| ConfigFaults { file: path.display().to_string(), faults };
    let unreadable =
        |error: io::Error| in_file(vec![ConfigFault::of_file(format!("cannot be read: {error}"))]);
    let text = file::read_config(path).map_err(|message| in_file(vec![ConfigFault::of_file(message)]))?;
    let absolute = path::absolute(path).map_err(unreadable)?;
    let folder = absolute.parent().unwrap_or(&absolute);
    parse_with(&text, folder, parse).map_err(|faults| in_file(faults.faults))
}

fn parse_with<T>(text: &str, folder: &Path, parse: Parse<T>) -> Result<T, ConfigFaults> {
    let folder = path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    parse(text, Place::real(&folder)).map_err(ConfigFaults::of_text)
}
