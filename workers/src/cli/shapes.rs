//! The larger things the agent says of itself: what it can do, and how a session is set.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::bridge::Settings;
use super::house::House;
use super::record::Record;
use super::runtimes::{FormatName, Mode};

pub(super) const MODEL_OPTION: &str = "model";
pub(super) const EFFORT_OPTION: &str = "effort";
pub(super) const MODE_OPTION: &str = "mode";
/// The choice that leaves it to the CLI.
pub(super) const USUAL: &str = "default";

pub(super) fn initialized(house: &House) -> acp::InitializeResponse {
    let fork = can_fork(house).then(acp::SessionForkCapabilities::new);
    let sessions = acp::SessionCapabilities::new()
        .fork(fork)
        .list(acp::SessionListCapabilities::new())
        .resume(acp::SessionResumeCapabilities::new())
        .close(acp::SessionCloseCapabilities::new())
        .delete(acp::SessionDeleteCapabilities::new());
    let capabilities = acp::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(acp::PromptCapabilities::new().embedded_context(true).image(house.is_bridge()))
        .session_capabilities(sessions);
    let name = format!("{}-cli", house.row.id);
    acp::InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(acp::Implementation::new(name, env!("CARGO_PKG_VERSION")).title(house.row.name.clone()))
}

/// What a client is told of a session it opens.
pub(super) fn opened(house: &House, record: &Record, new_id: Option<&str>) -> Value {
    let mut settings = json!({ "configOptions": config_options(house, record) });
    if let Some(id) = new_id {
        settings["sessionId"] = json!(id);
    }
    if !house.turn.modes.is_empty() {
        let mode = |mode: &Mode| acp::SessionMode::new(mode.id.clone(), mode.name.clone());
        let modes = house.turn.modes.iter().map(mode).collect();
        settings["modes"] = json!(acp::SessionModeState::new(mode_of(house, record), modes));
    }
    settings
}

pub(super) fn config_options(house: &House, record: &Record) -> Vec<acp::SessionConfigOption> {
    let choice = |id: &str, name: &str| acp::SessionConfigSelectOption::new(id.to_owned(), name.to_owned());
    let select = |id: &'static str, name: &'static str, current: &str, choices, category| {
        acp::SessionConfigOption::select(id, name, current.to_owned(), choices).category(category)
    };
    let mut options = Vec::new();
    let usual = choice(USUAL, "Default");
    let model = model_of(house, record).unwrap_or(USUAL);
    let mut models = vec![usual.clone()];
    let listed = house.models();
    models.extend(listed.iter().map(|known| choice(&known.id, &known.name)));
    let is_new = model != USUAL && listed.iter().all(|known| known.id != model);
    models.extend(is_new.then(|| choice(model, model)));
    let category = acp::SessionConfigOptionCategory::Model;
    options.push(select(MODEL_OPTION, "Model", model, models, category));
    let known = efforts_of(house, record);
    if !known.is_empty() {
        let mut efforts = vec![usual];
        efforts.extend(known.iter().map(|effort| choice(effort, effort)));
        let effort = record.effort.as_deref().unwrap_or(USUAL);
        let category = acp::SessionConfigOptionCategory::ThoughtLevel;
        options.push(select(EFFORT_OPTION, "Reasoning effort", effort, efforts, category));
    }
    if !house.turn.modes.is_empty() {
        let modes = house.turn.modes.iter().map(|mode| choice(&mode.id, &mode.name)).collect();
        let category = acp::SessionConfigOptionCategory::Mode;
        options.push(select(MODE_OPTION, "Mode", &mode_of(house, record), modes, category));
    }
    options
}

/// Those of the model, where the CLI has told them, else those of the CLI.
pub(super) fn efforts_of(house: &House, record: &Record) -> Vec<String> {
    let model = model_of(house, record);
    let listed = house.models().into_iter().find(|known| Some(known.id.as_str()) == model);
    let own = listed.map(|known| known.efforts).filter(|efforts| !efforts.is_empty());
    own.unwrap_or_else(|| house.row.efforts.clone())
}

/// Whether the CLI can branch from a session.
pub(super) fn can_fork(house: &House) -> bool {
    house.turn.format == FormatName::CodexAppServer
        || house.turn.args.iter().flat_map(|arg| arg.words()).any(|word| word.contains("{fork}"))
}

/// How the CLI is to be set for this session.
pub(super) fn settings_of(house: &House, record: &Record) -> Settings {
    let mode = mode_of(house, record);
    let known = house.turn.modes.iter().find(|known| known.id == mode);
    Settings {
        model: model_of(house, record).map(ToOwned::to_owned),
        effort: record.effort.clone().filter(|effort| effort != USUAL),
        set: known.map(|mode| mode.set.clone()).unwrap_or_default(),
        mode,
    }
}

pub(super) fn model_of<'a>(house: &'a House, record: &'a Record) -> Option<&'a str> {
    record.model.as_deref().or(house.options.model.as_deref()).filter(|model| *model != USUAL)
}

/// The chosen mode, else that of the command line, else the first.
pub(super) fn mode_of(house: &House, record: &Record) -> String {
    let chosen = record.mode.as_ref().or(house.options.mode.as_ref());
    chosen.or(house.turn.modes.first().map(|mode| &mode.id)).cloned().unwrap_or_default()
}
