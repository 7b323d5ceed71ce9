//! Connections on which nobody has shown a good token yet. They have a bound of their own, so that no crowd of them
//! keeps others out: when one more comes, the one that has been here longest gives way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Notify;

pub(crate) struct Strangers {
    max: usize,
    /// The oldest has the lowest number.
    here: RefCell<BTreeMap<u64, Rc<Notify>>>,
    last: Cell<u64>,
}

/// One connection, and whether it is a stranger still.
pub(crate) struct Stranger {
    number: u64,
    gives_way: Rc<Notify>,
    all: Rc<Strangers>,
}

impl Strangers {
    pub(crate) fn new(max: usize) -> Rc<Strangers> {
        Rc::new(Strangers { max, here: RefCell::default(), last: Cell::default() })
    }

    pub(crate) fn enter(self: &Rc<Self>) -> Rc<Stranger> {
        let mut here = self.here.borrow_mut();
        if here.len() >= self.max
            && let Some((_, oldest)) = here.pop_first()
        {
            oldest.notify_one();
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        let gives_way = Rc::new(Notify::new());
        here.insert(number, gives_way.clone());
        Rc::new(Stranger { number, gives_way, all: self.clone() })
    }
}

impl Stranger {
    pub(crate) fn is_unknown(&self) -> bool {
        self.all.here.borrow().contains_key(&self.number)
    }

    /// It has shown a good token.
    pub(crate) fn is_known_now(&self) {
        self.all.here.borrow_mut().remove(&self.number);
    }

    /// Waits until it has to make room for others.
    pub(crate) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.is_known_now();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_oldest_stranger_gives_way_and_nobody_who_is_known() {
        let strangers = Strangers::new(2);
        let [known, first, second] = [(); 3].map(|()| {
            let one = strangers.enter();
            if one.number == 1 {
                one.is_known_now();
            }
            one
        });
        let third = strangers.enter();
        let left = [&known, &first, &second, &third].map(|one| one.gives_way().now_or_never().is_some());
        assert_eq!(left, [false, true, false, false]);
        assert!(!known.is_unknown() && !first.is_unknown() && second.is_unknown() && third.is_unknown());
        // Whoever leaves by itself makes room.
        drop(second);
        let fourth = strangers.enter();
        assert!(third.gives_way().now_or_never().is_none() && fourth.is_unknown());
        drop((third, fourth));
        assert!(strangers.here.borrow().is_empty());
    }
}
