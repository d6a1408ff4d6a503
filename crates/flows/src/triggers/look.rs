//! Which instants of a schedule have come, and what becomes of each. Pure.

use std::collections::VecDeque;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::id::TriggerId;
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::schedule::{MissPolicy, Overlap, ScheduleSpec, Timetable};
use cofferdam_contracts::trigger::SkipReason;
use cofferdam_ledger::firings::NewFiring;
use cofferdam_ledger::triggers::NextInstant;

/// An instant that is older than this is missed. A takeover takes 5 s, and a database that is restarted is back within it.
pub(crate) const GRACE_MS: i64 = 30_000;
/// Instants of one look that are told apart; earlier ones are counted by a row before them.
pub(crate) const MAX_ROWS: usize = 100;
/// Firings of one schedule that wait; more are skipped.
pub(crate) const MAX_WAITING: i64 = 100;
/// Instants that a look counts one by one: a second's schedule has so many in 3 hours, a minute's in a week.
const MAX_STEPS: u32 = 10_000;
/// Where a look goes on whose schedule has more: beyond the longest jitter and the grace.
const HORIZON_MS: i64 = 2 * 3_600_000;

/// What a look takes down.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TriggerLook {
    pub firings: Vec<NewFiring>,
    pub next: Option<NextInstant>,
}

/// An instant with its jitter: a share of the longest one that is fixed by schedule and instant, the same for every worker.
pub(crate) fn instant(id: &TriggerId, spec: &ScheduleSpec, at_ms: i64) -> NextInstant {
    let most = spec.jitter.map_or(0, |jitter| jitter.ms());
    let drawn = digest_bytes(format!("{id}\n{at_ms}").as_bytes());
    let drawn =
        drawn.as_str().get(..12).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    let jitter = i64::try_from(drawn % (most + 1)).unwrap_or(0);
    NextInstant { at_ms, due_ms: at_ms.saturating_add(jitter) }
}

/// Instants that have come, the last ones of them.
#[derive(Default)]
struct DueInstants {
    last: VecDeque<NextInstant>,
    earlier: u32,
    is_cut: bool,
}

impl DueInstants {
    fn push(&mut self, instant: NextInstant) {
        self.last.push_back(instant);
        if self.last.len() > MAX_ROWS + 1 {
            self.last.pop_front();
            self.earlier += 1;
        }
    }
}

/// What becomes of a schedule's instants from `from_ms` on that have come by now. `waiting`: firings of it that wait already.
pub(crate) fn look(
    id: &TriggerId,
    spec: &ScheduleSpec,
    table: &Timetable,
    from_ms: i64,
    now_ms: i64,
    waiting: i64,
) -> TriggerLook {
    let (mut come, mut at, mut steps) = (DueInstants::default(), Some(from_ms), 0);
    let next = loop {
        let Some(found) = at.map(|at_ms| instant(id, spec, at_ms)) else { break None };
        if found.due_ms > now_ms {
            break Some(found);
        }
        come.push(found);
        steps += 1;
        let is_far = steps == MAX_STEPS && found.at_ms < now_ms - HORIZON_MS;
        come.is_cut |= is_far;
        at = table.next(if is_far { now_ms - HORIZON_MS } else { found.at_ms });
    };
    TriggerLook { firings: firings(&come, spec.missed, now_ms, waiting), next }
}

fn firings(come: &DueInstants, missed: MissPolicy, now_ms: i64, waiting: i64) -> Vec<NewFiring> {
    let is_late = |instant: &NextInstant| now_ms - instant.due_ms > GRACE_MS;
    let last_late = come.last.iter().rposition(is_late);
    let mut room = MAX_WAITING - waiting;
    let mut found = Vec::with_capacity(come.last.len());
    for (n, instant) in come.last.iter().enumerate() {
        let fires = match missed {
            _ if !is_late(instant) => true,
            MissPolicy::Skip => false,
            MissPolicy::Once => last_late == Some(n),
            // The row before these stands for earlier ones, too.
            MissPolicy::All => come.last.len() - n <= MAX_ROWS,
        };
        let skip = match (fires, room > 0) {
            (false, _) => Some(SkipReason::Missed),
            (true, false) => Some(SkipReason::QueueFull),
            (true, true) => None,
        };
        room -= i64::from(skip.is_none());
        let least = if come.is_cut { "at least " } else { "" };
        let detail = (n == 0 && come.earlier > 0)
            .then(|| format!("and {least}{} earlier instants", come.earlier));
        found.push(NewFiring { event: Instant::from_ms(instant.at_ms).to_string(), skip, detail });
    }
    found
}

