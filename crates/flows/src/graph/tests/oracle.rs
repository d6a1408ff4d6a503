//! Random graphs in random order, against an oracle that looks at everything again and again.

use std::collections::{BTreeMap, BTreeSet};

use cofferdam_contracts::gate::Choice;
use cofferdam_contracts::id::GroupName;
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::run::{Budget, RunStatus};
use cofferdam_contracts::sandbox::ErrCode;
use serde_json::json;

use super::super::{GraphAction, GraphEvent, GraphProgress, GraphState};
use super::gates::answered;
use super::{end, plan, task};

/// Numbers of one seed.
struct GraphDice(u64);

impl GraphDice {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// A random graph, and how each attempt of each task would end.
struct GraphCase {
    plan: Plan,
    /// By task: the ends of its attempts.
    ends: Vec<Vec<ErrCode>>,
    /// By group: what its gate would say.
    answers: BTreeMap<String, Choice>,
    is_fail_fast: bool,
}

const CONDITIONS: [&str; 4] = ["succeeded", "failed", "skipped", "ended"];

fn case(dice: &mut GraphDice) -> GraphCase {
    let count = 1 + dice.below(7);
    let (mut tasks, mut groups, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let mut answers = BTreeMap::new();
    for g in 0..count {
        let name = format!("g{g}");
        let needs: Vec<String> =
            (0..g).filter(|_| dice.below(3) == 0).map(|n| format!("g{n}")).collect();
        let mut group = json!({"name": name, "needs": needs});
        match dice.below(5) {
            0 => group["when"] = json!("always"),
            1 if !needs.is_empty() => {
                let task = &needs[dice.below(needs.len())];
                let is = CONDITIONS[dice.below(4)];
                group["when"] = json!({"all": [{"all": [{"task": {"task": task, "is": is}}]}]});
            }
            _ => {}
        }
        if dice.below(3) == 0 {
            group["retry"] = json!({"max": dice.below(3), "on": ["oom"]});
        }
        if dice.below(4) == 0 {
            group["gate"] = json!(format!("gate-{g}"));
            answers.insert(name.clone(), if dice.below(3) == 0 { Choice::No } else { Choice::Yes });
        }
        groups.push(group);
        for i in 0..dice.below(4) {
            tasks.push(task(&format!("{name}.{i}")));
            let codes = [
                ErrCode::None,
                ErrCode::None,
                ErrCode::CmdNonzero,
                ErrCode::Oom,
                ErrCode::BootFail,
            ];
            ends.push((0..4).map(|_| codes[dice.below(5)]).collect());
        }
    }
    let is_fail_fast = dice.below(3) == 0;
    let more = json!({"failFast": is_fail_fast, "concurrency": 1 + dice.below(3)});
    GraphCase { plan: plan(tasks.into(), groups.into(), more), ends, answers, is_fail_fast }
}

/// What comes of a case: outcome of each group, and the attempts of each task.
#[derive(Debug, PartialEq)]
struct OracleEnds {
    outcomes: BTreeMap<String, String>,
    attempts: Vec<usize>,
    is_failed: bool,
}

/// By looking at every group until nothing changes; without `fail_fast` the order does not matter.
fn oracle(case: &GraphCase) -> OracleEnds {
    let text = serde_json::to_value(&case.plan).unwrap();
    let mut outcomes: BTreeMap<String, String> = BTreeMap::new();
    let mut attempts = vec![0; case.ends.len()];
    let mut is_failed = false;
    loop {
        let before = outcomes.len();
        for group in text["graph"]["groups"].as_array().unwrap() {
            let name = group["name"].as_str().unwrap();
            let needs: Vec<&str> = group["needs"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|n| n.as_str().unwrap())
                .collect();
            if outcomes.contains_key(name) || needs.iter().any(|need| !outcomes.contains_key(*need))
            {
                continue;
            }
            let leaf = &group["when"]["all"][0]["all"][0]["task"];
            let is_as_said = |need: &&str| match leaf["task"].as_str() {
                Some(task) if task == *need => {
                    leaf["is"] == "ended" || leaf["is"] == outcomes[*need]
                }
                _ => outcomes[*need] == "succeeded",
            };
            let starts = group["when"] == "always" || needs.iter().all(is_as_said);
            let members = case.plan.tasks.iter().enumerate();
            let members =
                members.filter(|(_, task)| task.group.as_ref().is_some_and(|g| g.as_str() == name));
            let is_refused = starts && case.answers.get(name) == Some(&Choice::No);
            let mut all_ok = true;
            for (index, _) in members {
                if !starts {
                    continue;
                }
                if is_refused {
                    all_ok = false;
                    continue;
                }
                let retry = &group["retry"];
                let (most, again): (u64, &[ErrCode]) = match retry["max"].as_u64() {
                    Some(max) => (max + 1, &[ErrCode::Oom]),
                    None => (3, &[ErrCode::BootFail]),
                };
                let most = usize::try_from(most).unwrap();
                let last = (1..=most)
                    .find(|n| *n == most || !again.contains(&case.ends[index][n - 1]))
                    .unwrap();
                attempts[index] = last;
                all_ok &= case.ends[index][last - 1] == ErrCode::None;
            }
            is_failed |= !all_ok;
            let outcome = if !starts {
                "skipped"
            } else if all_ok {
                "succeeded"
            } else {
                "failed"
            };
            outcomes.insert(name.to_owned(), outcome.to_owned());
        }
        if outcomes.len() == before {
            return OracleEnds { outcomes, attempts, is_failed };
        }
    }
}

/// A run of a case, in an order that the dice choose.
struct GraphTrace {
    attempts: Vec<usize>,
    skipped: BTreeSet<usize>,
    canceled: BTreeSet<usize>,
    status: RunStatus,
    actions: usize,
}

fn simulate(case: &GraphCase, dice: &mut GraphDice) -> GraphTrace {
    let none = GraphProgress::new();
    let mut graph = GraphState::new(&case.plan, &Budget::default(), &none);
    let (mut open, mut waits) = (Vec::<(usize, u32)>::new(), Vec::<usize>::new());
    let mut asks = Vec::<GroupName>::new();
    let mut seen = GraphTrace {
        attempts: vec![0; case.ends.len()],
        skipped: BTreeSet::new(),
        canceled: BTreeSet::new(),
        status: RunStatus::Running,
        actions: 0,
    };
    let mut event = GraphEvent::Begin;
    loop {
        for action in graph.apply(event) {
            assert_eq!(seen.status, RunStatus::Running, "nothing follows the end");
            seen.actions += 1;
            match action {
                GraphAction::Start { index, attempt, .. } => {
                    seen.attempts[index] += 1;
                    assert_eq!(usize::try_from(attempt).unwrap(), seen.attempts[index]);
                    assert!(
                        !open.iter().any(|(one, _)| *one == index)
                            && !seen.skipped.contains(&index)
                    );
                    open.push((index, attempt));
                }
                GraphAction::Wait { index, .. } => waits.push(index),
                GraphAction::Ask { group } => {
                    assert!(!asks.contains(&group));
                    asks.push(group);
                }
                GraphAction::Withdraw { group } => {
                    assert!(asks.contains(&group));
                    asks.retain(|asked| *asked != group);
                }
                GraphAction::Skip { tasks, .. } => {
                    for index in tasks {
                        assert!(seen.skipped.insert(index) && seen.attempts[index] == 0);
                    }
                }
                GraphAction::Cancel { index } => {
                    assert!(
                        seen.canceled.insert(index) && open.iter().any(|(one, _)| *one == index)
                    );
                }
                GraphAction::Finish { status, .. } => {
                    assert!(open.is_empty() && asks.is_empty());
                    seen.status = status;
                }
                GraphAction::Expand { .. } => panic!("no fan-out is late here"),
            }
        }
        assert!(open.len() <= usize::try_from(case.plan.caps.concurrency).unwrap());
        if seen.status != RunStatus::Running {
            return seen;
        }
        let n = dice.below(open.len() + waits.len() + asks.len());
        if let Some(n) = n.checked_sub(open.len() + waits.len()) {
            let group = asks.swap_remove(n);
            event = answered(group.as_str(), case.answers[group.as_str()]);
            continue;
        }
        event = match n.checked_sub(open.len()) {
            None => {
                let (index, attempt) = open.swap_remove(n);
                let code = case.ends[index][usize::try_from(attempt).unwrap() - 1];
                let code = if seen.canceled.contains(&index) { ErrCode::CmdNonzero } else { code };
                end(index, attempt, code)
            }
            Some(n) => GraphEvent::BackoffOver { index: waits.swap_remove(n) },
        };
    }
}

#[test]
fn random_graphs_end_as_the_oracle_says_in_every_order() {
    for seed in 0..5_000 {
        let mut dice = GraphDice(seed);
        let case = case(&mut dice);
        let told = oracle(&case);
        let seen = simulate(&case, &mut dice);
        let tasks = case.plan.tasks.len();
        let groups = case.plan.graph.as_ref().unwrap().groups.len();
        assert!(
            seen.actions <= 8 * tasks + 3 * groups + 1,
            "seed {seed}: {} actions",
            seen.actions
        );
        // Each task ran or was skipped, once, whatever happened.
        for index in 0..tasks {
            assert_ne!(
                seen.attempts[index] > 0,
                seen.skipped.contains(&index),
                "seed {seed}, task {index}"
            );
        }
        assert_eq!(seen.status == RunStatus::Succeeded, !told.is_failed, "seed {seed}: {told:?}");
        if case.is_fail_fast && told.is_failed {
            continue;
        }
        assert_eq!(seen.attempts, told.attempts, "seed {seed}: {told:?}");
        assert!(seen.canceled.is_empty(), "seed {seed}");
    }
}
