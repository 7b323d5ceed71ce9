//! Clients at the doors: who is let in, and when a door has to wait.
//!
//! A connection that the core takes becomes a link; from then on it is the loop's. At most so many are let in
//! a turn that those who are in do not notice.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use log::{info, warn};
use mio::Interest;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::geteuid;

use kernel_core::config::{Address, Config, Listen};
use kernel_core::id::Key;
use kernel_core::{Event, Moment};

use crate::ServeError;
use crate::event_loop::Shell;
use crate::net::listener::{self, DoorFault, Listener, Opened};
use crate::net::unix_socket::SocketFile;
use crate::peer_io::{Kind, Peer, Stream, Task, forget, set_nonblocking, token, watch};

const ACCEPTS_A_TURN: usize = 64;
/// A worker needs eight fds to start and three to live: clients must not keep one from being replaced.
const FDS_FOR_WORKERS: usize = 16;
/// Without an fd for it a connection stays where it is, and no edge tells when there is one again.
const ACCEPT_REST: Duration = Duration::from_millis(100);

pub(crate) struct Door {
    /// The entry of `listen` it belongs to.
    listen: Listen,
    /// With the port that was really bound.
    at: Address,
    listener: Listener,
    file: Option<SocketFile>,
    /// It stands in the run queue.
    pub(crate) queued: bool,
}

impl Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener, _) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }

    /// None: somebody came who is not our user.
    fn accept(&mut self) -> io::Result<Option<OwnedFd>> {
        match self {
            Listener::Tcp(listener, owners) => {
                let (socket, peer) = listener.accept()?;
                // Without it every streamed turn waits for an acknowledgement. It fails where the peer has left.
                let _ = socket.set_nodelay(true);
                let admitted = match owners {
                    Some(owners) => socket.local_addr().is_ok_and(|here| owners.admits(peer, here)),
                    None => true,
                };
                Ok(admitted.then(|| socket.into()))
            }
            Listener::Unix(listener) => {
                let (socket, _) = listener.accept()?;
                let admitted = crate::net::peer_uid::of_unix(&socket).is_ok_and(|owner| owner == geteuid());
                Ok(admitted.then(|| socket.into()))
            }
        }
    }
}

impl Shell {
    /// All or none.
    pub(crate) fn open_doors(listens: &[Listen], token: bool) -> Result<Vec<(Listen, Opened)>, ServeError> {
        let open = |listen: &Listen| match listener::open(&listen.at, token) {
            Ok(opened) => Ok((listen.clone(), opened)),
            Err(fault) => Err(ServeError::Listen { at: listen.at.clone(), fault }),
        };
        listens.iter().filter(|listen| listen.at != Address::Stdio).map(open).collect()
    }

    /// Puts the doors into the loop and says where they are.
    pub(crate) fn install(
        &mut self,
        listens: &[Listen],
        opened: Vec<(Listen, Opened)>,
    ) -> Result<(), ServeError> {
        let mut announcement = String::new();
        for (listen, opened) in opened {
            let line = serde_json::json!({ "listening": opened.at.to_string() });
            announcement += &format!("{line}\n");
            self.add_door(listen, opened)?;
        }
        self.tell_addresses();
        if let Some(stdio) = listens.iter().find(|listen| listen.at == Address::Stdio) {
            return self.open_stdio(stdio);
        }
        // Nobody has to read it, or to have given us a stdout that can be written to.
        let mut stdout = io::stdout();
        let _ = stdout.write_all(announcement.as_bytes()).and_then(|()| stdout.flush());
        Ok(())
    }

    fn add_door(&mut self, listen: Listen, opened: Opened) -> Result<(), ServeError> {
        info!("listening at {}", opened.at);
        if !opened.at.is_local() {
            warn!(
                "{} is not on loopback: the token and all that is said there can be read on the way",
                opened.at
            );
        }
        let mut file = opened.file;
        for listener in opened.listeners {
            let token = token(self.doors.next_key(), Stream::House);
            watch(self.poll.registry(), listener.fd(), token, Interest::READABLE).map_err(|fault| {
                ServeError::Listen { at: listen.at.clone(), fault: DoorFault::System(fault) }
            })?;
            let (listen, at) = (listen.clone(), opened.at.clone());
            self.doors.insert(Door { listen, at, listener, file: file.take(), queued: false });
        }
        Ok(())
    }

