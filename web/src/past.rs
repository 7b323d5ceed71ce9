//! What was said before, over HTTP: listed, searched, read page by page, exported and deleted.
//!
//! The files are read by another thread than the one that serves, one request at a time: the first look at a large
//! folder takes long, and nobody else waits for it.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clients::Target;
use history::archive::{Archive, NotFound};
use history::export::{Format, document, value};
use history::index::{Query, Summary, report};
use history::primer::primer;
use hyper::StatusCode;
use hyper::header::{CONTENT_DISPOSITION, HeaderName, HeaderValue};
use log::{error, info};
use rpc::text::{rfc3339_of_millis, unix_ms};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::bus_link::BusLink;
use crate::reply::{self, Reply};

/// How many sessions or places an answer has, unless the request says how many, and at most.
const USUAL_LIMIT: usize = 50;
const LIMIT_MAX: usize = 500;
/// A longer transcript is not exported here: it would be held in memory as a whole, more than once.
const EXPORT_BYTES: u64 = 64 << 20;
/// A page of a transcript ends after this many bytes of the file.
const PAGE_BYTES: u64 = 1 << 20;
const DAY_MS: u64 = 86_400_000;

/// What was said before.
#[derive(Default)]
pub(crate) struct Past {
    /// Where it is. `None`: nothing is kept.
    pub(crate) folder: Option<PathBuf>,
    /// Whoever reads has it, also when nobody waits for the answer any more.
    turn: Arc<Mutex<()>>,
}

/// The parameters of a request.
struct Params(HashMap<String, String>);

impl Params {
    fn of(query: Option<&str>) -> Params {
        let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        Params(pairs.map(|(name, text)| (decoded(name), decoded(text))).collect())
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|text| !text.is_empty()).cloned()
    }

    fn limit(&self) -> usize {
        self.get("limit").and_then(|text| text.parse().ok()).unwrap_or(USUAL_LIMIT).clamp(1, LIMIT_MAX)
    }
}

/// A name or a value of a query, as forms spell them.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (*first, escaped) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
                continue;
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(byte),
        }
        rest = after;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Past {
    pub(crate) fn new(folder: Option<PathBuf>) -> Past {
        Past { folder, turn: Arc::default() }
    }

    /// `GET /history`.
    pub(crate) async fn list(&self, query: Option<&str>, target: &Target) -> Reply {
        let open = open_sessions(target).await;
        let params = Params::of(query);
        self.with_archive(move |archive| {
            let Some(archive) = archive else { return Ok(found(&json!({ "sessions": [], "next": null }))) };
            list(archive, &params, &open).map(|answer| found(&answer))
        })
        .await
    }

    /// `GET /usage`: what was used in the last days.
    pub(crate) async fn usage(&self, query: Option<&str>) -> Reply {
        let days: u64 = Params::of(query).get("days").and_then(|days| days.parse().ok()).unwrap_or(7);
        let since = unix_ms().saturating_sub(days.clamp(1, 36_500).saturating_sub(1) * DAY_MS);
        let since = rfc3339_of_millis(since)[..10].to_owned();
        self.with_archive(move |archive| {
            let used = archive.map(|archive| archive.index().usage(&since)).transpose()?.unwrap_or_default();
            Ok(found(&report(&used)))
        })
        .await
    }

    /// `GET /history/ID`.
    pub(crate) async fn read(&self, id: &str, query: Option<&str>, target: &Target) -> Reply {
        let open = open_sessions(target).await;
        let (id, params) = (id.to_owned(), Params::of(query));
        self.with_archive(move |archive| {
            let Some(archive) = archive else { return Ok(unknown(&id)) };
            let summary = match archive.find(&id)? {
                Ok(summary) => summary,
                Err(not_found) => return Ok(unknown_or_several(&id, &not_found)),
            };
            match params.get("format").as_deref() {
                None => page(archive, &summary, &params, &open),
                Some("primer") => {
                    let (_, transcript) = archive.read(&summary.id)?;
                    Ok(reply::text(StatusCode::OK, primer(&transcript.entries)))
                }
                Some(name) => match Format::named(name) {
                    Some(format) => exported(archive, &summary, format),
                    None => {
                        Ok(reply::text(StatusCode::BAD_REQUEST, "format is md, html, json, ndjson or primer"))
                    }
                },
            }
        })
        .await
    }

    /// `DELETE /history/ID`, with the whole id. `by` is for the log.
    pub(crate) async fn delete(&self, id: &str, by: String) -> Reply {
        let id = id.to_owned();
        self.with_archive(move |archive| {
            let Some(archive) = archive else { return Ok(unknown(&id)) };
            if archive.index().summary(&id)?.is_none() {
                return Ok(unknown(&id));
            }
            if archive.remove(&id)? {
                info!("the transcript {id} was deleted by {by}");
                return Ok(reply::empty(StatusCode::NO_CONTENT));
            }
            Ok(reply::text(StatusCode::CONFLICT, "this session is open: close it first"))
        })
        .await
    }

    /// Runs this with what is kept. `None`: nothing is.
    async fn with_archive(
        &self,
        read: impl FnOnce(Option<&mut Archive>) -> io::Result<Reply> + Send + 'static,
    ) -> Reply {
        let turn = self.turn.clone().lock_owned().await;
        let folder = self.folder.clone();
        let answer = spawn_blocking(move || {
            let _turn = turn;
            let mut archive = folder.as_deref().map(Archive::open).transpose()?.flatten();
            read(archive.as_mut())
        });
        match answer.await.map_err(io::Error::other).flatten() {
            Ok(reply) => reply,
            Err(fault) => {
                error!("what was said before cannot be read: {fault}");
                reply::text(StatusCode::INTERNAL_SERVER_ERROR, "what was said before cannot be read")
            }
        }
    }
}

