//! Every limit and timeout that bus.json does not set, and how they must relate to each other.

use std::time::Duration;

/// How long a worker pauses after its first crash. The pause doubles with each crash up to `max_restart_delay_sec`.
pub const BACKOFF_FIRST: Duration = Duration::from_millis(100);
/// A worker that was up this long is started again at once. If it then crashes soon, it pauses for `BACKOFF_FIRST`.
pub const RESTART_AT_ONCE_AFTER: Duration = Duration::from_secs(5);
/// A request waits for the next process of a worker that has found no node only if it comes this soon.
pub const LONG_REST: Duration = Duration::from_secs(1);

/// A process that waits for a processor has this long to answer `initialize`, unless `init_timeout_sec` is longer.
pub const SLOW_START: Duration = Duration::from_secs(600);

/// How long the bus waits for the exit of a worker that has closed its stdout. A crash closes stdout a moment before
/// the exit is known; after this time the worker counts as alive with closed pipes.
pub const EXIT_AFTER_EOF: Duration = Duration::from_millis(250);
/// The time from the end of stdin to SIGTERM. Most agents exit within a second.
pub const STOP_BY_EOF: Duration = Duration::from_secs(2);
/// The time from SIGTERM to SIGKILL.
pub const STOP_BY_TERM: Duration = Duration::from_secs(3);
/// The time from SIGTERM to SIGKILL after a second stop signal to the bus.
pub const STOP_AT_ONCE: Duration = Duration::from_millis(200);
/// The time from SIGKILL until the bus gives up on a process, which then hangs in the kernel.
pub const STOP_BY_KILL: Duration = Duration::from_secs(5);
/// How long a client that is being closed may take to read its last answers.
pub const FLUSH_ON_CLOSE: Duration = Duration::from_secs(1);

/// The most connections that have yet to show the token. They do not count for `max_clients`.
pub const PENDING_AUTH_MAX: usize = 256;
/// How long a connection may take to show the token.
pub const AUTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest line of a connection that has yet to show the token, in bytes.
pub const AUTH_LINE_BYTES: usize = 4096;

/// A queue with this many bytes is written before more is read, so that its peer can begin to work.
pub const BULK_BYTES: usize = 4 << 10;
/// A full queue has room again once it is down to its limit divided by this.
pub const QUEUE_LOW_PART: usize = 2;
/// A worker that also serves other clients goes on until the queue of a slow client holds this many times its limit.
pub const QUEUE_HARD_TIMES: usize = 4;
/// How long a slow client may then take nothing before it is closed.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(1);
/// A client for which the limit of its queue divided by this waits is watched as well: it is closed if it takes nothing
/// for `backpressure_timeout_sec`, or for `STALL_TIMEOUT` while half of `max_held_bytes` are held.
pub const QUEUE_WATCHED_PART: usize = 16;
/// Less than this may wait for any client as long as it is connected. It is small in builds for the simulation.
pub const QUEUE_WATCHED_LEAST: usize = if cfg!(feature = "mutants") { 200 } else { 64 << 10 };

/// A client that has begun a line and adds nothing to it for this long is closed if there are other clients: the
/// bytes that it holds count for everybody's `max_held_bytes`.
pub const UNFINISHED_LINE_TIMEOUT: Duration = Duration::from_secs(60);
/// A line of a client may come at this rate, besides `UNFINISHED_LINE_TIMEOUT`.
pub const LINE_BYTES_PER_SEC: usize = 64 << 10;
/// If there are other clients, the line of a client may take what is left of `max_held_bytes` divided by this.
pub const LINE_ROOM_PART: usize = 2;
/// A line of a client may always have this many bytes, however much is held. While more than `max_held_bytes` are
/// held, the longest unfinished line beyond this is given up.
pub const LINE_BYTES_WHEN_FULL: usize = 64 << 10;

