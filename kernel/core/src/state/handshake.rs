//! Handshakes: the `initialize` params of clients, and the capabilities in a worker's answer to them.
//!
//! Clients whose `protocolVersion` and `clientCapabilities` (`capabilities` in ACP's second version) mean the same
//! have the same handshake and may share a worker. `clientInfo` and `_meta` make no difference, but for `bus/env`: the
//! variables that the client wants for its agent.

use std::sync::{Arc, OnceLock};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::limit::NAME_BYTES;
use crate::wire::nested::{member, text, whole};

/// The params of an `initialize`, compared by what they mean.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Handshake {
    /// The meaning of the params: equal for equal handshakes. Only the plain handshake has an empty key.
    #[serde(with = "serde_bytes")]
    key: Box<[u8]>,
    /// The params as the first client with this handshake wrote them.
    #[serde(with = "serde_bytes")]
    params: Box<[u8]>,
    /// What the params say, once they were read: they may be long, and one question of an agent asks for each guest.
    #[serde(skip)]
    said: OnceLock<Said>,
}

/// What the bus itself wants to know of the params.
#[derive(Clone, Copy, Debug)]
struct Said {
    version: Option<u64>,
    elicitation: bool,
    notices: bool,
}

impl PartialEq for Handshake {
    fn eq(&self, other: &Handshake) -> bool {
        // Most clients share one handshake, and to compare two empty keys costs some processors more than to scan a
        // message.
        std::ptr::eq(self, other) || self.key == other.key
    }
}

impl Handshake {
    /// The handshake of clients that never initialize.
    pub(crate) fn plain() -> Arc<Handshake> {
        Arc::new(Handshake { key: Box::default(), params: Box::default(), said: OnceLock::new() })
    }

    /// The handshake that an `initialize` with these params asks for.
    pub(crate) fn of(params: Option<&[u8]>) -> Arc<Handshake> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            protocol_version: Option<&'a RawValue>,
            client_capabilities: Option<Value>,
            capabilities: Option<Value>,
            #[serde(rename = "_meta")]
            meta: Option<Value>,
        }

        let params = params.unwrap_or(b"{}");
        let key = match serde_json::from_slice::<Params<'_>>(params) {
            Ok(known) => {
                let mut key = known.protocol_version.map_or("null", RawValue::get).to_owned();
                key.push(' ');
                write_sorted(&known.client_capabilities.unwrap_or(Value::Null), &mut key);
                if let Some(second) = known.capabilities.filter(|second| !is_nothing(second)) {
                    write_sorted(&second, &mut key);
                }
                let env = known.meta.as_ref().and_then(|meta| meta.get("bus/env"));
                if let Some(env) = env.filter(|env| !is_nothing(env)) {
                    key.push_str(" env ");
                    write_sorted(env, &mut key);
                }
                key.into_bytes()
            }
            // Params that are not an object are compared byte by byte.
            Err(_) => params.to_owned(),
        };
        Arc::new(Handshake { key: key.into(), params: params.into(), said: OnceLock::new() })
    }

    pub(crate) fn params(&self) -> &[u8] {
        &self.params
    }

    /// The bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.key.len() + self.params.len()
    }

    /// The version of the protocol that the client asked for. None: it said none.
    pub(crate) fn version(&self) -> Option<u64> {
        self.said().version
    }

    /// Whether the client asked for ACP's second version. The key begins with the version, so nothing is parsed.
    pub(crate) fn is_second_version(&self) -> bool {
        self.key.starts_with(b"2 ")
    }

    /// What the client calls itself, if it says so in these params.
    pub(crate) fn client_name(params: &[u8]) -> Option<String> {
        let info =
            [&b"clientInfo"[..], b"info"].into_iter().find_map(|key| member(params, whole(params), key));
        let name = text(params, info, b"name")?;
        serde_json::from_slice(name.of(params)).ok().filter(|name: &String| !name.is_empty())
    }

    /// Whether the client can answer elicitations.
    pub(crate) fn offers_elicitation(&self) -> bool {
        self.said().elicitation
    }

    /// Whether the client shows what it is told by a `notice`. In ACP's second version that needs no capability.
    pub(crate) fn takes_notices(&self) -> bool {
        self.is_second_version() || self.said().notices
    }

    fn said(&self) -> Said {
        *self.said.get_or_init(|| {
            let value: Value = serde_json::from_slice(&self.params).unwrap_or_default();
            let offers = |key: &&str| value[*key]["elicitation"].is_object();
            Said {
                version: value["protocolVersion"].as_u64(),
                elicitation: ["clientCapabilities", "capabilities"].iter().any(offers),
                notices: value["clientCapabilities"]["session"]["notices"].is_object(),
            }
        })
    }

    /// Whether its process can answer clients that never initialize: it has no variables of its own, which may lead
    /// the agent to other sessions, and speaks the first version.
    pub(crate) fn may_list_for_plain(&self) -> bool {
        !self.is_second_version() && !self.has_variables()
    }

    /// Whether it wants variables for the agent. Params that are not an object may mean anything.
    fn has_variables(&self) -> bool {
        match serde_json::from_slice::<Value>(&self.params) {
            Ok(Value::Object(params)) => {
                let meta = params.get("_meta").and_then(|meta| meta.get("bus/env"));
                meta.is_some_and(|env| !is_nothing(env))
            }
            _ => true,
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.key.is_empty()
    }

    /// The `initialize` request that gives a worker this handshake, with this JSON-RPC id.
    pub(crate) fn request(&self, wire: u64) -> Vec<u8> {
        let mut line =
            format!(r#"{{"jsonrpc":"2.0","id":{wire},"method":"initialize","params":"#).into_bytes();
        line.extend_from_slice(&self.params);
        line.push(b'}');
        line
    }
}

/// Whether a capability means the same as one that is left out: false, null, or an object of nothing else.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(members) => members.values().all(is_nothing),
        _ => false,
    }
}

