//! Asks a CLI for its models, by its own command or over ACP.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use serde::Serialize;
use serde_json::{Value, json};

use super::probe::{end, read_pipe, run, start};
use crate::cli::json::items;
use crate::cli::runtimes::{Acp, ModelsProbe, ModelsShape, Runtime};

const LIMIT: Duration = Duration::from_secs(30);
/// ACP's error code.
const LOGIN_REQUIRED: i64 = -32000;
const MODELS: usize = 500;
const ID_CHARS: usize = 128;

#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Model {
    pub id: String,
    pub name: String,
    /// The reasoning efforts that the model takes, if the CLI lists them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<String>,
}

#[derive(Default)]
pub(super) struct Listing {
    pub(super) models: Option<Vec<Model>>,
    /// Known only if the CLI has opened a session or refused one for want of a login.
    pub(super) logged_in: Option<bool>,
}

pub(super) fn of(row: &Runtime, program: &Path) -> Listing {
    let mut listing = match (&row.models, &row.acp) {
        (Some(_), _) => Listing { models: Some(listed(row, program)), logged_in: None },
        (None, Some(acp)) if acp.command.is_none() => over_acp(acp, program, &row.id).unwrap_or_default(),
        _ => Listing::default(),
    };
    listing.models = listing.models.filter(|models| !models.is_empty());
    listing
}

/// The models that the CLI's own command lists, or none if it has no such command.
pub(crate) fn listed(row: &Runtime, program: &Path) -> Vec<Model> {
    let Some(ModelsProbe { args, shape, stdin }) = &row.models else { return Vec::new() };
    read(*shape, &run(program, args, stdin, LIMIT).stdout)
}

fn read(shape: ModelsShape, output: &str) -> Vec<Model> {
    let mut models: Vec<Model> = match shape {
        ModelsShape::Lines => {
            output.lines().filter_map(|line| model(&json!(line.trim()), &Value::Null, Vec::new())).collect()
        }
        ModelsShape::Codex => {
            let output: Value = serde_json::from_str(output).unwrap_or_default();
            let visible = items(&output["models"]).iter().filter(|listed| listed["visibility"] != "hide");
            let read = |listed: &Value| {
                let efforts = strings(&listed["supported_reasoning_levels"], |level| &level["effort"]);
                model(&listed["slug"], &listed["display_name"], efforts)
            };
            visible.filter_map(read).collect()
        }
        ModelsShape::Claude => {
            let mut objects = output.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let answer = objects.find(|line| line["type"] == "control_response").unwrap_or_default();
            claude_models(&answer["response"]["response"]["models"])
        }
    };
    models.truncate(MODELS);
    models
}

/// Reads the models in the response to the control request `initialize`.
pub(crate) fn claude_models(list: &Value) -> Vec<Model> {
    let read = |listed: &Value| {
        let efforts = strings(&listed["supportedEffortLevels"], |level| level);
        model(&listed["value"], &listed["displayName"], efforts)
    };
    items(list).iter().take(MODELS).filter_map(read).collect()
}

fn strings<'a>(list: &'a Value, field: impl Fn(&'a Value) -> &'a Value) -> Vec<String> {
    items(list).iter().filter_map(|item| field(item).as_str().map(ToOwned::to_owned)).collect()
}

/// Opens a session without a prompt in an empty folder, and reads the models from the response.
fn over_acp(acp: &Acp, program: &Path, id: &str) -> Option<Listing> {
    let folder = env::temp_dir().join(format!("stdio-bus-detect-{}-{id}", process::id()));
    fs::create_dir_all(&folder).ok()?;
    let until = Instant::now() + LIMIT;
    let listing = start(program, &acp.args, Some(&folder)).ok().and_then(|mut child| {
        let mut stdin = child.stdin.take()?;
        let stdout = read_pipe(child.stdout.take());
        // The thread behind it empties the pipe, so that the CLI does not block.
        let _stderr = read_pipe(child.stderr.take());
        let initialize = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        let new_session = json!({ "cwd": folder, "mcpServers": [] });
        for (id, method, params) in [(1, "initialize", initialize), (2, "session/new", new_session)] {
            let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
            let _ = writeln!(stdin, "{line}");
        }
        let answer = answer_of_two(&stdout, until);
        drop(stdin);
        end(child, Instant::now() + Duration::from_secs(2));
        let answer = answer?;
        let logged_in = match (&answer["result"], &answer["error"]["code"]) {
            (Value::Object(_), _) => Some(true),
            (_, code) if *code == LOGIN_REQUIRED => Some(false),
            _ => None,
        };
        Some(Listing { models: Some(offered(&answer["result"])), logged_in })
    });
    let _ = fs::remove_dir_all(&folder);
    listing
}

