//! Who may answer a gate, and what the answers so far decide. Pure: the reply's transaction reads the
//! rows, asks here, and writes what it is told.

use serde::{Deserialize, Serialize};

use crate::gate::Choice;
use crate::gate_spec::{GateSpec, SelfApproval};
use crate::id::GroupId;
use crate::key::Role;

/// One recorded answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ballot {
    /// The key that answered.
    pub voter: String,
    /// The key in whose place it answered: its own, or its delegator's.
    pub authority: String,
    /// What it said.
    pub choice: Choice,
}

/// What the answers so far come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TallyOutcome {
    /// More answers are needed.
    Open,
    /// The quorum said yes.
    Approved,
    /// Enough said no.
    Denied,
}

/// Counts. A denial is looked for first: a gate that could be either is denied.
#[must_use]
pub fn tally(ballots: &[Ballot], quorum: u32, veto: bool) -> TallyOutcome {
    let count = |choice: Choice| ballots.iter().filter(|b| b.choice == choice).count();
    let wanted = usize::try_from(quorum.max(1)).unwrap_or(usize::MAX);
    let against = if veto { 1 } else { wanted };
    if count(Choice::No) >= against {
        TallyOutcome::Denied
    } else if count(Choice::Yes) >= wanted {
        TallyOutcome::Approved
    } else {
        TallyOutcome::Open
    }
}

/// A key as it stands in the ledger now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Id of the key, compared with voters and with submitters of the run.
    pub key_id: String,
    /// Roles of the key, compared with those that the gate asks for.
    pub roles: Vec<Role>,
    /// Groups of the key, compared with those that the gate asks.
    pub groups: Vec<GroupId>,
}

/// A delegation that holds now: neither expired nor ended, by a key that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveDelegation {
    /// Number of the delegation; an older one has a lower number.
    pub id: i64,
    /// Who gave it.
    pub from: Person,
    /// Only for this group, where it says one.
    pub group: Option<GroupId>,
}

/// In whose place a key answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteAuthority {
    /// Its own, or the delegator's.
    pub authority: String,
    /// The delegation that it rests on.
    pub delegation: Option<i64>,
}

/// Why a key may not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ineligible {
    /// It submitted the run.
    #[error("who submitted the run may not answer its gate")]
    OwnRun,
    /// Neither it nor a delegation that holds has the gate's group and role.
    #[error(
        "this gate is for others: the key has neither its group and role nor a delegation that holds"
    )]
    NotAsked,
}

/// Who is asked at a gate.
#[derive(Debug, Clone, Copy)]
pub struct Electorate<'a> {
    /// The recipe's law.
    pub spec: &'a GateSpec,
    /// The gate's groups now, an escalation's included; none: everybody.
    pub groups: &'a [GroupId],
    /// Keys that wrote the intent or started the run.
    pub submitters: &'a [String],
}

/// In whose place `voter` may answer: its own first, then a delegator's who has not answered yet, the
/// oldest delegation first. Whoever submitted the run answers in nobody's place, and nobody in theirs.
pub fn standing(
    asked: Electorate<'_>,
    voter: &Person,
    delegated: &[ActiveDelegation],
    ballots: &[Ballot],
) -> Result<VoteAuthority, Ineligible> {
    let own_run = |key: &str| {
        asked.spec.self_approval == SelfApproval::Deny && asked.submitters.iter().any(|s| s == key)
    };
    if own_run(&voter.key_id) {
        return Err(Ineligible::OwnRun);
    }
    if is_asked(asked, voter, None) {
        return Ok(VoteAuthority { authority: voter.key_id.clone(), delegation: None });
    }
    let may = |d: &&ActiveDelegation| {
        d.from.key_id != voter.key_id
            && !own_run(&d.from.key_id)
            && is_asked(asked, &d.from, d.group.as_ref())
    };
    let spent = |d: &&ActiveDelegation| ballots.iter().any(|b| b.authority == d.from.key_id);
    let mut found: Vec<&ActiveDelegation> = delegated.iter().filter(may).collect();
    found.sort_by_key(|d| (spent(d), d.id));
    found
        .first()
        .map(|d| VoteAuthority { authority: d.from.key_id.clone(), delegation: Some(d.id) })
        .ok_or(Ineligible::NotAsked)
}

