//! What the client can take, as it has said.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

#[derive(Default)]
pub(super) struct Client {
    takes_booleans: AtomicBool,
    shows_terminals: AtomicBool,
    shows_forms: AtomicBool,
}

impl Client {
    /// Reads the capabilities of `initialize`.
    pub(super) fn set(&self, capabilities: &Value) {
        let takes_booleans = !capabilities["session"]["configOptions"]["boolean"].is_null();
        self.takes_booleans.store(takes_booleans, Ordering::Relaxed);
        let shows_terminals = capabilities["_meta"]["terminal_output"] == true;
        self.shows_terminals.store(shows_terminals, Ordering::Relaxed);
        self.shows_forms.store(capabilities["elicitation"]["form"].is_object(), Ordering::Relaxed);
    }

    /// Whether it shows a switch for an option that is on or off.
    pub(super) fn takes_booleans(&self) -> bool {
        self.takes_booleans.load(Ordering::Relaxed)
    }

    /// Whether it shows a terminal for a command that the agent runs.
    pub(super) fn shows_terminals(&self) -> bool {
        self.shows_terminals.load(Ordering::Relaxed)
    }

    /// Whether it shows a form for what the agent wants to know.
    pub(super) fn shows_forms(&self) -> bool {
        self.shows_forms.load(Ordering::Relaxed)
    }
}
