//! Secrets: their names, where a phase sends them, and values that nothing prints.
//!
//! ```text
//! secrets: [{name: github, for: git.example, as: 'basic x-access-token'},
//!           {name: api, for: api.example, as: 'header authorization "Bearer {}"'}]
//! ```
//! **A value never enters a sandbox: the egress proxy of the worker adds it to requests to exactly the host
//! that `for` names.** What a recipe, a request, a plan and a row hold is the name.

mod form;
mod rows;
mod value;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use form::{FORM_PATTERN, FormError, SecretForm};
pub use rows::{SecretPut, SecretRemoval, SecretRotate, SecretRow, SecretUseRow};
pub use value::{MAX_VALUE_BYTES, MIN_VALUE_BYTES, OpenSecret, SecretValue, ValueError};

use crate::egress::{Egress, Entry, Name};
pub use crate::id::SecretName;

/// Secrets that one phase may use: a list that a person can still read before approving it.
pub const MAX_SECRETS: usize = 16;
/// Hosts that a secret may be restricted to.
pub const MAX_HOSTS: usize = 64;
/// How a placeholder of a secret begins. Nothing is ever put in its place: a request that carries one is
/// refused.
pub const PLACEHOLDER: &str = "{{secret:";

/// One secret that a phase sends to one host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretUse {
    /// The secret, by its name in the run's tenant.
    pub name: SecretName,
    /// The only host that gets it: an exact name that the phase's egress lists too.
    #[serde(rename = "for")]
    pub host: Name,
    /// What is added to each request.
    #[serde(rename = "as")]
    pub form: SecretForm,
}

/// Why a phase's list of secrets cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct UseFault {
    /// Below the phase, such as `secrets[0].for`.
    pub field: String,
    /// What is wrong with it, and what would be accepted.
    pub why: String,
}

/// Whether a phase that reaches `egress` may use these secrets.
///
/// # Errors
/// [`UseFault`]: too many, a host that the phase does not list, or one header twice.
pub fn check(secrets: &[SecretUse], egress: &Egress) -> Result<(), UseFault> {
    let fault = |field: String, why: String| Err(UseFault { field, why });
    if secrets.len() > MAX_SECRETS {
        let why = format!("lists {}; a phase may use {MAX_SECRETS}", secrets.len());
        return fault("secrets".into(), why);
    }
    for (at, one) in secrets.iter().enumerate() {
        let host = Entry::Name(one.host.clone());
        if !egress.entries().contains(&host) {
            let host = one.host.as_str();
            let why =
                format!("{host:?} is not in the egress of this phase; list the host there too");
            return fault(format!("secrets[{at}].for"), why);
        }
        let header = one.form.header();
        let mut earlier = secrets.iter().take(at);
        if earlier.any(|e| e.host == one.host && e.form.header() == header) {
            let host = one.host.as_str();
            let why = format!("an earlier entry sets the header {header} for {host:?}; keep one");
            return fault(format!("secrets[{at}].as"), why);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Validator, schema_of};
    use serde_json::json;

    fn uses(list: serde_json::Value) -> Vec<SecretUse> {
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn a_use_is_parsed_once_and_reads_back_in_one_form() {
        let one = json!({"name": "api", "for": "API.example", "as": "header Authorization \"Bearer {}\""});
        let schema = Validator::compile(&schema_of::<SecretUse>()).unwrap();
        assert!(schema.check(&one).is_ok());
        let parsed: SecretUse = serde_json::from_value(one).unwrap();
        let canonical = json!({"name": "api", "for": "api.example", "as": "header authorization \"Bearer {}\""});
        assert_eq!(serde_json::to_value(&parsed).unwrap(), canonical);
        assert_eq!(serde_json::from_value::<SecretUse>(canonical).unwrap(), parsed);
        for bad in [
            json!({"name": "API KEY", "for": "a.example", "as": "basic u"}),
            json!({"name": "a", "for": "*.example", "as": "basic u"}),
            json!({"name": "a", "for": "@pip", "as": "basic u"}),
            json!({"name": "a", "for": "127.0.0.1", "as": "basic u"}),
            json!({"name": "a", "for": "a.example:8443", "as": "basic u"}),
            json!({"name": "a", "for": "a.example", "as": "query token"}),
            json!({"name": "a", "for": "a.example"}),
            json!({"name": "a", "for": "a.example", "as": "basic u", "value": "x"}),
        ] {
            assert!(schema.check(&bad).is_err(), "{bad}");
            assert!(serde_json::from_value::<SecretUse>(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_that_the_phase_does_not_list_and_a_header_twice_are_refused_by_their_field() {
        let egress: Egress = serde_json::from_value(json!(["a.example", "@pip"])).unwrap();
        let one = |host: &str, form: &str| json!({"name": "s", "for": host, "as": form});
        let said =
            |list| check(&uses(list), &egress).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(said(json!([one("a.example", "basic u")])), "");
        let why = said(json!([one("a.example", "basic u"), one("b.example", "basic u")]));
        assert!(why.starts_with("secrets[1].for: \"b.example\" is not in the egress"), "{why}");
        let twice =
            json!([one("a.example", "basic u"), one("a.example", "header Authorization \"{}\"")]);
        assert!(said(twice).starts_with("secrets[1].as: "));
        let other = json!([one("a.example", "basic u"), one("a.example", "header x-key \"{}\"")]);
        assert_eq!(said(other), "");
        let none = check(&uses(json!([one("a.example", "basic u")])), &Egress::None);
        assert!(none.unwrap_err().to_string().starts_with("secrets[0].for"));
        let many: Vec<_> =
            (0..17).map(|n| one("a.example", &format!("header x-{n} \"{{}}\""))).collect();
        assert!(said(json!(many)).starts_with("secrets: lists 17"));
    }
}
