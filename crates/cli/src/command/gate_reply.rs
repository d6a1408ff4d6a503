//! What is said of a reply to a gate beside that it was taken: how many votes there are, or who decided before it.

use cofferdam_contracts::gate::{
    Choice, GateState, GateView, InteractionOutcome, InteractionRow, VoteRow,
};
use cofferdam_contracts::gate_spec::GateSpec;
use cofferdam_contracts::id::GateKey;
use cofferdam_contracts::plan::Plan;

use super::client::{Client, segment};
use super::exit::Negative;
use super::{output, plan_show};

/// A gate of a run, where it can be seen.
async fn gate_of(client: &Client, run: &str, gate: &str) -> Option<GateView> {
    let path = format!("/api/runs/{}/gates", segment(run));
    let gates: Vec<GateView> = client.get(&path).await.ok()?;
    gates.into_iter().find(|one| one.gate_key.as_str() == gate)
}

/// Why a reply was refused, with the decision where there is one.
pub(crate) async fn refused(
    client: &Client,
    run: &str,
    gate: &str,
    error: anyhow::Error,
) -> anyhow::Error {
    if !error.is::<Negative>() {
        return error;
    }
    let Some(seen) = gate_of(client, run, gate).await else { return error };
    let path = format!("/api/runs/{}/interactions", segment(run));
    let rows: Vec<InteractionRow> = client.get(&path).await.unwrap_or_default();
    match decided(&seen, &rows) {
        Some(words) => Negative(format!("{error}; {words}")).into(),
        None => error,
    }
}

/// What was decided at a gate, by whom and when. Pure.
fn decided(gate: &GateView, rows: &[InteractionRow]) -> Option<String> {
    let made = gate.decision.as_ref()?;
    let is_its = |row: &&InteractionRow| {
        row.gate_key == gate.gate_key && row.outcome == InteractionOutcome::Accepted
    };
    let by = rows.iter().find(is_its).map(|row| format!(" by {}", row.key_id)).unwrap_or_default();
    let (choice, at) = (made.decision.as_str(), output::time(made.at));
    Some(format!("{} was answered {choice}{by}, {at} UTC", gate.gate_key))
}

/// What is said of a reply that counts: where several are needed, how many there are.
pub(crate) async fn counted(client: &Client, run: &str, gate: &str) -> String {
    let seen = gate_of(client, run, gate).await;
    let open = seen.filter(|gate| gate.state == GateState::Pending && !gate.votes.is_empty());
    let Some(open) = open else { return "accepted".to_owned() };
    let plan = plan_show::fetch(client, run).await.ok().flatten();
    let spec = plan.as_ref().and_then(|plan| spec_of(plan, &open.gate_key));
    voted(&open.votes, spec)
}

/// The gate of a plan.
fn spec_of<'a>(plan: &'a Plan, gate: &GateKey) -> Option<&'a GateSpec> {
    let groups = plan.graph.iter().flat_map(|graph| &graph.groups);
    let mut gates = plan.gate.iter().chain(groups.filter_map(|group| group.gate.as_ref()));
    gates.find(|spec| spec.key == *gate)
}

/// Votes of a gate that is open, or a moment after the last of them still is. Pure.
fn voted(votes: &[VoteRow], spec: Option<&GateSpec>) -> String {
    let yes = votes.iter().filter(|vote| vote.choice == Choice::Yes).count();
    let no = votes.len().saturating_sub(yes);
    let quorum = spec.and_then(|spec| usize::try_from(spec.quorum).ok());
    let is_enough = quorum.is_some_and(|quorum| yes >= quorum || no >= quorum);
    if is_enough || (no > 0 && spec.is_some_and(|spec| spec.veto)) {
        return "accepted".to_owned();
    }
    let of = quorum.map(|quorum| format!(" of {quorum}")).unwrap_or_default();
    let against = if no > 0 { format!(", {no} no") } else { String::new() };
    format!("accepted: {yes}{of} yes{against}; the gate still waits")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_vote_that_decides_nothing_yet_is_counted() {
        let vote = |choice: &str| -> VoteRow {
            let row = json!({"voter": "k", "authority": "k", "choice": choice, "at": 1});
            serde_json::from_value(row).unwrap()
        };
        let spec = |quorum: u32, veto: bool| -> GateSpec {
            let text = json!({"key": "approve-plan", "quorum": quorum, "veto": veto});
            serde_json::from_value(text).unwrap()
        };
        let two = spec(2, false);
        let waits = "accepted: 1 of 2 yes; the gate still waits";
        assert_eq!(voted(&[vote("yes")], Some(&two)), waits);
        let mixed = [vote("yes"), vote("no")];
        assert_eq!(voted(&mixed, None), "accepted: 1 yes, 1 no; the gate still waits");
        // The run may not have heard of it yet.
        for (votes, spec) in [
            (&[vote("yes")][..], spec(1, false)),
            (&[vote("yes"), vote("yes")], two),
            (&mixed, spec(2, true)),
        ] {
            assert_eq!(voted(votes, Some(&spec)), "accepted");
        }
    }
}
