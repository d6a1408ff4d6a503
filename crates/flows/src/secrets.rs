//! Secrets: set, rotated, removed, opened, and which of them a run may use.
//!
//! ```text
//! set, rotate --seal--> app.secrets (next version; the one before loses its bytes)
//! a request of a sandbox -> open: key, tenant, hosts, consent -> app.secret_uses -> the egress proxy
//! ```
//! **A value leaves this module for the egress proxy of this process and for the check of a hook's signature, and for nothing else.**

use std::sync::Arc;

use cofferdam_contracts::egress::Name;
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{SecretName, TenantId};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::secret::{
    MAX_HOSTS, OpenSecret, SecretPut, SecretRotate, SecretRow, SecretUse, SecretValue,
};
use cofferdam_ledger::Ledger;
use cofferdam_ledger::audit::Audit;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::secrets::{NewSecret, SealedSecret};
use serde_json::json;

use crate::error::{Error, Result};
use crate::vault::Vault;

/// How often a write is tried again where another version came first.
const ATTEMPTS: u32 = 5;

fn conflict(why: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::StateConflict, why)
}

fn parse(value: String) -> Result<SecretValue, Refusal> {
    let value = SecretValue::parse(value.into_bytes());
    value.map_err(|why| Refusal::new(ErrorCode::PolicyViolation, format!("value: {why}")))
}

/// The secrets of this installation's tenants.
#[derive(Debug, Clone)]
pub struct Secrets {
    pub(crate) ledger: Ledger,
    /// The key that they are sealed under, where this process has it.
    vault: Option<Arc<Vault>>,
}

impl Secrets {
    pub(crate) fn new(ledger: &Ledger, vault: Option<Vault>) -> Self {
        Self { ledger: ledger.clone(), vault: vault.map(Arc::new) }
    }

    /// The key of secrets, where this process has it.
    pub fn vault(&self) -> Result<&Vault, Refusal> {
        self.vault.as_deref().ok_or_else(|| {
            conflict(
                "this host has no secrets key: copy secrets.key from the state directory of a host that has it, or \
                 start with --secrets-key",
            )
        })
    }

    /// Sets a secret of the caller's tenant: the next version.
    pub async fn put(
        &self,
        who: &Principal,
        name: &SecretName,
        put: SecretPut,
    ) -> Result<SecretRow> {
        let mut hosts = put.hosts;
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > MAX_HOSTS {
            let why = format!("for: a secret may name {MAX_HOSTS} hosts");
            return Err(Refusal::new(ErrorCode::PolicyViolation, why).into());
        }
        let value = parse(put.value)?;
        self.write(who, name, &value, Some(&hosts)).await
    }

    /// Rotates a secret that the caller's tenant has; its hosts stay.
    pub async fn rotate(
        &self,
        who: &Principal,
        name: &SecretName,
        rotate: SecretRotate,
    ) -> Result<SecretRow> {
        let value = parse(rotate.value)?;
        self.write(who, name, &value, None).await
    }

    /// `hosts`: `None` for a rotation, which needs a version in force.
    async fn write(
        &self,
        who: &Principal,
        name: &SecretName,
        value: &SecretValue,
        hosts: Option<&[Name]>,
    ) -> Result<SecretRow> {
        let vault = self.vault()?;
        let ledger = &self.ledger;
        for _ in 0..ATTEMPTS {
            let (version, is_held) = ledger.secrets().next(&who.tenant, name).await?;
            if hosts.is_none() && !is_held {
                return Err(Refusal::not_found("secret").into());
            }
            let sealed = vault.seal(&who.tenant, name, version, value);
            let sealed = sealed.ok_or_else(|| conflict("the value could not be sealed"))?;
            let op = if hosts.is_some() { "secret.set" } else { "secret.rotate" };
            let detail = json!({"version": version, "for": hosts});
            let audit = Audit { detail: Some(detail), ..Audit::by(who, op, name.as_str()) };
            let new = NewSecret {
                tenant: &who.tenant,
                name,
                version,
                hosts,
                sealed: &sealed,
                sealed_by: vault.fingerprint(),
            };
            if ledger.secrets().put(&new, &audit).await? {
                let all = ledger.secrets().list(&who.tenant).await?;
                let row = all.into_iter().find(|row| row.name == *name);
                return row.ok_or_else(|| Refusal::not_found("secret").into());
            }
        }
        Err(conflict("other versions of this secret were set meanwhile; try again").into())
    }

    /// Removes a secret of the caller's tenant. Sandboxes that use it are refused within a second.
    pub async fn remove(&self, who: &Principal, name: &SecretName) -> Result<()> {
        let audit = Audit::by(who, "secret.remove", name.as_str());
        if self.ledger.secrets().remove(&who.tenant, name, &audit).await? {
            return Ok(());
        }
        Err(Refusal::not_found("secret").into())
    }

    /// The value that deliveries to a hook are signed with.
    pub(crate) async fn of_hook(&self, tenant: &TenantId, name: &SecretName) -> Result<OpenSecret> {
        let sealed = self.ledger.secrets().sealed(tenant, name, None).await?;
        let sealed = sealed.ok_or_else(|| {
            conflict(format!("the hook's secret {name} was removed; set it again"))
        })?;
        self.unseal(tenant, name, &sealed)
    }

