//! The decisions of a run, pure: no clock, no randomness, no IO.
//!
//! | decided elsewhere, as purely | where |
//! |---|---|
//! | what a reply to a gate comes to, and who may answer | `contracts::reply`, `contracts::tally` |
//! | which egress names a run may use, and whose consent that is | `egress::snapshots` |
//! | whether what was approved is what would run | `contracts::consent::differences` |
//! | how the phases of a task add up to its result | `verdict` |
//! | where a retried run goes on | `retry_entry` |
//! | which cached bases are evicted | `evict` |
//! | how an agent's dispatch ended | `contracts::dispatch` |

use cofferdam_contracts::consent::Difference;
use cofferdam_contracts::duration::Duration;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::recipe::{Caps, Recipe};
use cofferdam_contracts::run::{Budget, RunStatus, Workload};
use cofferdam_contracts::sandbox::ErrCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Attempts of a task when its budget does not say: the first and two more.
pub const MAX_ATTEMPTS: u32 = 3;
/// Pause before the second attempt; each further one waits four times as long.
pub const FIRST_BACKOFF_MS: u64 = 250;
/// Physical starts of one attempt: a task that takes its worker down ten times is not started again.
pub const MAX_EXECUTIONS: i32 = 10;

/// A task of a round that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Miss {
    /// Its place in the plan.
    pub index: usize,
    /// Name of the task in the plan; the run's error quotes it.
    pub name: String,
    /// How it ended.
    pub err_code: ErrCode,
    /// Why, in words.
    pub cause: Option<String>,
    /// Whether another attempt would end the same.
    #[serde(default)]
    pub permanent: bool,
}

/// What came of one round of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Tasks that succeeded.
    pub ok: usize,
    /// The others, in the order of the plan.
    pub missed: Vec<Miss>,
    /// A budget that stopped the round.
    pub blocked: Option<BudgetExcess>,
    /// The consent no longer held, so that nothing was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Vec<Difference>>,
    /// How the run ended by it, where its tasks are a graph: there is one round of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<GraphOutcome>,
}

impl Round {
    /// Nothing was started.
    #[must_use]
    pub const fn none() -> Self {
        Self { ok: 0, missed: Vec::new(), blocked: None, drift: None, over: None }
    }
}

/// How a run ended whose tasks are a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOutcome {
    /// The status that the run ends with.
    pub status: RunStatus,
    /// Why it did not succeed.
    pub error: Option<String>,
    /// Tasks that failed, or were stopped.
    pub failed: usize,
    /// Tasks that were not started.
    pub skipped: usize,
}

/// A budget that was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetExcess {
    /// The exceeded metric, such as `sandbox_minutes`.
    pub metric: String,
    /// Bound from the budget or the recipe's caps, in the unit of `metric`.
    pub limit: u64,
    /// What was seen.
    pub observed: u64,
}

impl BudgetExcess {
    /// Why a run ended by it, for a person.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { metric, limit, observed } = self;
        match metric.as_str() {
            "wall_clock_ms" => {
                let limit = Duration::from_ms(*limit);
                format!("budget reached: the run took longer than the {limit} that it was given")
            }
            _ => format!("budget reached: {metric} is {limit}, observed {observed}"),
        }
    }
}

/// What follows a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Try these tasks again after a pause.
    Again {
        /// Their places in the plan.
        tasks: Vec<usize>,
        /// Wait before the next round in ms: 250, then four times longer each time.
        backoff_ms: u64,
    },
    /// The run is over.
    Finish {
        /// Terminal status of the run.
        status: RunStatus,
        /// Why, where it did not succeed.
        error: Option<String>,
    },
}

/// Attempts that a run allows each of its tasks.
#[must_use]
pub fn attempts(budget: &Budget) -> u32 {
    budget.max_retries_per_step.map_or(MAX_ATTEMPTS, |retries| retries + 1)
}

