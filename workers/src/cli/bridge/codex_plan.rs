//! The question whether a plan that codex has made is to be carried out.

use agent_client_protocol_schema::v1 as acp;
use serde_json::json;

use super::Question;
use crate::cli::tool::Tool;
use crate::cli::turn_events::TurnEvents;

pub(super) const KEY: &str = "plan";
pub(super) const IMPLEMENT: &str = "implement_plan";
const REVISE: &str = "revise_plan";
/// What codex is told when the user agrees.
pub(super) const GO: &str = "Implement the plan.";

/// Introduces a call that stands for the question. Returns its id, too.
pub(super) fn question(item: &str, plan: &str, events: &mut TurnEvents) -> (String, Question) {
    use acp::PermissionOptionKind::{AllowOnce, RejectOnce};
    let id = format!("plan-review:{item}");
    let mut tool = Tool::named("plan_review").with_title("Implement this plan?");
    tool.kind = acp::ToolKind::SwitchMode;
    tool.input = Some(json!({ "plan": plan }));
    tool.note = Some(plan.to_owned());
    let call = tool.in_question(&id, &events.cwd);
    events.call_pending(&id, tool, None);
    let options = vec![
        acp::PermissionOption::new(IMPLEMENT, "Yes, implement this plan", AllowOnce),
        acp::PermissionOption::new(REVISE, "No, keep planning", RejectOnce),
    ];
    (id, Question { key: KEY.to_owned(), call, options })
}