/// Writes a value with the keys of its objects sorted, without the members that mean nothing.
fn write_sorted(value: &Value, out: &mut String) {
    match value {
        nothing if is_nothing(nothing) => out.push_str("null"),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|(_, member)| !is_nothing(member)).collect();
            members.sort_by_key(|(name, _)| *name);
            out.push('{');
            for (name, member) in members {
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                write_sorted(member, out);
                out.push(',');
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for element in elements {
                write_sorted(element, out);
                out.push(',');
            }
            out.push(']');
        }
        plain => out.push_str(&plain.to_string()),
    }
}

/// The capabilities of a worker that the bus makes use of.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentCapabilities {
    /// It supports `session/close`.
    pub(crate) close: bool,
    /// It supports `session/load`.
    pub(crate) loads: bool,
    /// How it can open a session that another process had. `None`: it cannot.
    pub(crate) reopen_by: Option<ReopenBy>,
    /// It speaks ACP's second version, where `session/resume` replays if asked to, and updates report the turn state.
    pub(crate) reports_turn_state: bool,
    /// Its messages may name other sessions of the client, such as those of subagents.
    pub(crate) nests: bool,
    /// It has declared what it can, and not `session/list`.
    #[serde(default)]
    pub(crate) lists_nothing: bool,
}

/// The method that opens a session in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReopenBy {
    /// `session/resume`.
    Resume,
    /// `session/load`, which replays the whole session.
    Load,
}

/// The name that the result of `initialize` gives the agent.
pub(crate) fn name_in_agent_info(result: &[u8]) -> Option<Arc<str>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Result {
        #[serde(default)]
        agent_info: Value,
        /// Where ACP's second version has it.
        #[serde(default)]
        info: Value,
    }
    let result: Result = serde_json::from_slice(result).ok()?;
    let name = result.agent_info["name"].as_str().or(result.info["name"].as_str())?;
    (!name.is_empty() && name.len() <= NAME_BYTES).then(|| name.into())
}

