//! Tests of the tree of sessions.

use super::*;
use crate::id::Key;
use crate::state::session_id::token;

/// A chain of sessions, each announced by the one before.
fn chain(sessions: &mut Sessions, length: usize) -> Vec<SessionKey> {
    let worker = WorkerId::from_key(Key { index: 0, generation: 1 });
    let mut keys: Vec<SessionKey> = Vec::new();
    for nth in 0..length {
        let name = token(format!("s{nth}").as_bytes());
        let key = sessions.insert(Session::new(name.clone(), name, worker, None, Moment::ZERO));
        if let Some(last) = keys.last() {
            sessions.set_parent(key, *last);
        }
        keys.push(key);
    }
    keys
}

#[test]
fn the_sessions_of_subagents_form_a_tree_of_bounded_depth() {
    let mut sessions = Sessions::default();
    let keys = chain(&mut sessions, 100);
    for key in &keys[1..] {
        let mut depth = 0;
        let mut at = *key;
        while let Some(parent) = sessions.parent_of(at) {
            (at, depth) = (parent, depth + 1);
        }
        assert_eq!(at, keys[0]);
        assert!(depth <= CHILD_DEPTH, "{depth}");
        assert!(sessions.is_descendant(*key, keys[0]));
    }
    assert_eq!(sessions.parent_of(keys[1]), Some(keys[0]));
    assert_eq!(sessions.descendants(keys[0]).len(), 99);
}

#[test]
fn a_session_that_is_gone_leaves_orphans_and_its_parent() {
    let mut sessions = Sessions::default();
    let keys = chain(&mut sessions, 4);
    let gone = sessions.remove(keys[1]).unwrap().take_children();
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), [keys[2]]);
    assert!(sessions.descendants(keys[0]).is_empty());
    assert!(sessions.is_orphan(keys[2]) && !sessions.is_orphan(keys[3]) && !sessions.is_orphan(keys[0]));
    sessions.set_parent(keys[2], keys[0]);
    assert_eq!(sessions.root(keys[3]), keys[0]);
    sessions.leave_parent(keys[2]);
    assert_eq!(sessions.root(keys[3]), keys[2]);
    assert_eq!(sessions.named_by_agent(b"s3").map(|(key, _)| key).collect::<Vec<_>>(), [keys[3]]);
    assert_eq!(sessions.named_by_agent(b"s1").count(), 0);
}
