//! Sessions: how they open and end, wait for an absent client, survive the loss of their worker, and have children.

mod attach;
mod children;
mod close;
mod leave;
mod load;
mod offline;
mod open;
mod recover;
mod store;
mod turn_state;

pub(super) use load::knows_history;
