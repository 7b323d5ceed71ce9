//! Parses `web`, the web door of bus.json.

use super::address::parse_tcp;
use super::json::join;
use super::reader::{Fields, Reader};
use kernel_core::config::{Address, PushText, WebConfig, WebTls};

pub(super) const WEB_KEYS: [&str; 5] = ["listen", "tls", "hosts", "origins", "push"];

pub(super) const TLS_KEYS: [&str; 2] = ["cert", "key"];

/// Where the door is when `listen` does not say.
const LISTEN: &str = "http://127.0.0.1:9001";

/// The longest name of a host, with its port.
const HOST_CHARS_MAX: usize = 262;

/// Parses the address of a web door, `http://HOST:PORT` or `https://HOST:PORT`.
pub fn parse_web(text: &str) -> Result<WebConfig, String> {
    let of_scheme = |scheme| text.strip_prefix(scheme).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let (https, address) = match (of_scheme("http://"), of_scheme("https://")) {
        (Some(address), _) => (false, address),
        (_, Some(address)) => (true, address),
        _ => return Err(format!("{text:?} is neither http://HOST:PORT nor https://HOST:PORT")),
    };
    let address = parse_tcp(address)?;
    let is_local = address.is_local();
    let Address::Tcp { host, port } = address else { unreachable!("it was parsed as TCP") };
    if !https && !is_local {
        return Err(format!("{text} is not on loopback: only https may be, with a certificate in web.tls"));
    }
    let push = PushText::default();
    Ok(WebConfig { https, host, port, tls: None, hosts: Vec::new(), origins: Vec::new(), push })
}

impl<'a> Reader<'a> {
    pub(super) fn web(&mut self, top: &Fields<'a>) -> Option<WebConfig> {
        let fields = self.object(&top.find("web")?, &WEB_KEYS)?;
        let (text, path) = match fields.find("listen") {
            Some(node) => (self.non_empty(&node)?, node.path),
            None => (LISTEN, join(&fields.path, "listen")),
        };
        let mut web = self.ok_or_note(&path, parse_web(text))?;
        web.tls = self.web_tls(&fields);
        if web.https && fields.find("tls").is_none() {
            self.error(&path, "https needs a certificate: name its files in web.tls.cert and web.tls.key");
        }
        if !web.https && web.tls.is_some() {
            self.error(&path, format!("with web.tls it must be https://, not {text:?}"));
        }
        web.hosts = self.names(&fields, "hosts", |host| {
            is_host(host).then(|| host.to_ascii_lowercase()).ok_or("is not a host, with or without a port")
        });
        web.origins = self.names(&fields, "origins", |origin| {
            let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            let origin = host.is_some_and(is_host).then(|| origin.to_ascii_lowercase());
            origin.ok_or("is not an origin: https://HOST, or with a port, and nothing behind it")
        });
        web.push = self.push_text(&fields).unwrap_or_default();
        Some(web)
    }

    fn push_text(&mut self, fields: &Fields<'a>) -> Option<PushText> {
        let node = fields.find("push")?;
        let parsed = match self.non_empty(&node)? {
            "plain" => Ok(PushText::Plain),
            "full" => Ok(PushText::Full),
            other => Err(format!("{other:?} is neither plain nor full")),
        };
        self.ok_or_note(&node.path, parsed)
    }

    fn web_tls(&mut self, fields: &Fields<'a>) -> Option<WebTls> {
        let fields = self.object(&fields.find("tls")?, &TLS_KEYS)?;
        let [cert, key] = TLS_KEYS.map(|name| match fields.find(name) {
            Some(node) => self.path(&node),
            None => {
                self.error(&join(&fields.path, name), "missing");
                None
            }
        });
        Some(WebTls { cert: cert?, key: key? })
    }

    fn names(
        &mut self,
        fields: &Fields<'a>,
        key: &str,
        parse: fn(&str) -> Result<String, &'static str>,
    ) -> Vec<String> {
        let Some(node) = fields.find(key) else { return Vec::new() };
        let mut names = Vec::new();
        for item in self.list(&node).unwrap_or_default() {
            let Some(text) = self.non_empty(&item) else { continue };
            let parsed = parse(text).map_err(|what| format!("{text:?} {what}"));
            names.extend(self.ok_or_note(&item.path, parsed));
        }
        names
    }
}

/// A name or an address, an IPv6 address in brackets, and perhaps a port.
fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter))
    };
    let is_ipv6 = |inner: &str| {
        inner.chars().all(|letter| letter.is_ascii_hexdigit() || letter == ':' || letter == '.')
    };
    let named = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(inner) => is_ipv6(inner),
        None => is_name(name),
    };
    named
        && text.len() <= HOST_CHARS_MAX
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_door_is_http_on_loopback_or_https() {
        let shown = |text: &str| parse_web(text).map(|web| web.to_string());
        for same in ["http://127.0.0.1:9001", "http://localhost:0", "http://[::1]:80", "https://0.0.0.0:443"]
        {
            assert_eq!(shown(same), Ok(same.to_owned()));
        }
        assert_eq!(shown("http://127.0.0.1:9001/"), Ok("http://127.0.0.1:9001".to_owned()));
        assert!(shown("http://0.0.0.0:9001").unwrap_err().contains("not on loopback"));
        assert!(shown("tcp://127.0.0.1:1").unwrap_err().contains("neither http://"));
        assert!(shown("http://127.0.0.1").unwrap_err().contains("has no port"));
        assert!(shown("http://example.org:80").unwrap_err().contains("neither an IP address"));
    }

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for good in ["bus.example.org", "bus:9001", "10.0.0.7", "[fe80::1]", "[::1]:9001"] {
            assert!(is_host(good), "{good}");
        }
        for bad in ["", "*", "*.example.org", "http://bus", "bus:", "bus:0", "bus:x", "a b", "bus/x", "::1"] {
            assert!(!is_host(bad), "{bad}");
        }
    }
}
