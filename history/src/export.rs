//! A transcript as a document that one would send to a colleague: who said what and when, tool calls folded, diffs.
//!
//! What agents say is hostile text: in HTML all of it is escaped, and there is no script.

use std::fmt::Write;

use rpc::text::replace_control;
use serde_json::{Value, json};

use crate::entry::{Entry, Header, What};
use crate::story::{Part, Story};

/// How a transcript is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Markdown.
    Md,
    /// A page of HTML without script.
    Html,
    /// One JSON object.
    Json,
    /// The lines of the file.
    Ndjson,
}

impl Format {
    /// The format with this name: md, html, json or ndjson.
    pub fn named(name: &str) -> Option<Format> {
        match name {
            "md" => Some(Format::Md),
            "html" => Some(Format::Html),
            "json" => Some(Format::Json),
            "ndjson" => Some(Format::Ndjson),
            _ => None,
        }
    }
}

/// The document.
pub fn document(format: Format, header: &Header, entries: &[Entry]) -> String {
    let mut story = Story::default();
    entries.iter().for_each(|entry| story.tell(entry));
    match format {
        Format::Md => markdown(header, &story),
        Format::Html => html(header, &story),
        Format::Json => json(header, entries).to_string() + "\n",
        Format::Ndjson => {
            let lines = entries.iter().map(Entry::line).fold(header.line(), |all, line| [all, line].concat());
            String::from_utf8_lossy(&lines).into_owned()
        }
    }
}

/// The whole transcript as one value.
pub fn json(header: &Header, entries: &[Entry]) -> Value {
    json!({ "header": header, "entries": entries.iter().map(value).collect::<Vec<_>>() })
}

/// An entry as a value.
pub fn value(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.line()).unwrap_or_default()
}

/// Whether the message of an entry is a prompt.
pub fn is_prompt(entry: &Entry) -> bool {
    matches!(&entry.what, What::Message(message) if message.get().contains(r#""session/prompt""#))
}

/// Text without what steers a terminal, but with its lines.
pub fn plain(text: &str) -> String {
    text.split('\n').map(|line| replace_control(line, ' ')).collect::<Vec<_>>().join("\n")
}

/// The title of a transcript: what its agent calls it, else how it begins.
pub fn title(story: &Story) -> String {
    let title = story.title.as_deref().or(story.first_words.as_deref()).unwrap_or("A session");
    let line = title.lines().next().unwrap_or_default();
    replace_control(&line.chars().take(80).collect::<String>(), ' ')
}

fn facts(header: &Header, story: &Story) -> Vec<(&'static str, String)> {
    let mut facts = vec![("Agent", header.agent.clone().unwrap_or_else(|| header.pool.clone()))];
    facts.extend(header.cwd.clone().map(|cwd| ("Folder", cwd)));
    facts.extend(header.node.clone().map(|node| ("Machine", node)));
    facts.push(("From", header.opened.clone()));
    facts.extend(story.last.clone().map(|last| ("To", last)));
    facts
}

/// A fence that is longer than any in the text, so that nothing in it ends the block.
fn fenced(text: &str, language: &str) -> String {
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}{language}\n{}\n{fence}\n", text.trim_end_matches('\n'))
}

fn markdown(header: &Header, story: &Story) -> String {
    let mut out = format!("# {}\n\n", title(story));
    for (name, value) in facts(header, story) {
        let _ = writeln!(out, "- {name}: {}", replace_control(&value, ' '));
    }
    for part in &story.parts {
        match part {
            Part::Words { at, by, text } => {
                let _ =
                    write!(out, "\n## {} ({at})\n\n{}\n", replace_control(by, ' '), plain(text).trim_end());
            }
            Part::Thought { text, .. } => {
                let quoted: Vec<String> = plain(text).lines().map(|line| format!("> {line}")).collect();
                let _ = write!(out, "\n{}\n", quoted.join("\n"));
            }
            Part::Tool { title, status, input, output, diffs, paths, .. } => {
                let title = escape(&replace_control(title, ' '));
                let _ = write!(out, "\n<details><summary>{title} ({status})</summary>\n\n");
                if let Some(input) = input {
                    out.push_str(&fenced(&plain(input), ""));
                }
                let code = |path: &str| replace_control(path, ' ').replace('`', "'");
                for path in without_diff(paths, diffs) {
                    let _ = write!(out, "\n`{}`\n\n", code(path));
                }
                for (path, old, new) in diffs {
                    let _ = write!(out, "\n`{}`\n\n", code(path));
                    out.push_str(&fenced(&plain(&diff(old, new)), "diff"));
                }
                if !output.trim().is_empty() {
                    out.push_str(&fenced(&plain(output), ""));
                }
                out.push_str("\n</details>\n");
            }
            Part::Question { title, answer, .. } => {
                let _ = writeln!(out, "\n*{}: {}*", replace_control(title, ' '), answered(answer));
            }
            Part::Note { text, .. } => {
                let _ = writeln!(out, "\n*{}*", replace_control(text, ' '));
            }
            Part::Aside { text, .. } => {
                let _ = write!(out, "\n{}\n", plain(text).trim_end());
            }
        }
    }
    out
}

fn answered(answer: &Option<(String, String)>) -> String {
    match answer {
        Some((chosen, by)) => format!("{} chose {}", replace_control(by, ' '), replace_control(chosen, ' ')),
        None => "not answered".to_owned(),
    }
}

/// The lines of both texts, those that both begin and end with left out but for a few.
fn diff(old: &str, new: &str) -> String {
    const AROUND: usize = 3;
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let left = old.len().min(new.len()) - same;
    let end =
        old.iter().rev().zip(new.iter().rev()).take(left).take_while(|(one, other)| one == other).count();
    let mut out = Vec::new();
    out.extend(old[same.saturating_sub(AROUND)..same].iter().map(|line| format!(" {line}")));
    out.extend(old[same..old.len() - end].iter().map(|line| format!("-{line}")));
    out.extend(new[same..new.len() - end].iter().map(|line| format!("+{line}")));
    out.extend(old[old.len() - end..].iter().take(AROUND).map(|line| format!(" {line}")));
    out.join("\n")
}

/// The files that a tool works with and has no diff of.
fn without_diff<'a>(
    paths: &'a [String],
    diffs: &'a [(String, String, String)],
) -> impl Iterator<Item = &'a str> {
    let has_diff = |path: &&String| diffs.iter().any(|(other, ..)| other == *path);
    paths.iter().filter(move |path| !has_diff(path)).map(String::as_str)
}

