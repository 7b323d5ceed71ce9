//! The questions that claude asks before it uses a tool, and what it is told for each answer.

use std::path::Path;

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use crate::cli::json::{items, string, text};
use crate::cli::tool::Tool;
use crate::cli::tool_title::shown;
use crate::cli::turn_events::TurnEvents;

const ALLOW: &str = "allow";
const ALWAYS: &str = "allow_always";
const REJECT: &str = "reject";
/// The modes in which an agreed plan can be carried out, with their choices. The last is the careful one.
const PLAN_CHOICES: [(&str, &str, &str, acp::PermissionOptionKind); 3] = [
    ("plan_auto", "auto", "Yes, and use auto mode", acp::PermissionOptionKind::AllowAlways),
    ("plan_accept_edits", "acceptEdits", "Yes, and accept all edits", acp::PermissionOptionKind::AllowAlways),
    ("plan_default", "default", "Yes, and ask before each edit", acp::PermissionOptionKind::AllowOnce),
];

/// A tool call that waits for the client's permission.
pub(super) struct Permission {
    /// The id of the tool call.
    pub(super) call: String,
    choices: Vec<Choice>,
}

struct Choice {
    option: acp::PermissionOption,
    decision: Value,
}

impl Permission {
    /// Reads a request of the CLI for permission. Returns the call as the question shows it, too.
    pub(super) fn read(
        request: &Value,
        has_auto_mode: bool,
        events: &TurnEvents,
    ) -> (Permission, acp::ToolCallUpdate) {
        let id = string(request, "tool_use_id");
        let name = request["tool_name"].as_str().unwrap_or("tool");
        let tool = tool_of(id, name, request, events);
        let allow = json!({ "behavior": "allow", "updatedInput": request["input"] });
        let mut choices = match name {
            "ExitPlanMode" => plan_choices(&allow, has_auto_mode),
            _ => choices(name, request, &allow, &events.cwd),
        };
        if request["default_to_no"] == true {
            choices.reverse();
        }
        (Permission { call: id.to_owned(), choices }, tool.in_question(id, &events.cwd))
    }

    pub(super) fn options(&self) -> Vec<acp::PermissionOption> {
        self.choices.iter().map(|choice| choice.option.clone()).collect()
    }

    /// What the CLI is told if the client has chosen this option. `None` is a refusal, too.
    pub(super) fn decision(&self, option: Option<&str>) -> Value {
        let is_chosen = |choice: &&Choice| option.is_some_and(|id| *choice.option.option_id.0 == *id);
        self.choices.iter().find(is_chosen).map_or_else(refusal, |choice| choice.decision.clone())
    }
}

/// The call in question. Some tools are asked about without the input that was streamed.
fn tool_of(id: &str, name: &str, request: &Value, events: &TurnEvents) -> Tool {
    let has_input = request["input"].as_object().is_some_and(|input| !input.is_empty());
    let streamed = events.tool(id).filter(|tool| !has_input && tool.input.is_some());
    let mut tool = match streamed {
        Some(tool) => tool.clone(),
        None => Tool::new(name, &request["input"], &events.cwd),
    };
    if let Some(path) = request["blocked_path"].as_str()
        && tool.paths.iter().all(|(known, _)| known != path)
    {
        tool.paths.push((path.to_owned(), None));
    }
    tool
}

fn choices(name: &str, request: &Value, allow: &Value, cwd: &Path) -> Vec<Choice> {
    use acp::PermissionOptionKind::{AllowAlways, AllowOnce, RejectOnce};
    let (yes, no) = match name {
        "EnterPlanMode" => ("Yes, make a plan first", "No, begin now"),
        _ => ("Allow", "Reject"),
    };
    let mut choices = vec![choice(ALLOW, yes, AllowOnce, allow.clone())];
    let suggestions = &request["permission_suggestions"];
    if let Some(what) = always_allowed(suggestions, cwd) {
        let mut always = allow.clone();
        always["updatedPermissions"] = suggestions.clone();
        choices.push(choice(ALWAYS, &format!("Always allow {what}"), AllowAlways, always));
    }
    choices.push(choice(REJECT, no, RejectOnce, refusal()));
    choices
}