/// What follows round `attempt` (from 1). Only faults of the host and its network are tried again, and
/// of those none that the host would repeat: such a refusal fails the run at once, and `retries_exceeded` means that
/// every attempt was used;
/// a task that failed by itself fails its run at once, so no attempt is spent on a lost cause.
#[must_use]
pub fn after_round(round: &Round, attempt: u32, budget: &Budget) -> Next {
    if let Some(over) = &round.over {
        return Next::Finish { status: over.status, error: over.error.clone() };
    }
    if let Some(b) = &round.blocked {
        return Next::Finish { status: RunStatus::Failed, error: Some(b.words()) };
    }
    if round.missed.is_empty() {
        return Next::Finish { status: RunStatus::Succeeded, error: None };
    }
    if let Some(final_miss) = round.missed.iter().find(|m| !m.err_code.is_retryable()) {
        let error = describe(final_miss, round.missed.len());
        return Next::Finish { status: RunStatus::Failed, error: Some(error) };
    }
    if attempts(budget) == 1 {
        // No retry was allowed, so none was used up.
        let error = round.missed.first().map(|m| describe(m, round.missed.len()));
        return Next::Finish { status: RunStatus::Failed, error };
    }
    if attempt < attempts(budget)
        && let Some(refused) = round.missed.iter().find(|m| m.permanent)
    {
        // Attempts are left and not used: nothing was exceeded.
        let why = describe(refused, round.missed.len());
        let error = Some(format!("{why}; another attempt would end the same"));
        return Next::Finish { status: RunStatus::Failed, error };
    }
    if attempt >= attempts(budget) {
        let error = round
            .missed
            .first()
            .map(|m| format!("{} after {attempt} attempts", describe(m, round.missed.len())));
        return Next::Finish { status: RunStatus::RetriesExceeded, error };
    }
    Next::Again {
        tasks: round.missed.iter().map(|m| m.index).collect(),
        backoff_ms: FIRST_BACKOFF_MS << (2 * (attempt - 1)).min(16),
    }
}

fn describe(miss: &Miss, of: usize) -> String {
    let more = if of > 1 { format!(" (and {} more)", of - 1) } else { String::new() };
    let cause = miss.cause.as_deref().map(|c| format!(": {c}")).unwrap_or_default();
    format!("task {:?} ended with {}{cause}{more}", miss.name, miss.err_code.as_str())
}

/// A budget that usage has reached, if any. Times in milliseconds, sizes in bytes.
#[must_use]
pub fn over_budget(
    budget: &Budget,
    caps: &Caps,
    used_ms: u64,
    used_bytes: u64,
) -> Option<BudgetExcess> {
    let minutes = used_ms.div_ceil(60_000);
    let limit = budget.max_sbx_minutes.unwrap_or(caps.sandbox_minutes).min(caps.sandbox_minutes);
    if minutes > u64::from(limit) {
        return Some(BudgetExcess {
            metric: "sandbox_minutes".into(),
            limit: limit.into(),
            observed: minutes,
        });
    }
    let mb = used_bytes.div_ceil(1024 * 1024);
    match budget.max_artifacts_mb {
        Some(limit) if mb > u64::from(limit) => {
            Some(BudgetExcess { metric: "artifacts_mb".into(), limit: limit.into(), observed: mb })
        }
        _ => None,
    }
}

/// The fan-out that a budget forbids, if it does.
#[must_use]
pub fn over_fanout(budget: &Budget, tasks: usize) -> Option<BudgetExcess> {
    let observed = u64::try_from(tasks).unwrap_or(u64::MAX);
    let limit = u64::from(budget.max_fanout?);
    (observed > limit).then(|| BudgetExcess { metric: "fanout".into(), limit, observed })
}

/// The queue's law at ingress: what a caller announces must fit the recipe's caps and its own budget.
pub fn queue_policy(
    caps: &Caps,
    workload: Option<&Workload>,
    budget: Option<&Budget>,
    timeout_ms: Option<u64>,
) -> Result<(), Refusal> {
    let workload = workload.copied().unwrap_or_default();
    let budget = budget.copied().unwrap_or_default();
    let checks = [
        ("workload.concurrency", workload.concurrency, Some(caps.concurrency)),
        ("workload.steps", workload.steps, Some(caps.steps)),
        ("workload.steps", workload.steps, budget.max_fanout),
        ("workload.sandboxMinutes", workload.sandbox_minutes, Some(caps.sandbox_minutes)),
        ("workload.sandboxMinutes", workload.sandbox_minutes, budget.max_sbx_minutes),
        ("budget.maxFanout", budget.max_fanout, Some(caps.steps)),
        ("budget.maxSBXMinutes", budget.max_sbx_minutes, Some(caps.sandbox_minutes)),
    ];
    for (metric, observed, limit) in checks {
        if let (Some(observed), Some(limit)) = (observed, limit)
            && observed > limit
        {
            return Err(over(metric, limit.into(), observed.into()));
        }
    }
    if let (Some(observed), Some(limit)) = (timeout_ms, budget.max_wall_clock_ms)
        && observed > limit
    {
        return Err(over("timeoutMS", limit, observed));
    }
    Ok(())
}

