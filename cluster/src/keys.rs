//! Keys by which the servers of a cluster know its buses, and what each bus may do there.
//!
//! A key is an nkey of a user: an Ed25519 key as text, in the spelling of NATS.

use crate::identity::{Identity, USER, spelled_seed};
use crate::subjects::{is_name, random_bytes};

/// A new key.
pub struct Key {
    /// The secret part, for the file that `cluster.nkey` names.
    pub seed: String,
    /// The part that servers know.
    pub public: String,
}

/// What a bus is in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It offers pools.
    Node,
    /// It uses the pools of nodes.
    Edge,
}

impl Key {
    /// Makes a key that nobody has. `None`: the random bytes make none.
    pub fn random() -> Option<Key> {
        let seed = spelled_seed(USER, &random_bytes());
        let public = Identity::of_seed(&seed)?.public_key()?;
        Some(Key { seed, public })
    }
}

/// The lines by which nats-server knows a bus and lets it do what its role needs, to stand among the `users` of
/// `authorization`. `Err`: a bus cannot be called so.
pub fn user(public: &str, name: &str, role: Role) -> Result<String, String> {
    if !is_name(name) {
        return Err(format!("a bus of a cluster cannot be called {name:?}: use letters, digits, - and _"));
    }
    let (first, second) = match role {
        Role::Node => (
            format!(
                "subscribe: [\"bus.v1.ask.*\", \"bus.v1.open.{name}\", \"bus.v1.note.{name}\", \
                 \"bus.v1.p.n.{name}.>\", \"$SRV.>\"]"
            ),
            format!(r#"publish: ["bus.v1.p.e.>", "bus.v1.note.{name}", "_INBOX.*.*.{name}"]"#),
        ),
        Role::Edge => (
            r#"publish: ["bus.v1.ask.*", "bus.v1.open.*", "bus.v1.p.n.>"]"#.to_owned(),
            format!(r#"subscribe: ["bus.v1.p.e.{name}.>", "bus.v1.note.*", "_INBOX.{name}.>"]"#),
        ),
    };
    Ok(format!("    {{ nkey: {public}, permissions: {{\n        {first}\n        {second} }} }}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_one_that_a_bus_can_prove() {
        let [one, other] = [0, 1].map(|_| Key::random().unwrap());
        assert!(one.seed.starts_with("SU") && one.public.starts_with('U'), "{} {}", one.seed, one.public);
        assert_eq!((one.seed.len(), one.public.len()), (58, 56));
        assert_eq!(Identity::of_seed(&one.seed).unwrap().public_key(), Some(one.public));
        assert_ne!(one.seed, other.seed);
    }

    #[test]
    fn what_a_bus_may_do_is_what_the_docs_say() {
        let docs = include_str!("../../docs/SECURITY.md");
        for (key, name, role) in [("KEY_OF_N17", "n17", Role::Node), ("KEY_OF_E3", "e3", Role::Edge)] {
            let lines = user(key, name, role).unwrap();
            assert!(docs.contains(&lines), "{lines}");
        }
        for bad in ["", "a.b", "a b", "*", "a>"] {
            assert!(user("U", bad, Role::Node).is_err(), "{bad}");
        }
    }
}
