//! The folders of sessions: what a client calls a folder, what it is called on this node, and whether it is there.
//!
//! [`FolderWatch`] sees every byte from the edge, but reads only lines that name a `cwd`. A line that opens a session
//! waits until its folders are there, which may take a command; other lines go on meanwhile. If they are not there, the
//! line is answered here and never reaches the bus.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use log::{info, warn};
use memchr::memmem::Finder;
use memchr::{memchr, memrchr};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::timeout;

use crate::outlet::Outlet;
use crate::subjects::shown;

/// The methods that open a session in a folder.
const OPENING: [&str; 4] = ["session/new", "session/load", "session/resume", "session/fork"];
/// Its `cwd` is a filter: it is called what it is called here, and need not exist.
const LISTING: &str = "session/list";
/// A longer line goes on without a look at it.
const LINE_BYTES_MAX: usize = 256 << 10;
/// So many folders of one pipe are looked for at once. Further lines wait.
const LOOKS_MAX: usize = 32;
/// So many lines of one pipe may wait for their folders, and so many bytes.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 16 << 20;
/// How long the disk may take to say whether a folder is there.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the command may take that makes a folder.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(120);
/// How much of what the command says is kept.
const WORDS_BYTES: usize = 2048;

/// What is known about folders here.
pub(crate) struct Folders {
    node: String,
    /// The longest come first.
    map: Vec<(String, String)>,
    prepare: Vec<String>,
    /// Commands that run, by the folder that they make: two for one folder would be in each other's way.
    preparing: RefCell<HashMap<String, Rc<Mutex<()>>>>,
}

impl Folders {
    pub(crate) fn new(node: &str, map: &BTreeMap<String, String>, prepare: &[String]) -> Folders {
        let mut map: Vec<_> = map.iter().map(|(from, to)| (from.clone(), to.clone())).collect();
        map.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Folders { node: node.to_owned(), map, prepare: prepare.to_vec(), preparing: RefCell::default() }
    }

    /// What the folder of a client is called here.
    fn mapped(&self, path: &str) -> Option<String> {
        self.map.iter().find_map(|(from, to)| {
            let rest = if from == "/" { path } else { path.strip_prefix(from.as_str())? };
            match rest.strip_prefix('/') {
                Some(below) if to == "/" => Some(format!("/{below}")),
                Some(below) => Some(format!("{to}/{below}")),
                None => rest.is_empty().then(|| to.clone()),
            }
        })
    }

    /// Makes sure that the folder is there.
    async fn ready(&self, path: &str) -> Result<(), Missing> {
        if !Path::new(path).is_absolute() {
            return Err(Missing::because("it is not an absolute path"));
        }
        match is_folder(path).await? {
            true => return Ok(()),
            false if self.prepare.is_empty() => return Err(Missing::default()),
            false => {}
        }
        let lock = self.preparing.borrow_mut().entry(path.to_owned()).or_default().clone();
        let held = lock.lock().await;
        // Another session may have wanted the same one.
        let made = match is_folder(path).await {
            Ok(false) => self.prepare(path).await,
            Ok(true) => Ok(()),
            Err(missing) => Err(missing),
        };
        drop(held);
        let mut preparing = self.preparing.borrow_mut();
        if Rc::strong_count(&lock) <= 2 {
            preparing.remove(path);
        }
        made
    }

    /// Runs the command that makes the folder.
    async fn prepare(&self, path: &str) -> Result<(), Missing> {
        let Some((program, args)) = self.prepare.split_first() else { return Err(Missing::default()) };
        info!("{program} prepares {}", shown(path));
        let mut command = Command::new(program);
        command.args(args).arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.process_group(0).kill_on_drop(true);
        let failed = |why: String, words: String| {
            warn!("{program} could not prepare {}: {why}", shown(path));
            Missing { why: Some(why), words }
        };
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("{program} cannot be run: {error}"), String::new()))?;
        let group = child.id();
        let stderr = child.stderr.take();
        let ended = timeout(PREPARE_TIMEOUT, async {
            let words = match stderr {
                Some(stderr) => last_words(stderr).await,
                None => String::new(),
            };
            (child.wait().await, words)
        });
        let Ok((status, words)) = ended.await else {
            if let Some(group) = group {
                let _ = killpg(Pid::from_raw(group as i32), Signal::SIGKILL);
            }
            let why = format!("{program} was not ready after {} s", PREPARE_TIMEOUT.as_secs());
            return Err(failed(why, String::new()));
        };
        match status {
            Ok(status) if status.success() => match is_folder(path).await? {
                true => Ok(()),
                false => Err(failed(format!("{program} has ended well, and it is not there"), words)),
            },
            Ok(status) => Err(failed(format!("{program} has failed ({status})"), words)),
            Err(error) => Err(failed(format!("{program}: {error}"), words)),
        }
    }
}

/// Why a folder is not there.
#[derive(Default)]
struct Missing {
    why: Option<String>,
    /// The last that the command has said.
    words: String,
}

impl Missing {
    fn because(why: impl Into<String>) -> Missing {
        Missing { why: Some(why.into()), words: String::new() }
    }
}

