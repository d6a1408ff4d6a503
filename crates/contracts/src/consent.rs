//! What an approval is bound to, and how what would run now differs from it.
//!
//! A consent holds the digests of five parts: the plan, the sandboxes' own spec, the egress of every
//! phase, the images as they are resolved, and the budget. Each is compared before anything starts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::canonical::{self, CanonicalError};
use crate::gate_spec::escape;
use crate::id::Digest;
use crate::plan::Plan;
use crate::run::Budget;

/// Differences that are shown: a person reads them.
pub const MAX_DIFFERENCES: usize = 50;
/// Bytes of a value that is shown.
const MAX_SHOWN: usize = 256;
/// Bytes of a part that is kept beside its digest, so that a difference can name fields. A larger one
/// differs as a whole.
const MAX_KEPT: usize = 64 * 1024;

/// The digests that a consent is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bindings {
    /// Of the plan, whole.
    pub plan: Digest,
    /// Of what is asked of each task's sandbox, without its network and image.
    pub sandbox: Digest,
    /// Of what each phase of each task may reach.
    pub egress: Digest,
    /// Of each task's image, as it was resolved.
    pub image: Digest,
    /// Of the run's budget, the recipe's caps and the run's timeout.
    pub budget: Digest,
}

impl Bindings {
    /// By name, in the order in which they are compared.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, &Digest); 5] {
        [
            ("plan", &self.plan),
            ("sandbox", &self.sandbox),
            ("egress", &self.egress),
            ("image", &self.image),
            ("budget", &self.budget),
        ]
    }
}

/// What would run: the parts by name, with their digests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Digests of the parts.
    pub bindings: Bindings,
    /// The parts, those that are small enough to show.
    pub parts: BTreeMap<String, Value>,
}

/// One difference, as a person is shown it.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Part that differs: `plan`, `sandbox`, `egress`, `image` or `budget`.
    pub part: String,
    /// JSON Pointer within it.
    pub path: String,
    /// What was approved, as JSON; absent: nothing.
    pub approved: Option<String>,
    /// What would run now, as JSON; absent: nothing.
    pub now: Option<String>,
}

/// Collects what a consent binds. `pin` resolves an `envRef` on this host.
pub fn facts(
    plan: &Plan,
    budget: &Budget,
    timeout_ms: Option<u64>,
    pin: &dyn Fn(&str) -> String,
) -> Result<Facts, CanonicalError> {
    let (mut sandbox, mut egress, mut image) = (vec![], vec![], vec![]);
    for task in plan.all_tasks() {
        let Some(request) = task.work.request() else { continue };
        let build = request.build.as_ref().map(|b| &b.egress);
        egress.push(json!({"task": task.name, "build": build, "exec": request.egress}));
        image.push(json!({"task": task.name, "envRef": request.env_ref, "resolved": pin(&request.env_ref)}));
        let mut rest = serde_json::to_value(request).unwrap_or(Value::Null);
        if let Some(fields) = rest.as_object_mut() {
            fields.retain(|name, _| name != "net" && name != "envRef");
            if let Some(build) = fields.get_mut("build").and_then(Value::as_object_mut) {
                build.remove("net");
            }
        }
        sandbox.push(json!({"task": task.name, "spec": rest}));
    }
    let caps = json!({"budget": budget, "caps": plan.caps, "timeoutMS": timeout_ms});
    let mut parts = BTreeMap::new();
    let bindings = Bindings {
        plan: bind(&mut parts, "plan", plan)?,
        sandbox: bind(&mut parts, "sandbox", &sandbox)?,
        egress: bind(&mut parts, "egress", &egress)?,
        image: bind(&mut parts, "image", &image)?,
        budget: bind(&mut parts, "budget", &caps)?,
    };
    Ok(Facts { bindings, parts })
}

/// A part's digest; the part itself is kept where it is small enough.
fn bind(
    parts: &mut BTreeMap<String, Value>,
    name: &str,
    part: &impl Serialize,
) -> Result<Digest, CanonicalError> {
    let bytes = canonical::canonical(part)?;
    if bytes.len() <= MAX_KEPT {
        parts.insert(name.to_owned(), serde_json::to_value(part).unwrap_or(Value::Null));
    }
    Ok(canonical::digest_bytes(&bytes))
}

