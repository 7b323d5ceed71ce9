//! Chooses the answer to a permission request of the agent.
//!
//! Pure: the offered options and the user's input go in, the answer comes out.

use serde_json::{Value, json};

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The user at the terminal.
    Ask,
    Allow,
    Deny,
}

/// An option that the agent offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) allows: bool,
    /// Also holds for later requests.
    pub(super) always: bool,
}

impl Choice {
    /// As ACP spells it.
    pub(super) fn to_json(&self) -> Value {
        let kind = match (self.allows, self.always) {
            (true, false) => "allow_once",
            (true, true) => "allow_always",
            (false, false) => "reject_once",
            (false, true) => "reject_always",
        };
        json!({ "optionId": self.id, "name": self.name, "kind": kind })
    }
}

/// In the agent's order.
pub(super) fn choices(params: &Value) -> Vec<Choice> {
    let read = |option: &Value| {
        let id = option["optionId"].as_str()?;
        let kind = option["kind"].as_str().unwrap_or_default();
        let name = option["name"].as_str().unwrap_or(id);
        let (allows, always) = (kind.starts_with("allow"), kind.ends_with("always"));
        Some(Choice { id: id.to_owned(), name: name.to_owned(), allows, always })
    };
    params["options"].as_array().into_iter().flatten().filter_map(read).collect()
}

/// The option that allows (or refuses) the least: once rather than always.
pub(super) fn least_permissive(choices: &[Choice], allows: bool) -> Option<&Choice> {
    let mut matching = choices.iter().filter(|choice| choice.allows == allows);
    let first = matching.clone().next();
    matching.find(|choice| !choice.always).or(first)
}

/// The option that the user has typed: a number, `y`, `n`, or its name.
pub(super) fn parse_choice<'a>(typed: &str, choices: &'a [Choice]) -> Option<&'a Choice> {
    let typed = typed.trim();
    if let Ok(number) = typed.parse::<usize>() {
        return choices.get(number.checked_sub(1)?);
    }
    match typed.to_lowercase().as_str() {
        "" => None,
        "y" | "yes" => least_permissive(choices, true),
        "n" | "no" => least_permissive(choices, false),
        name => choices.iter().find(|choice| choice.name.to_lowercase() == name),
    }
}

/// The options below a question, one on each line.
pub(super) fn list_of(choices: &[Choice]) -> String {
    let line = |(at, choice): (usize, &Choice)| format!("  {}) {}\n", at + 1, choice.name);
    choices.iter().enumerate().map(line).collect()
}

/// What stands before the cursor where a choice is typed. `again`: what was typed is none.
pub(super) fn asks_for_choice(choices: &[Choice], again: bool) -> String {
    format!("1-{}{}? ", choices.len(), if again { ", y or n" } else { "" })
}

/// The `result` for the request. `None` cancels it.
pub(super) fn outcome(chosen: Option<&Choice>) -> Value {
    match chosen {
        Some(choice) => json!({ "outcome": { "outcome": "selected", "optionId": choice.id } }),
        None => json!({ "outcome": { "outcome": "cancelled" } }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered() -> Vec<Choice> {
        choices(&json!({ "options": [
            { "optionId": "a", "name": "Always", "kind": "allow_always" },
            { "optionId": "b", "name": "Once", "kind": "allow_once" },
            { "optionId": "c", "name": "Never", "kind": "reject_always" },
            { "name": "without an id" },
        ] }))
    }

    #[test]
    fn the_least_permissive_option_is_taken() {
        let offered = offered();
        assert_eq!(least_permissive(&offered, true).unwrap().id, "b");
        assert_eq!(least_permissive(&offered, false).unwrap().id, "c");
        assert_eq!(least_permissive(&offered[..2], false), None);
    }

    #[test]
    fn a_choice_is_a_number_a_letter_or_a_name() {
        let offered = offered();
        let cases = [("1", "a"), (" 2 ", "b"), ("y", "b"), ("YES", "b"), ("n", "c"), ("never", "c")];
        for (typed, id) in cases {
            assert_eq!(parse_choice(typed, &offered).unwrap().id, id, "{typed}");
        }
        for typed in ["", "0", "4", "-1", "maybe"] {
            assert_eq!(parse_choice(typed, &offered), None, "{typed}");
        }
    }

    #[test]
    fn no_choice_is_a_cancelled_outcome() {
        assert_eq!(outcome(None), json!({ "outcome": { "outcome": "cancelled" } }));
        let chosen = outcome(offered().first());
        assert_eq!(chosen, json!({ "outcome": { "outcome": "selected", "optionId": "a" } }));
    }
}
