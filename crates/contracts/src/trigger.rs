//! Triggers: what starts runs without a caller's key at hand. A schedule fires at its instants, a hook by signed deliveries.
//!
//! ```text
//! schedule add, hook add --a key's consent to one recipe--> trigger   (active | paused | removed)
//!   an instant, a delivery --> firing: pending --> started (one run) | skipped | refused (one reason)
//! ```

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;
use crate::id::{Digest, RunId, SecretName, TriggerId, TriggerName};
use crate::recipe::RecipeRef;
use crate::schedule::ScheduleSpec;

/// Bytes of a delivery to a hook; GitHub's own bound is larger, and what starts a run needs less.
pub const MAX_DELIVERY_BYTES: usize = 1024 * 1024;
/// Inputs that a hook takes from a delivery.
pub const MAX_MAPPED: usize = 32;
/// Hexadecimal digits of a hook's id in its address: 64 bits of chance.
const ADDRESS_DIGITS: usize = 16;
/// Characters of a delivery's id, and of the name of an event.
pub const MAX_EVENT_CHARS: usize = 256;

named! {
    /// What a trigger fires by.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum TriggerKind {
        /// Instants of a schedule.
        Schedule = "schedule",
        /// Signed deliveries over HTTP.
        Hook = "hook",
    }
}

named! {
    /// Whether a trigger fires.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum TriggerState {
        /// It fires at its instants or deliveries.
        Active = "active",
        /// It fires again once it is resumed; instants until then are not firings.
        Paused = "paused",
        /// It never fires again.
        Removed = "removed",
    }
}

named! {
    /// What came of a firing; only the first is not final.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FiringState {
        /// Its run is about to start, or waits for the one before it (`overlap: queue`).
        Pending = "pending",
        /// It has a run.
        Started = "started",
        /// It starts nothing by the schedule's own terms; the reason says which.
        Skipped = "skipped",
        /// Its run was refused; the reason is the error's code.
        Refused = "refused",
    }
}

named! {
    /// Which of its terms a firing was skipped by.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum SkipReason {
        /// No worker ran at the instant, or it was too long ago.
        Missed = "missed",
        /// The run of an earlier firing went on.
        Overlap = "overlap",
        /// As many firings waited as may.
        QueueFull = "queue_full",
        /// The hook is not for this event.
        Filtered = "filtered",
        /// The schedule was paused while it waited.
        Paused = "paused",
        /// The schedule was removed while it waited.
        Removed = "removed",
    }
}

/// Body of `POST /api/schedules`: the caller's consent to runs of a recipe by the clock, with the rights of the caller's key.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleRequest {
    /// Id and version of the recipe; its content as of now is what runs.
    pub recipe_ref: RecipeRef,
    /// The text that is meant, as an import answered: another one of the same id and version is refused.
    pub recipe_hash: Option<Digest>,
    /// Name of the schedule in the tenant; default the recipe's id.
    pub name: Option<TriggerName>,
    /// When; default what the recipe says.
    pub schedule: Option<ScheduleSpec>,
}

/// A schedule of the tenant.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScheduleRow {
    /// Id of the schedule: `sc_` and 32 hex digits.
    pub schedule_id: TriggerId,
    /// Name of the schedule in the tenant.
    pub name: TriggerName,
    /// Recipe of its runs.
    pub recipe_ref: RecipeRef,
    /// SHA-256 of the recipe that was consented to; a later import changes nothing.
    pub recipe_hash: Digest,
    /// When it fires.
    pub schedule: ScheduleSpec,
    /// Whether it fires.
    pub state: TriggerState,
    /// Key whose rights its runs have; once that is revoked each firing is refused.
    pub key_id: String,
    /// Its next instant, ms since the epoch, without jitter; absent where it has none.
    pub next_at: Option<i64>,
    /// Firings so far.
    pub firings: i64,
    /// The newest firing.
    pub last: Option<FiringRow>,
    /// ms since the epoch.
    pub created_at: i64,
}