fn over(metric: &str, limit: u64, observed: u64) -> Refusal {
    Refusal::new(
        ErrorCode::QueuePolicyViolation,
        format!("{metric} is {observed}, the limit is {limit}"),
    )
    .with(json!({"metric": metric, "limit": limit, "observed": observed}))
}

/// When a run must be over, ms since the epoch.
#[must_use]
pub fn deadline(created_at: i64, timeout_ms: Option<u64>, budget: &Budget) -> Option<i64> {
    let ms = match (timeout_ms, budget.max_wall_clock_ms) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }?;
    Some(created_at.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
}

/// How long a gate waits: what was asked for, but never beyond the run's own deadline, whose budget
/// counts gates too. At least a second, since a gate that cannot be answered is none.
#[must_use]
pub fn gate_ttl_s(
    asked_s: u32,
    created_at: i64,
    now: i64,
    timeout_ms: Option<u64>,
    budget: &Budget,
) -> u32 {
    let left_s = deadline(created_at, timeout_ms, budget).map(|d| (d - now).max(0) / 1000 + 1);
    left_s
        .and_then(|left| u32::try_from(left).ok())
        .map_or(asked_s, |left| asked_s.min(left.max(1)))
}

/// How long a wait listens before it reminds, or to its end.
#[must_use]
pub fn slice_ms(left_ms: u64, pause_ms: Option<u64>) -> u64 {
    match pause_ms {
        Some(pause) if pause > 0 && pause < left_ms => pause,
        _ => left_ms,
    }
}

/// Whether a cache that names this organisation is the tenant's.
pub(crate) fn is_own_cache(org: Option<&str>, tenant: &TenantId) -> bool {
    org.is_none_or(|org| org == tenant.as_str())
}

