//! Whose consent a run's egress has, and whether a task gets exactly what was consented to. Pure, but
//! for the two readings that hand in what is decided on.
//!
//! The build phase needs no consent beyond the recipe's: it only fetches, and no task's data is there
//! yet. Names of the exec phase need a person's approval of the plan, the host's own admin, or the
//! organisation's list; else the run is refused, by the field.

use cofferdam_contracts::egress::{Egress, Phase};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::IntentId;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::policy::{EXEC_ALLOWED, PolicySource, exec_names, policies_of};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::policies::{Granted, NewSnapshot, OrgPolicy};
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::{Ledger, LedgerError};
use serde_json::json;

/// Who may have consented to names of the exec phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Consent {
    /// A person at the gate.
    Gate { approver: String },
    /// The host's own admin.
    HostAdmin { key: String },
    /// At most the organisation's list.
    Listed(Option<OrgPolicy>),
}

/// The first name of a list that the organisation's policy does not have.
fn unlisted<'a>(names: &'a [String], org: Option<&OrgPolicy>) -> Option<&'a String> {
    names.iter().find(|name| !org.is_some_and(|org| org.names.contains(name)))
}

fn refusal(field: &str, name: &str) -> Refusal {
    let why = format!(
        "{field}: {name:?} needs consent: let a person approve the plan (plan.gate), or have the \
         organisation's policy {EXEC_ALLOWED} list it"
    );
    Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field, "name": name}))
}

/// What is refused at the start of a run, before anything is written.
pub(crate) async fn admit(
    ledger: &Ledger,
    who: &Principal,
    intent: Option<&IntentId>,
    recipe: &Recipe,
) -> Result<(), LedgerError> {
    let wanted = exec_names(recipe);
    match recipe.plan.gate.is_some() {
        true => Ok(()),
        false => admit_names(ledger, who, intent, &wanted).await,
    }
}

/// The same for lists of names with their fields, where no person will be asked.
pub(crate) async fn admit_names(
    ledger: &Ledger,
    who: &Principal,
    intent: Option<&IntentId>,
    wanted: &[(String, &[String])],
) -> Result<(), LedgerError> {
    if wanted.is_empty() {
        return Ok(());
    }
    let wrote_it = match intent {
        Some(intent) if who.is_host_admin() => ledger.intent_is_host_admins(intent).await?,
        _ => who.is_host_admin(),
    };
    if wrote_it {
        return Ok(());
    }
    let org = ledger.policy_exec_allowed(&who.tenant).await?;
    for (field, names) in wanted {
        if let Some(name) = unlisted(names, org.as_ref()) {
            return Err(refusal(field, name).into());
        }
    }
    Ok(())
}

/// Whose consent a run that is about to execute has. `approver` is who said yes at its gate.
pub(crate) async fn consent_of(
    ledger: &Ledger,
    run: &RunContext,
    plan: &Plan,
    approver: Option<String>,
) -> Result<Consent, LedgerError> {
    let has_names = policies_of(plan, Phase::Exec).iter().any(|policy| !policy.is_none());
    Ok(match approver {
        Some(approver) => Consent::Gate { approver },
        None if run.by_host_admin => Consent::HostAdmin { key: run.key_id.clone() },
        None if has_names => Consent::Listed(ledger.policy_exec_allowed(&run.tenant).await?),
        None => Consent::Listed(None),
    })
}

/// The run's policies by phase with their source, or why its execution must not begin. Pure.
pub(crate) fn snapshots(plan: &Plan, consent: &Consent) -> Result<Vec<NewSnapshot>, Refusal> {
    let (build, exec) = (policies_of(plan, Phase::Build), policies_of(plan, Phase::Exec));
    if exec.is_empty() {
        return Ok(Vec::new());
    }
    let approved_by = match consent {
        Consent::Gate { approver } => Some(approver.clone()),
        _ => None,
    };
    let names: Vec<&[String]> = exec
        .iter()
        .filter_map(|policy| match policy {
            Egress::Names(names) => Some(names.as_slice()),
            Egress::None => None,
        })
        .collect();
    let (source, policy_version, approver) = match consent {
        _ if names.is_empty() => (PolicySource::Recipe, None, approved_by.clone()),
        Consent::Gate { approver } => (PolicySource::Gate, None, Some(approver.clone())),
        Consent::HostAdmin { key } => (PolicySource::HostAdmin, None, Some(key.clone())),
        Consent::Listed(org) => {
            for list in names {
                if let Some(name) = unlisted(list, org.as_ref()) {
                    return Err(refusal("exec.egress", name));
                }
            }
            let version = org.as_ref().map(|org| org.version);
            (PolicySource::OrgPolicy, version, org.as_ref().map(|org| org.actor.clone()))
        }
    };
    Ok(vec![
        NewSnapshot {
            phase: Phase::Build,
            policy: build,
            source: PolicySource::Recipe,
            policy_version: None,
            approver: approved_by,
        },
        NewSnapshot { phase: Phase::Exec, policy: exec, source, policy_version, approver },
    ])
}