/// The labels of the sessions that the bus has open, by the id under which they are kept.
async fn open_sessions(target: &Target) -> Arc<HashMap<String, String>> {
    let answer = BusLink::ask(target, "_bus/sessions").await.unwrap_or_default();
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    let sessions = answer["sessions"].as_array().map_or(&[][..], Vec::as_slice);
    let label = |session: &Value| {
        Some((session["history"].as_str()?.to_owned(), session["session"].as_str()?.to_owned()))
    };
    Arc::new(sessions.iter().filter_map(label).collect())
}

fn found(answer: &Value) -> Reply {
    reply::json(StatusCode::OK, answer)
}

fn unknown(id: &str) -> Reply {
    unknown_or_several(id, &NotFound::None)
}

fn unknown_or_several(id: &str, not_found: &NotFound) -> Reply {
    let why = match not_found {
        NotFound::None => format!("no session {id:?} is kept"),
        NotFound::Several(ids) => format!("{id:?} is the beginning of several: {}", ids.join(", ")),
    };
    reply::text(StatusCode::NOT_FOUND, why)
}

/// A session as it is listed: `state` is `past`, or `open` with the label that it has at the bus.
fn row(summary: &Summary, open: &HashMap<String, String>) -> Value {
    let mut row = json!(summary);
    let label = open.get(&summary.id);
    row["state"] = if label.is_some() { "open" } else { "past" }.into();
    row["label"] = label.map(String::as_str).into();
    row
}

fn list(archive: &Archive, params: &Params, open: &HashMap<String, String>) -> io::Result<Value> {
    let words: Vec<String> =
        params.get("query").iter().flat_map(|text| text.split_whitespace()).map(str::to_owned).collect();
    let query = Query {
        words,
        pool: params.get("pool"),
        folder: params.get("folder"),
        since: params.get("since"),
        before: params.get("before"),
        limit: params.limit(),
    };
    if query.words.is_empty() {
        let page = archive.index().page(&query)?;
        let next = page.last().filter(|_| page.len() == query.limit).and_then(|last| last.last.clone());
        let rows: Vec<Value> = page.iter().map(|summary| row(summary, open)).collect();
        return Ok(json!({ "sessions": rows, "next": next }));
    }
    let places = archive.index().search(&query)?;
    let next = places.last().filter(|_| places.len() == query.limit).map(|last| last.at.clone());
    let mut rows: Vec<Value> = Vec::new();
    for place in &places {
        let known = rows.iter().position(|row| row["id"] == place.id.as_str());
        let at = match (known, archive.index().summary(&place.id)) {
            (Some(at), _) => at,
            (None, Ok(Some(summary))) => {
                let mut row = row(&summary, open);
                row["found"] = json!([]);
                rows.push(row);
                rows.len() - 1
            }
            (None, _) => continue,
        };
        if let Some(found) = rows[at]["found"].as_array_mut() {
            found.push(json!({ "at": place.at, "by": place.by, "text": place.text }));
        }
    }
    Ok(json!({ "sessions": rows, "next": next }))
}

