//! Permission requests that the bus itself answers, where the pool says so.
//!
//! To allow, the bus picks `allow_once`, else `allow_always`. To deny, it picks `reject_once`, else `reject_always`,
//! and never `cancelled`, which would end the turn. If the agent offers no such option, the client is asked.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Bus;
use crate::config::Permission;
use crate::id::WorkerId;
use crate::state::calls::Endpoint;
use crate::wire::error::result_line;
use crate::wire::message::Message;

#[derive(Deserialize)]
struct Params {
    options: Vec<Choice>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Choice {
    option_id: Value,
    kind: String,
}

impl Bus {
    /// Answers a permission request of an agent. False: the client must be asked.
    pub(super) fn answer_permission(&mut self, id: WorkerId, message: Message<'_>) -> bool {
        let Some(worker) = self.workers.get(id) else { return false };
        let kinds = match worker.config.permission {
            Permission::Ask => return false,
            Permission::Allow => ["allow_once", "allow_always"],
            Permission::Deny => ["reject_once", "reject_always"],
        };
        let (Some(link), Some(call_id), Some(params)) = (worker.link, message.id(), message.params()) else {
            return false;
        };
        let Ok(Params { options }) = serde_json::from_slice(params) else { return false };
        let chosen = kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind));
        let Some(chosen) = chosen else { return false };
        let result = json!({ "outcome": { "outcome": "selected", "optionId": chosen.option_id } });
        let answer = result_line(call_id, &result);
        self.trace_line(Endpoint::Worker(id), Endpoint::Bus, None, None, message);
        self.send_own(link, &answer);
        true
    }
}