/// In which field a task's request is not what its run's snapshots grant, if it is not. Pure.
pub(crate) fn drift(request: &SandboxRequest, granted: &[Granted]) -> Option<String> {
    let build = request.build.as_ref().map_or(&Egress::None, |build| &build.net);
    for (field, phase, asked) in
        [("build.net", Phase::Build, build), ("net", Phase::Exec, &request.net)]
    {
        let Some(grant) = granted.iter().find(|grant| grant.phase == phase) else {
            return Some(format!("{field}: the run has no egress policy on record for this phase"));
        };
        if !grant.whole {
            return Some(format!(
                "{field}: the run's egress policy does not have its recorded digest"
            ));
        }
        if !grant.policy.contains(asked) {
            return Some(format!("{field}: it is not in the run's recorded egress policy"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;

    fn plan(exec: &str) -> Plan {
        let yaml = format!(
            "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {{name: a, exec: {{run: x, egress: {exec}}}}}\n"
        );
        let recipe = Recipe::from_yaml("r", &yaml).unwrap();
        plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new())).unwrap()
    }

    fn org(names: &[&str]) -> Consent {
        let names = names.iter().map(|n| (*n).to_owned()).collect();
        Consent::Listed(Some(OrgPolicy { version: 3, names, actor: "sec".into() }))
    }

    fn exec(plan: &Plan, consent: &Consent) -> Result<NewSnapshot, Refusal> {
        snapshots(plan, consent).map(|mut all| all.remove(1))
    }

    #[test]
    fn names_need_a_gate_the_hosts_admin_or_the_organisations_list() {
        let named = plan("[a.example, '@pip']");
        let by = |consent: &Consent| {
            let new = exec(&named, consent).unwrap();
            (new.source, new.policy_version, new.approver)
        };
        let gate = Consent::Gate { approver: "ada".into() };
        assert_eq!(by(&gate), (PolicySource::Gate, None, Some("ada".into())));
        let admin = Consent::HostAdmin { key: "k1".into() };
        assert_eq!(by(&admin), (PolicySource::HostAdmin, None, Some("k1".into())));
        let listed = org(&["@pip", "b.example", "a.example"]);
        assert_eq!(by(&listed), (PolicySource::OrgPolicy, Some(3), Some("sec".into())));
        for bad in [Consent::Listed(None), org(&[]), org(&["a.example"]), org(&["@pip"])] {
            let refused = exec(&named, &bad).unwrap_err();
            assert_eq!(refused.code, ErrorCode::PolicyViolation);
            assert!(refused.message.starts_with("exec.egress: "), "{refused}");
        }
    }

    #[test]
    fn no_names_need_no_consent() {
        let new = exec(&plan("none"), &Consent::Listed(None)).unwrap();
        assert_eq!(
            (new.source, new.policy, new.approver),
            (PolicySource::Recipe, vec![Egress::None], None)
        );
    }

    #[test]
    fn a_task_gets_exactly_what_is_on_record() {
        let named = plan("[a.example]");
        let request = |plan: &Plan| plan.tasks[0].work.request().unwrap().clone();
        let grant =
            |phase, policy: &[Egress]| Granted { phase, policy: policy.to_vec(), whole: true };
        let names = |list: &[&str]| Egress::Names(list.iter().map(|n| (*n).to_owned()).collect());
        let build = grant(Phase::Build, &[Egress::None]);
        let good = [build.clone(), grant(Phase::Exec, &[Egress::None, names(&["a.example"])])];
        assert_eq!(drift(&request(&named), &good), None);
        assert_eq!(drift(&request(&plan("none")), &good), None);
        // More names, fewer, or in a list with others: none of them is this policy.
        for other in [names(&["a.example", "b.example"]), names(&["b.example"]), Egress::None] {
            let bad = [build.clone(), grant(Phase::Exec, &[other])];
            assert!(drift(&request(&named), &bad).unwrap().starts_with("net: "));
        }
        assert!(drift(&request(&named), &[]).unwrap().starts_with("build.net: "));
        let torn = [build, Granted { whole: false, ..good[1].clone() }];
        assert!(drift(&request(&named), &torn).unwrap().contains("digest"));
    }
}
