//! What a planner's calls need, looked at before its run: OpenCode itself would find out after a minute and a half.

use cofferdam_contracts::agent_plan::AgentSpec;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{ProviderName, TenantId};
use cofferdam_contracts::model::{ModelProtocol, ModelsSpec};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::models::ProviderRecord;
use serde_json::json;

use crate::error::Result;

/// How the planner's daemon calls.
const SPOKEN: ModelProtocol = ModelProtocol::OpenaiChat;

/// Refuses an agent whose model none of its providers offers in the protocol that it speaks.
pub(crate) async fn planner_admit(
    ledger: &Ledger,
    tenant: &TenantId,
    agent: &AgentSpec,
) -> Result<()> {
    let known = ledger.models().providers(tenant, &agent.models.providers).await?;
    Ok(offered(agent, &known)?)
}

/// The first provider of a spec that the tenant has not, by its place, and what to do about it.
pub(crate) fn unknown_provider(
    models: &ModelsSpec,
    known: &[ProviderRecord],
) -> Option<(usize, String)> {
    let is_known = |name: &ProviderName| known.iter().any(|known| known.provider.name == *name);
    let mut names = models.providers.iter().enumerate();
    let (index, name) = names.find(|(_, name)| !is_known(name))?;
    Some((index, format!("no provider {name} is known; add it: cofferdam model add {name}")))
}

fn offered(agent: &AgentSpec, known: &[ProviderRecord]) -> std::result::Result<(), Refusal> {
    let refuse = |field: &str, why: String| {
        let words = format!("plan.agent.{field}: {why}");
        Err(Refusal::new(ErrorCode::PolicyViolation, words).with(json!({"field": field})))
    };
    if let Some((index, why)) = unknown_provider(&agent.models, known) {
        return refuse(&format!("models.providers[{index}]"), why);
    }
    let model = agent.model.as_str();
    let is_offered = known.iter().any(|known| known.provider.price(SPOKEN, model).is_some());
    if !is_offered || !agent.models.allows(&agent.model) {
        let protocol = SPOKEN.as_str();
        let why = format!(
            "{model:?} is offered by none of its providers in {protocol}, which OpenCode speaks here"
        );
        return refuse("model", why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn tried(protocol: &str, providers: Value, model: &str) -> std::result::Result<(), String> {
        let agent = json!({"goal": "g", "project": "/p", "model": model,
            "models": {"providers": providers}});
        let provider = json!({"name": "main", "url": "https://a.example/v1",
            "protocols": [protocol], "models": [{"model": "coder"}]});
        let known = [ProviderRecord {
            provider: serde_json::from_value(provider).unwrap(),
            version: 1,
            private: false,
        }];
        offered(&serde_json::from_value(agent).unwrap(), &known).map_err(|no| no.message)
    }

    #[test]
    fn agents_b4_a_planner_whose_model_no_provider_offers_is_refused_before_its_run() {
        assert_eq!(tried("openai-chat", json!(["main"]), "coder"), Ok(()));
        for (protocol, providers, model, words) in [
            ("openai-chat", json!(["main", "other"]), "coder", "no provider other is known"),
            ("openai-chat", json!(["main"]), "opus", "\"opus\" is offered by none"),
            ("anthropic-messages", json!(["main"]), "coder", "in openai-chat"),
        ] {
            let why = tried(protocol, providers, model).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
