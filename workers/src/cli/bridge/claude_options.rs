//! Claude's own options: fast mode, ultracode, and the agent.
//!
//! A choice is a flag of the running process, which the bridge sets with a control request. The CLI says in several of
//! its messages whether fast mode is on, and can turn it off by itself.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::cli::json::{items, string};
use crate::cli::own_options::{AGENT, NO_AGENT, OFF, ON, on_or_off};
use crate::cli::settings::Reported;
use crate::detect::{FAST, Model, ULTRACODE};

/// The options, and what the CLI calls them.
const FLAGS: [(&str, &str); 3] = [(FAST, "fastMode"), (ULTRACODE, "ultracode"), (AGENT, "agent")];
/// The CLI's own agents, which work for another one. The rest are the user's.
const BUILT_IN_AGENTS: [&str; 6] =
    ["claude", "general-purpose", "Explore", "Plan", "statusline-setup", NO_AGENT];
/// More are not offered.
const AGENTS: usize = 100;

#[derive(Default)]
pub(super) struct Options {
    pub(super) models: Vec<Model>,
    /// The user's own agents, and what they are for.
    agents: Vec<(String, String)>,
    /// The choices that the CLI has not answered yet, by the ids of the requests: the option, and what it was before.
    pending: HashMap<String, (&'static str, String)>,
}

impl Options {
    /// The settings to send for choices that have changed. Each is a request of its own, since the CLI takes or refuses
    /// a request as a whole.
    pub(super) fn changed(
        before: &BTreeMap<String, String>,
        now: &BTreeMap<String, String>,
    ) -> Vec<(&'static str, Value)> {
        let mut all = Vec::new();
        for (option, flag) in FLAGS {
            if let Some(value) = now.get(option)
                && before.get(option) != Some(value)
            {
                let value = match (option, value.as_str()) {
                    (AGENT, NO_AGENT) => Value::Null,
                    (AGENT, agent) => json!(agent),
                    (_, value) => json!(value == ON),
                };
                all.push((option, json!({ flag: value })));
            }
        }
        all
    }

    pub(super) fn sent(&mut self, request: String, option: &'static str, before: Option<&String>) {
        let usual = if option == AGENT { NO_AGENT } else { OFF };
        self.pending.insert(request, (option, before.map_or(usual, String::as_str).to_owned()));
    }

    /// Takes the answer to a request that has set an option. One that was refused is as it was before.
    pub(super) fn answered(&mut self, request: &str, is_good: bool) -> Option<(&'static str, Reported)> {
        let (option, before) = self.pending.remove(request)?;
        let choices = if option == AGENT { self.agents.clone() } else { Vec::new() };
        let reported = Reported { value: Some(before), choices, ..Reported::default() };
        (!is_good).then_some((option, reported))
    }

    /// Reads the state of fast mode in a message that has it. While a choice is under way, the message may be older
    /// than the choice, and with a model that has no fast mode it says nothing about what the user wants.
    pub(super) fn fast_mode(&self, message: &Value, model: &str) -> Option<(&'static str, Reported)> {
        let state = message["fast_mode_state"].as_str()?;
        let is_pending = self.pending.values().any(|(option, _)| *option == FAST);
        // In a cooldown it is off for a while and goes on by itself.
        if is_pending || state == "cooldown" || !self.has(model, FAST) {
            return None;
        }
        let is_on = state == "on";
        let why = if is_on { None } else { explanation(string(message, "fast_mode_disabled_reason")) };
        Some((FAST, Reported { value: Some(on_or_off(is_on).to_owned()), why, ..Reported::default() }))
    }

    /// Reads whether ultracode can be used, in the answer to `get_settings`.
    pub(super) fn ultracode(&self, answer: &Value, model: &str) -> (&'static str, Reported) {
        let is_pending = self.pending.values().any(|(option, _)| *option == ULTRACODE);
        let requested = answer["applied"]["ultracodeRequested"].as_bool().filter(|_| !is_pending);
        let is_refused = answer["applied"]["ultracodeAvailable"] == false;
        // With a model that does not have it, this says nothing about the others.
        let is_missing = is_refused && self.has(model, ULTRACODE);
        let value = requested.map(|is_on| on_or_off(is_on).to_owned());
        (ULTRACODE, Reported { value, is_missing, ..Reported::default() })
    }

    /// Reads the user's own agents.
    pub(super) fn read_agents(&mut self, list: &Value) -> (&'static str, Reported) {
        let own = items(list).iter().filter_map(|agent| {
            let name = agent["name"].as_str().filter(|name| !BUILT_IN_AGENTS.contains(name))?;
            Some((name.to_owned(), string(agent, "description").to_owned()))
        });
        self.agents = own.take(AGENTS).collect();
        (AGENT, Reported { choices: self.agents.clone(), ..Reported::default() })
    }