fn answer_of_two(stdout: &Receiver<Vec<u8>>, until: Instant) -> Option<Value> {
    let mut bytes = Vec::new();
    loop {
        bytes.extend(stdout.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?);
        while let Some(newline) = memchr::memchr(b'\n', &bytes) {
            let line: Vec<u8> = bytes.drain(..=newline).collect();
            let message: Value = serde_json::from_slice(&line).unwrap_or_default();
            if message["id"] == 2 && message.get("method").is_none() {
                return Some(message);
            }
        }
    }
}

/// Older agents send `models`, newer ones a config option of that category.
fn offered(result: &Value) -> Vec<Model> {
    let older = items(&result["models"]["availableModels"]);
    let mut models: Vec<Model> =
        older.iter().filter_map(|listed| model(&listed["modelId"], &listed["name"], Vec::new())).collect();
    if models.is_empty() {
        let option = items(&result["configOptions"]).iter().find(|option| option["category"] == "model");
        let choices = option.map_or(&[][..], |option| items(&option["options"]));
        // Choices may be grouped.
        let flat = choices.iter().flat_map(|choice| match choice["options"].as_array() {
            Some(group) => group.as_slice(),
            None => std::slice::from_ref(choice),
        });
        models = flat.filter_map(|listed| model(&listed["value"], &listed["name"], Vec::new())).collect();
    }
    models.truncate(MODELS);
    models
}

/// Refuses an id with spaces, which is a sentence such as a demand to log in.
pub(crate) fn model(id: &Value, name: &Value, efforts: Vec<String>) -> Option<Model> {
    let id = id.as_str()?;
    let is_good = |c: char| !c.is_whitespace() && !c.is_control();
    if id.is_empty() || id.len() > ID_CHARS || !id.chars().all(is_good) {
        return None;
    }
    let name = name.as_str().unwrap_or(id).to_owned();
    Some(Model { id: id.to_owned(), name, efforts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(models: &[Model]) -> Vec<&str> {
        models.iter().map(|model| model.id.as_str()).collect()
    }

    #[test]
    fn every_shape_of_a_list_is_read() {
        let codex = r#"{"models":[
            {"slug":"one","display_name":"One","supported_reasoning_levels":[{"effort":"low"}]},
            {"slug":"two","visibility":"hide"}]}"#;
        let models = read(ModelsShape::Codex, codex);
        assert_eq!(models, [Model { id: "one".into(), name: "One".into(), efforts: vec!["low".into()] }]);
        let claude = concat!(
            "{\"type\":\"system\"}\nnoise\n",
            r#"{"type":"control_response","response":{"response":{"models":[{"value":"default"}]}}}"#,
        );
        assert_eq!(ids(&read(ModelsShape::Claude, claude)), ["default"]);
        assert_eq!(
            ids(&read(ModelsShape::Lines, "a/one\nNo models available\n\na/two\n")),
            ["a/one", "a/two"]
        );
        assert_eq!(read(ModelsShape::Codex, "log in first"), []);
    }

    #[test]
    fn both_forms_of_acp_are_read() {
        let older = json!({ "models": { "availableModels": [{ "modelId": "one", "name": "One" }] } });
        let newer = json!({ "configOptions": [
            { "category": "mode", "options": [{ "value": "ask" }] },
            { "category": "model", "options": [{ "value": "one" }, { "options": [{ "value": "two" }] }] },
        ] });
        assert_eq!(ids(&offered(&older)), ["one"]);
        assert_eq!(ids(&offered(&newer)), ["one", "two"]);
        assert_eq!(offered(&json!({})), []);
    }
}
