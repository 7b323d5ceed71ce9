//! What is said in worlds with guests: the updates and answers of agents, and prompts of many blocks. Whoever hears it
//! hears the same bytes.
//!
//! A body repeats which session and which line it is of, so bytes at a wrong place are not those that are expected.

use kernel_core::id::Link;
use kernel_core::limit::{BULK_BYTES, LONG_BUFFER_BYTES, LONG_LINE_BYTES, LONG_LINE_NEXT, SEGMENT_BYTES};
use serde_json::{Value, json};

use super::wires::{Mark, TOLD_TIMES};
use super::{Asked, Part, Running, World};
use crate::oracle::broken;

/// Updates are copied into a log in runs of at most so many bytes.
const UNLOGGED_BYTES: usize = 16 << 10;
/// All bodies of a world have at most so many bytes, so that a world does not take long.
pub(super) const BODIES_BYTES: usize = 6 << 20;
/// What a prompt that is told takes beside its blocks.
const TOLD_BYTES: usize = 4 << 10;
/// The block that stands for those of a long prompt that are not told.
const NOT_SHOWN: &[u8] = br#"{"type":"text","text":"[more of this prompt is not shown]"}"#;
/// How a block begins that names its prompt.
const TAGGED: &[u8] = br#"{"type":"text","of":["#;
/// Behind these the rest of a line is only a body, and the ends of what is around it.
const BODIES: [&[u8]; 3] = [br#","body":"#, br#","prompt":["#, br#","content":"#];
/// They are found among so many bytes.
const HEAD_BYTES: usize = 400;

/// A prompt of a client.
pub(super) struct Prompt {
    pub(super) by: Link,
    pub(super) line_bytes: usize,
    blocks: Vec<Vec<u8>>,
    /// The line behind the session's name.
    tail: Vec<u8>,
    /// Between how many updates the agent got it.
    place: Option<(usize, usize)>,
    /// What the agent has answered, behind the id.
    answer: Option<Vec<u8>>,
}

/// Where a client is among the prompts of a session that it is told.
#[derive(Clone, Copy, Default)]
pub(super) struct Follows {
    /// The prompt, counted in the session, and how many of its blocks were told, in so many bytes.
    prompt: Option<usize>,
    blocks: usize,
    bytes: usize,
    is_shortened: bool,
    /// The first prompt that it was told.
    first: Option<usize>,
}

/// A line as JSON. A long one has no body, which is compared as bytes.
pub(super) fn parsed(line: &[u8]) -> Value {
    let head = &line[..line.len().min(HEAD_BYTES)];
    let cut = BODIES.iter().filter_map(|body| head.windows(body.len()).position(|part| part == *body)).min();
    if let Some(cut) = cut.filter(|_| line.len() > HEAD_BYTES) {
        let head = &head[..cut];
        let count = |byte: u8| head.iter().filter(|it| **it == byte).count();
        let whole = [head, "}".repeat(count(b'{') - count(b'}')).as_bytes()].concat();
        return serde_json::from_slice(&whole).expect("the bus writes JSON");
    }
    serde_json::from_slice(line).expect("the bus writes JSON")
}

/// What is before the name of the session in a line, and what is behind it.
fn around_name(line: &[u8]) -> Option<(&[u8], &[u8])> {
    const KEY: &[u8] = br#""sessionId":""#;
    let head = &line[..line.len().min(HEAD_BYTES)];
    let start = head.windows(KEY.len()).position(|part| part == KEY)? + KEY.len();
    let end = start + head[start..].iter().position(|byte| *byte == b'"')?;
    Some((&line[..start], &line[end..]))
}

impl World {
    /// A body of this length.
    fn body(of: &str, length: usize) -> String {
        let mut body = format!("{of}/").repeat(length / (of.len() + 1) + 1);
        body.truncate(length);
        body
    }

    /// The length of a line: often short, often about one at which something changes, now and then very long.
    fn some_length(&mut self) -> usize {
        let length = match self.rng.below(40) {
            0..20 => self.rng.below(300),
            20..30 => {
                let about = self.rng.one(&[
                    LONG_LINE_BYTES / 2,
                    LONG_LINE_BYTES,
                    SEGMENT_BYTES,
                    LONG_LINE_NEXT,
                    BULK_BYTES,
                    UNLOGGED_BYTES,
                    UNLOGGED_BYTES,
                    self.queue_bytes / 2,
                    self.queue_bytes,
                ]);
                about.min(64 << 10) + self.rng.below(3) - 1
            }
            30..37 => {
                let most = 1 << self.rng.within(4, 16);
                self.rng.below(most)
            }
            37..39 => self.rng.within(200, 900) << self.rng.one(&[4, 4, 10]),
            _ => self.rng.one(&[LONG_BUFFER_BYTES - 1, LONG_BUFFER_BYTES + 1, 128 << 10, 3 << 20]),
        };
        let length = if length > self.bodies_left { length % 1000 } else { length };
        self.bodies_left = self.bodies_left.saturating_sub(length);
        length
    }

    pub(super) fn agent_says(&mut self) {
        for _ in 0..if self.is_long { self.rng.one(&[1, 1, 2, 3, 8]) } else { 1 } {
            let Some((session, _)) = self.some_session() else { return };
            let Some(link) = self.agent_of(session) else { return };
            let said = self.sessions[session].said;
            self.sessions[session].said += 1;
            let line = if self.is_long {
                self.update(session, said)
            } else {
                let pad = "x".repeat(self.rng.one(&[0, 100, 1000, 1000]));
                let update = json!({ "sessionUpdate": "agent_message_chunk", "said": said, "pad": pad });
                let params = json!({ "sessionId": format!("a{session}"), "update": update });
                format!("{}\n", json!({ "method": "session/update", "params": params }))
            };
            self.sessions[session].lines.push(line.trim_end().as_bytes().into());
            self.gives_line(link, line.as_bytes(), Mark::Said(session));
        }
        self.check_heard();
    }

    /// An update, with its newline. The shortest are shorter than any that real agents send.
    fn update(&mut self, session: usize, said: usize) -> String {
        let begin = format!(r#"{{"method":"session/update","params":{{"sessionId":"a{session}","#);
        if self.rng.percent(40) {
            return format!("{begin}\"said\":{said}}}}}\n");
        }
        let length = self.some_length();
        let head = format!(r#""update":{{"sessionUpdate":"agent_message_chunk","said":{said},"body":"#);
        let around = begin.len() + head.len() + "\"\"}}}".len();
        let body = World::body(&format!("{session}.{said}"), length.saturating_sub(around));
        format!("{begin}{head}\"{body}\"}}}}}}\n")
    }

    /// A client has read an update of the agent: it is the one that the agent has sent, but for the session's name.
    pub(super) fn check_said(&self, session: usize, said: usize, line: &[u8]) {
        let expected = self.sessions[session].lines.get(said).and_then(|line| around_name(line));
        if expected.is_none() || around_name(line) != expected {
            let (begin, end) = (&line[..line.len().min(200)], &line[line.len().saturating_sub(100)..]);
            let (begin, end) = (String::from_utf8_lossy(begin), String::from_utf8_lossy(end));
            broken!("(4) bytes", "{said} of session {session} is told as {begin}..{end} ({})", line.len());
        }
    }

    pub(super) fn agent_ends_turn(&mut self) {
        let running: Vec<(usize, u64)> = self
            .sessions
            .iter()
            .enumerate()
            .flat_map(|(at, session)| session.running.keys().map(move |id| (at, *id)))
            .collect();
        let Some((session, id)) = self.rng.pick(&running).copied() else { return };
        let home = self.sessions[session].running[&id].home;
        let Some(process) = self.shell.processes.get(home).filter(|process| process.stdin_open) else {
            return;
        };
        let link = process.link;
        let Some(Running { prompt, .. }) = self.sessions[session].running.remove(&id) else { return };
        let mut answer = r#","result":{"stopReason":"end_turn"}}"#.to_owned();
        if let Some(prompt) = prompt {
            let body = World::body(&format!("answer {prompt}"), self.some_length());
            answer = format!(r#","result":{{"stopReason":"end_turn","body":"{body}"}}}}"#);
            self.prompts[prompt].answer = Some(answer.as_bytes().to_vec());
        }
        self.gives_line(link, format!("{{\"id\":{id}{answer}\n").as_bytes(), Mark::Line);
    }

    /// A client has the answer to its prompt. If the agent gave one, it is that.
    pub(super) fn check_answer(&self, prompt: usize, line: &[u8]) {
        let Some(answer) = &self.prompts[prompt].answer else { return };
        let id = line.iter().position(|byte| *byte == b',').unwrap_or(0);
        if line[id..] != **answer {
            broken!(
                "(4) bytes",
                "prompt {prompt} has an answer of {} bytes, not {}",
                line.len(),
                answer.len()
            );
        }
    }

    // Prompts.

    pub(super) fn prompts(&mut self, at: usize) {
        let Some((session, mut part, id)) = self.some_own(at) else { return };
        // Who only observes may be about to take over.
        if self.clients[at].asked.values().any(|asked| *asked == Asked::Take(session)) {
            part = Part::Owner;
        }
        let count = self.rng.one(&[1, 1, 1, 3, 20]);
        for _ in 0..if self.is_long { count.min(3) } else { count } {
            if self.is_long {
                self.prompts_much(at, (session, part), &id);
                continue;
            }
            let prompt = json!([{ "type": "text", "text": format!("p{at}") }]);
            let link = self.clients[at].link;
            let params = json!({ "sessionId": id, "prompt": prompt, "by": format!("{link:?}") });
            self.asks(at, "session/prompt", params, Asked::Prompt { session, part, prompt: None });
        }
    }

    /// A prompt of any length, with any number of blocks.
    fn prompts_much(&mut self, at: usize, (session, part): (usize, Part), id: &str) {
        let (link, prompt) = (self.clients[at].link, self.prompts.len());
        let blocks = self.blocks(prompt);
        let head = format!(r#"","by":"{link:?}","number":{prompt},"prompt":["#);
        let tail = [head.as_bytes(), &blocks.join(&b','), b"]}}"].concat();
        self.next_id += 1;
        let begin =
            format!(r#"{{"id":{},"method":"session/prompt","params":{{"sessionId":"{id}"#, self.next_id);
        let line = [begin.as_bytes(), &tail, b"\n"].concat();
        let line_bytes = line.len();
        self.prompts.push(Prompt { by: link, line_bytes, blocks, tail, place: None, answer: None });
        self.clients[at].asked.insert(self.next_id, Asked::Prompt { session, part, prompt: Some(prompt) });
        self.gives_line(link, &line, Mark::Line);
    }

    /// The blocks of a prompt: none, some, or so many that each takes more room when it is told. All have the number of
    /// the prompt, but for the shortest.
    fn blocks(&mut self, prompt: usize) -> Vec<Vec<u8>> {
        let count = self.rng.one(&[0, 1, 1, 1, 2, 5, 60, 600, 4_000]);
        let bare = self.rng.one(&["1", "\"\"", "[]", "{}", "null", "[[1],{}]"]);
        let has_bare = self.rng.percent(50) || count > 60;
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        for nth in 0..count {
            if has_bare && (nth > 0 || self.rng.percent(10)) {
                blocks.push(bare.into());
                continue;
            }
            let length = if nth < 3 { self.some_length() } else { 0 };
            let text = World::body(&format!("prompt {prompt}.{nth}"), length);
            blocks.push(format!(r#"{{"type":"text","of":[{prompt},{nth}],"text":"{text}"}}"#).into_bytes());
        }
        blocks
    }

    /// The agent has got a prompt as the client has sent it.
    pub(super) fn check_prompt(&mut self, session: usize, prompt: usize, line: &[u8]) {
        let it = &mut self.sessions[session];
        it.prompts.push(prompt);
        self.prompts[prompt].place = Some((it.given_before, it.given));
        if around_name(line).map(|(_, tail)| tail) != Some(&self.prompts[prompt].tail) {
            broken!("(4) bytes", "prompt {prompt} comes as {} bytes", line.len());
        }
    }

    /// A client is told a part of somebody's prompt, before the update with the number `next`, if that is known.
    pub(super) fn hears_prompt(
        &mut self,
        at: usize,
        session: usize,
        is_joining: bool,
        next: Option<usize>,
        line: &[u8],
    ) {
        const KEY: &[u8] = br#""content":"#;
        let head = &line[..line.len().min(HEAD_BYTES)];
        let Some(start) = head.windows(KEY.len()).position(|part| part == KEY) else { return };
        let content = line[start + KEY.len()..].strip_suffix(b"}}}").unwrap_or_default();
        let link = self.clients[at].link;
        let mut follows = self.clients[at].follows.get(&session).copied().unwrap_or_default();
        let of = |number: usize| &self.prompts[self.sessions[session].prompts[number]];
        let goes_on = follows.prompt.filter(|number| {
            let rest = &of(*number).blocks[follows.blocks..];
            !follows.is_shortened && !rest.is_empty() && (rest[0] == content || content == NOT_SHOWN)
        });
        // Whoever comes in the middle can begin with any prompt that can be told from others.
        if follows.prompt.is_none() && !content.starts_with(TAGGED) {
            return;
        }
        let number = goes_on.or_else(|| {
            let from = follows.prompt.map_or(0, |last| last + 1);
            let is_told =
                |number: &usize| !of(*number).blocks.is_empty() && (is_joining || of(*number).by != link);
            let mut later = (from..self.sessions[session].prompts.len()).filter(is_told);
            match follows.prompt {
                Some(_) => later.next().filter(|number| of(*number).blocks[0] == content),
                None => later.find(|number| of(*number).blocks[0] == content),
            }
        });
        let Some(number) = number else {
            let content = String::from_utf8_lossy(&content[..content.len().min(200)]).into_owned();
            broken!("(4) bytes", "{link:?} is told of session {session} what nobody has said: {content}");
        };
        if goes_on.is_none() {
            self.prompt_is_whole(at, session);
            follows =
                Follows { prompt: Some(number), first: follows.first.or(Some(number)), ..Follows::default() };
        }
        let prompt = of(number);
        follows.is_shortened = prompt.blocks[follows.blocks] != content;
        (follows.blocks, follows.bytes) = (follows.blocks + 1, follows.bytes + line.len() + 1);
        if follows.bytes > TOLD_TIMES * prompt.line_bytes + TOLD_BYTES {
            let (bytes, of) = (follows.bytes, prompt.line_bytes);
            broken!("(6) bounded memory", "{link:?} is told {bytes} bytes of a prompt of {of}");
        }
        let (earliest, latest) = prompt.place.unwrap_or_default();
        if next.is_some_and(|next| !(earliest..=latest).contains(&next)) {
            broken!("(19) one order", "{link:?} is told prompt {number} of {session} before {next:?}");
        }
        self.clients[at].follows.insert(session, follows);
    }

    /// A client is told something else of this session, so the prompt before was told as a whole.
    pub(super) fn prompt_is_whole(&self, at: usize, session: usize) {
        let Some(Follows { prompt: Some(number), blocks, is_shortened, .. }) =
            self.clients[at].follows.get(&session).copied()
        else {
            return;
        };
        let prompt = &self.prompts[self.sessions[session].prompts[number]];
        if blocks < prompt.blocks.len() && !is_shortened {
            broken!("(4) bytes", "{blocks} of {} blocks of a prompt are told", prompt.blocks.len());
        }
    }

    /// Whether the first prompt that a client was told of this session, before the update with the number `next`, is
    /// the first that there is, as far as it can be told from others.
    pub(super) fn begins_with_first(&self, at: usize, session: usize, next: Option<usize>) -> bool {
        let prompts = &self.sessions[session].prompts;
        let has_blocks = |number: &usize| !self.prompts[prompts[*number]].blocks.is_empty();
        let Some(first) = (0..prompts.len()).find(has_blocks) else { return true };
        let prompt = &self.prompts[prompts[first]];
        let is_before = prompt.place.is_some_and(|(_, latest)| next.is_some_and(|next| latest < next));
        match self.clients[at].follows.get(&session).and_then(|follows| follows.first) {
            _ if !prompt.blocks[0].starts_with(TAGGED) => true,
            Some(told) => told == first,
            None => !is_before,
        }
    }
}
