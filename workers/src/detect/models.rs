//! The models that a CLI offers, by its own list or over ACP.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use std::{env, fs, process};

use serde::Serialize;
use serde_json::{Value, json};

use super::probe::{ask, end, reads, start};
use crate::cli::runtimes::{Acp, ModelsProbe, ModelsShape, Runtime};

const LIMIT: Duration = Duration::from_secs(30);
/// What ACP has for it.
const LOGIN_REQUIRED: i64 = -32000;
const MODELS: usize = 500;
const ID_CHARS: usize = 128;

#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Model {
    pub id: String,
    pub name: String,
    /// How much it may think, where it says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<String>,
}

/// What a CLI says of itself when it is asked for its models.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) models: Option<Vec<Model>>,
    /// Known only where it opened a session, or said that it wants a login first.
    pub(super) logged_in: Option<bool>,
}

pub(super) fn of(row: &Runtime, program: &Path) -> Heard {
    let mut heard = match (&row.models, &row.acp) {
        (Some(_), _) => Heard { models: Some(listed(row, program)), logged_in: None },
        (None, Some(acp)) if acp.command.is_none() => over_acp(acp, program, &row.id).unwrap_or_default(),
        _ => Heard::default(),
    };
    heard.models = heard.models.filter(|models| !models.is_empty());
    heard
}

/// Those of its own list, if it has one.
pub(crate) fn listed(row: &Runtime, program: &Path) -> Vec<Model> {
    let Some(ModelsProbe { args, shape, stdin }) = &row.models else { return Vec::new() };
    read(*shape, &ask(program, args, stdin, LIMIT).stdout)
}

fn read(shape: ModelsShape, said: &str) -> Vec<Model> {
    let objects = || said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut models: Vec<Model> = match shape {
        ModelsShape::Lines => {
            said.lines().filter_map(|line| model(&json!(line.trim()), &json!(null), &[])).collect()
        }
        ModelsShape::Codex => {
            let list: Value = serde_json::from_str(said).unwrap_or_default();
            let shown = items(&list["models"]).iter().filter(|one| one["visibility"] != "hide");
            let efforts = |one: &Value| words(&one["supported_reasoning_levels"], |level| &level["effort"]);
            shown.filter_map(|one| model(&one["slug"], &one["display_name"], &efforts(one))).collect()
        }
        ModelsShape::Claude => {
            let answer = objects().find(|line| line["type"] == "control_response").unwrap_or_default();
            claude_models(&answer["response"]["response"]["models"])
        }
    };
    models.truncate(MODELS);
    models
}

/// Of the answer to the control request `initialize`.
pub(crate) fn claude_models(list: &Value) -> Vec<Model> {
    let efforts = |one: &Value| words(&one["supportedEffortLevels"], |level| level);
    let shown = items(list).iter().take(MODELS);
    shown.filter_map(|one| model(&one["value"], &one["displayName"], &efforts(one))).collect()
}

/// Asks with a session that nothing is said in, in an empty folder.
fn over_acp(acp: &Acp, program: &Path, id: &str) -> Option<Heard> {
    let folder = env::temp_dir().join(format!("stdio-bus-detect-{}-{id}", process::id()));
    fs::create_dir_all(&folder).ok()?;
    let until = Instant::now() + LIMIT;
    let heard = start(program, &acp.args, Some(&folder)).ok().and_then(|mut child| {
        let mut stdin = child.stdin.take()?;
        let stdout = reads(child.stdout.take());
        // Held, so that what it says there does not fill the pipe.
        let _stderr = reads(child.stderr.take());
        let hello = json!({ "protocolVersion": 1, "clientCapabilities": {} });
        let open = json!({ "cwd": folder, "mcpServers": [] });
        for (number, method, params) in [(1, "initialize", hello), (2, "session/new", open)] {
            let line = json!({ "jsonrpc": "2.0", "id": number, "method": method, "params": params });
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
        Some(Heard { models: Some(offered(&answer["result"])), logged_in })
    });
    let _ = fs::remove_dir_all(&folder);
    heard
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

/// Older agents send `models`, newer ones an option of that category.
fn offered(result: &Value) -> Vec<Model> {
    let older = items(&result["models"]["availableModels"]);
    let mut models: Vec<Model> =
        older.iter().filter_map(|one| model(&one["modelId"], &one["name"], &[])).collect();
    if models.is_empty() {
        let option = items(&result["configOptions"]).iter().find(|option| option["category"] == "model");
        let choices = option.map_or(&[][..], |option| items(&option["options"]));
        // Choices may stand in groups.
        let flat = choices.iter().flat_map(|one| match one["options"].as_array() {
            Some(group) => group.iter().collect::<Vec<_>>(),
            None => vec![one],
        });
        models = flat.filter_map(|one| model(&one["value"], &one["name"], &[])).collect();
    }
    models.truncate(MODELS);
    models
}

/// What has spaces in it is a sentence, like the one of a CLI that wants a login.
pub(crate) fn model(id: &Value, name: &Value, efforts: &[String]) -> Option<Model> {
    let id = id.as_str().filter(|id| !id.is_empty() && id.len() <= ID_CHARS)?;
    if id.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return None;
    }
    let name = name.as_str().unwrap_or(id).to_owned();
    Some(Model { id: id.to_owned(), name, efforts: efforts.to_vec() })
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn words<'a>(list: &'a Value, word: impl Fn(&'a Value) -> &'a Value) -> Vec<String> {
    items(list).iter().filter_map(|one| word(one).as_str().map(ToOwned::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(models: &[Model]) -> Vec<&str> {
        models.iter().map(|model| model.id.as_str()).collect()
    }

    #[test]
    fn each_shape_of_a_list_is_read() {
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
    fn both_shapes_of_acp_are_read() {
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
