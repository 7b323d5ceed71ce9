//! A stream that remembers when it last moved, so that a peer that has stopped can be told from a slow one.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// When bytes last came and went, in milliseconds since the connection began.
#[derive(Debug)]
pub(crate) struct Activity {
    begin: Instant,
    read: AtomicU64,
    written: AtomicU64,
    /// Nobody reads for now.
    is_paused: AtomicBool,
}

impl Activity {
    pub(crate) fn new() -> Arc<Activity> {
        Arc::new(Activity::since_begin(Instant::now()))
    }

    fn since_begin(begin: Instant) -> Activity {
        let (read, written) = (AtomicU64::new(0), AtomicU64::new(0));
        Activity { begin, read, written, is_paused: AtomicBool::new(false) }
    }

    fn note(&self, what: &AtomicU64) {
        what.store(self.begin.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn since(&self, what: &AtomicU64) -> Duration {
        self.begin.elapsed().saturating_sub(Duration::from_millis(what.load(Ordering::Relaxed)))
    }

    /// How long nothing has come, although somebody reads.
    pub(crate) fn unread(&self) -> Duration {
        if self.is_paused.load(Ordering::Relaxed) { Duration::ZERO } else { self.since(&self.read) }
    }

    /// Waits for something while nobody reads: that is not the silence of the peer, whose bytes wait meanwhile.
    pub(crate) async fn paused<T>(&self, waiting: impl Future<Output = T>) -> T {
        self.is_paused.store(true, Ordering::Relaxed);
        let outcome = waiting.await;
        self.note(&self.read);
        self.is_paused.store(false, Ordering::Relaxed);
        outcome
    }

    /// How long nothing could be written.
    pub(crate) fn unwritten(&self) -> Duration {
        self.since(&self.written)
    }
}

/// A connection with or without TLS.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(crate) struct Watched {
    transport: Transport,
    activity: Arc<Activity>,
}

impl Watched {
    pub(crate) fn new(transport: Transport, activity: Arc<Activity>) -> Watched {
        Watched { transport, activity }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if buffer.filled().len() > before {
            self.activity.note(&self.activity.read);
        }
        outcome
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        };
        if matches!(outcome, Poll::Ready(Ok(count)) if count > 0) {
            self.activity.note(&self.activity.written);
        }
        outcome
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn while_nobody_reads_a_peer_is_not_silent() {
        let minute = Duration::from_secs(60);
        let activity = Activity::since_begin(Instant::now().checked_sub(minute).unwrap());
        assert!(activity.unread() >= minute);
        assert_eq!(activity.paused(async { activity.unread() }).await, Duration::ZERO);
        assert!(activity.unread() < minute, "what it has sent meanwhile is not read yet");
    }
}
