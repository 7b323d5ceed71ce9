//! The IDE's sessions: what opened each, as far as it is needed to open it again.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::message::{Message, parts, present};

/// A session that a request in flight may open.
pub(super) struct Opening {
    /// Where the request names it; where it does not, the answer will.
    id: Option<Box<str>>,
    /// The params beside the id, as they were spelled: `"cwd":..,"mcpServers":..`.
    place: String,
    /// The pool at the top of the message.
    pool: Option<Box<str>>,
}

pub(super) struct Session {
    /// The bus's name for it, with its quotes.
    pub(super) id: Box<str>,
    opening: Opening,
}

/// The params that open a session. What else stands in them is for that one request.
#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "sessionId", deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    cwd: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "mcpServers", deserialize_with = "present")]
    mcp_servers: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "additionalDirectories", deserialize_with = "present")]
    additional_directories: Option<&'a RawValue>,
    /// The pool of the session may be named here, and agents read their own options from it.
    #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
    meta: Option<&'a RawValue>,
}

impl Opening {
    /// None: the message does not open a session.
    pub(super) fn of(message: &Message<'_>) -> Option<Opening> {
        let names_it = match message.method?.get() {
            r#""session/new""# | r#""session/fork""# => false,
            r#""session/load""# | r#""session/resume""# => true,
            _ => return None,
        };
        let params = parts::<Params<'_>>(message.params?.get().as_bytes())?;
        let parts = [
            ("cwd", params.cwd),
            ("mcpServers", params.mcp_servers),
            ("additionalDirectories", params.additional_directories),
            ("_meta", params.meta),
        ];
        let spelled =
            parts.iter().filter_map(|(name, part)| Some(format!(r#","{name}":{}"#, part.as_ref()?)));
        Some(Opening {
            id: if names_it { Some(params.id?.get().into()) } else { None },
            place: spelled.collect(),
            pool: message.pool.map(|pool| pool.get().into()),
        })
    }

    /// The session that this result has opened.
    pub(super) fn opened(mut self, result: &RawValue) -> Option<Session> {
        let id = self.id.take().or_else(|| named_in(result).map(|id| id.get().into()))?;
        Some(Session { id, opening: self })
    }
}

impl Session {
    /// A request, with its newline, that takes it up again.
    pub(super) fn take_up(&self, method: &str, id: &str) -> String {
        let Opening { place, pool, .. } = &self.opening;
        let pool = pool.as_ref().map_or_else(String::new, |pool| format!(r#","pool":{pool}"#));
        let params = format!(r#"{{"sessionId":{}{place}}}"#, self.id);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}{pool}}}{}"#, '\n')
    }
}

/// The `sessionId` in params or in a result.
pub(super) fn named_in(part: &RawValue) -> Option<&RawValue> {
    parts::<Params<'_>>(part.get().as_bytes())?.id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(line: &str) -> Option<Opening> {
        Opening::of(&Message::scan(line.as_bytes()).unwrap())
    }

    fn opened(line: &str, result: &str) -> Option<Session> {
        opening(line)?.opened(&serde_json::from_str::<Box<RawValue>>(result).unwrap())
    }

    #[test]
    fn a_session_is_taken_up_where_it_was_opened() {
        let line = r#"{"id":1,"pool":"p","method":"session/new","params":{"mcpServers":[ {"name":"m"} ],"x":1,
            "_meta":{"bus/pool":"q"},"additionalDirectories":["/b"],"cwd":"/a"}}"#;
        let session = opened(line, r#"{"sessionId":"t.s","modes":{}}"#).unwrap();
        assert_eq!(
            session.take_up("session/resume", "7"),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"session/resume","params":{"sessionId":"t.s","cwd":"/a","#,
                r#""mcpServers":[ {"name":"m"} ],"additionalDirectories":["/b"],"_meta":{"bus/pool":"q"}},"#,
                r#""pool":"p"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn one_that_is_loaded_keeps_its_name_and_a_fork_gets_a_new_one() {
        let params = r#""params":{"sessionId":"old","cwd":"/"}"#;
        for (method, id) in [("load", "old"), ("resume", "old"), ("fork", "new")] {
            let line = format!(r#"{{"id":1,"method":"session/{method}",{params}}}"#);
            assert_eq!(&*opened(&line, r#"{"sessionId":"new"}"#).unwrap().id, format!("{id:?}"), "{method}");
        }
    }

    #[test]
    fn what_opens_nothing_is_none() {
        assert!(opening(r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#).is_none());
        assert!(opening(r#"{"id":1,"method":"session/load","params":{"cwd":"/"}}"#).is_none());
        assert!(opening(r#"{"id":1,"method":"session/new","params":[]}"#).is_none());
        assert!(opened(r#"{"id":1,"method":"session/new","params":{}}"#, "null").is_none());
    }
}
