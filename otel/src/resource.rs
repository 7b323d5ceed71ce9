//! What the spans come from, and what makes them.

pub(crate) const SCOPE: &str = "stdio-bus";
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the spans come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) attributes: Vec<(String, String)>,
}
