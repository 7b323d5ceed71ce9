//! The members of a message by which the writer decides what becomes of it. Nothing else of it is read.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// What a message is.
#[derive(Default, Deserialize)]
pub struct Kind<'a> {
    /// The request or the notification that it is.
    #[serde(borrow)]
    pub method: Option<Cow<'a, str>>,
    /// Its id, if it is a request or an answer.
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    update: Option<Update<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Option<Cow<'a, str>>,
}

impl<'a> Kind<'a> {
    /// Reads a message. `None`: its members are not what they are in ACP.
    pub fn of(message: &'a RawValue) -> Option<Kind<'a>> {
        serde_json::from_str(message.get()).ok()
    }

    /// The session that it names.
    pub fn session(&self) -> Option<&str> {
        self.params.as_ref()?.session_id.as_deref()
    }

    /// What a `session/update` tells.
    pub fn update(&self) -> Option<&str> {
        self.params.as_ref()?.update.as_ref()?.session_update.as_deref()
    }
}
