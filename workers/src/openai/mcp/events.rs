//! The events of an HTTP answer as an async stream, read and parsed by a thread.

use std::io::{ErrorKind, Read};
use std::pin::Pin;

use rmcp::transport::streamable_http_client::SseError;
use sse_stream::Sse;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use ureq::{Agent, BodyReader};

use crate::openai::sse::{Event, Parser};

const READ_BYTES: usize = 16 << 10;
/// Events that wait to be taken.
const WAITING_MAX: usize = 16;

/// Items of a stream of events, as the SDK wants them.
pub(super) type Item = Result<Sse, SseError>;

/// The agent of a request. Its shutdown, when this is dropped, wakes the thread that waits in it.
pub(super) struct InUse(pub(super) Agent);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.clone().shutdown();
    }
}

pub(super) type Events = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// The events of a body. Dropping them ends the request.
pub(super) fn events(reader: BodyReader<'static>, in_use: InUse) -> Events {
    let (sender, receiver) = channel(WAITING_MAX);
    spawn_blocking(move || read(reader, &sender));
    Box::pin(ReceiverStream::new(receiver).map(move |item| {
        let _until_dropped = &in_use;
        item
    }))
}

/// Ends with the body, or when nobody takes the events any more.
fn read(mut reader: BodyReader<'static>, sender: &Sender<Item>) {
    let mut parser = Parser::default();
    let mut buffer = vec![0; READ_BYTES];
    let mut events = Vec::new();
    loop {
        let failure: Box<dyn std::error::Error + Send + Sync> = match reader.read(&mut buffer) {
            Ok(0) => {
                parser.finish(&mut events);
                send(&mut events, sender);
                return;
            }
            Ok(count) if parser.push(&buffer[..count], &mut events).is_ok() => {
                if !send(&mut events, sender) {
                    return;
                }
                continue;
            }
            Ok(_) => "an event is too long".into(),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => error.into(),
        };
        let _ = sender.blocking_send(Err(SseError::Body(failure)));
        return;
    }
}

/// False if nobody takes them.
fn send(events: &mut Vec<Event>, sender: &Sender<Item>) -> bool {
    events.drain(..).all(|event| {
        let kind = Some(event.kind).filter(|kind| !kind.is_empty());
        let sse = Sse { event: kind, data: Some(event.data), id: event.id, retry: None };
        sender.blocking_send(Ok(sse)).is_ok()
    })
}
