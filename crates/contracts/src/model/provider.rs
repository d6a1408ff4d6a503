//! Providers of models, as an operator configures them for a tenant.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ModelProtocol;
use super::price::ModelPrice;
use super::spec::ModelLimit;
use crate::id::{ProviderName, SecretName};

/// Models of one provider.
const MAX_PRICES: usize = 256;

/// `POST /api/models`: a provider, as it is added or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelProvider {
    /// Names it in recipes.
    pub name: ProviderName,
    /// `https://host/v1` or `http://host:port/v1`, without user, query and fragment: 8 to 2,048 characters.
    #[schemars(length(min = 8, max = 2048))]
    pub url: String,
    /// Which wire formats it speaks: 1 to 3.
    #[schemars(length(min = 1, max = 3))]
    pub protocols: Vec<ModelProtocol>,
    /// The tenant's secret that holds its key; none: it takes no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretName>,
    /// Models that may be called, with their prices: 1 to 256.
    #[schemars(length(min = 1, max = 256))]
    pub models: Vec<ModelPrice>,
    /// Bounds of all calls of the tenant to it.
    #[serde(default, skip_serializing_if = "ModelLimit::is_open")]
    pub budget: ModelLimit,
    /// Bounds of the tenant's calls to it on one day (UTC).
    #[serde(default, skip_serializing_if = "ModelLimit::is_open")]
    pub day_budget: ModelLimit,
}

impl ModelProvider {
    /// What the types cannot say.
    ///
    /// # Errors
    /// The field that is wrong, in words.
    pub fn check(&self) -> Result<(), String> {
        check_url(&self.url)?;
        if self.secret.is_some() && !self.is_sealed() {
            return Err(
                "url: a provider with a secret needs https://, or an address of this host".into()
            );
        }
        if self.protocols.is_empty() || self.protocols.len() > ModelProtocol::ALL.len() {
            return Err("protocols: must list 1 to 3 protocols".into());
        }
        if self.models.is_empty() || self.models.len() > MAX_PRICES {
            return Err(format!("models: must list 1 to {MAX_PRICES} models"));
        }
        let mut names: Vec<_> = self.models.iter().map(|price| &price.model).collect();
        names.sort();
        if names.windows(2).any(|pair| pair.first() == pair.last()) {
            return Err("models: a model is listed twice; give each one price".into());
        }
        for (field, limit) in [("budget", &self.budget), ("day_budget", &self.day_budget)] {
            if limit.wall_ms.is_some() {
                return Err(format!("{field}.wall_ms: bounds a sandbox or a run only; remove it"));
            }
        }
        Ok(())
    }

    /// The host of its URL, in lower case and without a port.
    #[must_use]
    pub fn host(&self) -> String {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let place = rest.split('/').next().unwrap_or_default();
        let host = match place.strip_prefix('[') {
            Some(six) => six.split(']').next(),
            None => place.split(':').next(),
        };
        host.unwrap_or_default().to_ascii_lowercase()
    }

    /// Whether what is sent to it crosses no wire in clear.
    fn is_sealed(&self) -> bool {
        let is_loopback = self.host().parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        self.url.starts_with("https://") || is_loopback
    }

    /// The price of a model that it may be asked for in this protocol.
    #[must_use]
    pub fn price(&self, protocol: ModelProtocol, model: &str) -> Option<&ModelPrice> {
        let mut prices = self.models.iter().filter(|_| self.protocols.contains(&protocol));
        prices.find(|price| price.model.as_str() == model)
    }
}

/// The shape of a base URL, by its text: a key is sent to it, so nothing in it may be read in two ways.
fn check_url(text: &str) -> Result<(), String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let rest = rest.ok_or("url: must begin with https:// or http://")?;
    if text.len() > 2_048 {
        return Err("url: must have at most 2048 characters".into());
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/[]%".contains(c);
    if rest.is_empty() || rest.starts_with(['/', ':']) || !rest.chars().all(is_plain) {
        return Err("url: must be a host with a path, without user, query and fragment".into());
    }
    Ok(())
}

/// A provider on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProviderRow {
    /// Configuration of this version: address, protocols, prices and budgets.
    pub provider: ModelProvider,
    /// Counts its changes, from 1.
    pub version: i32,
    /// Actor that wrote this version.
    pub actor: String,
    /// ms since the epoch.
    pub created_at: i64,
}

/// Answer of removing a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ProviderRemoval {
    /// The provider that is gone.
    pub removed: ProviderName,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn provider(url: &str) -> ModelProvider {
        let value = json!({"name": "p", "url": url, "protocols": ["openai-chat"],
            "models": [{"model": "m", "input_micros": 1}]});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_url_is_a_host_and_a_path() {
        for url in ["https://api.example/v1", "http://127.0.0.1:80/v1", "http://[::1]:8/v1"] {
            assert_eq!(provider(url).check(), Ok(()), "{url}");
        }
        for url in [
            "ftp://a.example",
            "https://",
            "https:///v1",
            "https://u:p@a.example/",
            "https://a.example/?k=1",
            "https://a.example/#x",
            "https://a.example\\@b",
            "https://a example",
        ] {
            assert!(provider(url).check().unwrap_err().starts_with("url: "), "{url}");
        }
    }

    #[test]
    fn a_key_crosses_no_wire_in_clear() {
        for (url, is_fine) in [
            ("https://api.example/v1", true),
            ("http://127.0.0.1:80/v1", true),
            ("http://[::1]:80/v1", true),
            ("http://api.example/v1", false),
            ("http://127.0.0.1.example/v1", false),
        ] {
            let mut with_key = provider(url);
            with_key.secret = Some(SecretName::parse("k").unwrap());
            assert_eq!(with_key.check().is_ok(), is_fine, "{url}");
        }
        assert_eq!(provider("https://API.example:8443/v1").host(), "api.example");
    }

    #[test]
    fn a_model_has_one_price_in_the_protocols_of_its_provider() {
        let mut one = provider("https://a.example/v1");
        assert!(one.price(ModelProtocol::OpenaiChat, "m").is_some());
        assert!(one.price(ModelProtocol::AnthropicMessages, "m").is_none());
        assert!(one.price(ModelProtocol::OpenaiChat, "other").is_none());
        one.models.push(one.models[0].clone());
        assert!(one.check().unwrap_err().contains("twice"));
    }
}