/// One firing: an instant of a schedule, or a delivery to a hook.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FiringRow {
    /// The instant in UTC (`2026-01-19T03:00:00.000Z`), or the delivery's id.
    pub event: String,
    /// Its number among the trigger's firings, from 1.
    pub seq: i64,
    /// What came of it.
    pub state: FiringState,
    /// The run that it started.
    pub run_id: Option<RunId>,
    /// Why it has no run: a term of the schedule, or an error's code.
    pub reason: Option<String>,
    /// The refusal in words; for `missed`, how many earlier instants it stands for too.
    pub detail: Option<String>,
    /// When it was taken down, ms since the epoch.
    pub created_at: i64,
}

/// Answer of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRemoval {
    /// The schedule or hook that is gone.
    pub removed: TriggerName,
}

named! {
    /// How the sender of a delivery signs it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum HookScheme {
        /// GitHub: `X-Hub-Signature-256`, HMAC-SHA256 of the body.
        Github = "github",
        /// Standard Webhooks: `webhook-id`, `webhook-timestamp` and `webhook-signature`.
        Standard = "standard",
        /// GitLab: the secret itself in `X-Gitlab-Token`.
        Gitlab = "gitlab",
    }
}

/// What a hook does with a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookSpec {
    /// How its deliveries are signed.
    pub scheme: HookScheme,
    /// The tenant's secret that they are signed with; a rotated value counts at once.
    pub secret: SecretName,
    /// Events that start a run, such as `push`; others are answered and start nothing. Empty: each does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub events: Vec<String>,
    /// Inputs of the recipe's form, each by the JSON Pointer of its value in the delivery: `{"ref": "/after"}`. A value that is not
    /// there leaves its input out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

impl HookSpec {
    /// What its type cannot say.
    ///
    /// # Errors
    /// The field and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.events.len() > MAX_MAPPED || self.inputs.len() > MAX_MAPPED {
            return Err(format!("inputs, events: must be at most {MAX_MAPPED} each"));
        }
        let fits = |text: &String| !text.is_empty() && text.len() <= MAX_EVENT_CHARS;
        if let Some(bad) = self.events.iter().find(|event| !fits(event)) {
            return Err(format!("events: {bad:?} must be 1 to {MAX_EVENT_CHARS} characters"));
        }
        let bad = self.inputs.iter().find(|(name, pointer)| {
            !fits(name)
                || pointer.len() > MAX_EVENT_CHARS
                || !(pointer.is_empty() || pointer.starts_with('/'))
        });
        match bad {
            Some((name, pointer)) => Err(format!(
                "inputs.{name}: {pointer:?} is not a JSON Pointer such as /repository/name"
            )),
            None => Ok(()),
        }
    }

    /// The recipe's inputs of a delivery.
    #[must_use]
    pub fn mapped(
        &self,
        delivery: &serde_json::Value,
    ) -> serde_json::Map<String, serde_json::Value> {
        let value = |(name, pointer): (&String, &String)| {
            Some((name.clone(), delivery.pointer(pointer)?.clone()))
        };
        self.inputs.iter().filter_map(value).collect()
    }
}

/// Where deliveries to a hook go, below the server's address. A name alone is the host's own tenant's; another tenant's has a part of
/// the id, so that no tenant can take or look for the address of another one's hook.
#[must_use]
pub fn hook_path(id: &TriggerId, name: &TriggerName, is_hosts_own: bool) -> String {
    let part: String = id.as_str().chars().skip(3).take(ADDRESS_DIGITS).collect();
    match is_hosts_own {
        true => format!("/api/hooks/{name}"),
        false => format!("/api/hooks/{name}-{part}"),
    }
}

