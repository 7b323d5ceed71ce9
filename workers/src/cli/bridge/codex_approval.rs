//! What codex asks for an approval of, the options that the client is given, and what codex hears for each.

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Map, Value, json};

use super::Question;
use crate::cli::json::{items, string};
use crate::cli::tool::Tool;
use crate::cli::turn_events::TurnEvents;

pub(super) const ALLOW: &str = "allow";
pub(super) const SESSION: &str = "allow_session";
pub(super) const ALWAYS: &str = "allow_always";
pub(super) const REJECT: &str = "reject";
pub(super) const ALLOW_HOST: &str = "allow_host";
pub(super) const REJECT_HOST: &str = "reject_host";

/// A request of the CLI for approval, with its response to each decision.
pub(super) struct Approval {
    pub(super) id: Value,
    /// The id of the call that waits for it.
    pub(super) call: String,
    /// Whether the call stands for the question alone, and is over with the answer.
    pub(super) stands_alone: bool,
    pub(super) decisions: Vec<(&'static str, Value)>,
    pub(super) refusal: Value,
    pub(super) cancel: Value,
}

/// Whether a question in the name of an MCP server is the CLI's own, whether it may call a tool. A question that wants
/// something filled in is not: an agreement would be an empty form.
pub(super) fn is_about_tool(params: &Value) -> bool {
    let schema = &params["requestedSchema"];
    let has_no_fields = schema["properties"].as_object().is_some_and(Map::is_empty);
    params["_meta"]["codex_approval_kind"] == "mcp_tool_call"
        && matches!(string(params, "mode"), "form" | "openai/form" | "openaiForm")
        && (schema.is_null() || (schema["type"] == "object" && has_no_fields))
}

/// The question whether a tool of an MCP server may be called: `known` is the call, if it was reported.
pub(super) fn about_tool(
    id: &Value,
    params: &Value,
    known: Option<(String, Tool)>,
    events: &mut TurnEvents,
) -> (Approval, Question) {
    use acp::PermissionOptionKind::{AllowAlways, AllowOnce, RejectOnce};
    let agreed = |persist: Value| json!({ "action": "accept", "content": null, "_meta": persist });
    let ended = |action: &str| json!({ "action": action, "content": null, "_meta": null });
    let meta = &params["_meta"];
    let is_offered =
        |scope: &str| meta["persist"] == scope || items(&meta["persist"]).iter().any(|one| one == scope);
    let mut choices = vec![(ALLOW, "Allow", AllowOnce, agreed(Value::Null))];
    if is_offered("session") {
        let name = "Always allow this tool in this session";
        choices.push((SESSION, name, AllowAlways, agreed(json!({ "persist": "session" }))));
    }
    if is_offered("always") {
        let name = "Always allow this tool";
        choices.push((ALWAYS, name, AllowAlways, agreed(json!({ "persist": "always" }))));
    }
    choices.push((REJECT, "Reject", RejectOnce, ended("decline")));
    let stands_alone = known.is_none();
    let message = string(params, "message");
    let (call_id, mut tool) = known.unwrap_or_else(|| {
        let mut tool = Tool::named(string(params, "serverName")).with_title(message);
        tool.input = Some(meta["tool_params"].clone()).filter(|input| !input.is_null());
        (format!("mcp-approval:{id}"), tool)
    });
    if stands_alone {
        events.call_pending(&call_id, tool.clone(), None);
    } else {
        events.call_waiting(&call_id);
    }
    tool.note = Some(message.to_owned()).filter(|text| !text.is_empty());
    let question = Question {
        key: id.to_string(),
        call: tool.in_question(&call_id, &events.cwd),
        options: choices
            .iter()
            .map(|(id, name, kind, _)| acp::PermissionOption::new(*id, *name, *kind))
            .collect(),
    };
    let approval = Approval {
        id: id.clone(),
        call: call_id,
        stands_alone,
        decisions: choices.into_iter().map(|(id, _, _, response)| (id, response)).collect(),
        refusal: ended("decline"),
        cancel: ended("cancel"),
    };
    (approval, question)
}

/// An option whose name says what the CLI would no longer ask about.
pub(super) fn option(id: &'static str, decision: &Value, method: &str) -> acp::PermissionOption {
    use acp::PermissionOptionKind::{AllowAlways, AllowOnce, RejectAlways, RejectOnce};
    let host = &decision["decision"]["applyNetworkPolicyAmendment"]["network_policy_amendment"]["host"];
    let host = host.as_str().unwrap_or("this host");
    let (name, kind) = match id {
        ALLOW_HOST => (format!("Always allow connections to {host}"), AllowAlways),
        REJECT_HOST => (format!("Never allow connections to {host}"), RejectAlways),
        ALLOW => ("Allow".to_owned(), AllowOnce),
        SESSION => {
            let what = match method {
                "item/fileChange/requestApproval" => "edits of these files",
                "item/permissions/requestApproval" => "these permissions",
                _ => "this command",
            };
            (format!("Always allow {what} in this session"), AllowAlways)
        }
        ALWAYS => {
            let rule = &decision["decision"]["acceptWithExecpolicyAmendment"]["execpolicy_amendment"];
            let words: Vec<&str> = items(rule).iter().filter_map(Value::as_str).collect();
            (format!("Always allow commands that begin with `{}`", words.join(" ")), AllowAlways)
        }
        _ => ("Reject".to_owned(), RejectOnce),
    };
    acp::PermissionOption::new(id, name, kind)
}
