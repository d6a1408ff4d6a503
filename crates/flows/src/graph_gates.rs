//! The gates of a run's graph while they wait.
//!
//! ```text
//! GraphAction::Ask --> a gate in the advance --reply, deadline--> GraphEvent::Answered --> an answer in the advance
//!                                            --GraphAction::Withdraw--> a gate that is open no more
//! ```
//! The answer is an event of the graph as an end is: a replay takes it again. The gate and its deadline are the ledger's.

use std::collections::BTreeSet;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::gate::{DEFAULT_TTL_S, plan_form};
use cofferdam_contracts::id::{GroupName, TaskKey};
use cofferdam_contracts::plan::{Plan, PlanGroup};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::graph_gates::NewStartGate;
use cofferdam_ledger::runs::RunContext;

use crate::decide;
use crate::error::Result;
use crate::graph::GraphEvent;
use crate::patience::patiently;

/// Gates that a life of a run waits at.
pub(crate) struct StartGates<'a> {
    run: &'a RunContext,
    plan: &'a Plan,
    asked: BTreeSet<GroupName>,
    /// When something is due at one of them, ms since the epoch.
    due_at: Option<i64>,
    /// What the run's row says of it, where this executor wrote it.
    is_parked: Option<bool>,
}

impl<'a> StartGates<'a> {
    pub(crate) fn new(run: &'a RunContext, plan: &'a Plan) -> Self {
        Self { run, plan, asked: BTreeSet::new(), due_at: None, is_parked: None }
    }

    /// The groups of the plan.
    fn groups(&self) -> impl Iterator<Item = &'a PlanGroup> {
        self.plan.graph.iter().flat_map(|graph| &graph.groups)
    }

    pub(crate) fn group(&self, name: &GroupName) -> Option<&'a PlanGroup> {
        self.groups().find(|group| group.name == *name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// A gate opens, bound to these attempts.
    pub(crate) fn ask(
        &mut self,
        group: &'a PlanGroup,
        task_keys: Vec<TaskKey>,
        at_ms: i64,
    ) -> Option<NewStartGate<'a>> {
        let spec = group.gate.as_ref()?;
        self.asked.insert(group.name.clone());
        // Looked at as soon as it is on record: an earlier life may have its answer.
        self.due_at = Some(at_ms);
        let run = self.run;
        let ttl_s = decide::gate_ttl_s(
            spec.deadline_s().unwrap_or(DEFAULT_TTL_S),
            run.began_at,
            at_ms,
            run.timeout_ms,
            &run.budget,
        );
        Some(NewStartGate {
            group_name: &group.name,
            key: &spec.key,
            spec,
            form: plan_form(),
            groups: spec.group.iter().collect(),
            task_keys,
            ttl_s,
        })
    }

    /// Its answer is taken, or none is awaited any more.
    pub(crate) fn close(&mut self, group: &GroupName) {
        self.asked.remove(group);
    }

    /// Until something is due.
    pub(crate) fn left(&self) -> Option<Duration> {
        let due = self.due_at.filter(|_| !self.asked.is_empty())?;
        let left = due.saturating_sub(clock::now_ms()).max(0);
        Some(Duration::from_millis(u64::try_from(left).unwrap_or(0)))
    }

    /// Whether the run waits for people alone, to be written where the plan has gates. `is_idle`: nothing of it is queued, runs, or
    /// is about to.
    pub(crate) fn waits(&self, is_idle: bool) -> Option<bool> {
        let has_gates = self.groups().any(|group| group.gate.is_some());
        has_gates.then_some(is_idle && !self.asked.is_empty())
    }

    /// The run's row says so.
    pub(crate) fn parked(&mut self, waits: Option<bool>) {
        self.is_parked = waits.or(self.is_parked);
    }

    /// What was decided since. `is_idle`: as of [`StartGates::waits`], where it is to be written.
    pub(crate) async fn look(
        &mut self,
        ledger: &Ledger,
        workflow: &str,
        is_idle: Option<bool>,
    ) -> Result<Vec<GraphEvent>> {
        let waits = is_idle.and_then(|is_idle| self.waits(is_idle));
        let news = waits.filter(|_| waits != self.is_parked);
        let run = self.run;
        let looking = || ledger.gates().start_answers(&run.id, workflow, run.retries, news);
        let look = patiently(looking).await?;
        self.parked(waits);
        let due_ms = look.due_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        self.due_at = due_ms.map(|ms| clock::now_ms().saturating_add(ms));
        let decided = look.decided.into_iter();
        let decided = decided.filter(|decided| self.asked.contains(&decided.group));
        Ok(decided
            .map(|decided| GraphEvent::Answered {
                group: decided.group,
                gate: decided.gate,
                choice: decided.choice,
                is_silence: decided.is_silence,
            })
            .collect())
    }
}
