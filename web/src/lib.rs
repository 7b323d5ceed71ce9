//! The web door of stdio Bus: ACP over WebSocket and HTTP, and the console in a browser.
//!
//! It is a process of its own and a client of the bus: each connection that it takes is a connection of the bus, so
//! that limits, flow control and kept sessions are those of the bus. One thread does all of it. [`run()`] opens the
//! door; [`export()`] serves nothing but figures; [`tokens`] and [`link`] are for the commands that make links and
//! revoke tokens.

#![forbid(unsafe_code)]

mod activity;
mod assets;
mod audit;
mod away;
mod bus_link;
mod door;
mod exporter;
mod figures;
mod filter;
mod gate;
mod http_connection;
mod leases;
pub mod link;
mod message;
mod outboxes;
mod past;
mod pusher;
mod reply;
mod request;
mod run;
pub mod scope;
mod sent;
mod server;
mod state_file;
mod strangers;
mod streamable;
mod subscribers;
mod tls;
pub mod tokens;
mod websocket;
mod wrong_codes;

pub use exporter::export;
pub use run::{Options, Orders, run};
