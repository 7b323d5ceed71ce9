//! What a token may do: its scope, and which scope a message needs.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::message::Message;

/// Each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Looks on.
    Observe,
    /// Also answers the questions of agents.
    Approve,
    /// Also opens sessions and prompts.
    Control,
    /// Also commands pools and workers.
    Admin,
}

const NAMES: [(Scope, &str); 4] = [
    (Scope::Observe, "observe"),
    (Scope::Approve, "approve"),
    (Scope::Control, "control"),
    (Scope::Admin, "admin"),
];

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(scope, _)| scope == self).map_or("", |(_, name)| name);
        out.pad(name)
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Scope, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text).map(|(scope, _)| *scope);
        found.ok_or_else(|| format!("{text:?} is not observe, approve, control or admin"))
    }
}

/// The smallest scope that may send this message. Of the methods of the bus only those that are listed here are for
/// others than admins, so that a new one is closed until somebody decides about it.
pub(crate) fn needed(message: &Message<'_>) -> Scope {
    let Some(method) = message.method.as_deref() else { return Scope::Approve };
    match method {
        "initialize" | "$/cancel_request" | "session/detach" => Scope::Observe,
        "_bus/hello" | "_bus/status" | "_bus/sessions" | "_bus/trace" | "_bus/detach" | "_bus/bye" => {
            Scope::Observe
        }
        "_bus/attach" if is_observer(message) => Scope::Observe,
        "_bus/attach" | "session/attach" => Scope::Approve,
        "_bus/take" => Scope::Control,
        _ if method.starts_with("_bus/") => Scope::Admin,
        _ => Scope::Control,
    }
}

fn is_observer(message: &Message<'_>) -> bool {
    #[derive(Deserialize)]
    struct Attach<'a> {
        #[serde(borrow)]
        role: Option<Cow<'a, str>>,
    }

    // A list would be taken for the fields in their order.
    let params = message.params.map(RawValue::get).filter(|params| params.starts_with('{'));
    let attach = params.and_then(|params| serde_json::from_str::<Attach<'_>>(params).ok());
    attach.is_some_and(|attach| attach.role.as_deref() == Some("observe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed_by(line: &str) -> Scope {
        needed(&Message::parse(line).unwrap())
    }

    #[test]
    fn a_scope_includes_those_before_it_and_has_a_name() {
        assert!(
            Scope::Observe < Scope::Approve
                && Scope::Approve < Scope::Control
                && Scope::Control < Scope::Admin
        );
        for (scope, name) in NAMES {
            assert_eq!((scope.to_string().as_str(), name.parse()), (name, Ok(scope)));
        }
        assert!("root".parse::<Scope>().is_err());
    }

    #[test]
    fn every_method_needs_a_scope() {
        let cases = [
            (r#"{"id":1,"method":"_bus/status"}"#, Scope::Observe),
            (r#"{"id":1,"method":"initialize","params":{}}"#, Scope::Observe),
            (r#"{"id":1,"method":"_bus/attach","params":{"session":"s1","role":"observe"}}"#, Scope::Observe),
            (
                r#"{"id":1,"method":"_bus/attach","params":{"session":"s1","r\u006fle":"observe"}}"#,
                Scope::Observe,
            ),
            (r#"{"id":1,"method":"_bus/attach","params":{"session":"s1"}}"#, Scope::Approve),
            (r#"{"id":1,"method":"_bus/attach","params":{"role":"control"}}"#, Scope::Approve),
            (r#"{"id":1,"method":"_bus/attach","params":["observe"]}"#, Scope::Approve),
            (r#"{"id":1,"result":{"outcome":{"outcome":"selected","optionId":"a"}}}"#, Scope::Approve),
            (r#"{"id":1,"error":{"code":1,"message":"no"}}"#, Scope::Approve),
            (r#"{"id":1,"method":"_bus/take","params":{"session":"s1"}}"#, Scope::Control),
            (r#"{"id":1,"method":"session/prompt"}"#, Scope::Control),
            (r#"{"method":"session/cancel"}"#, Scope::Control),
            (r#"{"id":1,"method":"anything/else"}"#, Scope::Control),
            (r#"{"id":1,"method":"_bus/restart"}"#, Scope::Admin),
            (r#"{"id":1,"method":"_bus/anything"}"#, Scope::Admin),
        ];
        for (line, scope) in cases {
            assert_eq!(needed_by(line), scope, "{line}");
        }
    }
}
