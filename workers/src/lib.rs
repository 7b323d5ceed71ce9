//! Agents that run inside pools of stdio Bus.

mod disk;
mod incoming;
mod lines;
mod listing;
mod name;
mod out;
mod ready;
mod rpc;
mod signals;
mod stamp;

pub mod cli;
pub mod detect;
pub mod echo;
pub mod openai;
