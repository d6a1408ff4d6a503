//! What flags take, parsed once: the contract's own types, within the bounds that a flag's help gives.

use std::net::SocketAddr;

use clap::builder::PossibleValuesParser;
use cofferdam_contracts::duration::{Duration, DurationError, Unit};
use cofferdam_contracts::egress::{Egress, EntryError};
use cofferdam_contracts::timeout::{MAX_WALL, MIN_WALL};
use cofferdam_contracts::user::{UserName, UserNameError};

/// Help of `--json`.
pub(crate) const JSON: &str = "Print one JSON object with a schema version";

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
}
