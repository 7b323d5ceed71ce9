//! End-to-end tests: the real binary, real processes, real sockets.
//!
//! Each test is a story about one promise of the bus. It starts a bus of its own on a free port, plays clients
//! and workers, and fails if anything that its bus has started is left when it ends.

#![cfg(target_os = "linux")]

mod asking;
mod bridges;
mod cli;
mod cli_agent;
mod connect;
mod deaths;
mod detect;
mod doors;
mod faults_client;
mod faults_life;
mod faults_sweep;
mod faults_system;
mod faults_worker;
mod flow;
mod garbage;
mod handshake;
mod harness;
mod hostile;
mod identity;
mod kept;
mod limits;
mod named;
mod naughty;
mod openai;
mod pools;
mod reload;
mod run;
mod run_screen;
mod seeing;
mod sessions;
mod stop;
mod storm;
mod survival;
mod token;
mod top;