/// A disk that hangs must not stop anything else.
async fn is_folder(path: &str) -> Result<bool, Missing> {
    let path = path.to_owned();
    let looking = spawn_blocking(move || std::fs::metadata(path).is_ok_and(|about| about.is_dir()));
    match timeout(LOOK_TIMEOUT, looking).await {
        Ok(Ok(found)) => Ok(found),
        _ => Err(Missing::because("the disk does not answer")),
    }
}

/// The last of what is said, to the end.
async fn last_words(mut from: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut piece) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        kept.extend_from_slice(&piece[..count]);
        let surplus = kept.len().saturating_sub(WORDS_BYTES);
        kept.drain(..surplus);
    }
    let text = String::from_utf8_lossy(&kept);
    text.chars().map(|letter| if letter.is_control() && letter != '\n' { '?' } else { letter }).collect()
}

/// What has become of a line that waited.
#[derive(Debug)]
pub(crate) enum Settled {
    /// It goes on to the bus.
    Line(Bytes),
    /// It is answered with this.
    Answer(Bytes),
}

/// The lines of one pipe on their way to the bus.
pub(crate) struct FolderWatch {
    folders: Rc<Folders>,
    finder: Finder<'static>,
    /// The beginning of a line whose end has not come.
    held: BytesMut,
    /// The rest of the line goes on without a look at it.
    passing: bool,
    settled: mpsc::UnboundedSender<Settled>,
    /// Has a permit for each folder that is looked for.
    looks: Rc<Semaphore>,
    waiting: Rc<Cell<Waiting>>,
}

/// The lines that wait for their folders.
#[derive(Clone, Copy, Default)]
struct Waiting {
    lines: usize,
    bytes: usize,
}

impl FolderWatch {
    pub(crate) fn new(folders: Rc<Folders>) -> (FolderWatch, mpsc::UnboundedReceiver<Settled>) {
        let (settled, receiver) = mpsc::unbounded_channel();
        let watch = FolderWatch {
            folders,
            finder: Finder::new("cwd\""),
            held: BytesMut::new(),
            passing: false,
            settled,
            looks: Rc::new(Semaphore::new(LOOKS_MAX)),
            waiting: Rc::default(),
        };
        (watch, receiver)
    }

    /// Takes the next bytes, and puts what goes on at once into `out`. Returns how many bytes are kept here instead.
    pub(crate) fn feed(&mut self, mut bytes: Bytes, out: &mut Outlet) -> usize {
        let mut kept = 0;
        if self.passing {
            let Some(end) = memchr(b'\n', &bytes) else {
                out.push(bytes, true);
                return 0;
            };
            out.push(bytes.split_to(end + 1), true);
            self.passing = false;
        }
        if !self.held.is_empty() {
            let Some(end) = memchr(b'\n', &bytes) else { return self.hold(bytes, out) };
            self.held.extend_from_slice(&bytes.split_to(end + 1));
            kept += end + 1;
            let line = self.held.split().freeze();
            self.held = BytesMut::new();
            self.line(line, false, out);
        }
        if let Some(last) = memrchr(b'\n', &bytes) {
            let lines = bytes.split_to(last + 1);
            kept += self.lines(lines, out);
        }
        kept + self.hold(bytes, out)
    }

    /// Whole lines. Nearly always none of them names a folder.
    fn lines(&mut self, mut lines: Bytes, out: &mut Outlet) -> usize {
        let mut kept = 0;
        while let Some(at) = self.finder.find(&lines) {
            let start = memrchr(b'\n', &lines[..at]).map_or(0, |end| end + 1);
            out.push(lines.split_to(start), true);
            let end = memchr(b'\n', &lines).map_or(lines.len(), |end| end + 1);
            kept += self.line(lines.split_to(end), true, out);
        }
        out.push(lines, true);
        kept
    }

    /// Keeps the beginning of a line until its end comes.
    fn hold(&mut self, bytes: Bytes, out: &mut Outlet) -> usize {
        let count = bytes.len();
        if self.held.len() + count <= LINE_BYTES_MAX {
            self.held.extend_from_slice(&bytes);
            return count;
        }
        self.passing = true;
        let held = std::mem::take(&mut self.held);
        out.push(held.freeze(), false);
        out.push(bytes, true);
        0
    }

