//! The slash commands of codex that are requests of its protocol: a client offers them, and a prompt that begins with
//! one becomes that request.

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use crate::cli::json::items;
use crate::cli::prompt::{Part, Prompt};

const COMMANDS: [(&str, &str, Option<&str>); 10] = [
    ("plan", "Turn plan mode on, or off again", None),
    ("status", "Show the settings of the session, its tokens and the limits of the account", None),
    ("mcp", "Show the MCP servers, or start those again that are not connected", Some("optional: reconnect")),
    ("skills", "List the skills", None),
    ("review", "Review uncommitted changes, or as the instructions say", Some("optional instructions")),
    ("review-branch", "Review the changes since a branch", Some("branch name")),
    ("review-commit", "Review a commit", Some("commit sha")),
    ("compact", "Summarise the conversation, so that it needs less of the context", None),
    ("rename", "Give the session another name", Some("new name")),
    ("logout", "Log out of Codex", None),
];

/// What a prompt asks for that is no question to the model.
#[derive(PartialEq, Debug)]
pub(super) enum Command {
    /// The method and the params of a turn, without the thread.
    Turn(&'static str, Value),
    /// A request whose answer is shown.
    Local(Local),
    /// Turns plan mode on or off.
    Plan,
    /// The command lacks something. The text says what.
    Incomplete(String),
}

/// A request that needs no model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Local {
    Status,
    Mcp,
    /// Starts the MCP servers again, after which they are listed.
    Reconnect,
    Skills,
    Rename(String),
    Logout,
}

/// The commands as they are offered, and the skills, which a prompt names with `$`.
pub(super) fn offered(skills: &Value) -> Vec<acp::AvailableCommand> {
    let offer = |(name, description, hint): &(&str, &str, Option<&str>)| {
        let input = hint.map(|hint| {
            acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint.to_owned()))
        });
        acp::AvailableCommand::new(*name, *description).input(input)
    };
    let mut commands: Vec<acp::AvailableCommand> = COMMANDS.iter().map(offer).collect();
    for (name, description) in skills_of(skills) {
        let name = format!("${name}");
        if commands.iter().all(|known| known.name != name) {
            commands.push(acp::AvailableCommand::new(name, description));
        }
    }
    commands
}

/// The names and descriptions in an answer to `skills/list`.
pub(super) fn skills_of(list: &Value) -> impl Iterator<Item = (&str, &str)> {
    let skills = items(list).iter().flat_map(|folder| items(&folder["skills"]));
    skills.filter(|skill| skill["enabled"] != false).filter_map(|skill| {
        let description = skill["shortDescription"].as_str().or_else(|| skill["description"].as_str());
        Some((skill["name"].as_str()?, description.unwrap_or_default()))
    })
}

/// The command that the prompt is. `None` if it is none: then it is for the model.
pub(super) fn read(prompt: &Prompt) -> Option<Command> {
    let [Part::Text(text)] = prompt.parts.as_slice() else { return None };
    let line = text.trim().strip_prefix('/')?;
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let target = match (name, rest.trim()) {
        ("compact", "") => return Some(Command::Turn("thread/compact/start", json!({}))),
        ("plan", "") => return Some(Command::Plan),
        ("status", "") => return Some(Command::Local(Local::Status)),
        ("mcp", "") => return Some(Command::Local(Local::Mcp)),
        ("mcp", "reconnect") => return Some(Command::Local(Local::Reconnect)),
        ("skills", "") => return Some(Command::Local(Local::Skills)),
        ("logout", "") => return Some(Command::Local(Local::Logout)),
        ("rename", name) if !name.is_empty() => return Some(Command::Local(Local::Rename(name.to_owned()))),
        ("review", "") => json!({ "type": "uncommittedChanges" }),
        ("review", instructions) => json!({ "type": "custom", "instructions": instructions }),
        ("review-branch", branch) if !branch.is_empty() => json!({ "type": "baseBranch", "branch": branch }),
        ("review-commit", sha) if !sha.is_empty() => json!({ "type": "commit", "sha": sha, "title": null }),
        ("rename" | "review-branch" | "review-commit", _) => {
            let (_, _, hint) = COMMANDS.iter().find(|(known, ..)| *known == name)?;
            return Some(Command::Incomplete(format!("`/{name}` needs a {}.", hint.unwrap_or_default())));
        }
        _ => return None,
    };
    Some(Command::Turn("review/start", json!({ "target": target, "delivery": "inline" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_a_command_only_if_it_is_one_and_nothing_else() {
        let said = |text: &str| read(&Prompt { parts: vec![Part::Text(text.to_owned())] });
        assert_eq!(said("/compact"), Some(Command::Turn("thread/compact/start", json!({}))));
        let target = |text: &str| match said(text) {
            Some(Command::Turn(_, params)) => params["target"]["type"].clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(target("/review"), "uncommittedChanges");
        assert_eq!(target(" /review only the tests"), "custom");
        assert_eq!(target("/review-branch main"), "baseBranch");
        assert_eq!(said("/status"), Some(Command::Local(Local::Status)));
        assert_eq!(said("/mcp reconnect"), Some(Command::Local(Local::Reconnect)));
        assert_eq!(said("/rename a b "), Some(Command::Local(Local::Rename("a b".to_owned()))));
        assert_eq!(said("/rename"), Some(Command::Incomplete("`/rename` needs a new name.".to_owned())));
        for other in ["review", "/etc/passwd is what?", "/compact it", "/status of what?", "/mcp x", "", "/"]
        {
            assert_eq!(said(other), None, "{other}");
        }
    }

    #[test]
    fn skills_are_offered_once_each_and_not_if_they_are_turned_off() {
        let skill =
            |name: &str, enabled: bool| json!({ "name": name, "description": "d", "enabled": enabled });
        let list =
            json!([{ "skills": [skill("a", true), skill("b", false)] }, { "skills": [skill("a", true)] }]);
        let names: Vec<String> = offered(&list).into_iter().map(|command| command.name).collect();
        assert_eq!(names.iter().filter(|name| name.starts_with('$')).collect::<Vec<_>>(), ["$a"]);
        assert_eq!(offered(&Value::Null).len(), COMMANDS.len());
    }
}
