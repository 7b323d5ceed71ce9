//! The models that the CLI lists, and how open sessions learn of them.

use std::sync::Arc;
use std::thread;

use super::shared::Shared;
use super::{argv, responses};
use crate::detect::{self, Model};

/// Lists the CLI's models on a thread of its own, the first time that it is called.
pub(super) fn list(shared: &Arc<Shared>) {
    if !shared.begin_listing() {
        return;
    }
    let listing = shared.clone();
    let body = move || {
        let listed = listing.program().map(|program| detect::listed(&listing.row, &program));
        listing.end_listing();
        if let Ok(listed) = listed {
            update(&listing, listed);
        }
    };
    // Without the thread there is no list, but a client can still set any model.
    if thread::Builder::new().name("models".to_owned()).spawn(body).is_err() {
        shared.end_listing();
    }
}

/// Replaces the list of models. Clients of open sessions hear of a change.
pub(super) fn update(shared: &Shared, mut listed: Vec<Model>) {
    listed.retain(|model| argv::is_model(&model.id) && model.id != responses::DEFAULT_CHOICE);
    let has_changed = shared.replace_models(listed.clone());
    if listed.is_empty() || !has_changed {
        return;
    }
    for session in shared.all_sessions() {
        let update = responses::config_options_update(shared, &session.lock().record);
        shared.writer.update(&session.id, update);
    }
}
