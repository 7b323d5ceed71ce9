//! Builds the agent's larger responses: its capabilities and the settings of a session.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::json::items;
use super::own_options;
use super::record::Record;
use super::runtimes::{McpTransport, Mode};
use super::session::State;
use super::settings::Settings;
use super::shared::Shared;
use crate::detect::Model;

pub(super) const MODEL_OPTION: &str = "model";
pub(super) const EFFORT_OPTION: &str = "effort";
pub(super) const MODE_OPTION: &str = "mode";
/// The choice that leaves a setting to the CLI.
pub(super) const DEFAULT_CHOICE: &str = "default";

pub(super) fn initialize(shared: &Shared) -> acp::InitializeResponse {
    let fork = can_fork(shared).then(acp::SessionForkCapabilities::new);
    let sessions = acp::SessionCapabilities::new()
        .fork(fork)
        .list(acp::SessionListCapabilities::new())
        .resume(acp::SessionResumeCapabilities::new())
        .close(acp::SessionCloseCapabilities::new())
        .additional_directories(
            shared.turn.takes_folders().then(acp::SessionAdditionalDirectoriesCapabilities::new),
        )
        .delete(acp::SessionDeleteCapabilities::new());
    let capabilities = acp::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(
            acp::PromptCapabilities::new().embedded_context(true).image(shared.turn.takes_images()),
        )
        .mcp_capabilities(
            acp::McpCapabilities::new()
                .http(shared.turn.mcp.contains(&McpTransport::Http))
                .sse(shared.turn.mcp.contains(&McpTransport::Sse)),
        )
        .session_capabilities(sessions);
    let name = format!("{}-cli", shared.row.id);
    acp::InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(acp::Implementation::new(name, env!("CARGO_PKG_VERSION")).title(shared.row.name.clone()))
}

/// The response to a request that opens a session. Only a new session has an id to report.
pub(super) fn session(shared: &Shared, state: &State, new_id: Option<&str>) -> Value {
    let options = config_options(shared, state);
    let mut settings = json!({ "models": model_state(&options), "configOptions": options });
    if let Some(id) = new_id {
        settings["sessionId"] = json!(id);
    }
    if !shared.turn.modes.is_empty() {
        let mode = |mode: &Mode| {
            acp::SessionMode::new(mode.id.clone(), mode.name.clone()).description(mode.description.clone())
        };
        let modes = shared.turn.modes.iter().map(mode).collect();
        settings["modes"] = json!(acp::SessionModeState::new(mode_of(shared, &state.record), modes));
    }
    settings
}

/// The choices of the option `model` for older clients that do not know options. It is no longer in the schema.
fn model_state(options: &[acp::SessionConfigOption]) -> Value {
    let option = json!(options.iter().find(|option| option.id.to_string() == MODEL_OPTION));
    let info = |choice: &Value| {
        let mut info = json!({ "modelId": choice["value"], "name": choice["name"] });
        if choice["description"].is_string() {
            info["description"] = choice["description"].clone();
        }
        info
    };
    let available: Vec<Value> = items(&option["options"]).iter().map(info).collect();
    json!({ "currentModelId": option["currentValue"], "availableModels": available })
}

