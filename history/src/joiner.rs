//! Joins the chunks of one message, so that a transcript is a few times smaller than what went over the wire.
//!
//! A message is over when something else is said. What waits is bounded: a very long message becomes several entries.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::entry::{Entry, What};

/// A message that is longer is written in parts.
const JOINED_BYTES: usize = 256 << 10;

/// The updates that come in chunks.
const CHUNKS: [&str; 3] = ["agent_message_chunk", "agent_thought_chunk", "user_message_chunk"];

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    session_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    update: Option<Update<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    session_update: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Content<'a>>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

/// A chunk that others may continue.
struct Chunk<'a> {
    kind: Cow<'a, str>,
    session: Cow<'a, str>,
    message_id: Option<Cow<'a, str>>,
    text: Cow<'a, str>,
    meta: Option<Value>,
}

impl<'a> Chunk<'a> {
    fn of(message: &'a RawValue) -> Option<Chunk<'a>> {
        let line: Line<'a> = serde_json::from_str(message.get()).ok()?;
        line.method.filter(|method| method == "session/update")?;
        let params = line.params?;
        let update = params.update?;
        let kind = update.session_update.filter(|kind| CHUNKS.contains(&&**kind))?;
        let content = update.content.filter(|content| content.annotations.is_none())?;
        content.kind.filter(|kind| kind == "text")?;
        let (session, text) = (params.session_id?, content.text?);
        Some(Chunk { kind, session, message_id: update.message_id, text, meta: update.meta })
    }
}

/// A message that may go on.
struct Waiting {
    at: String,
    by: String,
    n: Option<u64>,
    kind: String,
    session: String,
    message_id: Option<String>,
    text: String,
    meta: Option<Value>,
}

impl Waiting {
    fn goes_on_with(&self, entry: &Entry, chunk: &Chunk<'_>) -> bool {
        self.by == entry.by
            && self.kind == chunk.kind
            && self.session == chunk.session
            && self.message_id.as_deref() == chunk.message_id.as_deref()
            && (chunk.meta.is_none() || self.meta == chunk.meta)
            && self.text.len() + chunk.text.len() <= JOINED_BYTES
    }

    fn into_entry(self) -> Entry {
        let content = json!({ "type": "text", "text": self.text });
        let mut update = json!({ "sessionUpdate": self.kind, "content": content });
        if let Some(id) = self.message_id {
            update["messageId"] = id.into();
        }
        if let Some(meta) = self.meta {
            update["_meta"] = meta;
        }
        let params = json!({ "sessionId": self.session, "update": update });
        let message = json!({ "jsonrpc": "2.0", "method": "session/update", "params": params });
        let what = What::Message(serde_json::value::to_raw_value(&message).unwrap_or_default());
        Entry { at: self.at, by: self.by, n: self.n, cut: None, what }
    }
}

/// What is being said in one session.
#[derive(Default)]
pub struct Joiner {
    waiting: Option<Waiting>,
}

impl Joiner {
    /// Something is said. `over` gets the entries that are over with it, in order.
    pub fn hear(&mut self, entry: Entry, over: &mut Vec<Entry>) {
        let chunk = match &entry.what {
            What::Message(message) if entry.cut.is_none() => Chunk::of(message),
            _ => None,
        };
        let Some(chunk) = chunk else {
            over.extend(self.flush());
            over.push(entry);
            return;
        };
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.goes_on_with(&entry, &chunk)) {
            waiting.text.push_str(&chunk.text);
            waiting.n = entry.n.or(waiting.n);
            return;
        }
        over.extend(self.waiting.take().map(Waiting::into_entry));
        self.waiting = Some(Waiting {
            kind: chunk.kind.into_owned(),
            session: chunk.session.into_owned(),
            message_id: chunk.message_id.map(Cow::into_owned),
            text: chunk.text.into_owned(),
            meta: chunk.meta,
            at: entry.at,
            by: entry.by,
            n: entry.n,
        });
    }

