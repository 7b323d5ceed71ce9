//! Where spans are sent and how: the standard `OTEL_*` variables, and the endpoint of the command line before them.
//!
//! A variable for traces alone (`OTEL_EXPORTER_OTLP_TRACES_...`) counts before that for all signals. An empty one is
//! the same as none.

use std::fs;
use std::time::Duration;

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::encode::Encoding;
use crate::resource::Resource;

const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const PATH: &str = "/v1/traces";
/// A request that takes longer would hold all others up.
const MAX_TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) encoding: Encoding,
    pub(crate) gzip: bool,
    pub(crate) timeout: Duration,
    /// They may have secrets, so their values are never shown.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) resource: Resource,
    pub(crate) tls: TlsConfig,
}

impl Settings {
    /// `endpoint`: that of the command line. `variable`: gives the value of a variable.
    pub(crate) fn read(
        endpoint: Option<&str>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Settings, String> {
        let set =
            |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let either = |name: &str| {
            let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
            names.into_iter().find_map(|name| set(&name).map(|text| (name, text)))
        };
        let url = match (endpoint, set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")) {
            (Some(base), _) => with_path(base),
            (None, Some(whole)) => whole,
            (None, None) => {
                with_path(&set("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))
            }
        };
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(format!(
                "{:?} is not the URL of a collector: http://HOST:4318",
                without_secrets(&url)
            ));
        }
        let encoding = match either("PROTOCOL").as_ref().map(|(name, text)| (name, text.as_str())) {
            None | Some((_, "http/protobuf")) => Encoding::Protobuf,
            Some((_, "http/json")) => Encoding::Json,
            Some((name, other)) => {
                return Err(format!("{name}={other:?}: there are http/protobuf and http/json"));
            }
        };
        let gzip = match either("COMPRESSION").as_ref().map(|(name, text)| (name, text.as_str())) {
            None | Some((_, "none")) => false,
            Some((_, "gzip")) => true,
            Some((name, other)) => return Err(format!("{name}={other:?}: there are gzip and none")),
        };
        let timeout = match either("TIMEOUT") {
            None => DEFAULT_TIMEOUT,
            Some((name, text)) => match text.parse::<u64>().map(Duration::from_millis) {
                Ok(timeout) if !timeout.is_zero() => timeout.min(MAX_TIMEOUT),
                _ => return Err(format!("{name}={text:?} is not a number of milliseconds")),
            },
        };
        let headers = match either("HEADERS") {
            None => Vec::new(),
            Some((name, text)) => pairs(&text).ok_or_else(|| format!("{name} is not KEY=VALUE,KEY=VALUE"))?,
        };
        let mut attributes = match set("OTEL_RESOURCE_ATTRIBUTES") {
            None => Vec::new(),
            Some(text) => pairs(&text).ok_or("OTEL_RESOURCE_ATTRIBUTES is not KEY=VALUE,KEY=VALUE")?,
        };
        if let Some(service) = set("OTEL_SERVICE_NAME") {
            attributes.retain(|(key, _)| key != "service.name");
            attributes.push(("service.name".to_owned(), service));
        }
        let tls = tls(
            either("CERTIFICATE").map(|(_, path)| path),
            either("CLIENT_CERTIFICATE").map(|(_, path)| path),
            either("CLIENT_KEY").map(|(_, path)| path),
        )?;
        Ok(Settings { url, encoding, gzip, timeout, headers, resource: Resource { attributes }, tls })
    }

    /// Adds what the bus tells of itself, unless a variable says otherwise.
    pub(crate) fn describe(&mut self, key: &str, value: &str) {
        let attributes = &mut self.resource.attributes;
        if !attributes.iter().any(|(known, _)| known == key) {
            attributes.push((key.to_owned(), value.to_owned()));
        }
    }
}

/// The URL for traces at this endpoint, which may have their path already.
fn with_path(base: &str) -> String {
    let base = base.trim().trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

/// A URL without the user and the password in it, for people.
pub(crate) fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = path.split('?').next().unwrap_or_default();
    format!("{scheme}://{}{path}", host.rsplit('@').next().unwrap_or_default())
}

/// `KEY=VALUE,KEY=VALUE`, with percent signs for what has a meaning there.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let key = decoded(key.trim());
        let is_plain = |text: &str| !text.chars().any(char::is_control);
        let value = decoded(value.trim());
        (!key.is_empty() && is_plain(&key) && is_plain(&value)).then_some((key, value))
    };
    parts.map(pair).collect()
}

