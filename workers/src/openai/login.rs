//! The login of the OpenAI agent at a terminal: asks for an endpoint and a key, tries them, and keeps them.
//!
//! A client that has a terminal runs this agent once more with `--login`. Only the owner can read the file. A kept key
//! is sent to the endpoint that it was given for and to no other, and variables of the environment come first.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use agent_client_protocol_schema::v1 as acp;
use serde::{Deserialize, Serialize};

use super::config::{BASE_URL, Config};
use super::http::Http;
use crate::folders;

const FLAG: &str = "--login";
/// A longer answer is no key and no address.
const ANSWER_BYTES_MAX: usize = 4096;

/// What a login leaves behind.
#[derive(Serialize, Deserialize)]
pub(super) struct Login {
    base_url: String,
    api_key: String,
}

impl Login {
    /// The kept login of this user, if it is for what the environment asks for. An unreadable one is as none.
    pub(super) fn kept(variable: impl Fn(&str) -> Option<String>) -> Option<Login> {
        let login: Login = serde_json::from_slice(&fs::read(file()?).ok()?).ok()?;
        login.suits(variable).then_some(login)
    }

    /// Whether the environment names no other endpoint and has no key of its own.
    fn suits(&self, variable: impl Fn(&str) -> Option<String>) -> bool {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let is_other = set("OPENAI_BASE_URL").is_some_and(|url| url != self.base_url);
        !is_other && set("OPENAI_API_KEY").is_none() && set("AZURE_OPENAI_API_KEY").is_none()
    }

    /// The value that the login has for a variable that is not set.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        match name {
            "OPENAI_BASE_URL" => Some(self.base_url.clone()),
            "OPENAI_API_KEY" => Some(self.api_key.clone()),
            _ => None,
        }
    }

    /// Writes it in one step, so that no reader sees half of it.
    fn keep(&self, path: &Path) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let unnamed = path.with_extension(format!("{}.new", std::process::id()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unnamed)?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        serde_json::to_writer(&mut file, self)?;
        file.sync_all()?;
        fs::rename(unnamed, path)
    }
}

fn file() -> Option<PathBuf> {
    Some(folders::config()?.join("openai-login.json"))
}

/// The ways to log in that this client can offer. Only one with a terminal can.
pub(super) fn methods(client: &acp::ClientCapabilities) -> Vec<acp::AuthMethod> {
    if !client.auth.terminal {
        return Vec::new();
    }
    let method = acp::AuthMethodTerminal::new("api-key", "Enter an API key")
        .description("Asks in a terminal for the endpoint and its API key, and keeps them for you.")
        .args(vec![FLAG.to_owned()]);
    vec![acp::AuthMethod::Terminal(method)]
}

/// Asks, tries, keeps. Returns what to tell the user.
pub(super) fn run() -> Result<String, String> {
    let path = file().ok_or("HOME or XDG_CONFIG_HOME must be set, for the file of the login")?;
    let url = std::env::var("OPENAI_BASE_URL").ok().filter(|url| !url.is_empty());
    let url = url.unwrap_or_else(|| BASE_URL.to_owned());
    let answer = ask(&format!("Endpoint [{url}]: "))?;
    let base_url = if answer.is_empty() { url } else { answer };
    let api_key = ask_secret(&format!("API key for {base_url} (not shown): "))?;
    if api_key.is_empty() {
        return Err("no key was given, and nothing has changed".to_owned());
    }
    let login = Login { base_url, api_key };
    let tried = try_out(&login)?;
    login.keep(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("{tried} The login is kept in {}; delete the file to log out.", path.display()))
}

/// Asks the endpoint for its models. One that has no such list can still be right.
fn try_out(login: &Login) -> Result<String, String> {
    let (config, _) = Config::read(|name| login.variable(name).or_else(|| std::env::var(name).ok()));
    let url = config.endpoint.as_ref().map_err(|why| format!("{}: {why}", login.base_url))?.models();
    match Http::new(&config).get(&url) {
        Ok(_) => Ok("The endpoint takes the key.".to_owned()),
        Err(error) if matches!(error.status(), Some(404 | 405 | 501)) => {
            Ok("The endpoint lists no models, so that the key could not be tried.".to_owned())
        }
        Err(error) => Err(format!("nothing was kept, because: {}", config.redact(&error.text(&url)))),
    }
}

/// Asks on the terminal. The question is left out where a program answers.
fn ask(question: &str) -> Result<String, String> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        eprint!("{question}");
        // The question is there for people only.
        let _ = io::stderr().flush();
    }
    let mut line = String::new();
    let limited = &mut io::Read::take(stdin.lock(), ANSWER_BYTES_MAX as u64);
    limited.read_line(&mut line).map_err(|error| error.to_string())?;
    Ok(line.trim().to_owned())
}

fn ask_secret(question: &str) -> Result<String, String> {
    if !io::stdin().is_terminal() {
        return ask(question);
    }
    let answer = rpassword::prompt_password(question).map_err(|error| error.to_string())?;
    Ok(answer.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login() -> Login {
        Login { base_url: "https://one.example/v1".to_owned(), api_key: "secret-key".to_owned() }
    }

    fn suits(variables: &[(&str, &str)]) -> bool {
        login().suits(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_kept_key_goes_to_its_own_endpoint_only_and_the_environment_comes_first() {
        assert!(suits(&[]));
        assert!(suits(&[("OPENAI_BASE_URL", ""), ("OPENAI_API_KEY", "")]));
        assert!(suits(&[("OPENAI_BASE_URL", "https://one.example/v1")]));
        assert!(!suits(&[("OPENAI_BASE_URL", "https://two.example/v1")]));
        assert!(!suits(&[("OPENAI_API_KEY", "other")]));
        assert!(!suits(&[("AZURE_OPENAI_API_KEY", "other")]));
    }

    #[test]
    fn the_file_of_a_login_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("stdio-bus/openai-login.json");
        for _ in 0..2 {
            login().keep(&path).expect("it is kept");
        }
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().expect("a folder")).expect("it is there").count(), 1);
    }

    #[test]
    fn only_a_client_with_a_terminal_is_offered_the_login() {
        assert!(methods(&acp::ClientCapabilities::new()).is_empty());
        let auth = acp::AuthCapabilities::new().terminal(true);
        assert_eq!(methods(&acp::ClientCapabilities::new().auth(auth)).len(), 1);
    }
}
