//! What a phase lists now, and what each flow of it was admitted to.
//!
//! ```text
//! flow:   lock its own list -> read what is listed now -> admit, note the name -> unlock
//! change: set what is listed -> lock the list of each flow, compare it -> end those with a name that is not listed as it was
//! ```
//! **A flow is either noted before a change looks at it, or admitted by what is listed after the change.**

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::policy::{Name, Rule, Rules};

/// What a phase lists. A long-lived sandbox's can be changed while it runs.
#[derive(Debug, Clone)]
pub(crate) struct PhaseRules(Arc<Mutex<Arc<Rules>>>);

impl PhaseRules {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        Self(Arc::new(Mutex::new(rules)))
    }

    /// What is listed at this moment.
    pub(crate) fn now(&self) -> Arc<Rules> {
        Arc::clone(&lock(&self.0))
    }

    /// From now on this is listed.
    pub(crate) fn set(&self, rules: Arc<Rules>) {
        *lock(&self.0) = rules;
    }
}

/// Names that one flow was admitted to, with the rule that admitted it.
#[derive(Debug, Clone, Default)]
pub(crate) struct FlowAdmissions(Arc<Mutex<Vec<(Name, Rule)>>>);

impl FlowAdmissions {
    /// Decides about a name and notes it, so that no change comes between the two.
    pub(crate) fn admit<E>(
        &self,
        decide: impl FnOnce() -> Result<(Name, Rule), E>,
    ) -> Result<(Name, Rule), E> {
        let mut noted = lock(&self.0);
        let admitted = decide()?;
        if !noted.contains(&admitted) {
            noted.push(admitted.clone());
        }
        Ok(admitted)
    }

    /// Whether these rules admit everything of it, and in the same way.
    pub(crate) fn is_within(&self, rules: &Rules) -> bool {
        let noted = lock(&self.0);
        noted
            .iter()
            .all(|(name, rule)| rules.find(name.as_str()).is_some_and(|(_, listed)| listed == rule))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves values that are still whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::policy::Wire;
    use cofferdam_contracts::egress::Phase;

    fn rules(names: &[&str]) -> Rules {
        let mut rules = Rules::new(Phase::Exec);
        for name in names {
            rules.allow(Name::parse(name).unwrap());
        }
        rules
    }

    fn admit(flow: &FlowAdmissions, rules: &Rules, name: &str) -> bool {
        let decide = || {
            let (name, rule) = rules.admit(name, 443, Wire::Tls)?;
            Ok::<_, crate::egress::policy::EgressRefusal>((name.clone(), rule.clone()))
        };
        flow.admit(decide).is_ok()
    }

    #[test]
    fn a_flow_stays_while_every_name_of_it_is_listed_as_it_was() {
        let (both, one, none) =
            (rules(&["a.example", "b.example"]), rules(&["a.example"]), rules(&[]));
        let flow = FlowAdmissions::default();
        assert!(flow.is_within(&none), "it has named nothing yet");
        assert!(admit(&flow, &both, "a.example") && flow.is_within(&one));
        assert!(admit(&flow, &both, "b.example") && flow.is_within(&both));
        assert!(!flow.is_within(&one) && !flow.is_within(&none));
        assert!(!admit(&flow, &one, "c.example"));
        let mut other = rules(&["b.example"]);
        other.allow_mirror(Name::parse("a.example").unwrap(), 8443, Wire::Tls, None);
        assert!(!flow.is_within(&other), "the name is listed in another way");
    }

    #[test]
    fn what_is_listed_changes_for_every_holder() {
        let listed = PhaseRules::new(Arc::new(rules(&["a.example"])));
        let held = listed.clone();
        listed.set(Arc::new(rules(&["b.example"])));
        assert!(held.now().find("a.example").is_none() && held.now().find("b.example").is_some());
    }
}