/// What differs between what was approved and what would run; empty: the consent holds.
#[must_use]
pub fn differences(approved: &Facts, now: &Facts) -> Vec<Difference> {
    let mut found = Vec::new();
    for ((part, was), (_, is)) in approved.bindings.parts().into_iter().zip(now.bindings.parts()) {
        if was == is {
            continue;
        }
        let before = found.len();
        if let (Some(a), Some(b)) = (approved.parts.get(part), now.parts.get(part)) {
            walk(part, String::new(), a, b, &mut found);
        }
        // A part that is not kept, or whose kept text does not tell: it still differs.
        if found.len() == before {
            let digest = |d: &Digest| Some(format!("sha256:{d}"));
            found.push(Difference {
                part: part.into(),
                path: String::new(),
                approved: digest(was),
                now: digest(is),
            });
        }
    }
    found.truncate(MAX_DIFFERENCES);
    found
}

fn walk(part: &str, path: String, was: &Value, is: &Value, found: &mut Vec<Difference>) {
    if was == is || found.len() > MAX_DIFFERENCES {
        return;
    }
    match (was, is) {
        (Value::Object(a), Value::Object(b)) => {
            let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                step(part, &path, &escape(name), a.get(name), b.get(name), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for index in 0..a.len().max(b.len()) {
                step(part, &path, &index.to_string(), a.get(index), b.get(index), found);
            }
        }
        _ => found.push(difference(part, path, Some(was), Some(is))),
    }
}

fn step(
    part: &str,
    path: &str,
    name: &str,
    was: Option<&Value>,
    is: Option<&Value>,
    found: &mut Vec<Difference>,
) {
    let path = format!("{path}/{name}");
    match (was, is) {
        (Some(a), Some(b)) => walk(part, path, a, b, found),
        (None, None) => {}
        (was, is) => found.push(difference(part, path, was, is)),
    }
}

fn difference(part: &str, path: String, was: Option<&Value>, is: Option<&Value>) -> Difference {
    let shown = |value: &Value| {
        let text = value.to_string();
        match text.char_indices().nth(MAX_SHOWN) {
            Some((cut, _)) => format!("{}...", text.get(..cut).unwrap_or("")),
            None => text,
        }
    };
    Difference { part: part.into(), path, approved: was.map(shown), now: is.map(shown) }
}

/// One change that an approver made to the inputs, as JSON Patch writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// `add` or `replace`.
    pub op: String,
    /// JSON Pointer into the inputs.
    pub path: String,
    /// What stood there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Value>,
    /// What stands there now.
    pub value: Value,
}

