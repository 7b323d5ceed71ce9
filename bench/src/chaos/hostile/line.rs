//! The lines that a client of the hostile run is sent, as far as it looks into them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    pub(super) method: Option<&'a str>,
    #[serde(borrow)]
    pub(super) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Params<'a> {
    pub(super) session_id: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    pub(super) event: Option<&'a str>,
    #[serde(borrow)]
    pub(super) update: Option<Update<'a>>,
    #[serde(borrow)]
    pub(super) tool_call: Option<Titled<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Update<'a> {
    pub(super) session_update: Option<&'a str>,
    #[serde(borrow)]
    pub(super) content: Option<Content<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Content<'a> {
    // The script of a prompt is escaped.
    #[serde(borrow)]
    pub(super) text: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
pub(super) struct Titled<'a> {
    pub(super) title: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnResult<'a> {
    pub(super) stop_reason: Option<&'a str>,
    #[serde(borrow, rename = "_meta")]
    pub(super) meta: Option<TurnMeta<'a>>,
}

#[derive(Deserialize)]
pub(super) struct TurnMeta<'a> {
    pub(super) text: Option<&'a str>,
    pub(super) fault: Option<&'a str>,
}
