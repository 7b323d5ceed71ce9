//! Parses `notify` of bus.json: who is told what waits for people while they are away.
//!
//! No message shows what is behind the host of a URL, nor the value of a header: both are often secrets.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use kernel_core::config::{NoticeKind, NotifyConfig, PoolConfig};
use serde_json::{Map, Number, Value};

use super::error::quoted;
use super::json::{Json, is_remark, join};
use super::reader::{Fields, Node, Reader};

pub(super) const NOTIFY_KEYS: [&str; 6] = ["url", "on", "after_sec", "pools", "headers", "body"];

const KINDS: [NoticeKind; 3] = [NoticeKind::Asked, NoticeKind::Ended, NoticeKind::Failed];

/// How many there may be, and how long all of it may be as JSON: it is told to the notifier in one line through a pipe.
const TARGETS_MAX: usize = 16;
const NOTIFY_BYTES_MAX: usize = 32 << 10;
const URL_BYTES_MAX: usize = 2048;

/// What HTTP itself sets.
const OWN_HEADERS: [&str; 5] = ["connection", "content-length", "content-type", "host", "transfer-encoding"];

impl<'a> Reader<'a> {
    pub(super) fn notify(&mut self, top: &Fields<'a>, pools: &[PoolConfig]) -> Vec<NotifyConfig> {
        let Some(node) = top.find("notify") else { return Vec::new() };
        let items = self.list(&node).unwrap_or_default();
        if items.len() > TARGETS_MAX {
            self.error(&node.path, format!("has {} items, and there may be {TARGETS_MAX}", items.len()));
        }
        let targets: Vec<_> = items.iter().filter_map(|item| self.target(item, pools)).collect();
        let bytes = serde_json::to_string(&targets).map_or(0, |text| text.len());
        if bytes > NOTIFY_BYTES_MAX {
            self.error(&node.path, format!("is {bytes} bytes long, and may be {NOTIFY_BYTES_MAX}"));
        }
        targets
    }

    fn target(&mut self, item: &Node<'a>, pools: &[PoolConfig]) -> Option<NotifyConfig> {
        let fields = self.object(item, &NOTIFY_KEYS)?;
        let url = match fields.find("url") {
            Some(node) => self.webhook_url(&node),
            None => {
                let what = "missing: where notices are posted, such as \"https://ntfy.sh\"";
                self.error(&join(&fields.path, "url"), what);
                None
            }
        };
        let on = match fields.find("on") {
            Some(node) => self.notice_kinds(&node),
            None => vec![NoticeKind::Asked],
        };
        let after = self.seconds(&fields, "after_sec").unwrap_or(NotifyConfig::AFTER);
        let mut named = Vec::new();
        if let Some(node) = fields.find("pools") {
            let names: Vec<&str> = pools.iter().map(|pool| &*pool.id).filter(|id| !id.is_empty()).collect();
            for item in self.non_empty_list(&node) {
                let Some(pool) = self.non_empty(&item) else { continue };
                // Another pool may be meant whose id could not be read.
                if names.len() == pools.len() {
                    self.refuse_unknown_pool(&item.path, Some(pool), &names);
                }
                named.push(pool.into());
            }
        }
        let headers = fields.find("headers").map(|node| self.headers(&node)).unwrap_or_default();
        let body = fields.find("body").map(|node| self.constants(&node)).unwrap_or_default();
        Some(NotifyConfig { url: url?, on, after, pools: named, headers, body })
    }

    fn webhook_url(&mut self, node: &Node<'a>) -> Option<String> {
        let text = self.non_empty(node)?;
        let text = self.ok_or_note(&node.path, self.resolver.expand(text))?;
        self.ok_or_note(&node.path, check_url(&text))?;
        Some(text)
    }

    fn notice_kinds(&mut self, node: &Node<'a>) -> Vec<NoticeKind> {
        let mut kinds = Vec::new();
        for item in self.non_empty_list(node) {
            let Some(text) = self.string(&item) else { continue };
            match KINDS.into_iter().find(|kind| kind.name() == text) {
                Some(kind) => kinds.push(kind),
                None => {
                    let known = KINDS.map(NoticeKind::name);
                    self.error(&item.path, format!("must be one of {}, not {text:?}", quoted(&known)));
                }
            }
        }
        kinds
    }

    fn headers(&mut self, node: &Node<'a>) -> BTreeMap<String, String> {
        let mut headers = BTreeMap::new();
        for (name, node) in self.members(node) {
            if !is_header_name(name) {
                self.error(&node.path, "the name of a header has letters, digits and dashes");
            } else if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                self.error(&node.path, "the bus sets this header itself: leave it out");
            }
            let Some(text) = self.string(&node) else { continue };
            let Some(value) = self.ok_or_note(&node.path, self.resolver.expand(text)) else { continue };
            if value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
                headers.insert(name.to_owned(), value);
            } else {
                self.error(&node.path, "the value of a header has visible ASCII characters and spaces alone");
            }
        }
        headers
    }

    fn constants(&mut self, node: &Node<'a>) -> Map<String, Value> {
        let members = self.members(node);
        members.into_iter().map(|(name, node)| (name.to_owned(), value_of(node.json))).collect()
    }

    /// The members of an object with any names.
    fn members(&mut self, node: &Node<'a>) -> Vec<(&'a str, Node<'a>)> {
        let Json::Object(pairs) = node.json else {
            return self.must_be(node, "an object").unwrap_or_default();
        };
        let fields = Fields { path: node.path.clone(), pairs };
        fields.nodes().filter(|(name, _)| !is_remark(name)).collect()
    }
}

