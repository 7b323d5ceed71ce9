//! Where the index comes from: a file, or an address whose last answer is kept.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::index::Index;

/// For so long the kept index is used without asking.
const FRESH: Duration = Duration::from_secs(3600);
const INDEX_BYTES: u64 = 16 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const READ_TIMEOUT: Duration = Duration::from_secs(30);
const REDIRECTS: u32 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Url(String),
}

/// An index, and what the user should know about it.
pub struct Loaded {
    pub index: Index,
    /// It could not be asked for, and an older one is used: why.
    pub stale: Option<String>,
}

impl Source {
    pub fn parse(text: &str) -> Source {
        if text.starts_with("https://") || text.starts_with("http://") {
            Source::Url(text.to_owned())
        } else {
            Source::File(text.into())
        }
    }

    /// The one that was used last.
    pub fn last_used(folder: &Path) -> Option<Source> {
        let text = fs::read_to_string(folder.join("source")).ok()?;
        Some(text.trim()).filter(|text| !text.is_empty()).map(Source::parse)
    }

    /// The index that was used last, however old. Nothing is asked for.
    pub fn kept_index(folder: &Path) -> Option<Index> {
        let text = match Source::last_used(folder)? {
            Source::File(path) => fs::read_to_string(path).ok()?,
            Source::Url(_) => {
                let kept: Value =
                    serde_json::from_str(&fs::read_to_string(folder.join("index.json")).ok()?).ok()?;
                kept["index"].as_str()?.to_owned()
            }
        };
        Index::parse(&text).ok()
    }

    /// `folder` is where the index is kept. `refresh`: it is asked for even if the kept one is new.
    pub fn load(&self, folder: &Path, refresh: bool) -> Result<Loaded, String> {
        let loaded = match self {
            Source::File(path) => {
                let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
                let mut index = Index::parse(&text)?;
                // The registry keeps its warnings in a file of their own.
                let beside = fs::read_to_string(path.with_file_name("quarantine.json")).unwrap_or_default();
                index.quarantine(&serde_json::from_str(&beside).unwrap_or_default());
                Loaded { index, stale: None }
            }
            Source::Url(url) => load_kept(url, &folder.join("index.json"), refresh)?,
        };
        let name = match self {
            Source::File(path) => {
                std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string()
            }
            Source::Url(url) => url.clone(),
        };
        // To remember it is only a convenience.
        let _ = create_private(folder).and_then(|()| fs::write(folder.join("source"), name));
        Ok(loaded)
    }
}

pub(super) fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn load_kept(url: &str, kept_path: &Path, refresh: bool) -> Result<Loaded, String> {
    let kept = fs::read_to_string(kept_path).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let kept = kept.filter(|kept| kept["source"] == url);
    let kept_text = kept.as_ref().and_then(|kept| kept["index"].as_str());
    let is_fresh = fs::metadata(kept_path)
        .and_then(|found| found.modified())
        .is_ok_and(|written| SystemTime::now().duration_since(written).is_ok_and(|age| age < FRESH));
    if let Some(text) = kept_text.filter(|_| is_fresh && !refresh) {
        return Ok(Loaded { index: Index::parse(text)?, stale: None });
    }
    let fetched = fetch_text(url).and_then(|text| Ok((Index::parse(&text)?, text)));
    match (fetched, kept_text) {
        (Ok((index, text)), _) => {
            let keep = json!({ "source": url, "index": text }).to_string();
            if let Some(folder) = kept_path.parent() {
                let new_path = kept_path.with_extension("new");
                let _ = create_private(folder)
                    .and_then(|()| fs::write(&new_path, keep))
                    .and_then(|()| fs::rename(&new_path, kept_path));
            }
            Ok(Loaded { index, stale: None })
        }
        (Err(why), Some(text)) => Ok(Loaded { index: Index::parse(text)?, stale: Some(why) }),
        (Err(why), None) => Err(why),
    }
}

fn fetch_text(url: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = get(url, INDEX_BYTES)?.read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

/// The body of a successful answer. Redirects lead to https only; plain http is for this machine alone.
pub(super) fn get(url: &str, max_bytes: u64) -> Result<impl Read + use<>, String> {
    let is_local = is_this_machine(url);
    if !url.starts_with("https://") && !is_local {
        return Err(format!("{url}: only https is safe for programs"));
    }
    let config = Agent::config_builder()
        .https_only(!is_local)
        .max_redirects(if is_local { 0 } else { REDIRECTS })
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
        .user_agent(concat!("stdio-bus/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
        .build();
    let answer = Agent::new_with_config(config).get(url).call().map_err(|error| format!("{url}: {error}"))?;
    if answer.status().as_u16() != 200 {
        return Err(format!("{url}: HTTP status {}", answer.status().as_u16()));
    }
    Ok(answer.into_body().into_with_config().limit(max_bytes).reader())
}

fn is_this_machine(url: &str) -> bool {
    let host = url.strip_prefix("http://").and_then(|rest| rest.split(['/', '?', '#']).next());
    let name = host.map(|host| match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    });
    // A name before `@` would make the host another one.
    host.is_some_and(|host| !host.contains('@'))
        && name.is_some_and(|name| matches!(name, "localhost" | "127.0.0.1" | "::1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        for url in ["http://localhost:1/x", "http://127.0.0.1", "http://[::1]:80/y"] {
            assert!(is_this_machine(url), "{url}");
        }
        for url in [
            "http://example.org",
            "http://localhost.example.org",
            "http://localhost@example.org/",
            "https://localhost",
            "http://127.0.0.1.example.org",
        ] {
            assert!(!is_this_machine(url), "{url}");
        }
        assert!(get("http://example.org/x", 1).err().unwrap().contains("only https"));
        assert!(get("ftp://example.org/x", 1).err().unwrap().contains("only https"));
    }

    #[test]
    fn a_file_and_the_warnings_beside_it_are_read_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("registry.json");
        fs::write(&path, r#"{"agents":[]}"#).unwrap();
        fs::write(folder.path().join("quarantine.json"), r#"{"bad":"it fails"}"#).unwrap();
        let kept = folder.path().join("kept");
        assert_eq!(Source::last_used(&kept), None);
        let source = Source::parse(path.to_str().unwrap());
        let loaded = source.load(&kept, false).unwrap();
        assert_eq!(loaded.index.quarantined["bad"], "it fails");
        assert_eq!(Source::last_used(&kept), Some(source));
        assert!(Source::parse("/no/such").load(&kept, false).is_err());
    }
}
