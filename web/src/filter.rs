//! What happens to a message of a client before the bus hears it: scope, audit, and what is swallowed.

use std::cell::RefCell;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::audit::{Questions, Who};
use crate::message::{Message, error_line, is_json, malformed_line};
use crate::scope::{Scope, needed};

/// -32061 of the bus: whoever may only look on has said something.
const READ_ONLY: i32 = -32_061;

pub(crate) struct Filter {
    pub(crate) who: Who,
    questions: RefCell<Questions>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The bus gets it.
    Pass,
    /// Nobody hears of it.
    Swallow,
    /// It is more than the token allows: the line that answers it.
    Refuse(String),
    /// The same of a notification or an answer. Over HTTP the line goes with the status; on a WebSocket nobody waits
    /// for one, and it is dropped.
    RefuseSilent(String),
}

impl Filter {
    pub(crate) fn new(who: Who) -> Filter {
        Filter { who, questions: RefCell::default() }
    }

    /// Looks at a line on its way to the bus.
    pub(crate) fn judge(&self, line: &str) -> Verdict {
        let Some(message) = Message::parse(line) else {
            // An object that the door does not understand is for the bus to judge, from those who may do everything
            // anyway. The rest never is: the bus closes a connection that begins with it.
            if self.who.scope == Scope::Admin && line.starts_with('{') && is_json(line) {
                return Verdict::Pass;
            }
            return Verdict::Refuse(malformed_line(line));
        };
        // Some clients keep the connection alive with this; no agent knows it.
        if message.method.as_deref() == Some("$/ping") && message.id.is_none() {
            return Verdict::Swallow;
        }
        let scope = needed(&message);
        if scope > self.who.scope {
            let why = format!("this token has the scope {}, and this needs {scope}", self.who.scope);
            // The id of an answer names a question of the agent, so it is not repeated.
            let id = message.id.filter(|_| message.is_request());
            let line = error_line(id, READ_ONLY, "read_only", &why);
            return if id.is_some() { Verdict::Refuse(line) } else { Verdict::RefuseSilent(line) };
        }
        if names_program(&message) {
            let why = "which program the bus becomes is not decided over the web";
            let line = error_line(message.id, READ_ONLY, "read_only", why);
            return if message.id.is_some() { Verdict::Refuse(line) } else { Verdict::RefuseSilent(line) };
        }
        if message.is_response() {
            self.questions.borrow_mut().log_answer(&message, &self.who);
        }
        Verdict::Pass
    }

    /// Looks at a line on its way to the client.
    pub(crate) fn heard(&self, line: &str) {
        self.questions.borrow_mut().note(line);
    }
}

/// Whether it is an upgrade to a program of its choice: whoever may choose it may run anything.
fn names_program(message: &Message<'_>) -> bool {
    if message.method.as_deref() != Some("_bus/upgrade") {
        return false;
    }
    let Some(params) = message.params.map(RawValue::get) else { return false };
    // A list would be taken for the fields in their order.
    let params: Option<Map<String, Value>> = serde_json::from_str(params).ok();
    params.is_none_or(|params| params.get("binary").is_some_and(|binary| !binary.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(scope: Scope) -> Filter {
        Filter::new(Who { token: "t".to_owned(), scope, from: "127.0.0.1".to_owned() })
    }

    #[test]
    fn more_than_the_scope_is_refused_whether_or_not_it_wants_an_answer() {
        let prompt = r#"{"jsonrpc":"2.0","id":5,"method":"session/prompt","params":{}}"#;
        let Verdict::Refuse(line) = filter(Scope::Approve).judge(prompt) else { panic!("refused") };
        assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":5,"error":{"code":-32061,"#), "{line}");
        assert!(line.contains(r#""reason":"read_only""#) && line.contains("needs control"), "{line}");
        assert_eq!(filter(Scope::Control).judge(prompt), Verdict::Pass);
        let (cancel, answer) = (r#"{"method":"session/cancel","params":{}}"#, r#"{"id":1,"result":{}}"#);
        let reload = r#"{"method":"_bus/reload"}"#;
        for (scope, line) in [(Scope::Approve, cancel), (Scope::Control, reload), (Scope::Observe, answer)] {
            let Verdict::RefuseSilent(line) = filter(scope).judge(line) else { panic!("refused: {line}") };
            assert!(line.starts_with(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32061,"#), "{line}");
        }
        assert_eq!(filter(Scope::Approve).judge(answer), Verdict::Pass);
        assert_eq!(filter(Scope::Admin).judge(r#"{"method":"$/ping"}"#), Verdict::Swallow);
    }

    #[test]
    fn nobody_chooses_the_program_of_the_bus_over_the_web() {
        let upgrade = |params: &str| format!(r#"{{"id":1,"method":"_bus/upgrade"{params}}}"#);
        for params in ["", r#","params":{}"#, r#","params":{"check":true,"binary":null}"#] {
            assert_eq!(filter(Scope::Admin).judge(&upgrade(params)), Verdict::Pass, "{params}");
            assert!(matches!(filter(Scope::Control).judge(&upgrade(params)), Verdict::Refuse(_)), "{params}");
        }
        for params in
            [r#"{"binary":"/b"}"#, r#"{"b\u0069nary":"/b"}"#, r#"["/b"]"#, r#"{"binary":null,"binary":"/b"}"#]
        {
            let line = upgrade(&format!(r#","params":{params}"#));
            let Verdict::Refuse(refused) = filter(Scope::Admin).judge(&line) else { panic!("{params}") };
            assert!(refused.contains("-32061") && refused.contains("over the web"), "{refused}");
        }
    }

    #[test]
    fn what_is_no_object_passes_for_nobody_and_odd_objects_for_admins_alone() {
        let cases = [("{", -32_700), ("oops", -32_700), ("[1,", -32_700), ("[]", -32_600), ("5", -32_600)];
        for (odd, code) in cases {
            for scope in [Scope::Control, Scope::Admin] {
                let Verdict::Refuse(line) = filter(scope).judge(odd) else { panic!("{scope} {odd}") };
                assert!(line.contains(&format!(r#""id":null,"error":{{"code":{code},"#)), "{odd}: {line}");
            }
        }
        let twice = r#"{"method":"_bus/status","method":"session/prompt","id":1}"#;
        assert_eq!(filter(Scope::Admin).judge(twice), Verdict::Pass);
        let Verdict::Refuse(line) = filter(Scope::Control).judge(twice) else { panic!("refused") };
        assert!(line.contains(r#""code":-32600,"#), "{line}");
    }
}
