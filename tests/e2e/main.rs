//! End-to-end tests: the real binary, real processes, real sockets.
//!
//! Each test shows one promise of the bus. It starts its own bus on a free port, plays clients and workers, and fails
//! if a process that the bus has started is left at the end.

#![cfg(target_os = "linux")]

mod agent_requests;
mod attach;
mod bridge_questions;
mod bridges;
mod cli;
mod cli_agent;
mod cli_history;
mod cli_openings;
mod cli_options;
mod client_env;
mod client_named_sessions;
#[cfg(feature = "cluster")]
mod cluster;
mod completions;
mod connect;
mod defaults;
mod detect;
mod drivers;
mod faults_client;
mod faults_life;
mod faults_sweep;
mod faults_system;
mod faults_worker;
mod flow;
mod greedy;
mod guests;
mod handshake;
mod harness;
mod history;
mod history_faults;
mod history_full;
mod hostile;
mod ids_and_bytes;
mod limits;
mod listeners;
mod malformed_lines;
mod mistakes;
mod naughty_strings;
mod nodes;
mod notify;
mod offline_sessions;
mod openai;
mod operate;
mod otel;
mod pools;
mod readme;
mod recovery;
mod registry;
mod reload;
mod replay;
mod run;
mod run_editor;
mod run_program;
mod run_prompts;
mod run_screen;
mod sessions;
mod status_and_trace;
mod stop;
mod stores;
mod storm;
mod token;
mod top;
mod upgrade;
mod user_bus;
mod ux;
mod web;
mod worker_death;
