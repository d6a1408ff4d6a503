//! Retries by kind: which ends of a task's attempt are tried again, how often and after which pause.
//!
//! ```text
//! retry: {max: 2, on: [timeout, oom, infra, exit:75, exit:64-78], backoff: 5s}
//! retry: {max: 4, backoff: {first: 1s, factor: 2, max: 1m}}
//! ```
//! Without `retry`, faults of the host and its network are tried twice more. **What cannot end otherwise is never tried
//! again**: an attempt that its host refused for good, and a command that did not start (exit status 126 and 127).

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::duration::Duration;
use crate::own_schema::own_schema;
use crate::sandbox::ErrCode;

/// Retries that a recipe may ask for: as many as a budget may allow.
pub const MAX_RETRIES: u32 = 10;
/// Entries of `on`: every kind, and as many ranges of exit statuses as a person keeps in mind.
pub const MAX_RETRY_KINDS: usize = 16;
/// The longest pause between two attempts: a sandbox's worker waits no longer for a host that is away.
pub const MAX_BACKOFF: Duration = Duration::from_s(3_600);
/// Retries of a task that says nothing, under a budget that says nothing.
pub const DEFAULT_RETRIES: u32 = 2;
/// Pause before the second attempt where the recipe says none; each further one is four times as long.
pub const DEFAULT_BACKOFF: Duration = Duration::from_ms(250);

/// The longest pause where the recipe says none.
const DEFAULT_MAX_BACKOFF: Duration = Duration::from_ms(250 << 16);
/// The largest factor: two of such pauses reach [`MAX_BACKOFF`] from a second.
const MAX_FACTOR: u32 = 100;
/// A shell's answers that it could not execute, or not find, the program.
const NOT_STARTED: std::ops::RangeInclusive<u8> = 126..=127;

/// How often a task is tried again, and after which ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrySpec {
    /// Attempts beyond the first, 0 to 10. The run's budget bounds them further.
    #[schemars(range(max = 10))]
    pub max: u32,
    /// Ends that are tried again: `timeout`, `oom`, `infra` (faults of the host and its network), `exit:75`, `exit:64-78`.
    /// Default: `infra`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub on: Vec<RetryKind>,
    /// Pause before another attempt: a duration, or `{first, factor, max}`. Default: 250 ms, then four times longer each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
}

/// Ends of an attempt that are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub enum RetryKind {
    /// The wall time ran out.
    Timeout,
    /// The kernel killed a process for memory.
    Oom,
    /// A fault of the host or its network.
    Infra,
    /// An exit status of the task's command within these, both included.
    Exit {
        /// The lowest, from 1.
        from: u8,
        /// The highest of them, at most 255.
        to: u8,
    },
}

own_schema!(RetryKind, |_| json_schema!({
    "type": "string", "pattern": "^(timeout|oom|infra|exit:[0-9]{1,3}(-[0-9]{1,3})?)$"
}));

impl fmt::Display for RetryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("timeout"),
            Self::Oom => f.write_str("oom"),
            Self::Infra => f.write_str("infra"),
            Self::Exit { from, to } if from == to => write!(f, "exit:{from}"),
            Self::Exit { from, to } => write!(f, "exit:{from}-{to}"),
        }
    }
}

/// A text that names no end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a kind of failure; write timeout, oom, infra, or an exit status from 1 to 255 such as exit:75 or \
     exit:64-78 (126 and 127 mean that the program did not start, and are never tried again)"
)]
pub struct RetryKindError(String);

impl FromStr for RetryKind {
    type Err = RetryKindError;

    fn from_str(text: &str) -> Result<Self, RetryKindError> {
        let wrong = || RetryKindError(text.chars().take(64).collect());
        let Some(range) = text.strip_prefix("exit:") else {
            return match text {
                "timeout" => Ok(Self::Timeout),
                "oom" => Ok(Self::Oom),
                "infra" => Ok(Self::Infra),
                _ => Err(wrong()),
            };
        };
        let status = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse::<u8>().ok().filter(|n| is_number && *n > 0)
        };
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = status(from).zip(status(to)).ok_or_else(wrong)?;
        let starts = from > to || (NOT_STARTED.contains(&from) && NOT_STARTED.contains(&to));
        if starts { Err(wrong()) } else { Ok(Self::Exit { from, to }) }
    }
}

impl RetryKind {
    fn is_of(self, end: &AttemptEnd) -> bool {
        match self {
            Self::Timeout => end.err_code == ErrCode::Timeout,
            Self::Oom => end.err_code == ErrCode::Oom,
            Self::Infra => end.err_code.is_retryable(),
            Self::Exit { from, to } => {
                let status = end.exit.and_then(|exit| u8::try_from(exit).ok());
                end.err_code == ErrCode::CmdNonzero
                    && status.is_some_and(|status| (from..=to).contains(&status))
            }
        }
    }
}

/// Pauses between attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Pause before the second attempt.
    pub first: Duration,
    /// How many times longer each further one is.
    pub factor: u32,
    /// The longest that any of them becomes.
    pub max: Duration,
}

