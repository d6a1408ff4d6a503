//! The machine's clock: asked of the host, and set.

use std::io;
use std::time::Duration;

use cofferdam_guest::setup::{CLOCK, CLOCK_ASKS};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

use super::stream::Stream;

/// The host looked at its clock while we waited, nobody knows when: an answer that took so long or less may be
/// half as far off, and is good enough.
const QUICK: Duration = Duration::from_millis(50);

/// Asks until an answer came quickly, which on a busy host takes a few: its first one includes what the
/// emulator translates.
pub(super) fn set(port: &mut Stream) -> io::Result<()> {
    let mut best = Duration::MAX;
    for _ in 0..CLOCK_ASKS {
        let asked = monotonic();
        port.say(CLOCK)?;
        let said = parse(&port.hear()?)?;
        let took = monotonic().saturating_sub(asked);
        if took < best {
            best = took;
            clock_settime(ClockId::Realtime, timespec(said + took / 2)?)?;
        }
        if best <= QUICK {
            break;
        }
    }
    Ok(())
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}

fn timespec(since_epoch: Duration) -> io::Result<Timespec> {
    Timespec::try_from(since_epoch).map_err(io::Error::other)
}

fn parse(line: &[u8]) -> io::Result<Duration> {
    let text = str::from_utf8(line).map_err(io::Error::other)?;
    text.trim_end().parse().map(Duration::from_millis).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_milliseconds_and_nothing_else() {
        assert_eq!(parse(b"1795377132123\n").unwrap(), Duration::from_millis(1_795_377_132_123));
        for wrong in [&b"\n"[..], b"-1\n", b"1.5\n", b"ready\n", b"\xff\n"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
