//! What the bus can know of where agents keep their sessions, and for whom a process works.

use kernel_core::config::Config;

use crate::oracle::Oracle;
use crate::parse::parse;
use crate::record::*;

impl Oracle {
    /// A process says how its agent calls itself, and what it can do.
    pub(crate) fn names_agent(&mut self, serial: Serial) {
        let sent = &self.sent[serial];
        let (Peer::Worker(life), What::Answer { call_id: Some(call_id), good: true, .. }) =
            (sent.by, &sent.what)
        else {
            return;
        };
        let asked = self.lives[life].asked.get(call_id).map(|ask| &self.sent[*ask].what);
        // A second answer to one request is nobody's.
        let answers_it = |other: &Sent| {
            other.by == sent.by
                && matches!(other.what, What::Answer { call_id: Some(id), .. } if id == *call_id)
        };
        if matches!(asked, Some(What::Ask { kind: Kind::Initialize(_), .. }))
            && !self.sent[..serial].iter().any(answers_it)
        {
            let result = parse(&sent.line.bytes())["result"].take();
            let can = &result["agentCapabilities"];
            let process = &mut self.lives[life];
            process.keeps_sessions &=
                can["loadSession"] == true || can["sessionCapabilities"]["resume"].is_object();
            process.agent = result["agentInfo"]["name"].as_str().map(str::to_owned);
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

    /// The bus is told of another configuration.
    pub(crate) fn reloads(&mut self, config: &Config) {
        self.causes.reloads += 1;
        let (old, new) = (&self.config.pools, &config.pools);
        for (life, process) in self.lives.iter().enumerate() {
            if new.iter().all(|pool| *pool.id != *process.pool) {
                let store = old.iter().find(|pool| *pool.id == *process.pool).map(|pool| pool.store.clone());
                self.removed.entry(life).or_insert(store.flatten());
            }
        }
        // A pool whose program has changed does not know its store until a new process has told it.
        self.stores.clear();
        self.config = config.clone();
    }

    /// The agents of both processes keep their sessions in one place, and the bus knew that in this call.
    pub(crate) fn shares_store(&self, one: Life, other: Life, call: usize) -> bool {
        let (one, other) = (&self.lives[one].pool, &self.lives[other].pool);
        let store = self.store_of(one, call);
        one == other || store.is_some() && store == self.store_of(other, call)
    }

    /// The client asks for a session without a tag in a pool whose store is not that of this process.
    pub(crate) fn asks_elsewhere(&self, ask: Serial, life: Life) -> bool {
        matches!(self.asked_and_had(ask, life), Some((Some(asked), Some(has))) if asked != has)
    }

    /// The same, but one of the stores may not be known. Then the bus takes them for two.
    pub(crate) fn may_ask_elsewhere(&self, ask: Serial, life: Life) -> bool {
        self.asked_and_had(ask, life).is_some_and(|(asked, has)| asked.is_none() || asked != has)
    }

    /// The stores of the pool in which a client asks for a session without a tag, and of this process in another pool.
    fn asked_and_had(&self, ask: Serial, life: Life) -> Option<(Option<&str>, Option<&str>)> {
        let (pool, call) = (self.asked_pool(ask)?, self.sent[ask].read_in);
        let asked = self.store_of(&pool, call);
        if let Some(store) = self.removed.get(&life) {
            return Some((asked, store.as_deref()));
        }
        let has = &self.lives[life].pool;
        (pool != *has).then(|| (asked, self.store_of(has, call)))
    }

    /// The pool in which a client asks for a session without a tag.
    fn asked_pool(&self, ask: Serial) -> Option<String> {
        self.named_pool(ask).filter(|_| matches!(&self.sent[ask].what, What::Ask { kind: Kind::Load(_), .. }))
    }

    /// The client has asked for a session without a tag, and was routed again when the store of the pool was known,
    /// after what the client had sent meanwhile.
    pub(crate) fn was_routed_again(&self, ask: Serial, life: Life) -> bool {
        let is_new = |pool: &String| self.stores.get(pool).is_some_and(|(_, since)| *since == self.calls);
        let is_elsewhere = |pool: String| pool != self.lives[life].pool || is_new(&pool);
        // What the client has sent into a session goes with the load that opens it.
        let opens = |load: &Serial| {
            let of_it = |name: &str| self.is_about(*load, behind_tag(name));
            let What::Ask { kind, .. } = &self.sent[ask].what else { return false };
            let is_of_client =
                self.sent[*load].by == self.sent[ask].by && self.sent[*load].sent_in == self.calls;
            is_of_client && kind.session().is_some_and(of_it)
        };
        let mut loads = self.lives[life].asked.values().filter(|load| opens(load));
        self.named_pool(ask).is_some_and(is_elsewhere)
            || loads.any(|load| self.named_pool(*load).is_some_and(is_elsewhere))
    }

    /// The pool in which a client asks for a session without a tag, or for a fork of one.
    pub(crate) fn named_pool(&self, ask: Serial) -> Option<String> {
        let Sent {
            by: Peer::Client(conn),
            what: What::Ask { kind: Kind::Load(name) | Kind::Fork(name), .. },
            ..
        } = &self.sent[ask]
        else {
            return None;
        };
        let request = parse(&self.sent[ask].line.bytes());
        let named = request["pool"].as_str().or(request["params"]["_meta"]["bus/pool"].as_str());
        let bound = self.conns[*conn].bound.iter().rev().find(|(since, _)| *since <= ask);
        let own = || bound.map(|(_, pool)| &**pool).or(self.config.default_pool.as_deref());
        named.or_else(own).filter(|_| behind_tag(name) == name).map(str::to_owned)
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
            let is_owned = elsewhere && s.owner.is_some_and(is_there) && !self.was_refused(s);
            is_owned && self.shares_store(life, s.life, self.calls)
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
