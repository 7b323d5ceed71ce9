//! Asks a CLI for its models, by its own command or over ACP.

use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::unistd::mkdtemp;
use rpc::error::AUTH_REQUIRED;
use rpc::text::{steers_terminal, strip_control};
use rpc::{Message, write};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::probe::{Conversation, OUTPUT_BYTES, run, start};
use crate::cli::json::items;
use crate::cli::runtimes::{Acp, ModelsProbe, ModelsShape, Runtime};

const LIMIT: Duration = Duration::from_secs(30);
const MODELS: usize = 500;
const ID_CHARS: usize = 128;

/// The fast mode of claude.
pub(crate) const FAST: &str = "fast";
/// The fast mode of codex.
pub(crate) const FAST_TIER: &str = "fast-mode";
/// Claude's workflows of many agents.
pub(crate) const ULTRACODE: &str = "ultracode";

#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Model {
    pub id: String,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The reasoning efforts that the model takes, if the CLI lists them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<String>,
    /// The ids of those of the CLI's own options that it has with this model.
    #[serde(skip)]
    pub(crate) features: Vec<&'static str>,
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
        (None, Some(acp)) if acp.command.is_none() => over_acp(acp, program).unwrap_or_default(),
        _ => Listing::default(),
    };
    listing.models = listing.models.filter(|models| !models.is_empty()).or_else(|| known(row));
    listing
}

/// The models that the table knows of a CLI, or `None` if it knows none.
pub(crate) fn known(row: &Runtime) -> Option<Vec<Model>> {
    let models = row.known_models.iter().map(|known| Model::new(&known.id, &known.name));
    Some(models.collect()).filter(|models: &Vec<Model>| !models.is_empty())
}

impl Model {
    fn new(id: &str, name: &str) -> Model {
        let (id, name) = (id.to_owned(), name.to_owned());
        Model { id, name, description: None, efforts: Vec::new(), features: Vec::new() }
    }

    /// Reads whether codex can be told to be faster with this model.
    pub(crate) fn with_tiers(mut self, lists: [&Value; 2]) -> Model {
        let mut tiers = lists.into_iter().flat_map(items);
        // Newer versions call the tier "priority", and take the older word, too.
        if tiers.any(|tier| tier == "fast" || tier["id"] == "fast" || tier["id"] == "priority") {
            self.features.push(FAST_TIER);
        }
        self
    }

    pub(crate) fn described(self, description: &Value) -> Model {
        let description = description.as_str().filter(|text| !text.is_empty()).map(strip_control);
        Model { description, ..self }
    }
}

/// The models that the CLI's own command lists, or none if it has no such command.
pub(crate) fn listed(row: &Runtime, program: &Path) -> Vec<Model> {
    let Some(ModelsProbe { args, shape, stdin }) = &row.models else { return Vec::new() };
    read(*shape, &run(program, args, stdin, LIMIT).stdout)
}

