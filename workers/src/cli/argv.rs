//! Builds a CLI's arguments from its table row, so that no value can be mistaken for an option.

use std::path::Path;

use super::runtimes::{Arg, Delivery, Turn};

/// Linux rejects an argument of 128 KiB, so a longer prompt is refused before that.
const PROMPT_BYTES: usize = 120 << 10;
const ID_CHARS: usize = 128;

#[derive(Default)]
pub(super) struct Values<'a> {
    pub(super) cwd: &'a str,
    pub(super) session: Option<&'a str>,
    /// The CLI's id of the session to fork.
    pub(super) fork: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) effort: Option<&'a str>,
    pub(super) mode: Option<&'a str>,
    pub(super) mcp_config: Option<&'a Path>,
    /// A group that names `{add_dir}` stands there once for each of them.
    pub(super) add_dirs: &'a [String],
    /// The same with `{image}`.
    pub(super) images: &'a [String],
    pub(super) prompt: &'a str,
    /// Whether the client shows forms.
    pub(super) has_forms: bool,
}

/// Fails with the reason to report to the client.
pub(super) fn arguments(turn: &Turn, values: &Values<'_>) -> Result<Vec<String>, String> {
    if turn.prompt == Delivery::Argument {
        if values.prompt.len() > PROMPT_BYTES {
            return Err(format!("the prompt is longer than the {PROMPT_BYTES} bytes that this CLI can take"));
        }
        if values.prompt.contains('\0') {
            return Err("the prompt has a NUL in it, which no argument can have".to_owned());
        }
    }
    let mut args = Vec::new();
    for arg in &turn.args {
        match arg {
            Arg::Word(word) if word == "{mode}" => {
                let chosen = turn.modes.iter().find(|mode| Some(mode.id.as_str()) == values.mode);
                args.extend(chosen.or(turn.modes.first()).into_iter().flat_map(|mode| mode.args.clone()));
            }
            Arg::Word(word) if word == "{without_forms}" => {
                let missing = turn.without_forms.iter().filter(|_| !values.has_forms);
                args.extend(missing.cloned());
            }
            Arg::Word(word) => {
                args.push(fill(word, values).ok_or_else(|| format!("nothing is known for {word}"))?);
            }
            Arg::Group(group) => match repeated(group, values) {
                Some((placeholder, all)) => {
                    for one in all {
                        args.extend(group.iter().map(|word| word.replace(placeholder, one)));
                    }
                }
                None => {
                    let filled: Option<Vec<String>> = group.iter().map(|word| fill(word, values)).collect();
                    args.extend(filled.into_iter().flatten());
                }
            },
        }
    }
    Ok(args)
}

/// The placeholder of this group that has many values, and those.
fn repeated<'a>(group: &[String], values: &Values<'a>) -> Option<(&'static str, &'a [String])> {
    let all = [("{add_dir}", values.add_dirs), ("{image}", values.images)];
    all.into_iter().find(|(placeholder, _)| group.iter().any(|word| word.contains(placeholder)))
}

/// Returns `None` if the placeholder in `word` has no value.
fn fill(word: &str, values: &Values<'_>) -> Option<String> {
    let Some((before, rest)) = word.split_once('{') else { return Some(word.to_owned()) };
    let Some((name, after)) = rest.split_once('}') else { return Some(word.to_owned()) };
    let prompt;
    let value = match name {
        "cwd" => Some(values.cwd),
        "session" => values.session,
        "fork" => values.fork,
        "model" => values.model,
        "effort" => values.effort,
        "mcp_config" => values.mcp_config.and_then(Path::to_str),
        "prompt" => {
            // A leading space keeps the CLI from parsing the prompt as an option.
            prompt = if values.prompt.starts_with('-') {
                format!(" {}", values.prompt)
            } else {
                values.prompt.to_owned()
            };
            Some(prompt.as_str())
        }
        _ => return Some(word.to_owned()),
    };
    value.map(|value| format!("{before}{value}{after}"))
}

/// Whether this can be a model's name. Options and sentences cannot.
pub(super) fn is_model(id: &str) -> bool {
    is_id(id, b"._/:@[]#|()$-")
}

/// Whether this can be a CLI's session id.
pub(super) fn is_session(id: &str) -> bool {
    is_id(id, b"._:-")
}

fn is_id(id: &str, marks: &[u8]) -> bool {
    id.len() <= ID_CHARS
        && id.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || marks.contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::runtimes;

    fn joined(id: &str, values: &Values<'_>) -> String {
        let row = runtimes::named(id).unwrap();
        arguments(&row.turn.unwrap(), values).unwrap().join(" ")
    }

    #[test]
    fn a_group_without_a_value_is_left_out() {
        let mut values = Values { cwd: "/w", prompt: "hi", ..Values::default() };
        let always = "-p --input-format stream-json --output-format stream-json --verbose --include-partial-messages \
                      --permission-prompt-tool stdio --disallowedTools AskUserQuestion --permission-mode";
        assert_eq!(joined("claude", &values), format!("{always} default"));
        values.session = Some("t1");
        values.model = Some("m");
        values.effort = Some("low");
        values.mode = Some("plan");
        assert_eq!(joined("claude", &values), format!("{always} plan --model m --effort low --resume t1"));
        let folders = ["/a".to_owned(), "/b".to_owned()];
        values.add_dirs = &folders;
        assert!(joined("claude", &values).contains(" --add-dir /a --add-dir /b"));
        values.session = None;
        values.fork = Some("t2");
        assert!(joined("claude", &values).ends_with(" --resume t2 --fork-session"));
        values.has_forms = true;
        assert!(!joined("claude", &values).contains("AskUserQuestion"));
    }

    #[test]
    fn a_prompt_is_an_argument_only_where_needed_and_never_an_option() {
        let values = Values { cwd: "/w", prompt: "--yolo", ..Values::default() };
        assert_eq!(joined("kimi", &values), "--output-format stream-json -p  --yolo");
        for id in ["claude", "codex", "gemini", "opencode", "qwen", "cursor-agent"] {
            assert!(!joined(id, &values).contains("--yolo"), "{id}");
        }
        let row = runtimes::named("kimi").unwrap().turn.unwrap();
        let long = "x".repeat(PROMPT_BYTES + 1);
        for prompt in ["a\0b", long.as_str()] {
            assert!(arguments(&row, &Values { cwd: "/w", prompt, ..Values::default() }).is_err());
        }
    }

    #[test]
    fn only_well_formed_ids_are_accepted() {
        for good in ["opus", "a/b:c@d", "claude-opus-4-5[1m]", "p/m#high"] {
            assert!(is_model(good), "{good}");
        }
        for bad in ["", "-m", "--yolo", "a b", "a\n", "a;b", "é", &"x".repeat(129)] {
            assert!(!is_model(bad), "{bad}");
        }
        assert!(
            is_session("ses_e236bbc7effeBOQYMz43iDj97m")
                && is_session("01a1dc85-e350-79a0-8c1a-d3e8fc33ff9b")
        );
        assert!(!is_session("--last") && !is_session("../x") && !is_session("a/b"));
    }
}
