//! One execution of a run's workflow, and what it has read of its run.

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::run::RunStatus;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::runs::RunContext;
use tokio::sync::OnceCell;

use crate::compile::{self, CompileHost};
use crate::error::Error;
use crate::executor::Executor;
use crate::flow::{Flow, FlowError, step_error};
use crate::patience::patiently;

/// One execution of the workflow.
pub(crate) struct WorkflowContext<'a> {
    pub executor: &'a Executor,
    pub ledger: &'a Ledger,
    pub workflow: &'a str,
    /// What the run was started with. It never changes, so the first step that needs it reads it
    /// for all of them; a replay may begin with any step.
    context: OnceCell<RunContext>,
    /// The plan and its digest, once this execution has seen them.
    pub plan: OnceCell<(Digest, Plan)>,
}

impl<'a> WorkflowContext<'a> {
    pub(crate) fn new(executor: &'a Executor, workflow: &'a str) -> Self {
        Self {
            executor,
            ledger: &executor.flows.ledger,
            workflow,
            context: OnceCell::new(),
            plan: OnceCell::new(),
        }
    }

    pub(crate) async fn context(&self) -> Flow<&RunContext> {
        self.context
            .get_or_try_init(|| async {
                patiently(|| self.ledger.runs().context(self.workflow))
                    .await
                    .map_err(step_error)?
                    .ok_or_else(|| self.missing())
            })
            .await
    }

    /// What compiling a plan takes of this worker's host.
    pub(crate) fn compile_host(&self) -> CompileHost<'a> {
        let runs = &self.executor.flows.runs;
        let allowed = &self.executor.host.facts().allowed;
        let names = &self.executor.names;
        CompileHost { allowed, admission: &runs.admission, trees: &runs.trees, names }
    }

    /// Keeps what CompileST read of the run, which saves the next step that read.
    pub(crate) fn cache_context(&self, run: RunContext) {
        let _ = self.context.set(run);
    }

    pub(crate) fn missing(&self) -> dbos::Error<FlowError> {
        let error = format!("no run of workflow {}", self.workflow);
        dbos::Error::Application(FlowError::Step(error))
    }

    /// The plan of this digest: what this execution compiled itself, or what CompileST left.
    pub(crate) async fn plan(&self, digest: &Digest) -> Flow<&Plan> {
        let (seen, plan) = self
            .plan
            .get_or_try_init(|| async {
                let run = self.context().await?;
                let plan = patiently(|| compile::plan_read(self.ledger, run, digest)).await;
                Flow::Ok((digest.clone(), plan.map_err(step_error)?))
            })
            .await?;
        match seen == digest {
            true => Ok(plan),
            false => Err(step_error(Error::Corrupt {
                what: "plan digest",
                why: "it changed while the run went on".into(),
            })),
        }
    }

    pub(crate) async fn close(
        &self,
        status: RunStatus,
        error: Option<&str>,
        output: &serde_json::Value,
    ) -> Flow<bool> {
        let run = self.context().await?;
        let is_dispatch = run.is_dispatch();
        patiently(|| {
            self.ledger.runs().finish(&run.id, status, error, "ExecuteST", output, is_dispatch)
        })
        .await
        .map_err(step_error)
    }
}
