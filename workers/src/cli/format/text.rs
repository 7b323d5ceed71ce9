//! Reads and cleans the texts that CLIs print.

use serde_json::Value;

/// Unwraps an error message that is JSON or has JSON inside.
pub(in crate::cli) fn inner_message(message: &str) -> String {
    let bare =
        message.strip_prefix("[API Error: ").and_then(|rest| rest.strip_suffix(']')).unwrap_or(message);
    let start = bare.find('{').unwrap_or(bare.len());
    match serde_json::from_str::<Value>(&bare[start..]) {
        Ok(value) => value["error"]["message"].as_str().unwrap_or(bare).to_owned(),
        Err(_) => bare.to_owned(),
    }
}

/// The text of a content that is a string or a list of blocks.
pub(in crate::cli) fn text_content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The language of a fence around the output of a command.
pub(in crate::cli) const OUTPUT_LANGUAGE: &str = "console";

/// A Markdown code block with this text. Its fence is longer than every fence in the text.
pub(in crate::cli) fn fenced(language: &str, text: &str) -> String {
    let backticks = |line: &str| line.trim_start().bytes().take_while(|byte| *byte == b'`').count();
    let longest = text.lines().map(backticks).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}{language}\n{}\n{fence}", text.trim_end())
}

/// The command itself, without the shell that runs it.
pub(in crate::cli) fn without_shell(line: &str) -> String {
    let inside = match line.split_once(" -lc ") {
        Some((shell, inside)) if shell.ends_with("sh") => inside,
        _ => return line.to_owned(),
    };
    let quoted = |quote: char| inside.strip_prefix(quote)?.strip_suffix(quote);
    match (quoted('\''), quoted('"')) {
        (Some(inside), _) => inside.replace("'\\''", "'"),
        (None, Some(inside)) => unescaped(inside),
        (None, None) => inside.to_owned(),
    }
}

/// What a shell reads between double quotes, where a backslash escapes only some characters.
fn unescaped(quoted: &str) -> String {
    let mut plain = String::with_capacity(quoted.len());
    let mut chars = quoted.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = if c == '\\' { chars.next_if(|next| "\\\"$`".contains(*next)) } else { None };
        plain.push(escaped.unwrap_or(c));
    }
    plain
}

/// Removes `ESC [ .. letter`, and `ESC ] ..` up to `BEL` or `ESC \`.
pub(in crate::cli) fn without_escapes(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\x1b' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            Some('[') => while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {},
            Some(']') => {
                while let Some(c) = chars.next() {
                    if c == '\x07' || (c == '\x1b' && chars.next_if_eq(&'\\').is_some()) {
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_the_shell_reads_it() {
        let line = r#"/bin/bash -lc "printf '# a\\n' > \"f g\"; echo \$x \d""#;
        assert_eq!(without_shell(line), r#"printf '# a\n' > "f g"; echo $x \d"#);
        assert_eq!(without_shell(r"/bin/bash -lc 'echo '\''a'\'''"), "echo 'a'");
        assert_eq!(without_shell("ls -l"), "ls -l");
    }

    #[test]
    fn a_fence_is_longer_than_what_it_holds() {
        assert_eq!(fenced("console", "# a\n\n"), "```console\n# a\n```");
        assert_eq!(fenced("", "a\n````\nb"), "`````\na\n````\nb\n`````");
    }

    #[test]
    fn colours_and_titles_are_removed() {
        assert_eq!(
            without_escapes("\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y\x1b"),
            "green xy"
        );
        assert_eq!(without_escapes("\x1b["), "");
    }
}