pub(super) fn config_options(shared: &Shared, state: &State) -> Vec<acp::SessionConfigOption> {
    let record = &state.record;
    let choice = |id: &str, name: &str| acp::SessionConfigSelectOption::new(id.to_owned(), name.to_owned());
    let select = |id: &'static str, name: &'static str, current: &str, choices, category| {
        acp::SessionConfigOption::select(id, name, current.to_owned(), choices).category(category)
    };
    let mut options = Vec::new();
    let default = choice(DEFAULT_CHOICE, "Default");
    let model = model_of(shared, record).unwrap_or(DEFAULT_CHOICE);
    let listed = shared.models();
    let by_default = listed.iter().find(|known| known.id == DEFAULT_CHOICE);
    let name = match shared.default_model() {
        Some(name) => format!("Default ({name})"),
        None => by_default.map_or("Default", |known| &known.name).to_owned(),
    };
    let described = |id: &str, name: &str, description: Option<&String>| {
        choice(id, name).description(description.cloned())
    };
    let mut models =
        vec![described(DEFAULT_CHOICE, &name, by_default.and_then(|known| known.description.as_ref()))];
    let others = listed.iter().filter(|known| known.id != DEFAULT_CHOICE);
    models.extend(others.map(|known| described(&known.id, &known.name, known.description.as_ref())));
    if model != DEFAULT_CHOICE && listed.iter().all(|known| known.id != model) {
        models.push(choice(model, model));
    }
    let category = acp::SessionConfigOptionCategory::Model;
    options.push(select(MODEL_OPTION, "Model", model, models, category));
    let known = efforts_of(shared, record);
    if !known.is_empty() {
        let mut efforts = vec![default];
        efforts.extend(known.iter().map(|effort| choice(effort, effort)));
        let effort = record.effort.as_deref().unwrap_or(DEFAULT_CHOICE);
        let category = acp::SessionConfigOptionCategory::ThoughtLevel;
        options.push(select(EFFORT_OPTION, "Reasoning effort", effort, efforts, category));
    }
    if !shared.turn.modes.is_empty() {
        let mode = |mode: &Mode| described(&mode.id, &mode.name, mode.description.as_ref());
        let modes = shared.turn.modes.iter().map(mode).collect();
        let category = acp::SessionConfigOptionCategory::Mode;
        options.push(select(MODE_OPTION, "Mode", &mode_of(shared, record), modes, category));
    }
    options.extend(own_options::offered(shared, state, model_in_use(shared, record).as_ref()));
    options
}

pub(super) fn config_options_update(shared: &Shared, state: &State) -> acp::SessionUpdate {
    let update = acp::ConfigOptionUpdate::new(config_options(shared, state));
    acp::SessionUpdate::ConfigOptionUpdate(update)
}

/// The model's own efforts, if the CLI has listed them, else those of the table.
pub(super) fn efforts_of(shared: &Shared, record: &Record) -> Vec<String> {
    let model = model_of(shared, record);
    match shared.models().into_iter().find(|known| Some(known.id.as_str()) == model) {
        Some(known) if !known.efforts.is_empty() => known.efforts,
        _ => shared.row.efforts.clone(),
    }
}

/// Whether the CLI can fork a session.
pub(super) fn can_fork(shared: &Shared) -> bool {
    shared.turn.opens_by_message() || shared.turn.names("{fork}")
}

pub(super) fn settings_of(shared: &Shared, record: &Record) -> Settings {
    let mode = mode_of(shared, record);
    let known = shared.turn.modes.iter().find(|known| known.id == mode);
    Settings {
        model: model_of(shared, record).map(ToOwned::to_owned),
        effort: record.effort.clone().filter(|effort| effort != DEFAULT_CHOICE),
        mode_params: known.map(|mode| mode.set.clone()).unwrap_or_default(),
        mode,
        options: record.options.clone(),
    }
}

fn model_of<'a>(shared: &'a Shared, record: &'a Record) -> Option<&'a str> {
    record.model.as_deref().or(shared.options.model.as_deref()).filter(|model| *model != DEFAULT_CHOICE)
}

/// The listed model that works in the session, whether it was chosen or not.
pub(super) fn model_in_use(shared: &Shared, record: &Record) -> Option<Model> {
    let listed = shared.models();
    let named = |id: &str| listed.iter().find(|known| known.id == id).cloned();
    match model_of(shared, record) {
        Some(id) => named(id),
        None => named(DEFAULT_CHOICE).or_else(|| named(&shared.default_model()?)),
    }
}

/// The session's mode, else that of the command line, else the first of the table.
fn mode_of(shared: &Shared, record: &Record) -> String {
    let is_offered = |id: &&String| shared.turn.modes.iter().any(|mode| mode.id == **id);
    // A session may have been in a mode that root has not.
    let chosen = record.mode.as_ref().filter(is_offered).or(shared.options.mode.as_ref());
    chosen.or(shared.turn.modes.first().map(|mode| &mode.id)).cloned().unwrap_or_default()
}
