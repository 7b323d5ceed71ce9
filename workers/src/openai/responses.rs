//! The larger things the agent says of itself: what it can do, and how a session is set.

use agent_client_protocol_schema::ProtocolVersion;
use agent_client_protocol_schema::v1 as acp;
use serde::Serialize;

use super::models::Models;
use super::record::{Mode, Record};

pub(super) const MODEL_OPTION: &str = "model";
pub(super) const MODE_OPTION: &str = "mode";

pub(super) fn initialized() -> acp::InitializeResponse {
    let sessions = acp::SessionCapabilities::new()
        .list(acp::SessionListCapabilities::new())
        .resume(acp::SessionResumeCapabilities::new())
        .close(acp::SessionCloseCapabilities::new())
        .fork(acp::SessionForkCapabilities::new())
        .delete(acp::SessionDeleteCapabilities::new());
    let capabilities = acp::AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(acp::PromptCapabilities::new().image(true).embedded_context(true))
        .session_capabilities(sessions);
    acp::InitializeResponse::new(ProtocolVersion::V1).agent_capabilities(capabilities).agent_info(
        acp::Implementation::new("openai-agent", env!("CARGO_PKG_VERSION")).title("OpenAI agent".to_owned()),
    )
}

/// What a client is told of a session it opens.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Settings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) session_id: Option<String>,
    modes: acp::SessionModeState,
    config_options: Vec<acp::SessionConfigOption>,
    /// For clients from before options; no longer in the schema.
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
    pub(super) fn new(record: &Record, default_model: &str, models: &Models) -> Settings {
        let current = record.model.as_deref().unwrap_or(default_model);
        let info = |id: &&str| ModelInfo { model_id: (*id).to_owned(), name: (*id).to_owned() };
        Settings {
            session_id: None,
            modes: modes(record.mode),
            config_options: config_options(record, default_model, models),
            models: ModelState {
                current_model_id: current.to_owned(),
                available_models: models.ids(current).iter().map(info).collect(),
            },
        }
    }
}

pub(super) fn config_options(
    record: &Record,
    default_model: &str,
    models: &Models,
) -> Vec<acp::SessionConfigOption> {
    let current = record.model.as_deref().unwrap_or(default_model);
    let model = |id: &&str| acp::SessionConfigSelectOption::new((*id).to_owned(), *id);
    let choices: Vec<_> = models.ids(current).iter().map(model).collect();
    let mode = |mode: &Mode| {
        acp::SessionConfigSelectOption::new(mode_id(*mode), mode_words(*mode).0)
            .description(mode_words(*mode).1.to_owned())
    };
    vec![
        acp::SessionConfigOption::select(MODEL_OPTION, "Model", current.to_owned(), choices)
            .category(acp::SessionConfigOptionCategory::Model),
        acp::SessionConfigOption::select(
            MODE_OPTION,
            "Mode",
            mode_id(record.mode),
            MODES.iter().map(mode).collect::<Vec<_>>(),
        )
        .category(acp::SessionConfigOptionCategory::Mode),
    ]
}

pub(super) fn mode_called(id: &str) -> Option<Mode> {
    MODES.into_iter().find(|mode| mode_id(*mode) == id)
}

const MODES: [Mode; 3] = [Mode::Ask, Mode::Auto, Mode::Read];

fn modes(current: Mode) -> acp::SessionModeState {
    let shape = |mode: &Mode| {
        acp::SessionMode::new(mode_id(*mode), mode_words(*mode).0).description(mode_words(*mode).1.to_owned())
    };
    acp::SessionModeState::new(mode_id(current), MODES.iter().map(shape).collect())
}

pub(super) fn mode_id(mode: Mode) -> &'static str {
    match mode {
        Mode::Ask => "ask",
        Mode::Auto => "auto",
        Mode::Read => "read",
    }
}

fn mode_words(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::Ask => ("Ask", "Reads files; asks before it changes one or runs a command"),
        Mode::Auto => ("Auto", "Reads and changes files and runs commands without asking"),
        Mode::Read => ("Read only", "Reads files and does nothing else"),
    }
}
