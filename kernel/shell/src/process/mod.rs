//! Worker processes: how they are started, found and ended.

pub(crate) mod command;
pub(crate) mod env_mark;
pub(crate) mod orphan_guard;
pub(crate) mod pre_exec;
pub(crate) mod spawn;