/// The text with its `%XX` decoded. What is not one stays as it is.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tls(trusted: Option<String>, own: Option<String>, key: Option<String>) -> Result<TlsConfig, String> {
    let read = |path: &str| fs::read(path).map_err(|error| format!("{path}: {error}"));
    let roots = match trusted {
        None => RootCerts::PlatformVerifier,
        Some(path) => RootCerts::from(certificates(&path, &read(&path)?)?),
    };
    let client = match (own, key) {
        (None, None) => None,
        (Some(own), Some(key)) => {
            let chain = certificates(&own, &read(&own)?)?;
            let private = PrivateKey::from_pem(&read(&key)?).map_err(|error| format!("{key}: {error}"))?;
            Some(ClientCert::new_with_certs(&chain, private))
        }
        _ => {
            let names = ["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"];
            return Err(format!("{} and {} belong together", names[0], names[1]));
        }
    };
    Ok(TlsConfig::builder().root_certs(roots).client_cert(client).build())
}

fn certificates(path: &str, pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| format!("{path}: {error}"))? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err(format!("{path} has no certificate")) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(endpoint: Option<&str>, set: &[(&str, &str)]) -> Result<Settings, String> {
        let value =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        Settings::read(endpoint, &value)
    }

    #[test]
    fn without_variables_there_are_the_defaults_of_the_standard() {
        let settings = read(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap();
        assert_eq!(settings.url, "http://localhost:4318/v1/traces");
        assert_eq!((settings.encoding, settings.gzip), (Encoding::Protobuf, false));
        assert_eq!(settings.timeout, Duration::from_secs(10));
    }

    #[test]
    fn an_endpoint_gets_its_path_and_the_one_of_traces_is_taken_as_it_is() {
        let url = |endpoint, set: &[(&str, &str)]| read(endpoint, set).unwrap().url;
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4318/otlp/");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t/ingest");
        assert_eq!(url(None, &[all]), "https://c:4318/otlp/v1/traces");
        assert_eq!(url(None, &[all, traces]), "http://t/ingest");
        assert_eq!(url(Some("http://here:1"), &[all, traces]), "http://here:1/v1/traces");
        assert_eq!(url(Some("http://here:1/v1/traces"), &[]), "http://here:1/v1/traces");
    }

    #[test]
    fn what_is_for_traces_counts_before_what_is_for_all() {
        let settings = read(
            None,
            &[
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
                ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2, x-b = c=d ,"),
                ("OTEL_SERVICE_NAME", "desk"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,host.name=h"),
            ],
        )
        .unwrap();
        assert_eq!((settings.encoding, settings.gzip), (Encoding::Json, true));
        assert_eq!(settings.timeout, Duration::from_millis(2500));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(settings.headers, [pair("api-key", "a b%2"), pair("x-b", "c=d")]);
        assert_eq!(settings.resource.attributes, [pair("host.name", "h"), pair("service.name", "desk")]);
    }

    #[test]
    fn what_is_wrong_is_named_without_its_secrets() {
        for (name, text, says) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf and http/json"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip and none"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "milliseconds"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "KEY=VALUE"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret=%0asecret", "KEY=VALUE"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/secret", "belong together"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "/no/such/file"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://me:secret@c?secret", "ftp://c"),
        ] {
            let Err(error) = read(None, &[(name, text)]) else { panic!("{name}={text} is wrong") };
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}
