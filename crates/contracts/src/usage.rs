//! What tenants used, by day: the rows of the metering table.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Serialize};
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::enum_names::named;
use crate::id::TenantId;
use crate::instant::Instant;
use crate::own_schema::own_schema;

/// Milliseconds of a day in UTC, which has no leap seconds here.
const DAY_MS: i64 = 86_400_000;

/// A day of the calendar in UTC, written as `2026-01-19`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr,
)]
pub struct UsageDay(Instant);

/// A text that is not a day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a day; write one in UTC, such as 2026-01-19")]
pub struct UsageDayError(String);

impl UsageDay {
    /// The day in which an instant lies.
    #[must_use]
    pub const fn of(instant: Instant) -> Self {
        let ms = instant.ms();
        Self(Instant::from_ms(ms - ms.rem_euclid(DAY_MS)))
    }
}

impl fmt::Display for UsageDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(text.split('T').next().unwrap_or_default())
    }
}

impl FromStr for UsageDay {
    type Err = UsageDayError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = format!("{text}T00:00:00Z").parse::<Instant>();
        let wrong = || UsageDayError(text.chars().take(64).collect());
        // The year 0 of the proleptic calendar is no year of the database's.
        let is_known = !text.starts_with("0000");
        read.ok().filter(|_| is_known).map(Self).ok_or_else(wrong)
    }
}

own_schema!(UsageDay, |_| {
    json_schema!({"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"})
});

named! {
    /// What a row of usage is the sum of.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum UsageGroup {
        /// A day of a tenant.
        Day = "day",
        /// All days of a tenant that were asked for.
        Tenant = "tenant",
    }
}

/// What a tenant used, on one day or on all days that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UsageRow {
    /// Tenant whose sandboxes and calls they were.
    pub tenant: TenantId,
    /// Day in UTC; absent in a sum over days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<UsageDay>,
    /// Sandboxes that were started, on the day of their start.
    pub starts: u64,
    /// Wall time of sandboxes in ms, from their start to their verified end; without the time that they waited for memory or were
    /// paused. Those that are up count until now.
    pub sandbox_ms: u64,
    /// Processor time of the commands of tasks that have ended, in ms, on the day of their end.
    pub core_ms: u64,
    /// Memory that sandboxes asked for by wall time, in MiB seconds.
    pub memory_mb_s: u64,
    /// Bytes of artifacts that were stored.
    pub stored_bytes: u64,
    /// Bytes of requests that were sent to providers of models.
    pub sent_bytes: u64,
    /// Calls of models that were sent and have ended, on the day of their end.
    pub model_calls: u64,
    /// Tokens of these calls; what was set aside where the provider told none.
    pub model_tokens: u64,
    /// Their price in millionths of the operator's unit of money; what was set aside where the provider told none.
    pub model_micros: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_reads_as_it_is_written_and_anything_else_is_refused() {
        let day: UsageDay = "2024-02-29".parse().unwrap();
        assert_eq!(day.to_string(), "2024-02-29");
        for (instant, of) in [
            ("2024-02-29T00:00:00Z", "2024-02-29"),
            ("2024-02-29T23:59:59.999Z", "2024-02-29"),
            ("2024-03-01T00:30:00+01:00", "2024-02-29"),
        ] {
            assert_eq!(UsageDay::of(instant.parse().unwrap()).to_string(), of, "{instant}");
        }
        assert_eq!(UsageDay::of(Instant::from_ms(-1)).to_string(), "1969-12-31");
        for bad in [
            "",
            "0000-01-01",
            "2023-02-29",
            "2024-2-29",
            "2024-02-29Z",
            "today",
            "2024-02-29T00:00:00Z",
        ] {
            assert!(bad.parse::<UsageDay>().is_err(), "{bad}");
        }
    }
}
