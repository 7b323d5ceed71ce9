//! The beginning of a conversation: initialize, and a session with its servers, folders, model and mode.

use std::time::{Duration, Instant};

use rpc::RpcError;
use rpc::error::{AUTH_REQUIRED, INTERNAL_ERROR, METHOD_NOT_FOUND};
use serde_json::{Value, json};

use super::driver::Driver;
use super::envelope::ForProgram;
use super::input::Setting;
use super::options::{AgentSource, Input};
use super::settings::Offer;
use super::stop::{Stop, describe_error, describe_with_words, last_words};
use crate::Fault;

/// Pauses before initialize is tried again: some errors of a starting agent are transient.
const INITIALIZE_BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(2)];

impl Driver {
    pub(super) fn initialize(&mut self) -> Result<(), Stop> {
        let offered = self.client_tools.is_some();
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": { "fs": { "readTextFile": offered, "writeTextFile": offered }, "terminal": offered },
            "clientInfo": { "name": "stdio-bus-run", "title": "stdio Bus", "version": env!("CARGO_PKG_VERSION") },
        });
        let until = Instant::now() + self.options.init_timeout;
        let mut backoff = INITIALIZE_BACKOFF.into_iter();
        loop {
            let id = self.agent.request("initialize", params.clone());
            let answer = self.await_answer(id, Some(until)).map_err(|stop| self.too_late(stop))?;
            let error = match answer {
                Ok(result) if result["protocolVersion"] == 1 => {
                    self.agent_about = result;
                    return Ok(());
                }
                Ok(result) => {
                    let version = &result["protocolVersion"];
                    return Err(self.failed(&format!("speaks ACP {version}, and not 1")));
                }
                Err(error) => error,
            };
            let retry = if is_transient(&error) { backoff.next() } else { None };
            let Some(pause) = retry else {
                return Err(self.refused(&error));
            };
            self.wait_until(Instant::now() + pause)?;
        }
    }

    /// The agent refuses to be initialized, or the bus says why the pool does not work.
    fn refused(&self, error: &RpcError) -> Stop {
        let is_of_bus = error.data.as_ref().is_some_and(|data| data["reason"].is_string());
        match &self.options.agent {
            AgentSource::Pool { pool, .. } if is_of_bus => {
                let pool = pool.as_deref().map_or(String::new(), |pool| format!(" {pool}"));
                let why = describe_error(error);
                let words: String = last_words(error).map(|line| format!("\n| {line}")).collect();
                Stop::Fault(Fault::Failed(format!("{why}; `stdio-bus logs{pool}` says more{words}")))
            }
            _ => self.failed(&format!("refuses initialize: {}", describe_with_words(error))),
        }
    }

    pub(super) fn open_session(&mut self) -> Result<(), Stop> {
        let params = self.session_params()?;
        match self.options.reopen.take() {
            None => {
                self.opened = self.ask_for_session("session/new", params)?;
                let session = self.opened["sessionId"].as_str();
                self.session =
                    session.ok_or_else(|| self.failed("opened a session without an id"))?.to_owned();
            }
            Some(reopen) => self.reopen_session(reopen, params)?,
        }
        let wanted = [(Setting::Model, self.options.model.take()), (Setting::Mode, self.options.mode.take())];
        for (setting, wanted) in wanted {
            if let Some(wanted) = wanted
                && let Err(why) = self.change_setting(setting, &wanted)?
            {
                return Err(Stop::Fault(Fault::Failed(why)));
            }
        }
        if self.options.input == Input::Json {
            self.tell_session()?;
        }
        Ok(())
    }

    /// The result of a request that opens or finds a session.
    pub(super) fn ask_for_session(&mut self, method: &str, params: Value) -> Result<Value, Stop> {
        let id = self.agent.request(method, params);
        let until = Instant::now() + self.options.init_timeout;
        let answer = self.await_answer(id, Some(until)).map_err(|stop| self.too_late(stop))?;
        answer.map_err(|error| {
            let words = describe_with_words(&error);
            let why = match (error.code, method) {
                (AUTH_REQUIRED, _) => self.how_to_log_in(&words),
                (_, "session/list") => "does not list its sessions".to_owned(),
                (_, "session/new") => "opens no session".to_owned(),
                _ => "does not open the session again".to_owned(),
            };
            self.failed(&format!("{why}: {words}"))
        })
    }

    /// Names the command of an agent that is known by name, unless the agent has named it.
    fn how_to_log_in(&self, words: &str) -> String {
        let how = match &self.options.agent {
            AgentSource::Command(command) => command.log_in.as_ref().filter(|how| !words.contains(*how)),
            AgentSource::Pool { .. } => None,
        };
        let how = how.map_or(String::new(), |how| format!(" (to log in: {how})"));
        format!("wants you to log in first, with its own command{how}")
    }

    /// What the agent cannot take is refused here: it would ignore it in silence.
    pub(super) fn session_params(&self) -> Result<Value, Stop> {
        let cwd = self.options.cwd.to_string_lossy().into_owned();
        let mut params = json!({ "cwd": cwd, "mcpServers": self.options.mcp_servers });
        let capabilities = &self.agent_about["agentCapabilities"];
        for server in &self.options.mcp_servers {
            if let Some(kind) = server["type"].as_str()
                && capabilities["mcpCapabilities"][kind] != true
            {
                return Err(self.failed(&format!("takes no MCP servers over {kind}: {}", server["name"])));
            }
        }
        if !self.options.additional_folders.is_empty() {
            if !capabilities["sessionCapabilities"]["additionalDirectories"].is_object() {
                return Err(self.failed("takes no additional folders (--add-dir)"));
            }
            let folders = self.options.additional_folders.iter().map(|folder| folder.to_string_lossy());
            params["additionalDirectories"] = folders.collect();
        }
        Ok(params)
    }

    fn tell_session(&mut self) -> Result<(), Stop> {
        let model = Offer::read(&self.opened, Setting::Model);
        let mode = Offer::read(&self.opened, Setting::Mode);
        Ok(self.renderer.for_program(ForProgram::Session {
            session_id: self.session.clone(),
            agent: self.agent_about["agentInfo"].clone(),
            model: model.current,
            models: model.values,
            mode: mode.current,
            modes: mode.values,
        })?)
    }

    /// Sets the model or the mode of the session, or says why it cannot be set.
    pub(super) fn change_setting(
        &mut self,
        setting: Setting,
        wanted: &str,
    ) -> Result<Result<(), String>, Stop> {
        let offer = Offer::read(&self.opened, setting);
        let (method, params) = offer.request(setting, wanted, &self.session);
        let id = self.agent.request(method, params);
        let until = Instant::now() + self.options.init_timeout;
        let answer = self.await_answer(id, Some(until)).map_err(|stop| self.too_late(stop))?;
        let (name, word) = (&self.agent.name, setting.word());
        Ok(match answer {
            Ok(result) => {
                note_change(&mut self.opened, setting, wanted, &result);
                Ok(())
            }
            Err(error) if error.code == METHOD_NOT_FOUND => {
                Err(format!("{name} does not let clients choose a {word}"))
            }
            Err(error) => {
                let list = offer.list();
                Err(format!("{name} does not take the {word} {wanted:?}: {}{list}", describe_error(&error)))
            }
        })
    }

    fn too_late(&self, stop: Stop) -> Stop {
        match stop {
            Stop::TimedOut => {
                let waited = self.options.init_timeout;
                Stop::Fault(Fault::TimedOut { at: self.agent.name.clone(), waited })
            }
            stop => stop,
        }
    }
}

/// Keeps what the session offers up to date: the options of one setting may depend on another.
fn note_change(opened: &mut Value, setting: Setting, wanted: &str, result: &Value) {
    if result["configOptions"].is_array() {
        opened["configOptions"] = result["configOptions"].clone();
        return;
    }
    let (state, current) = match setting {
        Setting::Model => ("models", "currentModelId"),
        Setting::Mode => ("modes", "currentModeId"),
    };
    if opened[state].is_object() {
        opened[state][current] = wanted.into();
    }
}

/// Whether a later initialize may succeed: the agent, or the bus's worker, is not ready yet.
fn is_transient(error: &RpcError) -> bool {
    let reason = error.data.as_ref().and_then(|data| data["reason"].as_str());
    error.code == INTERNAL_ERROR || matches!(reason, Some("worker_lost" | "pool_down" | "busy" | "no_start"))
}
