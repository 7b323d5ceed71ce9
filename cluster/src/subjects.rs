//! The NATS subjects of the cluster, and the names in them.
//!
//! | subject | who listens |
//! |---|---|
//! | `bus.v1.ask.POOL` | every link that offers the pool; `bus.v1.ask.%nodes` every link |
//! | `bus.v1.open.NODE` | the link of that node |
//! | `bus.v1.p.e.NAME.RANDOM.PIPE` | one process of an edge: the frames of its pipes |
//! | `bus.v1.p.n.NAME.RANDOM.PIPE` | one link: the frames of its pipes |
//! | `bus.v1.note.NODE` | whoever wants to know that the node came up, drains or is gone |
//! | `_INBOX.NAME.RANDOM.*` | the bus of that name: answers to what it has asked, each at the name of who answers |
//!
//! A name is a token of its own, because a wildcard of NATS stands for whole tokens: so permissions can be written.

use std::fmt::Write;

use async_nats::Subject;
pub(crate) use kernel_shell::config::host_name;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Asks every node who it is.
pub(crate) const ALL_NODES: &str = "bus.v1.ask.%nodes";

/// The last token of a subject at which answers are expected.
const ANYBODY: &str = "%";

pub(crate) const NAME_CHARS_MAX: usize = 32;

/// Where the pool is asked for. The only characters of a pool that are not of a token are dots.
pub(crate) fn ask(pool: &str) -> Subject {
    format!("bus.v1.ask.{}", pool.replace('.', "%2E")).into()
}

pub(crate) fn open(node: &str) -> Subject {
    format!("bus.v1.open.{node}").into()
}

pub(crate) fn note(node: &str) -> Subject {
    format!("bus.v1.note.{node}").into()
}

/// The prefix of what is answered to this process.
pub(crate) fn inbox(name: &str) -> String {
    format!("_INBOX.{name}")
}

/// Where the answers to one request come. Its random part is known only to those who hear the request.
pub(crate) struct AnswerPlace(String);

/// A new place for answers to the bus that has this name.
pub(crate) fn answers_to(name: &str) -> AnswerPlace {
    AnswerPlace(format!("_INBOX.{name}.{}", random_token()))
}

impl AnswerPlace {
    pub(crate) fn of_everybody(&self) -> Subject {
        format!("{}.*", self.0).into()
    }

    /// What is said to those who are asked. Nobody has this name; only the server answers here, if nobody listens.
    pub(crate) fn reply(&self) -> Subject {
        format!("{}.{ANYBODY}", self.0).into()
    }
}

/// Where the node of this name answers. Other programs than ours expect an answer where they say.
pub(crate) fn answer_of(node: &str, reply: &str) -> Subject {
    match reply.strip_suffix(ANYBODY).filter(|place| place.ends_with('.')) {
        Some(place) => format!("{place}{node}").into(),
        None => reply.into(),
    }
}

/// Whether only the bus of this name hears what is answered there.
pub(crate) fn is_of(name: &str, reply: &str) -> bool {
    reply
        .strip_prefix("_INBOX.")
        .and_then(|rest| rest.strip_prefix(name))
        .is_some_and(|rest| rest.starts_with('.'))
}

/// The name of the node that has answered at this subject.
pub(crate) fn answered_by(subject: &str) -> Option<&str> {
    subject.rsplit('.').next().filter(|name| is_name(name))
}

/// The address of a process: frames for it are published below it. It cannot be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address(String);

impl Address {
    /// A new one for a process of an edge.
    pub(crate) fn of_edge(name: &str) -> Address {
        Address(format!("e.{name}.{}", random_token()))
    }

    /// A new one for a link.
    pub(crate) fn of_node(name: &str) -> Address {
        Address(format!("n.{name}.{}", random_token()))
    }

