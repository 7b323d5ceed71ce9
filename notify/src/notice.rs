//! A notice: what is told, as JSON and as a sentence, and where it leads.

use std::net::IpAddr;

use kernel_core::config::NoticeKind;
use rpc::text::replace_control;
use serde_json::{Map, Value, json};

/// More of a title is not told.
const TITLE_CHARS: usize = 200;

/// What somebody is told of. Of what was said it has nothing but the title of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) kind: NoticeKind,
    /// The session as `stdio-bus sessions` names it.
    pub(crate) label: String,
    /// The id of its transcript, if one is kept.
    pub(crate) transcript: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) title: Option<String>,
    pub(crate) link: Option<String>,
}

impl Notice {
    /// Its body, with these members in place of its own or beside them.
    pub(crate) fn body(&self, constants: &Map<String, Value>) -> Value {
        let message = self.sentence();
        let mut body = json!({
            "event": self.kind.name(),
            "session": self.transcript.as_ref().unwrap_or(&self.label),
            "pool": self.pool,
            "title": self.shown_title(),
            "label": self.label,
            "link": self.link,
            // Slack reads `<`, `>` and `&` as commands, which could call everybody of a channel.
            "text": message.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"),
            "message": message,
        });
        for (name, value) in constants {
            body[name] = value.clone();
        }
        body
    }

    fn sentence(&self) -> String {
        let who = self.pool.as_deref().unwrap_or("an agent");
        let place = match self.shown_title() {
            Some(title) => format!("\"{title}\" ({})", self.label),
            None => self.label.clone(),
        };
        let what = match self.kind {
            NoticeKind::Asked => format!("{who} waits for an answer in {place}"),
            NoticeKind::Ended => format!("{who} has ended its turn in {place}"),
            NoticeKind::Failed => format!("a turn of {who} has failed in {place}"),
        };
        match &self.link {
            Some(link) => format!("{what}: {link}"),
            None => what,
        }
    }

    fn shown_title(&self) -> Option<String> {
        let title: String = self.title.as_ref()?.chars().take(TITLE_CHARS).collect();
        Some(replace_control(&title, ' '))
    }
}

/// The session in the console, if there is a door. `door`: the URL that the door gives itself. `origins`: those of
/// proxies in front of it, of which one is better than an address that only this machine can open.
pub(crate) fn link(door: Option<&str>, origins: &[String], label: &str) -> Option<String> {
    let door = door?;
    let is_far = |origin: &&String| origin.starts_with("https://") && !is_here(origin);
    let base = if is_here(door) { origins.iter().find(is_far).map_or(door, String::as_str) } else { door };
    Some(format!("{}/#/sessions/{label}", base.trim_end_matches('/')))
}

/// Whether this URL is one of this machine alone.
fn is_here(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((host, _)) => host,
        None => authority.split(':').next().unwrap_or_default(),
    };
    let ip = host.parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(kind: NoticeKind) -> Notice {
        let some = |text: &str| Some(text.to_owned());
        let (title, link) = (some("Fix <!channel> & go\u{1b}"), some("http://h/#/sessions/s17"));
        Notice { kind, label: "s17".to_owned(), transcript: some("3f"), pool: some("claude"), title, link }
    }

    #[test]
    fn the_body_has_all_that_is_told_and_a_sentence_of_it() {
        let body = notice(NoticeKind::Asked).body(&Map::new());
        let expected = json!({
            "event": "asked", "session": "3f", "pool": "claude", "title": "Fix <!channel> & go ", "label": "s17",
            "link": "http://h/#/sessions/s17",
            "message": "claude waits for an answer in \"Fix <!channel> & go \" (s17): http://h/#/sessions/s17",
            "text": "claude waits for an answer in \"Fix &lt;!channel&gt; &amp; go \" (s17): http://h/#/sessions/s17",
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn what_is_not_known_is_left_out_of_the_sentence() {
        let bare = |kind| Notice { transcript: None, pool: None, title: None, link: None, ..notice(kind) };
        for (kind, says) in [
            (NoticeKind::Asked, "an agent waits for an answer in s17"),
            (NoticeKind::Ended, "an agent has ended its turn in s17"),
            (NoticeKind::Failed, "a turn of an agent has failed in s17"),
        ] {
            let body = bare(kind).body(&Map::new());
            assert_eq!((&body["message"], &body["session"]), (&json!(says), &json!("s17")));
            assert_eq!([&body["title"], &body["link"], &body["pool"]], [&Value::Null; 3]);
        }
    }

    #[test]
    fn constants_come_beside_and_in_place_of_the_members() {
        let constants = json!({ "topic": "bus", "title": "stdio Bus" });
        let body = notice(NoticeKind::Ended).body(constants.as_object().unwrap());
        assert_eq!([&body["topic"], &body["title"], &body["event"]], ["bus", "stdio Bus", "ended"]);
    }

    #[test]
    fn a_long_title_is_cut() {
        let long = Notice { title: Some("ä".repeat(1000)), ..notice(NoticeKind::Asked) };
        assert_eq!(long.shown_title().map(|title| title.chars().count()), Some(TITLE_CHARS));
    }

    #[test]
    fn a_link_leads_through_the_proxy_where_the_door_is_for_this_machine() {
        let origins = ["http://localhost:3000".to_owned(), "https://box.ts.net/".to_owned()];
        let at = |door: &str| link(Some(door), &origins, "s1").unwrap();
        assert_eq!(at("http://127.0.0.1:9001"), "https://box.ts.net/#/sessions/s1");
        assert_eq!(at("http://[::1]:9001"), "https://box.ts.net/#/sessions/s1");
        assert_eq!(at("https://bus.example:9443"), "https://bus.example:9443/#/sessions/s1");
        assert_eq!(link(Some("http://localhost:1"), &[], "s1").unwrap(), "http://localhost:1/#/sessions/s1");
        assert_eq!(link(None, &origins, "s1"), None);
    }
}
