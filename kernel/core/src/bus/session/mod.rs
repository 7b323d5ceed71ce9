//! Sessions: how they open and end, wait for an absent client, survive their worker, and have children.

mod children;
mod offline;
pub(super) mod recover;
pub(super) mod turn_state;
