//! The program of the self-test, which no other sandbox has.

use crate::spec::input::Input;

/// Built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/cofferdam-probe"));
/// Where its sandboxes have it: in the layer, where no probe looks and no second life puts a link.
pub(super) const PATH: &str = "/work/probe";

/// What gives it to a sandbox.
pub(super) fn input() -> Input {
    Input::Bytes { path: PATH.to_owned(), bytes: PROGRAM.to_vec(), mode: 0o755 }
}
