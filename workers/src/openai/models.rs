//! The models that a client can choose from: what the user lists, else what `GET /models` says.
//!
//! Asked for in the background and again when the answer is old, so that no session waits for it. An endpoint
//! that has no such list leaves the one model of the environment.

use std::time::{Duration, Instant};

use serde_json::Value;

const FRESH: Duration = Duration::from_secs(600);
const FRESH_AFTER_FAILURE: Duration = Duration::from_secs(30);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) id: String,
    pub(super) context_tokens: Option<u64>,
}

#[derive(Default)]
pub(super) struct Models {
    known: Vec<Model>,
    /// When the list was last asked for, and whether it came.
    asked: Option<(Instant, bool)>,
    is_asking: bool,
}

impl Models {
    /// The user's own list, which is never asked for.
    pub(super) fn fixed(ids: &[String]) -> Models {
        let model = |id: &String| Model { id: id.clone(), context_tokens: None };
        // As if somebody asked for ever: nobody else will.
        Models { known: ids.iter().map(model).collect(), asked: None, is_asking: !ids.is_empty() }
    }

    /// Whether to ask now. True is said once an asking.
    pub(super) fn begin_asking(&mut self, now: Instant) -> bool {
        let is_fresh = self.asked.is_some_and(|(when, has_come)| {
            now.duration_since(when) < if has_come { FRESH } else { FRESH_AFTER_FAILURE }
        });
        if self.is_asking || is_fresh {
            return false;
        }
        self.is_asking = true;
        true
    }

    /// Whether the list is another one than before.
    pub(super) fn asked(&mut self, answer: Option<Vec<Model>>, now: Instant) -> bool {
        self.is_asking = false;
        self.asked = Some((now, answer.is_some()));
        match answer {
            Some(models) if models != self.known => {
                self.known = models;
                true
            }
            _ => false,
        }
    }

    /// Every model to choose from, with the current one, which may be in no list.
    pub(super) fn ids<'a>(&'a self, current: &'a str) -> Vec<&'a str> {
        let mut ids: Vec<_> = self.known.iter().map(|model| model.id.as_str()).collect();
        if !ids.contains(&current) {
            ids.insert(0, current);
        }
        ids
    }

    pub(super) fn context_tokens(&self, id: &str) -> Option<u64> {
        self.known.iter().find(|model| model.id == id)?.context_tokens
    }
}

/// Reads the answer to `GET /models`: an object with `data`, or just the list. `None`: it is none.
pub(super) fn read(body: &str) -> Option<Vec<Model>> {
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

/// As OpenRouter, vLLM, llama.cpp and others call it.
fn context_tokens(entry: &Value) -> Option<u64> {
    let places = ["context_length", "max_model_len", "context_window", "max_context_length"];
    places.iter().find_map(|key| entry[*key].as_u64()).or_else(|| entry["meta"]["n_ctx_train"].as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(body: &str) -> Option<Vec<String>> {
        read(body).map(|models| models.into_iter().map(|model| model.id).collect())
    }

    #[test]
    fn lists_are_read_in_both_shapes_and_nonsense_is_none() {
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
    fn the_window_is_found_where_servers_put_it() {
        for entry in [r#""context_length":8"#, r#""max_model_len":8"#, r#""meta":{"n_ctx_train":8}"#] {
            let models = read(&format!(r#"[{{"id":"a",{entry}}}]"#)).unwrap();
            assert_eq!(models[0].context_tokens, Some(8), "{entry}");
        }
    }

    #[test]
    fn the_list_is_asked_for_once_and_again_when_it_is_old() {
        let (mut models, now) = (Models::default(), Instant::now());
        assert!(models.begin_asking(now));
        assert!(!models.begin_asking(now), "somebody asks already");
        assert!(!models.asked(None, now));
        assert!(!models.begin_asking(now + Duration::from_secs(29)));
        assert!(models.begin_asking(now + Duration::from_secs(31)), "a failure is tried again soon");
        assert!(models.asked(read(r#"[{"id":"a"}]"#), now));
        assert!(!models.begin_asking(now + Duration::from_secs(599)));
        assert!(models.begin_asking(now + Duration::from_secs(601)));
        assert!(!models.asked(read(r#"[{"id":"a"}]"#), now), "nothing new");
        assert_eq!(models.ids("mine"), ["mine", "a"]);
        assert!(!Models::fixed(&["a".to_owned()]).begin_asking(now), "a list of the user's is not asked for");
    }
}
