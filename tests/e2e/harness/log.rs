//! The stderr of the bus, kept for the message of a failing test.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Instant;

use super::waiting::PATIENCE;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<(Mutex<Vec<u8>>, Condvar)>);

impl Log {
    /// Collects all that can be read there.
    pub(crate) fn of(mut stderr: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let shared = log.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count) = stderr.read(&mut chunk)
                && count > 0
            {
                let (text, more) = &*shared.0;
                text.lock()
                    .expect("no thread panics while it holds the lock")
                    .extend_from_slice(&chunk[..count]);
                more.notify_all();
            }
        });
        log
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().expect("no thread panics while it holds the lock"))
            .into_owned()
    }

    /// Waits until the log contains this.
    pub(crate) fn has(&self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        let (text, more) = &*self.0;
        let mut text = text.lock().expect("no thread panics while it holds the lock");
        loop {
            let log = String::from_utf8_lossy(&text).into_owned();
            if log.contains(wanted) {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(text);
                panic!("the bus never logged {wanted:?} but\n{log}");
            }
            (text, _) = more.wait_timeout(text, left).expect("no thread panics while it holds the lock");
        }
    }
}
