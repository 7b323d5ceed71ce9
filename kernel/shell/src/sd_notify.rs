//! Notifies the service manager that the bus is ready, that it stops, and that its event loop still runs.
//!
//! The messages are datagrams to the socket that `$NOTIFY_SOCKET` names, as in sd_notify(3). Without that variable
//! nothing is sent. The crate `sd-notify` would not do: it blocks if the manager does not read.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process;
use std::time::Duration;

use log::warn;

use kernel_core::Moment;

#[derive(Default)]
pub(crate) struct SdNotify {
    socket: Option<UnixDatagram>,
    /// The interval of watchdog messages. `None`: the manager wants none.
    interval: Option<Duration>,
    next: Moment,
}

impl SdNotify {
    pub(crate) fn from_env() -> SdNotify {
        let text = |name| env::var(name).ok();
        let notify = SdNotify::new(env::var_os("NOTIFY_SOCKET"), text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
        notify.unwrap_or_else(|error| {
            warn!("cannot notify the service manager: {error}");
            SdNotify::default()
        })
    }

    fn new(address: Option<OsString>, usec: Option<String>, pid: Option<String>) -> io::Result<SdNotify> {
        let Some(address) = address else { return Ok(SdNotify::default()) };
        let socket = Some(connect(&address)?);
        let is_for_us = pid.is_none_or(|pid| pid == process::id().to_string());
        let interval = match usec.and_then(|usec| usec.parse::<u64>().ok()) {
            // The messages are sent twice as often as demanded, so that one delay does no harm.
            Some(usec) if usec > 0 && is_for_us => Some(Duration::from_micros(usec.div_ceil(2))),
            _ => None,
        };
        Ok(SdNotify { socket, interval, next: Moment::ZERO })
    }

    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// The bus becomes another program, and is not ready until that says so. The time is that of the monotonic clock.
    pub(crate) fn reloading(&self, now: Duration) {
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}", now.as_micros()));
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// When `on_timer` has something to send.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        self.interval.map(|_| self.next)
    }

    /// Sends the watchdog message if it is due.
    pub(crate) fn on_timer(&mut self, now: Moment) {
        if let Some(interval) = self.interval
            && self.next <= now
        {
            self.next = now + interval;
            self.send("WATCHDOG=1");
        }
    }

    /// A message that the manager cannot take is lost.
    fn send(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    match abstract_name(address) {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.connect_addr(&address)?;
        }
        _ => socket.connect(address)?,
    }
    Ok(socket)
}

/// The name of an abstract socket, whose address begins with `@` and which has no file.
fn abstract_name(address: &OsStr) -> Option<&[u8]> {
    use std::os::unix::ffi::OsStrExt;
    address.as_bytes().strip_prefix(b"@")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_manager_is_notified_of_each_step_and_every_half_interval() {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("stdio-bus-notify-{}", process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        let received = || {
            let mut text = [0; 64];
            let count = manager.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..count]).into_owned()
        };
        let at = Some(OsString::from(format!("@{name}")));
        let mut notify = SdNotify::new(at.clone(), Some("2000000".to_owned()), None).unwrap();
        notify.ready();
        assert_eq!(received(), "READY=1");
        for sec in [0, 1, 2] {
            assert_eq!(notify.next_timer(), Some(Moment::from_secs(sec)));
            notify.on_timer(Moment::from_secs(sec));
            notify.on_timer(Moment::from_secs(sec));
            assert_eq!(received(), "WATCHDOG=1");
        }
        notify.reloading(Duration::from_micros(1_234_567));
        assert_eq!(received(), "RELOADING=1\nMONOTONIC_USEC=1234567");
        notify.stopping();
        assert_eq!(received(), "STOPPING=1");
        let other = SdNotify::new(at, Some("2000000".to_owned()), Some("1".to_owned())).unwrap();
        assert_eq!(other.next_timer(), None, "the watchdog is meant for another process");
    }

    #[test]
    fn without_a_manager_nothing_is_sent() {
        let mut notify = SdNotify::new(None, Some("2000000".to_owned()), None).unwrap();
        notify.ready();
        notify.on_timer(Moment::ZERO);
        assert_eq!(notify.next_timer(), None);
        assert!(SdNotify::new(Some("/no/such/socket".into()), None, None).is_err());
    }
}