    fn has(&self, model: &str, feature: &str) -> bool {
        self.models.iter().any(|known| known.id == model && known.features.contains(&feature))
    }
}

/// Why the CLI does not offer fast mode, if the user can do something about it or should know. The others are what a
/// session begins with, or the user's own choice.
fn explanation(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "free" => "not in the free plan",
        "extra_usage_disabled" => "this account must allow extra usage first",
        "model_not_allowed" => "not with this model",
        "not_first_party" => "not with this provider",
        "disabled_by_env" => "turned off in the environment",
        "network_error" => "whether the account has it could not be asked",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let models = json!([
            { "value": "default", "supportsFastMode": true, "supportsEffort": true,
              "supportedEffortLevels": ["xhigh"] },
            { "value": "small", "supportsEffort": true, "supportedEffortLevels": ["low"] },
        ]);
        Options { models: crate::detect::claude_models(&models), ..Options::default() }
    }

    #[test]
    fn a_state_counts_with_a_model_that_has_fast_mode_and_when_no_choice_is_under_way() {
        let mut options = options();
        let off = json!({ "fast_mode_state": "off", "fast_mode_disabled_reason": "free" });
        let (id, reported) = options.fast_mode(&off, "default").unwrap();
        assert_eq!(id, FAST);
        assert_eq!((reported.value.as_deref(), reported.why), (Some("off"), Some("not in the free plan")));
        for quiet in ["sdk_opt_in_required", "preference", "something new"] {
            let state = json!({ "fast_mode_state": "off", "fast_mode_disabled_reason": quiet });
            assert_eq!(options.fast_mode(&state, "default").unwrap().1.why, None);
        }
        assert_eq!(options.fast_mode(&off, "small"), None);
        assert_eq!(options.fast_mode(&json!({ "fast_mode_state": "cooldown" }), "default"), None);
        assert_eq!(options.fast_mode(&json!({ "fast_mode_state": 7 }), "default"), None);
        options.sent("r1".to_owned(), FAST, None);
        assert_eq!(options.fast_mode(&off, "default"), None);
        assert_eq!(options.answered("r1", true), None);
        assert!(options.fast_mode(&off, "default").is_some());
    }

    #[test]
    fn a_refused_choice_is_as_it_was_before() {
        let mut options = options();
        let (on, reviewer) = ("on".to_owned(), "reviewer".to_owned());
        for (option, before, value) in [
            (FAST, None, "off"),
            (FAST, Some(&on), "on"),
            (AGENT, None, "default"),
            (AGENT, Some(&reviewer), "reviewer"),
        ] {
            options.sent("r1".to_owned(), option, before);
            assert_eq!(options.answered("r1", false).unwrap().1.value.as_deref(), Some(value));
        }
        assert_eq!(options.answered("r1", false), None);
    }

    #[test]
    fn ultracode_is_missing_where_the_cli_says_so_of_a_model_that_could_have_it() {
        let options = options();
        let answer = json!({ "applied": { "ultracodeAvailable": false, "ultracodeRequested": false } });
        assert!(options.ultracode(&answer, "default").1.is_missing);
        assert!(!options.ultracode(&answer, "small").1.is_missing);
        assert_eq!(options.ultracode(&json!({}), "default").1, Reported::default());
    }

    #[test]
    fn only_a_changed_choice_is_sent() {
        let chosen = |value: &str| BTreeMap::from([(FAST.to_owned(), value.to_owned())]);
        assert_eq!(Options::changed(&BTreeMap::new(), &chosen("on")), [(FAST, json!({ "fastMode": true }))]);
        assert_eq!(Options::changed(&chosen("on"), &chosen("off")), [(FAST, json!({ "fastMode": false }))]);
        assert_eq!(Options::changed(&chosen("on"), &chosen("on")), []);
    }

    #[test]
    fn an_agent_is_one_of_the_users_own() {
        let list =
            json!([{ "name": "Plan" }, { "name": "reviewer", "description": "Reviews" }, { "name": 7 }]);
        assert_eq!(options().read_agents(&list).1.choices, [("reviewer".to_owned(), "Reviews".to_owned())]);
        let chosen = |value: &str| BTreeMap::from([(AGENT.to_owned(), value.to_owned())]);
        let changed = Options::changed(&chosen("default"), &chosen("reviewer"));
        assert_eq!(changed, [(AGENT, json!({ "agent": "reviewer" }))]);
        let changed = Options::changed(&chosen("reviewer"), &chosen("default"));
        assert_eq!(changed, [(AGENT, json!({ "agent": null }))]);
    }
}
