//! The way back to a bus that has gone away: dials it again, and opens the session there once more.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::agent::Agent;
use super::driver::Driver;
use super::envelope::Status;
use super::input::Setting;
use super::options::{AgentSource, Ended, Input};
use super::settings::Offer;
use super::stop::Stop;
use crate::Fault;

/// How long a bus may be away. One that is restarted is back within a moment.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(250);

impl Driver {
    /// The connection has ended in a turn, whose answer is lost. Returns what became of the turn, if another may
    /// follow.
    pub(super) fn lose_turn(&mut self) -> Result<Status, Stop> {
        if !self.agent.is_behind_bus() {
            for line in self.agent.why_closed().lines() {
                self.renderer.service(line)?;
            }
            self.end_turn(Status::Failed, None, &Value::Null)?;
            // The renderer has already shown the reason.
            return Err(Stop::Ended(Ended::Failed));
        }
        let lost = "the bus closed the connection in the middle of the turn, so its answer is lost";
        let status = self.end_turn(Status::Failed, Some(lost), &Value::Null)?;
        let has_next = self.options.attended || self.options.input != Input::Text;
        if self.options.once || !has_next {
            self.renderer.service(&self.how_to_go_on())?;
            return Err(Stop::Ended(Ended::Failed));
        }
        self.reconnect()?;
        Ok(status)
    }

    /// The connection to the bus has ended. Waits for the bus, and goes on with the session. What is typed meanwhile
    /// has its turn then.
    pub(super) fn reconnect(&mut self) -> Result<(), Stop> {
        self.make_room()?;
        self.renderer.note("the bus has gone away; waiting for it to come back (Ctrl-C leaves)")?;
        let until = Instant::now() + PATIENCE;
        loop {
            match self.open_at_new_bus() {
                Ok(()) => break,
                Err(Stop::Closed | Stop::Fault(Fault::Unreachable(_))) if Instant::now() < until => {}
                Err(Stop::Closed | Stop::Fault(Fault::Unreachable(_))) => {
                    let why =
                        format!("the bus did not come back within {PATIENCE:?}; {}", self.how_to_go_on());
                    return Err(Stop::Fault(Fault::Unreachable(why)));
                }
                Err(Stop::Fault(Fault::Failed(why))) => {
                    let why = format!("the bus is back, but {why}; {}", self.how_to_go_on());
                    return Err(Stop::Fault(Fault::Failed(why)));
                }
                Err(stop) => return Err(stop),
            }
            self.wait_until(Instant::now() + PAUSE)?;
        }
        self.make_room()?;
        Ok(self.renderer.note("the bus is back, and the session goes on")?)
    }

    fn open_at_new_bus(&mut self) -> Result<(), Stop> {
        let AgentSource::Pool { target, pool } = &self.options.agent else { return Err(Stop::Closed) };
        self.agent = Agent::at_bus(target, pool.as_deref(), self.sender.clone()).map_err(Stop::Fault)?;
        self.initialize()?;
        let params = self.session_params()?;
        let before = std::mem::take(&mut self.opened);
        // What was said before stands on the screen.
        if let Err(stop) = self.open_again(self.session.clone(), params, false) {
            self.skips_history = false;
            self.opened = before;
            return Err(stop);
        }
        for setting in [Setting::Model, Setting::Mode] {
            let wanted = Offer::read(&before, setting).current;
            let current = Offer::read(&self.opened, setting).current;
            if let (Some(wanted), Some(current)) = (wanted, current)
                && wanted != current
                && let Err(why) = self.change_setting(setting, &wanted)?
            {
                self.renderer.note(&why)?;
            }
        }
        Ok(())
    }

    /// The command that goes on with this session later.
    fn how_to_go_on(&self) -> String {
        let pool = match &self.options.agent {
            AgentSource::Pool { pool: Some(pool), .. } => format!(" --pool {pool}"),
            _ => String::new(),
        };
        format!("to go on later: stdio-bus run{pool} --session {}", self.session)
    }
}
