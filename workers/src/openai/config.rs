//! The configuration of the agent, from environment variables.
//!
//! An empty variable counts as unset. A value that cannot be parsed causes a warning and is ignored. Keys stay secret:
//! `redact` removes them from texts, and `Config` has no `Debug`.

use std::time::Duration;

use serde_json::{Map, Value};

use super::retry::RetryPolicy;
use super::url::Endpoint;

pub(super) const BASE_URL: &str = "https://api.openai.com/v1";
pub(super) const DEFAULT_MODEL: &str = "gpt-4o";

/// Variables that no other program may get.
pub(super) const SECRET_VARIABLES: [&str; 3] =
    ["OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "OPENAI_EXTRA_HEADERS"];

/// Every variable and what it means, for `--help`.
pub const VARIABLES: &str = "\
Environment (an empty variable is an unset one):
  OPENAI_BASE_URL             the endpoint [https://api.openai.com/v1]
  OPENAI_API_KEY              sent as `Authorization: Bearer KEY`
  OPENAI_MODEL                the model of new sessions [the only one of GET /models, else gpt-4o]
  OPENAI_MODELS               models to choose from, with commas; else what GET /models says
  OPENAI_SYSTEM_PROMPT        said first in every conversation
  OPENAI_MAX_TOKENS           longest answer, in tokens
  OPENAI_TEMPERATURE          a number, as the endpoint takes it
  OPENAI_EXTRA_BODY           a JSON object whose members are added to every request
  OPENAI_EXTRA_HEADERS        a JSON object, or lines `Name: value`
  OPENAI_ORG_ID               sent as `OpenAI-Organization`
  OPENAI_PROJECT_ID           sent as `OpenAI-Project`
  AZURE_OPENAI_API_KEY        sent as `api-key`, instead of the bearer key
  OPENAI_API_VERSION          added to the URL as `api-version`
  OPENAI_CONNECT_TIMEOUT_SEC  for the connection [10]
  OPENAI_TIMEOUT_SEC          for each wait for the server's next byte [300]
  OPENAI_MAX_RETRIES          how often a request that failed for the moment is tried again [2]
  OPENAI_MAX_RETRY_SEC        longest wait that a server may ask for [60]
  OPENAI_HISTORY_TOKENS       how much of a conversation is sent, estimated; the newest first
  OPENAI_CONTEXT_TOKENS       size of the context window, where GET /models does not say it
  OPENAI_TOOLS                on, off: offer the client's files and terminal, and MCP servers, to the model [on]
  OPENAI_MAX_STEPS            requests in one turn [50]
  OPENAI_THINK_TAGS           on, off: take a leading <think>...</think> as thought [off]
  HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY as usual";

pub(super) struct Config {
    /// The error says what is wrong with the URL.
    pub(super) endpoint: Result<Endpoint, String>,
    pub(super) model: Option<String>,
    /// If the user lists the models, the endpoint is not asked for them.
    pub(super) models: Vec<String>,
    pub(super) system_prompt: Option<String>,
    pub(super) max_tokens: Option<u64>,
    pub(super) temperature: Option<f64>,
    pub(super) extra_body: Map<String, Value>,
    /// All headers of a request but its content type.
    pub(super) headers: Vec<(String, String)>,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry_policy: RetryPolicy,
    pub(super) history_tokens: Option<u64>,
    pub(super) context_tokens: Option<u64>,
    pub(super) has_tools: bool,
    pub(super) max_steps: u64,
    pub(super) has_think_tags: bool,
    /// Texts that no message may contain.
    secrets: Vec<String>,
}

impl Config {
    /// Returns the configuration and warnings about it.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> (Config, Vec<String>) {
        let mut from = Source { variable, warnings: Vec::new() };
        let mut headers = Vec::new();
        let mut secrets = Vec::new();
        let key = from.text("OPENAI_API_KEY");
        let azure_key = from.text("AZURE_OPENAI_API_KEY");
        if key.is_none() && azure_key.is_none() {
            let why = "This may be fine for local endpoints like Ollama.";
            from.warnings.push(format!("Warning: OPENAI_API_KEY is not set. {why}"));
        }
        secrets.extend(key.iter().chain(&azure_key).cloned());
        match (azure_key, key) {
            (Some(key), _) => headers.push(("api-key".to_owned(), key)),
            (None, Some(key)) => headers.push(("Authorization".to_owned(), format!("Bearer {key}"))),
            (None, None) => {}
        }
        for (name, header) in
            [("OPENAI_ORG_ID", "OpenAI-Organization"), ("OPENAI_PROJECT_ID", "OpenAI-Project")]
        {
            headers.extend(from.text(name).map(|value| (header.to_owned(), value)));
        }
        for (name, value) in from.extra_headers() {
            secrets.push(value.clone());
            headers.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
            headers.push((name, value));
        }
        from.drop_invalid_headers(&mut headers);
        let endpoint = Endpoint::new(
            from.text("OPENAI_BASE_URL").as_deref().unwrap_or(BASE_URL),
            from.text("OPENAI_API_VERSION").as_deref(),
        );
        if let Err(why) = &endpoint {
            from.warnings.push(format!("Warning: OPENAI_BASE_URL: {why}"));
        }
        let config = Config {
            endpoint,
            model: from.text("OPENAI_MODEL"),
            models: from.list("OPENAI_MODELS"),
            system_prompt: from.text("OPENAI_SYSTEM_PROMPT"),
            max_tokens: from.whole("OPENAI_MAX_TOKENS"),
            temperature: from.decimal("OPENAI_TEMPERATURE"),
            extra_body: from.object("OPENAI_EXTRA_BODY").unwrap_or_default(),
            headers,
            connect_timeout: from.seconds("OPENAI_CONNECT_TIMEOUT_SEC", 10.0),
            timeout: from.seconds("OPENAI_TIMEOUT_SEC", 300.0),
            retry_policy: RetryPolicy {
                retries_max: from.whole("OPENAI_MAX_RETRIES").map_or(2, |count| count.min(100) as u32),
                delay_max: from.seconds("OPENAI_MAX_RETRY_SEC", 60.0).unwrap_or(Duration::MAX),
            },
            history_tokens: from.whole("OPENAI_HISTORY_TOKENS"),
            context_tokens: from.whole("OPENAI_CONTEXT_TOKENS"),
            has_tools: from.switch("OPENAI_TOOLS", true),
            max_steps: from.whole("OPENAI_MAX_STEPS").unwrap_or(50).max(1),
            has_think_tags: from.switch("OPENAI_THINK_TAGS", false),
            secrets,
        };
        (config, from.warnings)
    }

    /// Removes secrets that a server may have quoted.
    pub(super) fn redact(&self, text: &str) -> String {
        // A value of a few letters is no secret and may occur in any text.
        let secrets = self.secrets.iter().filter(|secret| secret.len() >= 6);
        secrets.fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }
}

struct Source<F> {
    variable: F,
    warnings: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Source<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn list(&self, name: &str) -> Vec<String> {
        let text = self.text(name).unwrap_or_default();
        text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
    }

    fn read<T>(&mut self, name: &str, wanted: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.text(name)?;
        let value = read(&text);
        if value.is_none() {
            self.warnings.push(format!("Warning: {name} is not {wanted} and is ignored."));
        }
        value
    }

    fn whole(&mut self, name: &str) -> Option<u64> {
        self.read(name, "a whole number", |text| text.parse().ok())
    }

    fn decimal(&mut self, name: &str) -> Option<f64> {
        self.read(name, "a number", |text| text.parse().ok().filter(|number: &f64| number.is_finite()))
    }

    /// Zero means no limit.
    fn seconds(&mut self, name: &str, default: f64) -> Option<Duration> {
        let read = |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok();
        let given = self.read(name, "a number of seconds", read);
        let time = given.unwrap_or(Duration::from_secs_f64(default));
        if time.is_zero() { None } else { Some(time) }
    }

    fn switch(&mut self, name: &str, default: bool) -> bool {
        let read = |text: &str| match text.to_ascii_lowercase().as_str() {
            "on" | "1" | "true" | "yes" => Some(true),
            "off" | "0" | "false" | "no" => Some(false),
            _ => None,
        };
        self.read(name, "on or off", read).unwrap_or(default)
    }

    fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        self.read(name, "a JSON object", |text| serde_json::from_str(text).ok())
    }

    fn extra_headers(&mut self) -> Vec<(String, String)> {
        const NAME: &str = "OPENAI_EXTRA_HEADERS";
        let Some(text) = self.text(NAME) else { return Vec::new() };
        if text.starts_with('{') {
            let as_text = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let object = self.object(NAME).unwrap_or_default();
            return object.into_iter().map(|(name, value)| (name, as_text(value))).collect();
        }
        let mut headers = Vec::new();
        let mut has_bad_line = false;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match line.split_once(':') {
                Some((name, value)) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
                None => has_bad_line = true,
            }
        }
        if has_bad_line {
            self.warnings
                .push(format!("Warning: {NAME} has a line that is not `Name: value`; it is ignored."));
        }
        headers
    }

    /// Drops headers that are invalid in HTTP: they would fail every request.
    fn drop_invalid_headers(&mut self, headers: &mut Vec<(String, String)>) {
        headers.retain(|(name, value)| {
            let is_fine = ureq::http::HeaderName::try_from(name.as_str()).is_ok()
                && ureq::http::HeaderValue::try_from(value.as_str()).is_ok();
            if !is_fine {
                self.warnings.push(format!("Warning: the header {name:?} cannot be sent and is left out."));
            }
            is_fine
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Config, Vec<String>) {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Config::read(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    fn headers(variables: &[(&str, &str)]) -> Vec<String> {
        read(variables).0.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    #[test]
    fn without_variables_the_endpoint_is_openai_and_the_missing_key_is_a_warning() {
        for unset in [&[][..], &[("OPENAI_MODEL", ""), ("OPENAI_API_KEY", " "), ("OPENAI_MAX_TOKENS", "")]] {
            let (config, warnings) = read(unset);
            assert_eq!(config.endpoint.unwrap().chat(), "https://api.openai.com/v1/chat/completions");
            assert_eq!((config.model, config.max_tokens, config.temperature), (None, None, None));
            assert_eq!((config.system_prompt, config.headers.len()), (None, 0));
            assert_eq!(
                warnings,
                ["Warning: OPENAI_API_KEY is not set. This may be fine for local endpoints like Ollama."]
            );
        }
    }

    #[test]
    fn bad_values_cause_a_warning_and_are_ignored() {
        let names = [
            "OPENAI_MAX_TOKENS",
            "OPENAI_TEMPERATURE",
            "OPENAI_EXTRA_BODY",
            "OPENAI_CONNECT_TIMEOUT_SEC",
            "OPENAI_TIMEOUT_SEC",
            "OPENAI_MAX_RETRIES",
            "OPENAI_MAX_RETRY_SEC",
            "OPENAI_HISTORY_TOKENS",
            "OPENAI_CONTEXT_TOKENS",
            "OPENAI_TOOLS",
            "OPENAI_MAX_STEPS",
            "OPENAI_THINK_TAGS",
        ];
        for name in names {
            let (config, warnings) = read(&[(name, "12abc"), ("OPENAI_API_KEY", "k")]);
            assert_eq!(warnings.len(), 1, "{name}");
            assert!(warnings[0].contains(name) && !warnings[0].contains("12abc"));
            assert_eq!((config.max_tokens, config.retry_policy.retries_max, config.max_steps), (None, 2, 50));
        }
        assert_eq!(read(&[("OPENAI_TEMPERATURE", "NaN"), ("OPENAI_API_KEY", "k")]).1.len(), 1);
        assert_eq!(read(&[("OPENAI_BASE_URL", "localhost"), ("OPENAI_API_KEY", "k")]).1.len(), 1);
    }

    #[test]
    fn a_key_goes_into_the_header_of_its_server() {
        assert_eq!(headers(&[("OPENAI_API_KEY", "k")]), ["Authorization: Bearer k"]);
        assert_eq!(headers(&[("OPENAI_API_KEY", "k"), ("AZURE_OPENAI_API_KEY", "a")]), ["api-key: a"]);
        let all = [("OPENAI_ORG_ID", "o"), ("OPENAI_PROJECT_ID", "p")];
        assert_eq!(headers(&all), ["OpenAI-Organization: o", "OpenAI-Project: p"]);
    }

    #[test]
    fn extra_headers_are_an_object_or_lines_and_override() {
        let expected = ["A: 1", "b: c: d"];
        assert_eq!(headers(&[("OPENAI_EXTRA_HEADERS", r#"{"A": 1, "b": "c: d"}"#)]), expected);
        assert_eq!(headers(&[("OPENAI_EXTRA_HEADERS", "A: 1\n\nb:c: d\n")]), expected);
        let over = [("OPENAI_API_KEY", "k"), ("OPENAI_EXTRA_HEADERS", "authorization: Basic x")];
        assert_eq!(headers(&over), ["authorization: Basic x"]);
        let (config, warnings) =
            read(&[("OPENAI_API_KEY", "k"), ("OPENAI_EXTRA_HEADERS", "a b: c\nfine: yes\nno colon")]);
        assert_eq!((config.headers.len(), warnings.len()), (2, 2));
    }

    #[test]
    fn zero_seconds_are_no_limit() {
        let (config, _) = read(&[("OPENAI_TIMEOUT_SEC", "0"), ("OPENAI_CONNECT_TIMEOUT_SEC", "0.5")]);
        assert_eq!((config.timeout, config.connect_timeout), (None, Some(Duration::from_millis(500))));
    }

    #[test]
    fn secrets_are_removed_from_texts() {
        let (config, _) =
            read(&[("OPENAI_API_KEY", "sk-secret"), ("OPENAI_EXTRA_HEADERS", "x-key: hidden1")]);
        assert_eq!(config.redact("bad key sk-secret, hidden1!"), "bad key ***, ***!");
    }

    proptest! {
        #[test]
        fn variables_are_read_as_they_are_set(
            model in "[a-zA-Z0-9/:.-]{1,30}",
            prompt in "[a-z][a-z \n]{0,50}[a-z]",
            tokens in any::<u64>(),
            temperature in -10.0..10.0f64,
        ) {
            let (config, warnings) = read(&[
                ("OPENAI_API_KEY", "k"),
                ("OPENAI_MODEL", &model),
                ("OPENAI_SYSTEM_PROMPT", &prompt),
                ("OPENAI_MAX_TOKENS", &tokens.to_string()),
                ("OPENAI_TEMPERATURE", &temperature.to_string()),
            ]);
            prop_assert!(warnings.is_empty());
            prop_assert_eq!(config.model, Some(model));
            prop_assert_eq!(config.system_prompt, Some(prompt));
            prop_assert_eq!(config.max_tokens, Some(tokens));
            prop_assert_eq!(config.temperature, Some(temperature));
        }

        #[test]
        fn any_text_is_a_number_or_a_warning(text in ".{0,12}") {
            let (config, warnings) = read(&[("OPENAI_API_KEY", "k"), ("OPENAI_MAX_TOKENS", &text)]);
            let is_set = !text.trim().is_empty();
            prop_assert_eq!(config.max_tokens.is_some() || !warnings.is_empty(), is_set);
        }
    }
}
