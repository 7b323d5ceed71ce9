//! Sockets: listening, accepting, and the user at the other end.

pub(crate) mod accept;
pub(crate) mod inherited;
pub(crate) mod listener;
pub(crate) mod peer_uid;
pub(crate) mod socket;
pub(crate) mod unix_socket;
pub(crate) mod user_socket;