/// Body of `POST /api/hooks`: the caller's consent to runs of a recipe by signed deliveries, with the rights of the caller's key.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRequest {
    /// Name of the hook in the tenant.
    pub name: TriggerName,
    /// Id and version of the recipe; its content as of now is what runs.
    pub recipe_ref: RecipeRef,
    /// The text that is meant, as an import answered: another one of the same id and version is refused.
    pub recipe_hash: Option<Digest>,
    /// What it does with a delivery.
    pub hook: HookSpec,
}

/// A hook of the tenant.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRow {
    /// Id of the hook: `hk_` and 32 hex digits.
    pub hook_id: TriggerId,
    /// Name of the hook in the tenant.
    pub name: TriggerName,
    /// Address of its deliveries, below the server's: `/api/hooks/NAME` for the host's own tenant; for any other with 16 more
    /// characters that cannot be guessed, `/api/hooks/NAME-0123456789abcdef`.
    pub path: String,
    /// Recipe of its runs.
    pub recipe_ref: RecipeRef,
    /// SHA-256 of the recipe that was consented to; a later import changes nothing.
    pub recipe_hash: Digest,
    /// How its deliveries are signed; the secret's name is left out.
    pub scheme: HookScheme,
    /// Events that start a run; empty: each does.
    pub events: Vec<String>,
    /// Inputs of the recipe's form, each by the JSON Pointer of its value in the delivery.
    pub inputs: BTreeMap<String, String>,
    /// Whether it fires.
    pub state: TriggerState,
    /// Key whose rights its runs have; once that is revoked each delivery is refused.
    pub key_id: String,
    /// Deliveries on record: those that started a run, and those of GitHub that `events` left out.
    pub firings: i64,
    /// Deliveries in its scheme's form whose signature or time was refused.
    pub unsigned: i64,
    /// ms since the epoch.
    pub created_at: i64,
}

/// Answer to a delivery.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookReceipt {
    /// The run that the delivery started; absent where its event starts none.
    pub run_id: Option<RunId>,
    /// Whether the delivery had come before: it starts nothing a second time.
    pub is_replay: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(inputs: serde_json::Value) -> HookSpec {
        serde_json::from_value(json!({"scheme": "github", "secret": "gh", "inputs": inputs}))
            .unwrap()
    }

    #[test]
    fn a_delivery_gives_the_inputs_that_it_has() {
        let hook =
            spec(json!({"sha": "/after", "repo": "/repository/full_name", "none": "/no/such"}));
        assert_eq!(hook.check(), Ok(()));
        let sent = json!({"after": "c0ffee", "repository": {"full_name": "a/b"}});
        assert_eq!(
            serde_json::Value::Object(hook.mapped(&sent)),
            json!({"sha": "c0ffee", "repo": "a/b"})
        );
    }

    #[test]
    fn an_address_of_another_tenant_has_what_cannot_be_guessed() {
        let id = TriggerId::parse(&format!("hk_{}{}", "a".repeat(16), "b".repeat(16))).unwrap();
        let name = TriggerName::parse(&"n".repeat(63)).unwrap();
        assert_eq!(hook_path(&id, &name, true), format!("/api/hooks/{name}"));
        let theirs = hook_path(&id, &name, false);
        assert_eq!(theirs, format!("/api/hooks/{name}-{}", "a".repeat(16)));
        let address = theirs.rsplit('/').next().unwrap();
        assert!(crate::id::HookAddress::parse(address).is_ok(), "the longest one, too");
    }

    #[test]
    fn a_mapping_that_is_no_pointer_or_too_long_is_refused() {
        assert!(spec(json!({"sha": "after"})).check().unwrap_err().starts_with("inputs.sha"));
        let many: BTreeMap<String, String> =
            (0..33).map(|n| (format!("i{n}"), "/a".into())).collect();
        assert!(spec(json!(many)).check().is_err());
        let long = spec(json!({"sha": format!("/{}", "a".repeat(300))}));
        assert!(long.check().is_err());
    }
}
