//! What is kept of a session to answer for it and to open it again: the result that opened it, in step with its mode
//! and options, and the params and settings for another process.
//!
//! All of it is said again byte by byte as it came, but for the values that have changed.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use memchr::memmem::{self, Finder};
use serde::{Deserialize, Serialize};

use crate::id::PoolId;
use crate::limit::{NESTED_BYTES, OPENING_BYTES, SETTINGS, TITLE_LINE_BYTES};
use crate::state::handshake::ReopenBy;
use crate::wire::message::Message;
use crate::wire::nested::{elements, member, text, whole, with_member, without_member};
use crate::wire::scan::Span;
use crate::wire::splice::{Edit, splice};

/// What a client sets in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SettingKind {
    Mode,
    Model,
    Option,
}

impl SettingKind {
    /// What a request with this method sets.
    pub(crate) fn of(method: &[u8]) -> Option<SettingKind> {
        Some(match method {
            b"session/set_mode" => SettingKind::Mode,
            b"session/set_model" => SettingKind::Model,
            b"session/set_config_option" => SettingKind::Option,
            _ => return None,
        })
    }

    pub(crate) fn method(self) -> &'static [u8] {
        match self {
            SettingKind::Mode => b"session/set_mode",
            SettingKind::Model => b"session/set_model",
            SettingKind::Option => b"session/set_config_option",
        }
    }

    /// The update that tells others of it, if the protocol has one.
    pub(crate) fn update(self, params: &[u8], result: Option<&[u8]>) -> Option<Vec<u8>> {
        match self {
            SettingKind::Mode => {
                let mode = text(params, whole(params), b"modeId")?.of(params);
                Some(
                    [&br#"{"sessionUpdate":"current_mode_update","currentModeId":"#[..], mode, b"}"].concat(),
                )
            }
            SettingKind::Option => {
                let options = member(result?, whole(result?), b"configOptions")?.of(result?);
                let start = &br#"{"sessionUpdate":"config_option_update","configOptions":"#[..];
                Some([start, options, b"}"].concat())
            }
            SettingKind::Model => None,
        }
    }

    /// The member of its request's params that holds the value.
    fn value_key(self) -> &'static [u8] {
        match self {
            SettingKind::Mode => b"modeId",
            SettingKind::Model => b"modelId",
            SettingKind::Option => b"value",
        }
    }
}

/// The result that opened a session, without the session's id. It tells the mode and the options of now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opening {
    #[serde(with = "serde_bytes")]
    result: Box<[u8]>,
    /// It tells a mode, a model or options, which may change.
    tells_settings: bool,
    /// The update with which the agent told its commands last.
    #[serde(default, with = "serde_bytes")]
    commands: Option<Box<[u8]>>,
}

impl Opening {
    /// `None`: it is too long to keep.
    pub(crate) fn of(result: &[u8]) -> Option<Opening> {
        if result.len() > OPENING_BYTES {
            return None;
        }
        let result = without_member(result, b"sessionId").unwrap_or_else(|| result.to_vec());
        let result: Box<[u8]> = without_turn(&result).unwrap_or(result).into();
        let tells = |key: &[u8]| member(&result, whole(&result), key).is_some();
        let tells_settings = tells(b"modes") || tells(b"models") || tells(b"configOptions");
        Some(Opening { result, tells_settings, commands: None })
    }

    pub(crate) fn result(&self) -> &[u8] {
        &self.result
    }

    pub(crate) fn commands(&self) -> Option<&[u8]> {
        self.commands.as_deref()
    }

    /// The agent tells its commands. More than is kept of a session are not told again.
    pub(crate) fn set_commands(&mut self, update: &[u8]) {
        self.commands = Some(update).filter(|update| update.len() <= OPENING_BYTES).map(Into::into);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.result.len() + self.commands().map_or(0, <[u8]>::len)
    }

    pub(crate) fn tells_settings(&self) -> bool {
        self.tells_settings
    }