/// The long form of a backoff.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BackoffFields {
    /// Pause before the second attempt.
    first: Duration,
    /// How many times longer each further one is, 1 to 100. Default: 2.
    #[serde(default = "two")]
    #[schemars(range(min = 1, max = 100))]
    factor: u32,
    /// The longest pause, at most `1h`. Default: `1h`.
    #[serde(default = "an_hour")]
    max: Duration,
}

const fn two() -> u32 {
    2
}

const fn an_hour() -> Duration {
    MAX_BACKOFF
}

own_schema!(Backoff, |generator| {
    let duration = generator.subschema_for::<Duration>();
    let fields = generator.subschema_for::<BackoffFields>();
    json_schema!({"oneOf": [duration, fields]})
});

impl Serialize for Backoff {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { first, factor, max } = *self;
        match factor == 1 && max == first {
            true => first.serialize(serializer),
            false => BackoffFields { first, factor, max }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Backoff {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Backoff;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pause: a duration such as 5s, or {first, factor, max}")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Backoff, E> {
                let first: Duration = text.parse().map_err(E::custom)?;
                Ok(Backoff { first, factor: 1, max: first })
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Backoff, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                let BackoffFields { first, factor, max } = BackoffFields::deserialize(map)?;
                Ok(Backoff { first, factor, max })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Backoff {
    /// Pause behind attempt `attempt` (from 1), in ms.
    #[must_use]
    pub fn ms_after(&self, attempt: u32) -> u64 {
        let mut ms = self.first.ms();
        // At most one step for each retry that there can be.
        for _ in 1..attempt.min(MAX_RETRIES + 1) {
            ms = ms.saturating_mul(u64::from(self.factor));
        }
        ms.min(self.max.ms())
    }

    const fn usual() -> Self {
        Self { first: DEFAULT_BACKOFF, factor: 4, max: DEFAULT_MAX_BACKOFF }
    }
}

impl RetrySpec {
    /// What the types cannot say.
    ///
    /// # Errors
    /// The field and what is out of its bounds.
    pub fn check(&self) -> Result<(), String> {
        if self.max > MAX_RETRIES {
            return Err(format!("retry.max: must be 0 to {MAX_RETRIES}"));
        }
        if self.on.len() > MAX_RETRY_KINDS {
            return Err(format!("retry.on: at most {MAX_RETRY_KINDS} entries"));
        }
        let Some(backoff) = &self.backoff else { return Ok(()) };
        let most = MAX_BACKOFF;
        if backoff.first > most || backoff.max > most || backoff.first > backoff.max {
            return Err(format!(
                "retry.backoff: must be at most {most}, and `first` at most `max`"
            ));
        }
        if !(1..=MAX_FACTOR).contains(&backoff.factor) {
            return Err(format!("retry.backoff.factor: must be 1 to {MAX_FACTOR}"));
        }
        Ok(())
    }
}

/// How an attempt ended, as far as a retry depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptEnd {
    /// How it ended.
    pub err_code: ErrCode,
    /// Exit status of the task's command, where it ran.
    pub exit: Option<i32>,
    /// Whether another attempt would end the same.
    pub permanent: bool,
}

/// What follows an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// It succeeded, and nothing follows.
    Succeeded,
    /// Another attempt after a pause.
    Again {
        /// The pause in ms.
        backoff_ms: u64,
    },
    /// It failed, and is not tried again although attempts may be left.
    Failed,
    /// It failed for good: another attempt would end the same.
    Permanent,
    /// Every attempt that it has was used, and there were several.
    Exceeded,
}

/// What follows attempt `attempt` (from 1) of a task. `budget`: the run's bound on retries of a task, if it has one.
#[must_use]
pub fn decide(
    spec: Option<&RetrySpec>,
    end: &AttemptEnd,
    attempt: u32,
    budget: Option<u32>,
) -> RetryDecision {
    if end.err_code == ErrCode::None {
        return RetryDecision::Succeeded;
    }
    let asked = spec.map_or_else(|| budget.unwrap_or(DEFAULT_RETRIES), |spec| spec.max);
    let retries = asked.min(budget.unwrap_or(MAX_RETRIES));
    let kinds: &[RetryKind] = match spec {
        Some(spec) if !spec.on.is_empty() => &spec.on,
        _ => &[RetryKind::Infra],
    };
    let is_unstarted = end.err_code == ErrCode::CmdNonzero
        && end
            .exit
            .and_then(|exit| u8::try_from(exit).ok())
            .is_some_and(|n| NOT_STARTED.contains(&n));
    if is_unstarted || !kinds.iter().any(|kind| kind.is_of(end)) {
        return RetryDecision::Failed;
    }
    match (attempt > retries, retries) {
        (true, 0) => RetryDecision::Failed,
        (true, _) => RetryDecision::Exceeded,
        (false, _) if end.permanent => RetryDecision::Permanent,
        (false, _) => {
            let backoff = spec.and_then(|spec| spec.backoff).unwrap_or(Backoff::usual());
            RetryDecision::Again { backoff_ms: backoff.ms_after(attempt) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(value: Value) -> RetrySpec {
        serde_json::from_value(value).unwrap()
    }

    fn end(err_code: ErrCode, exit: i32) -> AttemptEnd {
        AttemptEnd { err_code, exit: Some(exit), permanent: false }
    }

    #[test]
    fn kinds_are_written_and_read_alike() {
        for text in ["timeout", "oom", "infra", "exit:75", "exit:64-78", "exit:1-255"] {
            assert_eq!(text.parse::<RetryKind>().unwrap().to_string(), text);
        }
        let bad = [
            "",
            "exit",
            "exit:",
            "exit:0",
            "exit:256",
            "exit:9-8",
            "exit:+5",
            "exit:126",
            "exit:126-127",
            "Timeout",
        ];
        for text in bad {
            assert!(text.parse::<RetryKind>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_kind_is_tried_again_where_it_is_named_and_nowhere_else() {
        let all = ["timeout", "oom", "infra", "exit:64-78"];
        for err_code in ErrCode::ALL.iter().copied() {
            let of = match err_code {
                ErrCode::None => None,
                ErrCode::Timeout => Some("timeout"),
                ErrCode::Oom => Some("oom"),
                ErrCode::CmdNonzero => Some("exit:64-78"),
                _ => Some("infra"),
            };
            for kind in all {
                let spec = spec(json!({"max": 1, "on": [kind], "backoff": "5s"}));
                let first = decide(Some(&spec), &end(err_code, 70), 1, None);
                let wanted = match of {
                    None => RetryDecision::Succeeded,
                    Some(of) if of == kind => RetryDecision::Again { backoff_ms: 5_000 },
                    Some(_) => RetryDecision::Failed,
                };
                assert_eq!(first, wanted, "{err_code:?} {kind}");
            }
        }
        let exit = spec(json!({"max": 1, "on": ["exit:75"]}));
        assert_eq!(
            decide(Some(&exit), &end(ErrCode::CmdNonzero, 74), 1, None),
            RetryDecision::Failed
        );
        assert_eq!(decide(Some(&exit), &end(ErrCode::Timeout, 75), 1, None), RetryDecision::Failed);
    }

    #[test]
    fn what_cannot_get_better_is_never_tried_again() {
        let spec = spec(json!({"max": 10, "on": ["exit:1-255", "infra"]}));
        for status in [126, 127] {
            assert_eq!(
                decide(Some(&spec), &end(ErrCode::CmdNonzero, status), 1, None),
                RetryDecision::Failed
            );
        }
        let refused = AttemptEnd { permanent: true, ..end(ErrCode::UploadFail, -1) };
        assert_eq!(decide(Some(&spec), &refused, 1, None), RetryDecision::Permanent);
        assert_eq!(decide(None, &refused, 3, None), RetryDecision::Exceeded);
    }

    #[test]
    fn the_smaller_of_recipe_and_budget_bounds_retries() {
        let boot = end(ErrCode::BootFail, -1);
        for max in 0..=10 {
            let spec = spec(json!({"max": max}));
            for budget in (0..=10).map(Some).chain([None]) {
                let most = max.min(budget.unwrap_or(10));
                let again = (1..).take_while(|attempt| {
                    matches!(
                        decide(Some(&spec), &boot, *attempt, budget),
                        RetryDecision::Again { .. }
                    )
                });
                assert_eq!(u32::try_from(again.count()).unwrap(), most, "{max} {budget:?}");
                let last = decide(Some(&spec), &boot, most + 1, budget);
                let wanted =
                    if most == 0 { RetryDecision::Failed } else { RetryDecision::Exceeded };
                assert_eq!(last, wanted);
            }
        }
    }

    #[test]
    fn pauses_grow_up_to_their_bound() {
        let spec = spec(json!({"max": 10, "backoff": {"first": "1s", "factor": 3, "max": "10s"}}));
        let backoff = spec.backoff.unwrap();
        assert_eq!(
            [1, 2, 3, 4, 10].map(|n| backoff.ms_after(n)),
            [1_000, 3_000, 9_000, 10_000, 10_000]
        );
        assert_eq!(Backoff::usual().ms_after(u32::MAX), DEFAULT_MAX_BACKOFF.ms());
        let boot = end(ErrCode::BootFail, -1);
        assert_eq!(decide(None, &boot, 1, None), RetryDecision::Again { backoff_ms: 250 });
        assert_eq!(decide(None, &boot, 2, None), RetryDecision::Again { backoff_ms: 1_000 });
        assert_eq!(decide(None, &boot, 3, None), RetryDecision::Exceeded);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_its_field() {
        for (value, word) in [
            (json!({"max": 11}), "retry.max"),
            (json!({"max": 1, "on": vec!["oom"; 17]}), "retry.on"),
            (json!({"max": 1, "backoff": "2h"}), "retry.backoff"),
            (json!({"max": 1, "backoff": {"first": "2s", "max": "1s"}}), "`first` at most `max`"),
            (json!({"max": 1, "backoff": {"first": "2s", "factor": 0}}), "retry.backoff.factor"),
        ] {
            let error = spec(value).check().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let short = spec(json!({"max": 1, "backoff": "5s"}));
        assert_eq!(serde_json::to_value(&short).unwrap(), json!({"max": 1, "backoff": "5s"}));
    }
}
