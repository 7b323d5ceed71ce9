//! Requests to the bus in which the shell has a part: a status with what processes use, a reload, a stop.
//!
//! The core asks the shell by an action. Requests that wait for what comes of it are few and short, and are answered as
//! soon as the shell has carried it out.

use log::info;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Bus;
use super::admin::params_of;
use super::from_client::Routed;
use super::status::Report;
use crate::api::{Action, Moment, Usage};
use crate::id::Link;
use crate::limit::{NAME_BYTES, RELOADS_WAITING, STATUS_STEP_BYTES, STATUS_WAITING};
use crate::state::calls::Id;
use crate::state::operation::{Request, StatusRequest};
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;

/// The calls that the shell makes.
impl Bus {
    /// The process that this bus is, the file of its configuration, and the commit of its program, for `_bus/status`.
    pub fn runs_as(&mut self, pid: u32, config: Option<String>, commit: Option<&'static str>) {
        (self.operation.pid, self.operation.config) = (Some(pid), config);
        self.operation.commit = commit;
    }

    /// The processes of all workers.
    pub fn process_ids(&self) -> Vec<u32> {
        self.workers.iter().filter_map(|(_, worker)| worker.pid).collect()
    }

    /// What processes use, by their ids. Call it after `Action::Measure`, with nothing where that cannot be told.
    pub fn measured(&mut self, usage: impl IntoIterator<Item = (u32, Usage)>, now: Moment) {
        self.set_time(now);
        self.operation.set_usage(usage, now);
        let waiting = std::mem::take(&mut self.operation.waits_for_status);
        if !waiting.is_empty() {
            let whole = Report::new(self).status(None).to_string();
            for StatusRequest { link, id, pool } in waiting {
                let of_pool = pool.map(|_| Report::new(self).status(pool).to_string());
                self.leftovers.spend(of_pool.as_ref().map_or(0, String::len) / STATUS_STEP_BYTES);
                let status = of_pool.as_ref().unwrap_or(&whole);
                self.links.send(link, &spelled_result_line(&id, status.as_bytes()), &[]);
            }
        }
        self.settle();
    }

    /// The configuration was read again after `Action::Reload`. `outcome`: what has changed, or one line for each error
    /// of a configuration that is not used.
    pub fn reloaded(&mut self, outcome: Result<&[String], &str>, now: Moment) {
        self.set_time(now);
        for Request { link, id } in std::mem::take(&mut self.operation.waits_for_reload) {
            match outcome {
                Ok(changed) => {
                    let result = json!({ "changed": changed }).to_string();
                    self.links.send(link, &spelled_result_line(&id, result.as_bytes()), &[]);
                }
                Err(errors) => self.send_error(link, Some(&id), &RpcError::bad_configuration(errors)),
            }
        }
        self.settle();
    }
}

impl Bus {
    /// `_bus/status`: it waits for the shell to measure, unless that was done a moment ago.
    pub(super) fn status_request(&mut self, link: Link, message: Message<'_>) -> Routed {
        #[derive(Deserialize)]
        struct Status {
            pool: Option<Box<str>>,
        }

        let Some(id) = message.id() else { return Ok(()) };
        let params: Option<Status> = params_of(message)?;
        let named = params.and_then(|params| params.pool);
        let pool = named.map(|name| self.pools.find(&name)).transpose()?;
        let waiting = self.operation.waits_for_status.len();
        let has_process = self.workers.iter().any(|(_, worker)| worker.pid.is_some());
        if !has_process
            || self.operation.is_measured(self.now)
            || waiting >= STATUS_WAITING
            || id.len() > Id::SHORT_BYTES
        {
            let status = Report::new(self).status(pool).to_string();
            self.leftovers.spend(status.len() / STATUS_STEP_BYTES);
            self.links.send(link, &spelled_result_line(id, status.as_bytes()), &[]);
            return Ok(());
        }
        if waiting == 0 {
            self.links.act(Action::Measure);
        }
        self.operation.waits_for_status.push(StatusRequest { link, id: id.into(), pool });
        Ok(())
    }

    /// `_bus/reload`: the configuration is read again.
    pub(super) fn reload_request(&mut self, link: Link, message: Message<'_>) -> Routed {
        let Some(id) = message.id() else {
            return Err(RpcError::invalid("_bus/reload needs an id: it is a request"));
        };
        if self.stopping.is_some() {
            return Err(RpcError::stopping());
        }
        let waiting = self.operation.waits_for_reload.len();
        if id.len() > NAME_BYTES {
            return Err(RpcError::invalid(format!("an id is at most {NAME_BYTES} bytes long")));
        }
        if waiting >= RELOADS_WAITING {
            return Err(RpcError::busy("too many ask for a reload at once"));
        }
        if waiting == 0 {
            info!("client {} asks for a reload", Report::new(self).client_label(link));
            self.links.act(Action::Reload);
        }
        self.operation.waits_for_reload.push(Request { link, id: id.into() });
        Ok(())
    }

    /// `_bus/stop`: the bus stops as at a signal; with `now` as at a second one. The answer comes at once, and the end
    /// of the connection is the end of the bus.
    pub(super) fn stop_request(&mut self, link: Link, message: Message<'_>) -> Result<Value, RpcError> {
        #[derive(Default, Deserialize)]
        struct Stop {
            #[serde(default)]
            now: bool,
        }

        let Stop { now } = params_of(message)?;
        let (who, when) = (Report::new(self).client_label(link), if now { " at once" } else { "" });
        info!("client {who} asks the bus to stop{when}");
        let stops = usize::from(self.stopping.is_none()) + usize::from(now);
        for _ in 0..stops {
            self.links.act(Action::Stop);
        }
        let (pid, calls) = (self.operation.pid, self.calls_of_clients());
        Ok(json!({ "pid": pid, "calls": calls, "sessions": self.sessions.len() }))
    }
}
