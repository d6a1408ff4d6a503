//! What a sandbox's task calls while it runs: its agent's prompt, and models.

use std::sync::Arc;

use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::model::ModelSpent;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_ledger::models::ModelTurns;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::Sandbox;

use super::desk::CallDesk;
use super::prompt::{SentPrompt, prompt_begin, prompt_end};
use super::within::Prompts;
use crate::Flows;
use crate::error::Result;
use crate::patience::patiently;

/// What the calls of one sandbox come to.
#[derive(Debug)]
pub(crate) struct CallsTaken {
    pub turns: ModelTurns,
    pub spent: Vec<ModelSpent>,
}

/// The calls of one sandbox.
#[derive(Debug)]
pub(crate) struct Calls {
    desk: Option<Arc<CallDesk>>,
    prompt: Option<SentPrompt>,
}

impl Calls {
    /// Before the first command: who decides about calls of models, and the agent's prompt on record.
    pub(crate) async fn begin(
        flows: &Flows,
        task: &TaskContext,
        sandbox: &Sandbox,
        agent: Option<&AgentWork>,
    ) -> Self {
        let spec = task.work.request().and_then(|request| request.models());
        let max_turns = agent.filter(|agent| agent.enforce).and_then(|agent| agent.max_turns);
        let desk = spec.map(|spec| {
            let planner = matches!(task.work, Work::Opencode(_));
            let agent = match planner {
                true => Some("opencode"),
                false => agent.map(|agent| agent.agent_type.as_str()),
            };
            let prompts = planner.then(Prompts::default);
            Arc::new(CallDesk::new(flows, task, sandbox.id(), spec, agent, prompts, max_turns))
        });
        if let Some(desk) = &desk {
            let own: Arc<CallDesk> = Arc::clone(desk);
            sandbox.traffic().serve_models(own);
        }
        let prompt = match agent {
            Some(agent) => prompt_begin(flows, task, sandbox.id(), agent).await,
            None => None,
        };
        Self { desk, prompt }
    }

    /// Who decides about calls of models.
    pub(crate) fn desk(&self) -> Option<&Arc<CallDesk>> {
        self.desk.as_ref()
    }

    /// After the last command: every call of a model has an end on record.
    pub(crate) async fn close(&self, sandbox: &Sandbox) {
        if let Some(desk) = &self.desk {
            sandbox.traffic().close().await;
            desk.close().await;
        }
    }

    /// What they come to, once the last has its end; `None` where there are none, or the ledger does not say.
    pub(crate) async fn taken(&self, flows: &Flows, sandbox: &SandboxId) -> Option<CallsTaken> {
        self.desk.as_ref()?;
        let models = || flows.ledger.models();
        let read = async || -> Result<CallsTaken> {
            Ok(CallsTaken {
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
    pub(crate) async fn end(&self, flows: &Flows, result: &SandboxResult) {
        if let Some(prompt) = &self.prompt {
            prompt_end(flows, prompt, result).await;
        }
    }
}
