//! What flags take, parsed once: the contract's own types, within the bounds that a flag's help gives.

use std::net::SocketAddr;

use clap::builder::PossibleValuesParser;
use cofferdam_contracts::duration::{Duration, DurationError, Unit};
use cofferdam_contracts::egress::{Egress, EntryError, Name};
use cofferdam_contracts::timeout::{MAX_WALL, MIN_WALL};

/// A duration from 1 ms to 24 h. The name of a language profile is none: only recipes have those.
pub(crate) fn wall(text: &str) -> Result<Duration, DurationError> {
    text.parse::<Duration>()?.within(MIN_WALL, MAX_WALL)
}

/// A duration, or a number of seconds: for flags that took one before durations had units.
pub(crate) fn seconds(text: &str) -> Result<Duration, DurationError> {
    Duration::parse_in(text, Unit::S)
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

/// An exact domain name.
pub(crate) fn name(text: &str) -> Result<Name, EntryError> {
    Name::parse(text).ok_or_else(|| EntryError::Name(text.to_owned()))
}

/// Parses `NAME=IP:PORT`.
pub(crate) fn egress_host(text: &str) -> Result<(String, SocketAddr), String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=IP:PORT")?;
    let address = address.parse().map_err(|error| format!("{address}: {error}"))?;
    Ok((name.to_owned(), address))
}

/// The names of a closed list of the contract: what is offered, shown in the help and completed.
pub(crate) fn one_of<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> PossibleValuesParser {
    PossibleValuesParser::new(all.iter().copied().map(name))
}
