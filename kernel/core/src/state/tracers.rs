//! The clients that follow the traffic (`_bus/trace`), and what each wants to see.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::Link;
use crate::limit::{NAME_BYTES, TRACERS};
use crate::mutants::{Check, enabled};
use crate::wire::error::RpcError;

#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Tracers {
    list: Vec<Tracer>,
    /// Whether bus.json lets payloads be seen.
    payloads: bool,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Tracer {
    pub(crate) link: Link,
    pub(crate) filter: Filter,
    /// How many events were dropped since the last that fitted into the queue.
    pub(crate) dropped: u64,
}

/// What a tracer wants to see: the params of `_bus/trace`.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Filter {
    pub(crate) pool: Option<Box<str>>,
    /// A label of the bus, or the id that the client of the session uses.
    session: Option<Box<str>>,
    /// The name of a client, or its number.
    client: Option<Box<str>>,
    pub(crate) payloads: bool,
}

/// What a line is about.
pub(crate) struct Subject<'a> {
    pub(crate) pool: Option<&'a str>,
    pub(crate) worker: Option<u32>,
    pub(crate) node: Option<&'a str>,
    pub(crate) client: Option<Cow<'a, str>>,
    pub(crate) session: Option<String>,
    /// The owner's name of the session.
    pub(crate) session_id: Option<&'a [u8]>,
}

impl Tracers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn has(&self, link: Link) -> bool {
        self.list.iter().any(|tracer| tracer.link == link)
    }

    /// Adds a tracer, or changes what it sees.
    pub(crate) fn add(&mut self, link: Link, filter: Filter) -> Result<(), RpcError> {
        if filter.payloads && !self.payloads && enabled(Check::TracePayloads) {
            return Err(RpcError::invalid(
                "payloads are shown only where bus.json says \"trace\": {\"payloads\": true}",
            ));
        }
        self.remove(link);
        if self.list.len() >= TRACERS {
            return Err(RpcError::busy(format!("{TRACERS} others follow the traffic")));
        }
        self.list.push(Tracer { link, filter, dropped: 0 });
        Ok(())
    }

    pub(crate) fn remove(&mut self, link: Link) {
        self.list.retain(|tracer| tracer.link != link);
    }

    /// Whether payloads may be seen. Tracers that see them now obey as well.
    pub(crate) fn allow_payloads(&mut self, payloads: bool) {
        self.payloads = payloads;
        for tracer in &mut self.list {
            tracer.filter.payloads &= payloads;
        }
    }

    /// The tracers that want to see a line about this subject.
    pub(crate) fn interested(&mut self, subject: &Subject<'_>) -> Vec<&mut Tracer> {
        self.list.iter_mut().filter(|tracer| tracer.filter.matches(subject)).collect()
    }
}

impl Filter {
    /// The bytes of its three names.
    pub(crate) fn bytes(&self) -> usize {
        self.names().map(str::len).sum()
    }

    /// The error that one of its names is too long, if one is.
    pub(crate) fn check_length(&self) -> Result<(), RpcError> {
        match self.names().any(|name| name.len() > NAME_BYTES) {
            true => Err(RpcError::invalid(format!("a filter is at most {NAME_BYTES} bytes long"))),
            false => Ok(()),
        }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        [&self.pool, &self.session, &self.client].into_iter().flatten().map(|name| &**name)
    }

    fn matches(&self, subject: &Subject<'_>) -> bool {
        let is = |wanted: &Option<Box<str>>, is: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| is == Some(wanted))
        };
        let by_id = || self.session.as_deref().is_some_and(|id| subject.session_id == Some(id.as_bytes()));
        is(&self.pool, subject.pool)
            && is(&self.client, subject.client.as_deref())
            && (is(&self.session, subject.session.as_deref()) || by_id())
    }
}
