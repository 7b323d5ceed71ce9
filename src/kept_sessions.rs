//! Kept sessions as commands see them: which folder they are in, which one a label means, and how they are shown.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anstyle::Style;
use clients::{Fault, sessions};
use history::archive::{Archive, NotFound};
use history::entry::Header;
use history::export::plain;
use history::index::{Found, Query, Summary, Used};
use history::reader::Transcript;
use kernel_shell::config::ClientConfig;
use rpc::text::{replace_control, rfc3339_of_millis, unix_ms};
use serde::Serialize;
use serde_json::Value;

use crate::bus_args::BusArgs;
use crate::paths::history_folder;

const DAY_MS: u64 = 86_400_000;
/// How many digits of an id are shown where they are enough.
const SHOWN_DIGITS: usize = 8;

/// A time, as RFC 3339 or the beginning of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Since(pub(crate) String);

impl FromStr for Since {
    type Err = String;

    fn from_str(text: &str) -> Result<Since, String> {
        let units = [("m", 60_000), ("h", 3_600_000), ("d", DAY_MS), ("w", 7 * DAY_MS)];
        for (unit, millis) in units {
            if let Some(count) = text.strip_suffix(unit).and_then(|count| count.parse::<u64>().ok()) {
                let ago = count.saturating_mul(millis);
                return Ok(Since(rfc3339_of_millis(unix_ms().saturating_sub(ago))));
            }
        }
        let is_date = text.len() >= 10
            && text.bytes().enumerate().all(|(at, byte)| match at {
                4 | 7 => byte == b'-',
                0..=9 => byte.is_ascii_digit(),
                _ => byte.is_ascii_digit() || b"T:.Z".contains(&byte),
            });
        if is_date {
            Ok(Since(text.to_owned()))
        } else {
            Err("expected 30m, 12h, 7d, 2w or 2026-11-18".to_owned())
        }
    }
}

/// The folder of the transcripts: the one of the configuration, if there is one that names it.
pub(crate) fn folder(bus: &BusArgs) -> Result<PathBuf, Fault> {
    let config = bus.config_path().ok().and_then(|path| ClientConfig::load(&path).ok());
    let named = config.and_then(|config| config.history?.folder);
    let none = || Fault::Failed("there is no folder of transcripts: set HOME or XDG_STATE_HOME".to_owned());
    named.or_else(history_folder).ok_or_else(none)
}

/// A folder as sessions name it.
pub(crate) fn folder_name(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.to_string_lossy().into_owned()
}

fn open(bus: &BusArgs) -> Result<Option<Archive>, Fault> {
    let path = folder(bus)?;
    Archive::open(&path).map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::Failed(format!("{}: {error}", path.display()))
}

/// A kept session as `sessions` lists it. There may be tens of thousands, so none becomes a tree of values before it is
/// printed.
#[derive(Serialize)]
struct Row<'a> {
    session: &'a str,
    state: &'static str,
    id: &'a str,
    bus_session: &'a str,
    agent_session: &'a str,
    pool: &'a str,
    agent: Option<&'a str>,
    folder: Option<&'a str>,
    node: Option<&'a str>,
    opened: &'a str,
    title: Option<&'a str>,
    last: Option<&'a str>,
    prompts: u64,
    bytes: u64,
    closed: bool,
    age_sec: Option<u64>,
    idle_sec: Option<u64>,
}

/// The kept sessions that are not among these, as `sessions` lists them: a JSON object for each.
pub(crate) fn past(bus: &BusArgs, open_ones: &[Value]) -> Result<Vec<String>, Fault> {
    let Some(archive) = open(bus)? else { return Ok(Vec::new()) };
    let all = archive.index().list().map_err(|error| Fault::Failed(error.to_string()))?;
    let open_ids: HashSet<&str> = open_ones.iter().filter_map(|open| open["history"].as_str()).collect();
    let now = unix_ms() / 1000;
    let age = |at: &str| seconds_of(at).map(|then| now.saturating_sub(then));
    let digits = shown_digits(&all);
    let row = |it: &Summary| {
        let row = Row {
            session: &it.id[..digits],
            state: "past",
            id: &it.id,
            bus_session: &it.session,
            agent_session: &it.agent_session,
            pool: &it.pool,
            agent: it.agent.as_deref(),
            folder: it.folder.as_deref(),
            node: it.node.as_deref(),
            opened: &it.opened,
            title: it.title.as_deref(),
            last: it.last.as_deref(),
            prompts: it.prompts,
            bytes: it.bytes,
            closed: it.closed,
            age_sec: age(&it.opened),
            idle_sec: it.last.as_deref().and_then(age),
        };
        serde_json::to_string(&row).unwrap_or_default()
    };
    Ok(all.iter().filter(|it| !open_ids.contains(it.id.as_str())).map(row).collect())
}

/// So many digits tell all ids apart.
fn shown_digits(all: &[Summary]) -> usize {
    let mut ids: Vec<&str> = all.iter().map(|it| it.id.as_str()).collect();
    ids.sort_unstable();
    let same =
        |pair: &[&str]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(one, other)| one == other).count();
    ids.windows(2).map(|pair| same(pair) + 1).max().unwrap_or_default().clamp(SHOWN_DIGITS, 16)
}

