//! The editor of the prompt line at a terminal: keys, history, a paste of many lines, completion.
//!
//! It can be withdrawn while the user types, so that something else is printed; what was typed comes back with it.

use std::borrow::Cow;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reedline::{
    ColumnarMenu, EditCommand, Emacs, FileBackedHistory, Highlighter, KeyCode, KeyModifiers, MenuBuilder,
    Prompt, PromptEditMode, PromptHistorySearch, Reedline, ReedlineEvent, ReedlineMenu, Signal, StyledText,
    default_emacs_keybindings,
};

use super::completion::Completion;
use crate::suspend::stop_until_continued;

/// What the history keeps: so many prompts, and about so many bytes.
const HISTORY_PROMPTS: usize = 1000;
const HISTORY_BYTES_MAX: u64 = 1 << 20;
/// How soon a withdrawal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MENU: &str = "completion";
/// What the engine calls Ctrl-Z. A line cannot be that: the engine gives it out apart from lines.
const SUSPEND: &str = "suspend";

/// What became of a line.
pub(super) enum Edited {
    Line(String),
    /// Ctrl-C: the line is cleared.
    Cleared,
    /// Ctrl-D on an empty line.
    Ended,
    Withdrawn,
}

pub(super) struct LineEditor {
    pub(super) colour: bool,
    /// Where prompts are kept for the next run.
    pub(super) history: Option<PathBuf>,
    pub(super) completion: Completion,
    /// Set to withdraw the editor.
    pub(super) withdraw: Arc<AtomicBool>,
    /// What the next prompt begins with. It is sent only by who presses enter.
    pub(super) filled_in: Arc<Mutex<String>>,
    engine: Option<Reedline>,
    /// What was typed when the editor was withdrawn.
    draft: String,
}

impl LineEditor {
    pub(super) fn new(
        colour: bool,
        history: Option<PathBuf>,
        completion: Completion,
        withdraw: Arc<AtomicBool>,
    ) -> LineEditor {
        let filled_in = Arc::default();
        LineEditor { colour, history, completion, withdraw, filled_in, engine: None, draft: String::new() }
    }

    /// Reads a prompt. The cursor stands on a line of its own before and after it, unless the editor was withdrawn.
    pub(super) fn read(&mut self) -> io::Result<Edited> {
        let mut engine = match self.engine.take() {
            Some(engine) => engine,
            None => self.engine(),
        };
        if let Ok(mut filled_in) = self.filled_in.lock() {
            self.draft.push_str(&std::mem::take(&mut *filled_in));
        }
        if !self.draft.is_empty() {
            engine.run_edit_commands(&[EditCommand::InsertString(std::mem::take(&mut self.draft))]);
        }
        let signal = loop {
            match engine.read_line(&Sign)? {
                // The line is there again when the user comes back.
                Signal::HostCommand(command) if command == SUSPEND => stop_until_continued(),
                signal => break signal,
            }
        };
        let edited = match signal {
            Signal::Success(line) => Edited::Line(line),
            Signal::CtrlC => Edited::Cleared,
            Signal::CtrlD => Edited::Ended,
            Signal::ExternalBreak(draft) => {
                // The engine would go on in the rows where it was, over what is printed meanwhile.
                self.draft = draft;
                return Ok(Edited::Withdrawn);
            }
            _ => Edited::Cleared,
        };
        // A run that is killed later has kept its prompts. A history that cannot be kept is no reason to stop.
        let _ = engine.sync_history();
        self.engine = Some(engine);
        Ok(edited)
    }

    fn engine(&self) -> Reedline {
        let mut keys = default_emacs_keybindings();
        let complete =
            ReedlineEvent::UntilFound(vec![ReedlineEvent::Menu(MENU.into()), ReedlineEvent::MenuNext]);
        keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, complete);
        keys.add_binding(KeyModifiers::SHIFT, KeyCode::BackTab, ReedlineEvent::MenuPrevious);
        // Ctrl-J ends a line as it does elsewhere, Alt-Enter begins another one of the same prompt.
        keys.add_binding(KeyModifiers::CONTROL, KeyCode::Char('j'), ReedlineEvent::Enter);
        keys.add_binding(
            KeyModifiers::CONTROL,
            KeyCode::Char('z'),
            ReedlineEvent::ExecuteHostCommand(SUSPEND.to_owned()),
        );
        let newline = ReedlineEvent::Edit(vec![EditCommand::InsertNewline]);
        keys.add_binding(KeyModifiers::ALT, KeyCode::Enter, newline);
        let menu = ColumnarMenu::default().with_name(MENU).with_marker("> ");
        let mut engine = Reedline::create()
            .with_ansi_colors(self.colour)
            .with_edit_mode(Box::new(Emacs::new(keys)))
            .with_highlighter(Box::new(Plain))
            .with_menu(ReedlineMenu::EngineCompleter(Box::new(menu)))
            .with_completer(Box::new(self.completion.clone()))
            .with_quick_completions(true)
            .with_partial_completions(true)
            .with_break_signal(self.withdraw.clone())
            .with_poll_interval(POLL_INTERVAL)
            // As shells do it: what begins with a space is not kept.
            .with_history_exclusion_prefix(Some(" ".to_owned()))
            .use_bracketed_paste(true);
        if let Some(path) = &self.history
            && private(path).and_then(|()| shorten(path)).is_ok()
            && let Ok(history) = FileBackedHistory::with_file(HISTORY_PROMPTS, path.clone())
        {
            engine = engine.with_history(Box::new(history));
        }
        engine
    }
}

/// Makes sure that the file is there and that only its owner can read it.
fn private(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Drops the oldest prompts of a file that has become too large.
fn shorten(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length <= HISTORY_BYTES_MAX {
        return Ok(());
    }
    file.seek(SeekFrom::Start(length - HISTORY_BYTES_MAX / 2))?;
    let mut kept = Vec::new();
    file.take(HISTORY_BYTES_MAX).read_to_end(&mut kept)?;
    let begin = kept.iter().position(|byte| *byte == b'\n').map_or(kept.len(), |at| at + 1);
    fs::write(path, &kept[begin..])
}

/// Shows what is typed in the colour of the terminal: any other is hard to read on some background.
struct Plain;

impl Highlighter for Plain {
    fn highlight(&self, line: &str, _: usize) -> StyledText {
        let mut text = StyledText::new();
        text.push((Default::default(), line.to_owned()));
        text
    }
}

/// The sign at the beginning of the line.
struct Sign;

impl Prompt for Sign {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        "".into()
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        "> ".into()
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        "  ".into()
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        format!("search {}> ", search.term).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_is_private_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/history");
        private(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        private(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        let line = "x".repeat(99) + "\n";
        fs::write(&path, line.repeat(HISTORY_BYTES_MAX as usize / 100 + 1)).unwrap();
        shorten(&path).unwrap();
        let kept = fs::read_to_string(&path).unwrap();
        assert!(
            kept.len() as u64 <= HISTORY_BYTES_MAX / 2 && kept.len().is_multiple_of(100),
            "{}",
            kept.len()
        );
        assert_eq!(mode(&path), 0o600);
    }
}
