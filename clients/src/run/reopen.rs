//! Sessions that were there before: `--continue` and `--session`.

use rpc::text::strip_control;
use serde_json::{Value, json};

use super::driver::Driver;
use super::envelope::Status;
use super::options::{Reopen, View};
use super::stop::Stop;
use crate::Fault;

/// Agents list sessions in pages. Those behind this many are too old to be the newest.
const MAX_PAGES: usize = 20;

impl Driver {
    /// Opens a session again. `params` are those of a new one.
    pub(super) fn reopen_session(&mut self, reopen: Reopen, params: Value) -> Result<(), Stop> {
        let session = match reopen {
            Reopen::Id(session) => session,
            Reopen::Newest => self.newest_session()?,
        };
        let new = params.clone();
        // At a terminal people want to see what was said; a program and a pipe want what comes.
        let shows = matches!(self.options.view, View::Screen { .. });
        match self.open_again(session, params, shows) {
            Err(Stop::Fault(fault)) => self.begin_anew(fault, new),
            outcome => outcome,
        }
    }

    /// Offers a new session in the place of one that cannot be opened: its first prompt is filled in with what was said
    /// last, and is sent only by who presses enter.
    fn begin_anew(&mut self, fault: Fault, params: Value) -> Result<(), Stop> {
        let Some(said_last) = self.options.said_last.take() else { return Err(Stop::Fault(fault)) };
        if !self.input.has_editor() || self.options.prompt.is_some() {
            let why = format!(
                "{fault}; at a terminal, and without a PROMPT, a new session is offered, which begins with what \
                 was said last"
            );
            return Err(Stop::Fault(Fault::Failed(why)));
        }
        self.opened = self.ask_for_session("session/new", params)?;
        let session = self.opened["sessionId"].as_str();
        self.session = session.ok_or_else(|| self.failed("opened a session without an id"))?.to_owned();
        self.renderer.note(&strip_control(&fault.to_string()))?;
        self.renderer.note(
            "This is a new session. What was said last is filled in: enter sends it, Ctrl-C clears it.",
        )?;
        self.input.fill_in(&said_last);
        Ok(())
    }

    /// `shows`: what was said in the session is shown.
    pub(super) fn open_again(&mut self, session: String, mut params: Value, shows: bool) -> Result<(), Stop> {
        let capabilities = &self.agent_about["agentCapabilities"];
        let (loads, resumes) =
            (capabilities["loadSession"] == true, capabilities["sessionCapabilities"]["resume"].is_object());
        let method = match (loads, resumes) {
            (true, false) => "session/load",
            (true, true) if shows => "session/load",
            (_, true) => "session/resume",
            (false, false) => return Err(self.failed("cannot open a session again (--continue, --session)")),
        };
        params["sessionId"] = session.as_str().into();
        self.session = session;
        self.skips_history = !shows;
        self.opened = self.ask_for_session(method, params)?;
        if std::mem::take(&mut self.skips_history) {
            return Ok(());
        }
        // Ends the line of what was said last.
        Ok(self.renderer.turn_ended(Status::Completed, &Value::Null)?)
    }

    fn newest_session(&mut self) -> Result<String, Stop> {
        if !self.agent_about["agentCapabilities"]["sessionCapabilities"]["list"].is_object() {
            return Err(
                self.failed("cannot list its sessions, so --continue finds none; --session ID takes one")
            );
        }
        let cwd = self.options.cwd.to_string_lossy().into_owned();
        let mut newest = None;
        let mut params = json!({ "cwd": cwd });
        for _ in 0..MAX_PAGES {
            let page = self.ask_for_session("session/list", params.clone())?;
            newest = newer(newest, &page["sessions"], &cwd);
            match page["nextCursor"].as_str() {
                Some(cursor) => params["cursor"] = cursor.into(),
                None => break,
            }
        }
        let none = || self.failed(&format!("has no session in {cwd} to continue; leave --continue out"));
        newest.map(|(_, session)| session).ok_or_else(none)
    }
}

/// The newest of these sessions and of what was found before: when it was used last, and its id.
fn newer(found: Option<(String, String)>, sessions: &Value, cwd: &str) -> Option<(String, String)> {
    let sessions = sessions.as_array().into_iter().flatten();
    // Not every agent heeds the folder that it is asked for.
    let here = sessions.filter(|session| session["cwd"].as_str().is_none_or(|its| its == cwd));
    let here = here.filter_map(|session| {
        let updated = session["updatedAt"].as_str().unwrap_or_default();
        Some((updated.to_owned(), session["sessionId"].as_str()?.to_owned()))
    });
    // Of two that are equally old, or of unknown age, the agent's first one counts.
    found.into_iter().chain(here).reduce(|best, next| if next.0 > best.0 { next } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_session_of_the_folder_is_found() {
        let session = |id: &str, cwd: &str, updated: Option<&str>| -> Value {
            json!({ "sessionId": id, "cwd": cwd, "updatedAt": updated })
        };
        let first = json!([
            session("old", "/here", Some("2026-01-01T00:00:00Z")),
            session("new", "/here", Some("2026-03-01T00:00:00Z")),
            session("elsewhere", "/there", Some("2026-09-01T00:00:00Z")),
            { "cwd": "/here" },
        ]);
        let found = newer(None, &first, "/here");
        assert_eq!(found.as_ref().unwrap().1, "new");
        let second = json!([session("newest", "/here", Some("2026-04-01T00:00:00Z"))]);
        assert_eq!(newer(found, &second, "/here").unwrap().1, "newest");
        let undated = json!([session("a", "/here", None), session("b", "/here", None)]);
        assert_eq!(newer(None, &undated, "/here").unwrap().1, "a");
        assert_eq!(newer(None, &json!(7), "/here"), None);
    }
}
