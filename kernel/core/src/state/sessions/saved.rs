//! What a session keeps of what its agent said: to answer for it, and to open it again.

use super::Session;
use crate::id::PoolId;
use crate::limit::NESTED_BYTES;
use crate::state::backlog::HeldBytes;
use crate::state::handshake::ReopenBy;
use crate::state::opening::{Opening, Reopen, Setting, SettingKind, may_change};
use crate::wire::message::Message;
use crate::wire::nested::{member, text, whole, with_member, within};

impl Session {
    /// Keeps the result that opened it and, if its agent can open it in another process, what that takes.
    pub(crate) fn save_opening(
        &mut self,
        answer: Message<'_>,
        by: Option<ReopenBy>,
        pool: PoolId,
        params: Option<&[u8]>,
    ) {
        self.opening = answer.outcome().and_then(Opening::of);
        let folder = params.and_then(|params| Some(text(params, whole(params), b"cwd")?.of(params)));
        if let Some(folder) = folder {
            self.shown.set_folder(folder);
        }
        self.reopen = Reopen::of(by, pool, params, &self.agent_token);
    }

    /// The agent has set what a client asked for in a request with these params. Returns whether that is news.
    pub(crate) fn save_setting(&mut self, kind: SettingKind, params: &[u8], result: Option<&[u8]>) -> bool {
        let is_new = self.opening.as_mut().is_none_or(|opening| opening.set(kind, params, result));
        if let Some(reopen) = &mut self.reopen
            && let Some(params) = with_member(params, b"sessionId", &self.agent_token)
        {
            reopen.add(Setting { kind, params: params.into() });
        }
        is_new
    }

    /// Another process has opened the session with this result, and is told the settings.
    pub(crate) fn save_reopened(&mut self, result: Option<&[u8]>) {
        // Many agents tell nothing here. Then what the session was like before is the best that is known.
        let Some(mut opening) = result.and_then(Opening::of).filter(Opening::tells_settings) else { return };
        for setting in self.reopen.iter().flat_map(|reopen| &reopen.settings) {
            opening.set(setting.kind, &setting.params, None);
        }
        self.opening = Some(opening);
    }

    /// Follows an update that tells another mode, other options or another title. What most agents say most of the time
    /// is known to tell none.
    #[inline]
    pub(crate) fn note_update(&mut self, message: Message<'_>, held: &mut HeldBytes) {
        if !message.envelope.is_piece.0 {
            self.note_other_update(message, held);
        }
    }

    fn note_other_update(&mut self, message: Message<'_>, held: &mut HeldBytes) {
        let has_settings = self.opening.as_ref().is_some_and(Opening::tells_settings);
        if may_change(message, has_settings) {
            self.follow_update(message);
            self.count(held);
        }
    }

    #[cold]
    fn follow_update(&mut self, message: Message<'_>) {
        let line = message.line;
        let update = member(line, within(message.envelope.params, NESTED_BYTES), b"update");
        let Some(kind) = text(line, update, b"sessionUpdate") else { return };
        match kind.of(line) {
            br#""current_mode_update""# => {
                let Some(mode) = text(line, update, b"currentModeId") else { return };
                if let Some(opening) = &mut self.opening {
                    opening.replace(opening.nested(b"modes", b"currentModeId"), mode.of(line));
                }
                if let Some(reopen) = &mut self.reopen {
                    reopen.mode_changed(mode.of(line));
                }
            }
            br#""config_option_update""# => {
                let Some(options) = member(line, update, b"configOptions") else { return };
                if let Some(opening) = &mut self.opening {
                    opening.replace(opening.member(b"configOptions"), options.of(line));
                }
                if let Some(reopen) = &mut self.reopen {
                    reopen.options_changed(line, update);
                }
            }
            br#""available_commands_update""# => {
                if let (Some(opening), Some(update)) = (&mut self.opening, update) {
                    opening.set_commands(update.of(line));
                }
            }
            br#""session_info_update""# => {
                let Some(title) = member(line, update, b"title") else { return };
                self.shown.set_title(title.of(line));
            }
            _ => {}
        }
    }
}
