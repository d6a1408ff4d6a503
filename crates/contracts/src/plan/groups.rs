//! Task groups of a plan, from the entries of its recipe.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fault::Fault;
use super::render::late_parts;
use super::task_config::text;
use crate::graph::needs_of;
use crate::id::GroupName;
use crate::late::LatePart;
use crate::pipeline::{LateFanout, PlanGraph, PlanGroup};
use crate::recipe::{Recipe, TaskSpec};
use crate::start_condition::{Clause, Condition, StartCondition};
use crate::start_spec::{ConditionFields, ConditionKind, StartSpec};
use crate::template::Scope;
use crate::work::PlanTask;

/// The graph while the tasks of its groups are rendered; without one, tasks have no groups.
pub(super) struct GraphDraft {
    names: Vec<GroupName>,
    graph: Option<PlanGraph>,
}

impl GraphDraft {
    pub(super) fn of(recipe: &Recipe) -> Self {
        let fail_fast = recipe.plan.fail_fast;
        let graph = recipe.pipeline_field().map(|_| PlanGraph { fail_fast, groups: Vec::new() });
        Self { names: recipe.group_names(), graph }
    }

    /// Adds the group of an entry. `template`: its task, where an output says how many there are.
    pub(super) fn group(
        &mut self,
        entry: usize,
        spec: &TaskSpec,
        template: Option<PlanTask>,
        scope: &Scope<'_>,
    ) -> Result<(), Fault> {
        let (Some(graph), Some(name)) = (&mut self.graph, self.names.get(entry)) else {
            return Ok(());
        };
        let fanout = match (template, spec.late_each()) {
            (Some(task), Some(over)) => {
                let name = late_parts(&spec.name, scope, "name", true)?;
                let name =
                    name.ok_or("name: two tasks would be called so; use ${item} or ${index}")?;
                let task = PlanTask { group: self.names.get(entry).cloned(), ..task };
                Some(Box::new(LateFanout { over, name, task }))
            }
            _ => None,
        };
        let needs = needs_of(spec)?.into_iter().map(|need| need.name);
        graph.groups.push(PlanGroup {
            name: name.clone(),
            needs: needs.collect::<std::collections::BTreeSet<_>>().into_iter().collect(),
            when: spec.when.as_ref().map(|when| condition(when, scope)).transpose()?,
            gate: spec.gate.clone(),
            retry: spec.retry.clone(),
            fans_out: spec.each.is_some() || spec.matrix.is_some(),
            outputs: spec.outputs.clone(),
            fanout,
        });
        Ok(())
    }

    /// A task of an entry, as a member of its group.
    pub(super) fn member(&self, entry: usize, task: PlanTask) -> PlanTask {
        let group = self.graph.as_ref().and_then(|_| self.names.get(entry).cloned());
        PlanTask { group, ..task }
    }

    pub(super) fn graph(self) -> Option<PlanGraph> {
        self.graph
    }
}

/// Every combination of a matrix's values: the last name varies fastest. The recipe's check bounds how many there are.
pub(super) fn product(matrix: &BTreeMap<String, Vec<Value>>) -> Vec<Value> {
    let mut all = vec![Map::new()];
    for (name, values) in matrix {
        let with = |one: &Map<String, Value>, value: &Value| {
            let mut one = one.clone();
            one.insert(name.clone(), value.clone());
            one
        };
        all = all.iter().flat_map(|one| values.iter().map(move |value| with(one, value))).collect();
    }
    all.into_iter().map(Value::Object).collect()
}

/// `when` with everything rendered that is known.
fn condition(when: &StartSpec, scope: &Scope<'_>) -> Result<StartCondition, Fault> {
    let StartSpec::Condition(fields) = when else { return Ok(StartCondition::Always) };
    let clauses = |parts: &[ConditionFields]| {
        parts.iter().map(|part| clause(part, scope)).collect::<Result<Vec<_>, Fault>>()
    };
    Ok(match fields.kind().map_err(|why| format!("when{why}"))? {
        ConditionKind::Any(parts) => StartCondition::Any(clauses(parts)?),
        ConditionKind::All(parts) => StartCondition::All(clauses(parts)?),
        ConditionKind::Task(..) | ConditionKind::Value(..) => {
            StartCondition::All(vec![clause(fields, scope)?])
        }
    })
}

fn clause(fields: &ConditionFields, scope: &Scope<'_>) -> Result<Clause, Fault> {
    let leaves = |parts: &[ConditionFields]| {
        parts.iter().map(|part| leaf(part, scope)).collect::<Result<Vec<_>, Fault>>()
    };
    Ok(match fields.kind().map_err(|why| format!("when{why}"))? {
        ConditionKind::Any(parts) => Clause::Any(leaves(parts)?),
        ConditionKind::All(parts) => Clause::All(leaves(parts)?),
        ConditionKind::Task(..) | ConditionKind::Value(..) => {
            Clause::All(vec![leaf(fields, scope)?])
        }
    })
}

fn leaf(fields: &ConditionFields, scope: &Scope<'_>) -> Result<Condition, Fault> {
    match fields.kind().map_err(|why| format!("when{why}"))? {
        ConditionKind::Task(task, is) => Ok(Condition::Task { task: task.clone(), is }),
        ConditionKind::Value(value, is) => {
            let field = "when.value";
            let value = match late_parts(value, scope, field, false)? {
                Some(parts) => parts,
                None => vec![LatePart::Text(text(value, scope, field)?)],
            };
            Ok(Condition::Value { value, is: is.to_owned() })
        }
        ConditionKind::Any(_) | ConditionKind::All(_) => {
            Err("when: `any` and `all` nest only once".into())
        }
    }
}