/// Of `max_calls`, the last part of this size is for callers that have few calls in flight.
pub const CALLS_RESERVED_PART: usize = 4;
/// A caller has few calls in flight if it has fewer than `max_calls` divided by this and by `max_clients`, or none.
pub const CALLS_FEW_PART: usize = 8;
/// Besides, a caller may have this many times as many calls as are free outside of that part.
pub const CALLS_FREE_TIMES: usize = 3;
/// Calls whose answer nobody waits for do not count for `max_calls`. There are at most `max_calls` divided by this;
/// then the oldest is forgotten.
pub const ABANDONED_PART: usize = 8;
/// If there are other clients, what one of them lets wait for a worker that is not ready is at most this many times
/// what is free of `max_output_queue`.
pub const BACKLOG_FREE_TIMES: usize = 3;
/// Less than `max_output_queue` divided by this and by `max_clients` of a client may always wait there.
pub const BACKLOG_FEW_PART: usize = 8;
/// What a client makes the bus keep by labels and by long ids may take what is left of `max_held_bytes` divided by
/// this.
pub const KEPT_ROOM_PART: usize = 2;
/// If there are other clients, a client may have this many times as many sessions in a pool as are free there.
pub const SESSIONS_FREE_TIMES: usize = 3;

/// How long a line of a client may take from its first byte, if so many bytes of it have come, so that a client which
/// adds a byte now and then is closed too. A short line, which does no harm, may come at a byte a second.
pub fn line_patience(bytes: usize) -> Duration {
    let seconds = if bytes <= NAME_BYTES { bytes } else { bytes / LINE_BYTES_PER_SEC };
    UNFINISHED_LINE_TIMEOUT + Duration::from_secs(seconds as u64)
}

/// How many steps of work that one event causes are done at once, such as a session that is ended or a call that is
/// answered. The rest is done in further pieces, between which other peers are served.
pub const WORK_PIECE: usize = 256;
/// How many peers get what one line or event is for at once. The others get it when nothing else is to be done.
pub const WRITES_AT_ONCE: usize = 16;
/// How many sessions of a worker that leaves are looked at at once. One with fewer looks at all of them each time.
pub const HAND_OVER_PIECE: usize = 256;
/// Steps that are charged for resuming one paused peer.
pub const RESUME_STEPS: usize = 16;

/// A line that is sent counts as a part of a step, and so does each piece of it of this size.
pub const SENDS_IN_STEP: usize = 8;
pub const SEND_PIECE_BYTES: usize = 4 << 10;
/// A request to the bus itself counts as this many steps, and one more for each piece of its answer of this size.
pub const ADMIN_STEPS: usize = 4;
pub const ADMIN_STEP_BYTES: usize = 512;
/// Like `ADMIN_STEP_BYTES`, for `_bus/status`, which is made of more and shorter pieces.
pub const STATUS_STEP_BYTES: usize = 128;
/// The longest params of a request to the bus itself, in bytes.
pub const ADMIN_PARAMS_BYTES: usize = 64 << 10;

