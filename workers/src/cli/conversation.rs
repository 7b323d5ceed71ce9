//! What is said to claude while it works: the prompt, an interrupt, and what it may do.
//!
//! Its side of the control protocol is read from the same lines that its format reads, and nothing else of them.

use std::collections::HashMap;
use std::sync::Arc;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use super::house::House;
use super::session::Session;
use super::tool::Tool;

const ALLOW: &str = "allow";
const ALWAYS: &str = "allow_always";
const REJECT: &str = "reject";

/// Permissions that it waits for, by the id under which the client was asked.
#[derive(Default)]
pub(super) struct Questions {
    open: HashMap<u64, Question>,
}

struct Question {
    request_id: String,
    input: Value,
    suggestions: Value,
}

pub(super) fn prompt(text: &str) -> String {
    let content = json!([{ "type": "text", "text": text }]);
    let message = json!({ "role": "user", "content": content });
    line(&json!({ "type": "user", "message": message, "parent_tool_use_id": null, "session_id": "" }))
}

pub(super) fn interrupt() -> String {
    let request = json!({ "subtype": "interrupt" });
    line(&json!({ "type": "control_request", "request_id": "interrupt", "request": request }))
}

impl Questions {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Looks at a line that may ask something. What is to be answered at once is given back.
    pub(super) fn hear(&mut self, bytes: &[u8], house: &House, session: &Arc<Session>) -> Option<String> {
        const MARK: &[u8] = b"control_";
        memchr::memmem::find(bytes, MARK)?;
        let event: Value = serde_json::from_slice(bytes).ok()?;
        let request_id = event["request_id"].as_str()?.to_owned();
        let request = &event["request"];
        match (event["type"].as_str()?, request["subtype"].as_str()) {
            ("control_request", Some("can_use_tool")) => {
                let (input, suggestions) =
                    (request["input"].clone(), request["permission_suggestions"].clone());
                let id = house.ask(session, "session/request_permission", &asked(request, &session.name));
                self.open.insert(id, Question { request_id, input, suggestions });
                None
            }
            ("control_request", _) => {
                let error = "this is not supported here";
                let response = json!({ "subtype": "error", "request_id": request_id, "error": error });
                Some(line(&json!({ "type": "control_response", "response": response })))
            }
            ("control_cancel_request", _) => {
                self.open.retain(|id, question| {
                    let stays = question.request_id != request_id;
                    if !stays {
                        house.forget_question(*id);
                    }
                    stays
                });
                None
            }
            _ => None,
        }
    }

    /// What the client has decided, for the CLI.
    pub(super) fn answer(&mut self, id: u64, result: &Value) -> Option<String> {
        let Question { request_id, input, suggestions } = self.open.remove(&id)?;
        let decision = match result["outcome"]["optionId"].as_str() {
            Some(ALLOW) => json!({ "behavior": "allow", "updatedInput": input }),
            Some(ALWAYS) => {
                json!({ "behavior": "allow", "updatedInput": input, "updatedPermissions": suggestions })
            }
            _ => json!({ "behavior": "deny", "message": "The user did not allow it." }),
        };
        let response = json!({ "subtype": "success", "request_id": request_id, "response": decision });
        Some(line(&json!({ "type": "control_response", "response": response })))
    }

    pub(super) fn forget(&mut self, house: &House) {
        for (id, _) in self.open.drain() {
            house.forget_question(id);
        }
    }
}

fn asked(request: &Value, session: &str) -> acp::RequestPermissionRequest {
    let tool = Tool::new(request["tool_name"].as_str().unwrap_or("tool"), &request["input"]);
    let fields = acp::ToolCallUpdateFields::new().title(tool.title).kind(tool.kind).raw_input(tool.input);
    let call =
        acp::ToolCallUpdate::new(request["tool_use_id"].as_str().unwrap_or_default().to_owned(), fields);
    let option = |id: &'static str, name: &str, kind| acp::PermissionOption::new(id, name, kind);
    let mut options = vec![option(ALLOW, "Allow", acp::PermissionOptionKind::AllowOnce)];
    if request["permission_suggestions"].as_array().is_some_and(|list| !list.is_empty()) {
        options.push(option(ALWAYS, "Always allow", acp::PermissionOptionKind::AllowAlways));
    }
    options.push(option(REJECT, "Reject", acp::PermissionOptionKind::RejectOnce));
    acp::RequestPermissionRequest::new(session.to_owned(), call, options)
}

fn line(message: &Value) -> String {
    format!("{message}\n")
}
