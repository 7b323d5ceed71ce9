//! What becomes of a request to load or resume a session that the bus knows. It is decided here, from facts alone, and
//! done elsewhere.

/// The role that the client that asks has in the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) enum Asker {
    Owner,
    /// A guest that controls it.
    Guest,
    /// A guest that only looks on.
    Observer,
    Stranger,
}

/// The facts that the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) struct Facts {
    pub(in crate::bus) asker: Asker,
    /// The client uses the name as its own for the session. Else the session was found by the agent's name.
    pub(in crate::bus) is_own_name: bool,
    /// The owner knows it by another name than the one that it asked for.
    pub(in crate::bus) is_renamed: bool,
    /// Somebody is there who owns it.
    pub(in crate::bus) is_owned: bool,
    /// The client shows by the name that it had the session before.
    pub(in crate::bus) is_successor: bool,
    /// The client may join what others have open.
    pub(in crate::bus) may_join: bool,
    pub(in crate::bus) has_guests: bool,
    /// The process that has it open was initialized for clients like this one.
    pub(in crate::bus) fits: bool,
    /// A process has it open.
    pub(in crate::bus) is_open: bool,
    /// No process has it, and one can open it again for those who are in it or at the node where it was.
    pub(in crate::bus) can_reopen: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bus) enum Plan {
    /// Who only looks on cannot load it.
    ReadOnly,
    /// The session is another client's, and not for this one.
    Unknown,
    /// The client becomes a guest beside those who are there, or is told again as one.
    Join,
    /// Nobody owns it, so the client becomes the owner.
    TakeUp,
    /// The session is the client's own and open.
    Load,
    /// The session is the client's own, and is opened again first.
    Reopen,
    /// The session is the client's own and lost. The bus forgets it, and asks for it as for one that it does not know.
    Forget,
    /// Its process does not fit. It is ended there, and goes on in another of the same pool.
    Move,
}

pub(in crate::bus) fn plan(facts: &Facts) -> Plan {
    let Facts { asker, is_own_name, is_owned, fits, has_guests, .. } = *facts;
    match asker {
        Asker::Observer => Plan::ReadOnly,
        Asker::Owner if is_own_name && facts.is_open => Plan::Load,
        Asker::Owner if is_own_name && facts.can_reopen => Plan::Reopen,
        Asker::Owner if is_own_name => Plan::Forget,
        Asker::Guest if is_own_name && (is_owned || !fits) => Plan::Join,
        Asker::Guest if is_own_name => Plan::TakeUp,
        Asker::Owner if facts.is_renamed && facts.is_open => Plan::Load,
        _ if is_owned && !facts.is_successor && facts.may_join => Plan::Join,
        _ if is_owned && !facts.is_successor => Plan::Unknown,
        _ if has_guests && !fits => Plan::Join,
        _ if fits => Plan::TakeUp,
        _ => Plan::Move,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKERS: [Asker; 4] = [Asker::Owner, Asker::Guest, Asker::Observer, Asker::Stranger];

    /// Every combination of facts, also of such as cannot come together.
    fn all() -> impl Iterator<Item = Facts> {
        ASKERS.into_iter().flat_map(|asker| {
            (0..1u32 << 9).map(move |bits| {
                let is = |bit: u32| bits >> bit & 1 == 1;
                Facts {
                    asker,
                    is_own_name: is(0),
                    is_renamed: is(1),
                    is_owned: is(2),
                    is_successor: is(3),
                    may_join: is(4),
                    has_guests: is(5),
                    fits: is(6),
                    is_open: is(7),
                    can_reopen: is(8),
                }
            })
        })
    }

    #[test]
    fn every_combination_of_facts_keeps_the_rules() {
        for facts in all() {
            let plan = plan(&facts);
            let is_ours = facts.asker == Asker::Owner;
            assert_eq!(plan == Plan::ReadOnly, facts.asker == Asker::Observer, "{facts:?}");
            if matches!(plan, Plan::Load | Plan::Reopen | Plan::Forget) {
                assert!(is_ours, "only an owner loads a session as its own: {facts:?}");
            }
            if plan == Plan::TakeUp {
                assert!(facts.fits, "what does not fit is not taken up: {facts:?}");
                assert!(!facts.is_owned || facts.is_successor, "nothing is taken from its owner: {facts:?}");
            }
            if plan == Plan::Move {
                assert!(!facts.has_guests, "guests do not lose their session: {facts:?}");
                assert!(!facts.is_owned || facts.is_successor, "nor does an owner: {facts:?}");
            }
            if facts.asker == Asker::Stranger && facts.is_owned && !facts.is_successor {
                let expected = if facts.may_join { Plan::Join } else { Plan::Unknown };
                assert_eq!(plan, expected, "a stranger joins, or hears that there is none: {facts:?}");
            }
            if plan == Plan::Load {
                assert!(facts.is_open, "{facts:?}");
            }
            if facts.is_own_name && is_ours && !facts.is_open {
                let expected = if facts.can_reopen { Plan::Reopen } else { Plan::Forget };
                assert_eq!(plan, expected, "{facts:?}");
            }
        }
    }

    #[test]
    fn every_plan_is_made_for_somebody() {
        let plans = [
            Plan::ReadOnly,
            Plan::Unknown,
            Plan::Join,
            Plan::TakeUp,
            Plan::Load,
            Plan::Reopen,
            Plan::Forget,
            Plan::Move,
        ];
        for wanted in plans {
            assert!(all().any(|facts| plan(&facts) == wanted), "{wanted:?}");
        }
    }
}
