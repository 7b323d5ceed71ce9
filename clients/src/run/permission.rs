//! What to answer when the agent asks for a permission.
//!
//! Pure: the options that it offers and what the user said go in, the answer comes out.

use serde_json::{Value, json};

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The user, at the terminal.
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
    /// Not only this time.
    pub(super) always: bool,
}

/// In the order in which the agent offers them.
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

/// The mildest option that allows, or refuses.
pub(super) fn mildest(choices: &[Choice], allows: bool) -> Option<&Choice> {
    let mut fitting = choices.iter().filter(|choice| choice.allows == allows);
    let first = fitting.clone().next();
    fitting.find(|choice| !choice.always).or(first)
}

/// What the user means: a number, `y` or `n`, or the name of an option. None: none of them.
pub(super) fn understand<'a>(typed: &str, choices: &'a [Choice]) -> Option<&'a Choice> {
    let typed = typed.trim();
    if let Ok(number) = typed.parse::<usize>() {
        return choices.get(number.checked_sub(1)?);
    }
    match typed.to_lowercase().as_str() {
        "" => None,
        "y" | "yes" => mildest(choices, true),
        "n" | "no" => mildest(choices, false),
        name => choices.iter().find(|choice| choice.name.to_lowercase() == name),
    }
}

/// The `result` of the request. None: the question is taken back.
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
    fn the_mildest_option_is_taken() {
        let offered = offered();
        assert_eq!(mildest(&offered, true).unwrap().id, "b");
        assert_eq!(mildest(&offered, false).unwrap().id, "c");
        assert_eq!(mildest(&offered[..2], false), None);
    }

    #[test]
    fn a_number_a_letter_or_a_name_is_understood_and_nothing_else() {
        let offered = offered();
        let cases = [("1", "a"), (" 2 ", "b"), ("y", "b"), ("YES", "b"), ("n", "c"), ("never", "c")];
        for (typed, id) in cases {
            assert_eq!(understand(typed, &offered).unwrap().id, id, "{typed}");
        }
        for typed in ["", "0", "4", "-1", "maybe"] {
            assert_eq!(understand(typed, &offered), None, "{typed}");
        }
    }

    #[test]
    fn a_question_without_an_answer_is_cancelled() {
        assert_eq!(outcome(None), json!({ "outcome": { "outcome": "cancelled" } }));
        let chosen = outcome(offered().first());
        assert_eq!(chosen, json!({ "outcome": { "outcome": "selected", "optionId": "a" } }));
    }
}
