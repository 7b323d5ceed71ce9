//! What people see of a session beside its label: the folder that it was opened with, and the title that its agent gave
//! it. Both are only shown, so what is too long is cut.

use serde::{Deserialize, Serialize};

use crate::limit::{SESSION_FOLDER_BYTES, SESSION_TITLE_BYTES};
use crate::mutants::{Check, enabled};
use crate::wire::nested::beginning;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Shown {
    folder: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Box<str>>,
}

impl Shown {
    pub(crate) fn folder(&self) -> Option<&str> {
        self.folder.as_deref()
    }

    pub(crate) fn title(&self) -> Option<&str> {
        self.title.as_deref()
    }

    /// `folder`: a JSON string.
    pub(crate) fn set_folder(&mut self, folder: &[u8]) {
        self.folder = text(folder, SESSION_FOLDER_BYTES);
    }

    /// `title`: a JSON string, or null for none.
    pub(crate) fn set_title(&mut self, title: &[u8]) {
        self.title = text(title, SESSION_TITLE_BYTES);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.folder().map_or(0, str::len) + self.title().map_or(0, str::len)
    }
}

fn text(value: &[u8], at_most: usize) -> Option<Box<str>> {
    let at_most = if enabled(Check::NameBound) { at_most } else { value.len() };
    let text = beginning(value, at_most)?;
    Some(text.trim()).filter(|text| !text.is_empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_short_and_can_be_taken_back() {
        let mut shown = Shown::default();
        shown.set_folder(br#""/srv/caf\u00e9""#);
        shown.set_title(format!("\"{}\"", "é".repeat(SESSION_TITLE_BYTES)).as_bytes());
        assert_eq!(shown.folder(), Some("/srv/café"));
        assert_eq!(shown.title().map(str::len), Some(SESSION_TITLE_BYTES));
        assert_eq!(shown.bytes(), SESSION_TITLE_BYTES + "/srv/café".len());
        for nothing in [&b"null"[..], br#""  ""#, b"7", b"broken"] {
            shown.set_title(nothing);
            assert_eq!(shown.title(), None);
        }
    }
}
