//! The id of a kept session, by which its file is named and people call it.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// How many digits an id has.
pub const KEPT_ID_DIGITS: usize = 16;

/// The id of what the agents of this pool, at this node, call so. It is the same whenever the session is opened again,
/// has no letter that a path could not have, and nobody can open the session by it.
pub fn kept_id(pool: &str, node: Option<&str>, agent_session: &str) -> String {
    let mut digest = Sha256::new();
    for part in [pool, node.unwrap_or_default(), agent_session] {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().iter().take(KEPT_ID_DIGITS / 2).fold(String::new(), |mut id, byte| {
        let _ = write!(id, "{byte:02x}");
        id
    })
}
