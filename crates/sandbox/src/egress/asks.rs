//! Names that a phase asked for and names that a person granted to it, while it runs.
//!
//! ```text
//! refused name -> asked (once, bounded) -> the worker fetches it -> a gate, a person
//!   granted(name, phase, until) -> admitted like a listed name, in that phase only -> flows cut at until
//! ```
//! A refused attempt stays refused: it is recorded as a violation, and its client tries again. Only exact
//! names can be asked for; addresses, ports and mirrors cannot.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::{Phase, ViolationReason};

use super::policy::{EgressRefusal, Name, Rules};

/// Names that one sandbox may ask for: each takes a person's time.
pub(crate) const MAX_ASKS: usize = 8;

/// A name that a running phase was refused and may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRequest {
    /// In which phase; the grant is for it alone.
    pub phase: Phase,
    /// An exact domain name in lower case.
    pub name: String,
}

#[derive(Debug, Clone)]
struct Grant {
    phase: Phase,
    name: Name,
    until_ms: i64,
}

#[derive(Debug, Default)]
struct AskState {
    asked: Vec<(Phase, Name)>,
    /// Of those, how many the worker has fetched.
    fetched: usize,
    grants: Vec<Grant>,
}

/// Names that one sandbox asked for, and grants that it got.
#[derive(Debug, Default)]
pub(crate) struct AskQueue(Mutex<AskState>);

impl AskQueue {
    fn lock(&self) -> MutexGuard<'_, AskState> {
        // A panic elsewhere leaves lists that are still good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a refusal that a person could lift. `false` where it is none, or one too many.
    pub(crate) fn ask(&self, rules: &Rules, refused: &EgressRefusal) -> bool {
        if !rules.ask || refused.why != ViolationReason::Name {
            return false;
        }
        let Some(name) =
            refused.name.as_deref().and_then(|text| Name::parse(text.trim_end_matches('.')))
        else {
            return false;
        };
        let wanted = (rules.phase, name);
        let mut state = self.lock();
        if state.asked.contains(&wanted) {
            return true;
        }
        let has_room = state.asked.len() < MAX_ASKS;
        if has_room {
            state.asked.push(wanted);
        }
        has_room
    }

    /// What was asked for since the last call.
    pub(crate) fn fetch(&self) -> Vec<NameRequest> {
        let mut state = self.lock();
        let new = state.asked.iter().skip(state.fetched);
        let new = new
            .map(|(phase, name)| NameRequest { phase: *phase, name: name.to_string() })
            .collect();
        state.fetched = state.asked.len();
        new
    }

    /// Admits a name that was asked for. `false`: nobody asked for it, so nobody may have it.
    pub(crate) fn grant(&self, asked: &NameRequest, until_ms: i64) -> bool {
        let Some(name) = Name::parse(&asked.name) else { return false };
        let mut state = self.lock();
        let was_asked = state.asked.iter().any(|(phase, n)| (*phase, n) == (asked.phase, &name));
        if was_asked {
            state.grants.push(Grant { phase: asked.phase, name, until_ms });
        }
        was_asked
    }

    /// The phase's list with what is granted to it now.
    pub(crate) fn rules(&self, listed: &Arc<Rules>) -> Arc<Rules> {
        let state = self.lock();
        let now_ms = clock::now_ms();
        let mut granted = state
            .grants
            .iter()
            .filter(|grant| grant.phase == listed.phase && grant.until_ms > now_ms)
            .peekable();
        if granted.peek().is_none() {
            return Arc::clone(listed);
        }
        let mut rules = Rules::clone(listed);
        granted.for_each(|grant| rules.allow(grant.name.clone()));
        Arc::new(rules)
    }

    /// How long a flow to this name may go on; `None` for a listed one, which its phase's end ends.
    pub(crate) fn left(&self, listed: &Rules, name: &Name) -> Option<Duration> {
        if listed.find(name.as_str()).is_some() {
            return None;
        }
        let state = self.lock();
        let grants = state.grants.iter().filter(|g| g.phase == listed.phase && g.name == *name);
        let until_ms = grants.map(|grant| grant.until_ms).max().unwrap_or(0);
        let left_ms = until_ms.saturating_sub(clock::now_ms());
        Some(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::policy::Wire;

    fn refused(name: &str) -> EgressRefusal {
        EgressRefusal::name(ViolationReason::Name, name, Some(443))
    }

    fn asking(phase: Phase) -> Arc<Rules> {
        let mut rules = Rules::new(phase);
        rules.ask = true;
        rules.allow(Name::parse("listed.example").unwrap());
        Arc::new(rules)
    }

    #[test]
    fn only_exact_names_are_asked_for_once_each_and_few_in_all() {
        let queue = AskQueue::default();
        let rules = asking(Phase::Exec);
        for name in ["127.0.0.1", "*.example", "localhost", "@pip", "a_b.example", ""] {
            assert!(!queue.ask(&rules, &refused(name)), "{name}");
        }
        assert!(
            !queue.ask(&rules, &EgressRefusal::name(ViolationReason::Port, "a.example", Some(22)))
        );
        assert!(
            !queue.ask(&Rules::new(Phase::Exec), &refused("a.example")),
            "the task does not ask"
        );
        for _ in 0..3 {
            assert!(queue.ask(&rules, &refused("A.example.")));
        }
        assert_eq!(queue.fetch(), [NameRequest { phase: Phase::Exec, name: "a.example".into() }]);
        assert!(queue.fetch().is_empty());
        for index in 0..20 {
            assert_eq!(queue.ask(&rules, &refused(&format!("n{index}.example"))), index < 7);
        }
        assert_eq!(queue.fetch().len(), 7);
    }

    #[test]
    fn a_grant_is_for_one_asked_name_in_one_phase_until_a_time() {
        let queue = AskQueue::default();
        let (build, exec) = (asking(Phase::Build), asking(Phase::Exec));
        let asked = NameRequest { phase: Phase::Build, name: "a.example".into() };
        let soon = clock::now_ms() + 60_000;
        assert!(!queue.grant(&asked, soon), "nobody asked");
        queue.ask(&build, &refused("a.example"));
        assert!(
            !queue.grant(&NameRequest { phase: Phase::Exec, ..asked.clone() }, soon),
            "not in that phase"
        );
        assert!(queue.rules(&build).admit("a.example", 443, Wire::Tls).is_err());
        assert!(queue.grant(&asked, soon));
        let admits =
            |rules: &Arc<Rules>, name: &str| queue.rules(rules).admit(name, 443, Wire::Tls).is_ok();
        assert!(admits(&build, "a.example") && admits(&build, "listed.example"));
        assert!(!admits(&exec, "a.example") && !admits(&build, "b.a.example"));
        let name = Name::parse("a.example").unwrap();
        assert!(queue.left(&build, &name).unwrap() > Duration::from_secs(50));
        assert_eq!(queue.left(&build, &Name::parse("listed.example").unwrap()), None);
        queue.ask(&build, &refused("late.example"));
        assert!(queue.grant(
            &NameRequest { phase: Phase::Build, name: "late.example".into() },
            clock::now_ms() - 1
        ));
        assert!(!admits(&build, "late.example"));
        assert_eq!(queue.left(&build, &Name::parse("late.example").unwrap()), Some(Duration::ZERO));
    }
}
