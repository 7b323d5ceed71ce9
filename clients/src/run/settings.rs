//! The model and the mode of a session: what an agent offers, and the request that changes one.
//!
//! Pure. Agents tell them in one of two ways: as `configOptions`, or as `models` and `modes`.

use serde::Serialize;
use serde_json::{Value, json};

use super::input::Setting;

/// What an agent offers for a setting.
#[derive(Debug, Default)]
pub(super) struct Offer {
    pub(super) current: Option<String>,
    pub(super) values: Vec<Choosable>,
    /// It is a config option of this id.
    config_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Choosable {
    pub(super) id: String,
    pub(super) name: String,
}

impl Offer {
    /// `opened` is the result of session/new.
    pub(super) fn read(opened: &Value, setting: Setting) -> Offer {
        let options = opened["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let by = |key: &str| options.iter().find(|option| option[key] == setting.word());
        if let Some(option) = by("category").or_else(|| by("id"))
            && let Some(config_id) = option["id"].as_str()
        {
            let mut values = Vec::new();
            collect_values(&option["options"], &mut values);
            let current = option["currentValue"].as_str().map(str::to_owned);
            return Offer { current, values, config_id: Some(config_id.to_owned()) };
        }
        let (state, list, id) = match setting {
            Setting::Model => (&opened["models"], "availableModels", "modelId"),
            Setting::Mode => (&opened["modes"], "availableModes", "id"),
        };
        let current = match setting {
            Setting::Model => &state["currentModelId"],
            Setting::Mode => &state["currentModeId"],
        };
        let values = state[list].as_array().into_iter().flatten();
        Offer {
            current: current.as_str().map(str::to_owned),
            values: values.filter_map(|value| choosable(value, id)).collect(),
            config_id: None,
        }
    }

    /// The request that sets it, its method and params. A value that is not offered is sent as it is: agents know more
    /// than they list.
    pub(super) fn request(&self, setting: Setting, wanted: &str, session: &str) -> (&'static str, Value) {
        let named = |value: &&Choosable| {
            value.id.eq_ignore_ascii_case(wanted) || value.name.eq_ignore_ascii_case(wanted)
        };
        let exact = self.values.iter().find(|value| value.id == wanted);
        let value = exact.or_else(|| self.values.iter().find(named)).map_or(wanted, |value| &value.id);
        match (&self.config_id, setting) {
            (Some(id), _) => {
                ("session/set_config_option", json!({ "sessionId": session, "configId": id, "value": value }))
            }
            (None, Setting::Model) => {
                ("session/set_model", json!({ "sessionId": session, "modelId": value }))
            }
            (None, Setting::Mode) => ("session/set_mode", json!({ "sessionId": session, "modeId": value })),
        }
    }

    /// What can be chosen, for a user who has chosen something else. Empty if nothing is known.
    pub(super) fn list(&self) -> String {
        let ids: Vec<_> = self.values.iter().map(|value| value.id.as_str()).collect();
        if ids.is_empty() { String::new() } else { format!("; it offers {}", ids.join(", ")) }
    }
}

/// Options may stand in groups.
fn collect_values(options: &Value, values: &mut Vec<Choosable>) {
    for option in options.as_array().into_iter().flatten() {
        match choosable(option, "value") {
            Some(value) => values.push(value),
            None => values.extend(
                option["options"].as_array().into_iter().flatten().filter_map(|one| choosable(one, "value")),
            ),
        }
    }
}

fn choosable(value: &Value, id_key: &str) -> Option<Choosable> {
    let id = value[id_key].as_str()?.to_owned();
    let name = value["name"].as_str().unwrap_or(&id).to_owned();
    Some(Choosable { id, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_options_come_before_models_and_groups_are_read() {
        let opened = json!({
            "models": { "currentModelId": "old", "availableModels": [{ "modelId": "old", "name": "Old" }] },
            "configOptions": [
                { "id": "thinking", "category": "thought_level", "options": [] },
                { "id": "llm", "category": "model", "currentValue": "a", "options": [
                    { "value": "a", "name": "Model A" },
                    { "group": "g", "name": "Group", "options": [{ "value": "b", "name": "Model B" }] },
                ] },
            ],
        });
        let offer = Offer::read(&opened, Setting::Model);
        assert_eq!((offer.current.as_deref(), offer.list().as_str()), (Some("a"), "; it offers a, b"));
        let (method, params) = offer.request(Setting::Model, "model b", "s");
        assert_eq!(method, "session/set_config_option");
        assert_eq!(params, json!({ "sessionId": "s", "configId": "llm", "value": "b" }));
    }

    #[test]
    fn models_and_modes_have_requests_of_their_own() {
        let opened = json!({
            "models": { "currentModelId": "m1", "availableModels": [{ "modelId": "m1" }] },
            "modes": { "currentModeId": "ask", "availableModes": [{ "id": "plan", "name": "Plan first" }] },
        });
        let model = Offer::read(&opened, Setting::Model).request(Setting::Model, "unlisted", "s");
        assert_eq!(model, ("session/set_model", json!({ "sessionId": "s", "modelId": "unlisted" })));
        let mode = Offer::read(&opened, Setting::Mode);
        assert_eq!(mode.current.as_deref(), Some("ask"));
        let request = mode.request(Setting::Mode, "Plan First", "s");
        assert_eq!(request, ("session/set_mode", json!({ "sessionId": "s", "modeId": "plan" })));
        let nothing = Offer::read(&json!({}), Setting::Mode);
        assert_eq!((nothing.current.as_deref(), nothing.list().as_str()), (None, ""));
    }
}