/// A process that is started for a node exits with this code if the node does not answer (`EX_UNAVAILABLE`).
pub const EXIT_NODE_AWAY: i32 = 69;
/// A process that finds its node by itself exits with this code if no node has room for it (`EX_TEMPFAIL`).
pub const EXIT_NO_NODE: i32 = 75;
/// With these it says that it will not find one next time either (`EX_NOPERM`, `EX_CONFIG`).
pub const EXITS_FOR_GOOD: [i32; 2] = [77, 78];
/// How many names in front of each other are looked at in a session id, to find a node.
pub const NODE_DEPTH: usize = 8;
/// How often a call whose line was not written may move to another worker.
pub const MOVES: u8 = 3;
/// How many bytes of a worker's latest stderr are kept, to report why it died.
pub const STDERR_TAIL_BYTES: usize = 4096;
/// How many bytes of its stderr are kept for people, together with what each line takes beside its text.
pub const STDERR_LOG_BYTES: usize = 256 << 10;
/// They are also at most `max_held_bytes` divided by this.
pub const STDERR_LOG_PART: usize = 256;
/// A longer line is cut.
pub const STDERR_LINE_BYTES: usize = 4096;
/// Of how many workers stderr is kept, those that are gone included.
pub const STDERR_LOGS: usize = 256;
/// How many lines of stderr one answer has at most, and how many bytes of text.
pub const STDERR_ANSWER_LINES: usize = 10_000;
pub const STDERR_ANSWER_BYTES: usize = 512 << 10;
/// How many of its last lines an error shows.
pub const STDERR_TAIL_LINES: usize = 20;
/// How long an agent may take to answer a `session/close` that the bus itself sends. Requests may wait for that.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A pool that has no process for a client is logged at most once in this time.
pub const BUSY_WARNING_EVERY: Duration = Duration::from_secs(60);
/// How many session-less notifications of a worker are kept for clients that join later, the last one of each method.
pub const STICKY_NOTIFICATIONS_MAX: usize = 16;
/// The longest sticky notification, the longest broadcast, and the longest notification about a whole process that
/// several clients are told, in bytes: each of them gets it, so it takes this many times their number.
pub const STICKY_NOTIFICATION_BYTES: usize = 64 << 10;
/// How many MCP servers of one session are looked at, which its client offers over its own connection.
pub const MCP_SERVERS: usize = 64;
/// How many of one client a worker knows.
pub const MCP_SERVERS_KEPT: usize = 256;
/// How many process-wide requests are kept, to be repeated to workers that start later.
pub const BROADCASTS_MAX: usize = 64;
/// The longest answer of a worker to `initialize`, in bytes. A worker that says more does not start.
pub const INIT_RESULT_BYTES: usize = 1 << 20;
/// The longest `_bus/worker` that is read, in bytes.
pub const WORKER_TELLS_BYTES: usize = 4096;
/// The most room for sessions that a worker can say it has.
pub const ROOM_MAX: usize = 1 << 20;
/// How many elicitations of one worker may be open.
pub const ELICITATIONS: usize = 256;
/// How many requests of an agent in one session may wait for an answer of its owner.
pub const PENDING_REQUESTS: usize = 512;
/// The longest error of a turn that others are told as it is, in bytes. Of a longer one they are told the beginning.
pub const TURN_ERROR_BYTES: usize = 2048;
/// How many prompts of one session may wait for the end of another client's turn.
pub const WAITING_PROMPTS: usize = 16;
/// How many blocks of a prompt the others in its session are told, each in a line of its own.
pub const PROMPT_BLOCKS: usize = 1024;
/// All of them together are at most so many lines, but always so many for each.
pub const PROMPT_SENDS: usize = 32 << 10;
pub const PROMPT_BLOCKS_LEAST: usize = 16;
/// What the lines of one of them hold beside the blocks is at most this many times the prompt, and these bytes.
pub const PROMPT_ADDED_TIMES: usize = 7;
pub const PROMPT_ADDED_BYTES: usize = 1 << 10;
/// How many labels one client may use, which are session ids of its own choice.
pub const LABELS: usize = 1 << 16;
/// Sessions of subagents do not count for `max_sessions`, but a worker has at most this many times as many in all.
pub const CHILDREN_TIMES: usize = 16;
/// How deep sessions of subagents count as nested: one that is announced below this depth belongs to the session at it.
pub const CHILD_DEPTH: usize = 16;
/// How many modes and options of a session are kept, to be set again after its worker's death.
pub const SETTINGS: usize = 64;
/// The longest params and result of a session that are kept to open it again, all its settings together, and the
/// longest params of `initialize`, in bytes.
pub const OPENING_BYTES: usize = 64 << 10;
/// The longest JSON-RPC id, session id, elicitation id, pool name and filter of a trace, in bytes.
pub const NAME_BYTES: usize = 4096;
/// The longest name of a client, in bytes. A longer one is cut.
pub const CLIENT_NAME_BYTES: usize = 256;
/// The longest folder and the longest title of a session that are shown, in bytes. What is longer is cut.
pub const SESSION_FOLDER_BYTES: usize = 1024;
pub const SESSION_TITLE_BYTES: usize = 256;
/// A line that is longer than this is not searched for a title, unless it begins as updates usually do.
pub const TITLE_LINE_BYTES: usize = 2048;
/// What a client, a session, a worker or a pool makes the bus keep counts as held only beyond this many bytes, so that
/// an idle bus with usual clients holds nothing.
pub const UNCOUNTED_BYTES: usize = 4096;

/// With this many alarms, and whenever there are twice as many as the last time, those of peers and sessions that are
/// gone are forgotten.
pub const ALARMS_KEPT: usize = 4096;

/// How many sessions a page of `_bus/sessions` shows, and with how many bytes it ends earlier.
pub const SESSIONS_PAGE: usize = 500;
pub const SESSIONS_PAGE_BYTES: usize = 256 << 10;

/// A status shows workers up to about this many bytes, and says how many more there are.
pub const STATUS_WORKERS_BYTES: usize = 256 << 10;
/// What processes use is measured at most this often, whoever asks.
pub const USAGE_EVERY: Duration = Duration::from_secs(1);
/// How many requests for a status may wait for that. Further ones are answered with what was measured last.
pub const STATUS_WAITING: usize = 64;
/// How many requests to read the configuration again may wait for their answer.
pub const RELOADS_WAITING: usize = 16;

