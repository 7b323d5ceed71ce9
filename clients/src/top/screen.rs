//! The terminal while `top` has it: raw, on its second page. However this ends, it is given back as it was.

use std::io::{self, Stdout, Write, stdout};
use std::{panic, thread};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{execute, queue};

pub(super) struct Screen(pub(super) Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    pub(super) fn take() -> io::Result<Screen> {
        // A panic of a released program unwinds nothing, so the hook is all that can give the terminal back.
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            give_back();
            usual(about);
        }));
        enable_raw_mode()?;
        let entered = execute!(stdout(), EnterAlternateScreen);
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        terminal.map(Screen).inspect_err(|_| give_back())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // After a panic it was given back already, and the message stands on it.
        if !thread::panicking() {
            give_back();
        }
    }
}

fn give_back() {
    let mut stdout = stdout();
    // If the terminal is gone, there is nobody to give it back to.
    let _ = queue!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}
