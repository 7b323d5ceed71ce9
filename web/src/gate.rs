//! Who is let in: one gate before all paths, by what a browser cannot lie about.
//!
//! A page of another origin can make a browser send requests here, and a host name can be made to resolve to this
//! machine. `Host`, `Origin` and `Sec-Fetch-Site` tell; whoever is no browser needs a token anyway.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::{Method, StatusCode, Uri};
use kernel_core::config::WebConfig;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

pub(crate) struct Gate {
    scheme: &'static str,
    /// What `Host` may be, in lower case.
    hosts: Vec<String>,
    /// Origins beside our own.
    origins: Vec<String>,
}

/// A request that is let in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// The host under which the door was reached.
    pub(crate) host: String,
    /// A person follows a link on a page of another site: the files of the console are there, and nothing else.
    pub(crate) is_link: bool,
}

/// Why a request is turned away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) StatusCode, pub(crate) &'static str);

const WRONG_HOST: Refused =
    Refused(StatusCode::MISDIRECTED_REQUEST, "this is not a name of this door: see web.hosts in bus.json");
pub(crate) const WRONG_ORIGIN: Refused =
    Refused(StatusCode::FORBIDDEN, "a page of another origin may not come in: see web.origins in bus.json");

impl Gate {
    /// The gate of a door that listens at this port.
    pub(crate) fn new(web: &WebConfig, port: u16) -> Gate {
        let default_port = if web.https { 443 } else { 80 };
        let mut names = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "[::1]".to_owned()];
        let own = if web.host.contains(':') { format!("[{}]", web.host) } else { web.host.to_string() };
        // "Any address" is none by which anybody should reach it.
        let is_any = web.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
        if !is_any && !names.contains(&own) {
            names.push(own);
        }
        let mut hosts = Vec::new();
        for name in names.iter().chain(&web.hosts) {
            let has_port = name.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
            if has_port || port == default_port || web.hosts.contains(name) {
                hosts.push(name.clone());
            }
            if !has_port {
                hosts.push(format!("{name}:{port}"));
            }
        }
        Gate { scheme: web.scheme(), hosts, origins: web.origins.clone() }
    }

    /// Lets a request in, or says why not.
    pub(crate) fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Admitted, Refused> {
        let host = self.host(uri, headers).ok_or(WRONG_HOST)?;
        if headers.contains_key(ORIGIN) {
            let origin = only(headers, ORIGIN).ok_or(WRONG_ORIGIN)?;
            let ours =
                origin.strip_prefix(self.scheme).and_then(|rest| rest.strip_prefix("://")) == Some(&*host);
            if !ours && !self.origins.contains(&origin) {
                return Err(WRONG_ORIGIN);
            }
        }
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
        if sites.all(|site| site == "same-origin" || site == "none") {
            return Ok(Admitted { host, is_link: false });
        }
        if follows_link(method, headers) { Ok(Admitted { host, is_link: true }) } else { Err(WRONG_ORIGIN) }
    }

    /// HTTP/2 has it in the request line, and HTTP/1.1 may have it at both places, which must then agree.
    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let authority = uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
        let header = if headers.contains_key(HOST) { Some(only(headers, HOST)?) } else { None };
        let host = match (authority, header) {
            (Some(authority), Some(header)) if authority != header => return None,
            (authority, header) => authority.or(header)?,
        };
        self.hosts.contains(&host).then_some(host)
    }
}

/// Whether a link on a page of another site is opened in a window of its own. No page can read what comes then, and a
/// frame, a script or a `fetch` of it says something else.
fn follows_link(method: &Method, headers: &HeaderMap) -> bool {
    let says = |name, words: &[&str]| only(headers, name).is_some_and(|word| words.contains(&&*word));
    *method == Method::GET
        && says(SEC_FETCH_SITE, &["cross-site", "same-site"])
        && says(SEC_FETCH_MODE, &["navigate"])
        && says(SEC_FETCH_DEST, &["document"])
}

/// The value of a header that occurs once, in lower case.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value_text(value),
        _ => None,
    }
}

