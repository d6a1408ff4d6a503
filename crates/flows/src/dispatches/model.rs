//! Which model an agent is started with: the one that was asked for, or the first of its providers that speaks as it does.
//!
//! What no call could reach is refused at the spawn: an agent that finds out by itself takes minutes.

use std::path::Path;

use cofferdam_contracts::dispatch::{AgentType, SpawnRequest};
use cofferdam_contracts::error::Refusal;
use cofferdam_contracts::id::{ModelName, TenantId};
use cofferdam_contracts::model::{ModelProtocol, ModelsSpec};
use cofferdam_contracts::sandbox::SandboxSpec;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::models::ProviderRecord;

use super::agents::HOME;
use super::tools::refusal;
use crate::error::Result;
use crate::models::unknown_provider;

/// Where agents look up the provider that we write for them.
pub(crate) const PROVIDER: &str = "cofferdam";

/// A model that an agent is started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentModel {
    /// As calls name it.
    pub name: ModelName,
    /// How the agent calls it.
    pub protocol: ModelProtocol,
}

/// The protocols that an agent speaks, the one that it speaks best first.
const fn spoken(agent: AgentType) -> &'static [ModelProtocol] {
    use ModelProtocol::{AnthropicMessages, OpenaiChat, OpenaiResponses};
    match agent {
        AgentType::Codex => &[OpenaiResponses],
        AgentType::Claude => &[AnthropicMessages],
        AgentType::Opencode => &[OpenaiChat, OpenaiResponses, AnthropicMessages],
        AgentType::Command => &[],
    }
}

/// Whether the caller gives the agent a home, and with it the agent's own configuration.
pub(crate) fn is_configured(spec: &SandboxSpec) -> bool {
    spec.mounts.iter().flatten().any(|mount| Path::new(&mount.target).starts_with(HOME))
}

/// The model of a dispatch that calls by the endpoint; `None` where it names no `models`, or configures its agent itself.
pub(crate) async fn chosen(
    ledger: &Ledger,
    tenant: &TenantId,
    request: &SpawnRequest,
    spec: &SandboxSpec,
) -> Result<Option<AgentModel>> {
    let Some(models) = &spec.models else { return Ok(None) };
    let known = ledger.models().providers(tenant, &models.providers).await?;
    if let Some((index, why)) = unknown_provider(models, &known) {
        let field = format!("sandbox_spec.models.providers[{index}]");
        return Err(refusal(&field, &why).into());
    }
    if request.agent_type == AgentType::Command || is_configured(spec) {
        return Ok(None);
    }
    Ok(Some(choose(request, models, &known)?))
}

/// The model, from the providers as they are.
fn choose(
    request: &SpawnRequest,
    models: &ModelsSpec,
    known: &[ProviderRecord],
) -> std::result::Result<AgentModel, Refusal> {
    let agent = request.agent_type;
    // What opencode itself would call it.
    let wanted = request.model.as_deref();
    let bare = |name| str::strip_prefix(name, PROVIDER)?.strip_prefix('/');
    let wanted = wanted.map(|name| bare(name).unwrap_or(name));
    let mut offered: Vec<(&ModelName, ModelProtocol)> = Vec::new();
    for protocol in spoken(agent) {
        let speak = known.iter().filter(|known| known.provider.protocols.contains(protocol));
        let names = speak.flat_map(|known| &known.provider.models).map(|price| &price.model);
        offered.extend(names.filter(|name| models.allows(name)).map(|name| (name, *protocol)));
    }
    let mut fits = offered.iter();
    let fit = fits.find(|(name, _)| wanted.is_none_or(|wanted| name.as_str() == wanted));
    if let Some((name, protocol)) = fit {
        return Ok(AgentModel { name: (*name).clone(), protocol: *protocol });
    }
    let protocols: Vec<&str> = spoken(agent).iter().map(|protocol| protocol.as_str()).collect();
    let (kind, protocols) = (agent.as_str(), protocols.join(" or "));
    let mut listed: Vec<&str> = offered.iter().map(|(name, _)| name.as_str()).collect();
    listed.dedup();
    match (wanted, listed.as_slice()) {
        (Some(wanted), [_, ..]) => {
            let listed = listed.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
            let why = format!("{kind} may not call {wanted:?}; its providers offer {listed}");
            Err(refusal("model", &why))
        }
        _ => {
            let why = format!(
                "{kind} speaks {protocols}, and none of the providers offers a model of the spec in it"
            );
            Err(refusal("sandbox_spec.models", &why))
        }
    }
}

/// Models that a refusal lists.
const MAX_LISTED: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn known(name: &str, protocols: &[&str], models: &[&str]) -> ProviderRecord {
        let models: Vec<Value> = models.iter().map(|model| json!({"model": model})).collect();
        let provider = json!({"name": name, "url": "https://a.example/v1", "protocols": protocols,
            "models": models});
        ProviderRecord {
            provider: serde_json::from_value(provider).unwrap(),
            version: 1,
            private: false,
        }
    }

    fn tried(agent: &str, model: Option<&str>, spec: Value) -> std::result::Result<String, String> {
        let mut request = json!({"agent_type": agent, "prompt": "p", "project_dir": "/p"});
        if let Some(model) = model {
            request["model"] = json!(model);
        }
        let spec: ModelsSpec = serde_json::from_value(spec).unwrap();
        let known = [
            known("a", &["anthropic-messages"], &["sonnet", "haiku"]),
            known("b", &["openai-responses", "openai-chat"], &["big"]),
        ];
        choose(&serde_json::from_value(request).unwrap(), &spec, &known)
            .map(|model| format!("{} {}", model.name, model.protocol.as_str()))
            .map_err(|refusal| refusal.message)
    }

    #[test]
    fn agents_b3_b4_an_agent_gets_a_model_that_it_may_call_or_is_refused_in_words() {
        let both = json!({"providers": ["a", "b"]});
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(tried("codex", None, both.clone()), ok("big openai-responses"));
        assert_eq!(tried("claude", None, both.clone()), ok("sonnet anthropic-messages"));
        assert_eq!(tried("opencode", None, both.clone()), ok("big openai-chat"));
        assert_eq!(tried("opencode", Some("haiku"), both.clone()), ok("haiku anthropic-messages"));
        assert_eq!(tried("opencode", Some("cofferdam/big"), both.clone()), ok("big openai-chat"));
        let other = tried("claude", Some("opus"), both.clone()).unwrap_err();
        assert!(other.contains("\"opus\"; its providers offer sonnet, haiku"), "{other}");
        let narrow = json!({"providers": ["a", "b"], "models": ["haiku"]});
        assert_eq!(tried("claude", None, narrow.clone()), ok("haiku anthropic-messages"));
        let none = tried("codex", None, narrow).unwrap_err();
        assert!(none.contains("codex speaks openai-responses"), "{none}");
    }

    #[test]
    fn agents_b1_a_home_of_the_callers_is_left_as_it_is() {
        let spec = |target: &str| -> SandboxSpec {
            let mounts = json!({"mounts": [{"source": "/h", "target": target}]});
            serde_json::from_value(mounts).unwrap()
        };
        assert!(is_configured(&spec("/home/agent")) && is_configured(&spec("/home/agent/.codex")));
        assert!(
            !is_configured(&spec("/opt/agents/bin/codex")) && !is_configured(&spec("/home/agents"))
        );
    }
}
