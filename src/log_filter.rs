//! A warning about words of `RUST_LOG` that select nothing, such as a level with a typing error.

use kernel_shell::config::nearest;

const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
/// The parts of the bus that log, whose names select their lines.
const PARTS: [&str; 10] = [
    "stdio_bus",
    "kernel_core",
    "kernel_shell",
    "clients",
    "cluster",
    "history",
    "notify",
    "rpc",
    "web",
    "workers",
];

/// What is wrong with this filter. A wrong level after `=` is reported by the logger itself.
pub(crate) fn fault(filter: &str) -> Option<String> {
    let words = filter.split('/').next().unwrap_or_default().split(',').map(str::trim);
    let is_known = |word: &str| {
        let is_level = LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        is_level || PARTS.contains(&word) || word.contains("::")
    };
    let wrong = words.filter(|word| !word.is_empty() && !word.contains('=')).find(|word| !is_known(word))?;
    let meant = match nearest(&wrong.to_lowercase(), &LEVELS) {
        Some(level) => format!("did you mean {level:?}?"),
        None => format!("the levels are {}", LEVELS.join(", ")),
    };
    Some(format!("RUST_LOG: {wrong:?} selects nothing; {meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_selects_nothing_is_found() {
        for good in
            ["", "info", "WARN", "off,kernel_shell=debug", "kernel_core", "web::door", "info/regex", "a=b"]
        {
            assert_eq!(fault(good), None, "{good}");
        }
        assert_eq!(
            fault("info, debgu").as_deref(),
            Some("RUST_LOG: \"debgu\" selects nothing; did you mean \"debug\"?")
        );
        assert!(fault("everything").is_some_and(|why| why.contains("the levels are error, warn, ")));
    }
}
