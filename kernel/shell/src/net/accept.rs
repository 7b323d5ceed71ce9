//! Accepts clients on the listeners, and decides when to pause.
//!
//! A connection that the core accepts becomes a link, which is from then on read and written by `Io`. The number of
//! connections accepted per turn is bounded, so that connected clients do not notice a crowd of new ones.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use log::{info, warn};
use mio::Interest;
use nix::errno::Errno;
use nix::unistd::write;
use serde::{Deserialize, Serialize};

use kernel_core::config::{Address, Config, Listen};
use kernel_core::id::{Arena, Key};
use kernel_core::{Event, Moment};

use crate::handover::KeptFds;
use crate::io::Io;
use crate::net::inherited::InheritedSockets;
use crate::net::listener::{self, Bound, ListenSocket, ListenSocketState};
use crate::net::socket::ListenError;
use crate::net::unix_socket::{SocketFile, SocketFileState};
use crate::net::user_socket::{ConfigLink, UserSocket};
use crate::peer::{Peer, Stream, Task, token, unwatch, watch};
use crate::process::pre_exec::HandedFds;
use crate::serve_error::ServeError;

const ACCEPTS_PER_TURN: usize = 64;
/// A worker needs eight fds to start and three to live. Clients must not use up those that replace a worker.
const FDS_FOR_WORKERS: usize = 16;
/// A connection for which there is no fd stays in the backlog, and no edge tells when there is an fd again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

pub(crate) struct Acceptor {
    listeners: Arena<Key, Listener>,
    /// When to accept again after the machine had no fd or memory for a connection.
    retry_at: Option<Moment>,
    shortage_logged: bool,
    refused: RateLimitedWarning,
    max_fds: usize,
    /// Where the commands of this user look for a bus, if they can find this one.
    user: Option<UserSocket>,
    /// `Some` while the bus listens there.
    user_config: Option<ConfigLink>,
}

struct Listener {
    /// The entry of `listen` that it belongs to.
    listen: Listen,
    /// The address with the port that was really bound.
    at: Address,
    socket: ListenSocket,
    file: Option<SocketFile>,
    /// It is in the run queue.
    queued: bool,
}

impl Listener {
    /// Its socket file was removed or replaced, so that nobody can find it.
    fn is_lost(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.exists())
    }
}

/// The listeners as the next program finds them.
#[derive(Serialize, Deserialize)]
pub(crate) struct AcceptorState {
    listeners: Vec<ListenerState>,
    /// The link beside the socket of this user is there.
    has_user_link: bool,
}

#[derive(Serialize, Deserialize)]
struct ListenerState {
    listen: Listen,
    at: Address,
    socket: ListenSocketState,
    file: Option<SocketFileState>,
}

/// Binds all addresses except stdio, unless a socket is bound there already. If one fails, none is bound.
pub(crate) fn bind(
    listens: &[Listen],
    token: bool,
    sockets: &mut InheritedSockets,
) -> Result<Vec<(Listen, Bound)>, ServeError> {
    let open = |listen: &Listen| {
        let opened = match sockets.take(&listen.at) {
            Some(socket) => listener::adopt(&listen.at, socket, token),
            None => listener::open(&listen.at, token),
        };
        match opened {
            Ok(bound) => Ok((listen.clone(), bound)),
            Err(error) => Err(ServeError::Listen { at: listen.at.clone(), error }),
        }
    };
    listens.iter().filter(|listen| listen.at != Address::Stdio).map(open).collect()
}

impl Acceptor {
    /// Starts to accept on what `bind` has bound.
    pub(crate) fn new(
        bound: Vec<(Listen, Bound)>,
        user: Option<UserSocket>,
        max_fds: usize,
        io: &mut Io,
    ) -> Result<Acceptor, ServeError> {
        let mut acceptor = Acceptor {
            listeners: Arena::default(),
            retry_at: None,
            shortage_logged: false,
            refused: RateLimitedWarning::default(),
            max_fds,
            user,
            user_config: None,
        };
        for (listen, bound) in bound {
            acceptor.add(listen, bound, io)?;
        }
        acceptor.open_user_socket(io);
        io.bus.listens_at(acceptor.all_addresses());
        Ok(acceptor)
    }

