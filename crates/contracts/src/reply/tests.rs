//! A reply, row by row of the law.

use super::*;
use crate::gate::plan_form;
use crate::id::GateKey;
use crate::key::Role;
use serde_json::json;

const DEADLINE: i64 = 1_000;

fn gate(stage: GateStage, quorum: u32) -> LockedGate {
    let key = GateKey::parse("approve-plan").unwrap();
    LockedGate {
        stage,
        topic: "human:approve-plan".into(),
        spec: GateSpec { quorum, ..GateSpec::plain(key) },
        form: plan_form(),
        inputs: None,
        groups: Vec::new(),
        submitters: vec!["sub".into()],
        is_for_plan: true,
        deadline_us: DEADLINE,
    }
}

fn person(key: &str) -> Person {
    Person { key_id: key.into(), roles: vec![Role::Approver], groups: Vec::new() }
}

fn seen(key: &str) -> ReplyContext {
    ReplyContext { ballots: Vec::new(), voter: Voter::Key(person(key), Vec::new()), earlier: None }
}

fn ballot(key: &str, choice: Choice) -> Ballot {
    Ballot { voter: key.into(), authority: key.into(), choice }
}

fn earlier(payload: &Value, recorded: InteractionOutcome) -> PriorReply {
    PriorReply { key_id: "a".into(), payload_hash: digest(payload).unwrap(), recorded, at: 7 }
}

fn decide(gate: &LockedGate, seen: &ReplyContext, payload: &Value) -> Result<Outcome, Refusal> {
    decide_reply(gate, seen, Answer { key_id: "a", topic: None, payload }, DEADLINE)
}

fn vote(outcome: Result<Outcome, Refusal>) -> Vote {
    match outcome.unwrap() {
        Outcome::Counts(vote) => vote,
        other => panic!("it does not count: {other:?}"),
    }
}

#[test]
fn one_answer_decides_and_a_yes_is_the_consent() {
    let gate = gate(GateStage::Open, 1);
    let yes = vote(decide(&gate, &seen("a"), &json!({"choice": "yes", "rationale": "fine"})));
    assert!(yes.decides && yes.consents && yes.wakes);
    assert_eq!(
        (yes.recorded(), yes.rationale.as_deref()),
        (InteractionOutcome::Accepted, Some("fine"))
    );
    let no = vote(decide(&gate, &seen("a"), &json!({"choice": "no"})));
    assert!(no.decides && no.wakes && !no.consents, "a no wakes the run and consents to nothing");
    let name = LockedGate { is_for_plan: false, ..gate };
    let granted = vote(decide(&name, &seen("a"), &json!({"choice": "yes"})));
    assert!(
        granted.decides && !granted.consents && !granted.wakes,
        "a task's question parks nobody"
    );
}

#[test]
fn a_quorum_counts_and_only_the_last_vote_decides() {
    let gate = gate(GateStage::Open, 2);
    let first = vote(decide(&gate, &seen("a"), &json!({"choice": "yes"})));
    assert!(!first.decides && !first.consents && !first.wakes);
    assert_eq!(first.recorded(), InteractionOutcome::Voted);
    let with = |key, choice| ReplyContext { ballots: vec![ballot(key, choice)], ..seen("a") };
    assert!(vote(decide(&gate, &with("b", Choice::Yes), &json!({"choice": "yes"}))).consents);
    let outcome = decide(&gate, &with("a", Choice::Yes), &json!({"choice": "yes"})).unwrap();
    let Outcome::Void { recorded, refusal, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        (recorded, refusal.code),
        (InteractionOutcome::AlreadyVoted, ErrorCode::StateConflict)
    );
}

#[test]
fn what_comes_too_late_is_recorded_and_refused() {
    let yes = json!({"choice": "yes"});
    for (stage, now_us, want) in [
        (GateStage::Open, DEADLINE + 1, InteractionOutcome::Late),
        (GateStage::TimedOut, 0, InteractionOutcome::Late),
        (GateStage::Received, 0, InteractionOutcome::AlreadyDecided),
        (GateStage::Resolved, 0, InteractionOutcome::AlreadyDecided),
        (GateStage::Canceled, 0, InteractionOutcome::AlreadyDecided),
    ] {
        let answer = Answer { key_id: "a", topic: None, payload: &yes };
        let outcome = decide_reply(&gate(stage, 1), &seen("a"), answer, now_us).unwrap();
        let Outcome::Void { recorded, refusal, .. } = outcome else { panic!("{stage:?}") };
        assert_eq!((recorded, refusal.code), (want, ErrorCode::StateConflict), "{stage:?}");
        assert_eq!(refusal.message.contains("canceled"), stage == GateStage::Canceled);
    }
}

