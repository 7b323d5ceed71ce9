//! The connections that live by a token: how many there are, and their end when the token is revoked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::{Notify, watch};

/// One token may have this many connections at the same time.
const PER_TOKEN: usize = 1024;

#[derive(Default)]
pub(crate) struct Leases {
    live: RefCell<HashMap<String, Live>>,
    first: Notify,
}

struct Live {
    count: usize,
    ended: watch::Sender<bool>,
}

/// The right of one connection to go on.
pub(crate) struct Lease {
    token: String,
    ended: watch::Receiver<bool>,
    leases: Rc<Leases>,
}

impl Leases {
    /// `None`: the token has too many connections.
    pub(crate) fn take(self: &Rc<Self>, token: &str) -> Option<Lease> {
        let mut live = self.live.borrow_mut();
        let entry = live
            .entry(token.to_owned())
            .or_insert_with(|| Live { count: 0, ended: watch::Sender::new(false) });
        if entry.count >= PER_TOKEN {
            return None;
        }
        entry.count += 1;
        self.first.notify_one();
        Some(Lease { token: token.to_owned(), ended: entry.ended.subscribe(), leases: self.clone() })
    }

    /// Waits until there is a connection at all.
    pub(crate) async fn any(&self) {
        while self.live.borrow().is_empty() {
            self.first.notified().await;
        }
    }

    /// Ends the connections of tokens that are not good any more.
    pub(crate) fn end_unless(&self, is_good: impl Fn(&str) -> bool) {
        for (_, live) in self.live.borrow().iter().filter(|(token, _)| !is_good(token)) {
            let _ = live.ended.send(true);
        }
    }
}

impl Lease {
    /// Waits until the token is revoked.
    pub(crate) async fn ended(&self) {
        let mut ended = self.ended.clone();
        // The sender lives as long as this lease.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut live = self.leases.live.borrow_mut();
        if let Some(entry) = live.get_mut(&self.token) {
            entry.count -= 1;
            if entry.count == 0 {
                live.remove(&self.token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_a_bounded_number_of_connections_and_gets_them_back() {
        let leases = Rc::new(Leases::default());
        let mut taken: Vec<_> = (0..PER_TOKEN).map(|_| leases.take("a").unwrap()).collect();
        assert!(leases.take("a").is_none() && leases.take("b").is_some());
        taken.pop();
        assert!(leases.take("a").is_some());
        taken.clear();
        assert!(leases.live.borrow().is_empty());
    }

    #[tokio::test]
    async fn the_connections_of_a_revoked_token_end_and_no_others() {
        let leases = Rc::new(Leases::default());
        let (good, bad) = (leases.take("good").unwrap(), leases.take("bad").unwrap());
        leases.any().await;
        leases.end_unless(|token| token == "good");
        bad.ended().await;
        assert!(!*good.ended.borrow());
    }
}
