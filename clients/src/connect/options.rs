//! What `connect` is asked to do.

use std::collections::BTreeMap;

use kernel_core::config::Address;
use rpc::Stream;
use serde_json::Value;

use super::start::StartPlan;
use crate::connection::{CONNECT_TIMEOUT, hello_params};
use crate::{Fault, Target};

pub struct Options {
    pub target: Target,
    pub pool: Option<String>,
    /// The label of the session that the first `session/new` of the IDE joins.
    pub attach: Option<String>,
    /// The end of the connection counts as a goodbye, so that the bus keeps none of its sessions.
    pub bye: bool,
    /// Variables that the IDE wants for its agent.
    pub env: BTreeMap<String, String>,
    /// How to start a bus if none answers. `None`: a missing bus is a fault.
    pub start: Option<StartPlan>,
    /// The node that the bus is at, if another bus has started this to reach it. That one answers best for a node that
    /// is away, and starts this again, so a lost bus is not waited for.
    pub node: Option<String>,
}

impl Options {
    /// The params of the `_bus/hello` for the bus at this address.
    pub(super) fn hello(&self, at: &Address, stream: &Stream) -> Result<Value, Fault> {
        let token = self.target.token_for(at, stream, CONNECT_TIMEOUT)?;
        let mut hello = hello_params("stdio-bus connect", self.pool.as_deref(), token.as_deref());
        if self.bye {
            hello["bye"] = true.into();
        }
        Ok(hello)
    }
}
