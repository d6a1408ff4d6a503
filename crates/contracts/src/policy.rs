//! A run's egress policy by phase, as it stood when its execution began.

pub mod entries;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::egress::{Egress, Entry, Mirror, Phase};
use crate::enum_names::named;
use crate::id::{Digest, TenantId};

/// The key of `dynamic_config` that lists names which the tasks of a tenant may reach without a gate:
/// a JSON list of exact names and mirrors. The tenant's own row comes before the host's.
pub const EXEC_ALLOWED: &str = "egress.exec.allowed";
/// The same list for the build phase. The task's files are there during the build too, so its names need
/// the same consent.
pub const BUILD_ALLOWED: &str = "egress.build.allowed";

/// The key of `dynamic_config`, of the host alone, that says which tenant may use which of the host's
/// mirrors: what lies behind them is fetched with the credentials of the host's own clients.
pub const MIRRORS: &str = "egress.mirrors";
/// The entry of the grants that is every tenant's.
const EVERYBODY: &str = "*";

/// Mirrors by tenant; `*` is every tenant.
pub type MirrorGrants = BTreeMap<String, Vec<Mirror>>;

/// Whether a tenant may use a mirror. `is_hosts_own`: the tenant is the host's own, which may use all of
/// them until a grant names it.
#[must_use]
pub fn may_mirror(
    grants: &MirrorGrants,
    tenant: &TenantId,
    is_hosts_own: bool,
    mirror: Mirror,
) -> bool {
    let of = |who: &str| grants.get(who).map(|list| list.contains(&mirror));
    of(EVERYBODY) == Some(true) || of(tenant.as_str()).unwrap_or(is_hosts_own)
}

/// The grants as a tenant sees them: nobody else's.
#[must_use]
pub fn grants_seen_by(mut grants: MirrorGrants, tenant: &TenantId) -> MirrorGrants {
    grants.retain(|who, _| who == EVERYBODY || who == tenant.as_str());
    grants
}

/// The key that lists a phase's names.
#[must_use]
pub const fn allowed_key(phase: Phase) -> &'static str {
    match phase {
        Phase::Build => BUILD_ALLOWED,
        Phase::Exec => EXEC_ALLOWED,
    }
}

/// Whether a name of a phase needs a person's, the host admin's or the organisation's consent. A mirror
/// of the build phase needs the operator's grant alone, because a task only fetches through it.
#[must_use]
pub const fn needs_consent(phase: Phase, entry: &Entry) -> bool {
    matches!((phase, entry), (Phase::Exec, _) | (_, Entry::Name(_)))
}

named! {
    /// Who let a phase's policy be.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum PolicySource {
        /// The recipe; nobody's consent is needed for it.
        Recipe = "recipe",
        /// A person who approved the plan at its gate.
        Gate = "gate",
        /// The host's own admin, who asked for it.
        HostAdmin = "host-admin",
        /// The organisation's policy lists every name.
        OrgPolicy = "org-policy",
        /// The run began before policies were recorded.
        Unrecorded = "unrecorded",
    }
}

/// The policy of one phase of one run: a row of `app.egress_policy_snapshots`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressSnapshot {
    /// Phase that the policy applies to: `build` or `exec`.
    pub phase: Phase,
    /// Each distinct policy of its tasks; a task's sandbox gets exactly one of these.
    pub policy: Vec<Egress>,
    /// sha256 over the policy's text as SQL shows it (`policy::text`).
    pub policy_digest: Digest,
    /// Who let it be.
    pub source: PolicySource,
    /// The organisation's policy: its key.
    pub policy_key: Option<String>,
    /// The organisation's policy: its version.
    pub policy_version: Option<i32>,
    /// Who consented, by name; of the host's own admin the key.
    pub approver: Option<String>,
    /// ms since the epoch.
    pub created_at: i64,
}

#[cfg(test)]
mod tests {
    use super::entries::{policies_of, recipe_names};
    use super::*;
    use crate::plan;
    use crate::recipe::Recipe;
    use serde_json::json;

    const RECIPE: &str = "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {name: a, exec: {run: x, egress: [b.example, a.example]}}\n    - {name: b, build: {run: y, egress: ['@pip']}, exec: {run: x}}\n    - {name: c, exec: {run: x}}\n    - {name: d, value: v}\n";

    #[test]
    fn a_plans_policies_are_distinct_and_in_one_order() {
        let recipe = Recipe::from_yaml("r", RECIPE).unwrap();
        let plan =
            plan::compile(&recipe, &json!({}), &crate::profile::Settings::default(), &|_, _| {
                Ok(Vec::new())
            })
            .unwrap();
        let names =
            |list: &[&str]| Egress::Names(list.iter().map(|n| n.parse().unwrap()).collect());
        assert_eq!(
            policies_of(&plan, Phase::Exec),
            [names(&["b.example", "a.example"]), Egress::None]
        );
        assert_eq!(policies_of(&plan, Phase::Build), [names(&["@pip"]), Egress::None]);
    }

    #[test]
    fn names_of_both_phases_are_found_with_their_field() {
        let recipe = Recipe::from_yaml("r", RECIPE).unwrap();
        let found = recipe_names(&recipe);
        let fields: Vec<_> =
            found.iter().map(|one| (one.field.as_str(), one.asked.phase)).collect();
        assert_eq!(
            fields,
            [
                ("plan.tasks[0].exec.egress", Phase::Exec),
                ("plan.tasks[1].build.egress", Phase::Build),
            ]
        );
    }

    #[test]
    fn only_a_mirror_of_the_build_phase_needs_no_consent() {
        for (phase, name, needs) in [
            (Phase::Build, "@pip", false),
            (Phase::Build, "a.example", true),
            (Phase::Exec, "@pip", true),
            (Phase::Exec, "a.example", true),
        ] {
            let entry: Entry = name.parse().unwrap();
            assert_eq!(needs_consent(phase, &entry), needs, "{phase:?} {name}");
        }
    }

    #[test]
    fn h4_a_mirror_is_for_the_hosts_own_tenant_and_whom_the_operator_names() {
        let grants: MirrorGrants =
            serde_json::from_value(json!({"acme": ["@pip"], "*": ["@apt"]})).unwrap();
        let tenant = |text: &str| TenantId::parse(text).unwrap();
        let mirror = |text: &str| Mirror::parse(text).unwrap();
        let may = |who: &str, own, text| may_mirror(&grants, &tenant(who), own, mirror(text));
        assert!(may("acme", false, "@pip") && may("acme", false, "@apt"));
        assert!(!may("acme", false, "@npm") && !may("bravo", false, "@pip"));
        assert!(may("bravo", false, "@apt"));
        assert!(may("default", true, "@npm"));
        let narrowed = MirrorGrants::from([("default".into(), vec![Mirror::Pip])]);
        assert!(!may_mirror(&narrowed, &tenant("default"), true, Mirror::Npm));
        let seen = grants_seen_by(grants, &tenant("bravo"));
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["*"]);
    }
}
