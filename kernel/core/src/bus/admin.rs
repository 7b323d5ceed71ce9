//! Requests to the bus itself: the methods under `_bus/`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Bus;
use super::from_client::Routed;
use super::status::Report;
use super::upgrade;
use super::{keep, past};
use crate::id::Link;
use crate::limit::{ADMIN_PARAMS_BYTES, ADMIN_STEP_BYTES, ADMIN_STEPS};
use crate::state::workers::Recycled;
use crate::wire::error::{RpcError, spelled_result_line};
use crate::wire::message::Message;

/// The params of `_bus/sessions`.
#[derive(Default, Deserialize)]
struct Page {
    cursor: Option<Box<str>>,
}

impl Bus {
    pub(super) fn admin_request(&mut self, link: Link, message: Message<'_>) -> Routed {
        let method = message.method();
        self.leftovers.spend(ADMIN_STEPS);
        let result = match method {
            b"_bus/hello" => self.hello(link, message)?.to_string(),
            b"_bus/status" => return self.status_request(link, message),
            b"_bus/restart" => self.replace_request(message, Recycled::Restart)?.to_string(),
            b"_bus/drain" => self.replace_request(message, Recycled::Drained)?.to_string(),
            b"_bus/logs" => self.logs_request(message)?,
            b"_bus/reload" => return self.reload_request(link, message),
            b"_bus/upgrade" => return upgrade::request(self, link, params_of(message)?, message),
            b"_bus/stop" => self.stop_request(link, message)?.to_string(),
            b"_bus/keep" => keep::begin(self, link, &params_of(message)?, message)?,
            b"_bus/past" => return past::page(self, link, message),
            b"_bus/trace" => self.begin_trace(link, message)?.to_string(),
            b"_bus/sessions" => {
                let page: Page = params_of(message)?;
                Report::new(self).sessions(page.cursor.as_deref())?
            }
            b"_bus/attach" => return self.attach_guest(link, message, None),
            b"_bus/close" => {
                self.close_named(link, message)?;
                "{}".to_owned()
            }
            b"_bus/take" => return self.take_session(link, message),
            b"_bus/detach" => {
                self.detach_named(link, message)?;
                "{}".to_owned()
            }
            b"_bus/bye" => {
                if let Some(client) = self.clients.get_mut(link) {
                    client.bye = true;
                }
                "{}".to_owned()
            }
            _ => return Err(RpcError::no_method(method)),
        };
        self.leftovers.spend(result.len() / ADMIN_STEP_BYTES);
        if let Some(id) = message.id() {
            self.links.send(link, &spelled_result_line(id, result.as_bytes()), &[]);
        }
        Ok(())
    }

    /// A client tells its name and the pool that it wants.
    fn hello(&mut self, link: Link, message: Message<'_>) -> Result<Value, RpcError> {
        #[derive(Default, Deserialize)]
        struct Hello {
            pool: Option<Box<str>>,
            client: Option<Box<str>>,
            #[serde(default)]
            events: bool,
            #[serde(default)]
            bye: bool,
            role: Option<Box<str>>,
        }

        let hello: Hello = params_of(message)?;
        let pool = match &hello.pool {
            None => None,
            Some(name) => Some(self.pools.find(name)?),
        };
        let is_pipe = match hello.role.as_deref() {
            None => false,
            Some("pipe") if pool.is_some() => true,
            Some("pipe") => return Err(RpcError::invalid("a pipe is bound to a pool: name it")),
            Some(other) => return Err(RpcError::invalid(format!("there is no role {other:?}, only pipe"))),
        };
        if let Some(client) = self.clients.get_mut(link) {
            client.is_pipe |= is_pipe;
            client.bye |= hello.bye;
            client.greets_as(hello.client.as_deref(), &mut self.held);
            if pool.is_some() && pool != client.pool {
                client.pool = pool;
                client.affinity = None;
            }
        }
        if hello.events {
            self.clients.set_hears_events(link);
        }
        let pools: Vec<&str> = self.pools.names().collect();
        let version = env!("CARGO_PKG_VERSION");
        Ok(json!({ "bus": "stdio-bus", "version": version, "name": self.name, "pools": pools }))
    }
}

/// The params of a message to the bus; the default where there are none.
pub(super) fn params_of<T: Default + DeserializeOwned>(message: Message<'_>) -> Result<T, RpcError> {
    match message.params() {
        None => Ok(T::default()),
        Some(params) if params.len() > ADMIN_PARAMS_BYTES => {
            Err(RpcError::invalid(format!("params to the bus are at most {ADMIN_PARAMS_BYTES} bytes long")))
        }
        Some(params) => serde_json::from_slice(params).map_err(|fault| RpcError::invalid(fault.to_string())),
    }
}