    /// The value of a sealed version.
    pub(crate) fn unseal(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        sealed: &SealedSecret,
    ) -> Result<OpenSecret> {
        let vault = self.vault()?;
        if *vault.fingerprint() != sealed.sealed_by {
            let why = format!(
                "this host's secrets key has the fingerprint {}, the secret is sealed under {}: copy secrets.key from \
                 the host that set it",
                vault.fingerprint(),
                sealed.sealed_by
            );
            return Err(conflict(why).into());
        }
        let value = vault.open(tenant, name, sealed.version, &sealed.sealed);
        let altered = || Error::Corrupt { what: "secret", why: "it does not open".into() };
        Ok(OpenSecret { version: sealed.version, value: value.ok_or_else(altered)? })
    }
}

/// A use of a secret, and the field that has it.
pub(crate) struct FieldSecret<'a> {
    pub field: String,
    pub used: &'a SecretUse,
}

/// The secrets of a recipe's tasks.
pub(crate) fn recipe_uses(recipe: &Recipe) -> Vec<FieldSecret<'_>> {
    let mut found = Vec::new();
    for (n, task) in recipe.plan.tasks.iter().enumerate() {
        let build = task.build.iter().map(|build| ("build", &build.secrets));
        let exec = task.exec.iter().map(|exec| ("exec", &exec.secrets));
        for (phase, uses) in build.chain(exec) {
            let field = |at| format!("plan.tasks[{n}].{phase}.secrets[{at}]");
            let uses = uses.iter().enumerate();
            found.extend(uses.map(|(at, used)| FieldSecret { field: field(at), used }));
        }
    }
    found
}

/// What is refused at the start of a run: a secret that the tenant does not have, and a host that neither the
/// secret nor a person lets have it. `attended`: a person approves the plan, or the host's own admin wrote it.
pub(crate) async fn admit(
    ledger: &Ledger,
    tenant: &TenantId,
    wanted: &[FieldSecret<'_>],
    attended: bool,
) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let held = ledger.secrets().list(tenant).await?;
    for FieldSecret { field, used } in wanted {
        let row = held.iter().find(|row| row.name == used.name);
        if let Some(why) = unfit(row, used, attended) {
            let (name, host) = (used.name.as_str(), used.host.as_str());
            let refusal = Refusal::new(ErrorCode::PolicyViolation, format!("{field}: {why}"));
            let details = json!({"field": field, "secret": name, "for": host});
            return Err(refusal.with(details).into());
        }
    }
    Ok(())
}

/// Why a secret may not go to this host, if it may not. Pure.
fn unfit(row: Option<&SecretRow>, used: &SecretUse, attended: bool) -> Option<String> {
    let SecretUse { name, host, .. } = used;
    match row {
        None => Some(format!(
            "the tenant has no secret {:?}; set it with `cofferdam secret set {name}`",
            name.as_str()
        )),
        Some(row) => may_have(&row.hosts, host, attended).err(),
    }
}

/// Whether a host may have a secret: one of the secret's own hosts, or, where it has none, one that a person
/// or the host's admin consented to. Pure.
pub(crate) fn may_have(hosts: &[Name], host: &Name, is_consented: bool) -> Result<(), String> {
    match hosts {
        [] if is_consented => Ok(()),
        [] => Err(format!(
            "the secret names no hosts, and no person approves this plan; set it with --for {host}, or give the \
             recipe a gate"
        )),
        hosts if hosts.contains(host) => Ok(()),
        _ => Err(format!("the secret is not for {:?}; set it with --for {host}", host.as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_to_its_own_hosts_or_where_a_person_lets_it() {
        let host = |text: &str| Name::parse(text).unwrap();
        let (a, b) = (host("a.example"), host("b.example"));
        assert!(may_have(std::slice::from_ref(&a), &a, false).is_ok());
        assert!(
            may_have(std::slice::from_ref(&a), &b, true).is_err(),
            "its own hosts bind a person too"
        );
        assert!(may_have(&[], &b, true).is_ok());
        assert!(may_have(&[], &b, false).unwrap_err().contains("no person approves"));
    }

    #[test]
    fn uses_of_both_phases_are_found_with_their_field() {
        let yaml = "id: r\nv: \"1\"\nplan:\n  tasks:\n    - name: a\n      build: {run: x, egress: [b.example], secrets: [{name: t, for: b.example, as: basic u}]}\n      exec: {run: x, egress: [a.example], secrets: [{name: s, for: a.example, as: basic u}]}\n";
        let recipe = Recipe::from_yaml("r", yaml).unwrap();
        let found = recipe_uses(&recipe);
        let fields: Vec<_> =
            found.iter().map(|one| (one.field.as_str(), one.used.name.as_str())).collect();
        assert_eq!(
            fields,
            [("plan.tasks[0].build.secrets[0]", "t"), ("plan.tasks[0].exec.secrets[0]", "s")]
        );
    }
}
