//! What follows from the prompts of a stage so far. Pure: the rows of the ledger decide, whoever reads them.

use cofferdam_contracts::agent_plan::AgentPlan;
use cofferdam_ledger::planner::{PlannerPromptEnd, PromptOutcome};
use cofferdam_opencode::OC_TIMEOUT;
use serde_json::Value;

/// Plans that are asked for: the first, and two more with what was wrong.
const MAX_PLANS: usize = 3;
/// Smaller prompts after one that did not move.
const MAX_SMALLER: usize = 1;
/// Characters of what was wrong that an agent is told, and a cause holds.
const MAX_WORDS: usize = 2_000;

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NextPrompt {
    /// The next prompt.
    Ask(String),
    /// The agent's plan, which fits its schema; planning is over.
    Planned(Box<AgentPlan>),
    /// The agent says that it has built.
    Built,
    /// Nothing more: the code and the words.
    Fail(&'static str, String),
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

fn count(history: &[PlannerPromptEnd], outcome: PromptOutcome) -> usize {
    history.iter().filter(|one| one.outcome == outcome).count()
}

/// What follows a turn that gave no answer: a smaller prompt, or the end.
fn unanswered(
    history: &[PlannerPromptEnd],
    last: &PlannerPromptEnd,
    smaller: String,
) -> NextPrompt {
    let why = last.error.clone().unwrap_or_default();
    match last.outcome {
        PromptOutcome::Stalled if count(history, PromptOutcome::Stalled) <= MAX_SMALLER => {
            NextPrompt::Ask(smaller)
        }
        PromptOutcome::Stalled => NextPrompt::Fail(OC_TIMEOUT, why),
        PromptOutcome::Failed | PromptOutcome::Answered => NextPrompt::Fail("oc_failed", why),
    }
}

/// What follows while planning.
pub(crate) fn next_plan(goal: &str, tests: &[&str], history: &[PlannerPromptEnd]) -> NextPrompt {
    let Some(last) = history.last() else { return NextPrompt::Ask(first_plan(goal, tests)) };
    if last.outcome != PromptOutcome::Answered {
        let smaller = format!(
            "The last turn did not move and was ended. Plan the smallest change that reaches the goal: read only \
             the files that you need, then answer with the plan.\n\nGoal:\n{goal}"
        );
        return unanswered(history, last, smaller);
    }
    let wrong = match &last.structured {
        Some(answer) => match AgentPlan::read(answer, tests) {
            Ok(plan) => return NextPrompt::Planned(Box::new(plan)),
            Err(wrong) => wrong.join("\n"),
        },
        None => last.error.clone().unwrap_or_else(|| "there was no structured answer".to_owned()),
    };
    match count(history, PromptOutcome::Answered) < MAX_PLANS {
        true => NextPrompt::Ask(format!(
            "The plan does not fit its schema. Answer with a plan that does. What was wrong:\n{}",
            cut(&wrong)
        )),
        false => NextPrompt::Fail("oc_invalid_plan", cut(&wrong)),
    }
}

fn first_plan(goal: &str, tests: &[&str]) -> String {
    format!(
        "Plan how to reach the goal below in the project of the working directory. Change nothing yet. Read what you \
         need, then answer with the plan: `design` says how, `files` lists every file that will change and no other \
         (relative paths; `change` is all that may become of it; `dir/` with `edit` allows any change below it), `risks` what may go wrong, `tests` which of these tests decide: {}; `patch_plan` lists the \
         changes in order. A person reads it before anything is built.\n\nGoal:\n{goal}",
        tests.join(", ")
    )
}

/// What follows while building.
pub(crate) fn next_build(goal: &str, plan: &AgentPlan, history: &[PlannerPromptEnd]) -> NextPrompt {
    let text = serde_json::to_value(plan).as_ref().map(Value::to_string).unwrap_or_default();
    match history.last() {
        None => NextPrompt::Ask(format!(
            "A person approved the plan below. Carry it out now, in the working directory: change the files that it \
             lists and no others, and do not wait for questions. The tests run afterwards, without you.\n\nPlan:\n\
             {text}\n\nGoal:\n{goal}"
        )),
        Some(last) if last.outcome == PromptOutcome::Answered => NextPrompt::Built,
        Some(last) => {
            let smaller = format!(
                "The last turn did not move and was ended; its changes were taken back. Carry the approved plan out \
                 again, in small steps: edit one file after the other, run no long command, then stop.\n\nPlan:\n{text}"
            );
            unanswered(history, last, smaller)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(outcome: PromptOutcome, structured: Option<Value>) -> PlannerPromptEnd {
        PlannerPromptEnd { outcome, structured, raw: None, error: Some("why".to_owned()) }
    }

    fn plan() -> Value {
        json!({"design": "d", "files": [{"path": "a", "change": "edit", "why": "w"}], "risks": [],
            "tests": ["unit"], "patch_plan": ["p"]})
    }

    #[test]
    fn an_invalid_plan_is_asked_again_with_its_errors_and_then_no_more() {
        use PromptOutcome::Answered;
        let mut history = Vec::new();
        for n in 1..=MAX_PLANS {
            let NextPrompt::Ask(text) = next_plan("g", &["unit"], &history) else {
                panic!("prompt {n}")
            };
            assert_eq!(text.contains("/tests/0"), n > 1, "{text}");
            let mut bad = plan();
            bad["tests"] = json!(["other"]);
            history.push(ended(Answered, Some(bad)));
        }
        let NextPrompt::Fail(code, why) = next_plan("g", &["unit"], &history) else {
            panic!("it ends")
        };
        assert!(code == "oc_invalid_plan" && why.contains("/tests/0"), "{why}");
        history[2] = ended(Answered, Some(plan()));
        assert!(matches!(next_plan("g", &["unit"], &history), NextPrompt::Planned(_)));
    }

    #[test]
    fn answers_without_a_plan_have_an_end() {
        let mut history = vec![ended(PromptOutcome::Answered, None); MAX_PLANS - 1];
        assert!(matches!(next_plan("g", &["unit"], &history), NextPrompt::Ask(_)));
        history.push(ended(PromptOutcome::Answered, None));
        assert!(matches!(
            next_plan("g", &["unit"], &history),
            NextPrompt::Fail("oc_invalid_plan", _)
        ));
    }

    #[test]
    fn a_stalled_turn_is_asked_smaller_once_and_then_ends_as_a_timeout() {
        let plan = AgentPlan::read(&plan(), &["unit"]).unwrap();
        let mut history = vec![ended(PromptOutcome::Stalled, None)];
        for next in [next_plan("g", &["unit"], &history), next_build("g", &plan, &history)] {
            assert!(matches!(next, NextPrompt::Ask(_)), "{next:?}");
        }
        history.push(ended(PromptOutcome::Stalled, None));
        for next in [next_plan("g", &["unit"], &history), next_build("g", &plan, &history)] {
            assert!(matches!(next, NextPrompt::Fail("oc_timeout", _)), "{next:?}");
        }
    }

    #[test]
    fn a_turn_that_the_daemon_ended_is_not_asked_again() {
        let plan = AgentPlan::read(&plan(), &["unit"]).unwrap();
        let history = [ended(PromptOutcome::Failed, None)];
        assert!(matches!(next_plan("g", &["unit"], &history), NextPrompt::Fail("oc_failed", _)));
        assert!(matches!(next_build("g", &plan, &history), NextPrompt::Fail("oc_failed", _)));
        let history = [ended(PromptOutcome::Answered, None)];
        assert_eq!(next_build("g", &plan, &history), NextPrompt::Built);
    }
}
