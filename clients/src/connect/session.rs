//! The IDE's sessions, with the params that are needed to reopen them.

use rpc::Parts;
use rpc::message::{members, present};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A session that a pending request may open.
pub(super) struct Opening {
    /// `None`: the answer will contain it.
    id: Option<Box<str>>,
    /// The params beside the id, verbatim: `,"cwd":..,"mcpServers":..`.
    params: String,
    /// The members of `_meta`, verbatim, up to and with its closing brace.
    meta: Option<Box<str>>,
    /// The `pool` member at the top of the message.
    pool: Option<Box<str>>,
}

pub(super) struct Session {
    /// The id on the bus, with its quotes.
    pub(super) id: Box<str>,
    opening: Opening,
}

/// The params worth repeating. All others concern only the request itself.
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
    /// May name the pool, and agents read their own options from it.
    #[serde(borrow, default, rename = "_meta", deserialize_with = "present")]
    meta: Option<&'a RawValue>,
}

impl Opening {
    /// Returns `None` if the message opens no session.
    pub(super) fn of(parts: &Parts<'_>) -> Option<Opening> {
        let id_is_in_params = match parts.method?.get() {
            r#""session/new""# | r#""session/fork""# => false,
            r#""session/load""# | r#""session/resume""# => true,
            _ => return None,
        };
        let params = members::<Params<'_>>(parts.params?.get().as_bytes())?;
        let mut kept = String::new();
        for (name, value) in [
            ("cwd", params.cwd),
            ("mcpServers", params.mcp_servers),
            ("additionalDirectories", params.additional_directories),
        ] {
            if let Some(value) = value {
                kept += &format!(r#","{name}":{value}"#);
            }
        }
        Some(Opening {
            id: if id_is_in_params { Some(params.id?.get().into()) } else { None },
            params: kept,
            meta: params.meta.and_then(members_of),
            pool: parts.pool.map(|pool| pool.get().into()),
        })
    }

    /// The session that this result has opened.
    pub(super) fn opened(mut self, result: &RawValue) -> Option<Session> {
        let id = self.id.take().or_else(|| session_id_in(result).map(|id| id.get().into()))?;
        Some(Session { id, opening: self })
    }
}

impl Session {
    /// The request line that reopens the session, without a newline.
    pub(super) fn reopen_request(&self, method: &str, id: &str) -> String {
        let Opening { params, pool, .. } = &self.opening;
        let pool = pool.as_ref().map_or_else(String::new, |pool| format!(r#","pool":{pool}"#));
        // What the agent tells again the IDE knows already.
        let meta = match &self.opening.meta {
            Some(meta) => format!(r#"{{"bus/replay":false,{meta}"#),
            None => r#"{"bus/replay":false}"#.to_owned(),
        };
        let params = format!(r#"{{"sessionId":{}{params},"_meta":{meta}}}"#, self.id);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}{pool}}}"#)
    }
}

/// The session that a request is about, unless it opens, forks or deletes one.
pub(super) fn is_about_open_session<'a>(parts: &Parts<'a>) -> Option<&'a RawValue> {
    match parts.method?.get() {
        r#""session/load""# | r#""session/resume""# | r#""session/fork""# | r#""session/delete""# => None,
        _ => session_id_in(parts.params?),
    }
}

/// What follows the opening brace of an object that has members.
fn members_of(object: &RawValue) -> Option<Box<str>> {
    let members = object.get().strip_prefix('{')?.trim_ascii_start();
    (!members.starts_with('}')).then(|| members.into())
}

/// The `sessionId` in params or in a result.
pub(super) fn session_id_in(part: &RawValue) -> Option<&RawValue> {
    members::<Params<'_>>(part.get().as_bytes())?.id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(line: &str) -> Option<Opening> {
        Opening::of(&Parts::parse(line.as_bytes()).unwrap())
    }

    fn opened(line: &str, result: &str) -> Option<Session> {
        opening(line)?.opened(&serde_json::from_str::<Box<RawValue>>(result).unwrap())
    }

    #[test]
    fn a_session_is_reopened_with_the_params_that_opened_it() {
        let line = r#"{"id":1,"pool":"p","method":"session/new","params":{"mcpServers":[ {"name":"m"} ],"x":1,
            "_meta":{"bus/pool":"q"},"additionalDirectories":["/b"],"cwd":"/a"}}"#;
        let session = opened(line, r#"{"sessionId":"t.s","modes":{}}"#).unwrap();
        assert_eq!(
            session.reopen_request("session/resume", "7"),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"session/resume","params":{"sessionId":"t.s","cwd":"/a","#,
                r#""mcpServers":[ {"name":"m"} ],"additionalDirectories":["/b"],"#,
                r#""_meta":{"bus/replay":false,"bus/pool":"q"}},"pool":"p"}"#
            )
        );
    }

    #[test]
    fn a_loaded_session_keeps_its_id_and_a_fork_gets_a_new_one() {
        let params = r#""params":{"sessionId":"old","cwd":"/"}"#;
        for (method, id) in [("load", "old"), ("resume", "old"), ("fork", "new")] {
            let line = format!(r#"{{"id":1,"method":"session/{method}",{params}}}"#);
            assert_eq!(&*opened(&line, r#"{"sessionId":"new"}"#).unwrap().id, format!("{id:?}"), "{method}");
        }
    }

    #[test]
    fn other_messages_open_no_session() {
        assert!(opening(r#"{"id":1,"method":"session/prompt","params":{"sessionId":"s"}}"#).is_none());
        assert!(opening(r#"{"id":1,"method":"session/load","params":{"cwd":"/"}}"#).is_none());
        assert!(opening(r#"{"id":1,"method":"session/new","params":[]}"#).is_none());
        assert!(opened(r#"{"id":1,"method":"session/new","params":{}}"#, "null").is_none());
    }
}
