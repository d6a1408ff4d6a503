//! The graph by examples.

mod gates;
mod oracle;

use cofferdam_contracts::late::LatePart;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::retry_spec::AttemptEnd;
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_contracts::sandbox::ErrCode;
use cofferdam_contracts::task_outputs::{OutputsKind, TaskOutputs, parse};
use serde_json::{Value, json};

use super::{
    GraphAction, GraphEvent, GraphProgress, GraphState, SkipReason, StepProgress, TaskEnd,
};
use crate::decide::{self, BudgetExcess, Miss, Next, Round};

fn plan(tasks: Value, groups: Value, more: Value) -> Plan {
    let mut graph = json!({"groups": groups});
    let mut caps = json!({"concurrency": 100, "steps": 10_000, "sandbox_minutes": 60});
    if more["failFast"] == true {
        graph["failFast"] = json!(true);
    }
    for cap in ["concurrency", "steps"] {
        if !more[cap].is_null() {
            caps[cap] = more[cap].clone();
        }
    }
    serde_json::from_value(json!({
        "recipeRef": {"id": "r", "v": "1"}, "recipeHash": "a".repeat(64), "caps": caps, "tasks": tasks, "graph": graph,
    }))
    .unwrap()
}

fn task(name: &str) -> Value {
    json!({"name": name, "work": {"value": "x"}, "group": name.split('.').next().unwrap()})
}

fn end(index: usize, attempt: u32, err_code: ErrCode) -> GraphEvent {
    let exit = if err_code == ErrCode::None { 0 } else { 1 };
    let end = AttemptEnd { err_code, exit: Some(exit), permanent: false };
    GraphEvent::Ended(TaskEnd { index, attempt, end, cause: None, outputs: None })
}

fn ok(index: usize) -> GraphEvent {
    end(index, 1, ErrCode::None)
}

fn with_outputs(index: usize, outputs: &Value) -> GraphEvent {
    let outputs: TaskOutputs = parse(outputs.to_string().as_bytes(), OutputsKind::Json).unwrap();
    let GraphEvent::Ended(end) = ok(index) else { unreachable!() };
    GraphEvent::Ended(TaskEnd { outputs: Some(outputs), ..end })
}

fn started(actions: &[GraphAction]) -> Vec<usize> {
    let index = |action: &GraphAction| match action {
        GraphAction::Start { index, .. } => Some(*index),
        _ => None,
    };
    actions.iter().filter_map(index).collect()
}

fn finish(actions: &[GraphAction]) -> Option<(RunStatus, String)> {
    match actions.last() {
        Some(GraphAction::Finish { status, error }) => {
            Some((*status, error.clone().unwrap_or_default()))
        }
        _ => None,
    }
}

fn skipped(actions: &[GraphAction]) -> Vec<(Vec<usize>, SkipReason)> {
    let one = |action: &GraphAction| match action {
        GraphAction::Skip { tasks, why, .. } => Some((tasks.clone(), why.clone())),
        _ => None,
    };
    actions.iter().filter_map(one).collect()
}

fn diamond(more: Value) -> Plan {
    let names = ["a", "b", "c", "d"];
    let groups = json!([
        {"name": "a"}, {"name": "b", "needs": ["a"]}, {"name": "c", "needs": ["a"]}, {"name": "d", "needs": ["b", "c"]},
    ]);
    plan(names.iter().map(|name| task(name)).collect(), groups, more)
}

#[test]
fn a_diamond_starts_each_task_once_its_needs_ended() {
    let (plan, none) = (diamond(json!({})), GraphProgress::new());
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    assert_eq!(started(&graph.apply(GraphEvent::Begin)), [0]);
    assert_eq!(started(&graph.apply(ok(0))), [1, 2]);
    assert_eq!(graph.apply(ok(0)), [], "an end that was heard before changes nothing");
    assert_eq!(graph.apply(ok(1)), []);
    assert_eq!(started(&graph.apply(ok(2))), [3]);
    let done = finish(&graph.apply(ok(3))).unwrap();
    assert_eq!(done, (RunStatus::Succeeded, String::new()));
    assert_eq!(graph.apply(GraphEvent::Canceled), []);
}

