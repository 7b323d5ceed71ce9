//! Agents that run inside pools of stdio Bus.

pub mod echo;
