//! The instants of a schedule: pure, and the same on every host, since the time zones are those of the program.
//!
//! Where a zone's clock is put forward, an instant of a fixed time in the gap is the first one after the gap, and a pattern that
//! repeats (`*`, `*/N`, a list or a range) has none there. Where it is put back, a fixed time is its first occurrence alone, and a
//! pattern that repeats has both.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::ScheduleSpec;

/// Characters of a pattern; one that names every minute has 200 and can be written as `*`.
pub const MAX_CRON_CHARS: usize = 128;
/// Characters of a zone's name; the longest of the database has 32.
const MAX_ZONE_CHARS: usize = 64;

/// A schedule's pattern and zone, parsed.
#[derive(Debug, Clone)]
pub struct Timetable {
    cron: Cron,
    zone: TimeZone,
}

/// The begin of 2026, in ms since the epoch: a schedule is judged alike whenever it is added.
const YEAR_2026_MS: i64 = 1_767_225_600_000;
/// Gaps that are looked at: each kind that an hour of seconds or a month of days has.
const GAPS: usize = 64;

impl Timetable {
    /// Of a schedule.
    ///
    /// # Errors
    /// The field and what is wrong with it: `cron: ..` or `time_zone: ..`.
    pub fn new(spec: &ScheduleSpec) -> Result<Self, String> {
        if spec.cron.trim().is_empty() || spec.cron.len() > MAX_CRON_CHARS {
            return Err(format!("cron: must be 1 to {MAX_CRON_CHARS} characters"));
        }
        let parser =
            CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(&spec.cron).map_err(|e| {
            let why = e.to_string();
            let why = why.strip_prefix("Component error: ").unwrap_or(&why);
            format!("cron: {:?} is not a pattern such as \"0 3 * * *\": {why}", spec.cron)
        })?;
        Ok(Self { cron, zone: zone(spec.time_zone.as_deref())? })
    }

    /// The first instant after this one, in ms since the epoch; `None` where there is none until the year 5000.
    #[must_use]
    pub fn next(&self, after_ms: i64) -> Option<i64> {
        let after = Timestamp::from_millisecond(after_ms).ok()?.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&after, false).ok()?;
        Some(next.timestamp().as_millisecond()).filter(|next| *next > after_ms)
    }

    /// The shortest time between two of the first instants of 2026, in ms; `None` where there are fewer than two.
    #[must_use]
    pub fn shortest_gap_ms(&self) -> Option<i64> {
        let mut gap = None;
        let mut at = self.next(YEAR_2026_MS)?;
        for _ in 0..GAPS {
            let Some(next) = self.next(at) else { break };
            gap = Some(gap.map_or(next - at, |least: i64| least.min(next - at)));
            at = next;
        }
        gap
    }
}

