//! Whose consent a run's egress has, and whether a task gets exactly what was consented to. Pure, but
//! for the two readings that hand in what is decided on.
//!
//! Names of either phase need a person's approval of the plan, the host's own admin, or the
//! organisation's list for that phase; else the run is refused, by the field. The task's files are in
//! the sandbox during the build too, so the build phase is no exception: only its mirrors are.
//! Mirrors are fetched from with the host's own credentials, so a tenant uses those that the operator
//! granted to it, whoever approves the plan.
//! **Silence is nobody's consent: a gate that its recipe answers at the deadline lets no name be.**

use cofferdam_contracts::config::{ConfigKey, is_on};
use cofferdam_contracts::egress::{Egress, Entry, Phase};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::gate_spec::{DeadlineAction, GateSpec};
use cofferdam_contracts::id::{IntentId, TenantId};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::policy::entries::{FieldEntries, PhaseEntries, policies_of, recipe_names};
use cofferdam_contracts::policy::{
    MIRRORS, MirrorGrants, PolicySource, allowed_key, may_mirror, needs_consent,
};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::keys::{DEFAULT_TENANT, Principal};
use cofferdam_ledger::policies::{NewPolicySnapshot, OrgPolicy, PhasePolicy};
use cofferdam_ledger::runs::RunContext;
use serde_json::json;

use crate::error::Result;

/// The organisation's lists, by phase.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lists {
    build: Option<OrgPolicy>,
    exec: Option<OrgPolicy>,
}

impl Lists {
    async fn read(ledger: &Ledger, tenant: &TenantId) -> Result<Self> {
        Ok(Self {
            build: ledger.egress().policy_allowed(tenant, Phase::Build).await?,
            exec: ledger.egress().policy_allowed(tenant, Phase::Exec).await?,
        })
    }

    const fn of(&self, phase: Phase) -> Option<&OrgPolicy> {
        match phase {
            Phase::Build => self.build.as_ref(),
            Phase::Exec => self.exec.as_ref(),
        }
    }

    /// The first of these names that nobody has consented to.
    fn unlisted<'a>(&self, asked: PhaseEntries<'a>) -> Option<&'a Entry> {
        let org = self.of(asked.phase);
        let mut needing = asked.entries.iter().filter(|entry| needs_consent(asked.phase, entry));
        needing.find(|entry| !org.is_some_and(|org| org.entries.contains(entry)))
    }
}

/// Who may have consented to a run's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Consent {
    /// A person at the gate.
    Gate { approver: String },
    /// The host's own admin.
    HostAdmin { key: String },
    /// At most the organisation's lists.
    Listed(Lists),
}

fn refusal(field: &str, phase: Phase, entry: &Entry) -> Refusal {
    let name = entry.as_str();
    let key = allowed_key(phase);
    let why = format!(
        "{field}: {name:?} needs consent: let a person approve the plan (plan.gate whose silence is a no), or \
         have the organisation's policy {key} list it"
    );
    Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field, "name": name}))
}

/// The first mirror of a list that the operator has not granted to the tenant, as a refusal.
fn ungranted(
    field: &str,
    entries: &[Entry],
    grants: &MirrorGrants,
    tenant: &TenantId,
) -> Result<(), Refusal> {
    let is_hosts_own = tenant.as_str() == DEFAULT_TENANT;
    let mut mirrors = entries.iter().filter_map(Entry::mirror);
    let Some(mirror) = mirrors.find(|mirror| !may_mirror(grants, tenant, is_hosts_own, *mirror))
    else {
        return Ok(());
    };
    let name = mirror.as_str();
    let why = format!(
        "{field}: the mirror {name:?} is not granted to the tenant {tenant}: the host's admin lists it \
         in {MIRRORS}, such as `cofferdam config set {MIRRORS} '{{\"{tenant}\": [{name:?}]}}' --global`"
    );
    Err(Refusal::new(ErrorCode::PolicyViolation, why).with(json!({"field": field, "name": name})))
}

/// Whether a person will be asked, and not the recipe answer in their place.
pub(crate) fn asks_a_person(gate: Option<&GateSpec>) -> bool {
    gate.is_some_and(|gate| gate.on_timeout.then == DeadlineAction::Deny)
}

