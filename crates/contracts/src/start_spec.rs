//! `when` as a recipe writes it: on the outcome of a task, or on a value.
//!
//! ```text
//! when: always
//! when: {task: test, is: failed}
//! when: {value: "${tasks.build.outputs.kind}", is: release}
//! when: {any: [{task: unit, is: failed}, {all: [..]}]}       any and all nest once
//! ```

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::GroupName;
use crate::own_schema::own_schema;

/// Conditions of one `when`: more than a person reads.
pub const MAX_CONDITIONS: usize = 64;

named! {
    /// How a task group ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum GroupOutcome {
        /// Each of its tasks succeeded.
        Succeeded = "succeeded",
        /// One of its tasks did not succeed.
        Failed = "failed",
        /// None of its tasks was started.
        Skipped = "skipped",
        /// In a condition: it ended in any of these ways.
        Ended = "ended",
    }
}

/// When a task starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartSpec {
    /// Once its needs have ended, however they did, and also after `fail_fast`.
    Always,
    /// Where this holds.
    Condition(Box<ConditionFields>),
}

/// A condition. Exactly one of `task`, `value`, `any` and `all`.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConditionFields {
    /// A task by its id.
    pub task: Option<GroupName>,
    /// A text with an output or an input, such as `${tasks.build.outputs.kind}`.
    pub value: Option<String>,
    /// Of a task `succeeded`, `failed`, `skipped` or `ended`; of a value the text that it must be.
    pub is: Option<String>,
    /// One of these must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub any: Vec<ConditionFields>,
    /// All of these must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub all: Vec<ConditionFields>,
}

own_schema!(StartSpec, |generator| {
    let fields = generator.subschema_for::<ConditionFields>();
    json_schema!({"oneOf": [{"type": "string", "const": "always"}, fields]})
});

impl Serialize for StartSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Always => serializer.serialize_str("always"),
            Self::Condition(fields) => fields.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for StartSpec {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = StartSpec;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "`always`, or a condition: {task, is}, {value, is}, {any: [..]} or {all: [..]}",
                )
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StartSpec, E> {
                match text {
                    "always" => Ok(StartSpec::Always),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<StartSpec, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                Ok(StartSpec::Condition(Box::new(ConditionFields::deserialize(map)?)))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// What a condition is about.
pub(crate) enum ConditionKind<'a> {
    /// A task's outcome.
    Task(&'a GroupName, GroupOutcome),
    /// A text, and what it has to be.
    Value(&'a str, &'a str),
    /// One of several.
    Any(&'a [ConditionFields]),
    /// All of several.
    All(&'a [ConditionFields]),
}

impl ConditionFields {
    /// What it is about.
    ///
    /// # Errors
    /// None or several of the four, or an `is` that does not fit.
    pub(crate) fn kind(&self) -> Result<ConditionKind<'_>, String> {
        match (&self.task, &self.value, &self.is, self.any.as_slice(), self.all.as_slice()) {
            (Some(task), None, Some(is), [], []) => {
                let outcome = GroupOutcome::parse(is)
                    .ok_or(".is: of a task write succeeded, failed, skipped or ended")?;
                Ok(ConditionKind::Task(task, outcome))
            }
            (None, Some(value), Some(is), [], []) => Ok(ConditionKind::Value(value, is)),
            (None, None, None, any @ [_, ..], []) => Ok(ConditionKind::Any(any)),
            (None, None, None, [], all @ [_, ..]) => Ok(ConditionKind::All(all)),
            _ => Err(": write exactly one of {task, is}, {value, is}, {any: [..]} and {all: [..]}"
                .to_owned()),
        }
    }

    /// The conditions on a task or a value, each with its field in the recipe. `any` and `all` nest once, so this ends.
    ///
    /// # Errors
    /// The field that does not hold together.
    pub(crate) fn leaves(&self) -> Result<Vec<(String, &ConditionFields)>, String> {
        let mut leaves = Vec::new();
        let mut open = vec![(String::new(), self, 0_u8)];
        while let Some((at, fields, depth)) = open.pop() {
            let (name, parts) = match fields.kind().map_err(|why| format!("when{at}{why}"))? {
                ConditionKind::Any(parts) => ("any", parts),
                ConditionKind::All(parts) => ("all", parts),
                ConditionKind::Task(..) | ConditionKind::Value(..) => {
                    leaves.push((format!("when{at}"), fields));
                    if leaves.len() > MAX_CONDITIONS {
                        return Err(format!("when: at most {MAX_CONDITIONS} conditions"));
                    }
                    continue;
                }
            };
            if depth == 2 {
                return Err(format!("when{at}: `any` and `all` nest only once"));
            }
            if parts.len() > MAX_CONDITIONS {
                return Err(format!("when: at most {MAX_CONDITIONS} conditions"));
            }
            let parts = parts.iter().enumerate().rev();
            open.extend(parts.map(|(i, part)| (format!("{at}.{name}[{i}]"), part, depth + 1)));
        }
        Ok(leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn leaves(value: Value) -> Result<Vec<String>, String> {
        match serde_json::from_value(value).unwrap() {
            StartSpec::Always => Ok(Vec::new()),
            StartSpec::Condition(fields) => {
                fields.leaves().map(|all| all.into_iter().map(|(at, _)| at).collect())
            }
        }
    }

    #[test]
    fn conditions_are_found_with_their_fields() {
        assert_eq!(leaves(json!("always")), Ok(vec![]));
        assert_eq!(leaves(json!({"task": "a", "is": "failed"})), Ok(vec!["when".to_owned()]));
        let nested =
            json!({"any": [{"task": "a", "is": "failed"}, {"all": [{"value": "x", "is": "y"}]}]});
        assert_eq!(leaves(nested).unwrap(), ["when.any[0]", "when.any[1].all[0]"]);
    }

    #[test]
    fn what_does_not_hold_together_is_refused_by_its_field() {
        let leaf = json!({"task": "a", "is": "failed"});
        for (value, word) in [
            (json!({}), "when: write exactly one"),
            (json!({"task": "a"}), "when: write exactly one"),
            (json!({"task": "a", "is": "green"}), "when.is: of a task"),
            (json!({"task": "a", "value": "b", "is": "failed"}), "when: write exactly one"),
            (json!({"any": [{"all": [{"any": [leaf]}]}]}), "nest only once"),
            (json!({"all": vec![leaf; 65]}), "at most 64"),
        ] {
            let error = leaves(value).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        for bad in
            [json!("never"), json!(3), json!({"task": "A B", "is": "failed"}), json!({"if": "x"})]
        {
            assert!(serde_json::from_value::<StartSpec>(bad.clone()).is_err(), "{bad}");
        }
    }
}