    /// Takes what waits, whether it is over or not.
    pub fn flush(&mut self) -> Option<Entry> {
        self.waiting.take().map(Waiting::into_entry)
    }

    /// Whether a message is not over.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(by: &str, message: &Value) -> Entry {
        let message = serde_json::value::to_raw_value(message).unwrap();
        Entry { at: "t".to_owned(), by: by.to_owned(), n: None, cut: None, what: What::Message(message) }
    }

    fn chunk(kind: &str, id: Option<&str>, text: &str) -> Value {
        let mut update = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
        if let Some(id) = id {
            update["messageId"] = id.into();
        }
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "s", "update": update } })
    }

    fn texts(entries: &[Entry]) -> Vec<(String, String)> {
        let text = |entry: &Entry| {
            let What::Message(message) = &entry.what else { panic!("a message") };
            let message: Value = serde_json::from_str(message.get()).unwrap();
            let update = &message["params"]["update"];
            let kind = update["sessionUpdate"].as_str().unwrap_or("other").to_owned();
            (kind, update["content"]["text"].as_str().unwrap_or_default().to_owned())
        };
        entries.iter().map(text).collect()
    }

    #[test]
    fn chunks_of_one_message_become_one_entry() {
        let mut joiner = Joiner::default();
        let mut over = Vec::new();
        let (said, thought) = ("agent_message_chunk", "agent_thought_chunk");
        for (kind, id, text) in [
            (thought, None, "hm"),
            (thought, None, "m"),
            (said, Some("1"), "Hel"),
            (said, Some("1"), "lo"),
            (said, Some("2"), "You"),
        ] {
            joiner.hear(entry("agent", &chunk(kind, id, text)), &mut over);
        }
        joiner.hear(entry("agent", &json!({ "method": "session/update" })), &mut over);
        joiner.hear(entry("zed", &chunk(said, None, "a")), &mut over);
        joiner.hear(entry("ben", &chunk(said, None, "b")), &mut over);
        assert!(joiner.is_waiting());
        over.extend(joiner.flush());
        let expected =
            [(thought, "hmm"), (said, "Hello"), (said, "You"), ("other", ""), (said, "a"), (said, "b")];
        assert_eq!(texts(&over), expected.map(|(kind, text)| (kind.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_long_message_does_not_wait_as_a_whole() {
        let mut joiner = Joiner::default();
        let mut over = Vec::new();
        let text = "x".repeat(100 << 10);
        for _ in 0..10 {
            joiner.hear(entry("agent", &chunk("agent_message_chunk", None, &text)), &mut over);
        }
        over.extend(joiner.flush());
        assert_eq!(over.len(), 5);
        assert_eq!(texts(&over).iter().map(|(_, text)| text.len()).sum::<usize>(), 1000 << 10);
    }

    proptest! {
        /// Nothing that was said is lost, doubled or said in another order, whatever comes.
        #[test]
        fn all_texts_are_there_in_their_order(
            said in prop::collection::vec((0..4usize, prop::option::of("[ab]"), ".{0,5}", any::<bool>()), 0..40)
        ) {
            let kinds = ["agent_message_chunk", "agent_thought_chunk", "user_message_chunk", "tool_call"];
            let (mut joiner, mut over) = (Joiner::default(), Vec::new());
            for (kind, id, text, flushes) in &said {
                joiner.hear(entry("agent", &chunk(kinds[*kind], id.as_deref(), text)), &mut over);
                if *flushes {
                    over.extend(joiner.flush());
                }
            }
            over.extend(joiner.flush());
            let squeezed = |all: Vec<(String, String)>| {
                all.into_iter().fold(Vec::<(String, String)>::new(), |mut all, (kind, text)| {
                    match all.last_mut() {
                        Some((last, joined)) if *last == kind => joined.push_str(&text),
                        _ => all.push((kind, text)),
                    }
                    all
                })
            };
            let wire = said.iter().map(|(kind, _, text, _)| (kinds[*kind].to_owned(), text.clone())).collect();
            prop_assert_eq!(squeezed(texts(&over)), squeezed(wire));
        }
    }
}
