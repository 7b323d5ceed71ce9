//! What a service manager is told: that the bus is ready, that it stops, and that its loop still turns.
//!
//! Datagrams to the socket that `$NOTIFY_SOCKET` names, as sd_notify(3) describes them. Without that variable
//! nothing is said. A manager that does not listen is no fault of the bus's, and is not waited for.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process;
use std::time::Duration;

use log::warn;

use kernel_core::Moment;

pub(crate) struct Notify {
    socket: Option<UnixDatagram>,
    /// How often the manager hears that the loop turns. None: it does not want to.
    apart: Option<Duration>,
    next: Moment,
}

impl Notify {
    /// As the environment says.
    pub(crate) fn of_this_process() -> Notify {
        let text = |name| env::var(name).ok();
        let notify = Notify::new(env::var_os("NOTIFY_SOCKET"), text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
        notify.unwrap_or_else(|fault| {
            warn!("nothing can be told to the service manager: {fault}");
            Notify { socket: None, apart: None, next: Moment::ZERO }
        })
    }

    fn new(at: Option<OsString>, usec: Option<String>, pid: Option<String>) -> io::Result<Notify> {
        let socket = at.map(|at| connect(&at)).transpose()?;
        let is_ours = pid.is_none_or(|pid| pid == process::id().to_string());
        let usec = usec.filter(|_| is_ours && socket.is_some()).and_then(|usec| usec.parse::<u64>().ok());
        // Twice as often as it must be, so that one delay is no death.
        let apart = usec.filter(|usec| *usec > 0).map(|usec| Duration::from_micros(usec.div_ceil(2)));
        Ok(Notify { socket, apart, next: Moment::ZERO })
    }

    pub(crate) fn ready(&self) {
        self.say("READY=1");
    }

    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// When `beat` has something to say.
    pub(crate) fn next_beat(&self) -> Option<Moment> {
        self.apart.map(|_| self.next)
    }

    /// The loop turns.
    pub(crate) fn beat(&mut self, now: Moment) {
        let Some(apart) = self.apart.filter(|_| self.next <= now) else { return };
        self.next = now + apart;
        self.say("WATCHDOG=1");
    }

    fn say(&self, what: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(what.as_bytes());
        }
    }
}

fn connect(at: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match hidden_name(at) {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        _ => socket.connect(at)?,
    }
    Ok(socket)
}

/// A socket whose address begins with `@` has no file.
fn hidden_name(at: &OsStr) -> Option<&[u8]> {
    use std::os::unix::ffi::OsStrExt;
    at.as_bytes().strip_prefix(b"@")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_manager_hears_of_each_step_and_of_every_half_interval() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("stdio-bus-notify-{}", process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let heard = || {
            let mut text = [0; 64];
            let count = manager.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..count]).into_owned()
        };
        let at = Some(OsString::from(format!("@{name}")));
        let mut notify = Notify::new(at.clone(), Some("2000000".to_owned()), None).unwrap();
        notify.ready();
        assert_eq!(heard(), "READY=1");
        for sec in [0, 1, 2] {
            assert_eq!(notify.next_beat(), Some(Moment::from_secs(sec)));
            notify.beat(Moment::from_secs(sec));
            notify.beat(Moment::from_secs(sec));
            assert_eq!(heard(), "WATCHDOG=1");
        }
        notify.stopping();
        assert_eq!(heard(), "STOPPING=1");
        let of_another = Notify::new(at, Some("2000000".to_owned()), Some("1".to_owned())).unwrap();
        assert_eq!(of_another.next_beat(), None, "the watchdog is meant for another process");
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        let mut notify = Notify::new(None, Some("2000000".to_owned()), None).unwrap();
        notify.ready();
        notify.beat(Moment::ZERO);
        assert_eq!(notify.next_beat(), None);
        assert!(Notify::new(Some("/no/such/socket".into()), None, None).is_err());
    }
}