fn zone(name: Option<&str>) -> Result<TimeZone, String> {
    let Some(name) = name else { return Ok(TimeZone::UTC) };
    if name.is_empty() || name.len() > MAX_ZONE_CHARS {
        return Err(format!("time_zone: must be 1 to {MAX_ZONE_CHARS} characters"));
    }
    let zones = TimeZoneDatabase::bundled();
    zones
        .get(name)
        .map_err(|_| format!("time_zone: {name:?} is not an IANA time zone such as Europe/Berlin"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instant::Instant;

    fn table(cron: &str, zone: &str) -> Timetable {
        let zone = Some(zone.to_owned());
        Timetable::new(&ScheduleSpec { time_zone: zone, ..ScheduleSpec::of(cron) }).unwrap()
    }

    /// The first instants after one, in UTC to the second.
    fn instants(table: &Timetable, after: &str, n: usize) -> Vec<String> {
        let mut at = after.parse::<Instant>().unwrap().ms();
        let mut found = Vec::new();
        for _ in 0..n {
            at = table.next(at).unwrap();
            found.push(Instant::from_ms(at).to_string().replace(".000Z", "Z"));
        }
        found
    }

    #[test]
    fn a_jitter_is_at_most_the_shortest_time_between_two_instants() {
        let checked = |text: &str| serde_json::from_str::<ScheduleSpec>(text).unwrap().check();
        assert_eq!(checked(r#"{"cron": "0 9,10 * * *", "jitter": "1h"}"#), Ok(()));
        assert_eq!(checked(r#"{"cron": "0 3 1 1 *", "jitter": "1h"}"#), Ok(()));
        let long = checked(r#"{"cron": "*/5 * * * *", "jitter": "10m"}"#).unwrap_err();
        assert_eq!(long, "jitter: must be at most the 300 s between two instants");
    }

    #[test]
    fn a_fixed_time_in_a_gap_is_the_first_instant_after_it() {
        // In Berlin 02:00 becomes 03:00 on 2026-03-29, at 01:00 UTC.
        let daily = table("30 2 * * *", "Europe/Berlin");
        assert_eq!(
            instants(&daily, "2026-03-28T00:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
    }

    #[test]
    fn a_fixed_time_that_comes_twice_is_its_first_occurrence() {
        // In Berlin 03:00 becomes 02:00 on 2026-10-25, at 01:00 UTC.
        let daily = table("30 2 * * *", "Europe/Berlin");
        assert_eq!(
            instants(&daily, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
    }

    #[test]
    fn a_list_or_a_range_counts_as_a_pattern_that_repeats() {
        for cron in ["30 2,14 * * *", "30 2-3 * * *", "15,30 2 * * *"] {
            let table = table(cron, "Europe/Berlin");
            // In the gap of 2026-03-29, from 01:00 UTC on, neither has an instant at 03:00 of Berlin.
            let spring = instants(&table, "2026-03-28T20:00:00Z", 1);
            assert!(!spring.contains(&"2026-03-29T01:00:00Z".to_owned()), "{cron}: {spring:?}");
            // On 2026-10-25 both 02:30 count.
            let autumn = instants(&table, "2026-10-25T00:20:00Z", 4);
            for half in ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"] {
                assert!(autumn.contains(&half.to_owned()), "{cron}: {autumn:?}");
            }
        }
    }

    #[test]
    fn a_pattern_that_repeats_has_each_instant_of_real_time_once() {
        let half_hours = table("*/30 * * * *", "Europe/Berlin");
        assert_eq!(
            instants(&half_hours, "2026-10-25T00:15:00Z", 5),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:00:00Z",
                "2026-10-25T02:30:00Z"
            ]
        );
        assert_eq!(
            instants(&half_hours, "2026-03-29T00:15:00Z", 3),
            ["2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"]
        );
    }

    #[test]
    fn instants_rise_over_the_changes_of_many_zones() {
        for zone in
            ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"]
        {
            for cron in
                ["*/7 * * * *", "0 * * * *", "15 0,1,2,3 * * *", "30 2 * * *", "59 59 23 * * *"]
            {
                let table = table(cron, zone);
                let mut at = "2026-03-01T00:00:00Z".parse::<Instant>().unwrap().ms();
                for _ in 0..3_000 {
                    let next = table.next(at).unwrap();
                    assert!(
                        next > at,
                        "{zone} {cron}: {} then {}",
                        Instant::from_ms(at),
                        Instant::from_ms(next)
                    );
                    // Whoever begins to look in the middle finds the same instant.
                    assert_eq!(
                        table.next(at + (next - at) / 2),
                        Some(next),
                        "{zone} {cron} {}",
                        Instant::from_ms(at)
                    );
                    at = next;
                }
            }
        }
    }

    #[test]
    fn seconds_are_a_sixth_field_in_front() {
        assert_eq!(
            instants(&table("*/20 * * * * *", "UTC"), "2026-01-01T00:00:00Z", 2),
            ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]
        );
    }

    #[test]
    fn what_is_not_a_schedule_is_refused_by_its_field() {
        let zoned = |zone: &str| ScheduleSpec {
            time_zone: Some(zone.into()),
            ..ScheduleSpec::of("0 3 * * *")
        };
        for (spec, field) in [
            (ScheduleSpec::of(""), "cron: "),
            (ScheduleSpec::of("0 3 * *"), "cron: "),
            (ScheduleSpec::of("61 3 * * *"), "cron: "),
            (ScheduleSpec::of("0 3 * * * * *"), "cron: "),
            (ScheduleSpec::of("0 0 * * *\0"), "cron: "),
            (ScheduleSpec::of(&"0 ".repeat(100)), "cron: "),
            (zoned("Mars/Olympus"), "time_zone: "),
            (zoned(""), "time_zone: "),
            (zoned("../../etc/passwd"), "time_zone: "),
        ] {
            let why = spec.check().unwrap_err();
            assert!(why.starts_with(field), "{spec:?}: {why}");
        }
        let late = serde_json::json!({"cron": "0 3 * * *", "jitter": "2h"});
        let late: ScheduleSpec = serde_json::from_value(late).unwrap();
        assert!(late.check().unwrap_err().starts_with("jitter: "));
    }

    #[test]
    fn a_pattern_without_an_instant_ends() {
        assert_eq!(table("0 0 30 2 *", "Europe/Berlin").next(0), None);
    }

    #[test]
    fn a_schedule_reads_back_in_one_form() {
        for text in [
            r#""0 3 * * *""#,
            r#"{"cron":"0 3 * * *","time_zone":"Europe/Berlin","missed":"once"}"#,
        ] {
            let spec: ScheduleSpec = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&spec).unwrap(), text);
        }
        assert!(serde_json::from_str::<ScheduleSpec>(r#"{"cron":"0 3 * * *","when":1}"#).is_err());
    }
}