    /// Reads the address of an edge that a peer has sent. It becomes a part of a subject, so it may hold nothing else.
    pub(crate) fn parse(text: &str, role: &str) -> Option<Address> {
        let mut tokens = text.split('.');
        let (found, name, random) = (tokens.next()?, tokens.next()?, tokens.next()?);
        let good = found == role && is_name(name) && random.len() == 22 && is_token(random);
        (good && tokens.next().is_none()).then(|| Address(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the bus.
    pub(crate) fn name(&self) -> &str {
        self.0.split('.').nth(1).unwrap_or_default()
    }

    /// All frames for this process.
    pub(crate) fn all_pipes(&self) -> Subject {
        format!("bus.v1.p.{}.*", self.0).into()
    }

    /// The frames of this pipe for this process.
    pub(crate) fn pipe(&self, number: u64) -> Subject {
        format!("bus.v1.p.{}.{number:016x}", self.0).into()
    }
}

/// The number of the pipe that a subject of `Address::pipe` ends with.
pub(crate) fn pipe_of(subject: &str) -> Option<u64> {
    let (_, last) = subject.rsplit_once('.')?;
    // `from_str_radix` would take a sign as well.
    let is_number = last.len() == 16 && last.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(last, 16).ok()).flatten()
}

/// Whether this may be the name of a bus: letters, digits, `-` and `_`, at most 32, and no `-` first.
pub(crate) fn is_name(text: &str) -> bool {
    is_id(text) && !text.starts_with('-')
}

/// Whether this may tell one edge, or one life of it, from others.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() <= NAME_CHARS_MAX && is_token(text)
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
}

/// 128 random bits as 22 characters.
pub(crate) fn random_token() -> String {
    URL_SAFE_NO_PAD.encode(random_bytes::<16>())
}

pub(crate) fn random_number() -> u64 {
    u64::from_be_bytes(random_bytes())
}

pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

/// What a peer says, for people: without control characters and not too long.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars().take(200) {
        let _ = if letter.is_control() { shown.write_char('?') } else { shown.write_char(letter) };
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_back_and_nothing_else_is_one() {
        let edge = Address::of_edge("e3");
        assert_eq!(Address::parse(edge.as_str(), "e"), Some(edge.clone()));
        assert_eq!(Address::parse(edge.as_str(), "n"), None);
        let random = random_token();
        for bad in [
            String::new(),
            "e.e3".to_owned(),
            format!("e.*.{random}"),
            format!("e.e3.{random}.>"),
            format!("e..{random}"),
            "e.e3.>".to_owned(),
            format!("e.e3.{}", &random[1..]),
            format!("e.{}.{random}", "x".repeat(33)),
        ] {
            assert_eq!(Address::parse(&bad, "e"), None, "{bad}");
        }
        assert_eq!(pipe_of(&edge.pipe(0xab)), Some(0xab));
        assert_eq!(pipe_of("bus.v1.p.e.e3.x.+0000000000000ab"), None);
        assert_eq!(pipe_of("bus.v1.p.e.e3.x.1"), None);
    }

    #[test]
    fn an_answer_says_by_its_subject_whose_it_is() {
        let place = answers_to("e3");
        let answer = answer_of("n17", &place.reply());
        assert!(answer.starts_with("_INBOX.e3.") && answer.ends_with(".n17"), "{answer}");
        assert_eq!(answer.split('.').count(), 4, "as in the permissions of the documentation");
        assert_eq!(answered_by(&answer), Some("n17"));
        assert_eq!(answered_by(&place.reply()), None);
        assert_eq!(answer_of("n17", "_INBOX.tool.1").as_str(), "_INBOX.tool.1");
        assert_ne!(place.reply(), answers_to("e3").reply());
        assert_eq!(Address::of_node("n17").name(), "n17");
    }

    #[test]
    fn a_pool_is_one_token() {
        assert_eq!(ask("claude").as_str(), "bus.v1.ask.claude");
        assert_eq!(ask("a.b").as_str(), "bus.v1.ask.a%2Eb");
        assert!(is_name(&host_name()) && is_name("n-1") && !is_name("-n1") && is_id("-n1"));
    }
}