/// Refuses a recipe that names another tenant's cache: before anything is written.
pub(crate) fn own_caches(recipe: &Recipe, tenant: &TenantId) -> Result<(), Refusal> {
    for (index, task) in recipe.plan.tasks.iter().enumerate() {
        let Some((said, cache)) = task.said_cache() else { continue };
        let org = cache.org.as_deref();
        if !is_own_cache(org, tenant) {
            let field = format!("plan.tasks[{index}].{said}.org");
            let why = format!("{field}: {org:?} is not the key's tenant");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field})));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn miss(code: ErrCode) -> Miss {
        Miss { index: 3, name: "t".into(), err_code: code, cause: None, permanent: false }
    }

    fn round(missed: Vec<Miss>) -> Round {
        Round { ok: 1, missed, ..Round::none() }
    }

    #[test]
    fn a_whole_round_succeeds() {
        let next = after_round(&round(vec![]), 1, &Budget::default());
        assert_eq!(next, Next::Finish { status: RunStatus::Succeeded, error: None });
    }

    #[test]
    fn faults_of_the_host_are_tried_three_times_with_growing_pauses() {
        let r = round(vec![miss(ErrCode::BootFail)]);
        let pauses: Vec<Next> = (1..=3).map(|a| after_round(&r, a, &Budget::default())).collect();
        assert_eq!(pauses[0], Next::Again { tasks: vec![3], backoff_ms: 250 });
        assert_eq!(pauses[1], Next::Again { tasks: vec![3], backoff_ms: 1_000 });
        assert!(matches!(pauses[2], Next::Finish { status: RunStatus::RetriesExceeded, .. }));
    }

    #[test]
    fn a_task_that_failed_by_itself_is_not_tried_again() {
        for code in [ErrCode::CmdNonzero, ErrCode::Timeout, ErrCode::Oom] {
            let r = round(vec![miss(ErrCode::NetFail), miss(code)]);
            assert!(matches!(
                after_round(&r, 1, &Budget::default()),
                Next::Finish { status: RunStatus::Failed, .. }
            ));
        }
    }

    #[test]
    fn i1_what_a_host_refuses_is_not_asked_of_it_again() {
        let refused = Miss { permanent: true, ..miss(ErrCode::UploadFail) };
        let round = round(vec![miss(ErrCode::BootFail), refused]);
        let Next::Finish { status, error } = after_round(&round, 1, &Budget::default()) else {
            panic!("it is tried again")
        };
        assert_eq!(status, RunStatus::Failed, "attempts were left");
        assert!(error.unwrap().contains("UPLOAD_FAIL"));
        // Refused at the last of several: they are used up.
        let Next::Finish { status, .. } = after_round(&round, 3, &Budget::default()) else {
            panic!("it is tried again")
        };
        assert_eq!(status, RunStatus::RetriesExceeded);
    }

    #[test]
    fn a_budget_of_no_retries_ends_at_the_first_fault() {
        let budget = Budget { max_retries_per_step: Some(0), ..Budget::default() };
        let next = after_round(&round(vec![miss(ErrCode::BootFail)]), 1, &budget);
        let Next::Finish { status, error } = next else { panic!("it is tried again") };
        assert_eq!(status, RunStatus::Failed, "nothing was tried again");
        assert!(!error.unwrap().contains("attempts"));
    }

    #[test]
    fn a_run_that_was_tried_once_has_exceeded_no_retries() {
        let budgets = (0..=10).map(Some).chain([None]);
        for max_retries_per_step in budgets {
            let budget = Budget { max_retries_per_step, ..Budget::default() };
            for (code, permanent) in
                ErrCode::ALL.iter().flat_map(|code| [(*code, false), (*code, true)])
            {
                let missed = vec![Miss { permanent, ..miss(code) }, miss(ErrCode::NetFail)];
                let next = after_round(&round(missed), 1, &budget);
                let exceeded =
                    matches!(next, Next::Finish { status: RunStatus::RetriesExceeded, .. });
                assert!(!exceeded, "{budget:?} {code:?} {permanent}");
            }
        }
    }

    #[test]
    fn a_gate_waits_no_longer_than_its_run_may() {
        let budget = Budget { max_wall_clock_ms: Some(5_000), ..Budget::default() };
        assert_eq!(gate_ttl_s(3_600, 0, 2_000, None, &budget), 4);
        assert_eq!(gate_ttl_s(2, 0, 2_000, None, &budget), 2);
        assert_eq!(gate_ttl_s(3_600, 0, 9_000, None, &budget), 1);
        assert_eq!(gate_ttl_s(3_600, 0, 9_000, None, &Budget::default()), 3_600);
    }

    #[test]
    fn a_wait_is_cut_into_reminders_and_a_rest() {
        let mut left = 3_600_000;
        let mut slices = Vec::new();
        while left > 0 {
            slices.push(slice_ms(left, Some(1_500_000)));
            left -= slices.last().unwrap();
        }
        assert_eq!(slices, [1_500_000, 1_500_000, 600_000]);
        assert_eq!(slice_ms(60, None), 60);
        assert_eq!(slice_ms(60, Some(60)), 60);
        assert_eq!(slice_ms(60, Some(0)), 60);
    }

    #[test]
    fn over_caps_names_metric_limit_and_observed() {
        let caps = Caps::default();
        let load = Workload { steps: Some(257), ..Workload::default() };
        let refusal = queue_policy(&caps, Some(&load), None, None).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::QueuePolicyViolation);
        assert_eq!(refusal.details.unwrap()["limit"], 256);
        assert!(queue_policy(&caps, None, None, None).is_ok());
    }

    #[test]
    fn a_reached_budget_is_said_in_words() {
        let of =
            |metric: &str| BudgetExcess { metric: metric.into(), limit: 2_000, observed: 2_012 };
        let words = "budget reached: the run took longer than the 2s that it was given";
        assert_eq!(of("wall_clock_ms").words(), words);
        assert_eq!(of("steps").words(), "budget reached: steps is 2000, observed 2012");
    }

    #[test]
    fn the_nearer_of_timeout_and_budget_is_the_deadline() {
        let budget = Budget { max_wall_clock_ms: Some(50), ..Budget::default() };
        assert_eq!(deadline(100, Some(80), &budget), Some(150));
        assert_eq!(deadline(100, None, &Budget::default()), None);
    }

    #[test]
    fn a_recipe_that_names_another_tenants_cache_is_refused_by_the_field() {
        let yaml = "id: t\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      cache: {org: acme, repo: r, paths: [l]}\n      build: {run: b}\n      exec: {run: e}\n";
        let recipe = Recipe::from_yaml("t.yaml", yaml).unwrap();
        let tenant = |text| TenantId::parse(text).unwrap();
        assert!(own_caches(&recipe, &tenant("acme")).is_ok());
        let refusal = own_caches(&recipe, &tenant("zenith")).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::PolicyViolation);
        assert!(refusal.message.starts_with("plan.tasks[0].cache.org"), "{}", refusal.message);
        assert!(
            is_own_cache(None, &tenant("acme")) && !is_own_cache(Some("Acme"), &tenant("acme"))
        );
    }
}
