//! Every number that bus.json does not set, in one place, with what each must hold towards the others.

use std::time::Duration;

/// A worker's first rest after a crash. Doubles with each crash up to `max_restart_delay_sec`.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// A worker that was up this long starts again with `REST_FIRST`.
pub const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(30);

/// A crash closes stdout a moment before the exit is known; only after this long is it not a crash.
pub const EXIT_AFTER_EOF: Duration = Duration::from_millis(250);
/// From the end of stdin to SIGTERM. Most agents leave within a second of it.
pub const STOP_BY_EOF: Duration = Duration::from_secs(2);
/// From SIGTERM to SIGKILL.
pub const STOP_BY_TERM: Duration = Duration::from_secs(3);
/// The same once the user has lost patience (a second signal).
pub const STOP_AT_ONCE: Duration = Duration::from_millis(200);
/// From SIGKILL to giving the process up: it hangs in the kernel.
pub const STOP_BY_KILL: Duration = Duration::from_secs(5);
/// At the end, how long clients may take to read their last answers.
pub const FLUSH_ON_CLOSE: Duration = Duration::from_secs(1);

/// Where a token is asked for, so many connections may be about to show it. Their places are their own: whoever has
/// shown it does not lose one to them.
pub const PENDING_AUTH_MAX: usize = 64;
/// How long one of them may take..
pub const AUTH_TIMEOUT: Duration = Duration::from_secs(5);
/// ..and the longest line that it may say before.
pub const AUTH_LINE_BYTES: usize = 4096;

/// A queue that holds this much is written before more is read, so that its peer can begin.
pub const BULK_BYTES: usize = 4 << 10;
/// A peer's queue is above its limit when it holds `max_output_queue` bytes and has room again at this part of it.
pub const QUEUE_LOW_PART: usize = 2;
/// A worker that serves others too is not held up by one slow client until this many times `max_output_queue`
/// wait for it..
pub const QUEUE_HARD_TIMES: usize = 4;
/// ..and then only this long, if the client takes nothing.
pub const STALL: Duration = Duration::from_secs(1);

/// A client that has begun a line and adds nothing to it for this long is closed where there are others: what it holds
/// of everybody's memory would never be free again.
pub const LINE_UNFINISHED: Duration = Duration::from_secs(60);

/// The longest line that a client may send while more than `max_held_bytes` are held.
pub const LINE_BYTES_WHEN_FULL: usize = 64 << 10;

/// A call that could not be written is given to another worker at most this often.
pub const MOVES: u8 = 3;
/// Of a worker's stderr, the end is kept for those who ask why it died.
pub const STDERR_TAIL_BYTES: usize = 4096;
/// Session-less notifications kept for clients that join later, the last of each method.
pub const STICKY_NOTIFICATIONS_MAX: usize = 16;
pub const STICKY_NOTIFICATION_BYTES: usize = 64 << 10;
/// Process-wide requests repeated to workers that start later, each of at most `NOTICE_BYTES`.
pub const BROADCASTS_MAX: usize = 64;
/// Elicitations of one worker that are open at a time.
pub const ELICITATIONS: usize = 256;
/// Sessions that one client names itself.
pub const LABELS: usize = 1 << 16;
/// Subagents' sessions do not count for `max_sessions`, but end at this many times it.
pub const CHILDREN_TIMES: usize = 16;
/// Modes and options of a session that are set again after its worker's death.
pub const SETTINGS: usize = 64;
/// Of the answer that opened a session, kept to answer whoever takes the session up again.
pub const OPENING_BYTES: usize = 64 << 10;
/// A JSON-RPC id, a session id or a pool name longer than this is refused.
pub const NAME_BYTES: usize = 4096;

/// So many may follow the traffic at a time..
pub const TRACERS: usize = 16;
/// ..and so much may wait for each, at most this part of `max_held_bytes`: all of them hold little of it.
pub const TRACE_QUEUE_BYTES: usize = 1 << 20;
pub const TRACE_QUEUE_PART: usize = 64;
/// A longer line is told of without what it says.
pub const TRACE_PAYLOAD_BYTES: usize = 256 << 10;

/// Buffers kept for reuse, so that a busy link does not allocate and an idle one holds nothing.
pub const POOLED_BUFFERS: usize = 64;
/// All of them together hold at most this much.
pub const POOLED_BYTES: usize = 1 << 20;

/// A wire id is `generation << CALL_INDEX_BITS | index`.
pub const CALL_INDEX_BITS: u32 = 20;
/// The most that `max_calls` may be.
pub const CALLS: usize = 1 << CALL_INDEX_BITS;

// Below 2^53: a JavaScript worker must hand the id back unchanged.
const _: () = assert!(32 + CALL_INDEX_BITS < 53);
const _: () = assert!(TRACERS * 4 <= TRACE_QUEUE_PART && TRACE_PAYLOAD_BYTES < TRACE_QUEUE_BYTES);
const _: () = assert!(QUEUE_LOW_PART > 1 && QUEUE_HARD_TIMES > 1);
