//! The models that a client can choose from: the user's list, or else that of `GET /models`.
//!
//! The list is fetched in the background, and again when it is old. Only the first sessions wait for it, and not for
//! long: a client may look at the models of its first session and never again. If the endpoint has no list, only the
//! model of the environment remains.

use std::time::{Duration, Instant};

use serde_json::Value;

const REFRESH_AFTER: Duration = Duration::from_secs(600);
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Sessions wait for the first list until this long after it was asked for.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) id: String,
    pub(super) context_tokens: Option<u64>,
}

#[derive(Default)]
pub(super) struct Models {
    known: Vec<Model>,
    /// When the last refresh ended, and whether it succeeded.
    refreshed: Option<(Instant, bool)>,
    is_refreshing: bool,
    /// When the first refresh began.
    begun: Option<Instant>,
}

impl Models {
    /// The user's own list, which is never refreshed.
    pub(super) fn fixed(ids: &[String]) -> Models {
        let model = |id: &String| Model { id: id.clone(), context_tokens: None };
        // A refresh that never ends keeps others from starting.
        Models { known: ids.iter().map(model).collect(), is_refreshing: !ids.is_empty(), ..Models::default() }
    }

    /// Whether to refresh now. The caller that gets true must call `end_refresh`.
    pub(super) fn begin_refresh(&mut self, now: Instant) -> bool {
        let is_fresh = self.refreshed.is_some_and(|(when, has_succeeded)| {
            now.duration_since(when) < if has_succeeded { REFRESH_AFTER } else { RETRY_AFTER }
        });
        if self.is_refreshing || is_fresh {
            return false;
        }
        self.is_refreshing = true;
        self.begun.get_or_insert(now);
        true
    }

    /// How long to wait for the first list. `None`: there is nothing to wait for.
    pub(super) fn time_to_wait(&self, now: Instant) -> Option<Duration> {
        if self.refreshed.is_some() {
            return None;
        }
        let time = (self.begun? + FIRST_LIST_TIMEOUT).saturating_duration_since(now);
        (!time.is_zero()).then_some(time)
    }

    /// Returns whether the list has changed.
    pub(super) fn end_refresh(&mut self, answer: Option<Vec<Model>>, now: Instant) -> bool {
        self.is_refreshing = false;
        self.refreshed = Some((now, answer.is_some()));
        match answer {
            Some(models) if models != self.known => {
                self.known = models;
                true
            }
            _ => false,
        }
    }

    /// All models to choose from, including the current one, which may not be in the list.
    pub(super) fn ids<'a>(&'a self, current: &'a str) -> Vec<&'a str> {
        let mut ids: Vec<_> = self.known.iter().map(|model| model.id.as_str()).collect();
        if !ids.contains(&current) {
            ids.insert(0, current);
        }
        ids
    }

    /// The model to use if none is named.
    pub(super) fn sole(&self) -> Option<&str> {
        if let [model] = self.known.as_slice() { Some(&model.id) } else { None }
    }

    pub(super) fn context_tokens(&self, id: &str) -> Option<u64> {
        self.known.iter().find(|model| model.id == id)?.context_tokens
    }
}

/// Parses the answer to `GET /models`: an object with `data`, or only the list. `None`: it is neither.
pub(super) fn parse(body: &str) -> Option<Vec<Model>> {
    let value: Value = serde_json::from_str(body).ok()?;
    let list = value.as_array().or_else(|| value["data"].as_array())?;
    let mut models: Vec<Model> = Vec::new();
    for entry in list {
        let Some(id) = entry["id"].as_str().filter(|id| !id.is_empty()) else { continue };
        if models.iter().all(|known| known.id != id) {
            models.push(Model { id: id.to_owned(), context_tokens: context_tokens(entry) });
        }
    }
    Some(models)
}

/// OpenRouter, vLLM, llama.cpp and others have different names for it.
fn context_tokens(entry: &Value) -> Option<u64> {
    let places = ["context_length", "max_model_len", "context_window", "max_context_length"];
    let in_meta = || ["n_ctx", "n_ctx_train"].iter().find_map(|key| entry["meta"][*key].as_u64());
    let known = places.iter().find_map(|key| entry[*key].as_u64()).or_else(in_meta);
    // Some servers say zero where they do not know.
    known.filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(body: &str) -> Option<Vec<String>> {
        parse(body).map(|models| models.into_iter().map(|model| model.id).collect())
    }

    #[test]
    fn both_forms_of_the_list_are_parsed_and_nonsense_is_none() {
        let both = Some(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            ids(r#"{"object":"list","data":[{"id":"a"},{"id":"b"},{"id":"a"},{"name":"c"},7]}"#),
            both
        );
        assert_eq!(ids(r#"[{"id":"a"},{"id":"b"}]"#), both);
        for nonsense in ["", "{}", "null", "<html>", r#"{"data":"x"}"#] {
            assert_eq!(ids(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn the_context_size_is_found_under_each_of_its_names() {
        for entry in [r#""context_length":8"#, r#""max_model_len":8"#, r#""meta":{"n_ctx_train":8}"#] {
            let models = parse(&format!(r#"[{{"id":"a",{entry}}}]"#)).unwrap();
            assert_eq!(models[0].context_tokens, Some(8), "{entry}");
        }
        assert_eq!(parse(r#"[{"id":"a","context_length":0}]"#).unwrap()[0].context_tokens, None);
    }

    #[test]
    fn the_list_is_fetched_once_and_again_when_it_is_old() {
        let mut models = Models::default();
        let now = Instant::now();
        assert!(models.begin_refresh(now));
        assert!(!models.begin_refresh(now), "a refresh is already running");
        assert!(!models.end_refresh(None, now));
        assert!(!models.begin_refresh(now + Duration::from_secs(29)));
        assert!(models.begin_refresh(now + Duration::from_secs(31)), "a failure is retried soon");
        assert!(models.end_refresh(parse(r#"[{"id":"a"}]"#), now));
        assert!(!models.begin_refresh(now + Duration::from_secs(599)));
        assert!(models.begin_refresh(now + Duration::from_secs(601)));
        assert!(!models.end_refresh(parse(r#"[{"id":"a"}]"#), now), "nothing new");
        assert_eq!(models.ids("mine"), ["mine", "a"]);
        let mut fixed = Models::fixed(&["a".to_owned()]);
        assert!(!fixed.begin_refresh(now), "the user's list is not refreshed");
        assert_eq!((fixed.time_to_wait(now), fixed.sole()), (None, Some("a")));
    }

    #[test]
    fn only_the_first_list_is_waited_for_and_not_for_long() {
        let mut models = Models::default();
        let now = Instant::now();
        assert_eq!(models.time_to_wait(now), None, "nothing was asked");
        models.begin_refresh(now);
        assert_eq!(models.time_to_wait(now + FIRST_LIST_TIMEOUT / 2), Some(FIRST_LIST_TIMEOUT / 2));
        assert_eq!(models.time_to_wait(now + FIRST_LIST_TIMEOUT), None);
        models.end_refresh(None, now);
        models.begin_refresh(now + RETRY_AFTER);
        assert_eq!(models.time_to_wait(now + RETRY_AFTER), None);
    }
}
