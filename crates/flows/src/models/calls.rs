//! What a sandbox's task calls while it runs: its agent's prompt, and models.

use std::sync::Arc;

use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::model::ModelSpend;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::models::ModelTurns;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::Sandbox;

use super::Models;
use super::gateway::CallGateway;
use super::prompt::{PromptRecord, prompt_begin, prompt_end};
use super::prompt_position::Prompts;
use crate::error::Result;
use crate::patience::patiently;

/// Turns and cost of the calls of one sandbox.
#[derive(Debug)]
pub(crate) struct CallTotals {
    pub turns: ModelTurns,
    pub spent: Vec<ModelSpend>,
}

/// The calls of one sandbox.
#[derive(Debug)]
pub(crate) struct Calls {
    gateway: Option<Arc<CallGateway>>,
    /// The prompts that calls belong to, where a driver of ours sends them.
    prompts: Option<Arc<Prompts>>,
    prompt: Option<PromptRecord>,
}

impl Calls {
    /// Before the first command: who decides about calls of models, and the agent's prompt on record.
    pub(crate) async fn begin(
        models: &Models,
        task: &TaskContext,
        sandbox: &Sandbox,
        agent: Option<&AgentWork>,
    ) -> Self {
        let spec = task.work.request().and_then(|request| request.models());
        let max_turns = agent.filter(|agent| agent.enforce).and_then(|agent| agent.max_turns);
        let is_piloted = spec.is_some() && matches!(task.work, Work::Opencode(_));
        let prompts = is_piloted.then(Arc::<Prompts>::default);
        let gateway = spec.map(|spec| {
            let agent = match is_piloted {
                true => Some("opencode"),
                false => agent.map(|agent| agent.agent_type.as_str()),
            };
            let (id, prompts) = (sandbox.id(), prompts.clone());
            Arc::new(CallGateway::new(models, task, id, spec, agent, prompts, max_turns))
        });
        if let Some(gateway) = &gateway {
            let own: Arc<CallGateway> = Arc::clone(gateway);
            sandbox.traffic().serve_models(own);
        }
        let prompt = match agent {
            Some(agent) => prompt_begin(&models.ledger, task, sandbox.id(), agent).await,
            None => None,
        };
        Self { gateway, prompts, prompt }
    }

    /// Who decides about calls of models.
    pub(crate) fn gateway(&self) -> Option<&Arc<CallGateway>> {
        self.gateway.as_ref()
    }

    /// The prompts that calls belong to, where a driver of ours sends them.
    pub(crate) fn prompts(&self) -> Option<&Arc<Prompts>> {
        self.prompts.as_ref()
    }

    /// After the last command: every call of a model has an end on record.
    pub(crate) async fn close(&self, sandbox: &Sandbox) {
        if let Some(gateway) = &self.gateway {
            sandbox.traffic().close().await;
            gateway.close().await;
        }
    }

    /// What they come to, once the last has its end; `None` where there are none, or the ledger does not say.
    pub(crate) async fn totals(&self, ledger: &Ledger, sandbox: &SandboxId) -> Option<CallTotals> {
        self.gateway.as_ref()?;
        let models = || ledger.models();
        let read = async || -> Result<CallTotals> {
            Ok(CallTotals {
                turns: patiently(|| models().turns(sandbox)).await?,
                spent: patiently(|| models().spent_in(sandbox)).await?,
            })
        };
        match read().await {
            Ok(taken) => Some(taken),
            Err(error) => {
                tracing::warn!(%error, %sandbox, "calls of models were not counted");
                None
            }
        }
    }

    /// What came of the agent's prompt.
    pub(crate) async fn end(&self, ledger: &Ledger, result: &SandboxResult) {
        if let Some(prompt) = &self.prompt {
            prompt_end(ledger, prompt, result).await;
        }
    }
}
