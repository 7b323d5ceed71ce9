//! Reads bus.json: text in, `Config` out. A `Config` that exists is valid.
//!
//! One pass finds every error of the file, each with its JSON path. Nothing here checks whether a program or a folder
//! exists, and no message holds the value of an environment variable.

mod address;
mod changes;
mod cluster;
mod error;
mod file;
mod history;
mod ignored;
mod json;
mod jsonc;
mod nodes;
mod notify;
mod parse;
mod place;
mod reader;
mod resolve;
mod schema;
#[cfg(test)]
mod tests;
mod web;

use std::path::{self, Path};

use kernel_core::config::Config;

pub use address::{parse_listen, parse_tcp, parse_unix, port_alone};
pub(crate) use changes::changes;
pub use cluster::{NO_ACCOUNT, is_loopback_server, parse_map, parse_server};
pub use error::{ConfigError, ConfigErrors, nearest};
pub use file::{read_secret, read_token};
pub use ignored::ignored_keys;
pub use jsonc::{plain_json, without_comments, without_mark};
pub use nodes::host_name;
pub use parse::ClientConfig;
pub(crate) use parse::OFF_LOOPBACK;
pub use schema::schema;
pub use web::parse_web;

use resolve::Resolver;

/// Reads the file. Paths in it are relative to its folder.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    load_with(path, parse::config)
}

/// Parses the text of a bus.json whose folder is `folder`.
pub fn parse(text: &str, folder: &Path) -> Result<Config, ConfigErrors> {
    parse_with(text, folder, parse::config)
}

impl ClientConfig {
    /// Reads the file for a client. The rest of the file may have errors, and may refer to variables that only the
    /// environment of the bus has.
    pub fn load(path: &Path) -> Result<ClientConfig, ConfigErrors> {
        load_with(path, parse::client_config)
    }
}

type Parse<T> = fn(&str, Resolver<'_>) -> Result<T, Vec<ConfigError>>;

fn load_with<T>(path: &Path, parse: Parse<T>) -> Result<T, ConfigErrors> {
    let in_file = |text: &str, errors| ConfigErrors::in_file(path.display().to_string(), text, errors);
    let unreadable = |message: String| in_file("", vec![ConfigError::of_file(message)]);
    let text = file::read_config(path).map_err(unreadable)?;
    let absolute = path::absolute(path).map_err(|error| unreadable(format!("cannot be read: {error}")))?;
    let folder = absolute.parent().unwrap_or(&absolute);
    parse_with(&text, folder, parse).map_err(|errors| in_file(&text, errors.errors))
}

fn parse_with<T>(text: &str, folder: &Path, parse: Parse<T>) -> Result<T, ConfigErrors> {
    let folder = path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    parse(text, Resolver::of_machine(&folder)).map_err(ConfigErrors::of_text)
}