    /// A request with these params has set something. `result`: the agent's answer, which may tell all options. Returns
    /// whether the session is not as it was, as far as that is known.
    pub(crate) fn set(&mut self, kind: SettingKind, params: &[u8], result: Option<&[u8]>) -> bool {
        if kind == SettingKind::Option
            && let Some(result) = result
            && let Some(options) = member(result, whole(result), b"configOptions")
        {
            return self.replace(self.member(b"configOptions"), options.of(result));
        }
        let Some(value) = member(params, whole(params), kind.value_key()) else { return false };
        let at = match kind {
            SettingKind::Mode => self.nested(b"modes", b"currentModeId"),
            SettingKind::Model => self.nested(b"models", b"currentModelId"),
            SettingKind::Option => {
                let all = elements(&self.result, whole(&self.result), b"configOptions");
                current_value(&self.result, &all, option_id(params))
            }
        };
        self.replace(at, value.of(params))
    }

    pub(crate) fn member(&self, key: &[u8]) -> Option<Span> {
        member(&self.result, whole(&self.result), key)
    }

    pub(crate) fn nested(&self, key: &[u8], inner: &[u8]) -> Option<Span> {
        member(&self.result, self.member(key), inner)
    }

    /// Returns whether that changes anything. It does where it is not known what stood there.
    pub(crate) fn replace(&mut self, at: Option<Span>, with: &[u8]) -> bool {
        let Some(at) = at else { return true };
        if at.of(&self.result) == with {
            return false;
        }
        let mut result = Vec::with_capacity(self.result.len() + with.len());
        splice(&mut result, &self.result, &[Edit::new(at, with)]);
        if result.len() > OPENING_BYTES {
            // What cannot be told as it is now is not told.
            (result, self.tells_settings) = (b"{}".to_vec(), false);
        }
        self.result = result.into();
        true
    }
}

/// How a session is opened in another process, and the settings that the owner had made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reopen {
    pub(crate) by: ReopenBy,
    pub(crate) pool: PoolId,
    /// The node that has it. No other can open it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node: Option<Arc<str>>,
    /// The params that opened it, with the agent's session id.
    #[serde(with = "serde_bytes")]
    pub(crate) params: Box<[u8]>,
    pub(crate) settings: Vec<Setting>,
}

/// A mode or an option as the owner set it last.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setting {
    pub(crate) kind: SettingKind,
    /// The params of the request, with the agent's session id.
    #[serde(with = "serde_bytes")]
    pub(crate) params: Box<[u8]>,
}

impl Setting {
    /// Whether the other one sets the same.
    fn replaces(&self, other: &Setting) -> bool {
        self.kind == other.kind && option_id(&self.params) == option_id(&other.params)
    }
}

impl Reopen {
    /// `None`: the agent cannot open it, or the params are too long to keep.
    pub(crate) fn of(
        by: Option<ReopenBy>,
        pool: PoolId,
        params: Option<&[u8]>,
        agent_token: &[u8],
    ) -> Option<Reopen> {
        let params = params.filter(|params| params.len() <= OPENING_BYTES)?;
        // A replay was for the client that opened the session. It is not repeated when the bus opens it again.
        let params = without_member(params, b"replayFrom")?;
        let params = with_member(&params, b"sessionId", agent_token)?.into();
        Some(Reopen { by: by?, pool, node: None, params, settings: Vec::new() })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.params.len() + self.settings.iter().map(|setting| setting.params.len()).sum::<usize>()
    }

    pub(crate) fn add(&mut self, setting: Setting) {
        self.settings.retain(|old| !setting.replaces(old));
        if self.settings.len() < SETTINGS {
            self.settings.push(setting);
            self.keep_settings_short();
        }
    }

    /// Forgets the settings that do not fit into `OPENING_BYTES` together, the newest first.
    fn keep_settings_short(&mut self) {
        let mut bytes = 0;
        self.settings.retain(|setting| {
            bytes += setting.params.len();
            bytes <= OPENING_BYTES
        });
    }

    /// The agent has changed the mode by itself. That is the mode to set again, where one was set.
    pub(crate) fn mode_changed(&mut self, mode: &[u8]) {
        for setting in self.settings.iter_mut().filter(|setting| setting.kind == SettingKind::Mode) {
            if let Some(params) = with_member(&setting.params, b"modeId", mode) {
                setting.params = params.into();
            }
        }
        self.keep_settings_short();
    }

