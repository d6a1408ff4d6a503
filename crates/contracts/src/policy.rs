//! A run's egress policy by phase, as it stood when its execution began.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::egress::{Egress, Phase};
use crate::id::Digest;
use crate::named::named;
use crate::plan::Plan;
use crate::recipe::Recipe;

/// The key of `dynamic_config` that lists names which the tasks of a tenant may reach without a gate:
/// a JSON list of exact names and mirrors. The tenant's own row comes before the host's.
pub const EXEC_ALLOWED: &str = "egress.exec.allowed";

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EgressSnapshot {
    /// Which phase.
    pub phase: Phase,
    /// Each distinct policy of its tasks; a task's sandbox gets exactly one of these.
    pub policy: Vec<Egress>,
    /// sha256 over the policy's text as SQL shows it (`policy::text`).
    pub policy_digest: Digest,
    /// Who let it be.
    pub source: PolicySource,
    /// The organisation's policy: its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_key: Option<String>,
    /// The organisation's policy: its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<i32>,
    /// Who consented, by name; of the host's own admin the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approver: Option<String>,
    /// ms since the epoch.
    pub created_at: i64,
}

/// The distinct policies of a plan's sandboxes in a phase, in a fixed order; none where it has no
/// sandbox.
#[must_use]
pub fn policies_of(plan: &Plan, phase: Phase) -> Vec<Egress> {
    let mut all: Vec<(String, Egress)> = plan
        .tasks
        .iter()
        .filter_map(|task| task.work.request())
        .map(|request| match phase {
            Phase::Exec => request.net.clone(),
            Phase::Build => request.build.as_ref().map_or(Egress::None, |b| b.net.clone()),
        })
        .map(|egress| (format!("{egress:?}"), egress))
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup_by(|a, b| a.0 == b.0);
    all.into_iter().map(|(_, egress)| egress).collect()
}

/// The names that a recipe's tasks want to reach while they run, each list with its field.
#[must_use]
pub fn exec_names(recipe: &Recipe) -> Vec<(String, &[String])> {
    recipe
        .plan
        .tasks
        .iter()
        .enumerate()
        .filter_map(|(n, task)| match task.exec.as_ref().map(|exec| &exec.egress) {
            Some(Egress::Names(names)) => {
                Some((format!("plan.tasks[{n}].exec.egress"), names.as_slice()))
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
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
        let names = |list: &[&str]| Egress::Names(list.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(
            policies_of(&plan, Phase::Exec),
            [names(&["b.example", "a.example"]), Egress::None]
        );
        assert_eq!(policies_of(&plan, Phase::Build), [names(&["@pip"]), Egress::None]);
    }

    #[test]
    fn names_of_the_exec_phase_are_found_with_their_field() {
        let recipe = Recipe::from_yaml("r", RECIPE).unwrap();
        let found = exec_names(&recipe);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "plan.tasks[0].exec.egress");
    }
}
