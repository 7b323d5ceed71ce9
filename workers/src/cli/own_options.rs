//! The options of a session that only some CLIs have, beside model, effort and mode.
//!
//! The tables say what an option is called and which choices it has. The CLI's bridge carries out a choice and reports
//! what the CLI has made of it.

use agent_client_protocol_schema::v1 as acp;

use super::runtimes::OwnProtocol;
use super::session::State;
use super::shared::Shared;
use crate::detect::{FAST, FAST_TIER, Model, ULTRACODE};

pub(super) const ON: &str = "on";
pub(super) const OFF: &str = "off";

/// Which of the user's own agents claude is.
pub(super) const AGENT: &str = "agent";
/// Claude itself.
pub(super) const NO_AGENT: &str = "default";

/// How codex works with the user: it does what it is told, or plans first.
pub(super) const COLLABORATION: &str = "collaboration_mode";
pub(super) const PLAN: &str = "plan";
pub(super) const NO_PLAN: &str = "default";

struct OwnOption {
    id: &'static str,
    name: &'static str,
    description: &'static str,
    kind: Kind,
}

enum Kind {
    /// On or off, with the models that have it.
    Switch,
    /// One of these, with every model: id, name and description. The first is usual.
    Choice(&'static [(&'static str, &'static str, &'static str)]),
    /// One of those that the CLI reports, or none of them.
    Reported,
}

const CLAUDE: [OwnOption; 3] = [
    OwnOption {
        id: FAST,
        name: "Fast mode",
        description: "Faster answers at a higher price",
        kind: Kind::Switch,
    },
    OwnOption {
        id: ULTRACODE,
        name: "Ultracode",
        description: "Works on every task with workflows of many agents, at any effort",
        kind: Kind::Switch,
    },
    OwnOption {
        id: AGENT,
        name: "Agent",
        description: "Which of your own agents answers",
        kind: Kind::Reported,
    },
];

const CODEX: [OwnOption; 2] = [
    OwnOption {
        id: COLLABORATION,
        name: "Collaboration",
        description: "How Codex works with you",
        kind: Kind::Choice(&[
            (NO_PLAN, "Default", "Does what it is told"),
            (PLAN, "Plan", "Makes a plan, and asks whether to carry it out"),
        ]),
    },
    OwnOption {
        id: FAST_TIER,
        name: "Fast mode",
        description: "Faster answers that use more of the account",
        kind: Kind::Switch,
    },
];

fn own_options(shared: &Shared) -> &'static [OwnOption] {
    match shared.turn.own_protocol() {
        Some(OwnProtocol::Claude) => &CLAUDE,
        Some(OwnProtocol::Codex) => &CODEX,
        None => &[],
    }
}

/// The options that the session has with this model.
pub(super) fn offered(
    shared: &Shared,
    state: &State,
    model: Option<&Model>,
) -> Vec<acp::SessionConfigOption> {
    let takes_booleans = shared.client.takes_booleans();
    let offered = own_options(shared).iter().filter(|option| option.is_offered(state, model));
    offered.map(|option| option.shown(state, takes_booleans)).collect()
}

/// The choice as it is saved, or `None` if this is no option of the session or no choice of it.
pub(super) fn choice(
    shared: &Shared,
    state: &State,
    model: Option<&Model>,
    option: &str,
    value: &str,
) -> Option<(String, String)> {
    let known = own_options(shared).iter().find(|known| known.id == option)?;
    let is_choice = match known.kind {
        Kind::Switch => [ON, OFF].contains(&value),
        Kind::Choice(choices) => choices.iter().any(|(id, ..)| *id == value),
        Kind::Reported => {
            let reported = state.reports.get(known.id).into_iter().flat_map(|known| &known.choices);
            value == NO_AGENT || reported.into_iter().any(|(id, _)| id == value)
        }
    };
    (is_choice && known.is_offered(state, model)).then(|| (option.to_owned(), value.to_owned()))
}

/// Whether this is an option that a boolean value can set.
pub(super) fn is_switch(shared: &Shared, option: &str) -> bool {
    own_options(shared).iter().any(|known| known.id == option && matches!(known.kind, Kind::Switch))
}

impl OwnOption {
    fn is_offered(&self, state: &State, model: Option<&Model>) -> bool {
        let reported = state.reports.get(self.id);
        let is_missing = reported.is_some_and(|reported| reported.is_missing);
        let is_there = match self.kind {
            Kind::Switch => model.is_some_and(|model| model.features.contains(&self.id)),
            Kind::Choice(_) => true,
            Kind::Reported => reported.is_some_and(|reported| !reported.choices.is_empty()),
        };
        is_there && !is_missing
    }

    fn shown(&self, state: &State, takes_booleans: bool) -> acp::SessionConfigOption {
        let reported = state.reports.get(self.id).cloned().unwrap_or_default();
        let chosen = state.record.options.get(self.id).or(reported.value.as_ref()).map(String::as_str);
        let is_on = chosen == Some(ON);
        let description = match reported.why {
            Some(why) if !is_on => format!("{} ({why})", self.description),
            _ => self.description.to_owned(),
        };
        let select = |current: &str, choices| {
            acp::SessionConfigOption::select(self.id, self.name, current.to_owned(), choices)
        };
        let choice = |id: &'static str, name: &'static str| acp::SessionConfigSelectOption::new(id, name);
        let option = match self.kind {
            Kind::Switch if takes_booleans => acp::SessionConfigOption::boolean(self.id, self.name, is_on),
            Kind::Switch => select(on_or_off(is_on), vec![choice(OFF, "Off"), choice(ON, "On")]),
            Kind::Choice(choices) => {
                let described = |(id, name, description): &(&'static str, &'static str, &'static str)| {
                    choice(id, name).description((*description).to_owned())
                };
                select(chosen.unwrap_or(choices[0].0), choices.iter().map(described).collect())
            }
            Kind::Reported => {
                let described = |(id, description): &(String, String)| {
                    acp::SessionConfigSelectOption::new(id.clone(), id.clone())
                        .description(description.clone())
                };
                let mut choices = vec![choice(NO_AGENT, "Default")];
                choices.extend(reported.choices.iter().map(described));
                // An agent that is gone cannot be chosen, and the CLI goes on without it.
                let is_known = |id: &&str| reported.choices.iter().any(|(known, _)| known == id);
                select(chosen.filter(is_known).unwrap_or(NO_AGENT), choices)
            }
        };
        let category = match self.kind {
            Kind::Switch => acp::SessionConfigOptionCategory::ModelConfig,
            Kind::Choice(_) | Kind::Reported => acp::SessionConfigOptionCategory::Other(self.id.to_owned()),
        };
        option.description(description).category(category)
    }
}

/// The value of a switch.
pub(super) fn on_or_off(is_on: bool) -> &'static str {
    if is_on { ON } else { OFF }
}
