//! The JSON that people write: with `//` and `/* */` comments, and with a comma after the last item.
//!
//! What plain JSON does not have is replaced by as many spaces, so that every position in the text stays what it was.

/// The mark that some editors write at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text without a byte order mark.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// The same text with spaces in place of comments. Line ends within them stay.
pub fn without_comments(text: &str) -> String {
    blanked(text, false)
}

/// The same text as plain JSON: with spaces in place of comments, and of commas after a last item.
pub fn plain_json(text: &str) -> String {
    blanked(text, true)
}

fn blanked(text: &str, commas: bool) -> String {
    let mut plain = text.as_bytes().to_vec();
    let mut at = 0;
    // The last comma, if nothing but white space has followed so far, and it follows an item.
    let mut comma = None;
    let mut follows_item = false;
    while let Some(byte) = plain.get(at).copied() {
        let end = match (byte, plain.get(at + 1)) {
            (b'"', _) => end_of_string(&plain, at),
            (b'/', Some(b'/' | b'*')) => match end_of_comment(&plain, at) {
                Some(end) => {
                    blank(&mut plain[at..end]);
                    at = end;
                    continue;
                }
                // The parser says where it begins.
                None => break,
            },
            (b' ' | b'\t' | b'\r' | b'\n', _) => {
                at += 1;
                continue;
            }
            _ => at + 1,
        };
        if matches!(byte, b']' | b'}')
            && commas
            && let Some(comma) = comma
        {
            plain[comma] = b' ';
        }
        comma = (byte == b',' && follows_item).then_some(at);
        follows_item = !matches!(byte, b',' | b':' | b'[' | b'{');
        at = end;
    }
    // Only whole characters of ASCII and whole comments were replaced.
    String::from_utf8(plain).unwrap_or_else(|_| text.to_owned())
}

/// The position after the string that begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// The position after the comment that begins at `start`. `None`: it does not end.
fn end_of_comment(text: &[u8], start: usize) -> Option<usize> {
    let rest = &text[start + 2..];
    if text[start + 1] == b'/' {
        return Some(rest.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| start + 2 + at));
    }
    rest.windows(2).position(|pair| pair == b"*/").map(|at| start + 2 + at + 2)
}

fn blank(text: &mut [u8]) {
    for byte in text.iter_mut().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_last_commas_become_spaces() {
        let cases = [
            ("{} // é", "{}      "),
            ("{ // a\n}", "{     \n}"),
            ("/* a\r\n * b */{}", "    \r\n       {}"),
            ("[1,]", "[1 ]"),
            ("{\"a\":1 , /*,*/ }", "{\"a\":1         }"),
            ("[[1,],\n]", "[[1 ] \n]"),
            ("[1,//\n2]", "[1,  \n2]"),
            (r#"["//", "/*", ",]", "\",]"]"#, r#"["//", "/*", ",]", "\",]"]"#),
            // What is wrong stays wrong, where it is.
            ("[,]", "[,]"),
            ("[1,,]", "[1,,]"),
            ("{\"a\":,}", "{\"a\":,}"),
            ("[1] /* never", "[1] /* never"),
            ("[1 / 2]", "[1 / 2]"),
            ("\"open, // x", "\"open, // x"),
        ];
        for (text, plain) in cases {
            assert_eq!(plain_json(text), plain, "{text}");
            assert_eq!(text.len(), plain.len(), "{text}");
        }
    }

    #[test]
    fn commas_may_stay_and_a_mark_is_taken_off() {
        assert_eq!(without_comments("[1, /* x */ ]"), "[1,         ]");
        assert_eq!(without_mark("\u{feff}{}"), "{}");
        assert_eq!(without_mark("{}\u{feff}"), "{}\u{feff}");
    }
}
