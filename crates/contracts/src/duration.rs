//! Lengths of time as people write them: one grammar for recipes, the command line and the API.
//!
//! ```text
//! duration = number unit        90s  5m  12h  7d  500ms
//! number   = decimal digits     whole: no sign, no fraction
//! unit     = ms | s | m | h | d
//! ```
//! A bare number is a duration only in a field whose name or description gives its unit.

use std::fmt;
use std::str::FromStr;

use schemars::json_schema;
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::own_schema::own_schema;

/// What published schemas say of a duration.
pub(crate) const PATTERN: &str = "^[0-9]{1,15}(ms|s|m|h|d)$";
/// The longest duration, 1,000 years in ms: whole in every JSON reader's numbers. Fields bound it further.
const MAX_MS: u64 = 1_000 * 365 * Unit::D.ms();

/// The unit of a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Unit `ms`, milliseconds.
    Ms,
    /// Unit `s`, seconds.
    S,
    /// Unit `m`, minutes.
    M,
    /// Unit `h`, hours.
    H,
    /// Days of 24 hours.
    D,
}

impl Unit {
    /// The longest unit first.
    const ALL: [Self; 5] = [Self::D, Self::H, Self::M, Self::S, Self::Ms];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Ms => "ms",
            Self::S => "s",
            Self::M => "m",
            Self::H => "h",
            Self::D => "d",
        }
    }

    const fn ms(self) -> u64 {
        match self {
            Self::Ms => 1,
            Self::S => 1_000,
            Self::M => 60_000,
            Self::H => 3_600_000,
            Self::D => 86_400_000,
        }
    }
}

/// A length of time, to the millisecond.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr,
)]
pub struct Duration(u64);

/// Why a text is not a duration that its field takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not of the grammar.
    #[error(
        "{0:?} is not a duration; write a whole number and a unit (ms, s, m, h, d), such as 90s or 5m"
    )]
    Grammar(String),
    /// Outside the field's bounds.
    #[error("{found} is out of range; write a duration from {min} to {max}")]
    Range {
        /// The duration that was written.
        found: Duration,
        /// The shortest that the field takes.
        min: Duration,
        /// The longest that the field takes.
        max: Duration,
    },
}

impl Duration {
    /// So many milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// So many seconds.
    #[must_use]
    pub const fn from_s(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000))
    }

    /// The duration in milliseconds.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// Seconds, a begun one counted whole.
    #[must_use]
    pub const fn s(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// A duration, or a bare number in the unit that the field documents.
    ///
    /// # Errors
    /// A text that is neither.
    pub fn parse_in(text: &str, bare: Unit) -> Result<Self, DurationError> {
        let is_bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if is_bare { Self::of(text, text, bare) } else { text.parse() }
    }

    /// The duration, if it is within the bounds of its field.
    ///
    /// # Errors
    /// One that is shorter or longer.
    pub fn within(self, min: Self, max: Self) -> Result<Self, DurationError> {
        match (min..=max).contains(&self) {
            true => Ok(self),
            false => Err(DurationError::Range { found: self, min, max }),
        }
    }

    fn of(text: &str, digits: &str, unit: Unit) -> Result<Self, DurationError> {
        let ms = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(unit.ms()));
        let ms = ms.filter(|ms| *ms <= MAX_MS);
        ms.map(Self).ok_or_else(|| DurationError::Grammar(text.chars().take(64).collect()))
    }
}

impl FromStr for Duration {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, DurationError> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, suffix) = text.split_at(split);
        let unit = Unit::ALL.into_iter().find(|unit| unit.as_str() == suffix);
        match unit {
            Some(unit) => Self::of(text, digits, unit),
            None => Err(DurationError::Grammar(text.chars().take(64).collect())),
        }
    }
}

/// In the longest unit that holds it whole: one duration has one text.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit: &Unit| self.0 > 0 && self.0.is_multiple_of(unit.ms());
        let unit = Unit::ALL.into_iter().find(whole).unwrap_or(Unit::S);
        write!(f, "{}{}", self.0 / unit.ms(), unit.as_str())
    }
}

own_schema!(Duration, |_| json_schema!({"type": "string", "pattern": PATTERN}));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Language;

    fn ms(text: &str) -> Option<u64> {
        text.parse().ok().map(Duration::ms)
    }

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, expected) in [
            ("500ms", 500),
            ("90s", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("0s", 0),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "+1s",
            "1.5m",
            "1 m",
            "1M",
            "3w",
            "1h30m",
            " 1s",
            "1s ",
            "1s\n",
            "\u{661}s",
            "99999999999999999999s",
            "999999999999999d",
            "python",
        ] {
            let refused = bad.parse::<Duration>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{bad:?}")), "{refused}");
        }
    }

    #[test]
    fn a_duration_is_never_the_name_of_a_profile() {
        for language in Language::ALL {
            assert!(language.as_str().parse::<Duration>().is_err());
            assert!(Duration::parse_in(language.as_str(), Unit::S).is_err());
        }
    }

    #[test]
    fn a_bare_number_has_the_unit_that_its_field_gives_it() {
        let seconds = |text: &str| Duration::parse_in(text, Unit::S).ok().map(Duration::ms);
        assert_eq!(
            (seconds("90"), seconds("2m"), seconds("")),
            (Some(90_000), Some(120_000), None)
        );
        assert_eq!(Duration::parse_in("90", Unit::Ms), Ok(Duration::from_ms(90)));
    }

    #[test]
    fn a_duration_reads_as_it_is_written_and_has_one_text() {
        let mut ms = 1_u64;
        while ms < MAX_MS {
            for near in [ms - 1, ms, ms + 1, ms * 60, ms * 86_400] {
                let duration = Duration::from_ms(near.min(MAX_MS));
                let text = duration.to_string();
                assert_eq!(text.parse(), Ok(duration), "{text}");
                assert_eq!(serde_json::to_value(duration).unwrap(), text);
            }
            ms *= 3;
        }
        for (text, shown) in [("60s", "1m"), ("3600s", "1h"), ("24h", "1d"), ("90s", "90s")] {
            assert_eq!(text.parse::<Duration>().unwrap().to_string(), shown);
        }
    }

    #[test]
    fn a_duration_out_of_bounds_is_named_with_its_bounds() {
        let (min, max) = (Duration::from_s(1), Duration::from_s(86_400));
        assert!(max.within(min, max).is_ok());
        let refused = Duration::from_ms(10).within(min, max).unwrap_err().to_string();
        assert_eq!(refused, "10ms is out of range; write a duration from 1s to 1d");
    }
}
