//! The codes and tokens of the door, in a file that only their user can read.
//!
//! The file has only digests, so that reading it lets nobody in. Every change takes a lock, because the commands
//! `web url` and `web revoke` write the same file; a running door notices by the file's time. Without a place for the
//! file everything is in memory, and the commands cannot reach it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rpc::text::{hex, unix_ms};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::scope::Scope;
use crate::state_file::{self, Stamp};

/// How long a code is good.
const CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// How long a token is good. A page asks for another link then.
const TOKEN_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const DOORS_MAX: usize = 16;
const CODES_MAX: usize = 64;
const TOKENS_MAX: usize = 256;
const CODE_BYTES: usize = 24;
const TOKEN_BYTES: usize = 32;
const ID_BYTES: usize = 4;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// Where doors listen, for `web url`. The newest is the last.
    doors: Vec<DoorPlace>,
    codes: Vec<Code>,
    pub(crate) tokens: Vec<Token>,
}

/// Where a door listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoorPlace {
    /// The URL by which people reach it.
    pub public: String,
    /// The address by which it is reached from here.
    pub local: SocketAddr,
    /// Its process: another one may open a door at the same address before this one has said that it is gone.
    pub(crate) pid: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Code {
    digest: String,
    scope: Scope,
    expires: u64,
}

impl Code {
    /// How people name it. It tells nothing of the code.
    fn id(&self) -> String {
        hex(&Sha256::digest(self.digest.as_bytes())[..ID_BYTES])
    }
}

/// A link that was made and not used yet: everything but its code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// How people name it.
    pub id: String,
    /// What it allows.
    pub scope: Scope,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it ends.
    pub expires: u64,
}

/// A token as it is kept: everything but the token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// How people name it.
    pub id: String,
    digest: String,
    /// What it may do.
    pub scope: Scope,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it ends.
    pub expires: u64,
    /// Who asked for it: the address, and what the browser calls itself.
    pub by: String,
}

impl State {
    fn forget_expired(&mut self, now: u64) {
        self.codes.retain(|code| code.expires > now);
        self.tokens.retain(|token| token.expires > now);
    }

    /// Of the doors that never said that they are gone, the oldest give way if there are too many.
    fn add_door(&mut self, place: DoorPlace) {
        self.doors.retain(|door| door.local != place.local);
        self.doors.push(place);
        let surplus = self.doors.len().saturating_sub(DOORS_MAX);
        self.doors.drain(..surplus);
    }

    /// Makes a code. The oldest ones give way if there are too many.
    fn add_code(&mut self, scope: Scope, now: u64) -> io::Result<String> {
        let code = secret::<CODE_BYTES>()?;
        self.codes.push(Code { digest: digest(&code), scope, expires: now + CODE_LIFE.as_secs() });
        let surplus = self.codes.len().saturating_sub(CODES_MAX);
        self.codes.drain(..surplus);
        Ok(code)
    }

    fn has_code(&self, code: &str, now: u64) -> bool {
        let wanted = digest(code);
        self.codes.iter().any(|code| is_equal(&code.digest, &wanted) && code.expires > now)
    }

    /// Exchanges a code for a token, once.
    fn exchange(&mut self, code: &str, by: &str, now: u64) -> io::Result<Option<(String, Token)>> {
        let wanted = digest(code);
        let Some(at) = self.codes.iter().position(|code| is_equal(&code.digest, &wanted)) else {
            return Ok(None);
        };
        let Code { scope, .. } = self.codes.remove(at);
        let secret = secret::<TOKEN_BYTES>()?;
        let token = Token {
            id: token_id()?,
            digest: digest(&secret),
            scope,
            created: now,
            expires: now + TOKEN_LIFE.as_secs(),
            by: by.chars().filter(|letter| !letter.is_control()).take(200).collect(),
        };
        self.tokens.push(token.clone());
        let surplus = self.tokens.len().saturating_sub(TOKENS_MAX);
        self.tokens.drain(..surplus);
        Ok(Some((secret, token)))
    }

    fn find(&self, secret: &str, now: u64) -> Option<&Token> {
        let wanted = digest(secret);
        self.tokens.iter().find(|token| is_equal(&token.digest, &wanted) && token.expires > now)
    }
}

/// The codes and tokens of one door.
pub struct Store {
    path: Option<PathBuf>,
    state: State,
    /// What the file looked like when it was read.
    seen: Option<Stamp>,
}

impl Store {
    /// The store in this file, which need not exist yet.
    pub fn open(path: Option<PathBuf>) -> io::Result<Store> {
        let mut store = Store { path, state: State::default(), seen: None };
        store.refresh()?;
        Ok(store)
    }

