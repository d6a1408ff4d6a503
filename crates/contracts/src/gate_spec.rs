//! A recipe's gate: who may answer it, how many must agree, how long it waits and what silence means.
//!
//! ```text
//! gate: approve-plan                      # any approver, one yes, an hour, silence is a no
//! gate: {key: approve-plan, group: sre, quorum: 2, veto: true, self_approval: deny,
//!        deadline: 1h, remind: 10m, on_timeout: {escalate: {group: leads, wait: 30m}, then: deny}}
//! ```
//! The short form and its long form with every default are one gate: they serialize alike, so a
//! recipe's hash does not depend on which was written.

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use crate::duration::Duration;
use crate::gate::{Choice, plan_form};
use crate::id::{GateKey, GroupId};
use crate::key::Role;
use crate::own_schema::{own_schema, text_or_object};
use crate::sandbox::MAX_TIMEOUT_MS;

/// People whose yes a gate may ask for: a committee, not an electorate.
pub const MAX_QUORUM: u32 = 16;
/// Fields of the form that approvers may edit.
pub const MAX_EDITABLE: usize = 32;
/// Reminders of one wait: one an hour over the longest deadline.
pub const MAX_REMINDERS: u64 = 24;
/// How keys begin of gates that no recipe's task has.
const OTHERS: [&str; 3] = ["approve-plan", "egress-", "models-"];
/// What a round's suffix may add to a gate's key, so that every round's key is one.
const MAX_KEY: usize = 120;
/// The shortest wait: nobody answers faster.
const MIN_WAIT: Duration = Duration::from_s(1);
/// The longest wait, as of a sandbox.
const MAX_WAIT: Duration = Duration::from_ms(MAX_TIMEOUT_MS);

/// What a recipe says of its gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateSpec {
    /// The key of its first round; that of a plan starts with `approve-plan`.
    pub key: GateKey,
    /// Only keys of this group answer, by themselves or by delegation.
    pub group: Option<GroupId>,
    /// Only keys with one of these roles answer; none: every approver.
    pub roles: Vec<Role>,
    /// So many people must say yes.
    pub quorum: u32,
    /// One no decides. Otherwise as many as the quorum must say it.
    pub veto: bool,
    /// Whether who submitted the run may answer.
    pub self_approval: SelfApproval,
    /// How long it waits, such as `1h`.
    pub deadline: Option<Duration>,
    /// A reminder after each such time, such as `10m`.
    pub remind: Option<Duration>,
    /// What silence means.
    pub on_timeout: TimeoutPolicy,
    /// Inputs that an approver may change.
    pub edit: Vec<String>,
}

/// Whether who submitted a run may answer its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum SelfApproval {
    #[default]
    Allow,
    Deny,
}

/// What a gate's deadline does in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeadlineAction {
    #[default]
    Deny,
    Approve,
}

impl DeadlineAction {
    /// The decision that silence is.
    #[must_use]
    pub const fn choice(self) -> Choice {
        match self {
            Self::Deny => Choice::No,
            Self::Approve => Choice::Yes,
        }
    }
}

/// What happens at a gate's deadline.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeoutPolicy {
    /// Ask more people, or more urgently, once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate: Option<Escalate>,
    /// What silence means after that.
    #[serde(default)]
    pub then: DeadlineAction,
}

/// How a gate is escalated.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Escalate {
    /// This group may answer too.
    pub group: Option<GroupId>,
    /// The gate's new place in the inbox: higher first.
    #[schemars(range(min = 1, max = 1000))]
    pub priority: Option<u16>,
    /// How much longer it waits, such as `30m`.
    pub wait: Duration,
}

/// The gate with its rules. The key alone is the short form: any approver, one yes, an hour, silence is a no.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "GateSpecFields")]
struct Fields {
    /// Key of the gate's first round; that of the plan starts with `approve-plan`, and that of a task does not.
    key: GateKey,
    /// Only keys of this group answer, by themselves or by delegation.
    group: Option<GroupId>,
    /// Only keys with one of these roles answer. Default: every approver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    roles: Vec<Role>,
    /// Number of people who must say yes. Default: 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 16))]
    quorum: u32,
    /// Whether a single no decides; otherwise as many as the quorum must say no. Default: true.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    veto: bool,
    /// Whether the key that submitted the run may answer. Default: `allow`.
    #[serde(default, skip_serializing_if = "is_default")]
    self_approval: SelfApproval,
    /// Wait for an answer: 1 s to 24 h. Default: 1 h.
    deadline: Option<Duration>,
    /// Pause between reminders, at most 24 of them. Default: no reminder.
    remind: Option<Duration>,
    /// What silence means. Default: no.
    #[serde(default, skip_serializing_if = "is_default")]
    on_timeout: TimeoutPolicy,
    /// Properties of the form that an approver may change; needs a quorum of 1, and only at the plan's gate. Default: none of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    edit: Vec<String>,
}

