//! Strict mode (`OC_STRICT_MODE=1`, decision 0148): a model is called with a credential, or its work is refused by name.
//!
//! Without it a provider that takes no key is a provider as any other. With it each provider that a run or a dispatch names has
//! to be on record with a secret that the tenant has: at submission, and again by the worker before it makes a sandbox.

use std::collections::BTreeSet;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::model::{ModelsSpec, ProviderRow};
use cofferdam_contracts::recipe::Recipe;
use serde_json::json;

use crate::error::Result;
use crate::models::Models;

impl Models {
    /// Refuses, in strict mode, models whose providers have no credential.
    ///
    /// # Errors
    /// [`ErrorCode::PolicyViolation`] with the provider, what it lacks and the command that gives it.
    pub(crate) async fn admit(&self, tenant: &TenantId, models: &[&ModelsSpec]) -> Result<()> {
        if !self.is_strict || models.is_empty() {
            return Ok(());
        }
        let providers = self.ledger.models().provider_list(tenant).await?;
        let secrets = self.ledger.secrets().list(tenant).await?;
        let secrets = secrets.iter().map(|row| row.name.as_str().to_owned()).collect();
        for spec in models {
            if let Some((provider, why)) = lacking(spec, &providers, &secrets) {
                let why = format!("OC_STRICT_MODE: the model provider {provider} {why}");
                let details = json!({"metric": "strict_mode", "provider": provider});
                return Err(Refusal::new(ErrorCode::PolicyViolation, why).with(details).into());
            }
        }
        Ok(())
    }
}

/// The models that a recipe's tasks and its agent name.
pub(crate) fn models_of(recipe: &Recipe) -> Vec<&ModelsSpec> {
    let agent = recipe.plan.agent.as_ref().map(|agent| &agent.models);
    recipe.plan.tasks.iter().filter_map(|task| task.models.as_ref()).chain(agent).collect()
}

/// The first provider that lacks something, and what. Pure.
fn lacking(
    spec: &ModelsSpec,
    providers: &[ProviderRow],
    secrets: &BTreeSet<String>,
) -> Option<(String, String)> {
    spec.providers.iter().find_map(|name| {
        let row = providers.iter().find(|row| row.provider.name == *name);
        let why = match row.map(|row| row.provider.secret.as_ref()) {
            None => format!("is not configured; add it: cofferdam model add {name} --secret NAME"),
            Some(None) => {
                format!("has no credential; name one: cofferdam model add {name} --secret NAME")
            }
            Some(Some(secret)) if !secrets.contains(secret.as_str()) => {
                format!(
                    "names the secret {secret}, which is not set: cofferdam secret set {secret}"
                )
            }
            Some(Some(_)) => return None,
        };
        Some((name.to_string(), why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn provider(name: &str, secret: Value) -> ProviderRow {
        let mut provider = json!({"name": name, "url": "https://models.example/v1", "protocols": ["openai-chat"],
            "models": [{"model": "m", "input_micros": 1, "output_micros": 1}]});
        if !secret.is_null() {
            provider["secret"] = secret;
        }
        serde_json::from_value(
            json!({"provider": provider, "version": 1, "actor": "k", "createdAt": 1}),
        )
        .unwrap()
    }

    #[test]
    fn a_provider_without_a_credential_is_named_with_the_command_that_gives_one() {
        let providers = [
            provider("whole", json!("set")),
            provider("keyless", Value::Null),
            provider("lost", json!("gone")),
        ];
        let secrets = BTreeSet::from(["set".to_owned()]);
        let found = |names: &[&str]| {
            let spec = serde_json::from_value(json!({"providers": names})).unwrap();
            lacking(&spec, &providers, &secrets)
        };
        assert_eq!(found(&["whole"]), None);
        for (name, words) in [
            ("keyless", "cofferdam model add keyless --secret"),
            ("lost", "cofferdam secret set gone"),
            ("absent", "is not configured"),
        ] {
            let (provider, why) = found(&["whole", name]).unwrap();
            assert_eq!(provider, name);
            assert!(why.contains(words), "{why}");
        }
    }
}