fn read(shape: ModelsShape, output: &str) -> Vec<Model> {
    let mut models: Vec<Model> = match shape {
        ModelsShape::Lines => {
            let read = |line: &str| {
                // Cursor prints `id - Label (current)`.
                let (id, name) = line.trim().split_once(" - ").unwrap_or((line.trim(), ""));
                let name = name.trim_end_matches("(current)").trim_end_matches("(default)").trim();
                let name = if name.is_empty() { Value::Null } else { json!(name) };
                model(&json!(id.trim()), &name, Vec::new())
            };
            output.lines().filter_map(read).collect()
        }
        ModelsShape::Codex => {
            let output: Value = serde_json::from_str(output).unwrap_or_default();
            let visible = items(&output["models"]).iter().filter(|listed| listed["visibility"] != "hide");
            let read = |listed: &Value| {
                let efforts = strings(&listed["supported_reasoning_levels"], |level| &level["effort"]);
                let read = model(&listed["slug"], &listed["display_name"], efforts)?;
                let tiers = [&listed["additional_speed_tiers"], &listed["service_tiers"]];
                Some(read.with_tiers(tiers).described(&listed["description"]))
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
        let mut features = Vec::new();
        if listed["supportsFastMode"] == true {
            features.push(FAST);
        }
        // The CLI has it with just the models that have this effort.
        if listed["supportsEffort"] == true && efforts.iter().any(|effort| effort == "xhigh") {
            features.push(ULTRACODE);
        }
        let read = model(&listed["value"], &listed["displayName"], efforts)?;
        Some(Model { features, ..read }.described(&listed["description"]))
    };
    items(list).iter().take(MODELS).filter_map(read).collect()
}

fn strings<'a>(list: &'a Value, field: impl Fn(&'a Value) -> &'a Value) -> Vec<String> {
    items(list).iter().filter_map(|item| field(item).as_str().map(ToOwned::to_owned)).collect()
}

/// Opens a session without a prompt in an empty folder, and reads the models from the response.
fn over_acp(acp: &Acp, program: &Path) -> Option<Listing> {
    // The CLI believes what it finds in its folder, so nobody else may have made the folder or write to it.
    let folder = mkdtemp(&env::temp_dir().join("stdio-bus-detect-XXXXXX")).ok()?;
    let response =
        start(program, &acp.args, Some(&folder)).ok().and_then(|child| new_session(child, &folder));
    let _ = fs::remove_dir_all(&folder);
    Some(match response? {
        Ok(result) => {
            let logged_in = if result.is_object() { Some(true) } else { None };
            Listing { models: Some(offered(&result)), logged_in }
        }
        Err(error) => {
            let logged_in = if error["code"] == AUTH_REQUIRED { Some(false) } else { None };
            Listing { models: None, logged_in }
        }
    })
}

/// Sends `initialize` and `session/new`, and returns the result or the error of the second. Ends the process.
fn new_session(child: Child, folder: &Path) -> Option<Result<Value, Value>> {
    let until = Instant::now() + LIMIT;
    let mut cli = Conversation::new(child, OUTPUT_BYTES as usize)?;
    let initialize = json!({ "protocolVersion": 1, "clientCapabilities": {} });
    let _ = cli.stdin.write_all(&write::request(1, "initialize", initialize));
    let _ =
        cli.stdin.write_all(&write::request(2, "session/new", json!({ "cwd": folder, "mcpServers": [] })));
    let mut response = None;
    while let Ok(Some(line)) = cli.lines.read_line(&mut cli.stdout, Some(until)) {
        if let Ok(Message::Response { id, outcome }) = Message::parse(line)
            && id.get() == "2"
        {
            let value = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_default();
            response = Some(outcome.map(value).map_err(value));
            break;
        }
    }
    cli.end(Instant::now() + Duration::from_secs(2));
    response
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
    let is_good = |c: char| !c.is_whitespace() && !steers_terminal(c);
    if id.is_empty() || id.len() > ID_CHARS || !id.chars().all(is_good) {
        return None;
    }
    Some(Model { efforts, ..Model::new(id, name.as_str().unwrap_or(id)) })
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
        assert_eq!(models, [Model { efforts: vec!["low".into()], ..Model::new("one", "One") }]);
        let claude = concat!(
            "{\"type\":\"system\"}\nnoise\n",
            r#"{"type":"control_response","response":{"response":{"models":[{"value":"default"}]}}}"#,
        );
        assert_eq!(ids(&read(ModelsShape::Claude, claude)), ["default"]);
        assert_eq!(
            ids(&read(ModelsShape::Lines, "a/one\nNo models available\n\na/two\n")),
            ["a/one", "a/two"]
        );
        let cursor =
            read(ModelsShape::Lines, "Available models\n\nauto - Auto (current)\ngpt-5.2 - GPT-5.2\n");
        assert_eq!(ids(&cursor), ["auto", "gpt-5.2"]);
        assert_eq!([&*cursor[0].name, &*cursor[1].name], ["Auto", "GPT-5.2"]);
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

    #[test]
    fn the_folder_of_the_question_is_the_users_alone_and_does_not_stay() {
        // The model that this CLI lists is its folder, and is called what `ls` says of that.
        let model = r#"{\"modelId\":\"$PWD\",\"name\":\"$(ls -ld .)\"}"#;
        let result = format!(r#"{{\"models\":{{\"availableModels\":[{model}]}}}}"#);
        let script = format!(r#"echo "{{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{result}}}""#);
        let acp = Acp { command: None, args: vec!["-c".to_owned(), script], fallback: None };
        let models = over_acp(&acp, Path::new("/bin/sh")).unwrap().models.unwrap();
        let Model { id, name, .. } = &models[0];
        assert!(id.contains("stdio-bus-detect-") && !Path::new(id).exists(), "{id}");
        assert!(name.starts_with("drwx------"), "{name}");
    }
}
