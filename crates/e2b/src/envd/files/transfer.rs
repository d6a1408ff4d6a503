//! Bounds of a transfer, and one that did not begin.

use cofferdam_live::GuestError;

use crate::connect::fault::Fault;
use crate::envd::files::access::BUSY;
use crate::envd::paths::unavailable;

/// Bytes of one file, in either direction: more than any writable layer of a sandbox has by default.
pub(crate) const MAX_FILE: u64 = 4 * 1024 * 1024 * 1024;

pub(crate) fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A transfer that did not begin.
pub(crate) fn unopened(error: &GuestError) -> Fault {
    let fault = unavailable(error);
    if *error == GuestError::Busy { Fault { code: BUSY, ..fault } } else { fault }
}
