//! What was refused: counted by kind, bounded whatever a task tries.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cofferdam_contracts::sandbox::{Phase, Violation};

use super::policy::EgressRefusal;

/// Distinct refusals that are kept: far more than a person reads, little enough for a row.
const MAX_DISTINCT: usize = 200;
/// Refusals that a cause names.
const NAMED: usize = 3;

#[derive(Debug, Default)]
struct ViolationList {
    list: Vec<Violation>,
    at: HashMap<(Phase, String), usize>,
    unlisted: u64,
    total: u64,
}

/// The refusals of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<ViolationList>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, ViolationList> {
        // A panic elsewhere leaves counts that are still good.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, phase: Phase, refused: &EgressRefusal, now_ms: i64) {
        self.record_all(phase, refused, 1, now_ms);
    }

    /// So many of one kind; none is no violation.
    pub(crate) fn record_all(
        &self,
        phase: Phase,
        refused: &EgressRefusal,
        count: u64,
        now_ms: i64,
    ) {
        if count == 0 {
            return;
        }
        let mut counted = self.lock();
        counted.total = counted.total.saturating_add(count);
        let key = (phase, format!("{refused:?}"));
        if let Some(known) = counted.at.get(&key).copied() {
            if let Some(violation) = counted.list.get_mut(known) {
                violation.count = violation.count.saturating_add(count);
                violation.last_ms = now_ms;
            }
            return;
        }
        if counted.list.len() >= MAX_DISTINCT {
            counted.unlisted = counted.unlisted.saturating_add(count);
            return;
        }
        let index = counted.list.len();
        counted.at.insert(key, index);
        counted.list.push(Violation {
            phase,
            name: refused.name.clone(),
            address: refused.address.map(|address| address.to_string()),
            port: refused.port,
            why: refused.why,
            count,
            first_ms: now_ms,
            last_ms: now_ms,
        });
    }

    /// So many of which nothing is known.
    pub(crate) fn lost(&self, count: u64) {
        let mut counted = self.lock();
        counted.total = counted.total.saturating_add(count);
        counted.unlisted = counted.unlisted.saturating_add(count);
    }

    /// How many there were, listed or not.
    pub(crate) fn total(&self) -> u64 {
        self.lock().total
    }

    /// The list, and how many attempts are not on it.
    pub(crate) fn all(&self) -> (Vec<Violation>, u64) {
        let counted = self.lock();
        (counted.list.clone(), counted.unlisted)
    }
}

/// What a failed command should know about its phase's refusals.
pub(crate) fn in_words(violations: &[Violation], phase: Phase) -> Option<String> {
    let mut of_phase: Vec<&Violation> = violations.iter().filter(|v| v.phase == phase).collect();
    of_phase.sort_by_key(|violation| std::cmp::Reverse(violation.last_ms));
    let named: Vec<String> = of_phase.iter().take(NAMED).map(|violation| one(violation)).collect();
    if named.is_empty() {
        return None;
    }
    let more = of_phase.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Some(format!(
        "the network policy of the {} phase refused {}{more}",
        phase.as_str(),
        named.join(", ")
    ))
}

fn one(violation: &Violation) -> String {
    let what = violation.name.as_deref().or(violation.address.as_deref()).unwrap_or("a connection");
    let port = violation.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{what}{port} ({})", violation.why.in_words())
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::sandbox::ViolationReason;

    use super::*;

    #[test]
    fn equal_attempts_are_counted_and_distinct_ones_bounded() {
        let log = Log::default();
        for index in 0..300 {
            let refused =
                EgressRefusal::name(ViolationReason::Name, &format!("x{index}.example"), Some(443));
            log.record(Phase::Build, &refused, index);
            log.record(Phase::Build, &refused, index + 1);
        }
        let (list, unlisted) = log.all();
        assert_eq!((list.len(), unlisted, log.total()), (200, 200, 600));
        assert_eq!((list[7].count, list[7].first_ms, list[7].last_ms), (2, 7, 8));
        let said = in_words(&list, Phase::Build).unwrap();
        assert!(said.contains("x199.example:443") && said.contains("197 more"), "{said}");
        assert_eq!(in_words(&list, Phase::Exec), None);
    }

    #[test]
    fn a_name_cannot_carry_a_terminals_commands() {
        let refused = EgressRefusal::name(ViolationReason::Name, "a\u{1b}[2Jb\n", None);
        assert_eq!(refused.name.as_deref(), Some("a?[2Jb?"));
    }
}
