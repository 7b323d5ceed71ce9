//! The JSON Schema of bus.json, for editors.
//!
//! The text is docs/bus.schema.json itself. The tests hold it against the parser: same keys, same defaults,
//! same bounds.

/// Pretty printed, with a newline at its end. Draft 2020-12.
pub fn schema() -> String {
    include_str!("../../../../docs/bus.schema.json").to_owned()
}
