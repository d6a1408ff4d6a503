//! A user namespace for the host to keep.

/// First argument of the process that makes one, before the id of the user whose it is: the kernel counts what is used up in a
/// namespace for its owner, too. It says [`MADE`] and waits for the end of its input.
pub const HOLD: &str = "hold-users";
/// The namespace is there, without any user yet.
pub const MADE: u8 = b'.';
