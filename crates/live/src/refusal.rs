//! What callers are refused with, in words.

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::SnapshotId;
use cofferdam_flows::Error;

pub(crate) fn refuse(code: ErrorCode, why: impl Into<String>) -> Error {
    Refusal::new(code, why).into()
}

pub(crate) fn conflict(why: impl Into<String>) -> Error {
    refuse(ErrorCode::StateConflict, why)
}

pub(crate) fn over() -> Error {
    Refusal::not_found("running sandbox").into()
}

/// What another process holds, this one cannot reach.
pub(crate) fn elsewhere() -> Error {
    Refusal::new(
        ErrorCode::WrongServer,
        "the sandbox is held by another process of this installation: ask the server that created it, or that resumed it \
         last",
    )
    .into()
}

/// This process ends.
pub(crate) fn stops() -> Error {
    refuse(ErrorCode::Unavailable, "the server stops; try again")
}

pub(crate) fn unverified() -> Error {
    let why = "the sandbox is ordered to end, and its wipe is not verified yet; ask again, or see `cofferdam session ls`";
    refuse(ErrorCode::Unavailable, why)
}

pub(crate) fn damaged(id: &SnapshotId, why: &str) -> Error {
    conflict(format!("the snapshot {id} cannot be used: {why}"))
}
