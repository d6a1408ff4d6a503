//! Plans of which an agent makes a part: what it may plan, and what becomes of its plan.

use super::Plan;
use crate::agent_plan::{AgentPlan, BUILDING};
use crate::error::{ErrorCode, Refusal};
use crate::work::{AgentRole, PlanTask, Work};

impl Plan {
    /// The tests that a draft's plan may name; `None`: it is no draft.
    #[must_use]
    pub fn draft_tests(&self) -> Option<&[PlanTask]> {
        match self.tasks.as_slice() {
            [PlanTask { work: Work::Opencode(work), .. }] => match &work.role {
                AgentRole::Plan { tests } => Some(tests),
                AgentRole::Build { .. } => None,
            },
            _ => None,
        }
    }

    /// The plan that a person approves: the draft's sandbox builds what the agent planned, then the tests run that the
    /// plan names, in the recipe's order.
    ///
    /// # Errors
    /// Where it is no draft.
    pub fn adopt(mut self, agent: AgentPlan, session: String) -> Result<Self, Refusal> {
        let none = || Refusal::new(ErrorCode::Internal, "the plan is not a draft");
        let tests = self.draft_tests().ok_or_else(none)?.to_vec();
        let Some(PlanTask { work: Work::Opencode(mut work), .. }) = self.tasks.pop() else {
            return Err(none());
        };
        let names = tests.iter().map(|test| test.name.clone()).collect();
        let plan = Box::new(agent.clone());
        work.role = AgentRole::Build { plan, session, tests: names };
        self.tasks = vec![PlanTask::of(BUILDING.to_owned(), Work::Opencode(work))];
        self.tasks.extend(tests.into_iter().filter(|test| agent.tests.contains(&test.name)));
        Ok(self)
    }

    /// What the agent planned, where it builds.
    #[must_use]
    pub fn agent(&self) -> Option<&AgentPlan> {
        match &self.tasks.first()?.work {
            Work::Opencode(work) => match &work.role {
                AgentRole::Build { plan, .. } => Some(plan),
                AgentRole::Plan { .. } => None,
            },
            _ => None,
        }
    }
}