#[test]
fn what_waits_for_a_failure_is_skipped_and_the_rest_goes_on() {
    let (plan, none) = (diamond(json!({})), GraphProgress::new());
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    graph.apply(ok(0));
    assert_eq!(graph.apply(end(1, 1, ErrCode::CmdNonzero)), []);
    let actions = graph.apply(ok(2));
    assert_eq!(skipped(&actions), [(vec![3], SkipReason::Condition)]);
    let (status, error) = finish(&actions).unwrap();
    assert_eq!((status, error.as_str()), (RunStatus::Failed, "task \"b\" ended with CMD_NONZERO"));
}

#[test]
fn a_retry_of_one_task_leaves_the_others_alone() {
    let groups =
        json!([{"name": "a", "retry": {"max": 2, "on": ["oom"], "backoff": "5s"}}, {"name": "b"}]);
    let plan = plan(json!([task("a"), task("b")]), groups, json!({}));
    let none = GraphProgress::new();
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    assert_eq!(started(&graph.apply(GraphEvent::Begin)), [0, 1]);
    assert_eq!(
        graph.apply(end(0, 1, ErrCode::Oom)),
        [GraphAction::Wait { index: 0, backoff_ms: 5_000 }]
    );
    assert_eq!(graph.apply(ok(1)), []);
    let again = graph.apply(GraphEvent::BackoffOver { index: 0 });
    assert_eq!(again, [GraphAction::Start { index: 0, attempt: 2, work: None }]);
    assert_eq!(graph.apply(GraphEvent::BackoffOver { index: 0 }), []);
    assert_eq!(graph.apply(end(0, 1, ErrCode::None)), [], "the first attempt has ended");
    let resumed = graph.apply(GraphEvent::Resumed { index: 0, attempt: 2 });
    assert_eq!(resumed, [GraphAction::Start { index: 0, attempt: 3, work: None }]);
    graph.apply(end(0, 3, ErrCode::Oom));
    graph.apply(GraphEvent::BackoffOver { index: 0 });
    let (status, error) = finish(&graph.apply(end(0, 4, ErrCode::Oom))).unwrap();
    let said = "task \"a\" ended with OOM after 3 attempts";
    assert_eq!((status, error.as_str()), (RunStatus::RetriesExceeded, said));
}

#[test]
fn fail_fast_cancels_and_skips_all_but_always() {
    let groups = json!([{"name": "a"}, {"name": "b"}, {"name": "c", "needs": ["b"]}, {"name": "d", "needs": ["c"], "when": "always"}]);
    let tasks = json!([task("a"), task("b"), task("c"), task("d")]);
    let plan = plan(tasks, groups, json!({"failFast": true}));
    let none = GraphProgress::new();
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    let actions = graph.apply(end(0, 1, ErrCode::Timeout));
    assert_eq!(actions, [GraphAction::Cancel { index: 1 }]);
    // Whatever its end: it is not tried again.
    let actions = graph.apply(end(1, 1, ErrCode::BootFail));
    assert_eq!(skipped(&actions), [(vec![2], SkipReason::FailFast)]);
    assert_eq!(started(&actions), [3]);
    let (status, error) = finish(&graph.apply(ok(3))).unwrap();
    assert_eq!((status, error.as_str()), (RunStatus::Failed, "task \"a\" ended with TIMEOUT"));
}

#[test]
fn a_budget_ends_always_too_and_so_does_a_cancel() {
    let groups = json!([{"name": "a"}, {"name": "b", "needs": ["a"], "when": "always"}]);
    let plan = plan(json!([task("a"), task("b")]), groups, json!({}));
    let none = GraphProgress::new();
    let excess = BudgetExcess { metric: "sandbox_minutes".into(), limit: 1, observed: 2 };
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    assert_eq!(
        graph.apply(GraphEvent::Blocked(excess.clone())),
        [GraphAction::Cancel { index: 0 }]
    );
    assert_eq!(graph.apply(GraphEvent::Blocked(excess)), []);
    let actions = graph.apply(end(0, 1, ErrCode::CmdNonzero));
    assert_eq!(skipped(&actions), [(vec![1], SkipReason::Budget)]);
    let (status, error) = finish(&actions).unwrap();
    assert_eq!(status, RunStatus::Failed);
    assert_eq!(error, "budget reached: sandbox_minutes is 1, observed 2");
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    let actions = graph.apply(GraphEvent::Canceled);
    assert_eq!(actions[0], GraphAction::Cancel { index: 0 });
    assert_eq!(finish(&actions).unwrap().0, RunStatus::Canceled);
    assert_eq!(graph.apply(ok(0)), []);
}

