//! The files of a machine, which lie in its own memory, and who hands them out. This route came with level 10.
//!
//! | route | request | answer |
//! |---|---|---|
//! | `POST /v1/keep` | a body without bytes | frames: chunks of the stream of [`crate::upper`], one [`crate::wire::CollectEnd`]; 409: it cannot |
//!
//! ```text
//! agent --HOLD-----> init: the task's processes stand still, and its layer is read
//!       <-- crate::pieces, then WHOLE, or BROKEN with one piece more that says why
//! agent --GO-------> init: they go on
//!       <-- GONE_ON
//! agent --RESTORE--> init: takes the stream, and sets clock and randomness of a machine that was stored
//!       <-- RISEN
//! ```
//! They stand still until the request's body ends; where the agent falls asleep before that, until it wakes. The agent does nothing
//! else until then, since it could change a file too. The init reads: a task's agent sees neither what was deleted nor the overlay's
//! own marks.

/// `POST`: hands out the files of a machine that stands still.
pub const KEEP: &str = "/v1/keep";

/// What the agent tells the init.
pub const HOLD: u8 = b'h';
/// The same, once for each [`HOLD`], at any time after it.
pub const GO: u8 = b'g';
/// What the init says to that.
pub const GONE_ON: u8 = b'w';
/// The same by an agent that woke in a stored machine.
pub const RESTORE: u8 = b'd';
/// What the init says to that, once it has left the stream again.
pub const RISEN: u8 = b'r';
/// Bytes of a piece: each becomes one frame.
pub const MAX_KEPT_PIECE: usize = 32 * 1024;
