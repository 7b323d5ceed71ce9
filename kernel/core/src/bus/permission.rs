//! Permission requests that the bus itself answers, where the pool says so.
//!
//! To allow, the bus picks `allow_once`, else `allow_always`. To deny, it picks `reject_once`, else `reject_always`,
//! and never `cancelled`, which would end the turn. If the agent offers no such option, the client is asked, and also
//! if the request is so long that to read it again would take the bus a while.

use super::Bus;
use super::keep;
use crate::config::Permission;
use crate::id::WorkerId;
use crate::limit::NESTED_BYTES;
use crate::state::calls::Endpoint;
use crate::wire::error::spelled_result_line;
use crate::wire::message::Message;
use crate::wire::nested::{for_each_element, members_of, string, within};

impl Bus {
    /// Answers a permission request of an agent. False: the client must be asked.
    pub(super) fn answer_permission(&mut self, id: WorkerId, message: Message<'_>) -> bool {
        let Some(worker) = self.workers.get(id) else { return false };
        let kinds = match worker.config.permission {
            Permission::Ask => return false,
            Permission::Allow => ["allow_once", "allow_always"],
            Permission::Deny => ["reject_once", "reject_always"],
        };
        let (Some(link), Some(call_id)) = (worker.link, message.id()) else { return false };
        // The agent chooses how many options there are, so they are not made a tree.
        let mut chosen = [None; 2];
        let line = message.line;
        for_each_element(line, within(message.envelope.params, NESTED_BYTES), b"options", |option| {
            let [kind, id] = members_of(line, Some(option), [b"kind", b"optionId"]);
            let kind = string(line, kind).map(|kind| message.name(kind));
            let place = kinds.iter().position(|wanted| kind.as_deref() == Some(wanted.as_bytes()));
            if let Some(place) = place.filter(|place| chosen[*place].is_none()) {
                chosen[place] = id;
            }
            // Nothing is better than the first kind.
            chosen[0].is_none().then_some(())
        });
        let Some(chosen) = chosen[0].or(chosen[1]) else { return false };
        let start = br#"{"outcome":{"outcome":"selected","optionId":"#;
        let result = [&start[..], chosen.of(line), b"}}"].concat();
        let answer = spelled_result_line(call_id, &result);
        self.trace_line(Endpoint::Worker(id), Endpoint::Bus, None, None, message);
        keep::permission(self, id, message, &answer);
        self.send_own(link, &answer);
        true
    }
}