impl AgentCapabilities {
    /// The capabilities that the result of `initialize` declares.
    pub(crate) fn of(result: &[u8], handshake: &Handshake) -> AgentCapabilities {
        let result: Value = serde_json::from_slice(result).unwrap_or_default();
        if result["protocolVersion"].as_u64().is_some_and(|version| version >= 2) {
            let sessions = !result["capabilities"]["session"].is_null();
            let reopen_by = sessions.then_some(ReopenBy::Resume);
            return AgentCapabilities {
                close: sessions,
                loads: false,
                reopen_by,
                reports_turn_state: true,
                nests: true,
                lists_nothing: !sessions,
            };
        }
        let agent = &result["agentCapabilities"];
        let sessions = &agent["sessionCapabilities"];
        let loads = agent["loadSession"] == true;
        let reopen_by = if !sessions["resume"].is_null() {
            Some(ReopenBy::Resume)
        } else {
            loads.then_some(ReopenBy::Load)
        };
        // Agents name subagents only to clients that declare that they know them.
        let nests = memmem::find(&handshake.params, br#""subagents""#).is_some();
        AgentCapabilities {
            close: !sessions["close"].is_null(),
            loads,
            reopen_by,
            reports_turn_state: false,
            nests,
            lists_nothing: sessions["list"].is_null(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(params: &str) -> Arc<Handshake> {
        Handshake::of(Some(params.as_bytes()))
    }

    #[test]
    fn key_order_and_client_info_make_no_difference() {
        let one =
            of(r#"{"protocolVersion":1,"clientCapabilities":{"fs":{"a":true,"b":false},"terminal":true}}"#);
        let two = of(
            r#"{ "clientInfo":{"name":"x"}, "clientCapabilities":{"terminal":true,"fs":{"b":false,"a":true}},
            "_meta":{"y":1},"protocolVersion":1}"#,
        );
        assert_eq!(one, two);
    }

    #[test]
    fn other_versions_or_capabilities_make_another_handshake() {
        let all = [
            of(r#"{"protocolVersion":1}"#),
            of(r#"{"protocolVersion":2}"#),
            of(r#"{"protocolVersion":1,"clientCapabilities":{"terminal":true}}"#),
            of(r#"{"protocolVersion":1,"clientCapabilities":{"fs":["terminal",true]}}"#),
            of(r#"[1]"#),
            Handshake::plain(),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
        let none = of(r#"{"protocolVersion":1}"#);
        for capabilities in ["{}", "null", r#"{"terminal":false}"#, r#"{"fs":{"readTextFile":false}}"#] {
            assert_eq!(none, of(&format!(r#"{{"protocolVersion":1,"clientCapabilities":{capabilities}}}"#)));
        }
    }

    #[test]
    fn clients_that_want_other_variables_for_their_agent_share_no_worker() {
        let wants = |meta: &str| of(&format!(r#"{{"protocolVersion":1,"_meta":{meta}}}"#));
        let all = [wants(r#"{"bus/env":{"A":"1"}}"#), wants(r#"{"bus/env":{"A":"2"}}"#), wants("{}")];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
        assert_eq!(
            wants(r#"{"x":1,"bus/env":{"B":"2","A":"1"}}"#),
            wants(r#"{"bus/env":{"A":"1","B":"2"}}"#)
        );
        assert_eq!(wants(r#"{"bus/env":{}}"#), wants("7"));
    }

    #[test]
    fn what_the_params_say_is_read_once_and_again_after_a_save() {
        let takes_notices = r#"{"protocolVersion":1,"clientCapabilities":{"session":{"notices":{}}}}"#;
        for (params, version, elicitation, notices) in [
            (r#"{"protocolVersion":2,"capabilities":{"elicitation":{}}}"#, Some(2), true, true),
            (
                r#"{"protocolVersion":1,"clientCapabilities":{"elicitation":{"form":{}}}}"#,
                Some(1),
                true,
                false,
            ),
            (takes_notices, Some(1), false, true),
            (r#"{"protocolVersion":"1","clientCapabilities":{"elicitation":true}}"#, None, false, false),
            ("[1]", None, false, false),
        ] {
            let handshake = of(params);
            let saved = rmp_serde::to_vec_named(&*handshake).unwrap();
            let restored: Handshake = rmp_serde::from_slice(&saved).unwrap();
            for handshake in [&*handshake, &restored] {
                assert!(handshake.said.get().is_none(), "{params}");
                assert_eq!(handshake.version(), version, "{params}");
                assert!(handshake.said.get().is_some(), "{params}");
                assert_eq!(handshake.offers_elicitation(), elicitation, "{params}");
                assert_eq!(handshake.takes_notices(), notices, "{params}");
            }
            assert_eq!(rmp_serde::to_vec_named(&*handshake).unwrap(), saved, "it is not saved");
        }
        assert_eq!(Handshake::plain().version(), None);
    }

    #[test]
    fn the_params_reach_the_worker_unchanged() {
        let line = of(r#"{ "protocolVersion" : 1 }"#).request(7);
        assert_eq!(
            line,
            br#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{ "protocolVersion" : 1 }}"#
        );
    }

    #[test]
    fn capabilities_are_read_from_the_answer() {
        let of = |agent: &str| {
            AgentCapabilities::of(
                format!(r#"{{"agentCapabilities":{agent}}}"#).as_bytes(),
                &Handshake::plain(),
            )
        };
        let nothing = AgentCapabilities { lists_nothing: true, ..AgentCapabilities::default() };
        assert_eq!(of("{}"), nothing);
        assert_eq!(
            of(r#"{"sessionCapabilities":{"close":null,"resume":null,"list":null},"loadSession":false}"#),
            nothing
        );
        assert_eq!(of(r#"{"sessionCapabilities":{"list":{}}}"#), AgentCapabilities::default());
        assert!(of(r#"{"sessionCapabilities":{"close":{}}}"#).close);
        assert_eq!(of(r#"{"loadSession":true}"#).reopen_by, Some(ReopenBy::Load));
        assert_eq!(
            of(r#"{"loadSession":true,"sessionCapabilities":{"resume":{}}}"#).reopen_by,
            Some(ReopenBy::Resume)
        );
    }
}
