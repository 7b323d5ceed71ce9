//! Agents that run inside pools of stdio Bus.

#![forbid(unsafe_code)]

mod acp;
mod lock;

pub mod cli;
pub mod detect;
pub mod echo;
pub mod folders;
pub mod openai;
pub mod registry;
pub mod with_env;