    /// The new ones first: where one cannot be opened, nothing has changed.
    pub(crate) fn change_doors(&mut self, config: &Config) -> Result<(), ServeError> {
        self.refuse_open_doors(config)?;
        let (listens, token) = (&config.listen[..], config.auth.is_some());
        self.drop_lost_doors();
        let here = |at: &Address, doors: &[Listen]| doors.iter().any(|door| door.at == *at);
        let old = self.doors.iter().map(|(_, door)| door.listen.clone()).collect::<Vec<_>>();
        if here(&Address::Stdio, listens) && self.stdio.is_none() {
            return Err(ServeError::Listen { at: Address::Stdio, fault: DoorFault::StdioTooLate });
        }
        let new = listens.iter().filter(|listen| !here(&listen.at, &old)).cloned().collect::<Vec<_>>();
        for (listen, opened) in Shell::open_doors(&new, token)? {
            self.add_door(listen, opened)?;
        }
        let keys = self.doors.iter().map(|(key, _)| key).collect::<Vec<_>>();
        for key in keys {
            let Some(door) = self.doors.get_mut(key) else { continue };
            match listens.iter().find(|listen| listen.at == door.listen.at) {
                Some(listen) => door.listen = listen.clone(),
                None => {
                    info!("no longer listening at {}", door.listen.at);
                    self.remove_door(key);
                }
            }
        }
        self.tell_addresses();
        Ok(())
    }

    /// Those who ask the core where the bus is found hear it.
    fn tell_addresses(&mut self) {
        let mut addresses: Vec<_> = self.doors.iter().map(|(_, door)| door.at.to_string()).collect();
        // `localhost` may have two sockets.
        addresses.dedup();
        self.bus.listens_at(addresses);
    }

    /// A door that needs a token does not stay without one. Also one on loopback that was opened because there was a
    /// token, and cannot tell who comes.
    fn refuse_open_doors(&self, config: &Config) -> Result<(), ServeError> {
        let token = config.auth.is_some();
        for listen in &config.listen {
            let blind =
                |door: &Door| door.listen.at == listen.at && matches!(door.listener, Listener::Tcp(_, None));
            let fault = match listener::may_be_open(&listen.at, token) {
                Err(fault) => fault,
                Ok(()) if !token && self.doors.iter().any(|(_, door)| blind(door)) => {
                    DoorFault::OwnersUnknown(Errno::ENOTSUP)
                }
                Ok(()) => continue,
            };
            return Err(ServeError::Listen { at: listen.at.clone(), fault });
        }
        Ok(())
    }

    /// A socket file that somebody has removed, or whose folder was cleared, leads nobody to us any more. Its door is
    /// closed, so that it can be opened again in the same place.
    fn drop_lost_doors(&mut self) {
        let lost = |door: &Door| door.file.as_ref().is_some_and(|file| !file.is_there());
        let keys = self.doors.iter().filter(|(_, door)| lost(door)).map(|(key, _)| key).collect::<Vec<_>>();
        for key in keys {
            if let Some(door) = self.doors.get_mut(key) {
                warn!("{} is no longer there", door.listen.at);
            }
            self.remove_door(key);
        }
    }

    /// The bus stops: nobody comes in any more, and another bus may take the place.
    pub(crate) fn close_doors(&mut self) {
        let keys = self.doors.iter().map(|(key, _)| key).collect::<Vec<_>>();
        for key in keys {
            self.remove_door(key);
        }
        self.tell_addresses();
        self.accept_again = None;
    }

    /// Its socket file goes with it.
    fn remove_door(&mut self, key: Key) {
        if let Some(door) = self.doors.remove(key) {
            forget(self.poll.registry(), door.listener.fd());
        }
    }

    pub(crate) fn accept(&mut self, key: Key) {
        let Some(door) = self.doors.get_mut(key) else { return };
        door.queued = false;
        if self.accept_again.is_some() {
            return;
        }
        for _ in 0..ACCEPTS_A_TURN {
            let Some(door) = self.doors.get_mut(key) else { return };
            match door.listener.accept() {
                Ok(Some(socket)) => self.admit(key, socket),
                Ok(None) => self.turned_away.add(self.now, "it is not of our user"),
                Err(fault) => match Errno::from_raw(fault.raw_os_error().unwrap_or(0)) {
                    Errno::EAGAIN => {
                        self.shortage_told = false;
                        return;
                    }
                    // It came and went, or something on its way refused it.
                    Errno::EINTR | Errno::ECONNABORTED | Errno::EPROTO | Errno::EPERM => {}
                    _ => return self.rest_doors(&fault),
                },
            }
        }
        if let Some(door) = self.doors.get_mut(key) {
            self.queue.push(Task::Accept(key), &mut door.queued);
        }
    }

    fn admit(&mut self, key: Key, socket: OwnedFd) {
        let Some(door) = self.doors.get(key) else { return };
        // The system gives the lowest free number, so a high one says that few are left.
        if socket.as_raw_fd() as usize + FDS_FOR_WORKERS >= self.fds_at_most {
            const WHY: &str = "the last open files are kept for workers";
            let _ = nix::unistd::write(&socket, &self.bus.no_room(WHY));
            return self.turned_away.add(self.now, WHY);
        }
        let Some(link) = self.bus.connect(door.listen.pool.as_deref(), self.now) else {
            // A new socket has room for one line; whoever does not read it would not have read more.
            let _ = nix::unistd::write(&socket, &self.bus.why_not());
            return self.turned_away.add(self.now, "the house is full");
        };
        let peer = Peer::socket(link, socket);
        let registered = peer.register(self.poll.registry());
        self.add(peer);
        if registered.is_err() {
            return self.bus.handle(Event::Broken(link), self.now);
        }
        // Whoever has to show the token mostly brings it along. Read at once, it is in before others can crowd it out.
        if self.bus.awaits_token(link)
            && let Some(peer) = self.links.get_mut(link)
        {
            peer.can_read = true;
            self.read(link);
        }
    }

