//! The larger responses of the agent: its capabilities and a session's settings.

use serde_json::{Value, json};

use super::command::COMMANDS;
use super::record::{Mode, Split};

/// The agent speaks only ACP version 1, whatever the client offers.
const PROTOCOL_VERSION: u16 = 1;

/// The only option of a session besides its mode.
pub(super) const SPLIT_OPTION: &str = "split";

pub(super) fn initialized() -> Value {
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "agentInfo": { "name": "stdio-bus-echo", "title": "Echo", "version": env!("CARGO_PKG_VERSION") },
        "agentCapabilities": {
            "loadSession": true,
            "promptCapabilities": { "image": false, "audio": false, "embeddedContext": true },
            "mcpCapabilities": { "http": false, "sse": false },
            "sessionCapabilities": { "list": {}, "resume": {}, "close": {}, "fork": {}, "delete": {} },
            "auth": { "logout": {} },
        },
        "authMethods": [],
    })
}

/// The result of a method that opens a session.
pub(super) fn settings(mode: Mode, split: Split) -> Value {
    json!({ "modes": modes(mode), "configOptions": config_options(split) })
}

pub(super) fn config_options(split: Split) -> Value {
    json!([{
        "id": SPLIT_OPTION,
        "name": "Split",
        "description": "Where answers are cut into chunks",
        "type": "select",
        "currentValue": split,
        "options": [
            { "value": Split::Words, "name": "Words", "description": "A few words at a time" },
            { "value": Split::Lines, "name": "Lines", "description": "A line at a time" },
            { "value": Split::Whole, "name": "Whole", "description": "All at once" },
        ],
    }])
}

pub(super) fn available_commands() -> Value {
    let command = |command: &super::command::Help| {
        let mut json = json!({ "name": command.name, "description": command.does });
        if let Some(hint) = command.input {
            json["input"] = json!({ "hint": hint });
        }
        json
    };
    let commands: Vec<_> = COMMANDS.iter().map(command).collect();
    json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands })
}

fn modes(mode: Mode) -> Value {
    json!({
        "currentModeId": mode,
        "availableModes": [
            { "id": Mode::Plain, "name": "Plain", "description": "Says what you say" },
            { "id": Mode::Shout, "name": "Shout", "description": "Says it in capitals" },
        ],
    })
}