    pub(crate) fn hand_over<'a>(&'a self, kept: &mut KeptFds<'a>) -> AcceptorState {
        let listeners = self.listeners.iter().map(|(_, listener)| ListenerState {
            listen: listener.listen.clone(),
            at: listener.at.clone(),
            socket: listener.socket.hand_over(kept),
            file: listener.file.as_ref().map(|file| file.hand_over(kept)),
        });
        AcceptorState { listeners: listeners.collect(), has_user_link: self.user_config.is_some() }
    }

    /// Goes on with the listeners of the program before. One that cannot go on is closed, and the others are not.
    pub(crate) fn take_over(
        state: AcceptorState,
        user: Option<UserSocket>,
        max_fds: usize,
        handed: &mut HandedFds,
        io: &mut Io,
    ) -> Result<Acceptor, ServeError> {
        let mut acceptor = Acceptor::new(Vec::new(), None, max_fds, io)?;
        if state.has_user_link {
            acceptor.user_config = user.as_ref().map(UserSocket::config_link_of_before);
        }
        acceptor.user = user;
        for ListenerState { listen, at, socket, file } in state.listeners {
            let file = file.map(|file| SocketFile::take_over(file, handed)).transpose();
            let opened = file.map_err(ListenError::from).and_then(|file| {
                let sockets = vec![ListenSocket::take_over(&socket, handed)?];
                Ok(Bound { at: at.clone(), sockets, file })
            });
            if let Err(error) = opened
                .map_err(|error| ServeError::Listen { at, error })
                .and_then(|bound| acceptor.watch(listen, bound, io))
            {
                log::error!("{error}");
            }
        }
        for key in acceptor.keys() {
            acceptor.note(key, io);
        }
        io.bus.listens_at(acceptor.all_addresses());
        Ok(acceptor)
    }

    /// The addresses of the configuration with the ports that were really bound. `localhost` may have two sockets, and
    /// is listed once.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let mut addresses = self.all_addresses();
        if let Some(user) = self.user.as_ref().filter(|_| self.user_config.is_some()) {
            let user = user.address().to_string();
            addresses.retain(|address| *address != user);
        }
        addresses
    }

    /// Like `addresses`, with the socket at which the commands of this user find the bus.
    fn all_addresses(&self) -> Vec<String> {
        let mut addresses: Vec<_> =
            self.listeners.iter().map(|(_, listener)| listener.at.to_string()).collect();
        addresses.dedup();
        addresses
    }

    /// Listens where the commands of this user look for a bus, unless another bus does. The bus can be used without.
    fn open_user_socket(&mut self, io: &Io) {
        let Some(user) = self.user.clone() else { return };
        let at = user.address();
        if self.listeners.iter().any(|(_, listener)| listener.listen.at == at) {
            return;
        }
        match listener::open(&at, true) {
            Ok(bound) => {
                // The old link goes first, or it would take the new one with it.
                self.user_config = None;
                self.user_config = Some(user.link_config());
                if let Err(error) = self.add(Listen::from(at), bound, io) {
                    warn!("{error}");
                }
            }
            Err(error @ (ListenError::Locked(_) | ListenError::InUse)) => {
                info!("commands in other folders find another bus, not this one: {at}: {error}");
            }
            Err(error) => warn!("commands in other folders cannot find this bus: {at}: {error}"),
        }
    }

    fn add(&mut self, listen: Listen, bound: Bound, io: &Io) -> Result<(), ServeError> {
        info!("listening at {}", bound.at);
        if !bound.at.is_local() {
            warn!(
                "{} is not on loopback and not encrypted: others may read the token and all messages",
                bound.at
            );
        }
        self.watch(listen, bound, io)
    }

    fn watch(&mut self, listen: Listen, bound: Bound, io: &Io) -> Result<(), ServeError> {
        let mut file = bound.file;
        for socket in bound.sockets {
            let token = token(self.listeners.next_id(), Stream::Internal);
            if let Err(error) = watch(io.poll.registry(), socket.fd(), token, Interest::READABLE) {
                return Err(ServeError::Listen { at: listen.at, error: error.into() });
            }
            self.listeners.insert(Listener {
                listen: listen.clone(),
                at: bound.at.clone(),
                socket,
                file: file.take(),
                queued: false,
            });
        }
        Ok(())
    }

    /// Listens where the new configuration says. New addresses come first: if one fails, nothing has changed. Listeners
    /// whose socket file was removed are opened again last, because they hold the lock of the path until they are
    /// closed.
    pub(crate) fn reload(&mut self, config: &Config, has_stdio: bool, io: &mut Io) -> Result<(), ServeError> {
        let token = config.auth.is_some();
        self.check_allowed(config)?;
        if !has_stdio && config.listen.iter().any(|listen| listen.at == Address::Stdio) {
            return Err(ServeError::Listen { at: Address::Stdio, error: ListenError::StdioTooLate });
        }
        let known = |listen: &Listen| self.listeners.iter().find(|(_, known)| known.listen.at == listen.at);
        let is_new = |listen: &&Listen| known(listen).is_none();
        let is_lost = |listen: &&Listen| known(listen).is_some_and(|(_, listener)| listener.is_lost());
        let new = config.listen.iter().filter(is_new).cloned().collect::<Vec<_>>();
        let lost = config.listen.iter().filter(is_lost).cloned().collect::<Vec<_>>();
        let none = &mut InheritedSockets::default();
        let mut bound = bind(&new, token, none)?;
        self.remove_lost(io);
        bound.extend(bind(&lost, token, none).inspect_err(|_| io.bus.listens_at(self.all_addresses()))?);
        for (listen, bound) in bound {
            self.add(listen, bound, io)?;
        }
        for key in self.keys() {
            let Some(listener) = self.listeners.get_mut(key) else { continue };
            match config.listen.iter().find(|listen| listen.at == listener.listen.at) {
                Some(listen) => listener.listen = listen.clone(),
                None if self.user.as_ref().is_some_and(|user| user.address() == listener.listen.at) => {}
                None => {
                    info!("no longer listening at {}", listener.listen.at);
                    self.remove(key, io);
                }
            }
        }
        self.open_user_socket(io);
        io.bus.listens_at(self.all_addresses());
        Ok(())
    }

    /// Refuses a configuration without a token for a listener that needs one. That may also be a listener on loopback,
    /// if it was opened with a token because the system does not report the user of a connection.
    fn check_allowed(&self, config: &Config) -> Result<(), ServeError> {
        let token = config.auth.is_some();
        for listen in &config.listen {
            let needs_token = |listener: &Listener| {
                listener.listen.at == listen.at && matches!(listener.socket, ListenSocket::Tcp(_, None))
            };
            let error = match listener::check_allowed(&listen.at, token) {
                Err(error) => error,
                Ok(()) if !token && self.listeners.iter().any(|(_, listener)| needs_token(listener)) => {
                    ListenError::PeerUidUnknown(Errno::ENOTSUP)
                }
                Ok(()) => continue,
            };
            return Err(ServeError::Listen { at: listen.at.clone(), error });
        }
        Ok(())
    }

    /// Closes listeners whose socket file was removed, so that they can be opened again at the same path.
    fn remove_lost(&mut self, io: &Io) {
        for key in self.keys() {
            let Some(listener) = self.listeners.get(key) else { continue };
            if listener.is_lost() {
                warn!("{} is no longer there", listener.listen.at);
                self.remove(key, io);
            }
        }
    }

    /// Stops listening, so that another bus may take the addresses.
    pub(crate) fn close_all(&mut self, io: &mut Io) {
        // The link goes while the lock of the socket keeps others from making theirs.
        self.user_config = None;
        for key in self.keys() {
            self.remove(key, io);
        }
        io.bus.listens_at(Vec::new());
        self.retry_at = None;
    }

    fn keys(&self) -> Vec<Key> {
        self.listeners.iter().map(|(key, _)| key).collect()
    }

    /// Closes a listener and removes its socket file.
    fn remove(&mut self, key: Key, io: &Io) {
        if let Some(listener) = self.listeners.remove(key) {
            unwatch(io.poll.registry(), listener.socket.fd());
        }
    }

    /// Remembers that connections have arrived at a listener.
    pub(crate) fn note(&mut self, key: Key, io: &mut Io) {
        if let Some(listener) = self.listeners.get_mut(key) {
            io.queue.push(Task::Accept(key), &mut listener.queued);
        }
    }

    pub(crate) fn accept(&mut self, key: Key, io: &mut Io) {
        let Some(listener) = self.listeners.get_mut(key) else { return };
        listener.queued = false;
        if self.retry_at.is_some() {
            return;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            match listener.socket.accept() {
                Ok(Some((socket, origin))) => {
                    let pool = listener.listen.pool.as_deref();
                    if let Err(reason) = connect(socket, origin, pool, self.max_fds, io) {
                        self.refused.add(io.now, reason);
                    }
                }
                Ok(None) => self.refused.add(io.now, "it belongs to another user"),
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EAGAIN => {
                        self.shortage_logged = false;
                        return;
                    }
                    // The client left again, or a firewall refused it.
                    Errno::EINTR | Errno::ECONNABORTED | Errno::EPROTO | Errno::EPERM => {}
                    _ => return self.pause(&error, io.now),
                },
            }
        }
        io.queue.push(Task::Accept(key), &mut listener.queued);
    }

    fn pause(&mut self, error: &io::Error, now: Moment) {
        if !mem::replace(&mut self.shortage_logged, true) {
            warn!("cannot accept connections for now: {error}");
        }
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// When `on_timer` has something to do.
    pub(crate) fn next_timer(&self) -> Option<Moment> {
        [self.retry_at, self.refused.due_at()].into_iter().flatten().min()
    }

    /// Ends a pause that is over, and logs the refused connections.
    pub(crate) fn on_timer(&mut self, io: &mut Io) {
        self.refused.log_if_due(io.now);
        if self.retry_at.is_none_or(|retry_at| retry_at > io.now) {
            return;
        }
        self.retry_at = None;
        for key in self.keys() {
            self.note(key, io);
        }
    }
}

