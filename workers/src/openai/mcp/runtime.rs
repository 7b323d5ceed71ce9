//! The thread of the async runtime, and the count of servers that run on it.

use std::future::{Future, pending};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};

use crate::lock::lock;

/// Each open HTTP answer has a thread, and a server over HTTP has at least one open. Further requests wait.
const STREAMS_MAX: usize = 2048;

/// Starts nothing before it is used.
#[derive(Default)]
pub(in crate::openai) struct Runtime {
    handle: OnceLock<Handle>,
    running: Arc<Running>,
}

#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    is_zero: Condvar,
}

/// A server that counts as running until this is dropped.
struct Counted(Arc<Running>);

impl Runtime {
    /// Runs the life of a server. The error says why it cannot.
    pub(super) fn spawn(&self, server: impl Future<Output = ()> + Send + 'static) -> Result<Handle, String> {
        let handle = self.handle()?;
        let counted = Counted::new(self.running.clone());
        handle.spawn(async move {
            server.await;
            drop(counted);
        });
        Ok(handle)
    }

    /// Waits until all servers have ended.
    pub(in crate::openai) fn wait_until_ended(&self, timeout: Duration) {
        let count = lock(&self.running.count);
        drop(self.running.is_zero.wait_timeout_while(count, timeout, |count| *count > 0));
    }

    fn handle(&self) -> Result<Handle, String> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle.clone());
        }
        let failed = |error| format!("no runtime for MCP servers: {error}");
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(STREAMS_MAX).build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let run = move || runtime.block_on(pending::<()>());
        thread::Builder::new().name("mcp".to_owned()).spawn(run).map_err(failed)?;
        Ok(self.handle.get_or_init(|| handle).clone())
    }
}

impl Counted {
    fn new(running: Arc<Running>) -> Counted {
        *lock(&running.count) += 1;
        Counted(running)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.is_zero.notify_all();
    }
}
