//! Permissions that the bus itself gives or refuses, where the pool says so.
//!
//! Allowing picks `allow_once`, else `allow_always`; refusing picks `reject_once`, else `reject_always`, and never
//! `cancelled`, which would end the turn. Where the agent offers nothing of the kind, the client is asked.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::bus::Bus;
use crate::config::Permission;
use crate::id::WorkerId;
use crate::state::calls::Endpoint;
use crate::wire::error;
use crate::wire::scan::Envelope;

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
    /// Answers an agent's request for a permission. False: the client is to be asked.
    pub(super) fn permit(&mut self, id: WorkerId, line: &[u8], envelope: &Envelope) -> bool {
        let Some(worker) = self.workers.get(id.0) else { return false };
        let from = Endpoint::Worker(id);
        let kinds = match worker.config.permission {
            Permission::Ask => return false,
            Permission::Allow => ["allow_once", "allow_always"],
            Permission::Deny => ["reject_once", "reject_always"],
        };
        let (Some(link), Some(id), Some(params)) = (worker.link, envelope.id, envelope.params) else {
            return false;
        };
        let Ok(Params { options }) = serde_json::from_slice(params.of(line)) else { return false };
        let chosen = kinds.iter().find_map(|kind| options.iter().find(|option| option.kind == *kind));
        let Some(chosen) = chosen else { return false };
        let result = json!({ "outcome": { "outcome": "selected", "optionId": chosen.option_id } });
        let answer = error::result(id.of(line), &result);
        self.trace_line(from, Endpoint::Bus, None, None, line, envelope);
        self.trace_own(link, &answer, None);
        self.links.send(link, &answer, &[]);
        true
    }
}