    /// The agent tells all options. Those that were set keep the value that they have now.
    pub(crate) fn options_changed(&mut self, line: &[u8], update: Option<Span>) {
        let all = elements(line, update, b"configOptions");
        for setting in self.settings.iter_mut().filter(|setting| setting.kind == SettingKind::Option) {
            let value = current_value(line, &all, option_id(&setting.params));
            if let Some(params) = value.and_then(|at| with_member(&setting.params, b"value", at.of(line))) {
                setting.params = params.into();
            }
        }
        self.keep_settings_short();
    }
}

/// The member of `_meta` that tells of a running turn.
const TURN: &[u8] = b"bus/turn";

/// This result, which also tells that a turn runs in the session.
pub(crate) fn with_turn(result: &[u8]) -> Cow<'_, [u8]> {
    let meta = member(result, whole(result), b"_meta").map_or(&b"{}"[..], |meta| meta.of(result));
    let told = with_member(meta, TURN, br#""running""#).and_then(|meta| with_member(result, b"_meta", &meta));
    told.map_or(Cow::Borrowed(result), Cow::Owned)
}

/// Whether the result of a bus tells that a turn runs in the session.
pub(crate) fn tells_turn(result: &[u8]) -> bool {
    text(result, member(result, whole(result), b"_meta"), TURN).is_some()
}

/// This result, if it tells of a turn, as it is without it.
fn without_turn(result: &[u8]) -> Option<Vec<u8>> {
    let meta = member(result, whole(result), b"_meta").filter(|_| tells_turn(result))?;
    with_member(result, b"_meta", &without_member(meta.of(result), TURN)?)
}

/// Whether this update can tell another title, other commands or, in a session that has any, another mode or other
/// options. Nearly all agents begin their updates with the kind, so that most cost one look.
pub(crate) fn may_change(message: Message<'_>, has_settings: bool) -> bool {
    const USUAL: &[u8] = br#","update":{"sessionUpdate":""#;
    static TITLE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""session_info_update""#));
    static MODE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""current_mode_update""#));
    static COMMANDS: LazyLock<Finder<'static>> =
        LazyLock::new(|| Finder::new(br#""available_commands_update""#));
    static OPTION: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(br#""config_option_update""#));

    let behind = message.envelope.session.and_then(|span| message.line.get(span.end as usize..));
    if let Some(kind) = behind.and_then(|behind| behind.strip_prefix(USUAL)) {
        return match kind.first() {
            Some(b's') => true,
            Some(b'c') => has_settings,
            Some(b'a') => kind.starts_with(b"available"),
            _ => false,
        };
    }
    let finds = |what: &Finder<'_>| message.line.len() <= NESTED_BYTES && what.find(message.line).is_some();
    let may_set = has_settings && (finds(&MODE) || finds(&OPTION));
    may_set || message.line.len() <= TITLE_LINE_BYTES && finds(&TITLE) || finds(&COMMANDS)
}

/// Whether this notification tells what is now. Everything else that an agent says while the bus itself opens a
/// session again is history, which the client knows.
pub(crate) fn tells_present(message: Message<'_>) -> bool {
    let line = message.line;
    // All of these end alike, and most of a history does not.
    if line.len() > NESTED_BYTES
        || memmem::find(line, br#"_update""#).is_none() && memmem::find(line, br#""notice""#).is_none()
    {
        return false;
    }
    let update = member(line, message.envelope.params, b"update");
    let kind = text(line, update, b"sessionUpdate").map(|kind| kind.of(line));
    matches!(
        kind,
        Some(
            br#""state_update""#
                | br#""available_commands_update""#
                | br#""session_info_update""#
                | br#""usage_update""#
                | br#""notice""#
        )
    )
}

/// Where the current value of this one of all options stands.
fn current_value(line: &[u8], all: &[Span], id: Option<&[u8]>) -> Option<Span> {
    let is_meant = |option: &&Span| text(line, Some(**option), b"id").map(|at| at.of(line)) == id;
    member(line, all.iter().find(is_meant).copied(), b"currentValue")
}

/// Which option a request sets, as it is spelled.
fn option_id(params: &[u8]) -> Option<&[u8]> {
    text(params, whole(params), b"configId").map(|span| span.of(params))
}
