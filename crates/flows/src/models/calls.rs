//! What a sandbox's task calls while it runs: its agent's prompt, and models.

use std::sync::Arc;

use cofferdam_contracts::dispatch::AgentWork;
use cofferdam_contracts::plan::Work;
use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::Sandbox;

use super::desk::CallDesk;
use super::prompt::{SentPrompt, prompt_begin, prompt_end};
use super::within::Prompts;
use crate::Flows;

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
        let desk = spec.map(|spec| {
            let planner = matches!(task.work, Work::Opencode(_));
            let agent = match planner {
                true => Some("opencode"),
                false => agent.map(|agent| agent.agent_type.as_str()),
            };
            let prompts = planner.then(Prompts::default);
            Arc::new(CallDesk::new(flows, task, sandbox.id(), spec, (agent, prompts)))
        });
        if let Some(desk) = &desk {
            let own: Arc<CallDesk> = Arc::clone(desk);
            sandbox.serve_models(own);
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
            sandbox.close_network().await;
            desk.close().await;
        }
    }

    /// What came of the agent's prompt.
    pub(crate) async fn end(&self, flows: &Flows, result: &SandboxResult) {
        if let Some(prompt) = &self.prompt {
            prompt_end(flows, prompt, result).await;
        }
    }
}