/// What the bus looks for beside the routing fields of a line, such as a title, options or a reason, it looks for in
/// values up to this long. A value is read again for it at once, while a long line is scanned while it comes.
pub const NESTED_BYTES: usize = 1 << 20;
/// The longest answer with a list of sessions, and the longest change of one, in bytes. The bus reads every row and
/// writes many of them anew, and an agent with more sessions has pages.
pub const LIST_BYTES: usize = 8 << 20;
/// The longest params of a request for several sessions by their ids, in bytes: every id is looked up, and may be
/// written anew.
pub const BATCH_BYTES: usize = 1 << 20;

/// How many clients may trace the traffic.
pub const TRACERS: usize = 16;
/// How many bytes of events may wait for one tracer.
pub const TRACE_QUEUE_BYTES: usize = 1 << 20;
/// The events for one tracer also hold at most `max_held_bytes` divided by this.
pub const TRACE_QUEUE_PART: usize = 64;
/// The longest line that is traced with its payload, in bytes.
pub const TRACE_PAYLOAD_BYTES: usize = 256 << 10;
/// A line up to this long is looked into for what a span needs of it, and each of those texts is at most so long.
pub const TRACE_SPAN_LINE_BYTES: usize = 1 << 20;
pub const TRACE_SPAN_BYTES: usize = 514;

/// An unfinished line of this many bytes gets a buffer of its own, which is read into and written from directly. It is
/// small in builds for the simulation, whose lines are short.
pub const LONG_LINE_BYTES: usize = if cfg!(feature = "mutants") { 200 } else { 128 << 10 };
/// A line of this many bytes stands once in memory, also where it waits for several peers. It is small in builds for
/// the simulation, too.
pub const SHARED_LINE_BYTES: usize = if cfg!(feature = "mutants") { 100 } else { 4 << 10 };
/// A long line is read in pieces of this size. What follows it in the last piece is copied.
pub const LONG_LINE_PIECE: usize = 256 << 10;
/// So many bytes of what follows a long line are read with it, if the next line is as long. Then that one is known to
/// have begun, and its rest is read to where it stays.
pub const LONG_LINE_NEXT: usize = 4 << 10;
/// A queue with this many bytes goes on in another buffer. glibc gives buffers of this size back to the system when
/// they are freed, and may keep smaller ones. It is small in builds for the simulation, too.
pub const SEGMENT_BYTES: usize = if cfg!(feature = "mutants") { 300 } else { 128 << 10 };
/// The buffers for long lines that are kept for reuse: how many bytes each may have, all of them together, and all of
/// them while nothing waits anywhere.
pub const LONG_BUFFER_BYTES: usize = 2 << 20;
pub const LONG_BUFFERS_BYTES: usize = 16 << 20;
pub const LONG_BUFFERS_IDLE_BYTES: usize = 4 << 20;

/// How many buffers are kept for reuse, so that a busy link does not allocate and an idle link holds no memory.
pub const POOLED_BUFFERS: usize = 64;
/// The capacity of all pooled buffers together, in bytes.
pub const POOLED_BYTES: usize = 1 << 20;

/// The bits of a call's index in a wire id, which is `generation << CALL_INDEX_BITS | index`.
pub const CALL_INDEX_BITS: u32 = 20;
/// A cancel looks at this many calls of its sender; callers with more have an index by id, which costs some time for
/// every call.
pub const CALLS_SEARCHED: usize = 256;
/// The largest `max_calls`.
pub const CALLS: usize = 1 << CALL_INDEX_BITS;

// Wire ids stay below 2^53, so that a JavaScript worker can hand them back unchanged.
const _: () = assert!(32 + CALL_INDEX_BITS < 53);
// All tracers together hold at most a quarter of `max_held_bytes`, and every traced payload fits into a queue.
const _: () = assert!(TRACERS * 4 <= TRACE_QUEUE_PART && TRACE_PAYLOAD_BYTES < TRACE_QUEUE_BYTES);
const _: () = assert!(QUEUE_LOW_PART > 1 && QUEUE_HARD_TIMES > 1);
// Those with few calls fit into their part of `max_calls` with the calls that nobody waits for.
const _: () = assert!(CALLS_FEW_PART >= 2 * CALLS_RESERVED_PART && ABANDONED_PART >= 2 * CALLS_RESERVED_PART);