/// The seconds since 1970 of a time as RFC 3339 in UTC.
fn seconds_of(at: &str) -> Option<u64> {
    let number = |from: usize, to: usize| at.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    // Years begin in March here, so that a leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days =
        year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day.checked_sub(1)?;
    Some(days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second)
}

/// The kept session that is meant.
pub(crate) fn find(bus: &BusArgs, label: &str) -> Result<(Archive, Summary), Fault> {
    let unknown =
        || Fault::Failed(format!("no kept session {label:?}: `stdio-bus sessions --all` lists them"));
    let archive = open(bus)?.ok_or_else(unknown)?;
    let is_open_one = label.strip_prefix('s').is_some_and(|number| number.parse::<u32>().is_ok());
    let mut wanted = label.to_owned();
    if is_open_one {
        let target = bus.target()?;
        let sessions = sessions::fetch(&target)?;
        let open = sessions.as_array().and_then(|all| all.iter().find(|it| it["session"] == label));
        let open = open.ok_or_else(|| Fault::Failed(format!("the bus has no session {label:?}")))?;
        let nothing = || Fault::Failed(format!("nothing is kept of {label}: its pool keeps nothing"));
        wanted = open["history"].as_str().ok_or_else(nothing)?.to_owned();
    }
    match archive.find(&wanted).map_err(|error| Fault::Failed(error.to_string()))? {
        Ok(summary) => Ok((archive, summary)),
        Err(NotFound::None) if is_open_one => {
            Err(Fault::Failed(format!("nothing is kept of {label} yet: nothing was said in it")))
        }
        Err(NotFound::None) => Err(unknown()),
        Err(NotFound::Several(ids)) => {
            Err(Fault::Failed(format!("{label:?} is the beginning of several: {}", ids.join(", "))))
        }
    }
}

/// Reads the kept session that is meant.
pub(crate) fn read(bus: &BusArgs, label: &str) -> Result<(Summary, Header, Transcript), Fault> {
    let (archive, summary) = find(bus, label)?;
    let (header, transcript) =
        archive.read(&summary.id).map_err(|error| Fault::Failed(format!("{}: {error}", summary.id)))?;
    Ok((summary, header, transcript))
}

pub(crate) fn delete(bus: &BusArgs, label: &str) -> Result<String, Fault> {
    let (mut archive, summary) = find(bus, label)?;
    match archive.remove(&summary.id) {
        Ok(true) => Ok(summary.id),
        Ok(false) => Err(Fault::Failed(format!(
            "{} is open at a bus: close it first, with `stdio-bus sessions close`",
            summary.id
        ))),
        Err(error) => Err(Fault::Failed(format!("{}: {error}", summary.id))),
    }
}

pub(crate) fn search(bus: &BusArgs, query: &Query) -> Result<Vec<Found>, Fault> {
    let Some(archive) = open(bus)? else { return Ok(Vec::new()) };
    archive.index().search(query).map_err(|error| Fault::Failed(error.to_string()))
}

/// What was used since this day.
pub(crate) fn usage(bus: &BusArgs, since: &str) -> Result<Vec<Used>, Fault> {
    let Some(archive) = open(bus)? else { return Ok(Vec::new()) };
    archive.index().usage(since).map_err(|error| Fault::Failed(error.to_string()))
}

/// One line for each place, under the session that it is in.
pub(crate) fn describe_found(found: &[Found]) -> String {
    let bold = Style::new().bold();
    let dim = Style::new().dimmed();
    let mut out = String::new();
    let mut last = "";
    for it in found {
        if last != it.id {
            last = &it.id;
            let title = replace_control(it.title.as_deref().unwrap_or("-"), ' ');
            let folder = replace_control(it.folder.as_deref().unwrap_or("-"), ' ');
            let (id, pool) = (&it.id[..SHOWN_DIGITS.min(it.id.len())], &it.pool);
            out += &format!("{bold}{id}{bold:#}  {pool}  {folder}  {title}\n");
        }
        // The marks of the words are control characters, so they come last.
        let parts: Vec<String> =
            it.text.split(['\u{2}', '\u{3}']).map(|text| plain(text).replace('\n', " ")).collect();
        let text: String = parts
            .iter()
            .enumerate()
            .map(|(at, part)| if at % 2 == 1 { format!("{bold}{part}{bold:#}") } else { part.clone() })
            .collect();
        let when = it.at.get(..16).unwrap_or_default().replace('T', " ");
        out += &format!("  {dim}{when} {}{dim:#}  {text}\n", replace_control(&it.by, ' '));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(seconds_of("1970-01-01T00:00:00.000Z"), Some(0));
        assert_eq!(seconds_of("2026-11-18T08:14:41.123Z"), Some(1_794_989_681));
        for at in ["2024-02-29T23:59:59.000Z", "2026-03-01T00:00:00.000Z", "2000-12-31T12:00:00.000Z"] {
            assert_eq!(rfc3339_of_millis(seconds_of(at).unwrap() * 1000), at);
        }
        for bad in ["", "yesterday", "2026-11-18", "0000-00-00T00:00:00"] {
            assert_eq!(seconds_of(bad), None, "{bad}");
        }
        assert_eq!("2026-11-18".parse(), Ok(Since("2026-11-18".to_owned())));
        assert!("7d".parse::<Since>().unwrap().0.ends_with('Z'));
        assert!("soon".parse::<Since>().is_err() && "99999999999999999999d".parse::<Since>().is_err());
    }
}
