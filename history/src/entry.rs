//! The format of a file: its first line says what session it is, and each further line is one entry.
//!
//! The files are only appended to, so everything before the last line stays as it was written.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The version of the format.
pub const VERSION: u32 = 1;

/// Who an entry is by, if it is by the agent.
pub const AGENT: &str = "agent";
/// Who an entry is by, if nobody has said it.
pub const BUS: &str = "bus";

/// The first line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The version of the format.
    pub v: u32,
    /// The id under which the bus knew it.
    pub session: String,
    /// The id under which the agent knows it, by which it can be opened again.
    pub agent_session: String,
    /// Its pool.
    pub pool: String,
    /// What the agent calls itself.
    pub agent: Option<String>,
    /// The folder that it was opened in.
    pub cwd: Option<String>,
    /// The machine of the agent, if it is another one.
    pub node: Option<String>,
    /// When it was opened, or first heard of, as RFC 3339.
    pub opened: String,
    /// Which life of the session it begins with. The bus counts the lines of each life from its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub life: Option<String>,
}

impl Header {
    /// The line of the file, with its newline.
    pub fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Reads the first line of a file. `None`: it is no file of this program, or of a later version.
    pub fn parse(line: &[u8]) -> Option<Header> {
        let header: Header = serde_json::from_slice(line).ok()?;
        (header.v == VERSION).then_some(header)
    }

    /// Whether it tells of this life. The id changes when another client owns the session, and may be the same in a
    /// later life; it decides only where a file was written before lives were told.
    pub fn is_life(&self, session: &str, life: Option<&str>) -> bool {
        match (self.life.as_deref(), life) {
            (Some(own), Some(other)) => own == other,
            _ => self.session == session,
        }
    }
}

/// One line of a file after the first.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it was said, as RFC 3339 with milliseconds.
    pub at: String,
    /// `agent`, the name of a client, or `bus`.
    pub by: String,
    /// How many lines of the session the bus had logged when this was said.
    pub n: Option<u64>,
    /// How many bytes of it were left out.
    pub cut: Option<u64>,
    /// What it is.
    pub what: What,
}

/// What an entry is.
#[derive(Clone, Debug)]
pub enum What {
    /// A message as the owner of the session saw it. The chunks of one message are joined.
    Message(Box<RawValue>),
    /// Something that was said is not here.
    Gap(Gap),
    /// Something became of the session.
    Event(Event),
}

/// Something that was said is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gap {
    /// How many lines are missing at least. `None`: nobody has counted them.
    pub lines: Option<u64>,
    /// Why.
    pub why: String,
}

/// What became of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It has ended at the bus.
    Closed,
    /// It goes on, at the same bus or another.
    Reopened {
        /// The id under which the bus knows it now.
        session: String,
        /// Which life of it begins here.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        life: Option<String>,
    },
}

#[derive(Deserialize)]
struct Parsed<'a> {
    #[serde(borrow)]
    at: Cow<'a, str>,
    #[serde(borrow)]
    by: Cow<'a, str>,
    n: Option<u64>,
    cut: Option<u64>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    gap: Option<Gap>,
    event: Option<Event>,
}

impl Entry {
    /// An entry of this program itself.
    pub fn own(at: String, what: What) -> Entry {
        Entry { at, by: BUS.to_owned(), n: None, cut: None, what }
    }

    /// The line of the file, with its newline.
    pub fn line(&self) -> Vec<u8> {
        let mut line = format!(r#"{{"at":{},"by":{}"#, quoted(&self.at), quoted(&self.by)).into_bytes();
        for (name, number) in [("n", self.n), ("cut", self.cut)] {
            if let Some(number) = number {
                line.extend_from_slice(format!(r#","{name}":{number}"#).as_bytes());
            }
        }
        match &self.what {
            What::Message(message) => {
                line.extend_from_slice(br#","message":"#);
                // A carriage return may stand between values, and some readers take it for the end of a line.
                line.extend(
                    message
                        .get()
                        .bytes()
                        .map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }),
                );
            }
            What::Gap(gap) => line.extend_from_slice(format!(r#","gap":{}"#, json!(gap)).as_bytes()),
            What::Event(event) => line.extend_from_slice(format!(r#","event":{}"#, json!(event)).as_bytes()),
        }
        line.extend_from_slice(b"}\n");
        line
    }

    /// Reads a line. `None`: it is no entry.
    pub fn parse(line: &[u8]) -> Option<Entry> {
        let parsed: Parsed<'_> = serde_json::from_slice(line).ok()?;
        let what = match (parsed.message, parsed.gap, parsed.event) {
            (Some(message), ..) => What::Message(message.to_owned()),
            (None, Some(gap), _) => What::Gap(gap),
            (None, None, Some(event)) => What::Event(event),
            (None, None, None) => return None,
        };
        Some(Entry { at: parsed.at.into(), by: parsed.by.into(), n: parsed.n, cut: parsed.cut, what })
    }
}

fn quoted(text: &str) -> Value {
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let message = RawValue::from_string("{\"method\":\"a\",\r\"x\":\"\\u0000\"}".to_owned()).unwrap();
        let entry = Entry {
            at: "2026-11-18T08:00:00.000Z".to_owned(),
            by: "a \"name\"\n".to_owned(),
            n: Some(7),
            cut: Some(9),
            what: What::Message(message),
        };
        let line = entry.line();
        assert_eq!(line.iter().filter(|byte| byte.is_ascii_control()).count(), 1);
        let read = Entry::parse(&line).unwrap();
        assert_eq!((&*read.at, &*read.by, read.n, read.cut), (&*entry.at, &*entry.by, Some(7), Some(9)));
        assert!(
            matches!(&read.what, What::Message(message) if message.get().starts_with("{\"method\":\"a\", "))
        );
        let gap = Gap { lines: Some(3), why: "the disk was full".to_owned() };
        let read = Entry::parse(&Entry::own(String::new(), What::Gap(gap.clone())).line()).unwrap();
        assert!(matches!(read.what, What::Gap(read) if read == gap));
        for bad in ["", "{}", "7", r#"{"at":"","by":""}"#, r#"{"at":1,"by":"","message":{}}"#] {
            assert!(Entry::parse(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_header_is_of_this_version() {
        let header = Header { v: VERSION, session: "T.a".to_owned(), ..Header::default() };
        assert_eq!(Header::parse(&header.line()), Some(header.clone()));
        assert_eq!(Header::parse(&Header { v: 2, ..header }.line()), None);
        assert_eq!(Header::parse(b"{}"), None);
    }
}
