//! `connect --attach`: the first `session/new` of the IDE is answered with a session that somebody else has open.
//!
//! The session is found by its label, and then loaded like any session, so that the IDE gets its modes and options,
//! hears what was said, and may become its owner. An IDE does not know the session before its `session/new` is
//! answered, so what was said is held back until then.

use rpc::write;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::errors::raw;
use super::session::session_id_in;
use crate::sessions;
use crate::status::list;
use crate::{Fault, Target};

/// A `session/new` of the IDE that becomes a join.
pub(super) struct Joining {
    /// The id of the IDE's request.
    pub(super) ide_id: Box<str>,
    /// The params of the IDE's request.
    params: Value,
    /// The IDE speaks version 2 of the protocol, in which `session/resume` replays.
    is_second: bool,
    /// Our own id of the request that is under way.
    own_id: String,
    /// Our own id of the `_bus/detach`. What was heard before its answer is told again by the load.
    detach_id: Option<String>,
    /// The id of the session with its quotes, once it is found.
    session: Option<Box<str>>,
    /// What was said in the session before its load was answered.
    held: Vec<Box<[u8]>>,
}

/// What an answer of the bus means for a join.
pub(super) enum Joined {
    /// The session is found, and these lines load it.
    Found(Vec<Vec<u8>>),
    /// The answer for the IDE, with what it hears next.
    Opened {
        result: Box<RawValue>,
        held: Vec<Box<[u8]>>,
    },
    Failed,
}

impl Joining {
    pub(super) fn new(
        ide_id: &RawValue,
        params: Option<&RawValue>,
        is_second: bool,
        own_id: String,
    ) -> Joining {
        let params = params.and_then(|params| serde_json::from_str(params.get()).ok());
        Joining {
            ide_id: ide_id.get().into(),
            params: params.filter(Value::is_object).unwrap_or_else(|| json!({})),
            is_second,
            own_id,
            detach_id: None,
            session: None,
            held: Vec::new(),
        }
    }

    /// The request that finds the session.
    pub(super) fn find_request(&self, label: &str) -> Vec<u8> {
        let params = json!({ "session": label, "role": "observe", "history": "none" });
        write::request(raw(&self.own_id), "_bus/attach", params)
    }

    pub(super) fn awaits(&self, id: &RawValue) -> bool {
        self.own_id == id.get()
    }

    /// Notes an answer to `_bus/detach`.
    pub(super) fn on_detached(&mut self, id: &RawValue) {
        if self.detach_id.as_deref() == Some(id.get()) {
            self.held.clear();
        }
    }

    /// Takes the answer to our own request. `id` makes ids of our own.
    pub(super) fn on_answer(&mut self, result: Option<&RawValue>, mut id: impl FnMut() -> String) -> Joined {
        let Some(result) = result else { return Joined::Failed };
        let Some(session) = &self.session else {
            let Some(session) = session_id_in(result) else { return Joined::Failed };
            self.session = Some(session.get().into());
            self.own_id = id();
            // As a guest that has only looked it would not be asked to own the session.
            let detach_id = id();
            let detach = write::request(raw(&detach_id), "_bus/detach", json!({ "session": session }));
            self.detach_id = Some(detach_id);
            return Joined::Found(vec![detach, self.load_request(session)]);
        };
        let mut opened: Value = serde_json::from_str(result.get()).unwrap_or_default();
        if !opened.is_object() {
            opened = json!({});
        }
        opened["sessionId"] = serde_json::from_str(session).unwrap_or_default();
        match RawValue::from_string(opened.to_string()) {
            Ok(result) => Joined::Opened { result, held: std::mem::take(&mut self.held) },
            Err(_) => Joined::Failed,
        }
    }

    fn load_request(&self, session: &RawValue) -> Vec<u8> {
        let mut params = self.params.clone();
        params["sessionId"] = serde_json::from_str(session.get()).unwrap_or_default();
        if self.is_second {
            params["replayFrom"] = json!({ "type": "start" });
        }
        let method = if self.is_second { "session/resume" } else { "session/load" };
        write::request(raw(&self.own_id), method, params)
    }

    /// Holds an update of the session back. False: it is none.
    pub(super) fn holds(&mut self, line: &[u8], method: &str, params: Option<&RawValue>) -> bool {
        let session = params.and_then(session_id_in).map(RawValue::get);
        let is_its =
            method == r#""session/update""# && session.is_some() && session == self.session.as_deref();
        if is_its {
            self.held.push(line.into());
        }
        is_its
    }
}

/// The pool of the session with this label. Fails if there is no such session. `None`: the bus does not tell.
pub fn pool_of(target: &Target, label: &str) -> Result<Option<String>, Fault> {
    let all = sessions::fetch(target)?;
    match list(&all).iter().find(|session| session["session"] == label) {
        Some(session) => Ok(session["pool"].as_str().map(str::to_owned)),
        None => Err(sessions::no_such(&all, label)),
    }
}