const fn one() -> u32 {
    1
}
const fn yes() -> bool {
    true
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_one(n: &u32) -> bool {
    *n == 1
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_yes(b: &bool) -> bool {
    *b
}
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl GateSpec {
    /// Any approver, one yes, the default deadline, silence is a no.
    #[must_use]
    pub fn plain(key: GateKey) -> Self {
        Self {
            key,
            group: None,
            roles: Vec::new(),
            quorum: 1,
            veto: true,
            self_approval: SelfApproval::Allow,
            deadline: None,
            remind: None,
            on_timeout: TimeoutPolicy::default(),
            edit: Vec::new(),
        }
    }

    /// The key of round `n`, from 1. Prompts and decisions are one a key, so every round has its own.
    #[must_use]
    pub fn round_key(&self, round: u32) -> GateKey {
        match round {
            0 | 1 => self.key.clone(),
            n => GateKey::parse(&format!("{}-r{n}", self.key)).unwrap_or_else(|_| self.key.clone()),
        }
    }

    /// How long it waits, in seconds, where the recipe says.
    #[must_use]
    pub fn deadline_s(&self) -> Option<u32> {
        seconds(self.deadline)
    }

    /// The pause between reminders, in seconds, where the recipe wants them.
    #[must_use]
    pub fn remind_s(&self) -> Option<u32> {
        seconds(self.remind)
    }

    /// How much longer it waits once escalated, in seconds.
    #[must_use]
    pub fn escalation_wait_s(&self) -> Option<u32> {
        seconds(self.on_timeout.escalate.as_ref().map(|e| e.wait))
    }

    /// The form of a reply: a choice, and the fields that may be edited as the recipe's form has them.
    #[must_use]
    pub fn form(&self, recipe_form: &Value) -> Value {
        let mut form = plan_form();
        if self.edit.is_empty() {
            return form;
        }
        let property = |name: &String| {
            let schema = recipe_form.pointer(&format!("/properties/{}", escape(name)));
            (name.clone(), schema.cloned().unwrap_or(Value::Bool(false)))
        };
        let mut edits = json!({
            "type": "object", "additionalProperties": false, "minProperties": 1,
            "properties": self.edit.iter().map(property).collect::<serde_json::Map<_, _>>(),
        });
        // What a property's own schema refers to stands at the form's root.
        if let (Some(defs), Some(fields)) = (recipe_form.get("$defs"), form.as_object_mut()) {
            fields.insert("$defs".into(), defs.clone());
        }
        if let Some(properties) = form.pointer_mut("/properties").and_then(Value::as_object_mut) {
            properties.insert("edits".into(), edits.take());
        }
        form
    }

    /// What the types cannot say. `form` is the recipe's.
    pub fn check(&self, form: Option<&Value>) -> Result<(), String> {
        if !self.key.as_str().starts_with("approve-plan") {
            return Err("key: must start with `approve-plan`".into());
        }
        self.check_rules()?;
        self.check_edit(form)
    }

    /// What the types cannot say of a gate before a task.
    pub fn check_of_task(&self) -> Result<(), String> {
        let key = self.key.as_str();
        if OTHERS.iter().any(|begin| key.starts_with(begin)) {
            return Err(format!(
                "key: other gates have keys that begin like {key:?}; call it by what it lets start, such as `release`"
            ));
        }
        let round = key.rsplit_once("-r").map(|(_, round)| round);
        if round.is_some_and(|round| !round.is_empty() && round.bytes().all(|b| b.is_ascii_digit()))
        {
            return Err(
                "key: must not end in `-r` and a number, as the keys of later rounds do".into()
            );
        }
        match self.edit.is_empty() {
            true => self.check_rules(),
            false => Err("edit: only the gate of a plan has inputs to change; remove it".into()),
        }
    }

    fn check_rules(&self) -> Result<(), String> {
        if self.key.as_str().len() > MAX_KEY {
            return Err(format!("key: must be at most {MAX_KEY} characters"));
        }
        if !(1..=MAX_QUORUM).contains(&self.quorum) {
            return Err(format!("quorum: must be 1 to {MAX_QUORUM}"));
        }
        let deadline = checked("deadline", self.deadline)?;
        let remind = checked("remind", self.remind)?;
        let waits = deadline.unwrap_or(u64::from(crate::gate::DEFAULT_TTL_S) * 1_000);
        if remind.is_some_and(|r| r >= waits || r.saturating_mul(MAX_REMINDERS) < waits) {
            return Err(format!(
                "remind: must be shorter than the deadline, and fit into it at most {MAX_REMINDERS} times"
            ));
        }
        if let Some(escalate) = &self.on_timeout.escalate {
            checked("on_timeout.escalate.wait", Some(escalate.wait))?;
            if escalate.priority.is_some_and(|p| !(1..=1000).contains(&p)) {
                return Err("on_timeout.escalate.priority: must be 1 to 1000".into());
            }
        }
        Ok(())
    }

    fn check_edit(&self, form: Option<&Value>) -> Result<(), String> {
        if self.edit.len() > MAX_EDITABLE {
            return Err(format!("edit: must list at most {MAX_EDITABLE} fields"));
        }
        if !self.edit.is_empty() && self.quorum > 1 {
            return Err(
                "edit: needs a quorum of 1, because others would have agreed to another plan"
                    .into(),
            );
        }
        for name in &self.edit {
            let path = format!("/properties/{}", escape(name));
            if form.and_then(|f| f.pointer(&path)).is_none() {
                return Err(format!(
                    "edit: the form has no property {name:?}; list properties of the form"
                ));
            }
        }
        Ok(())
    }

    fn fields(&self) -> Fields {
        Fields {
            key: self.key.clone(),
            group: self.group.clone(),
            roles: self.roles.clone(),
            quorum: self.quorum,
            veto: self.veto,
            self_approval: self.self_approval,
            deadline: self.deadline,
            remind: self.remind,
            on_timeout: self.on_timeout.clone(),
            edit: self.edit.clone(),
        }
    }
}

/// A name as a part of a JSON Pointer.
#[must_use]
pub fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn seconds(duration: Option<Duration>) -> Option<u32> {
    u32::try_from(duration?.s()).ok()
}

fn checked(field: &str, duration: Option<Duration>) -> Result<Option<u64>, String> {
    let bounded = duration.map(|duration| duration.within(MIN_WAIT, MAX_WAIT)).transpose();
    bounded.map(|found| found.map(Duration::ms)).map_err(|why| format!("{field}: {why}"))
}

impl Serialize for GateSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self == Self::plain(self.key.clone()) {
            true => self.key.serialize(serializer),
            false => self.fields().serialize(serializer),
        }
    }
}

