//! The options of a session that only some CLIs have, beside model, effort and mode.
//!
//! The tables say what an option is called and which choices it has. The CLI's bridge carries out a choice and reports
//! what the CLI has made of it.

use agent_client_protocol_schema::v1 as acp;

use super::runtimes::FormatName;
use super::session::State;
use super::shared::Shared;
use crate::detect::{FAST, Model, ULTRACODE};

pub(super) const ON: &str = "on";
pub(super) const OFF: &str = "off";

/// An option that can be on or off.
pub(super) struct Switch {
    id: &'static str,
    name: &'static str,
    description: &'static str,
}

const CLAUDE: [Switch; 2] = [
    Switch { id: FAST, name: "Fast mode", description: "Faster answers at a higher price" },
    Switch {
        id: ULTRACODE,
        name: "Ultracode",
        description: "Works on every task with workflows of many agents, at any effort",
    },
];

fn switches(shared: &Shared) -> &'static [Switch] {
    match shared.turn.format {
        FormatName::ClaudeStream if shared.is_bridge() => &CLAUDE,
        _ => &[],
    }
}

/// The options that the session has with this model.
pub(super) fn offered(
    shared: &Shared,
    state: &State,
    model: Option<&Model>,
) -> Vec<acp::SessionConfigOption> {
    let takes_booleans = shared.client.takes_booleans();
    let is_offered = |switch: &&Switch| is_offered(switch.id, state, model);
    let option = |switch: &Switch| switch.option(state, takes_booleans);
    switches(shared).iter().filter(is_offered).map(option).collect()
}

fn is_offered(id: &str, state: &State, model: Option<&Model>) -> bool {
    let is_missing = state.reports.get(id).is_some_and(|reported| reported.is_missing);
    !is_missing && model.is_some_and(|model| model.features.contains(&id))
}

/// The choice as it is saved, or `None` if this is no option of the session or no choice of it.
pub(super) fn choice(
    shared: &Shared,
    state: &State,
    model: Option<&Model>,
    option: &str,
    value: &str,
) -> Option<(String, String)> {
    let switch = switches(shared).iter().find(|switch| switch.id == option)?;
    let is_choice = [ON, OFF].contains(&value) && is_offered(switch.id, state, model);
    is_choice.then(|| (option.to_owned(), value.to_owned()))
}

/// Whether this is an option that a boolean value can set.
pub(super) fn is_switch(shared: &Shared, option: &str) -> bool {
    switches(shared).iter().any(|switch| switch.id == option)
}

impl Switch {
    fn option(&self, state: &State, takes_booleans: bool) -> acp::SessionConfigOption {
        let reported = state.reports.get(self.id).cloned().unwrap_or_default();
        let chosen = state.record.options.get(self.id).map(String::as_str);
        let is_on = chosen.or(reported.value) == Some(ON);
        let description = match reported.why {
            Some(why) if !is_on => format!("{} ({why})", self.description),
            _ => self.description.to_owned(),
        };
        let option = if takes_booleans {
            acp::SessionConfigOption::boolean(self.id, self.name, is_on)
        } else {
            let choices = vec![
                acp::SessionConfigSelectOption::new(OFF, "Off"),
                acp::SessionConfigSelectOption::new(ON, "On"),
            ];
            acp::SessionConfigOption::select(self.id, self.name, if is_on { ON } else { OFF }, choices)
        };
        option.description(description).category(acp::SessionConfigOptionCategory::ModelConfig)
    }
}

/// The value of a switch.
pub(super) fn on_or_off(is_on: bool) -> &'static str {
    if is_on { ON } else { OFF }
}
