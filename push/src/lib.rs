//! Web Push without I/O: what a push service is sent, and when.
//!
//! [`watch`] decides when a person is told of a question; [`book`] is who wants to be told, as it is kept in a file;
//! [`endpoint`] is where push services may be; [`payload`] is what is told; [`encrypt`] and [`vapid`] make of it what
//! push services and browsers take (RFC 8291, RFC 8188 and RFC 8292). The web door reads the bus, keeps the file and
//! sends.

#![forbid(unsafe_code)]

pub mod book;
pub mod encrypt;
pub mod endpoint;
pub mod payload;
pub mod vapid;
pub mod watch;
