//! Checks what must hold for any bus.json, for the fuzzer and the tests, behind the feature `fuzzing`.

use std::path::Path;

use kernel_core::{Bus, Moment};

/// The bus must be able to run with every bus.json that is accepted.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let config = match crate::config::parse(text, Path::new("/folder")) {
        Ok(config) => config,
        Err(errors) => return assert!(!errors.to_string().is_empty()),
    };
    assert!(!config.pools.is_empty());
    for (at, pool) in config.pools.iter().enumerate() {
        assert!(config.pools[..at].iter().all(|other| other.id != pool.id), "{} is there twice", pool.id);
        assert!(1 <= pool.instances && pool.instances <= pool.max_instances);
        assert!(pool.max_sessions >= 1);
    }
    let names = |name: &str| config.pools.iter().any(|pool| *pool.id == *name);
    assert!(config.default_pool.as_deref().is_none_or(names));
    assert!(config.listen.iter().all(|listen| listen.pool.as_deref().is_none_or(names)));
    if config.pools.iter().any(|pool| pool.instances > 100) {
        return;
    }
    let bus = Bus::new(&config, [0; 32], Moment::ZERO);
    bus.check_invariants();
}
