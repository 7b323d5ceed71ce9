//! What the bus can know of where agents keep their sessions, and for whom a process works.

use crate::oracle::Oracle;
use crate::parse::parse;
use crate::record::*;

impl Oracle {
    /// A process says how its agent calls itself.
    pub(crate) fn names_agent(&mut self, serial: Serial) {
        let sent = &self.sent[serial];
        let (Peer::Worker(life), What::Answer { call_id: Some(call_id), good: true, .. }) =
            (sent.by, &sent.what)
        else {
            return;
        };
        let asked = self.lives[life].asked.get(call_id).map(|ask| &self.sent[*ask].what);
        if matches!(asked, Some(What::Ask { kind: Kind::Initialize(_), .. })) {
            let name = parse(&sent.line.bytes())["result"]["agentInfo"]["name"].as_str().map(str::to_owned);
            self.lives[life].agent = name;
        }
    }

    /// The process is used, so the bus has read its answer to initialize.
    pub(crate) fn is_used(&mut self, life: Life) {
        if let Some(name) = self.lives[life].agent.clone() {
            let pool = self.lives[life].pool.clone();
            self.stores.entry(pool).or_insert((name, self.calls));
        }
    }

    /// The store of a pool, if the bus knew it in this call. Its key in the configuration counts from the start.
    pub(crate) fn store_of(&self, pool: &str, call: usize) -> Option<&str> {
        let config = self.config.pools.iter().find(|config| *config.id == *pool);
        let told = self.stores.get(pool).filter(|(_, since)| *since <= call);
        config.and_then(|config| config.store.as_deref()).or(told.map(|(name, _)| &**name))
    }

    /// The agents of both processes keep their sessions in one place, and the bus knew that in this call.
    pub(crate) fn shares_store(&self, one: Life, other: Life, call: usize) -> bool {
        let (one, other) = (&self.lives[one].pool, &self.lives[other].pool);
        let store = self.store_of(one, call);
        one == other || store.is_some() && store == self.store_of(other, call)
    }

    /// The client asks for a session without a tag in a pool whose store is not that of this process.
    pub(crate) fn asks_elsewhere(&self, ask: Serial, life: Life) -> bool {
        let Sent { by: Peer::Client(conn), what: What::Ask { kind: Kind::Load(name), .. }, .. } =
            &self.sent[ask]
        else {
            return false;
        };
        let request = parse(&self.sent[ask].line.bytes());
        let named = request["pool"].as_str().or(request["params"]["_meta"]["bus/pool"].as_str());
        let own = || self.conns[*conn].bound.as_deref().or(self.config.default_pool.as_deref());
        let asked = named.or_else(own).filter(|_| behind_tag(name) == name);
        let Some(pool) = asked else { return false };
        let call = self.sent[ask].read_in;
        let (asked, has) = (self.store_of(pool, call), self.store_of(&self.lives[life].pool, call));
        pool != self.lives[life].pool && asked.is_some() && has.is_some() && asked != has
    }

    /// The process keeps its sessions, has told the bus so, and another one of its store has a session of this name,
    /// which a client owns.
    pub(crate) fn is_taken(&self, life: Life, agent: &str) -> bool {
        if !self.lives[life].keeps_sessions || self.lives[life].handshake.is_none() {
            return false;
        }
        let is_there = |owner: Conn| self.conns[owner].open && !self.conns[owner].ended;
        self.sessions.iter().any(|s| {
            let elsewhere = s.life != life && s.agent == agent && s.open && self.lives[s.life].healthy;
            elsewhere && s.owner.is_some_and(is_there) && self.shares_store(life, s.life, self.calls)
        })
    }

    /// The process has a request of such a client, and has not answered it. A login and the like concern no client.
    /// What a process that is being ended has answered is not known.
    pub(crate) fn works(&self, life: Life, of: impl Fn(Conn) -> bool) -> bool {
        let process = &self.lives[life];
        let is_due = |call_id: &&u64| {
            !process.answered.contains(*call_id) && !process.bad_answers.contains_key(*call_id)
        };
        let mut due = process.owed.iter().filter(is_due).filter_map(|call_id| process.asked.get(call_id));
        process.healthy
            && due.any(|serial| match (self.sent[*serial].by, &self.sent[*serial].what) {
                (Peer::Client(conn), What::Ask { kind, .. }) => {
                    !matches!(kind, Kind::Initialize(_) | Kind::Broadcast) && of(conn)
                }
                _ => false,
            })
    }
}