fn fanout(more: Value) -> Plan {
    let part = |filter: Value| json!({"item": filter});
    let groups = json!([
        {"name": "list", "outputs": "out.json"},
        {"name": "test", "needs": ["list"], "fanout": {
            "over": {"task": "list", "name": "shards"},
            "name": [{"text": "test-"}, part(json!({}))],
            "task": {"name": "test-${item}", "work": {"value": ""}, "group": "test",
                     "late": [{"at": "/value", "parts": [part(json!({"filter": "sh"})), "count"]}]},
        }},
        {"name": "merge", "needs": ["test"]},
    ]);
    plan(json!([task("list"), task("merge")]), groups, more)
}

#[test]
fn an_output_fans_out_within_its_bounds() {
    let none = GraphProgress::new();
    let after = |shards: &Value, more: Value| {
        let plan = fanout(more);
        let mut graph = GraphState::new(&plan, &Budget::default(), &none);
        assert_eq!(started(&graph.apply(GraphEvent::Begin)), [0]);
        let actions = graph.apply(with_outputs(0, &json!({"shards": shards})));
        let ids = started(&actions);
        let names: Vec<_> = ids.iter().map(|index| graph.task(*index).unwrap().clone()).collect();
        (actions, names)
    };
    let (actions, tasks) = after(&json!(["a", "it's"]), json!({}));
    assert!(matches!(&actions[0], GraphAction::Expand { first: 2, tasks, .. } if tasks.len() == 2));
    let named: Vec<_> = tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(named, ["test-a", "test-it's"]);
    assert_eq!(serde_json::to_value(&tasks[1].work).unwrap(), json!({"value": r"'it'\''s'2"}));
    // None at all: what waits for them goes on.
    let (actions, tasks) = after(&json!([]), json!({}));
    assert_eq!((tasks.len(), started(&actions)), (1, vec![1]));
    for (shards, more, word) in [
        (json!(["a", "a"]), json!({}), "one name"),
        (json!("a"), json!({}), "not a list"),
        (json!(["a", "b", "c"]), json!({"steps": 4}), "5 tasks, at most 4"),
        (json!(["a\nb"]), json!({}), "control characters"),
        (json!(["x".repeat(200)]), json!({}), "1 to 128 characters"),
    ] {
        let (actions, _) = after(&shards, more);
        let (status, error) = finish(&actions).unwrap();
        assert!(status == RunStatus::Failed && error.contains(word), "{error}");
        assert_eq!(skipped(&actions).len(), 2);
    }
}

#[test]
fn what_outputs_make_of_a_run_has_bounds() {
    use cofferdam_contracts::late::{MAX_LATE_BYTES, MAX_RUN_OUTPUT_BYTES};
    // A fan-out whose tasks have a megabyte each.
    let mut plan = fanout(json!({}));
    let groups = &mut plan.graph.as_mut().unwrap().groups;
    let fanout = groups[1].fanout.as_mut().unwrap();
    fanout.task.late[0].parts.push(LatePart::Text("x".repeat(1_000_000)));
    let none = GraphProgress::new();
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    let shards: Vec<usize> = (0..MAX_LATE_BYTES / 1_000_000 + 1).collect();
    let actions = graph.apply(with_outputs(0, &json!({"shards": shards})));
    let (_, error) = finish(&actions).unwrap();
    assert!(error.contains("more than 64 MiB"), "{error}");
    // Tasks that put out 250 kB each.
    let values: serde_json::Map<String, Value> =
        (0..16).map(|n| (format!("v{n}"), json!("x".repeat(15_600)))).collect();
    let values = Value::Object(values);
    let count = MAX_RUN_OUTPUT_BYTES / values.to_string().len() + 1;
    let names: Vec<String> = (0..count).map(|n| format!("t{n}")).collect();
    let tasks: Vec<Value> = names.iter().map(|name| task(name)).collect();
    let groups: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "outputs": "o.json"})).collect();
    let plan = self::plan(json!(tasks), json!(groups), json!({}));
    let mut graph = GraphState::new(&plan, &Budget::default(), &none);
    graph.apply(GraphEvent::Begin);
    let last = (0..count).map(|index| graph.apply(with_outputs(index, &values))).last().unwrap();
    let (status, error) = finish(&last).unwrap();
    assert!(status == RunStatus::Failed && error.contains("may put out 16 MiB"), "{error}");
}

