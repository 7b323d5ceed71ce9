//! Agent CLIs that do not speak ACP, as ACP agents.

pub mod runtimes;
