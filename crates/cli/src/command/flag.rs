//! What flags take, parsed once: the contract's own types, within the bounds that a flag's help gives.

use std::net::SocketAddr;

use clap::builder::PossibleValuesParser;
use cofferdam_ambient::clock;
use cofferdam_contracts::duration::{Duration, DurationError, Unit};
use cofferdam_contracts::egress::{Egress, EntryError};
use cofferdam_contracts::instant::Instant;
use cofferdam_contracts::timeout::{MAX_WALL, MIN_WALL};
use cofferdam_contracts::user::{UserName, UserNameError};

/// Help of `--json`.
pub(crate) const JSON: &str = "Print one JSON object with a schema version";

/// Help of an argument that names a run.
pub(crate) const RUN: &str =
    "Run id, the beginning of one (6 digits or more), workflow id, or `last` for your newest run";

/// Help of an argument that names a run, or one task by its key.
pub(crate) const RUN_OR_TASK: &str = "Run id, the beginning of one (6 digits or more), workflow id, `last` for your newest run, or a task's key";

/// Help of an argument that names a run, or a dispatch by its id.
pub(crate) const RUN_OR_DISPATCH: &str = "Run id, the beginning of one (`rn_` and 6 digits or more), workflow id, `last` for your newest run, or a dispatch id";

/// A run as a person names it; which one it is, the server says.
pub(crate) fn run(text: &str) -> Result<String, String> {
    match text.is_empty() {
        true => Err("empty; write a run's id, the beginning of one, or `last`".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// A duration from 1 ms to 24 h. The name of a language profile is none: only recipes have those.
pub(crate) fn wall(text: &str) -> Result<Duration, DurationError> {
    text.parse::<Duration>()?.within(MIN_WALL, MAX_WALL)
}

/// A duration, a number of seconds, or a duration as Go writes it (`1h30m`, `1.5h`): for flags that clients of other
/// orchestrators set.
pub(crate) fn seconds(text: &str) -> Result<Duration, DurationError> {
    Duration::parse_in(text, Unit::S).or_else(|error| go_duration(text).ok_or(error))
}

/// Units of Go's durations in ns, the longer spelling before one that it begins with.
const GO_UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];
/// Digits after a point that are read: a flag needs nothing finer than a billionth of an hour.
const GO_DIGITS: u32 = 9;

/// Numbers with units, one after the other; a begun millisecond counts whole.
fn go_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut ns) = (text, 0_u64);
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let (unit, each) = GO_UNITS.into_iter().find(|(unit, _)| {
            let more = after.strip_prefix(unit);
            more.is_some_and(|more| {
                more.is_empty() || more.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            })
        })?;
        ns = ns.checked_add(go_number(number, each)?)?;
        rest = after.strip_prefix(unit)?;
    }
    Some(Duration::from_ms(ns.div_ceil(1_000_000)))
}

/// A decimal number of units of `each` ns.
fn go_number(text: &str, each: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let digits = u32::try_from(part.len()).ok().filter(|digits| *digits <= GO_DIGITS)?;
    let part = if part.is_empty() { 0 } else { part.parse::<u64>().ok()? };
    let part = u128::from(part) * u128::from(each) / 10_u128.pow(digits);
    whole.checked_mul(each)?.checked_add(u64::try_from(part).ok()?)
}

/// [`seconds`] from 1 s to 24 h.
pub(crate) fn wall_seconds(text: &str) -> Result<Duration, DurationError> {
    seconds(text)?.within(Duration::from_s(1), MAX_WALL)
}

/// `none`, or names and mirrors with commas between them.
pub(crate) fn egress(text: &str) -> Result<Egress, EntryError> {
    match text {
        "none" => Ok(Egress::None),
        list => list.split(',').map(str::parse).collect::<Result<_, _>>().map(Egress::Names),
    }
}

/// A user of a sandbox.
pub(crate) fn user(text: &str) -> Result<UserName, UserNameError> {
    UserName::parse(text)
}

/// Parses `--egress-host`, written `NAME=IP:PORT`: a domain name and its address.
pub(crate) fn egress_host(text: &str) -> Result<(String, SocketAddr), String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=IP:PORT")?;
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    Ok((name.to_owned(), address))
}

/// A time: so long before `now_ms`, a date, a date with a time in UTC as tables show it, or RFC 3339. Pure.
pub(crate) fn moment(text: &str, now_ms: i64) -> Result<Instant, String> {
    if let Ok(before) = text.parse::<Duration>() {
        let ms = i64::try_from(before.ms()).unwrap_or(i64::MAX);
        return Ok(Instant::from_ms(now_ms.saturating_sub(ms)));
    }
    let forms = ["", "Z", ":00Z", "T00:00:00Z"];
    let read = forms.iter().find_map(|rest| format!("{text}{rest}").parse().ok());
    read.ok_or_else(|| {
        let text: String = text.chars().take(64).collect();
        format!(
            "{text:?} is not a time; write how long ago (2h, 7d), a date such as 2026-01-19, or \
             \"2026-01-19 08:30\" in UTC"
        )
    })
}

/// [`moment`], of now.
pub(crate) fn time(text: &str) -> Result<Instant, String> {
    moment(text, clock::now_ms())
}

/// The names of a closed list of the contract: what is offered, shown in the help and completed.
pub(crate) fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> PossibleValuesParser {
    PossibleValuesParser::new(all.iter().copied().map(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d6_durations_are_read_as_go_writes_them_too() {
        let ms = |text: &str| seconds(text).ok().map(Duration::ms);
        for (text, expected) in [
            ("90", 90_000),
            ("5m", 300_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1.5h", 5_400_000),
            ("1m0.5s", 60_500),
            ("500ms", 500),
            ("100us", 1),
        ] {
            assert_eq!(ms(text), Some(expected), "{text}");
        }
        for bad in
            ["", "-5", "-5m", "h", "1h30", ".s", "5 m", "1.0000000001s", "99999999999999h", "1.5"]
        {
            assert_eq!(ms(bad), None, "{bad}");
        }
        assert!(wall_seconds("25h").is_err() && wall_seconds("0s").is_err());
    }

    #[test]
    fn a_time_is_an_age_a_date_or_an_instant() {
        // 2026-11-22T00:00:00Z.
        let now = 1_795_305_600_000;
        let read = |text: &str| moment(text, now).map(|at| at.to_string()).ok();
        for (text, at) in [
            ("2h", "2026-11-21T22:00:00.000Z"),
            ("7d", "2026-11-15T00:00:00.000Z"),
            ("0s", "2026-11-22T00:00:00.000Z"),
            ("2026-02-28", "2026-02-28T00:00:00.000Z"),
            ("2026-02-28 08:30", "2026-02-28T08:30:00.000Z"),
            ("2026-02-28 08:30:01", "2026-02-28T08:30:01.000Z"),
            ("2026-02-28T08:30:01Z", "2026-02-28T08:30:01.000Z"),
            ("2026-02-28T08:30:01+01:00", "2026-02-28T07:30:01.000Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(at), "{text}");
        }
        for bad in
            ["", "yesterday", "2h ago", "-2h", "2026-02-30", "2026-2-1", "2026", "08:30", "2"]
        {
            let refused = moment(bad, now).unwrap_err();
            assert!(refused.contains(&format!("{bad:?}")), "{refused}");
        }
        assert!(moment("365000d", now).is_ok(), "a thousand years ago is a time too");
    }
}
