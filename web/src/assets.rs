//! The files of the console: part of the binary, or read from a folder while somebody works on them.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use flate2::read::GzDecoder;
use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap,
    HeaderValue, IF_NONE_MATCH, VARY,
};
use hyper::{Response, StatusCode};
use rpc::text::hex;
use sha2::{Digest, Sha256};

use crate::reply::{Reply, full};

/// Each file by its name, packed by gzip.
const EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/console.rs"));

pub(crate) struct Assets {
    /// Files are read from here instead, if it is given.
    folder: Option<PathBuf>,
    https: bool,
}

impl Assets {
    pub(crate) fn new(folder: Option<PathBuf>, https: bool) -> Assets {
        Assets { folder, https }
    }

    pub(crate) fn is_https(&self) -> bool {
        self.https
    }

    /// The file at this path of a URL, for a page that was reached under `host`. `None`: there is none.
    pub(crate) fn answer(&self, path: &str, host: &str, headers: &HeaderMap) -> Option<Reply> {
        let name = match path.strip_prefix('/')? {
            "" => "index.html",
            name => name,
        };
        let accepts = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (bytes, is_packed) = self.read(name, accepts.contains("gzip"))?;
        let etag = format!("\"{}\"", hex(&Sha256::digest(&bytes)[..12]));
        let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let mut reply = if known.is_some_and(|known| known.split(',').any(|one| one.trim() == etag)) {
            let mut reply = Response::new(full(Bytes::new()));
            *reply.status_mut() = StatusCode::NOT_MODIFIED;
            reply
        } else {
            Response::new(full(bytes))
        };
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type(name)));
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        if is_packed {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(ETAG, HeaderValue::from_str(&etag).ok()?);
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&self.policy(host)).ok()?);
        Some(reply)
    }

    /// The bytes of a file, and whether they are packed.
    fn read(&self, name: &str, accepts_packed: bool) -> Option<(Bytes, bool)> {
        // No step of a path begins with a dot, so none leads out of the folder.
        if name.split('/').any(|step| step.is_empty() || step.starts_with('.') || step.contains('\\')) {
            return None;
        }
        match &self.folder {
            Some(folder) => Some((fs::read(folder.join(name)).ok()?.into(), false)),
            None => {
                let (_, packed) = EMBEDDED.iter().find(|(known, _)| *known == name)?;
                if accepts_packed {
                    return Some((Bytes::from_static(packed), true));
                }
                let mut bytes = Vec::new();
                GzDecoder::new(*packed).read_to_end(&mut bytes).ok()?;
                Some((bytes.into(), false))
            }
        }
    }

    /// What a page may do: load our own files, talk to us, and nothing else.
    fn policy(&self, host: &str) -> String {
        let socket = if self.https { "wss" } else { "ws" };
        format!(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
             connect-src 'self' {socket}://{host}; manifest-src 'self'; worker-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" | "md" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(assets: &Assets, path: &str) -> Option<u16> {
        assets.answer(path, "localhost:1", &HeaderMap::new()).map(|reply| reply.status().as_u16())
    }

    #[test]
    fn the_console_is_in_the_binary_and_a_known_file_is_not_sent_again() {
        let assets = Assets::new(None, false);
        let reply = assets.answer("/", "localhost:9001", &HeaderMap::new()).unwrap();
        assert_eq!(reply.headers()[CONTENT_TYPE], "text/html; charset=utf-8");
        let policy = reply.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; "), "{policy}");
        assert!(policy.contains("connect-src 'self' ws://localhost:9001; "), "{policy}");
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, reply.headers()[ETAG].clone());
        assert_eq!(assets.answer("/index.html", "x", &headers).unwrap().status(), 304);
    }

    #[test]
    fn the_console_is_small_and_sent_packed_to_those_who_can_unpack_it() {
        let all: usize = EMBEDDED.iter().map(|(_, packed)| packed.len()).sum();
        assert!(all < 200_000, "{all} bytes");
        let assets = Assets::new(None, false);
        let (plain, is_packed) = assets.read("index.html", false).unwrap();
        assert!(!is_packed && plain.starts_with(b"<!doctype html>"), "{plain:?}");
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"));
        let reply = assets.answer("/", "x", &headers).unwrap();
        assert_eq!(reply.headers()[CONTENT_ENCODING], "gzip");
        assert_ne!(
            reply.headers()[ETAG],
            assets.answer("/", "x", &HeaderMap::new()).unwrap().headers()[ETAG]
        );
    }

    #[test]
    fn no_path_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        fs::create_dir_all(console.join("view")).unwrap();
        fs::write(folder.path().join("secret"), "").unwrap();
        fs::write(console.join(".hidden"), "").unwrap();
        fs::write(console.join("view/a.js"), "1").unwrap();
        let assets = Assets::new(Some(console), true);
        assert_eq!(status(&assets, "/view/a.js"), Some(200));
        for path in [
            "/../secret",
            "/view/../../secret",
            "//etc/passwd",
            "/.hidden",
            "/view",
            "/view/",
            "/%2e%2e/secret",
        ] {
            assert_eq!(status(&assets, path), None, "{path}");
        }
    }
}
