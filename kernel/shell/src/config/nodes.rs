//! Parses what bus.json says about many machines: the name of the bus.

use super::parse::{Node, Reader};
use kernel_core::config::{BUS_NAME_CHARS, is_bus_name};

impl<'a> Reader<'a> {
    pub(super) fn bus_name(&mut self, node: &Node<'a>) -> Option<&'a str> {
        let name = self.non_empty(node)?;
        if is_bus_name(name) {
            return Some(name);
        }
        let message =
            format!("{name:?} is not 1 to {BUS_NAME_CHARS} letters, digits, underscores and dashes");
        self.error(&node.path, message);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::parse;

    fn errors(text: &str) -> Vec<String> {
        let errors = parse(text, Path::new("/etc")).err().map(|errors| errors.errors).unwrap_or_default();
        errors.iter().map(|error| format!("{}: {}", error.path, error.message)).collect()
    }

    #[test]
    fn a_bus_may_have_a_name() {
        let named = |name: &str| format!(r#"{{"name":{name},"pools":[{{"id":"a","command":"b"}}]}}"#);
        let longest = format!("\"{}\"", "n".repeat(32));
        for name in [r#""n17""#, r#""a-b_C""#, &longest] {
            let config = parse(&named(name), Path::new("/etc")).unwrap();
            assert_eq!(config.name.as_deref(), Some(name.trim_matches('"')));
        }
        let is_not = "is not 1 to 32 letters, digits, underscores and dashes";
        assert_eq!(errors(&named(r#""n.17""#)), [format!(r#"name: "n.17" {is_not}"#)]);
        assert_eq!(errors(&named(r#""a~b""#)), [format!(r#"name: "a~b" {is_not}"#)]);
        let long = "n".repeat(33);
        assert_eq!(errors(&named(&format!("{long:?}"))), [format!(r#"name: "{long}" {is_not}"#)]);
        assert_eq!(errors(&named(r#""""#)), ["name: must not be empty"]);
        assert_eq!(errors(&named("1")), ["name: must be a string, not 1"]);
    }
}