/// The inputs with a reply's edits in them, and the edits that change something.
#[must_use]
pub fn edited(inputs: &Value, payload: &Value) -> (Value, Vec<Edit>) {
    let mut after = inputs.clone();
    let mut edits = Vec::new();
    let (Some(asked), Some(fields)) =
        (payload.get("edits").and_then(Value::as_object), after.as_object_mut())
    else {
        return (after, edits);
    };
    for (name, value) in asked {
        let from = fields.get(name).cloned();
        if from.as_ref() == Some(value) {
            continue;
        }
        let op = if from.is_some() { "replace" } else { "add" };
        edits.push(Edit {
            op: op.into(),
            path: format!("/{}", escape(name)),
            from,
            value: value.clone(),
        });
        fields.insert(name.clone(), value.clone());
    }
    (after, edits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    const YAML: &str = "id: t\nv: '1'\nplan:\n  gate: approve-plan\n  tasks:\n    - name: a\n      image: image:base\n      build: {run: make, egress: [\"@pip\"]}\n      exec: {run: echo hi, egress: [example.org], secrets: [{name: s, for: example.org, as: basic u}]}\n      limits: {pids: 9}\n";

    fn plan(yaml: &str) -> Plan {
        let recipe = Recipe::from_yaml("t.yaml", yaml).unwrap();
        crate::plan::compile(&recipe, &json!({}), &crate::profile::Settings::default(), &|_, _| {
            Ok(Vec::new())
        })
        .unwrap()
    }

    fn of(yaml: &str, budget: Budget, pin: &str) -> Facts {
        facts(&plan(yaml), &budget, None, &|_| pin.to_owned()).unwrap()
    }

    #[test]
    fn each_part_drifts_by_itself_and_the_difference_names_the_field() {
        let base = of(YAML, Budget::default(), "p1");
        assert_eq!(differences(&base, &of(YAML, Budget::default(), "p1")), vec![]);
        assert_eq!(base.bindings.plan, plan(YAML).digest().unwrap());
        let image = differences(&base, &of(YAML, Budget::default(), "p2"));
        assert_eq!(image.len(), 1);
        assert_eq!((image[0].part.as_str(), image[0].path.as_str()), ("image", "/0/resolved"));
        assert_eq!(image[0].now.as_deref(), Some("\"p2\""));
        let budget = Budget { max_fanout: Some(3), ..Budget::default() };
        let found = differences(&base, &of(YAML, budget, "p1"));
        assert_eq!((found.len(), found[0].path.as_str()), (1, "/budget/maxFanout"));
        for (from, to, part, path) in [
            ("egress: [example.org]", "egress: [example.org, a.example]", "egress", "/0/exec/1"),
            ("basic u", "basic v", "sandbox", "/0/spec/secrets/0/as"),
            ("name: s,", "name: t,", "sandbox", "/0/spec/secrets/0/name"),
            ("pids: 9", "pids: 8", "sandbox", "/0/spec/limits/pids"),
            ("echo hi", "echo ho", "sandbox", "/0/spec/cmd/2"),
        ] {
            let found = differences(&base, &of(&YAML.replace(from, to), Budget::default(), "p1"));
            let parts: Vec<&str> = found.iter().map(|d| d.part.as_str()).collect();
            assert!(parts.contains(&"plan") && parts.contains(&part), "{found:?}");
            assert!(found.iter().any(|d| d.part == part && d.path == path), "{found:?}");
            assert!(found.iter().all(|d| d.part == "plan" || d.part == part), "{found:?}");
        }
    }

    #[test]
    fn what_is_too_large_to_keep_differs_by_its_digest() {
        let long = |c: &str| YAML.replace("echo hi", &c.repeat(MAX_KEPT));
        let (a, b) =
            (of(&long("a"), Budget::default(), "p"), of(&long("b"), Budget::default(), "p"));
        let found = differences(&a, &b);
        assert!(found.iter().any(|d| d.part == "plan" && d.path.is_empty()), "{found:?}");
        assert!(found.iter().all(|d| d.now.as_ref().is_some_and(|n| n.len() < 400)));
    }

    #[test]
    fn of_many_differences_the_first_fifty_are_shown() {
        let tasks = |word: &str| -> String {
            (0..MAX_DIFFERENCES + 10).fold(String::new(), |mut text, n| {
                text.push_str(&format!("    - {{name: t{n}, exec: {{run: {word}{n}}}}}\n"));
                text
            })
        };
        let yaml = |word: &str| {
            format!("id: r\nv: \"1\"\nplan:\n  gate: approve-plan\n  tasks:\n{}", tasks(word))
        };
        let (a, b) =
            (of(&yaml("a"), Budget::default(), "p"), of(&yaml("b"), Budget::default(), "p"));
        assert_eq!(differences(&a, &b).len(), MAX_DIFFERENCES);
    }

    #[test]
    fn an_edit_is_recorded_only_where_it_changes_something() {
        let inputs = json!({"n": 1, "m": 2});
        let payload = json!({"choice": "yes", "edits": {"n": 3, "m": 2, "a/b": true}});
        let (after, edits) = edited(&inputs, &payload);
        assert_eq!(after, json!({"n": 3, "m": 2, "a/b": true}));
        assert_eq!(edits.len(), 2);
        assert_eq!((edits[0].op.as_str(), edits[0].path.as_str()), ("add", "/a~1b"));
        assert_eq!((edits[1].op.as_str(), &edits[1].from), ("replace", &Some(json!(1))));
        assert_eq!(edited(&inputs, &json!({"choice": "yes"})).1, vec![]);
    }
}