#[test]
fn a_dedupe_key_means_one_reply() {
    let (yes, no) = (json!({"choice": "yes"}), json!({"choice": "no"}));
    let with = |recorded| ReplyContext { earlier: Some(earlier(&yes, recorded)), ..seen("a") };
    let open = gate(GateStage::Open, 1);
    assert_eq!(
        decide(&open, &with(InteractionOutcome::Accepted), &yes),
        Ok(Outcome::Replay { at: 7 })
    );
    assert_eq!(
        decide(&open, &with(InteractionOutcome::Voted), &yes),
        Ok(Outcome::Replay { at: 7 })
    );
    let code = |outcome: Result<Outcome, Refusal>| outcome.unwrap_err().code;
    assert_eq!(
        code(decide(&open, &with(InteractionOutcome::Late), &yes)),
        ErrorCode::StateConflict
    );
    assert_eq!(
        code(decide(&open, &with(InteractionOutcome::Accepted), &no)),
        ErrorCode::DedupeConflict
    );
    let by_b = |quorum| {
        let answer = Answer { key_id: "b", topic: None, payload: &yes };
        let seen = ReplyContext {
            voter: Voter::Key(person("b"), Vec::new()),
            ..with(InteractionOutcome::Voted)
        };
        decide_reply(&gate(GateStage::Open, quorum), &seen, answer, 0)
    };
    assert_eq!(by_b(1), Ok(Outcome::Replay { at: 7 }));
    assert_eq!(code(by_b(2)), ErrorCode::DedupeConflict, "where answers count, another key's");
}

#[test]
fn a_topic_must_be_the_gates_while_it_waits() {
    let yes = json!({"choice": "yes"});
    let answer = Answer { key_id: "a", topic: Some("human:other"), payload: &yes };
    let of = |stage| decide_reply(&gate(stage, 1), &seen("a"), answer, 0);
    assert_eq!(of(GateStage::Open).unwrap_err().code, ErrorCode::TopicMismatch);
    assert!(matches!(of(GateStage::Received), Ok(Outcome::Void { .. })));
}

#[test]
fn edits_go_with_a_yes_and_put_the_consent_off() {
    let form = json!({"type": "object"});
    let gate = LockedGate { form, inputs: Some(json!({"n": 1})), ..gate(GateStage::Open, 1) };
    let edited = vote(decide(&gate, &seen("a"), &json!({"choice": "yes", "edits": {"n": 2}})));
    assert!(edited.decides && edited.wakes && !edited.consents);
    assert_eq!(edited.edits.len(), 1);
    let same = vote(decide(&gate, &seen("a"), &json!({"choice": "yes", "edits": {"n": 1}})));
    assert!(same.consents && same.edits.is_empty(), "an edit that changes nothing is a plain yes");
    let no = decide(&gate, &seen("a"), &json!({"choice": "no", "edits": {"n": 2}}));
    assert_eq!(no.unwrap_err().code, ErrorCode::SchemaViolation);
}

#[test]
fn who_may_not_answer_leaves_no_trace() {
    let yes = json!({"choice": "yes"});
    let strict = |mut gate: LockedGate| {
        gate.spec.self_approval = SelfApproval::Deny;
        gate
    };
    let refused = |gate: &LockedGate, voter: Voter| {
        let seen = ReplyContext { ballots: Vec::new(), voter, earlier: None };
        decide(gate, &seen, &yes).unwrap_err()
    };
    let open = strict(gate(GateStage::Open, 1));
    for voter in [Voter::NeedsKey, Voter::Link(None), Voter::Key(person("sub"), Vec::new())] {
        assert_eq!(refused(&open, voter).code, ErrorCode::Forbidden);
    }
    // Before the form is looked at, and whatever the gate's state: a stranger learns nothing of either.
    let decided = strict(gate(GateStage::Received, 1));
    assert_eq!(refused(&decided, Voter::Link(None)).code, ErrorCode::Forbidden);
    assert_eq!(decide_link(&open, &person("sub")).unwrap_err().code, ErrorCode::Forbidden);
    assert!(decide_link(&open, &person("a")).is_ok());
}