/// Whether an instant that was taken down `age_ms` ago is missed by now. One that may catch up or wait is not.
pub(crate) fn is_missed(spec: &ScheduleSpec, age_ms: i64) -> bool {
    spec.missed == MissPolicy::Skip && spec.overlap == Overlap::Skip && age_ms > GRACE_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    fn id() -> TriggerId {
        TriggerId::parse(&format!("sc_{}", "0".repeat(32))).unwrap()
    }

    fn seen(
        cron: &str,
        missed: MissPolicy,
        from_ms: i64,
        now_ms: i64,
        waiting: i64,
    ) -> TriggerLook {
        let spec = ScheduleSpec { missed, overlap: Overlap::Queue, ..ScheduleSpec::of(cron) };
        let table = Timetable::new(&spec).unwrap();
        look(&id(), &spec, &table, from_ms, now_ms, waiting)
    }

    fn fired(look: &TriggerLook) -> Vec<&str> {
        let fires = look.firings.iter().filter(|firing| firing.skip.is_none());
        fires.map(|firing| &firing.event[11..19]).collect()
    }

    #[test]
    fn an_instant_that_has_come_fires_and_the_next_one_waits() {
        let look = seen("* * * * *", MissPolicy::Skip, MINUTE, MINUTE + 5, 0);
        assert_eq!(fired(&look), ["00:01:00"]);
        assert_eq!(look.next, Some(NextInstant { at_ms: 2 * MINUTE, due_ms: 2 * MINUTE }));
        let early = seen("* * * * *", MissPolicy::Skip, MINUTE, MINUTE - 1, 0);
        assert_eq!((early.firings.len(), early.next.unwrap().at_ms), (0, MINUTE));
    }

    #[test]
    fn what_was_missed_goes_by_its_policy_and_is_on_record() {
        let now = 5 * MINUTE + 10_000;
        for (missed, fires) in [
            (MissPolicy::Skip, vec!["00:05:00"]),
            (MissPolicy::Once, vec!["00:04:00", "00:05:00"]),
            (MissPolicy::All, vec!["00:01:00", "00:02:00", "00:03:00", "00:04:00", "00:05:00"]),
        ] {
            let look = seen("* * * * *", missed, MINUTE, now, 0);
            assert_eq!(fired(&look), fires);
            assert_eq!(look.firings.len(), 5, "each instant has a row");
            assert_eq!(look.next.unwrap().at_ms, 6 * MINUTE);
        }
    }

    #[test]
    fn many_missed_instants_have_a_bound_and_a_count() {
        let now = 1_000 * MINUTE + 40_000;
        let look = seen("* * * * *", MissPolicy::All, MINUTE, now, 0);
        assert_eq!((look.firings.len(), fired(&look).len()), (MAX_ROWS + 1, MAX_ROWS));
        assert_eq!(look.firings[0].detail.as_deref(), Some("and 899 earlier instants"));
        assert_eq!(look.next.unwrap().at_ms, 1_001 * MINUTE);
        // One more than may run, and none before it.
        let look = seen("* * * * *", MissPolicy::All, 900 * MINUTE, now, 0);
        assert_eq!((look.firings.len(), fired(&look).len()), (MAX_ROWS + 1, MAX_ROWS));
        assert_eq!(look.firings[0].detail, None);
    }

    #[test]
    fn a_year_of_seconds_is_looked_at_in_bounded_steps() {
        let year = 365 * 24 * 60 * MINUTE;
        let look = seen("* * * * * *", MissPolicy::Once, 1_000, year, 0);
        assert_eq!(look.firings.len(), MAX_ROWS + 1);
        assert!(look.firings[0].detail.as_deref().unwrap().starts_with("and at least "));
        assert_eq!(look.next.unwrap().at_ms, year + 1_000);
    }

    #[test]
    fn no_more_wait_than_may() {
        let look = seen("* * * * *", MissPolicy::All, MINUTE, 5 * MINUTE, MAX_WAITING - 2);
        assert_eq!(fired(&look).len(), 2);
        assert_eq!(look.firings[4].skip, Some(SkipReason::QueueFull));
    }

    #[test]
    fn an_instant_taken_down_is_missed_after_its_grace_unless_it_may_catch_up() {
        let spec = |text: &str| serde_json::from_str::<ScheduleSpec>(text).unwrap();
        let skips = spec(r#""* * * * *""#);
        assert!(!is_missed(&skips, GRACE_MS) && is_missed(&skips, GRACE_MS + 1));
        for kept in ["\"missed\": \"once\"", "\"overlap\": \"queue\""] {
            let spec = spec(&format!("{{\"cron\": \"* * * * *\", {kept}}}"));
            assert!(!is_missed(&spec, 10 * GRACE_MS), "{kept}");
        }
    }

    #[test]
    fn jitter_is_fixed_and_within_its_bound() {
        let spec = serde_json::from_str(r#"{"cron": "* * * * *", "jitter": "30s"}"#).unwrap();
        let draws: Vec<i64> = (0..100)
            .map(|n| {
                let drawn = instant(&id(), &spec, n * MINUTE);
                assert_eq!(drawn, instant(&id(), &spec, n * MINUTE));
                drawn.due_ms - drawn.at_ms
            })
            .collect();
        assert!(draws.iter().all(|jitter| (0..=30_000).contains(jitter)), "{draws:?}");
        assert!(
            draws.iter().max() > Some(&20_000) && draws.iter().min() < Some(&10_000),
            "{draws:?}"
        );
    }
}