text_or_object!(
    GateSpec,
    "a gate's key, or an object with its key",
    |text| GateKey::parse(text).map(GateSpec::plain).map_err(serde::de::Error::custom),
    Fields => |f| GateSpec {
        key: f.key,
        group: f.group,
        roles: f.roles,
        quorum: f.quorum,
        veto: f.veto,
        self_approval: f.self_approval,
        deadline: f.deadline,
        remind: f.remind,
        on_timeout: f.on_timeout,
        edit: f.edit,
    }
);

own_schema!(GateSpec, |generator| {
    let key = generator.subschema_for::<GateKey>();
    let fields = generator.subschema_for::<Fields>();
    json_schema!({"oneOf": [key, fields]})
});

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Result<GateSpec, String> {
        serde_json::from_value(value).map_err(|e| e.to_string())
    }

    #[test]
    fn the_short_form_and_its_long_form_are_one_gate() {
        let short = spec(json!("approve-plan")).unwrap();
        let long = spec(json!({"key": "approve-plan", "quorum": 1, "veto": true})).unwrap();
        assert_eq!(short, long);
        assert_eq!(serde_json::to_value(&long).unwrap(), json!("approve-plan"));
        let rich = spec(json!({"key": "approve-plan", "group": "sre", "quorum": 2})).unwrap();
        assert_eq!(spec(serde_json::to_value(&rich).unwrap()).unwrap(), rich);
    }

    #[test]
    fn a_gate_of_a_task_has_a_key_of_its_own_and_nothing_to_edit() {
        assert!(spec(json!({"key": "release", "quorum": 2})).unwrap().check_of_task().is_ok());
        assert!(spec(json!("release-rc")).unwrap().check_of_task().is_ok());
        for (bad, field) in [
            (json!("approve-plan-2"), "key"),
            (json!("egress-1"), "key"),
            (json!("models-1"), "key"),
            (json!("release-r2"), "key"),
            (json!({"key": "release", "edit": ["n"]}), "edit"),
            (json!({"key": "release", "quorum": 17}), "quorum"),
        ] {
            let error = spec(bad.clone()).unwrap().check_of_task().unwrap_err();
            assert!(error.starts_with(field), "{bad}: {error}");
        }
    }

    #[test]
    fn a_gate_that_does_not_hold_together_is_refused_by_field() {
        let form = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        for (bad, field) in [
            (json!({"key": "deploy"}), "key"),
            (json!({"key": format!("approve-plan{}", "x".repeat(110))}), "key"),
            (json!({"key": "approve-plan", "quorum": 0}), "quorum"),
            (json!({"key": "approve-plan", "quorum": 17}), "quorum"),
            (json!({"key": "approve-plan", "deadline": "25h"}), "deadline"),
            (json!({"key": "approve-plan", "deadline": "10ms"}), "deadline"),
            (json!({"key": "approve-plan", "deadline": "10m", "remind": "10m"}), "remind"),
            (json!({"key": "approve-plan", "deadline": "1h", "remind": "1s"}), "remind"),
            (
                json!({"key": "approve-plan", "on_timeout": {"escalate": {"wait": "1s", "priority": 0}}}),
                "priority",
            ),
            (json!({"key": "approve-plan", "edit": ["m"]}), "edit"),
            (json!({"key": "approve-plan", "edit": ["n"], "quorum": 2}), "edit"),
        ] {
            let error = spec(bad.clone()).unwrap().check(Some(&form)).unwrap_err();
            assert!(error.contains(field), "{bad}: {error}");
        }
        for bad in [
            json!(7),
            json!({}),
            json!({"key": "approve-plan", "surprise": 1}),
            json!({"key": "approve-plan", "group": "Not A Group"}),
            json!({"key": "approve-plan", "deadline": "python"}),
            json!({"key": "approve-plan", "on_timeout": {"escalate": {"wait": "x1"}}}),
            json!({"key": "approve-plan", "roles": ["king"]}),
            json!({"key": "approve-plan", "self_approval": "maybe"}),
            json!({"key": "approve-plan", "on_timeout": {"then": "shrug"}}),
            json!({"key": "approve-plan", "on_timeout": {"escalate": {}}}),
        ] {
            assert!(spec(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_gate_has_at_most_so_many_editable_fields() {
        let names: Vec<String> = (0..=MAX_EDITABLE).map(|n| format!("f{n}")).collect();
        let properties: serde_json::Map<_, _> =
            names.iter().map(|name| (name.clone(), json!({"type": "integer"}))).collect();
        let form = json!({"type": "object", "properties": properties});
        let edits = |count: usize| {
            let gate = json!({"key": "approve-plan", "edit": names[..count]});
            spec(gate).unwrap().check(Some(&form))
        };
        edits(MAX_EDITABLE).unwrap();
        let error = edits(MAX_EDITABLE + 1).unwrap_err();
        assert!(error.contains("at most 32 fields"), "{error}");
    }

    #[test]
    fn every_round_has_a_key_of_its_own() {
        let spec = GateSpec::plain(GateKey::parse("approve-plan").unwrap());
        assert_eq!(spec.round_key(1).as_str(), "approve-plan");
        assert_eq!(spec.round_key(2).as_str(), "approve-plan-r2");
    }

    #[test]
    fn the_form_of_an_editable_gate_holds_edits_to_the_recipes_own_schema() {
        let recipe = json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/small"}, "m": {}},
            "$defs": {"small": {"type": "integer", "maximum": 9}}});
        let gate = spec(json!({"key": "approve-plan", "edit": ["n"]})).unwrap();
        let form = crate::schema::Validator::compile(&gate.form(&recipe)).unwrap();
        assert!(form.check(&json!({"choice": "yes", "edits": {"n": 3}})).is_ok());
        for bad in [json!({"n": 10}), json!({"m": 1}), json!({}), json!(null)] {
            assert!(form.check(&json!({"choice": "yes", "edits": bad})).is_err(), "{bad}");
        }
    }
}
