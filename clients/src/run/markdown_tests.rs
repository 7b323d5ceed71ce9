//! Markdown as lines of a terminal.

use super::*;

/// The lines without their styles.
fn plain(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| strip(line)).collect()
}

fn strip(line: &str) -> String {
    let mut text = String::new();
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => while letters.next().is_some_and(|letter| letter != 'm') {},
            letter => text.push(letter),
        }
    }
    text
}

fn whole(text: &str, columns: usize) -> Vec<String> {
    let mut blocks = Blocks::default();
    let mut lines = blocks.push(text, columns);
    lines.extend(blocks.finish(columns));
    plain(&lines)
}

const DOCUMENT: &str = "\
# A heading
Some *text* with **bold** and `code`.
A second line, [a link](http://x.y) and <http://z>.

- one
- two
  - nested
  - more

  still two

1. first
2. second

> a quote

```diff
- old
+ new
```
| a | b |
|---|---|
| 1 | 2 |

---
Done \\* &amp; dusted.
";

const RENDERED: [&str; 23] = [
    "A heading",
    "Some text with bold and code.",
    "A second line, a link (http://x.y) and",
    "http://z.",
    "",
    "• one",
    "• two",
    "  • nested",
    "  • more",
    "  still two",
    "",
    "1. first",
    "2. second",
    "",
    "│ a quote",
    "",
    "  - old",
    "  + new",
    "| a | b |",
    "|---|---|",
    "| 1 | 2 |",
    "",
    "───────────────────────────────────────",
];

#[test]
fn every_kind_of_block_is_rendered() {
    let lines = whole(DOCUMENT, 40);
    assert_eq!(lines[..RENDERED.len()], RENDERED);
    assert_eq!(lines[RENDERED.len()..], ["", "Done * & dusted."]);
}

#[test]
fn pieces_of_any_length_give_the_same_lines() {
    let expected = whole(DOCUMENT, 40);
    for length in 1..40 {
        let mut blocks = Blocks::default();
        let mut lines = Vec::new();
        let letters: Vec<char> = DOCUMENT.chars().collect();
        for piece in letters.chunks(length) {
            lines.extend(blocks.push(&piece.iter().collect::<String>(), 40));
            blocks.unfinished(40);
        }
        lines.extend(blocks.finish(40));
        assert_eq!(plain(&lines), expected, "{length}");
    }
}

#[test]
fn styles_are_set_and_ended_in_each_line() {
    let lines = render("**bold words over two lines** and `x`", 14);
    assert_eq!(plain(&lines), ["bold words", "over two", "lines and x"]);
    for line in &lines {
        assert!(line.ends_with("\x1b[0m") && line.starts_with("\x1b[1m"), "{line:?}");
    }
    assert_eq!(code_line("+ a", true), format!("  {ADDED}+ a{ADDED:#}"));
    assert_eq!(width_of(&lines[0]), 10);
}

#[test]
fn nothing_that_an_entity_spells_reaches_the_terminal() {
    for text in
        ["a&#27;[2Jb", "`a`&#x9b;2J", "[a](http://x&#27;[2J)", "- &#x202e;x", "    &#27;[2J", "# &#7;"]
    {
        let lines = render(text, 40);
        assert!(lines.iter().all(|line| !strip(line).chars().any(steers_terminal)), "{text}: {lines:?}");
    }
}

#[test]
fn words_wrap_and_long_ones_are_cut() {
    assert_eq!(whole("one two three four", 12), ["one two", "three four"]);
    assert_eq!(whole(&"x".repeat(25), 11), ["xxxxxxxxxx", "xxxxxxxxxx", "xxxxx"]);
    assert_eq!(whole(&"日本".repeat(6), 12), ["日本日本日", "本日本日本", "日本"]);
    assert_eq!(whole("- one two three", 11), ["• one two", "  three"]);
    assert_eq!(whole("a\nb", 40), ["a", "b"], "the lines of the agent stay lines");
}

#[test]
fn a_block_that_does_not_end_is_shown_and_bounded() {
    let mut blocks = Blocks::default();
    assert!(blocks.push("still **go", 40).is_empty());
    assert_eq!(plain(&blocks.unfinished(40)), ["still **go"]);
    blocks.push("ing**", 40);
    assert_eq!(plain(&blocks.unfinished(40)), ["still going"]);
    assert!(!blocks.push(&"word ".repeat(BLOCK_BYTES_MAX), 40).is_empty());
    assert!(blocks.unfinished(40).is_empty());
    assert_eq!(whole("```\nlet x;\n", 40), ["  let x;"], "a fence that is never closed");
    assert_eq!(whole("\n\nafter empty lines", 40), ["after empty lines"]);
    assert_eq!(whole("", 40), [""; 0]);
}