#[test]
fn outputs_reach_texts_and_a_missing_one_fails_its_task() {
    let groups = json!([{"name": "a", "outputs": "o.env"}, {"name": "b", "needs": ["a"]}]);
    let late = json!({"at": "/value", "parts": [{"text": "v"}, {"output": {"of": {"task": "a", "name": "version"}}}]});
    let b = json!({"name": "b", "work": {"value": ""}, "group": "b", "late": [late]});
    let plan = plan(json!([task("a"), b]), groups, json!({}));
    let none = GraphProgress::new();
    let begin = || {
        let mut graph = GraphState::new(&plan, &Budget::default(), &none);
        graph.apply(GraphEvent::Begin);
        graph
    };
    let actions = begin().apply(with_outputs(0, &json!({"version": "${form.x}"})));
    let GraphAction::Start { index: 1, attempt: 1, work: Some(work) } = &actions[0] else {
        panic!("{actions:?}")
    };
    assert_eq!(serde_json::to_value(work).unwrap(), json!({"value": "v${form.x}"}));
    let actions = begin().apply(ok(0));
    let (status, error) = finish(&actions).unwrap();
    assert_eq!(status, RunStatus::Failed);
    assert!(error.contains("has no output \"version\""), "{error}");
}

#[test]
fn a_later_life_starts_what_has_not_succeeded() {
    let plan = diamond(json!({}));
    let step = |index: usize| plan.tasks[index].step_id();
    let life = |attempts, is_done| StepProgress { attempts, is_done, outputs: None };
    let progress = GraphProgress::from([
        (step(0), life(1, true)),
        (step(1), life(1, true)),
        (step(2), life(3, false)),
    ]);
    let mut graph = GraphState::new(&plan, &Budget::default(), &progress);
    let actions = graph.apply(GraphEvent::Begin);
    assert_eq!(actions, [GraphAction::Start { index: 2, attempt: 4, work: None }]);
    assert_eq!(started(&graph.apply(end(2, 4, ErrCode::None))), [3]);
}

/// Of a round without edges both say the same.
#[test]
fn without_a_graph_the_status_is_that_of_rounds() {
    let text = json!({
        "recipeRef": {"id": "r", "v": "1"}, "recipeHash": "a".repeat(64),
        "caps": {"concurrency": 1, "steps": 9, "sandbox_minutes": 60}, "tasks": [{"name": "t", "work": {"value": "x"}}],
    });
    let plan: Plan = serde_json::from_value(text).unwrap();
    let none = GraphProgress::new();
    for retries in (0..=10).map(Some).chain([None]) {
        let budget = Budget { max_retries_per_step: retries, ..Budget::default() };
        for (err_code, permanent) in
            ErrCode::ALL.iter().flat_map(|code| [(*code, false), (*code, true)])
        {
            let mut graph = GraphState::new(&plan, &budget, &none);
            graph.apply(GraphEvent::Begin);
            for attempt in 1.. {
                let missed = Miss { index: 0, name: "t".into(), err_code, cause: None, permanent };
                let missed = if err_code == ErrCode::None { vec![] } else { vec![missed] };
                let round = Round { missed, ..Round::none() };
                let end = AttemptEnd { err_code, exit: Some(1), permanent };
                let ended = TaskEnd { index: 0, attempt, end, cause: None, outputs: None };
                let actions = graph.apply(GraphEvent::Ended(ended));
                match decide::after_round(&round, attempt, &budget) {
                    Next::Again { backoff_ms, .. } => {
                        assert_eq!(actions, [GraphAction::Wait { index: 0, backoff_ms }]);
                        graph.apply(GraphEvent::BackoffOver { index: 0 });
                    }
                    Next::Finish { status, error } => {
                        assert_eq!(actions, [GraphAction::Finish { status, error }]);
                        break;
                    }
                }
            }
        }
    }
}
