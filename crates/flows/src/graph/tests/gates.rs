//! Gates before groups, by examples.

use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::{GateKey, GroupName};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_contracts::sandbox::ErrCode;
use serde_json::{Value, json};

use super::super::{GraphAction, GraphEvent, GraphProgress, GraphState, SkipReason, StepProgress};
use super::{end, finish, ok, plan, skipped, started, task};
use crate::decide::BudgetExcess;

fn group(name: &str) -> GroupName {
    GroupName::parse(name).unwrap()
}

pub(super) fn answered(name: &str, choice: Choice) -> GraphEvent {
    let gate = GateKey::parse("release").unwrap();
    GraphEvent::Answered { group: group(name), gate, choice, is_silence: false }
}

/// `build`, `publish` of two tasks behind a gate, `tell` behind those, and `side` that waits for none.
fn gated(more: &Value) -> Plan {
    let mut publish = json!({"name": "publish", "needs": ["build"], "gate": "release"});
    if !more["when"].is_null() {
        publish["when"] = more["when"].clone();
    }
    let groups = json!([{"name": "build"}, publish, {"name": "tell", "needs": ["publish"]}, {"name": "side"}]);
    let tasks =
        json!([task("build"), task("publish.a"), task("publish.b"), task("tell"), task("side")]);
    plan(tasks, groups, more.clone())
}

#[test]
fn a_group_is_asked_for_once_and_starts_with_its_yes_while_others_go_on() {
    let (plan, none) = (gated(&json!({})), GraphProgress::new());
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    assert_eq!(started(&graph.apply(GraphEvent::Begin)), [0, 4]);
    assert_eq!(graph.apply(answered("publish", Choice::Yes)), [], "it is not asked yet");
    assert_eq!(graph.apply(ok(0)), [GraphAction::Ask { group: group("publish") }]);
    assert_eq!(graph.apply(ok(4)), [], "the run waits");
    assert_eq!(started(&graph.apply(answered("publish", Choice::Yes))), [1, 2]);
    assert_eq!(graph.apply(answered("publish", Choice::No)), [], "it was answered");
    graph.apply(ok(1));
    assert_eq!(started(&graph.apply(ok(2))), [3]);
    assert_eq!(finish(&graph.apply(ok(3))).unwrap().0, RunStatus::Succeeded);
}

#[test]
fn a_no_fails_the_group_and_what_needs_it_and_silence_says_so() {
    let (plan, none) = (gated(&json!({})), GraphProgress::new());
    for (is_silence, why) in [(false, "no at gate release"), (true, "timeout at gate release")] {
        let mut graph = GraphState::new(&plan, &Budget::default(), &none);
        graph.apply(GraphEvent::Begin);
        graph.apply(ok(4));
        graph.apply(ok(0));
        let gate = GateKey::parse("release").unwrap();
        let no =
            GraphEvent::Answered { group: group("publish"), gate, choice: Choice::No, is_silence };
        let actions = graph.apply(no);
        let want =
            [(vec![1, 2], SkipReason::Gate(why.to_owned())), (vec![3], SkipReason::Condition)];
        assert_eq!(skipped(&actions), want);
        let (status, error) = finish(&actions).unwrap();
        assert_eq!(status, RunStatus::Failed);
        assert_eq!(error, format!("task group \"publish\" was not approved: {why}"));
        let counts = graph.counts();
        assert_eq!((counts.ok, counts.failed, counts.skipped), (2, 2, 1));
    }
}

#[test]
fn a_gate_does_not_open_where_the_condition_fails() {
    let plan =
        gated(&json!({"when": {"all": [{"all": [{"task": {"task": "build", "is": "failed"}}]}]}}));
    let none = GraphProgress::new();
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    let actions = graph.apply(ok(0));
    assert_eq!(skipped(&actions)[0], (vec![1, 2], SkipReason::Condition));
    assert!(!actions.iter().any(|action| matches!(action, GraphAction::Ask { .. })), "{actions:?}");
}

#[test]
fn what_stops_the_graph_withdraws_its_gates_but_for_always() {
    let none = GraphProgress::new();
    let excess = BudgetExcess { metric: "sandbox_minutes".into(), limit: 1, observed: 2 };
    let fail = end(4, 1, ErrCode::CmdNonzero);
    for (more, stop, why) in [
        (json!({"failFast": true}), fail.clone(), Some(SkipReason::FailFast)),
        (json!({"failFast": true, "when": "always"}), fail, None),
        (json!({"when": "always"}), GraphEvent::Blocked(excess), Some(SkipReason::Budget)),
    ] {
        let plan = gated(&more);
        let mut graph = GraphState::new(&plan, &Budget::default(), &none);
        graph.apply(GraphEvent::Begin);
        graph.apply(ok(0));
        let actions = graph.apply(stop);
        let withdrawn = GraphAction::Withdraw { group: group("publish") };
        assert_eq!(actions.contains(&withdrawn), why.is_some(), "{more}: {actions:?}");
        let first = skipped(&actions).into_iter().find(|(tasks, _)| *tasks == [1, 2]);
        assert_eq!(first.map(|(_, why)| why), why, "{more}");
        let late = started(&graph.apply(answered("publish", Choice::Yes)));
        assert_eq!(late.is_empty(), why.is_some(), "{more}");
    }
}

#[test]
fn a_later_life_asks_for_what_is_left_and_what_is_done_stays_done() {
    let plan = gated(&json!({}));
    let step = |index: usize| plan.tasks[index].step_id();
    let done = || StepProgress { attempts: 1, is_done: true, outputs: None };
    let all = GraphProgress::from([0, 1, 2, 4].map(|index| (step(index), done())));
    let mut graph = GraphState::new(&plan, &Budget::default(), &all);
    assert_eq!(
        graph.apply(GraphEvent::Begin),
        [GraphAction::Start { index: 3, attempt: 1, work: None }]
    );
    let half = GraphProgress::from([0, 1, 4].map(|index| (step(index), done())));
    let mut graph = GraphState::new(&plan, &Budget::default(), &half);
    assert_eq!(graph.apply(GraphEvent::Begin), [GraphAction::Ask { group: group("publish") }]);
    let actions = graph.apply(answered("publish", Choice::No));
    assert_eq!(skipped(&actions)[0].0, [2], "the other one was done before");
    assert_eq!(graph.counts().ok, 3);
    let mut graph = GraphState::new(&plan, &Budget::default(), &half);
    graph.apply(GraphEvent::Begin);
    assert_eq!(started(&graph.apply(answered("publish", Choice::Yes))), [2]);
}
