//! How a sealer begins, and the order that says so.

const START: u8 = b'j';
const START_HELD: u8 = b'J';
const START_MEASURED: u8 = b'm';
const START_NOW: u8 = b'n';
const START_MEASURED_NOW: u8 = b'N';

/// How a sealer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SealStart {
    /// A moment later: the answer to a pause comes first.
    Soon,
    /// It waits for the order to go on.
    Held,
    /// It says first how large the stream is.
    Measured,
    /// At once, and it ends with its worker; nothing is on the disk before the worker has it put there.
    Now,
    /// It says first how large the stream is, and goes on at once.
    MeasuredNow,
}

impl SealStart {
    const ALL: [(Self, u8); 5] = [
        (Self::Soon, START),
        (Self::Held, START_HELD),
        (Self::Measured, START_MEASURED),
        (Self::Now, START_NOW),
        (Self::MeasuredNow, START_MEASURED_NOW),
    ];

    pub(crate) fn order(self) -> u8 {
        Self::ALL.iter().find(|(start, _)| *start == self).map_or(START, |(_, order)| *order)
    }

    pub(crate) fn is_measured(self) -> bool {
        matches!(self, Self::Measured | Self::MeasuredNow)
    }

    pub(crate) fn is_now(self) -> bool {
        matches!(self, Self::Now | Self::MeasuredNow)
    }

    pub(crate) fn of(order: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == order).map(|(start, _)| *start)
    }
}