/// Text that is text in HTML, wherever it stands.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;\
color:#222;background:#fff}h2{font-size:1rem;margin:1.5rem 0 .3rem}time{color:#777;font-weight:400;font-size:.85rem}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f5f5;padding:.6rem;border-radius:4px;font-size:.85rem}\
.words{white-space:pre-wrap;overflow-wrap:anywhere}.thought,.note{color:#777}details{margin:.6rem 0}\
ins{background:#e2f5e5;text-decoration:none}del{background:#fbe4e4;text-decoration:none}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#222}ins{background:#173a1d}\
del{background:#4a1d1d}}";

fn html(header: &Header, story: &Story) -> String {
    let text = |text: &str| escape(&plain(text));
    let title = escape(&title(story));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<ul>\n"
    );
    for (name, value) in facts(header, story) {
        let _ = writeln!(out, "<li>{name}: {}</li>", text(&value));
    }
    out.push_str("</ul>\n");
    for part in &story.parts {
        let at = text(part.at());
        match part {
            Part::Words { by, text: said, .. } => {
                let (by, said) = (text(by), text(said));
                let _ = writeln!(out, "<h2>{by} <time>{at}</time></h2>\n<div class=\"words\">{said}</div>");
            }
            Part::Thought { text: thought, .. } => {
                let thought = text(thought);
                let _ = writeln!(
                    out,
                    "<details class=\"thought\"><summary>thought</summary><pre>{thought}</pre></details>"
                );
            }
            Part::Tool { title, status, input, output, diffs, paths, .. } => {
                let (title, status) = (text(title), text(status));
                let _ = writeln!(out, "<details><summary>{title} ({status}) <time>{at}</time></summary>");
                if let Some(input) = input {
                    let _ = writeln!(out, "<pre>{}</pre>", text(input));
                }
                for path in without_diff(paths, diffs) {
                    let _ = writeln!(out, "<p>{}</p>", text(path));
                }
                for (path, old, new) in diffs {
                    let _ = writeln!(
                        out,
                        "<p>{}</p>\n<pre>{}</pre>",
                        text(path),
                        marked(&plain(&diff(old, new)))
                    );
                }
                if !output.trim().is_empty() {
                    let _ = writeln!(out, "<pre>{}</pre>", text(output));
                }
                out.push_str("</details>\n");
            }
            Part::Question { title, answer, .. } => {
                let _ = writeln!(out, "<p class=\"note\">{}: {}</p>", text(title), text(&answered(answer)));
            }
            Part::Note { text: note, .. } => {
                let _ = writeln!(out, "<p class=\"note\">{}</p>", text(note));
            }
            Part::Aside { text: told, .. } => {
                let _ = writeln!(out, "<div class=\"words note\">{}</div>", text(told));
            }
        }
    }
    out.push_str("</body></html>\n");
    out
}

/// The lines of a diff, coloured.
fn marked(diff: &str) -> String {
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => format!("<ins>{}</ins>", escape(line)),
        Some(b'-') => format!("<del>{}</del>", escape(line)),
        _ => escape(line),
    };
    diff.lines().map(line).collect::<Vec<_>>().join("\n")
}
