//! What the bus says on stderr, kept for the end of a failing test.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use super::PATIENCE;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Log {
    /// Everything that can be read there, for as long as there is something.
    pub(crate) fn of(mut stderr: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let shared = log.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count) = stderr.read(&mut chunk)
                && count > 0
            {
                let (text, more) = &*shared.0;
                text.lock().expect("nobody panics with it").extend_from_slice(&chunk[..count]);
                more.notify_all();
            }
        });
        log
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().expect("nobody panics with it")).into_owned()
    }

    /// Waits until it says this.
    pub(crate) fn has(&self, words: &str) {
        let deadline = Instant::now() + PATIENCE;
        let (text, more) = &*self.0;
        let mut text = text.lock().expect("nobody panics with it");
        loop {
            let said = String::from_utf8_lossy(&text).into_owned();
            if said.contains(words) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(text);
                panic!("the bus never logged {words:?} but\n{said}");
            }
            (text, _) = more.wait_timeout(text, left).expect("nobody panics with it");
        }
    }
}
