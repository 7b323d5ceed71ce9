//! ACP over WebSocket: a text frame is a message, and a connection here is a connection of the bus.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use log::debug;
use tokio::sync::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message, Utf8Bytes};

use crate::activity::Activity;
use crate::bus_link::{BusLink, LineBuffer};
use crate::filter::{Filter, Verdict};
use crate::leases::Lease;
use crate::message::lines_of;
use crate::scope::Scope;

/// The longest message. The bus has a limit of its own for a line, by default the same.
const MESSAGE_BYTES: usize = 64 << 20;
/// The same for those who cannot prompt, and so have nothing long to say.
const SHORT_MESSAGE_BYTES: usize = 1 << 20;
/// What an idle connection has for reading.
const READ_BUFFER_BYTES: usize = 4 << 10;
const WRITE_BUFFER_BYTES: usize = 16 << 10;
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A client that has not even answered pings for this long is gone.
const SILENCE: Duration = Duration::from_millis(37_500);
/// A client that takes nothing for this long while something waits for it is closed.
const STALL: Duration = Duration::from_secs(60);
/// How long the last frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Why a connection ends, as the client is told.
struct End(CloseCode, &'static str);

const BUS_GONE: End = End(CloseCode::Restart, "the bus has closed the connection");
const REVOKED: End = End(CloseCode::Policy, "the token was revoked");
const SILENT: End = End(CloseCode::Policy, "nothing was heard for too long");
const STALLED: End = End(CloseCode::Policy, "nothing was taken for too long");
const STOPPING: End = End(CloseCode::Away, "the door closes");
const REPLACED: End = End(CloseCode::Restart, "another door takes the place of this one");

/// Carries messages until one side leaves.
pub(crate) async fn relay(
    upgraded: Upgraded,
    link: BusLink,
    filter: Filter,
    lease: Lease,
    activity: Arc<Activity>,
    stopping: impl Future<Output = bool>,
) {
    let longest = if filter.who.scope < Scope::Control { SHORT_MESSAGE_BYTES } else { MESSAGE_BYTES };
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_message_size(Some(longest))
        .max_frame_size(Some(longest));
    let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (sink, mut stream) = socket.split();
    let sink = Mutex::new(sink);
    let end = tokio::select! {
        end = from_client(&mut stream, &sink, &link, &filter, &activity) => end,
        end = from_bus(&sink, &link, &filter) => end,
        end = watch(&sink, &activity) => Some(end),
        () = lease.ended() => Some(REVOKED),
        comes_back = stopping => Some(if comes_back { REPLACED } else { STOPPING }),
    };
    let close = async {
        if let Some(End(code, reason)) = end {
            debug!("a WebSocket ends: {reason}");
            let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
            let _ = sink.lock().await.send(Message::Close(Some(frame))).await;
        }
        // Either the client answers that, or it has said so first and the answer is written here. Without one it
        // would take the end for an error.
        while let Some(Ok(_)) = stream.next().await {}
    };
    let _ = timeout(CLOSE_TIMEOUT, close).await;
}

type Sink = Mutex<SplitSink<Socket, Message>>;

/// `None`: the client has left.
async fn from_client(
    stream: &mut SplitStream<Socket>,
    sink: &Sink,
    link: &BusLink,
    filter: &Filter,
    activity: &Activity,
) -> Option<End> {
    loop {
        let text = match stream.next().await {
            Some(Ok(Message::Text(text))) => text,
            // The protocol says that binary frames are ignored; pings are answered below us.
            Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {
                continue;
            }
            Some(Ok(Message::Close(_))) | None => return None,
            Some(Err(error)) => return end_of(&error),
        };
        for line in lines_of(&text) {
            match filter.judge(&line) {
                Verdict::Pass => {
                    if activity.paused(link.send(line.as_bytes())).await.is_err() {
                        return Some(BUS_GONE);
                    }
                }
                Verdict::Swallow | Verdict::RefuseSilent(_) => {}
                Verdict::Refuse(answer) => {
                    let sent = async { sink.lock().await.send(Message::text(answer)).await };
                    if activity.paused(sent).await.is_err() {
                        return None;
                    }
                }
            }
        }
    }
}

fn end_of(error: &Error) -> Option<End> {
    match error {
        Error::Capacity(_) => Some(End(CloseCode::Size, "the message is too long")),
        Error::Utf8(_) => Some(End(CloseCode::Invalid, "the text is not UTF-8")),
        Error::Protocol(_) => Some(End(CloseCode::Protocol, "this is not the WebSocket protocol")),
        _ => None,
    }
}

/// Lines that are there together are written together. `None`: the client has left.
async fn from_bus(sink: &Sink, link: &BusLink, filter: &Filter) -> Option<End> {
    let mut lines = LineBuffer::default();
    loop {
        let Ok(Some(line)) = link.read_line(&mut lines).await else { return Some(BUS_GONE) };
        let mut sink = sink.lock().await;
        let mut next = Some(line);
        while let Some(line) = next {
            let text = text_of(line);
            filter.heard(&text);
            sink.feed(Message::Text(text)).await.ok()?;
            next = lines.next_line();
        }
        sink.flush().await.ok()?;
    }
}

/// The bus passes on what an agent says; only a text may be in a text frame.
fn text_of(line: Bytes) -> Utf8Bytes {
    Utf8Bytes::try_from(line.clone()).unwrap_or_else(|_| String::from_utf8_lossy(&line).into_owned().into())
}

async fn watch(sink: &Sink, activity: &Activity) -> End {
    let mut ticks = interval(PING_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        match sink.try_lock() {
            // While it is locked something is being sent, so a ping would not say more.
            Err(_) if activity.unwritten() > STALL => return STALLED,
            Err(_) => continue,
            Ok(_) if activity.unread() > SILENCE => return SILENT,
            Ok(mut sink) => {
                let ping = sink.send(Message::Ping(Bytes::new()));
                if !matches!(timeout(STALL, ping).await, Ok(Ok(()))) {
                    return STALLED;
                }
            }
        }
    }
}
