//! The secrets of an MCP server, which no text may show: the values of its variables and headers, and of the query of
//! its URL.

use agent_client_protocol_schema::v1 as acp;

/// A shorter value is no secret and may occur in any text.
const SECRET_BYTES_MIN: usize = 6;

#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    pub(super) fn of(spec: &acp::McpServer) -> Secrets {
        let of_web = |url: &str, headers: &[acp::HttpHeader]| {
            let query = url.split_once('?').map_or("", |(_, query)| query);
            let values = query.split('&').filter_map(|pair| Some(pair.split_once('=')?.1));
            let headers = headers.iter().map(|header| header.value.as_str());
            headers.chain(values).flat_map(with_words).collect()
        };
        Secrets(match spec {
            acp::McpServer::Stdio(stdio) => {
                stdio.env.iter().flat_map(|variable| with_words(&variable.value)).collect()
            }
            acp::McpServer::Http(http) => of_web(&http.url, &http.headers),
            acp::McpServer::Sse(sse) => of_web(&sse.url, &sse.headers),
            _ => Vec::new(),
        })
    }

    /// The text without secrets and without control characters.
    pub(super) fn redact(&self, text: &str) -> String {
        let text = self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"));
        text.replace(|char: char| char.is_control(), " ")
    }
}

/// A value, and its words: a server may quote the key of `Bearer KEY` alone.
fn with_words(value: &str) -> Vec<String> {
    let words = value.split_whitespace().map(str::to_owned);
    let all = [value.to_owned()].into_iter().chain(words);
    all.filter(|secret| secret.len() > SECRET_BYTES_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_and_headers_are_removed() {
        let variable = acp::EnvVariable::new("TOKEN", "tok-secret");
        let stdio = acp::McpServer::Stdio(acp::McpServerStdio::new("a", "/bin/a").env(vec![variable]));
        assert_eq!(Secrets::of(&stdio).redact("bad tok-secret\n"), "bad *** ");
        let header = acp::HttpHeader::new("Authorization", "Bearer key-secret");
        let url = "http://h/mcp?key=url-secret&x=1";
        let http = acp::McpServer::Http(acp::McpServerHttp::new("a", url).headers(vec![header]));
        let text = "no key-secret, Bearer key-secret, url-secret";
        assert_eq!(Secrets::of(&http).redact(text), "no ***, ***, ***");
    }
}
