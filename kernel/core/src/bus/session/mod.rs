//! Sessions: how they open and end, wait for an absent client, survive the loss of their worker, and have children.

mod attach;
mod children;
mod close;
mod guests;
mod history;
mod leave;
mod load;
mod load_plan;
mod offline;
mod open;
mod prompts;
mod questions;
mod recover;
mod store;
mod turn_state;

pub(super) use history::{room_for_history, tell_logged};
pub(super) use prompts::{TurnEnd, prompt_waits};
pub(super) use questions::is_question;
