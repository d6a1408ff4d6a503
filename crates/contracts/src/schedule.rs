//! Schedules: when the runs of a recipe begin by themselves, and which instants those are.
//!
//! ```text
//! schedule: "0 3 * * *"                                   # every day at 03:00 UTC
//! schedule: {cron: "0 3 * * *", time_zone: Europe/Berlin, jitter: 5m, missed: once, overlap: queue}
//! ```
//! A recipe only says when; `cofferdam schedule add` is the consent to it ([`crate::trigger`]).

mod timetable;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use timetable::{MAX_CRON_CHARS, Timetable};

use crate::duration::Duration;
use crate::enum_names::named;
use crate::own_schema::{own_schema, text_or_object};

/// The longest jitter: what has to begin in the same hour still does.
pub const MAX_JITTER_MS: u64 = 3_600_000;
/// Inputs that a schedule may give: as many as a form that a person still reads.
pub const MAX_INPUTS: usize = 64;

named! {
    /// What becomes of an instant that passed while no worker ran, or more than 30 s ago.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum MissPolicy {
        /// It is on record as missed and starts nothing; the default.
        #[default]
        Skip = "skip",
        /// Of all that were missed, the last one starts a run.
        Once = "once",
        /// Each starts a run, in their order: the last 100 of them.
        All = "all",
    }
}

named! {
    /// What becomes of an instant at which the run of an earlier one still goes on, or waits at its gate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum Overlap {
        /// It is on record as skipped and starts nothing; the default.
        #[default]
        Skip = "skip",
        /// It starts its run once the earlier one has ended.
        Queue = "queue",
    }
}

/// When a recipe's runs begin: a cron pattern, or one with its terms.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleSpec {
    /// Minute, hour, day of the month, month, day of the week; with a sixth field in front, the second.
    pub cron: String,
    /// Time zone whose clock the pattern reads; `None`: UTC.
    pub time_zone: Option<String>,
    /// Each run begins up to so long after its instant, by a fixed share of it.
    pub jitter: Option<Duration>,
    /// For instants that passed while no worker ran.
    pub missed: MissPolicy,
    /// For instants at which an earlier run goes on.
    pub overlap: Overlap,
    /// The form of each run.
    pub inputs: Map<String, Value>,
}

/// The long form of a schedule.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ScheduleFields {
    /// Minute, hour, day of the month, month, day of the week; with a sixth field in front, the second.
    #[schemars(length(min = 1, max = 128))]
    cron: String,
    /// IANA name of the time zone whose clock the pattern reads, such as `Europe/Berlin`. Default: UTC.
    #[schemars(length(min = 1, max = 64))]
    time_zone: Option<String>,
    /// Each run begins up to so long after its instant, by a share that is fixed for each: at most `1h`. Default: none.
    jitter: Option<Duration>,
    /// What becomes of instants that passed while no worker ran.
    #[serde(default, skip_serializing_if = "is_default")]
    missed: MissPolicy,
    /// What becomes of an instant at which the run of an earlier one goes on.
    #[serde(default, skip_serializing_if = "is_default")]
    overlap: Overlap,
    /// Inputs of the form, for each run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    inputs: Map<String, Value>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

own_schema!(ScheduleSpec, |generator| json_schema!({"oneOf": [
    {"type": "string", "minLength": 1, "maxLength": MAX_CRON_CHARS},
    generator.subschema_for::<ScheduleFields>()
]}));

impl Serialize for ScheduleSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { cron, time_zone, jitter, missed, overlap, inputs } = self.clone();
        if self == &Self::of(&cron) {
            return serializer.serialize_str(&cron);
        }
        ScheduleFields { cron, time_zone, jitter, missed, overlap, inputs }.serialize(serializer)
    }
}

text_or_object!(
    ScheduleSpec,
    "a schedule: a cron pattern, or {cron, time_zone, jitter, missed, overlap, inputs}",
    |cron| Ok(ScheduleSpec::of(cron)),
    ScheduleFields => |ScheduleFields { cron, time_zone, jitter, missed, overlap, inputs }| ScheduleSpec {
        cron, time_zone, jitter, missed, overlap, inputs,
    }
);

impl ScheduleSpec {
    /// By a pattern alone: UTC, without jitter, and what is missed or overlaps is skipped.
    #[must_use]
    pub fn of(cron: &str) -> Self {
        Self {
            cron: cron.to_owned(),
            time_zone: None,
            jitter: None,
            missed: MissPolicy::Skip,
            overlap: Overlap::Skip,
            inputs: Map::new(),
        }
    }

    /// Whether it can be followed: its pattern, its zone and its bounds.
    ///
    /// # Errors
    /// The field and what is wrong with it, such as `cron: ..`.
    pub fn check(&self) -> Result<(), String> {
        let table = Timetable::new(self)?;
        if self.jitter.is_some_and(|jitter| jitter.ms() > MAX_JITTER_MS) {
            return Err("jitter: must be at most 1h".into());
        }
        // An instant that comes with its jitter after the next one would be late before it is looked at.
        let gap_ms = table.shortest_gap_ms();
        if let (Some(jitter), Some(gap_ms)) = (self.jitter, gap_ms)
            && i64::try_from(jitter.ms()).unwrap_or(i64::MAX) > gap_ms
        {
            let gap = gap_ms.div_euclid(1_000);
            return Err(format!("jitter: must be at most the {gap} s between two instants"));
        }
        if self.missed == MissPolicy::All && self.overlap == Overlap::Skip {
            return Err("missed: all needs overlap: queue, since the second of them begins while the first goes on".into());
        }
        match self.inputs.len() > MAX_INPUTS {
            true => Err(format!("inputs: must be at most {MAX_INPUTS}")),
            false => Ok(()),
        }
    }
}
