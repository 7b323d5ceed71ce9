//! `top`: a live screen of a running bus.
//!
//! One thread asks the bus over one connection, one reads keys, one waits for signals; what they have to say comes
//! to the one that draws. The model is a value that knows nothing of them.

mod detail;
mod draw;
mod history;
mod model;
mod paint;
mod screen;
mod told;

#[cfg(test)]
mod picture;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::event::{self, Event};
use serde_json::Value;

use self::model::{Model, Step};
use self::paint::Paint;
use self::screen::Screen;
use crate::connect::{Bell, Ended};
use crate::wire::Wire;
use crate::{Fault, Way};

/// A bus answers this at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Between tries to find a bus that is gone, if nobody wants to look more often.
const TRY_AGAIN: Duration = Duration::from_secs(1);

pub struct Options {
    pub way: Way,
    pub interval: Duration,
    pub colour: bool,
}

/// What there is to hear for the one that draws.
enum News {
    Told(Look),
    Gone(String),
    Typed(Event),
    Signalled(i32),
    /// No key can be read any more.
    Deaf(io::Error),
}

/// What the bus said, when it was asked.
struct Look {
    status: Value,
    sessions: Option<Value>,
    at: Instant,
}

/// Until the user leaves. A bus that is not there at the beginning is a fault, one that goes away later comes back.
pub fn run(options: Options) -> Result<Ended, Fault> {
    let mut watch = Watch { wire: None, tells_sessions: true, way: options.way };
    let first = watch.look()?;
    let began = first.at;
    let (say, news) = channel();
    let failed = |error: io::Error| Fault::Failed(format!("the terminal cannot be used: {error}"));
    let bell = Bell::listen().map_err(|error| Fault::Failed(format!("no signal can be heard: {error}")))?;
    let mut screen = Screen::take().map_err(failed)?;
    start(say.clone(), move |say| watch.go_on(say, options.interval));
    start(say.clone(), read_keys);
    start(say, move |say| hear_signals(say, &bell));
    let mut model = Model::new(options.interval.as_secs_f64());
    let paint = Paint { colour: options.colour };
    model.hear(&first.status, first.sessions.as_ref(), 0.0);
    loop {
        screen.0.draw(|frame| draw::screen(frame, &model, paint)).map_err(failed)?;
        let Ok(first) = news.recv() else { return Ok(Ended::Done) };
        // What has come meanwhile needs no screen of its own.
        for one in std::iter::once(first).chain(news.try_iter()) {
            match one {
                News::Told(Look { status, sessions, at }) => {
                    model.hear(&status, sessions.as_ref(), at.duration_since(began).as_secs_f64());
                }
                News::Gone(why) => model.lose(why),
                News::Typed(Event::Key(key)) if model.press(key) == Step::Leave => return Ok(Ended::Done),
                News::Typed(_) => {}
                News::Signalled(signal) => return Ok(Ended::Signalled(signal)),
                News::Deaf(error) => return Err(failed(error)),
            }
        }
    }
}

/// These threads end with the program.
fn start(say: Sender<News>, work: impl FnOnce(&Sender<News>) + Send + 'static) {
    thread::spawn(move || work(&say));
}

fn read_keys(say: &Sender<News>) {
    loop {
        let heard = event::read();
        let is_last = heard.is_err();
        let sent = say.send(heard.map_or_else(News::Deaf, News::Typed));
        if is_last || sent.is_err() {
            return;
        }
    }
}

fn hear_signals(say: &Sender<News>, bell: &Bell) {
    loop {
        let _ = poll(&mut [PollFd::new(bell.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        if let Some(signal) = bell.heard()
            && say.send(News::Signalled(signal)).is_err()
        {
            return;
        }
    }
}

/// The connection over which the bus is looked at.
struct Watch {
    way: Way,
    wire: Option<Wire>,
    /// An older bus knows no such question.
    tells_sessions: bool,
}

impl Watch {
    fn go_on(mut self, say: &Sender<News>, interval: Duration) {
        loop {
            thread::sleep(if self.wire.is_some() { interval } else { interval.min(TRY_AGAIN) });
            let news = self.look().map_or_else(|fault| News::Gone(fault.to_string()), News::Told);
            if say.send(news).is_err() {
                return;
            }
        }
    }

    fn look(&mut self) -> Result<Look, Fault> {
        let looked = self.ask();
        if looked.is_err() {
            self.wire = None;
        }
        looked.map_err(|fault| match fault {
            Fault::Silent { .. } => Fault::Unreachable(fault.to_string()),
            fault => fault,
        })
    }

    fn ask(&mut self) -> Result<Look, Fault> {
        let wire = match &mut self.wire {
            Some(wire) => wire,
            none => {
                let mut wire = Wire::connect(&self.way, Some(TIMEOUT))?;
                wire.greet("stdio-bus top", None)?;
                self.tells_sessions = true;
                none.insert(wire)
            }
        };
        wire.begin_to_wait();
        let status = wire.ask("_bus/status", None)?;
        let at = Instant::now();
        let sessions = match self.tells_sessions.then(|| wire.ask("_bus/sessions", None)) {
            Some(Err(Fault::Refused(_))) => {
                self.tells_sessions = false;
                None
            }
            sessions => sessions.transpose()?,
        };
        let read = |told: &serde_json::value::RawValue| serde_json::from_str(told.get()).unwrap_or_default();
        Ok(Look { status: read(&status), sessions: sessions.as_deref().map(read), at })
    }
}