fn plan_choices(allow: &Value, has_auto_mode: bool) -> Vec<Choice> {
    let modes = PLAN_CHOICES.iter().filter(|(_, mode, ..)| has_auto_mode || *mode != "auto");
    let mut choices: Vec<Choice> = modes
        .map(|(id, mode, name, kind)| {
            let mut decision = allow.clone();
            decision["updatedPermissions"] =
                json!([{ "type": "setMode", "mode": mode, "destination": "session" }]);
            choice(id, name, *kind, decision)
        })
        .collect();
    // Without the interrupt the CLI would go on and ask again.
    let keep =
        json!({ "behavior": "deny", "message": "The user wants to go on planning.", "interrupt": true });
    choices.push(choice(REJECT, "No, keep planning", acp::PermissionOptionKind::RejectOnce, keep));
    choices
}

fn choice(id: &'static str, name: &str, kind: acp::PermissionOptionKind, decision: Value) -> Choice {
    Choice { option: acp::PermissionOption::new(id, name, kind), decision }
}

fn refusal() -> Value {
    json!({ "behavior": "deny", "message": "The user did not allow it." })
}

/// What the CLI would no longer ask about, in words. `None` if it suggests nothing, or something that has no words
/// here: nobody can agree to what they are not told.
fn always_allowed(suggestions: &Value, cwd: &Path) -> Option<String> {
    let mut all = Vec::new();
    let mut places: Vec<&str> = Vec::new();
    for suggestion in items(suggestions) {
        match string(suggestion, "type") {
            "setMode" if suggestion["mode"] == "acceptEdits" => all.push("all edits".to_owned()),
            "setMode" => all.push(format!("what the mode {} allows", suggestion["mode"].as_str()?)),
            "addDirectories" => {
                let folders = items(&suggestion["directories"]).iter().filter_map(Value::as_str);
                all.extend(folders.map(|folder| format!("access to {}/", shown(folder, cwd))));
            }
            "addRules" if suggestion["behavior"] == "allow" => {
                for rule in items(&suggestion["rules"]) {
                    all.push(rule_in_words(rule, cwd)?);
                }
            }
            _ => return None,
        }
        let place = match string(suggestion, "destination") {
            "session" => "in this session",
            "localSettings" | "projectSettings" => "in this project",
            "userSettings" => "everywhere",
            _ => return None,
        };
        if !places.contains(&place) {
            places.push(place);
        }
    }
    all.dedup();
    if all.is_empty() { None } else { Some(format!("{} {}", all.join(", "), places.join(" and "))) }
}

fn rule_in_words(rule: &Value, cwd: &Path) -> Option<String> {
    let tool = rule["toolName"].as_str()?;
    let Some(content) = text(rule, &["ruleContent"]) else { return Some(format!("every {tool}")) };
    let folder = || shown(content.trim_end_matches("/**"), cwd).to_owned();
    Some(match tool {
        "Bash" | "PowerShell" => match content.strip_suffix(":*") {
            Some(start) => format!("`{start} …` commands"),
            None => format!("`{content}`"),
        },
        "Read" => format!("reading from {}/", folder()),
        "Edit" | "Write" => format!("edits in {}/", folder()),
        "WebFetch" => format!("fetching from {}", content.trim_start_matches("domain:")),
        _ => format!("{tool} {content}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_says_what_and_where() {
        let rule = |tool: &str, content: &str, place: &str| {
            let rules = json!([{ "toolName": tool, "ruleContent": content }]);
            json!({ "type": "addRules", "behavior": "allow", "rules": rules, "destination": place })
        };
        let edits = json!({ "type": "setMode", "mode": "acceptEdits", "destination": "session" });
        let folders =
            json!({ "type": "addDirectories", "directories": ["/work/a", "/b"], "destination": "session" });
        for (suggestions, words) in [
            (json!([edits]), "all edits in this session"),
            (json!([folders]), "access to a/, access to /b/ in this session"),
            (json!([rule("Bash", "npm test:*", "localSettings")]), "`npm test …` commands in this project"),
            (json!([rule("Bash", "exit 3", "userSettings")]), "`exit 3` everywhere"),
            (json!([rule("Read", "/work/a/**", "session")]), "reading from a/ in this session"),
            (
                json!([rule("WebFetch", "domain:e.org", "localSettings")]),
                "fetching from e.org in this project",
            ),
        ] {
            assert_eq!(always_allowed(&suggestions, Path::new("/work")).as_deref(), Some(words));
        }
        let deny = json!([{ "type": "addRules", "behavior": "deny", "rules": [], "destination": "session" }]);
        for nothing in [json!(null), json!([]), deny, json!([edits, { "type": "unknown" }])] {
            assert_eq!(always_allowed(&nothing, Path::new("/work")), None);
        }
    }
}
