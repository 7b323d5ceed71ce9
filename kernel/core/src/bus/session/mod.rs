//! Sessions: how they open and end, wait for an absent client, survive the loss of their worker, and have children.

mod children;
mod offline;
mod open_close;
mod recover;
mod turn_state;