    fn rest_doors(&mut self, fault: &io::Error) {
        if !std::mem::replace(&mut self.shortage_told, true) {
            warn!("no connection can be taken for now: {fault}");
        }
        self.accept_again = Some(self.now + ACCEPT_REST);
    }

    /// Doors that rested are tried again, and what happened to those turned away is said.
    pub(crate) fn retry_doors(&mut self) {
        self.turned_away.speak(self.now);
        if self.accept_again.is_none_or(|again| again > self.now) {
            return;
        }
        self.accept_again = None;
        let keys = self.doors.iter().map(|(key, _)| key).collect::<Vec<_>>();
        for key in keys {
            if let Some(door) = self.doors.get_mut(key) {
                self.queue.push(Task::Accept(key), &mut door.queued);
            }
        }
    }

    /// Our own stdin and stdout as one more client.
    fn open_stdio(&mut self, listen: &Listen) -> Result<(), ServeError> {
        let failed = |fault| ServeError::Listen { at: Address::Stdio, fault: DoorFault::System(fault) };
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(failed);
        let (input, output) = (own(io::stdin().as_fd())?, own(io::stdout().as_fd())?);
        self.stdio = Some(StdioModes::keep().map_err(|errno| failed(errno.into()))?);
        let Some(link) = self.bus.connect_owner(listen.pool.as_deref(), self.now) else {
            return Err(failed(io::Error::other("the house has no room for a client")));
        };
        let mut peer = Peer::pipes(link, Kind::Stdio, input, output);
        peer.short_is_dry = false;
        let registry = self.poll.registry();
        // A file is always ready and cannot be polled, nor made non-blocking.
        match watch(registry, peer.input(), token(link.0, Stream::Input), Interest::READABLE) {
            Ok(()) => drop(set_nonblocking(peer.input()).map_err(|errno| failed(errno.into()))?),
            Err(_) => peer.can_read = true,
        }
        if let Some(output) = peer.output()
            && watch(registry, output, token(link.0, Stream::Output), Interest::WRITABLE).is_ok()
        {
            set_nonblocking(output).map_err(|errno| failed(errno.into()))?;
        }
        self.queue.push(Task::Read(link), &mut peer.queued);
        self.add(peer);
        Ok(())
    }
}

/// The flags of stdin and stdout as we found them. They are shared with whoever gave them to us, such as the
/// shell on the same terminal, and so are put back.
pub(crate) struct StdioModes {
    input: OFlag,
    output: OFlag,
}

impl StdioModes {
    fn keep() -> nix::Result<StdioModes> {
        let flags = |fd| fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
        Ok(StdioModes { input: flags(io::stdin().as_fd())?, output: flags(io::stdout().as_fd())? })
    }
}

impl Drop for StdioModes {
    fn drop(&mut self) {
        let _ = fcntl(io::stdin().as_fd(), FcntlArg::F_SETFL(self.input));
        let _ = fcntl(io::stdout().as_fd(), FcntlArg::F_SETFL(self.output));
    }
}

/// Something that can happen thousands of times a second and is said at most once a second.
#[derive(Default)]
pub(crate) struct Complaint {
    count: u64,
    reason: &'static str,
    /// Not to be said before this moment.
    silent_until: Moment,
}

impl Complaint {
    const APART: Duration = Duration::from_secs(1);

    fn add(&mut self, now: Moment, reason: &'static str) {
        self.count += 1;
        self.reason = reason;
        self.speak(now);
    }

    /// When `speak` has something to say.
    pub(crate) fn next_word(&self) -> Option<Moment> {
        (self.count > 0).then_some(self.silent_until)
    }

    fn speak(&mut self, now: Moment) {
        if self.count == 0 || now < self.silent_until {
            return;
        }
        warn!("{} connections were turned away, the last because {}", self.count, self.reason);
        self.count = 0;
        self.silent_until = now + Self::APART;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_is_made_at_once_and_then_at_most_once_a_second() {
        let at = Moment::from_millis;
        let mut complaint = Complaint::default();
        assert_eq!(complaint.next_word(), None);
        complaint.add(at(5000), "full");
        assert_eq!((complaint.count, complaint.next_word()), (0, None));
        complaint.add(at(5001), "full");
        complaint.add(at(5999), "full");
        assert_eq!((complaint.count, complaint.next_word()), (2, Some(at(6000))));
        complaint.speak(at(6000));
        assert_eq!(complaint.next_word(), None);
    }
}
