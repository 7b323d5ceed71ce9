//! What differs between two configurations, in words for people. No value is told: it may be a secret.

use kernel_core::config::{Config, PoolConfig};

/// One line for each pool and each other part that has changed.
pub(crate) fn changes(old: &Config, new: &Config) -> Vec<String> {
    let mut changed = Vec::new();
    let find = |config: &Config, id: &str| config.pools.iter().find(|pool| *pool.id == *id).cloned();
    for pool in &new.pools {
        match find(old, &pool.id) {
            None => changed.push(format!("pool {}: new", pool.id)),
            Some(before) if before == *pool => {}
            Some(before) => {
                changed.push(format!("pool {}: {}", pool.id, pool_keys(&before, pool).join(", ")));
            }
        }
    }
    let gone = old.pools.iter().filter(|pool| find(new, &pool.id).is_none());
    changed.extend(gone.map(|pool| format!("pool {}: removed", pool.id)));
    for listen in new.listen.iter().filter(|listen| !old.listen.contains(listen)) {
        changed.push(format!("listen: {listen} is new"));
    }
    for listen in old.listen.iter().filter(|listen| !new.listen.contains(listen)) {
        changed.push(format!("listen: {listen} is gone"));
    }
    let parts = [
        ("name", old.name != new.name),
        ("default_pool", old.default_pool != new.default_pool),
        ("auth", old.auth != new.auth),
        ("limits", old.limits != new.limits),
        ("trace", old.trace_payloads != new.trace_payloads),
        ("web", old.web != new.web),
        ("cluster", old.cluster != new.cluster),
        ("history", old.history != new.history),
        ("notify", old.notify != new.notify),
    ];
    changed.extend(parts.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()));
    changed
}

/// The keys of bus.json that differ.
fn pool_keys(old: &PoolConfig, new: &PoolConfig) -> Vec<&'static str> {
    let keys = [
        ("command", old.program != new.program),
        ("args", old.args != new.args),
        ("from", old.finds_nodes != new.finds_nodes),
        ("nodes", old.nodes != new.nodes),
        ("mode", old.mode != new.mode),
        ("instances", old.instances != new.instances),
        ("max_instances", old.max_instances != new.max_instances),
        ("max_sessions", old.max_sessions != new.max_sessions),
        ("warm", old.warm != new.warm),
        ("idle_sec", old.idle != new.idle),
        ("session_keep_sec", old.session_keep != new.session_keep),
        ("permission", old.permission != new.permission),
        ("store", old.store != new.store),
        ("share", old.share != new.share),
        ("history", old.keep != new.keep),
        ("cwd", old.cwd != new.cwd),
        ("env", old.env != new.env),
        ("inherit_env", old.inherit_env != new.inherit_env),
    ];
    let keys: Vec<_> = keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect();
    if keys.is_empty() { vec!["changed"] } else { keys }
}

#[cfg(test)]
mod tests {
    use kernel_core::config::{PoolConfig, Program};

    use super::*;

    fn pool(id: &str) -> PoolConfig {
        PoolConfig::new(id, Program::InPath("agent".into()))
    }

    #[test]
    fn changes_are_told_without_values() {
        let old = Config::with_pools([pool("a"), pool("b"), pool("c")]);
        assert_eq!(changes(&old, &old.clone()), [""; 0]);
        let env = [("KEY".to_owned(), "secret".to_owned())].into();
        let other = PoolConfig { args: vec!["secret".into()], env, ..pool("b") };
        let mut new = Config::with_pools([pool("a"), other, pool("d")]);
        new.default_pool = Some("a".into());
        new.limits.max_calls += 1;
        let expected = ["pool b: args, env", "pool d: new", "pool c: removed", "default_pool", "limits"];
        assert_eq!(changes(&old, &new), expected);
    }
}
