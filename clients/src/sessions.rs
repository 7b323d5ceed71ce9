//! `sessions`: fetches the sessions of a bus and formats them as a table.
//!
//! A missing field becomes a dash, so that older and newer buses can be shown too.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use rpc::text::replace_control;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::connection::Connection;
use crate::status::{add_nodes, duration, list, word};
use crate::table::{self, Cell};
use crate::{Fault, Target, with_tilde};

/// A running bus answers at once.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How many sessions are named to somebody who has asked for one that does not exist.
const MAX_NAMED: usize = 20;

/// How much is shown of a folder, from its end, and of a title.
const FOLDER_CHARS: usize = 40;
const TITLE_CHARS: usize = 60;

const HEADERS: [&str; COLUMNS] =
    ["SESSION", "STATE", "WORKER", "QUESTIONS", "AGE", "IDLE", "CLIENT", "GUESTS", "FOLDER", "TITLE"];
const COLUMNS: usize = 10;

/// Returns all sessions as the bus describes them, as a list.
pub fn fetch(target: &Target) -> Result<Value, Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    let greeted = connection.hello("stdio-bus sessions", None);
    let sessions = greeted.and_then(|()| pages(&mut connection, usize::MAX));
    sessions.map(|mut sessions| sessions["sessions"].take()).map_err(Fault::timeout_as_unreachable)
}

/// Ends a session, whoever owns it. `wanted`: its label, or the id that its client knows.
pub fn close(target: &Target, wanted: &str) -> Result<(), Fault> {
    let mut connection = Connection::connect(target, Some(TIMEOUT))?;
    connection.hello("stdio-bus sessions", None).map_err(Fault::timeout_as_unreachable)?;
    match connection.request("_bus/close", json!({ "session": wanted })) {
        Ok(_) => Ok(()),
        Err(Fault::Refused(error)) if is_unknown(&reason_of(error.get())) => {
            let mut all = pages(&mut connection, usize::MAX)?;
            Err(no_such(&all["sessions"].take(), wanted))
        }
        Err(fault) => Err(fault.timeout_as_unreachable()),
    }
}

/// Asks for one page of sessions after the other, until there are this many. Returns them as one page.
pub(crate) fn pages(connection: &mut Connection, enough: usize) -> Result<Value, Fault> {
    let mut all = parse(&connection.request("_bus/sessions", ())?);
    let mut cursor = all["nextCursor"].take();
    while cursor.is_string() && list(&all["sessions"]).len() < enough {
        let mut next = parse(&connection.request("_bus/sessions", json!({ "cursor": cursor }))?);
        cursor = next["nextCursor"].take();
        if let (Some(all), Some(next)) = (all["sessions"].as_array_mut(), next["sessions"].as_array_mut()) {
            all.append(next);
        }
    }
    Ok(all)
}

/// There is no session of this label among them.
pub(crate) fn no_such(all: &Value, wanted: &str) -> Fault {
    let name = |session: &Value| match &session["client"] {
        Value::Null => format!("{} ({})", word(&session["session"]), word(&session["state"])),
        client => format!("{} of {}", word(&session["session"]), word(client)),
    };
    let names: Vec<_> = list(all).iter().take(MAX_NAMED).map(name).collect();
    let more = list(all).len().saturating_sub(MAX_NAMED);
    let there_are = match (names.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!("; there are {}", names.join(", ")),
        _ => format!("; there are {}, and {more} more", names.join(", ")),
    };
    let wanted = replace_control(wanted, '?');
    Fault::Failed(format!("there is no session {wanted}{there_are}; `stdio-bus sessions` lists them"))
}

/// Whether a bus refuses a request for this reason because it does not know the session. With several pools and no
/// default one it asks which of them may know it.
pub(crate) fn is_unknown(reason: &str) -> bool {
    matches!(reason, "unknown_session" | "unknown_pool")
}

fn reason_of(error: &str) -> String {
    let error: Value = serde_json::from_str(error).unwrap_or_default();
    error["data"]["reason"].as_str().unwrap_or_default().to_owned()
}

fn parse(answer: &RawValue) -> Value {
    serde_json::from_str(answer.get()).unwrap_or_default()
}

/// One line per session, styled for a terminal.
pub fn describe(sessions: &Value) -> String {
    if list(sessions).is_empty() {
        return "no sessions\n".to_owned();
    }
    let headers = HEADERS.map(str::to_owned);
    let mut rows: Vec<_> = [row(headers)].into_iter().chain(list(sessions).iter().map(session_row)).collect();
    let nodes: Vec<_> =
        [&Value::Null].into_iter().chain(list(sessions).iter().map(|session| &session["node"])).collect();
    add_nodes(&mut rows, &nodes, 3);
    table::lines(&rows).into_iter().map(|line| line + "\n").collect()
}

fn session_row(session: &Value) -> Vec<Cell> {
    let worker = match &session["worker"] {
        Value::Null => word(&session["pool"]),
        number => format!("{}/{}", word(&session["pool"]), word(number)),
    };
    let seconds = |key: &str| session[key].as_u64().map_or_else(|| "-".to_owned(), duration);
    let field = |key: &str| word(&session[key]);
    row([
        field("session"),
        field("state"),
        worker,
        field("questions"),
        seconds("age_sec"),
        seconds("idle_sec"),
        field("client"),
        guests(session).unwrap_or_else(|| "-".to_owned()),
        folder(&field("folder"), FOLDER_CHARS),
        field("title").chars().take(TITLE_CHARS).collect(),
    ])
}