/// Makes an accepted connection a link. If it is refused, the client is told, and the error is the reason for the log.
fn connect(
    socket: OwnedFd,
    origin: u64,
    pool: Option<&str>,
    max_fds: usize,
    io: &mut Io,
) -> Result<(), &'static str> {
    // A new socket has room for one line, and a client that does not read that line would not read more.
    let refuse = |line: Vec<u8>| {
        let _ = write(&socket, &line);
    };
    // The system gives out the lowest free fd number, so a high one means that few are left.
    if socket.as_raw_fd() as usize + FDS_FOR_WORKERS >= max_fds {
        const REASON: &str = "the last open files are kept for workers";
        refuse(io.bus.no_room(REASON));
        return Err(REASON);
    }
    let Some(link) = io.bus.connect_from(origin, pool, io.now) else {
        refuse(io.bus.why_not());
        return Err("the bus is full or stopping");
    };
    let peer = Peer::socket(link, socket);
    let registered = peer.register(io.poll.registry());
    io.add(peer);
    if registered.is_err() {
        io.bus.handle(Event::Broken(link), io.now);
        return Ok(());
    }
    // A client that needs a token has mostly sent it already. It is read at once, before later connections can take its
    // place among those that may wait.
    if io.bus.awaits_token(link)
        && let Some(peer) = io.peers.get_mut(link)
    {
        peer.can_read = true;
        io.read(link);
    }
    Ok(())
}

