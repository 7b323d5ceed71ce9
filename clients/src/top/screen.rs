//! The terminal in raw mode on its alternate screen. It is restored however `top` ends.

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
    pub(super) fn enter() -> io::Result<Screen> {
        // A release build aborts on a panic without unwinding, so only the hook can restore the terminal.
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            restore();
            previous(about);
        }));
        enable_raw_mode()?;
        let entered = execute!(stdout(), EnterAlternateScreen);
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        terminal.map(Screen).inspect_err(|_| restore())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // After a panic the hook has already restored it and printed the message.
        if !thread::panicking() {
            restore();
        }
    }
}

fn restore() {
    let mut stdout = stdout();
    // Fails only if the terminal is gone, and then nothing needs restoring.
    let _ = queue!(stdout, LeaveAlternateScreen, Show);
    let _ = stdout.flush();
    let _ = disable_raw_mode();
}