/// `only` is the group that a delegation is limited to. An admin has every role but is in no group
/// that it was not put into: four eyes are four.
fn is_asked(asked: Electorate<'_>, person: &Person, only: Option<&GroupId>) -> bool {
    let has = |role: &Role| person.roles.contains(role) || person.roles.contains(&Role::Admin);
    let role = match asked.spec.roles.as_slice() {
        [] => has(&Role::Approver),
        roles => roles.iter().any(has),
    };
    let fits = |group: &&GroupId| only.is_none_or(|only| only == *group);
    let group = match asked.groups {
        [] => only.is_none(),
        groups => groups.iter().filter(fits).any(|g| person.groups.contains(g)),
    };
    role && group
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::GateKey;

    fn ballots(choices: &str) -> Vec<Ballot> {
        let ballot = |(n, c): (usize, char)| Ballot {
            voter: format!("k{n}"),
            authority: format!("k{n}"),
            choice: if c == 'y' { Choice::Yes } else { Choice::No },
        };
        choices.chars().enumerate().map(ballot).collect()
    }

    #[test]
    fn a_quorum_approves_and_a_veto_denies() {
        for (said, quorum, veto, want) in [
            ("", 1, true, TallyOutcome::Open),
            ("y", 1, true, TallyOutcome::Approved),
            ("n", 1, false, TallyOutcome::Denied),
            ("y", 2, true, TallyOutcome::Open),
            ("yy", 2, true, TallyOutcome::Approved),
            ("yn", 2, true, TallyOutcome::Denied),
            ("yn", 2, false, TallyOutcome::Open),
            ("yny", 2, false, TallyOutcome::Approved),
            ("nyn", 2, false, TallyOutcome::Denied),
            ("y", 0, true, TallyOutcome::Approved),
        ] {
            assert_eq!(tally(&ballots(said), quorum, veto), want, "{said} {quorum} {veto}");
        }
    }

    fn group(name: &str) -> GroupId {
        GroupId::parse(name).unwrap()
    }

    fn person(key: &str, groups: &[&str]) -> Person {
        Person {
            key_id: key.into(),
            roles: vec![Role::Approver],
            groups: groups.iter().map(|g| group(g)).collect(),
        }
    }

    #[test]
    fn only_who_is_asked_or_stands_in_for_them_answers() {
        let mut spec = GateSpec::plain(GateKey::parse("approve-plan").unwrap());
        spec.self_approval = SelfApproval::Deny;
        let (sre, submitters) = ([group("sre")], ["sub".to_owned()]);
        let asked = Electorate { spec: &spec, groups: &sre, submitters: &submitters };
        let by = |person: &Person, delegated: &[ActiveDelegation]| {
            standing(asked, person, delegated, &[])
        };
        assert_eq!(by(&person("a", &["sre"]), &[]).unwrap().delegation, None);
        assert_eq!(by(&person("b", &[]), &[]), Err(Ineligible::NotAsked));
        assert_eq!(by(&person("sub", &["sre"]), &[]), Err(Ineligible::OwnRun));
        let from = |key: &str, limit: Option<&str>| ActiveDelegation {
            id: 7,
            from: person(key, &["sre"]),
            group: limit.map(group),
        };
        let b = person("b", &[]);
        assert_eq!(by(&b, &[from("a", None)]).unwrap().authority, "a");
        assert_eq!(by(&b, &[from("a", Some("sre"))]).unwrap().delegation, Some(7));
        assert_eq!(by(&b, &[from("a", Some("qa"))]), Err(Ineligible::NotAsked));
        assert_eq!(by(&b, &[from("sub", None)]), Err(Ineligible::NotAsked));
        assert_eq!(by(&person("sub", &[]), &[from("a", None)]), Err(Ineligible::OwnRun));
        let admin = Person { roles: vec![Role::Admin], ..person("root", &[]) };
        assert_eq!(by(&admin, &[]), Err(Ineligible::NotAsked), "no group by being admin");
        spec.roles = vec![Role::Auditor];
        let asked = Electorate { spec: &spec, groups: &[], submitters: &[] };
        assert!(standing(asked, &person("a", &[]), &[], &[]).is_err());
        assert!(standing(asked, &admin, &[], &[]).is_ok());
    }
}