/// Whether notices may be posted there: by https, or to this machine.
fn check_url(text: &str) -> Result<(), String> {
    let (is_https, rest) = match text.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        _ => {
            return Err("must be https://HOST/PATH, or http://127.0.0.1:PORT/PATH on this machine".to_owned());
        }
    };
    if text.len() > URL_BYTES_MAX {
        return Err(format!("a URL is at most {URL_BYTES_MAX} bytes long"));
    }
    if text.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'\\') {
        return Err("has characters that no URL has: write each as %XX".to_owned());
    }
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    if authority.contains('@') {
        return Err("a user and a password do not belong here: put them into \"headers\", as \
                    \"Authorization\": \"Basic ...\""
            .to_owned());
    }
    let is_local = is_loopback(authority)?;
    if !is_https && !is_local {
        return Err(format!(
            "http://{authority} is not on this machine, and others could read what is sent: write https://{authority}"
        ));
    }
    Ok(())
}

/// Whether `HOST` or `HOST:PORT` is this machine.
fn is_loopback(authority: &str) -> Result<bool, String> {
    let wrong = || Err(format!("{authority:?} is not HOST or HOST:PORT"));
    let (host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) => match host.parse::<Ipv6Addr>() {
            Ok(ip) => (ip.to_canonical().is_loopback(), port),
            Err(_) => return wrong(),
        },
        Some(None) => return wrong(),
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
            if host.is_empty() || !host.chars().all(is_name) {
                return wrong();
            }
            let is_local = host.eq_ignore_ascii_case("localhost")
                || host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
            (is_local, port)
        }
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(host),
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok() => {
            Ok(host)
        }
        _ => wrong(),
    }
}

fn is_header_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=256).contains(&name.len()) && name.bytes().all(is_plain)
}

