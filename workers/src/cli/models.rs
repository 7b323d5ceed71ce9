//! The models that the CLI lists, and how open sessions learn of them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::runtimes::OwnProtocol;
use super::shared::Shared;
use super::{argv, codex_server, responses};
use crate::detect::{self, Model};

/// How long the answer to a request for a session waits for the models that it is to list.
const LIST_WAIT: Duration = Duration::from_secs(3);

/// Lists the CLI's models on a thread of its own, the first time that it is called.
pub(super) fn list(shared: &Arc<Shared>) {
    if !shared.begin_listing() {
        return;
    }
    let listing = shared.clone();
    let body = move || {
        if let Ok(program) = listing.program()
            && !ask_server(&listing)
        {
            update(&listing, detect::listed(&listing.row, &program));
        }
        listing.end_listing();
    };
    // Without the thread there is no list, but a client can still set any model.
    if thread::Builder::new().name("models".to_owned()).spawn(body).is_err() {
        shared.end_listing();
    }
}

/// Asks a CLI that can say more than its models before a session is opened. Returns false if it cannot.
pub(super) fn ask_server(shared: &Shared) -> bool {
    match shared.turn.own_protocol() {
        Some(OwnProtocol::Codex) => {}
        Some(OwnProtocol::Claude) | None => return false,
    }
    let Some(welcome) = shared.program().ok().and_then(|program| codex_server::welcome(&program)) else {
        return false;
    };
    shared.set_logged_out(welcome.is_logged_out);
    update(shared, welcome.models);
    true
}

/// Whether an answer has to wait for the list: not if the table knows models of a CLI that says nothing else with it.
pub(super) fn is_awaited(shared: &Shared) -> bool {
    shared.is_listing_models() && (shared.is_bridge() || shared.row.known_models.is_empty())
}

/// Waits until the CLI has listed its models, but not for long.
pub(super) fn wait_for_list(shared: &Shared) {
    if is_awaited(shared) {
        shared.wait_for_models(LIST_WAIT);
    }
}

/// Replaces the list of models. Clients of open sessions hear of a change.
pub(super) fn update(shared: &Shared, mut listed: Vec<Model>) {
    listed.retain(|model| argv::is_model(&model.id));
    let is_empty = listed.is_empty();
    if shared.replace_models(listed) && !is_empty {
        send_options(shared);
    }
}

/// Names the model that the CLI uses where none is chosen. Clients of open sessions hear of a change.
pub(super) fn name_default(shared: &Shared, name: String) {
    if shared.replace_default_model(name) {
        send_options(shared);
    }
}

fn send_options(shared: &Shared) {
    for session in shared.all_sessions() {
        let update = responses::config_options_update(shared, &session.lock());
        shared.writer.update(&session.id, update);
    }
}