fn page(
    archive: &Archive,
    summary: &Summary,
    params: &Params,
    open: &HashMap<String, String>,
) -> io::Result<Reply> {
    let from = params.get("from").and_then(|text| text.parse().ok()).unwrap_or_default();
    let page = archive.page(&summary.id, from, params.limit(), PAGE_BYTES)?;
    let entries: Vec<Value> = page.entries.iter().map(value).collect();
    Ok(found(&json!({ "session": row(summary, open), "entries": entries, "next": page.next })))
}

fn exported(archive: &Archive, summary: &Summary, format: Format) -> io::Result<Reply> {
    if summary.bytes > EXPORT_BYTES {
        let id = &summary.id;
        let why = format!(
            "this transcript is too long to be exported here ({} MiB, at most {}): on the machine of the bus, \
             `stdio-bus sessions export {id}` exports it",
            summary.bytes >> 20,
            EXPORT_BYTES >> 20,
        );
        return Ok(reply::text(StatusCode::PAYLOAD_TOO_LARGE, why));
    }
    let (header, transcript) = archive.read(&summary.id)?;
    let (kind, ending) = match format {
        Format::Md => ("text/markdown; charset=utf-8", "md"),
        Format::Html => ("text/html; charset=utf-8", "html"),
        Format::Json => ("application/json", "json"),
        Format::Ndjson => ("application/x-ndjson", "ndjson"),
    };
    let mut reply = reply::with_type(StatusCode::OK, kind, document(format, &header, &transcript.entries));
    // A page of hostile words must never be one of this origin.
    let sandbox = HeaderValue::from_static("sandbox; default-src 'none'; style-src 'unsafe-inline'");
    reply.headers_mut().insert(HeaderName::from_static("content-security-policy"), sandbox);
    if let Ok(name) = HeaderValue::from_str(&format!("attachment; filename=\"{}.{ending}\"", summary.id)) {
        reply.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::future::poll_fn;
    use std::sync::mpsc::channel;
    use std::task::Poll;

    use history::{Folder, SessionId};
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_request_that_nobody_waits_for_has_its_turn_until_it_is_done() {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let past = Past::new(None);
            let (go, goes) = channel::<()>();
            let mut given_up = Box::pin(past.with_archive(move |_| {
                let _ = goes.recv();
                Ok(reply::empty(StatusCode::OK))
            }));
            poll_fn(|context| {
                assert!(given_up.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(given_up);
            assert!(past.turn.try_lock().is_err(), "it still reads");
            drop(go);
            past.with_archive(|_| Ok(reply::empty(StatusCode::OK))).await;
        });
    }

    #[test]
    fn a_very_long_transcript_is_not_exported_and_the_answer_says_how_else() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        let id = SessionId::of("p", None, "x");
        let header = r#"{"v":1,"session":"T.x","agent_session":"x","pool":"p","opened":"2026"}"#;
        fs::write(dir.path().join(format!("{}.ndjson", id.as_str())), format!("{header}\n")).unwrap();
        let archive = Archive::open(folder.path()).unwrap().unwrap();
        let mut summary = archive.find(id.as_str()).unwrap().unwrap();
        assert_eq!(exported(&archive, &summary, Format::Md).unwrap().status(), StatusCode::OK);
        summary.bytes = EXPORT_BYTES + 1;
        let refused = exported(&archive, &summary, Format::Md).unwrap();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn parameters_are_read_as_forms_spell_them() {
        let params =
            Params::of(Some("query=linker+error%20%C3%A9&pool=&limit=9999&folder=%2Fsrv&bad=%zz%&x"));
        assert_eq!(params.get("query").as_deref(), Some("linker error é"));
        assert_eq!((params.get("pool"), params.get("folder").as_deref()), (None, Some("/srv")));
        assert_eq!((params.get("bad").as_deref(), params.limit()), (Some("%zz%"), LIMIT_MAX));
        assert_eq!((Params::of(None).limit(), Params::of(Some("limit=0")).limit()), (USUAL_LIMIT, 1));
    }
}
