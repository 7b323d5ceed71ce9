//! Reads what a program writes to `run --input json`: one object a line.
//!
//! Pure: a line goes in, a command or the reason why it is none comes out.

use serde_json::{Value, json};

/// What the program wants.
#[derive(Debug, PartialEq)]
pub(super) enum Command {
    /// Content blocks of ACP.
    Prompt(Value),
    Cancel,
    /// The answer to the question of this id. `None`: no option is taken.
    Permission {
        id: String,
        option_id: Option<String>,
    },
    Change(Setting, String),
}

/// What can be changed between turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setting {
    Model,
    Mode,
}

impl Setting {
    pub(super) fn word(self) -> &'static str {
        match self {
            Setting::Model => "model",
            Setting::Mode => "mode",
        }
    }
}

pub(super) fn text_prompt(text: &str) -> Value {
    json!([{ "type": "text", "text": text }])
}

/// Returns `None` for an empty line.
pub(super) fn parse(line: &str) -> Result<Option<Command>, String> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let object = match serde_json::from_str(line) {
        Ok(object @ Value::Object(_)) => object,
        Ok(_) => return Err("not a JSON object".to_owned()),
        Err(error) => return Err(format!("not JSON: {error}")),
    };
    let text = |key: &str| match &object[key] {
        Value::String(text) if !text.trim().is_empty() => Ok(text.clone()),
        _ => Err(format!("`{key}` must be a text that is not empty")),
    };
    Ok(Some(match object["type"].as_str() {
        Some("prompt") => Command::Prompt(prompt(&object)?),
        Some("cancel") => Command::Cancel,
        Some("permission") => Command::Permission {
            id: text("id")?,
            option_id: match &object["optionId"] {
                Value::Null => None,
                _ => Some(text("optionId")?),
            },
        },
        Some("model") => Command::Change(Setting::Model, text("model")?),
        Some("mode") => Command::Change(Setting::Mode, text("mode")?),
        Some(other) => {
            let known = "prompt, cancel, permission, model and mode are known";
            return Err(format!("the type {other:?} is unknown: {known}"));
        }
        None => return Err("`type` is missing".to_owned()),
    }))
}

fn prompt(object: &Value) -> Result<Value, String> {
    match (&object["text"], &object["content"]) {
        (Value::String(text), Value::Null) if !text.trim().is_empty() => Ok(text_prompt(text)),
        (Value::Null, Value::Array(blocks)) if !blocks.is_empty() => {
            if blocks.iter().any(|block| !block["type"].is_string()) {
                return Err("each block of `content` must be an object with a `type`".to_owned());
            }
            Ok(Value::Array(blocks.clone()))
        }
        _ => Err("a prompt has either `text` or `content`, a list of content blocks, not empty".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_one_object() {
        let parsed = |line: &str| parse(line).unwrap().unwrap();
        let text = parsed(r#"{"type":"prompt","text":"two\nlines"}"#);
        assert_eq!(text, Command::Prompt(json!([{ "type": "text", "text": "two\nlines" }])));
        let blocks = json!([{ "type": "image", "mimeType": "image/png", "data": "AA==" }]);
        let image = json!({ "type": "prompt", "content": blocks });
        assert_eq!(parsed(&image.to_string()), Command::Prompt(blocks));
        assert_eq!(parsed(r#" {"type":"cancel","more":1} "#), Command::Cancel);
        let answer = |option: &str| parsed(&format!(r#"{{"type":"permission","id":"p1"{option}}}"#));
        let permission = |option_id: Option<&str>| Command::Permission {
            id: "p1".into(),
            option_id: option_id.map(Into::into),
        };
        assert_eq!(answer(r#","optionId":"yes""#), permission(Some("yes")));
        assert_eq!((answer(""), answer(r#","optionId":null"#)), (permission(None), permission(None)));
        assert_eq!(parsed(r#"{"type":"model","model":"m"}"#), Command::Change(Setting::Model, "m".into()));
        assert_eq!(parse("  "), Ok(None));
    }

    #[test]
    fn a_bad_line_is_told_why() {
        let cases = [
            ("hello", "not JSON"),
            ("[]", "not a JSON object"),
            ("{}", "`type` is missing"),
            (r#"{"type":"sing"}"#, "\"sing\" is unknown"),
            (r#"{"type":"prompt"}"#, "either `text` or `content`"),
            (r#"{"type":"prompt","text":" "}"#, "either `text` or `content`"),
            (r#"{"type":"prompt","text":"a","content":[{"type":"text"}]}"#, "either `text` or `content`"),
            (r#"{"type":"prompt","content":[7]}"#, "each block"),
            (r#"{"type":"permission","id":7}"#, "`id` must be a text"),
            (r#"{"type":"permission","id":"a","optionId":7}"#, "`optionId` must be a text"),
            (r#"{"type":"mode"}"#, "`mode` must be a text"),
        ];
        for (line, words) in cases {
            let why = parse(line).unwrap_err();
            assert!(why.contains(words), "{line}: {why}");
        }
    }
}
