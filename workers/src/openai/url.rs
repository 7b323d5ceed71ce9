//! The base URL of the endpoint and the URLs below it.
//!
//! The base URL may have a trailing slash, a query or the whole path of the method. URLs for people have neither
//! credentials nor a query.

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Endpoint {
    /// Scheme, authority and path, without a trailing slash.
    base: String,
    /// Has no question mark, and may be empty.
    query: String,
}

const CHAT: &str = "/chat/completions";
/// A longer address is cut in a message.
const LOCATION_CHARS: usize = 500;

impl Endpoint {
    /// Adds the version as `api-version` to the query, unless the URL has one already.
    pub(super) fn new(url: &str, api_version: Option<&str>) -> Result<Endpoint, String> {
        let url = url.trim();
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        let Some(rest) = rest else {
            return Err(format!("{} is neither http:// nor https://", without_secrets(url)));
        };
        if rest.is_empty() || rest.starts_with(['/', '?', '#', ':']) || rest.contains(char::is_whitespace) {
            return Err(format!("{} names no host", without_secrets(url)));
        }
        let url = url.split('#').next().unwrap_or_default();
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let base = base.trim_end_matches('/');
        let mut query = query.to_owned();
        if let Some(version) = api_version
            && !query.split('&').any(|pair| pair.starts_with("api-version="))
        {
            let and = if query.is_empty() { "" } else { "&" };
            query.push_str(&format!("{and}api-version={version}"));
        }
        Ok(Endpoint { base: base.strip_suffix(CHAT).unwrap_or(base).to_owned(), query })
    }

    pub(super) fn chat(&self) -> String {
        self.below(CHAT)
    }

    pub(super) fn models(&self) -> String {
        self.below("/models")
    }

    fn below(&self, path: &str) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{}", self.base, self.query)
    }
}

/// The URL for people: the query and the credentials before the host may contain a key.
pub(super) fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// What to do about a redirect, which is not followed, because the key would go with it. The location may be relative.
pub(super) fn redirection(url: &str, location: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let target = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else {
        format!("{scheme}://{authority}/{}", location.trim_start_matches('/'))
    };
    let target: String = without_secrets(&target).chars().take(LOCATION_CHARS).collect();
    let base = target.strip_suffix(CHAT).unwrap_or("the address of the API");
    format!("It redirects to {target}: set OPENAI_BASE_URL to {base}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(url: &str) -> String {
        Endpoint::new(url, None).unwrap().chat()
    }

    #[test]
    fn slashes_queries_and_full_paths_are_accepted() {
        for url in [
            "http://h/v1",
            "http://h/v1/",
            "http://h/v1//",
            " http://h/v1/chat/completions ",
            "http://h/v1#x",
        ] {
            assert_eq!(chat(url), "http://h/v1/chat/completions", "{url}");
        }
        assert_eq!(chat("https://h:8/v1/?a=b"), "https://h:8/v1/chat/completions?a=b");
        assert_eq!(Endpoint::new("http://h/v1/?a=b", None).unwrap().models(), "http://h/v1/models?a=b");
    }

    #[test]
    fn the_api_version_is_added_once() {
        let chat = |url, version| Endpoint::new(url, Some(version)).unwrap().chat();
        assert_eq!(chat("https://h/d", "1"), "https://h/d/chat/completions?api-version=1");
        assert_eq!(chat("https://h/d?x=y", "1"), "https://h/d/chat/completions?x=y&api-version=1");
        assert_eq!(chat("https://h/d?api-version=2", "1"), "https://h/d/chat/completions?api-version=2");
    }

    #[test]
    fn an_invalid_url_is_an_error() {
        for url in ["", "h/v1", "ftp://h", "http://", "http:///v1", "https://?x", "http://a b"] {
            assert!(Endpoint::new(url, None).is_err(), "{url}");
        }
    }

    #[test]
    fn secrets_are_removed() {
        assert_eq!(without_secrets("https://me:secret@h:8/v1?key=secret#secret"), "https://h:8/v1");
        assert_eq!(without_secrets("https://h/a@b"), "https://h/a@b");
        assert_eq!(without_secrets("secret?secret"), "secret");
    }

    #[test]
    fn a_redirect_names_the_address_to_set() {
        for (location, target, base) in [
            ("https://n/v2/chat/completions?key=secret", "https://n/v2/chat/completions", "https://n/v2"),
            ("//me:secret@n/chat/completions", "http://n/chat/completions", "http://n"),
            ("/v2/chat/completions", "http://h:8/v2/chat/completions", "http://h:8/v2"),
            ("/login#secret", "http://h:8/login", "the address of the API"),
            ("", "http://h:8/", "the address of the API"),
        ] {
            let said = redirection("http://h:8/v1/chat/completions", location);
            assert_eq!(said, format!("It redirects to {target}: set OPENAI_BASE_URL to {base}."));
        }
    }
}