    /// One whole line. `counts`: as in `Outlet::push`. Returns how many bytes of it count as kept.
    fn line(&mut self, line: Bytes, counts: bool, out: &mut Outlet) -> usize {
        let Some(opening) = Opening::of(&line, &self.folders) else {
            out.push(line, counts);
            return 0;
        };
        let kept = if counts { line.len() } else { 0 };
        let rewritten = opening.rewritten(line);
        if opening.paths.is_empty() {
            out.push(rewritten, false);
            return kept;
        }
        let Opening { id, paths, .. } = opening;
        let (folders, settled) = (self.folders.clone(), self.settled.clone());
        let (waiting, bytes) = (self.waiting.clone(), rewritten.len());
        let Waiting { lines: before, bytes: held } = waiting.get();
        if before >= WAITING_MAX || held + bytes > WAITING_BYTES_MAX {
            let _ = settled.send(Settled::Answer(busy(&id, before)));
            return kept;
        }
        waiting.set(Waiting { lines: before + 1, bytes: held + bytes });
        let looks = self.looks.clone();
        spawn_local(async move {
            let _look = looks.acquire().await;
            let mut outcome = Settled::Line(rewritten);
            for path in &paths {
                if let Err(missing) = folders.ready(&path.here).await {
                    outcome = Settled::Answer(refusal(&id, &folders.node, path, &missing));
                    break;
                }
            }
            let _ = settled.send(outcome);
            let Waiting { lines, bytes: held } = waiting.get();
            waiting.set(Waiting { lines: lines - 1, bytes: held - bytes });
        });
        kept
    }
}

/// A folder as the client calls it, and as it is called here.
#[derive(Debug, PartialEq, Eq)]
struct Folder {
    asked: String,
    here: String,
}

/// What a line that opens a session says about folders.
#[derive(Debug)]
struct Opening {
    /// As it stands in the line.
    id: String,
    /// The folders that have to be there.
    paths: Vec<Folder>,
    /// What takes the place of a part of the line.
    edits: Vec<(Range<usize>, String)>,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Every folder that params name, also where a key is there twice or other things in them are not what they should be:
/// which of it an agent takes cannot be known.
struct Named<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Named<'de> {
    fn deserialize<D: Deserializer<'de>>(params: D) -> Result<Named<'de>, D::Error> {
        params.deserialize_map(NamedVisitor)
    }
}

struct NamedVisitor;

impl<'de> Visitor<'de> for NamedVisitor {
    type Value = Named<'de>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut params: A) -> Result<Named<'de>, A::Error> {
        let mut named = Vec::new();
        while let Some((key, value)) = params.next_entry::<String, &RawValue>()? {
            match key.as_str() {
                "cwd" => named.push(value),
                "additionalDirectories" => {
                    named.extend(serde_json::from_str::<Vec<&RawValue>>(value.get()).unwrap_or_default());
                }
                _ => {}
            }
        }
        Ok(Named(named))
    }
}

impl Opening {
    /// `None`: the line is about something else, or is not what it should be, which the bus will say.
    fn of(line: &[u8], folders: &Folders) -> Option<Opening> {
        let request: Request<'_> = serde_json::from_slice(line).ok()?;
        let method = request.method?;
        let is_opening = OPENING.contains(&&*method);
        if !is_opening && method != LISTING {
            return None;
        }
        let Named(named) = serde_json::from_str(request.params?.get()).ok()?;
        let id = request.id?.get().to_owned();
        let mut opening = Opening { id, paths: Vec::new(), edits: Vec::new() };
        for raw in named {
            let Ok(asked) = serde_json::from_str::<String>(raw.get()) else { continue };
            let mapped = folders.mapped(&asked);
            if let Some(here) = &mapped {
                // The raw value is a part of the line.
                let start = raw.get().as_ptr() as usize - line.as_ptr() as usize;
                opening.edits.push((start..start + raw.get().len(), json!(here).to_string()));
            }
            if is_opening {
                opening.paths.push(Folder { here: mapped.unwrap_or_else(|| asked.clone()), asked });
            }
        }
        Some(opening)
    }

    fn rewritten(&self, line: Bytes) -> Bytes {
        if self.edits.is_empty() {
            return line;
        }
        let mut edits: Vec<_> = self.edits.iter().collect();
        edits.sort_by_key(|(range, _)| range.start);
        let (mut new, mut at) = (BytesMut::with_capacity(line.len() + 64), 0);
        for (range, text) in edits {
            new.extend_from_slice(&line[at..range.start]);
            new.extend_from_slice(text.as_bytes());
            at = range.end;
        }
        new.extend_from_slice(&line[at..]);
        new.freeze()
    }
}

/// The answer to a line whose folder is not there.
fn refusal(id: &str, node: &str, folder: &Folder, missing: &Missing) -> Bytes {
    let why = match &missing.why {
        Some(why) => format!(": {why}"),
        None => ": make it there, or see \"map\" and \"prepare\" of \"cluster\" in its bus.json".to_owned(),
    };
    let named = if folder.asked == folder.here {
        shown(&folder.here)
    } else {
        format!("{} ({} there)", shown(&folder.asked), shown(&folder.here))
    };
    let mut data = json!({ "reason": "no_workspace", "path": folder.asked, "node": node });
    if !missing.words.is_empty() {
        data["stderr"] = json!(missing.words);
    }
    let error =
        json!({ "code": -32060, "message": format!("node {node} has no folder {named}{why}"), "data": data });
    Bytes::from(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n"))
}

/// The answer to a line that cannot even wait.
fn busy(id: &str, waiting: usize) -> Bytes {
    let message =
        format!("{waiting} sessions of this edge are being opened: try again when some of them are open");
    let error = json!({ "code": -32054, "message": message, "data": { "reason": "busy" } });
    Bytes::from(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}\n"))
}

#[cfg(test)]
mod tests;
