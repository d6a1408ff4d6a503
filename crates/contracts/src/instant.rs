//! Instants: milliseconds since the epoch, as text RFC 3339 in UTC.

use std::fmt;
use std::str::FromStr;

use schemars::json_schema;
use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::own_schema::own_schema;

/// A point in time, to the millisecond. Written as `2026-01-19T08:30:00.000Z`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr,
)]
pub struct Instant(i64);

/// A text that is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an instant; write RFC 3339, such as 2026-01-19T08:30:00Z")]
pub struct InstantError(String);

/// Days from 0000-03-01 to the epoch.
const EPOCH_DAYS: i64 = 719_468;
/// Days of 400 years, after which the calendar repeats.
const ERA_DAYS: i64 = 146_097;

impl Instant {
    /// So many milliseconds since the epoch.
    #[must_use]
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn ms(self) -> i64 {
        self.0
    }
}

/// A date's days since the epoch, by the usual era arithmetic of the proleptic Gregorian calendar.
const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS
}

/// The date of days since the epoch: the inverse.
fn date_of(days: i64) -> (i64, i64, i64) {
    let z = days + EPOCH_DAYS;
    let (era, doe) = (z.div_euclid(ERA_DAYS), z.rem_euclid(ERA_DAYS));
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + i64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1000);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date_of(days);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
            rest / 3600,
            rest / 60 % 60,
            rest % 60,
            self.0.rem_euclid(1000)
        )
    }
}

/// What is left of a text that is read from its front.
struct TextCursor<'a>(&'a str);

impl TextCursor<'_> {
    /// Exactly so many digits, in a range.
    fn number(&mut self, digits: usize, min: i64, max: i64) -> Option<i64> {
        let (head, tail) = self.0.split_at_checked(digits)?;
        let number = head.bytes().all(|b| b.is_ascii_digit()).then(|| head.parse().ok())??;
        self.0 = tail;
        (min..=max).contains(&number).then_some(number)
    }

    fn one_of(&mut self, letters: &[char]) -> Option<char> {
        let found = self.0.chars().next().filter(|c| letters.contains(c))?;
        self.0 = self.0.get(found.len_utf8()..)?;
        Some(found)
    }

    /// `.5`: digits beyond the millisecond are cut.
    fn fraction_ms(&mut self) -> Option<i64> {
        if self.one_of(&['.']).is_none() {
            return Some(0);
        }
        let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, tail) =
            self.0.split_at_checked(end).filter(|(digits, _)| !digits.is_empty())?;
        self.0 = tail;
        digits.chars().chain("00".chars()).take(3).collect::<String>().parse().ok()
    }

    /// `Z`, `+02:00`: minutes east of UTC.
    fn offset_min(&mut self) -> Option<i64> {
        let sign = match self.one_of(&['Z', 'z', '+', '-'])? {
            '+' => 1,
            '-' => -1,
            _ => return Some(0),
        };
        let hours = self.number(2, 0, 23)?;
        self.one_of(&[':'])?;
        Some(sign * (hours * 60 + self.number(2, 0, 59)?))
    }
}

fn read(text: &str) -> Option<i64> {
    let mut rest = TextCursor(text);
    let year = rest.number(4, 0, 9_999)?;
    rest.one_of(&['-'])?;
    let month = rest.number(2, 1, 12)?;
    rest.one_of(&['-'])?;
    let day = rest.number(2, 1, 31)?;
    let days = days_of(year, month, day);
    // The 30th of February would be another day.
    let is_a_day = date_of(days) == (year, month, day);
    rest.one_of(&['T', 't', ' '])?;
    let hour = rest.number(2, 0, 23)?;
    rest.one_of(&[':'])?;
    let minute = rest.number(2, 0, 59)?;
    rest.one_of(&[':'])?;
    let second = rest.number(2, 0, 59)?;
    let ms = rest.fraction_ms()?;
    let offset_min = rest.offset_min()?;
    let seconds = days * 86_400 + hour * 3_600 + (minute - offset_min) * 60 + second;
    (is_a_day && rest.0.is_empty()).then_some(seconds * 1_000 + ms)
}

impl FromStr for Instant {
    type Err = InstantError;

    fn from_str(text: &str) -> Result<Self, InstantError> {
        read(text).map(Self).ok_or_else(|| InstantError(text.chars().take(64).collect()))
    }
}

own_schema!(Instant, |_| json_schema!({"type": "string", "format": "date-time"}));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f6_an_instant_is_iso_8601_in_utc() {
        let iso = |ms| Instant::from_ms(ms).to_string();
        assert_eq!(iso(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(iso(1_709_210_096_007), "2024-02-29T12:34:56.007Z");
    }

    #[test]
    fn an_instant_reads_as_it_is_written() {
        let mut ms = 1_i64;
        while ms < 250_000_000_000_000 {
            for near in [-ms / 8, ms - 1, ms, ms + 86_400_000] {
                let instant = Instant::from_ms(near);
                assert_eq!(instant.to_string().parse(), Ok(instant), "{instant}");
            }
            ms *= 3;
        }
    }

    #[test]
    fn offsets_and_fractions_are_read_and_everything_else_is_refused() {
        let ms = |text: &str| text.parse().ok().map(Instant::ms);
        let noon = Some(1_709_208_000_000);
        for text in [
            "2024-02-29T12:00:00Z",
            "2024-02-29t12:00:00.0z",
            "2024-02-29 12:00:00.000999Z",
            "2024-02-29T14:30:00+02:30",
            "2024-02-28T23:00:00-13:00",
        ] {
            assert_eq!(ms(text), noon, "{text}");
        }
        assert_eq!(ms("2024-02-29T12:00:00.25Z"), noon.map(|ms| ms + 250));
        for bad in [
            "",
            "2024-02-29",
            "2024-02-29T12:00:00",
            "2024-02-30T12:00:00Z",
            "2023-02-29T12:00:00Z",
            "2024-13-01T12:00:00Z",
            "2024-02-29T24:00:00Z",
            "2024-02-29T12:60:00Z",
            "2024-02-29T12:00:00.Z",
            "2024-02-29T12:00:00Z ",
            "2024-02-29T12:00:00+2:00",
            "24-02-29T12:00:00Z",
            "10m",
            "\u{661}024-02-29T12:00:00Z",
        ] {
            let refused = bad.parse::<Instant>().unwrap_err().to_string();
            assert!(refused.contains(&format!("{bad:?}")), "{refused}");
        }
    }
}