fn value_text(value: &HeaderValue) -> Option<String> {
    value.to_str().ok().map(str::to_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use kernel_shell::config::parse_web;

    use super::*;

    fn admitted(
        gate: &Gate,
        method: &Method,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Admitted, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        gate.check(method, &Uri::from_static("/acp"), &map).map_err(|refused| refused.0.as_u16())
    }

    fn checked(gate: &Gate, headers: &[(&'static str, &'static str)]) -> Result<String, u16> {
        admitted(gate, &Method::GET, headers).map(|admitted| admitted.host)
    }

    #[test]
    fn only_our_own_names_are_hosts() {
        let gate = Gate::new(&parse_web("http://127.0.0.1:9001").unwrap(), 9001);
        for host in ["127.0.0.1:9001", "localhost:9001", "LOCALHOST:9001", "[::1]:9001"] {
            assert_eq!(checked(&gate, &[("host", host)]), Ok(host.to_ascii_lowercase()), "{host}");
        }
        for host in
            ["127.0.0.1", "localhost:9002", "rebound.example:9001", "0.0.0.0:9001", "localhost:9001.", ""]
        {
            assert_eq!(checked(&gate, &[("host", host)]), Err(421), "{host}");
        }
        assert_eq!(checked(&gate, &[]), Err(421));
        let twice = [("host", "localhost:9001"), ("host", "localhost:9001")];
        assert_eq!(checked(&gate, &twice), Err(421));
    }

    #[test]
    fn the_request_line_and_the_host_must_agree() {
        let gate = Gate::new(&parse_web("http://127.0.0.1:9001").unwrap(), 9001);
        let mut headers = HeaderMap::new();
        let uri = Uri::from_static("http://localhost:9001/acp");
        assert!(gate.check(&Method::GET, &uri, &headers).is_ok());
        headers.insert(HOST, HeaderValue::from_static("127.0.0.1:9001"));
        assert!(gate.check(&Method::GET, &uri, &headers).is_err());
    }

    #[test]
    fn only_our_own_origin_may_use_us_exactly() {
        let gate = Gate::new(&parse_web("http://127.0.0.1:9001").unwrap(), 9001);
        let with = |origin| checked(&gate, &[("host", "localhost:9001"), ("origin", origin)]);
        assert!(with("http://localhost:9001").is_ok());
        for origin in [
            "http://127.0.0.1:9001",
            "http://localhost",
            "http://localhost:9002",
            "http://localhost:90010",
            "https://localhost:9001",
            "http://localhost:9001.evil.example",
            "http://evil.example",
            "null",
            "file://",
            "",
        ] {
            assert_eq!(with(origin), Err(403), "{origin}");
        }
        let twice = [
            ("host", "localhost:9001"),
            ("origin", "http://localhost:9001"),
            ("origin", "http://evil.example"),
        ];
        assert_eq!(checked(&gate, &twice), Err(403));
    }

    #[test]
    fn a_page_of_another_site_is_refused_even_without_an_origin() {
        let gate = Gate::new(&parse_web("http://127.0.0.1:9001").unwrap(), 9001);
        let with = |site| checked(&gate, &[("host", "localhost:9001"), ("sec-fetch-site", site)]);
        assert!(with("same-origin").is_ok() && with("none").is_ok());
        for site in ["cross-site", "same-site", "", "none, cross-site"] {
            assert_eq!(with(site), Err(403), "{site}");
        }
    }

    #[test]
    fn a_link_of_another_site_is_told_from_everything_else_that_its_page_can_do() {
        let gate = Gate::new(&parse_web("http://127.0.0.1:9001").unwrap(), 9001);
        let host = ("host", "localhost:9001");
        let with = |method, site, mode, dest| {
            let headers =
                [host, ("sec-fetch-site", site), ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
            admitted(&gate, &method, &headers).map(|admitted| admitted.is_link)
        };
        assert_eq!(with(Method::GET, "cross-site", "navigate", "document"), Ok(true));
        assert_eq!(with(Method::GET, "same-site", "navigate", "document"), Ok(true));
        assert_eq!(with(Method::GET, "same-origin", "navigate", "document"), Ok(false));
        for (mode, dest) in [
            ("navigate", "iframe"),
            ("navigate", "empty"),
            ("no-cors", "script"),
            ("cors", "document"),
            ("websocket", "websocket"),
            ("", ""),
        ] {
            assert_eq!(with(Method::GET, "cross-site", mode, dest), Err(403), "{mode} {dest}");
        }
        for method in [Method::POST, Method::HEAD, Method::DELETE] {
            assert_eq!(with(method.clone(), "cross-site", "navigate", "document"), Err(403), "{method}");
        }
        assert_eq!(with(Method::GET, "elsewhere", "navigate", "document"), Err(403));
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        for further in [("sec-fetch-site", "none"), ("sec-fetch-mode", "cors"), ("origin", "null")] {
            let headers = [&link[..], &[host, ("sec-fetch-site", "cross-site")], &[further]].concat();
            assert_eq!(checked(&gate, &headers), Err(403), "{further:?}");
        }
    }

    #[test]
    fn further_names_are_added_one_by_one() {
        let mut web = parse_web("https://10.0.0.7:9443").unwrap();
        web.hosts = vec!["bus.example.org".to_owned(), "proxy.example.org:8443".to_owned()];
        web.origins = vec!["https://proxy.example.org:8443".to_owned()];
        let gate = Gate::new(&web, 9443);
        for host in ["10.0.0.7:9443", "bus.example.org:9443", "bus.example.org", "proxy.example.org:8443"] {
            assert!(checked(&gate, &[("host", host)]).is_ok(), "{host}");
        }
        assert_eq!(checked(&gate, &[("host", "proxy.example.org:9443")]), Err(421));
        let origin = |origin| checked(&gate, &[("host", "bus.example.org"), ("origin", origin)]);
        assert!(origin("https://bus.example.org").is_ok());
        assert!(origin("https://proxy.example.org:8443").is_ok());
        assert_eq!(origin("http://bus.example.org"), Err(403));
    }

    #[test]
    fn a_door_at_any_address_is_reached_by_its_names_alone() {
        let mut web = parse_web("https://0.0.0.0:9443").unwrap();
        web.hosts = vec!["bus.example.org".to_owned()];
        let gate = Gate::new(&web, 9443);
        assert_eq!(checked(&gate, &[("host", "0.0.0.0:9443")]), Err(421));
        assert!(checked(&gate, &[("host", "bus.example.org:9443")]).is_ok());
    }

    #[test]
    fn the_default_port_is_left_out_by_browsers() {
        let gate = Gate::new(&parse_web("https://[::1]:443").unwrap(), 443);
        assert!(checked(&gate, &[("host", "[::1]"), ("origin", "https://[::1]")]).is_ok());
        assert!(checked(&gate, &[("host", "localhost:443")]).is_ok());
    }
}