fn value_of(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => (*value).into(),
        Json::Integer(number) => {
            let whole = i64::try_from(*number)
                .map(Number::from)
                .or_else(|_| u64::try_from(*number).map(Number::from));
            whole.map_or_else(|_| (*number as f64).into(), Value::Number)
        }
        Json::Float(number) => (*number).into(),
        Json::String(text) => text.as_str().into(),
        Json::List(items) => items.iter().map(value_of).collect(),
        Json::Object(pairs) => pairs.iter().map(|(key, json)| (key.clone(), value_of(json))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use serde_json::json;

    use super::super::parse;
    use super::super::tests::schema_json;
    use super::*;

    /// The targets of a file with this `notify`, or its errors.
    fn read(notify: &Value) -> Result<Vec<NotifyConfig>, String> {
        let pool = json!({ "id": "a", "command": "x" });
        let text = json!({ "pools": [pool], "notify": notify }).to_string();
        parse(&text, Path::new("/etc")).map(|config| config.notify).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_url_alone_is_told_of_questions_after_ten_seconds() {
        let targets = read(&json!([{ "url": "https://ntfy.sh" }])).unwrap();
        let [target] = &targets[..] else { panic!("{targets:?}") };
        assert_eq!((target.on.as_slice(), target.after), (&[NoticeKind::Asked][..], Duration::from_secs(10)));
        assert!(target.pools.is_empty() && target.headers.is_empty() && target.body.is_empty());
        assert_eq!(read(&json!([])), Ok(Vec::new()));
    }

    #[test]
    fn all_keys_are_read() {
        let targets =
            read(&json!([{ "url": "http://127.0.0.1:1/x", "on": ["failed", "ended"], "after_sec": 0.5,
            "pools": ["a"], "headers": { "X-Key": "v w", "_": 1 },
            "body": { "topic": "t", "priority": 4, "big": u64::MAX, "tags": ["x"], "_why": "a remark" } }]));
        let target = targets.unwrap().remove(0);
        assert_eq!(target.on, [NoticeKind::Failed, NoticeKind::Ended]);
        assert_eq!((target.after, &target.pools[..]), (Duration::from_millis(500), &["a".into()][..]));
        assert_eq!(target.headers, BTreeMap::from([("X-Key".to_owned(), "v w".to_owned())]));
        let body = json!({ "topic": "t", "priority": 4, "big": u64::MAX, "tags": ["x"] });
        assert_eq!(Value::from(target.body), body);
    }

    #[test]
    fn what_is_on_this_machine_may_be_http_and_the_rest_is_https() {
        for good in [
            "https://hooks.slack.com/services/T0/B0/x",
            "https://a.example:8443?x#y",
            "https://[2001:db8::1]:1/",
            "http://localhost",
            "http://LOCALHOST:80/",
            "http://127.1.2.3/x@y",
            "http://[::1]:9",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert_eq!(check_url(good), Ok(()), "{good}");
        }
        for (bad, says) in [
            ("http://example.org/secret", "http://example.org is not on this machine"),
            ("http://example.org/secret", "write https://example.org"),
            ("http://10.0.0.1", "is not on this machine"),
            ("http://localhost.example.org", "is not on this machine"),
            ("http://127.0.0.1.example.org", "is not on this machine"),
            ("http://[2001:db8::1]", "is not on this machine"),
            ("http://127.0.0.1@example.org", "put them into \"headers\""),
            ("https://me:secret@example.org", "put them into \"headers\""),
            ("http://127.0.0.1\\.example.org", "%XX"),
            ("https://a.example/s e", "%XX"),
            ("https://ä.example", "%XX"),
            ("https:///secret", "is not HOST or HOST:PORT"),
            ("https://:1", "is not HOST or HOST:PORT"),
            ("https://a:+1", "is not HOST or HOST:PORT"),
            ("https://a:99999", "is not HOST or HOST:PORT"),
            ("https://[::1", "is not HOST or HOST:PORT"),
            ("https://[x]", "is not HOST or HOST:PORT"),
            ("https://a]b", "is not HOST or HOST:PORT"),
            ("ftp://secret", "must be https://HOST/PATH"),
            ("HTTPS://secret", "must be https://HOST/PATH"),
            ("secret", "must be https://HOST/PATH"),
        ] {
            let error = check_url(bad).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{bad}: {error}");
        }
        assert!(check_url(&format!("https://a/{}", "x".repeat(URL_BYTES_MAX))).is_err());
    }

    #[test]
    fn each_mistake_has_its_place_and_no_secret() {
        let url = "https://a.example/secret";
        for (target, place, says) in [
            (json!({}), "notify[0].url", "missing: where notices are posted"),
            (json!({ "url": 1 }), "notify[0].url", "must be a string"),
            (json!({ "url": "http://b.example/secret" }), "notify[0].url", "write https://b.example"),
            (json!({ "url": "${NO_SUCH_1}" }), "notify[0].url", "set it where the bus is started"),
            (json!({ "url": url, "on": [] }), "notify[0].on", "must not be empty"),
            (
                json!({ "url": url, "on": ["asked", "done"] }),
                "notify[0].on[1]",
                r#"must be one of "asked", "ended", "failed", not "done""#,
            ),
            (json!({ "url": url, "after_sec": -1 }), "notify[0].after_sec", "a number from 0"),
            (json!({ "url": url, "pools": ["b"] }), "notify[0].pools[0]", r#"there is no pool "b""#),
            (json!({ "url": url, "headers": { "A": 1 } }), "notify[0].headers.A", "must be a string"),
            (json!({ "url": url, "headers": { "A": "secret\n" } }), "notify[0].headers.A", "visible ASCII"),
            (json!({ "url": url, "headers": { "A b": "x" } }), "notify[0].headers", "letters, digits"),
            (json!({ "url": url, "headers": { "Host": "x" } }), "notify[0].headers.Host", "leave it out"),
            (json!({ "url": url, "body": [] }), "notify[0].body", "must be an object"),
            (json!({ "url": url, "header": {} }), "notify[0].header", r#"did you mean "headers"?"#),
        ] {
            let errors = read(&json!([target])).unwrap_err();
            assert!(errors.contains(place) && errors.contains(says), "{errors}");
            assert!(errors.lines().count() == 1 && !errors.contains("secret"), "{errors}");
        }
        let many = vec![json!({ "url": url }); TARGETS_MAX + 1];
        assert!(read(&many.into()).unwrap_err().contains("notify: has 17 items, and there may be 16"));
        let long = json!([{ "url": url, "body": { "x": "y".repeat(NOTIFY_BYTES_MAX) } }]);
        assert!(read(&long).unwrap_err().contains("and may be 32768"));
    }

    #[test]
    fn what_is_printed_of_a_target_has_no_secret() {
        let (headers, body) = (json!({ "A": "s3cret" }), json!({ "b": "s3cret" }));
        let target = json!({ "url": "https://a.example/s3cret", "headers": headers, "body": body });
        let targets = read(&json!([target])).unwrap();
        let shown = format!("{targets:?}");
        assert!(shown.contains("https://a.example") && !shown.contains("s3cret"), "{shown}");
        for (url, place) in
            [("https://a?x", "https://a"), ("https://a", "https://a"), ("http://[::1]:1/x", "http://[::1]:1")]
        {
            assert_eq!(NotifyConfig { url: url.to_owned(), ..targets[0].clone() }.place(), place);
        }
    }

    #[test]
    fn the_schema_knows_the_keys() {
        let schema = schema_json();
        let item = &schema["properties"]["notify"]["items"];
        let named = item["properties"].as_object().unwrap();
        assert_eq!(named.len(), NOTIFY_KEYS.len());
        assert!(NOTIFY_KEYS.iter().all(|key| named.contains_key(*key)));
        assert_eq!(item["properties"]["on"]["items"]["enum"], json!(KINDS.map(NoticeKind::name)));
    }
}