/// What is refused at the start of a run, before anything is written.
pub(crate) async fn admit(
    ledger: &Ledger,
    who: &Principal,
    intent: Option<&IntentId>,
    recipe: &Recipe,
) -> Result<()> {
    let wanted = recipe_names(recipe);
    admit_lists(ledger, who, intent, &wanted, asks_a_person(recipe.plan.gate.as_ref())).await
}

/// The same for lists of names, where no person will be asked.
pub(crate) async fn admit_names(
    ledger: &Ledger,
    who: &Principal,
    intent: Option<&IntentId>,
    wanted: &[FieldEntries<'_>],
) -> Result<()> {
    admit_lists(ledger, who, intent, wanted, false).await
}

/// Refuses names of a long-lived sandbox that the caller may not have on its own.
///
/// # Errors
/// A refusal that names what is not granted, or the ledger does not answer.
pub async fn admit_live(ledger: &Ledger, who: &Principal, egress: &Egress) -> Result<()> {
    let Egress::Names(entries) = egress else { return Ok(()) };
    let asked = PhaseEntries { phase: Phase::Exec, entries };
    admit_names(ledger, who, None, &[FieldEntries { field: "net".to_owned(), asked }]).await
}

/// What a sandbox of E2B's clients reaches whose user wants the internet: what the organisation lists, where `e2b.internet`
/// is on, and nothing otherwise.
///
/// # Errors
/// The configuration cannot be read.
pub async fn internet(ledger: &Ledger, who: &Principal) -> Result<Egress> {
    let rows = ledger.config().rows(&who.tenant).await?;
    if !is_on(ConfigKey::E2bInternet, &rows) {
        return Ok(Egress::None);
    }
    let listed = ledger.egress().policy_allowed(&who.tenant, Phase::Exec).await?;
    let entries = listed.map(|policy| policy.entries).unwrap_or_default();
    Ok(if entries.is_empty() { Egress::None } else { Egress::Names(entries) })
}

/// The same, and who let them be.
pub async fn consent_to(
    ledger: &Ledger,
    who: &Principal,
    egress: &Egress,
) -> Result<NewPolicySnapshot> {
    admit_live(ledger, who, egress).await?;
    let consent = match egress {
        Egress::None => Consent::Listed(Lists::default()),
        Egress::Names(_) if who.is_host_admin() => Consent::HostAdmin { key: who.key_id.clone() },
        Egress::Names(_) => Consent::Listed(Lists::read(ledger, &who.tenant).await?),
    };
    Ok(snapshot(Phase::Exec, vec![egress.clone()], &consent)?)
}

async fn admit_lists(
    ledger: &Ledger,
    who: &Principal,
    intent: Option<&IntentId>,
    wanted: &[FieldEntries<'_>],
    will_be_asked: bool,
) -> Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let wrote_it = match intent {
        Some(intent) if who.is_host_admin() => ledger.egress().is_host_admins(intent).await?,
        _ => who.is_host_admin(),
    };
    if wrote_it {
        return Ok(());
    }
    let grants = ledger.egress().mirror_grants().await?;
    for FieldEntries { field, asked } in wanted {
        ungranted(field, asked.entries, &grants, &who.tenant)?;
    }
    if will_be_asked {
        return Ok(());
    }
    let lists = Lists::read(ledger, &who.tenant).await?;
    for FieldEntries { field, asked } in wanted {
        if let Some(entry) = lists.unlisted(*asked) {
            return Err(refusal(field, asked.phase, entry).into());
        }
    }
    Ok(())
}

/// Refuses a run that is about to execute and lists a mirror that the operator no longer grants.
pub(crate) async fn mirrors_of(ledger: &Ledger, run: &RunContext, plan: &Plan) -> Result<()> {
    let phases = [Phase::Build, Phase::Exec].map(|phase| (phase, policies_of(plan, phase)));
    let lists =
        || phases.iter().flat_map(|(phase, all)| lists_of(all).map(move |list| (*phase, list)));
    if run.by_host_admin || lists().next().is_none() {
        return Ok(());
    }
    let grants = ledger.egress().mirror_grants().await?;
    for (phase, list) in lists() {
        ungranted(&format!("{}.egress", phase.as_str()), list, &grants, &run.tenant)?;
    }
    Ok(())
}

/// The lists of a plan's phase that are not empty.
fn lists_of(policies: &[Egress]) -> impl Iterator<Item = &[Entry]> {
    policies.iter().map(Egress::entries).filter(|list| !list.is_empty())
}

/// Whether a name of a phase is let be without a person: by the host's own admin or the organisation's list.
pub(crate) async fn is_consented(
    ledger: &Ledger,
    run: &RunContext,
    phase: Phase,
    entry: &Entry,
) -> Result<bool> {
    if run.by_host_admin {
        return Ok(true);
    }
    let lists = Lists::read(ledger, &run.tenant).await?;
    Ok(lists.unlisted(PhaseEntries { phase, entries: std::slice::from_ref(entry) }).is_none())
}

/// Whose consent a run that is about to execute has. `approver` is the person who said yes at its gate.
pub(crate) async fn consent_of(
    ledger: &Ledger,
    run: &RunContext,
    plan: &Plan,
    approver: Option<String>,
) -> Result<Consent> {
    let has_names = [Phase::Build, Phase::Exec]
        .iter()
        .any(|phase| lists_of(&policies_of(plan, *phase)).next().is_some());
    Ok(match approver {
        Some(approver) => Consent::Gate { approver },
        None if run.by_host_admin => Consent::HostAdmin { key: run.key_id.clone() },
        None if has_names => Consent::Listed(Lists::read(ledger, &run.tenant).await?),
        None => Consent::Listed(Lists::default()),
    })
}

/// The policies of a plan that names nothing, and so asks nobody. Pure.
pub(crate) fn unasked(plan: &Plan) -> Option<Vec<NewPolicySnapshot>> {
    let phases = [Phase::Build, Phase::Exec].map(|phase| policies_of(plan, phase));
    let has_names = phases.iter().any(|all| lists_of(all).next().is_some());
    if has_names {
        return None;
    }
    snapshots(plan, &Consent::Listed(Lists::default())).ok()
}

/// The run's policies by phase with their source, or why its execution must not begin. Pure.
pub(crate) fn snapshots(plan: &Plan, consent: &Consent) -> Result<Vec<NewPolicySnapshot>, Refusal> {
    if policies_of(plan, Phase::Exec).is_empty() {
        return Ok(Vec::new());
    }
    [Phase::Build, Phase::Exec]
        .into_iter()
        .map(|phase| snapshot(phase, policies_of(plan, phase), consent))
        .collect()
}

fn snapshot(
    phase: Phase,
    policy: Vec<Egress>,
    consent: &Consent,
) -> Result<NewPolicySnapshot, Refusal> {
    let needs = lists_of(&policy).flatten().any(|entry| needs_consent(phase, entry));
    let (source, policy_version, approver) = match consent {
        Consent::Gate { approver } if !needs => (PolicySource::Recipe, None, Some(approver)),
        _ if !needs => (PolicySource::Recipe, None, None),
        Consent::Gate { approver } => (PolicySource::Gate, None, Some(approver)),
        Consent::HostAdmin { key } => (PolicySource::HostAdmin, None, Some(key)),
        Consent::Listed(lists) => {
            for entries in lists_of(&policy) {
                if let Some(entry) = lists.unlisted(PhaseEntries { phase, entries }) {
                    return Err(refusal(&format!("{}.egress", phase.as_str()), phase, entry));
                }
            }
            let org = lists.of(phase);
            (PolicySource::OrgPolicy, org.map(|org| org.version), org.map(|org| &org.actor))
        }
    };
    let approver = approver.cloned();
    Ok(NewPolicySnapshot { phase, policy, source, policy_version, approver })
}

/// In which field a task's request is not what its run's snapshots grant, if it is not. Pure.
pub(crate) fn drift(request: &SandboxRequest, granted: &[PhasePolicy]) -> Option<String> {
    let build = request.build.as_ref().map_or(&Egress::None, |build| &build.egress);
    for (field, phase, asked) in
        [("build.net", Phase::Build, build), ("net", Phase::Exec, &request.egress)]
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
        phases("none", exec)
    }

    fn phases(build: &str, exec: &str) -> Plan {
        let yaml = format!(
            "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {{name: a, build: {{run: y, egress: {build}}}, exec: {{run: x, egress: {exec}}}}}\n"
        );
        let recipe = Recipe::from_yaml("r", &yaml).unwrap();
        plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new())).unwrap()
    }

    fn list(names: &[&str]) -> Option<OrgPolicy> {
        let entries = names.iter().map(|n| n.parse().unwrap()).collect();
        Some(OrgPolicy { version: 3, entries, actor: "sec".into() })
    }

    fn org(names: &[&str]) -> Consent {
        Consent::Listed(Lists { build: None, exec: list(names) })
    }

    fn exec(plan: &Plan, consent: &Consent) -> Result<NewPolicySnapshot, Refusal> {
        snapshots(plan, consent).map(|mut all| all.remove(1))
    }

    fn by(new: NewPolicySnapshot) -> (PolicySource, Option<i32>, Option<String>) {
        (new.source, new.policy_version, new.approver)
    }

    #[test]
    fn names_need_a_gate_the_hosts_admin_or_the_organisations_list() {
        let named = plan("[a.example, '@pip']");
        let by = |consent: &Consent| by(exec(&named, consent).unwrap());
        let gate = Consent::Gate { approver: "ada".into() };
        assert_eq!(by(&gate), (PolicySource::Gate, None, Some("ada".into())));
        let admin = Consent::HostAdmin { key: "k1".into() };
        assert_eq!(by(&admin), (PolicySource::HostAdmin, None, Some("k1".into())));
        let listed = org(&["@pip", "b.example", "a.example"]);
        assert_eq!(by(&listed), (PolicySource::OrgPolicy, Some(3), Some("sec".into())));
        let nobody = Consent::Listed(Lists::default());
        for bad in [nobody, org(&[]), org(&["a.example"]), org(&["@pip"])] {
            let refused = exec(&named, &bad).unwrap_err();
            assert_eq!(refused.code, ErrorCode::PolicyViolation);
            assert!(refused.message.starts_with("exec.egress: "), "{refused}");
        }
    }

    #[test]
    fn h3_names_of_the_build_phase_need_the_same_consent_and_its_mirrors_none() {
        let named = phases("[a.example, '@pip']", "none");
        let build = |consent: &Consent| snapshots(&named, consent).map(|mut all| all.remove(0));
        let gate = Consent::Gate { approver: "ada".into() };
        assert_eq!(by(build(&gate).unwrap()), (PolicySource::Gate, None, Some("ada".into())));
        let admin = Consent::HostAdmin { key: "k1".into() };
        assert_eq!(by(build(&admin).unwrap()).0, PolicySource::HostAdmin);
        let listed = Consent::Listed(Lists { build: list(&["a.example"]), exec: None });
        let sec = (PolicySource::OrgPolicy, Some(3), Some("sec".into()));
        assert_eq!(by(build(&listed).unwrap()), sec);
        // The list of the other phase is no consent.
        for bad in [Consent::Listed(Lists::default()), org(&["a.example"])] {
            let refused = build(&bad).unwrap_err();
            assert_eq!(refused.code, ErrorCode::PolicyViolation);
            assert!(refused.message.starts_with("build.egress: "), "{refused}");
            assert!(refused.message.contains("egress.build.allowed"), "{refused}");
        }
        let mirrors = phases("['@pip']", "none");
        let all = snapshots(&mirrors, &Consent::Listed(Lists::default())).unwrap();
        assert_eq!(all[0].source, PolicySource::Recipe);
    }

    #[test]
    fn h3_a_gate_that_its_recipe_answers_asks_nobody() {
        let gate = |law: &str| {
            let yaml = format!(
                "id: r\nv: \"1\"\nplan:\n  gate: {law}\n  tasks: [{{name: a, value: v}}]\n"
            );
            asks_a_person(Recipe::from_yaml("r", &yaml).unwrap().plan.gate.as_ref())
        };
        assert!(!asks_a_person(None));
        assert!(gate("approve-plan") && gate("{key: approve-plan, deadline: 1m}"));
        assert!(!gate("{key: approve-plan, deadline: 1m, on_timeout: {then: approve}}"));
    }

    #[test]
    fn no_names_need_no_consent() {
        let new = exec(&plan("none"), &Consent::Listed(Lists::default())).unwrap();
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
            |phase, policy: &[Egress]| PhasePolicy { phase, policy: policy.to_vec(), whole: true };
        let names =
            |list: &[&str]| Egress::Names(list.iter().map(|n| n.parse().unwrap()).collect());
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
        let torn = [build, PhasePolicy { whole: false, ..good[1].clone() }];
        assert!(drift(&request(&named), &torn).unwrap().contains("digest"));
    }
}
