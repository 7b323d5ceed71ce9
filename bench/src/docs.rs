//! Writes a table into the documentation, between its two markers.

use std::path::Path;
use std::{fs, io};

const PAGE: &str = "PERFORMANCE.md";

/// Puts `text` between `<!-- bus-bench NAME -->` and `<!-- /bus-bench NAME -->` of the page in that folder.
pub(crate) fn write_between(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    let path = folder.join(PAGE);
    let page = replaced(&fs::read_to_string(&path)?, name, text);
    let missing = || io::Error::other(format!("{} has no markers for {name}", path.display()));
    fs::write(&path, page.ok_or_else(missing)?)
}

fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- bus-bench {name} -->"), format!("<!-- /bus-bench {name} -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{text}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let page = "a\n<!-- bus-bench fan -->\nold\n<!-- /bus-bench fan -->\nb\n";
        let new = replaced(page, "fan", "new\n").unwrap();
        assert_eq!(new, "a\n<!-- bus-bench fan -->\nnew\n<!-- /bus-bench fan -->\nb\n");
        assert_eq!(replaced(page, "compare", "new\n"), None);
    }
}