/// Counts refused connections, of which there may be thousands a second, and logs them at most once a second.
#[derive(Default)]
struct RateLimitedWarning {
    count: u64,
    last_reason: &'static str,
    not_before: Moment,
}

impl RateLimitedWarning {
    const INTERVAL: Duration = Duration::from_secs(1);

    fn add(&mut self, now: Moment, reason: &'static str) {
        self.count += 1;
        self.last_reason = reason;
        self.log_if_due(now);
    }

    /// When `log_if_due` has something to log.
    fn due_at(&self) -> Option<Moment> {
        (self.count > 0).then_some(self.not_before)
    }

    fn log_if_due(&mut self, now: Moment) {
        if self.count == 0 || now < self.not_before {
            return;
        }
        warn!("{} connections were turned away, the last because {}", self.count, self.last_reason);
        self.count = 0;
        self.not_before = now + Self::INTERVAL;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_logged_at_once_and_then_at_most_once_a_second() {
        let at = Moment::from_millis;
        let mut warning = RateLimitedWarning::default();
        assert_eq!(warning.due_at(), None);
        warning.add(at(5000), "full");
        assert_eq!((warning.count, warning.due_at()), (0, None));
        warning.add(at(5001), "full");
        warning.add(at(5999), "full");
        assert_eq!((warning.count, warning.due_at()), (2, Some(at(6000))));
        warning.log_if_due(at(6000));
        assert_eq!(warning.due_at(), None);
    }
}
