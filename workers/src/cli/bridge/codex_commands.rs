//! The slash commands of codex that are requests of its protocol: a client offers them, and a prompt that begins with
//! one becomes that request.

use agent_client_protocol_schema::v1 as acp;
use serde_json::{Value, json};

use crate::cli::prompt::{Part, Prompt};

const COMMANDS: [(&str, &str, Option<&str>); 4] = [
    ("review", "Review uncommitted changes, or as the instructions say", Some("optional instructions")),
    ("review-branch", "Review the changes since a branch", Some("branch name")),
    ("review-commit", "Review a commit", Some("commit sha")),
    ("compact", "Summarise the conversation, so that it needs less of the context", None),
];

/// The commands as they are offered.
pub(super) fn offered() -> Vec<acp::AvailableCommand> {
    let offer = |(name, description, hint): &(&str, &str, Option<&str>)| {
        let input = hint.map(|hint| {
            acp::AvailableCommandInput::Unstructured(acp::UnstructuredCommandInput::new(hint.to_owned()))
        });
        acp::AvailableCommand::new(*name, *description).input(input)
    };
    COMMANDS.iter().map(offer).collect()
}

/// The method and the params that the prompt stands for, without the thread. `None` if it is no command, or lacks what
/// the command needs: then the model is asked what to do with it.
pub(super) fn read(prompt: &Prompt) -> Option<(&'static str, Value)> {
    let [Part::Text(text)] = prompt.parts.as_slice() else { return None };
    let line = text.trim().strip_prefix('/')?;
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let target = match (name, rest.trim()) {
        ("compact", "") => return Some(("thread/compact/start", json!({}))),
        ("review", "") => json!({ "type": "uncommittedChanges" }),
        ("review", instructions) => json!({ "type": "custom", "instructions": instructions }),
        ("review-branch", branch) if !branch.is_empty() => json!({ "type": "baseBranch", "branch": branch }),
        ("review-commit", sha) if !sha.is_empty() => json!({ "type": "commit", "sha": sha, "title": null }),
        _ => return None,
    };
    Some(("review/start", json!({ "target": target, "delivery": "inline" })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_a_command_only_if_it_is_one_and_nothing_else() {
        let said = |text: &str| read(&Prompt { parts: vec![Part::Text(text.to_owned())] });
        assert_eq!(said("/compact"), Some(("thread/compact/start", json!({}))));
        let target = |text: &str| said(text).map(|(_, params)| params["target"]["type"].clone());
        assert_eq!(target("/review"), Some(json!("uncommittedChanges")));
        assert_eq!(target(" /review only the tests"), Some(json!("custom")));
        assert_eq!(target("/review-branch main"), Some(json!("baseBranch")));
        for other in ["review", "/review-branch", "/etc/passwd is what?", "/compact it", "", "/"] {
            assert_eq!(said(other), None, "{other}");
        }
    }
}
