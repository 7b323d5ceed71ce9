//! The JSON Schema of bus.json, for editors.
//!
//! The text is docs/bus.schema.json itself. Tests compare it with the parser: keys, defaults and bounds.

/// A schema of draft 2020-12, pretty-printed, with a newline at its end.
pub fn schema() -> String {
    include_str!("../../../../docs/bus.schema.json").to_owned()
}
