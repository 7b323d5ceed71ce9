//! The echo agent: a small, complete ACP agent for trials and load tests.
//!
//! It streams each prompt back, supports every session method of ACP, and answers an unknown method with the params it
//! got. `agent` is a value that takes lines and the time and returns bytes; `serve` connects it to stdin and stdout.
//! It has one thread and no timers, so that a load test measures the bus and not the agent.

mod agent;
mod chunks;
mod command;
mod methods;
mod options;
mod record;
mod responses;
mod serve;
mod step;
mod store;
mod turn;
mod writer;

#[cfg(test)]
mod tests;

pub use options::Options;
pub use serve::run;