    /// Makes a code of this scope.
    pub fn add_code(&mut self, scope: Scope) -> io::Result<String> {
        self.update(|state, now| state.add_code(scope, now))?
    }

    /// Ends the token or the unused link of this id. False: there is none.
    pub fn revoke(&mut self, id: &str) -> io::Result<bool> {
        self.update(|state, _| {
            let before = state.tokens.len() + state.codes.len();
            state.tokens.retain(|token| token.id != id);
            state.codes.retain(|code| code.id() != id);
            state.tokens.len() + state.codes.len() < before
        })
    }

    /// Where doors listen, the newest first. One that was killed may be among them.
    pub fn doors(&self) -> impl Iterator<Item = &DoorPlace> {
        self.state.doors.iter().rev()
    }

    /// All tokens that are good.
    pub fn tokens(&self) -> impl Iterator<Item = &Token> {
        let now = unix_now();
        self.state.tokens.iter().filter(move |token| token.expires > now)
    }

    /// All links that were not used and are good.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        let now = unix_now();
        let good = self.state.codes.iter().filter(move |code| code.expires > now);
        good.map(|code| {
            let created = code.expires.saturating_sub(CODE_LIFE.as_secs());
            Link { id: code.id(), scope: code.scope, created, expires: code.expires }
        })
    }

    pub(crate) fn add_door(&mut self, place: DoorPlace) -> io::Result<()> {
        self.update(|state, _| state.add_door(place))
    }

    /// A door is gone. Others of the same bus may still be open.
    pub(crate) fn remove_door(&mut self, place: &DoorPlace) -> io::Result<()> {
        self.update(|state, _| state.doors.retain(|door| door != place))
    }

    /// Exchanges a code for a token, once. Anybody may send wrong codes: they are only looked up, and change no file.
    pub(crate) fn exchange(&mut self, code: &str, by: &str) -> io::Result<Option<(String, Token)>> {
        self.refresh()?;
        if !self.state.has_code(code, unix_now()) {
            return Ok(None);
        }
        self.update(|state, now| state.exchange(code, by, now))?
    }

    /// The token that this secret is, if it is one.
    pub(crate) fn find(&mut self, secret: &str) -> io::Result<Option<Token>> {
        self.refresh()?;
        Ok(self.state.find(secret, unix_now()).cloned())
    }

    pub(crate) fn is_good(&self, id: &str) -> bool {
        self.tokens().any(|token| token.id == id)
    }

    /// Reads the file again if it has changed.
    pub(crate) fn refresh(&mut self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let stamp = state_file::stamp(path);
        if stamp != self.seen || stamp.is_none() {
            self.state = state_file::read(path)?;
            self.seen = stamp;
        }
        Ok(())
    }

    fn update<T>(&mut self, change: impl FnOnce(&mut State, u64) -> T) -> io::Result<T> {
        let now = unix_now();
        let Some(path) = self.path.clone() else {
            self.state.forget_expired(now);
            return Ok(change(&mut self.state, now));
        };
        let (state, outcome) = state_file::update(&path, |state: &mut State| {
            state.forget_expired(now);
            change(state, now)
        })?;
        self.seen = state_file::stamp(&path);
        self.state = state;
        Ok(outcome)
    }
}

fn unix_now() -> u64 {
    unix_ms() / 1000
}

fn secret<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

fn token_id() -> io::Result<String> {
    let mut bytes = [0; ID_BYTES];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

fn digest(secret: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(secret.as_bytes()))
}

fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_code_is_exchanged_once_and_in_time() {
        let mut state = State::default();
        let code = state.add_code(Scope::Approve, 1000).unwrap();
        assert_eq!(state.exchange("wrong", "x", 1001).unwrap(), None);
        let (secret, token) = state.exchange(&code, "127.0.0.1\n", 1001).unwrap().unwrap();
        assert_eq!((token.scope, token.by.as_str()), (Scope::Approve, "127.0.0.1"));
        assert_eq!(state.exchange(&code, "x", 1002).unwrap(), None);
        assert_eq!(state.find(&secret, 1002), Some(&token));
        assert_eq!(state.find(&code, 1002), None);
        assert_eq!(state.find(&secret, 1001 + TOKEN_LIFE.as_secs()), None);
        let late = state.add_code(Scope::Admin, 2000).unwrap();
        state.forget_expired(2000 + CODE_LIFE.as_secs());
        assert_eq!(state.exchange(&late, "x", 2600).unwrap(), None);
    }

    #[test]
    fn the_number_of_codes_and_tokens_has_a_bound() {
        let mut state = State::default();
        for _ in 0..2 * TOKENS_MAX {
            let code = state.add_code(Scope::Admin, 0).unwrap();
            state.exchange(&code, "x", 0).unwrap();
            state.add_code(Scope::Admin, 0).unwrap();
        }
        assert_eq!((state.codes.len(), state.tokens.len()), (CODES_MAX, TOKENS_MAX));
    }

    #[test]
    fn a_door_that_closes_takes_only_itself_away() {
        let place = |port: u16, pid| {
            let (public, local) = (format!("https://bus.example:{port}"), ([127, 0, 0, 1], port).into());
            DoorPlace { public, local, pid }
        };
        let ports = |store: &Store| store.doors().map(|door| door.local.port()).collect::<Vec<_>>();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        let mut own = Store::open(Some(path.clone())).unwrap();
        let mut other = Store::open(Some(path)).unwrap();
        own.add_door(place(1, 10)).unwrap();
        other.add_door(place(2, 20)).unwrap();
        assert_eq!(ports(&other), [2, 1]);
        other.remove_door(&place(2, 20)).unwrap();
        assert_eq!(ports(&other), [1]);
        // Another door has its address already.
        other.add_door(place(1, 30)).unwrap();
        own.remove_door(&place(1, 10)).unwrap();
        assert_eq!(own.doors().collect::<Vec<_>>(), [&place(1, 30)]);
        for port in 0..100 {
            own.add_door(place(port, 40)).unwrap();
        }
        assert_eq!((own.doors().count(), ports(&own)[0]), (DOORS_MAX, 99));
    }

    #[test]
    fn two_stores_of_one_file_see_what_the_other_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/web");
        let mut door = Store::open(Some(path.clone())).unwrap();
        let mut command = Store::open(Some(path.clone())).unwrap();
        let code = command.add_code(Scope::Control).unwrap();
        let (secret, token) = door.exchange(&code, "x").unwrap().unwrap();
        assert!(command.exchange(&code, "x").unwrap().is_none());
        assert_eq!(door.find(&secret).unwrap().unwrap().id, token.id);
        assert!(command.revoke(&token.id).unwrap() && !command.revoke(&token.id).unwrap());
        assert!(door.is_good(&token.id), "it has not looked yet");
        assert!(door.find(&secret).unwrap().is_none() && !door.is_good(&token.id));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = fs::read_to_string(&path).unwrap();
        assert!(!kept.contains(&secret) && !kept.contains(&code));
    }

    #[test]
    fn a_link_is_listed_until_it_is_used_or_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        let mut door = Store::open(Some(path.clone())).unwrap();
        let mut command = Store::open(Some(path)).unwrap();
        let used = command.add_code(Scope::Observe).unwrap();
        let revoked = command.add_code(Scope::Approve).unwrap();
        let links: Vec<Link> = command.links().collect();
        assert_eq!(links.iter().map(|link| link.scope).collect::<Vec<_>>(), [Scope::Observe, Scope::Approve]);
        assert!(links.iter().all(|link| link.expires - link.created == CODE_LIFE.as_secs()));
        assert!(links.iter().all(|link| !used.contains(&link.id) && !revoked.contains(&link.id)));
        assert!(door.exchange(&used, "x").unwrap().is_some());
        assert!(command.revoke(&links[1].id).unwrap() && !command.revoke(&links[1].id).unwrap());
        assert!(door.exchange(&revoked, "x").unwrap().is_none());
        assert_eq!((command.links().count(), command.tokens().count()), (0, 1));
    }

    #[test]
    fn a_wrong_code_changes_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        let mut store = Store::open(Some(path.clone())).unwrap();
        assert!(store.exchange("wrong", "x").unwrap().is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        let code = store.add_code(Scope::Admin).unwrap();
        let before = state_file::stamp(&path);
        assert!(store.exchange("wrong", "x").unwrap().is_none());
        assert_eq!(state_file::stamp(&path), before);
        assert!(store.exchange(&code, "x").unwrap().is_some());
    }

    #[test]
    fn a_damaged_file_lets_nobody_in_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        fs::write(&path, "{").unwrap();
        let mut store = Store::open(Some(path.clone())).unwrap();
        assert_eq!(store.tokens().count(), 0);
        store.add_code(Scope::Admin).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("digest"));
    }

    #[test]
    fn without_a_file_everything_is_in_memory() {
        let mut store = Store::open(None).unwrap();
        let code = store.add_code(Scope::Observe).unwrap();
        let (secret, _) = store.exchange(&code, "x").unwrap().unwrap();
        assert!(store.find(&secret).unwrap().is_some());
    }
}
