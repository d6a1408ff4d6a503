//! A run that somebody had retried goes on as itself: its workflow replays what it has recorded, its
//! failure included, and goes on behind that. Nothing that succeeded is done again, and nothing that was
//! decided is asked again.

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::run::Budget;
use cofferdam_ledger::gates::CurrentPlan;
use cofferdam_ledger::retries::Progress;
use dbos::step;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::compile::Card;
use crate::decide::{self, Next, Round};
use crate::flow::{Flow, step_error};
use crate::patience::patiently;
use crate::round::{blocked, stop_tasks};
use crate::workflow_context::WorkflowContext;

/// Where a workflow begins: at first, and behind each failure that somebody had retried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryPoint {
    /// There is no plan yet.
    Compile { attempt: u32 },
    /// Nobody consents to the plan: a no, silence and a void consent stay what they are, and the next
    /// round asks anew.
    Ask { round: u32 },
    /// What has not succeeded yet is attempted again.
    Execute { plan: Digest, budget: Budget, rest: PlanRemainder },
    /// The budget of the whole run is used up, so that it has ended again.
    Over { error: String },
}

/// What is left of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanRemainder {
    /// Attempts that its tasks have behind them.
    pub attempts: u32,
    /// Tasks that succeeded.
    pub ok: usize,
    /// The places of the others in the plan; `None`: all.
    pub tasks: Option<Vec<usize>>,
}

/// The law of going on, pure. `gated`: whether the plan needs a consent.
fn decide_begin(
    standing: &CurrentPlan,
    progress: &Progress,
    gated: bool,
    retry: u32,
) -> EntryPoint {
    let Some(plan) = standing.plan_digest.clone() else {
        return EntryPoint::Compile { attempt: retry + 1 };
    };
    let consent = standing.approval.as_ref().filter(|a| a.voided.is_none());
    let plan = match (gated, consent) {
        (true, None) => return EntryPoint::Ask { round: progress.last_round + 1 },
        (true, Some(consent)) => consent.facts.bindings.plan.clone(),
        (false, _) => plan,
    };
    let rest = PlanRemainder { attempts: progress.attempts, ok: 0, tasks: None };
    EntryPoint::Execute { plan, budget: standing.budget, rest }
}

/// The tasks of the plan that have not succeeded.
fn rest(plan: &Plan, progress: &Progress) -> PlanRemainder {
    let missing = |(index, task): (usize, &cofferdam_contracts::plan::PlanTask)| {
        (!progress.done.contains(&task.step_id())).then_some(index)
    };
    let tasks: Vec<usize> = plan.tasks.iter().enumerate().filter_map(missing).collect();
    let ok = plan.tasks.len() - tasks.len();
    PlanRemainder { attempts: progress.attempts, ok, tasks: Some(tasks) }
}

/// Where the run goes on behind its failure number `retry`, if somebody had it retried. How often that
/// was cannot change while its workflow runs, so every replay decides alike.
pub(crate) async fn begin(
    this: &WorkflowContext<'_>,
    card: Option<&Card>,
    retry: u32,
) -> Flow<Option<EntryPoint>> {
    if this.context().await?.retries < retry {
        return Ok(None);
    }
    let gated = card.is_some_and(|card| card.gate.is_some());
    let begin = step(&format!("retry#{retry}"), || begin_read(this, gated, retry)).await?;
    Ok(Some(begin))
}

async fn begin_read(this: &WorkflowContext<'_>, gated: bool, retry: u32) -> Flow<EntryPoint> {
    let ledger = this.ledger;
    let run = this.context().await?;
    let standing =
        patiently(|| ledger.gates().consent_standing(&run.id)).await.map_err(step_error)?;
    let progress = patiently(|| ledger.runs().progress(&run.id)).await.map_err(step_error)?;
    let begin = decide_begin(&standing, &progress, gated, retry);
    let EntryPoint::Execute { plan: digest, budget, .. } = begin else { return Ok(begin) };
    let plan = this.plan(&digest).await?;
    if let Some(blocked) = blocked(this.ledger, run, plan).await? {
        stop_tasks(this.ledger, run, &blocked).await?;
        let round = Round { blocked: Some(blocked), ..Round::none() };
        if let Next::Finish { status, error } = decide::after_round(&round, 1, &budget) {
            let output = json!({"blocked": round.blocked});
            this.close(status, error.as_deref(), &output).await?;
            return Ok(EntryPoint::Over { error: error.unwrap_or_default() });
        }
    }
    Ok(EntryPoint::Execute { rest: rest(plan, &progress), plan: digest, budget })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn standing(plan: Option<&str>) -> CurrentPlan {
        CurrentPlan {
            plan_digest: plan.map(|p| Digest::parse(&p.repeat(64)).unwrap()),
            budget: Budget::default(),
            timeout_ms: None,
            approval: None,
        }
    }

    fn progress() -> Progress {
        Progress { last_round: 1, attempts: 3, done: BTreeSet::new() }
    }

    #[test]
    fn f2_a_run_goes_on_at_its_first_step_without_success() {
        let begin = |plan, gated| decide_begin(&standing(plan), &progress(), gated, 2);
        assert_eq!(begin(None, true), EntryPoint::Compile { attempt: 3 });
        assert_eq!(begin(Some("a"), true), EntryPoint::Ask { round: 2 }, "a no stays a no");
        let EntryPoint::Execute { rest, .. } = begin(Some("a"), false) else {
            panic!("it executes")
        };
        assert_eq!(rest.attempts, 3, "the next attempt has a number of its own");
    }
}
