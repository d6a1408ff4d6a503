//! `when` in a plan: decided on the ends of tasks, without an expression language.
//!
//! **A need must have succeeded unless the condition asks for its outcome**: `when: {value: .., is: release}` does not start a
//! release behind a failed test.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::GroupName;
use crate::late::{self, LatePart, OutputValues};
use crate::start_spec::GroupOutcome;

/// When the tasks of a group start, once its needs have ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartCondition {
    /// However its needs ended.
    Always,
    /// One of these holds.
    Any(Vec<Clause>),
    /// All of these hold.
    All(Vec<Clause>),
}

/// A part of a condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Clause {
    /// One of these holds.
    Any(Vec<Condition>),
    /// All of these hold.
    All(Vec<Condition>),
}

/// What is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Condition {
    /// A task group's outcome.
    Task {
        /// The task group.
        task: GroupName,
        /// How it must have ended.
        is: GroupOutcome,
    },
    /// On a text with outputs in it.
    Value {
        /// Parts of the text. One whose output is missing equals nothing.
        value: Vec<LatePart>,
        /// What it must be.
        is: String,
    },
}

/// Ends of task groups, and what they put out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupEnds {
    /// How each group ended that has.
    pub outcomes: BTreeMap<GroupName, GroupOutcome>,
    /// Outputs of the groups that have some.
    pub outputs: OutputValues,
}

impl Condition {
    fn holds(&self, ends: &GroupEnds) -> bool {
        match self {
            Self::Task { task, is } => ends
                .outcomes
                .get(task)
                .is_some_and(|outcome| *is == GroupOutcome::Ended || outcome == is),
            Self::Value { value, is } => {
                late::text(value, &ends.outputs).is_ok_and(|text| text == *is)
            }
        }
    }
}

impl Clause {
    fn holds(&self, ends: &GroupEnds) -> bool {
        match self {
            Self::Any(parts) => parts.iter().any(|part| part.holds(ends)),
            Self::All(parts) => parts.iter().all(|part| part.holds(ends)),
        }
    }

    fn conditions(&self) -> &[Condition] {
        match self {
            Self::Any(parts) | Self::All(parts) => parts,
        }
    }
}

impl StartCondition {
    /// Every condition in it.
    pub fn conditions(&self) -> impl Iterator<Item = &Condition> {
        let clauses: &[Clause] = match self {
            Self::Always => &[],
            Self::Any(clauses) | Self::All(clauses) => clauses,
        };
        clauses.iter().flat_map(Clause::conditions)
    }

    fn names(&self, need: &GroupName) -> bool {
        self.conditions().any(|one| matches!(one, Condition::Task { task, .. } if task == need))
    }
}

/// Whether a group starts whose needs have all ended. `when`: what its recipe says; `None`: all needs succeeded.
#[must_use]
pub fn holds(when: Option<&StartCondition>, needs: &[GroupName], ends: &GroupEnds) -> bool {
    let succeeded = |need: &GroupName| ends.outcomes.get(need) == Some(&GroupOutcome::Succeeded);
    let holds = match when {
        Some(StartCondition::Always) => return true,
        None => true,
        Some(StartCondition::Any(clauses)) => clauses.iter().any(|clause| clause.holds(ends)),
        Some(StartCondition::All(clauses)) => clauses.iter().all(|clause| clause.holds(ends)),
    };
    let is_asked = |need: &GroupName| when.is_some_and(|when| when.names(need));
    holds && needs.iter().all(|need| is_asked(need) || succeeded(need))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_outputs::{OutputsKind, parse};

    fn name(text: &str) -> GroupName {
        GroupName::parse(text).unwrap()
    }

    fn ends(of: &[(&str, GroupOutcome)]) -> GroupEnds {
        let outcomes = of.iter().map(|(task, outcome)| (name(task), *outcome)).collect();
        let outputs = parse(b"kind=release", OutputsKind::Env).unwrap();
        GroupEnds { outcomes, outputs: BTreeMap::from([(name("build"), outputs)]) }
    }

    fn task(of: &str, is: GroupOutcome) -> Condition {
        Condition::Task { task: name(of), is }
    }

    fn value(output: &str, is: &str) -> Condition {
        let text = format!("${{tasks.build.outputs.{output}}}");
        let parts = late::parts(&text, false, &mut |text| Ok(text.to_owned()));
        Condition::Value { value: parts.unwrap().unwrap(), is: is.to_owned() }
    }

    fn one(condition: Condition) -> StartCondition {
        StartCondition::All(vec![Clause::All(vec![condition])])
    }

    #[test]
    fn all_needs_succeed_by_default_and_always_asks_nothing() {
        use GroupOutcome::{Failed, Skipped, Succeeded};
        let needs = [name("build"), name("test")];
        for build in [Succeeded, Failed, Skipped] {
            for test in [Succeeded, Failed, Skipped] {
                let ends = ends(&[("build", build), ("test", test)]);
                let both = build == Succeeded && test == Succeeded;
                assert_eq!(holds(None, &needs, &ends), both);
                assert!(holds(Some(&StartCondition::Always), &needs, &ends));
                let failed = one(task("test", Failed));
                assert_eq!(
                    holds(Some(&failed), &needs, &ends),
                    build == Succeeded && test == Failed
                );
                let ended = one(task("test", GroupOutcome::Ended));
                assert_eq!(holds(Some(&ended), &needs, &ends), build == Succeeded);
                let release = one(value("kind", "release"));
                assert_eq!(
                    holds(Some(&release), &needs, &ends),
                    both,
                    "a failed test stops a release"
                );
            }
        }
        assert!(holds(None, &[], &GroupEnds::default()));
    }

    #[test]
    fn values_and_any_and_all() {
        let ends = ends(&[("build", GroupOutcome::Succeeded), ("a", GroupOutcome::Failed)]);
        let holds = |when: &StartCondition| super::holds(Some(when), &[name("build")], &ends);
        assert!(!holds(&one(value("kind", "debug"))));
        assert!(!holds(&one(value("gone", ""))), "an output that is not there equals nothing");
        let no = || task("a", GroupOutcome::Succeeded);
        let yes = || value("kind", "release");
        assert!(holds(&StartCondition::Any(vec![
            Clause::All(vec![no(), yes()]),
            Clause::Any(vec![no(), yes()])
        ])));
        assert!(!holds(&StartCondition::All(vec![
            Clause::All(vec![no(), yes()]),
            Clause::Any(vec![no(), yes()])
        ])));
        assert!(
            !super::holds(Some(&one(task("z", GroupOutcome::Ended))), &[], &ends),
            "it has not ended"
        );
    }
}
