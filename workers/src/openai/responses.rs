//! The larger responses of the agent: its capabilities and a session's settings.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;

use super::models::Models;
use super::record::Mode;

pub(super) const MODEL_OPTION: &str = "model";
pub(super) const MODE_OPTION: &str = "mode";

pub(super) fn initialized(auth_methods: Vec<acp::AuthMethod>) -> acp::InitializeResponse {
    let sessions = acp::SessionCapabilities::new()
        .list(acp::SessionListCapabilities::new())
        .additional_directories(acp::SessionAdditionalDirectoriesCapabilities::new())
        .resume(acp::SessionResumeCapabilities::new())
        .close(acp::SessionCloseCapabilities::new())
        .fork(acp::SessionForkCapabilities::new())
        .delete(acp::SessionDeleteCapabilities::new());
    let capabilities = acp::AgentCapabilities::new()
        .load_session(true)
        .mcp_capabilities(acp::McpCapabilities::new().http(true).sse(true))
        .prompt_capabilities(acp::PromptCapabilities::new().image(true).embedded_context(true))
        .session_capabilities(sessions);
    let info =
        acp::Implementation::new("openai-agent", env!("CARGO_PKG_VERSION")).title("OpenAI agent".to_owned());
    acp::InitializeResponse::new(ProtocolVersion::V1)
        .agent_capabilities(capabilities)
        .agent_info(info)
        .auth_methods(auth_methods)
}

/// The result of a method that opens a session.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    modes: acp::SessionModeState,
    config_options: Vec<acp::SessionConfigOption>,
    /// For older clients that do not know options. It is no longer in the schema.
    models: ModelState,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ModelState {
    current_model_id: String,
    available_models: Vec<ModelInfo>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ModelInfo {
    model_id: String,
    name: String,
}

impl Settings {
    pub(super) fn new(new_id: Option<String>, mode: Mode, model: &str, models: &Models) -> Settings {
        let info = |id: &&str| ModelInfo { model_id: (*id).to_owned(), name: (*id).to_owned() };
        Settings {
            session_id: new_id,
            modes: modes(mode),
            config_options: config_options(mode, model, models),
            models: ModelState {
                current_model_id: model.to_owned(),
                available_models: models.ids(model).iter().map(info).collect(),
            },
        }
    }
}

pub(super) fn config_options(mode: Mode, model: &str, models: &Models) -> Vec<acp::SessionConfigOption> {
    let model_choice = |id: &&str| acp::SessionConfigSelectOption::new((*id).to_owned(), *id);
    let model_choices: Vec<_> = models.ids(model).iter().map(model_choice).collect();
    let mode_choice = |mode: &Mode| {
        let (name, description) = name_and_description(*mode);
        acp::SessionConfigSelectOption::new(mode_id(*mode), name).description(description.to_owned())
    };
    let mode_choices: Vec<_> = MODES.iter().map(mode_choice).collect();
    vec![
        acp::SessionConfigOption::select(MODEL_OPTION, "Model", model.to_owned(), model_choices)
            .category(acp::SessionConfigOptionCategory::Model),
        acp::SessionConfigOption::select(MODE_OPTION, "Mode", mode_id(mode), mode_choices)
            .category(acp::SessionConfigOptionCategory::Mode),
    ]
}

pub(super) fn mode_by_id(id: &str) -> Option<Mode> {
    MODES.into_iter().find(|mode| mode_id(*mode) == id)
}

const MODES: [Mode; 3] = [Mode::Ask, Mode::Auto, Mode::Read];

fn modes(current: Mode) -> acp::SessionModeState {
    let mode = |mode: &Mode| {
        let (name, description) = name_and_description(*mode);
        acp::SessionMode::new(mode_id(*mode), name).description(description.to_owned())
    };
    acp::SessionModeState::new(mode_id(current), MODES.iter().map(mode).collect())
}

fn mode_id(mode: Mode) -> &'static str {
    match mode {
        Mode::Ask => "ask",
        Mode::Auto => "auto",
        Mode::Read => "read",
    }
}

fn name_and_description(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::Ask => ("Ask", "Reads files; asks before it changes one or runs a command"),
        Mode::Auto => ("Auto", "Reads and changes files and runs commands without asking"),
        Mode::Read => ("Read only", "Reads files and does nothing else"),
    }
}