/// A folder as people write it, cut at its beginning if it is longer than this.
pub(crate) fn folder(path: &str, at_most: usize) -> String {
    let path = with_tilde(path);
    let length = path.chars().count();
    if length <= at_most {
        return path;
    }
    path.chars().skip(length + 1 - at_most).fold("…".to_owned(), |cut, letter| cut + &letter.to_string())
}

/// The guests of a session by their names. Those that only watch are marked.
pub(crate) fn guests(session: &Value) -> Option<String> {
    let name = |guest: &Value| match guest["role"].as_str() {
        Some("observe") => format!("{} (observes)", word(&guest["client"])),
        _ => word(&guest["client"]),
    };
    let names: Vec<_> = list(&session["guests"]).iter().map(name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn row(texts: [String; COLUMNS]) -> Vec<Cell> {
    let [session, state, worker, questions, age, idle, client, guests, folder, title] = texts;
    let state_style = match state.as_str() {
        "lost" => AnsiColor::Red.on_default(),
        "kept" => Style::new().dimmed(),
        _ => Style::new(),
    };
    // A question that is open holds the agent up until somebody answers.
    let is_asked = questions.parse::<u64>().is_ok_and(|count| count > 0);
    let questions_style = if is_asked { AnsiColor::Yellow.on_default() } else { Style::new() };
    vec![
        Cell::new(session),
        Cell::new(state).styled(state_style),
        Cell::new(worker),
        Cell::number(questions).styled(questions_style),
        Cell::number(age),
        Cell::number(idle),
        Cell::new(client),
        Cell::new(guests),
        Cell::new(folder),
        Cell::new(title),
    ]
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::fake_bus::FakeBus;

    #[test]
    fn all_pages_become_one_list() {
        let bus = FakeBus::answering(&[
            &[r#"{"jsonrpc":"2.0","id":1,"result":{"sessions":[{"session":"s1"}],"nextCursor":"7"}}"#],
            &[r#"{"jsonrpc":"2.0","id":2,"result":{"sessions":[{"session":"s9"}]}}"#],
        ]);
        assert_eq!(fetch(&bus.target()).unwrap(), json!([{ "session": "s1" }, { "session": "s9" }]));
        let params = r#""method":"_bus/sessions","params":{"cursor":"7"}"#;
        assert_eq!(bus.received()[1], format!(r#"{{"jsonrpc":"2.0","id":2,{params}}}"#));
    }

    #[test]
    fn the_table_has_a_line_per_session_with_owner_and_guests() {
        let guests = json!([{ "client": "ben", "role": "control" }, { "client": "wall", "role": "observe" }]);
        let text = describe(&json!([
            { "session": "s1", "state": "live", "pool": "claude", "worker": 0, "client": "zed", "guests": guests,
              "questions": 1, "age_sec": 3700, "idle_sec": 2, "calls": 1, "folder": "/srv/shop",
              "title": "Fix the build" },
            { "session": "s12", "state": "lost", "pool": null, "worker": null, "client": null, "questions": 0,
              "age_sec": 59, "idle_sec": 59 },
        ]));
        let expected = "
SESSION  STATE  WORKER    QUESTIONS    AGE  IDLE  CLIENT  GUESTS                FOLDER     TITLE
s1       live   claude/0          1  1h 1m    2s  zed     ben, wall (observes)  /srv/shop  Fix the build
s12      lost   -                 0    59s   59s  -       -                     -          -
";
        assert_eq!(strip_str(&text).to_string(), expected.trim_start());
        assert!(text.contains("\x1b[33m") && text.contains("\x1b[31mlost"), "{text:?}");
    }

    #[test]
    fn the_node_is_shown_where_there_is_one() {
        let text = describe(&json!([
            { "session": "s1", "state": "live", "pool": "claude", "worker": 0, "node": "n17" },
            { "session": "s2", "state": "live", "pool": "local", "worker": 0 },
        ]));
        let text = strip_str(&text).to_string();
        let nodes: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().nth(3)).collect();
        assert_eq!(nodes, ["NODE", "n17", "-"], "{text}");
    }

    #[test]
    fn a_session_that_cannot_be_closed_is_not_there() {
        for reason in ["unknown_session", "unknown_pool"] {
            let unknown = format!(r#"{{"code":-32051,"message":"no","data":{{"reason":"{reason}"}}}}"#);
            let bus = FakeBus::answering(&[
                &[&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{unknown}}}"#)],
                &[r#"{"jsonrpc":"2.0","id":2,"result":{"sessions":[{"session":"s1","client":"zed"}]}}"#],
            ]);
            let fault = close(&bus.target(), "s9").unwrap_err();
            let expected = "there is no session s9; there are s1 of zed; `stdio-bus sessions` lists them";
            assert_eq!(fault.to_string(), expected);
        }
    }

    #[test]
    fn folders_are_short() {
        assert_eq!(folder("/srv/a", 6), "/srv/a");
        assert_eq!(folder("/srv/abc", 6), "…v/abc");
        let home = std::env::var("HOME").unwrap_or_default();
        if home.len() > 1 {
            assert_eq!(folder(&format!("{home}/x"), 6), "~/x");
        }
    }

    #[test]
    fn missing_and_unexpected_fields_are_harmless() {
        for none in [json!(null), json!({}), json!([])] {
            assert_eq!(describe(&none), "no sessions\n");
        }
        let text =
            describe(&json!([7, { "session": "\u{1b}[2J\n", "guests": [null, { "client": "\u{7}" }] }]));
        let text = strip_str(&text).to_string();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()) && text.lines().count() == 3, "{text:?}");
    }
}
