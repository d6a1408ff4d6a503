//! The files that a machine begins with, written into its layer before anything is mounted on it.

use std::io::{BufReader, Error, Read};
use std::path::Path;

use cofferdam_guest::setup::FILES;
use cofferdam_guest::upper;

use super::disk;
use super::fault::{Fault, at};
use super::stream::Stream;

const PIECE_BYTES: usize = 64 * 1024;
const STEP: &str = "the files of its snapshot cannot be used";

/// Asks the host for them. It says nothing behind them that is not asked for.
pub(super) fn fill(port: &mut Stream) -> Result<(), Fault> {
    port.say(FILES).map_err(at(STEP))?;
    let port: &mut dyn Read = port;
    let mut from = BufReader::with_capacity(PIECE_BYTES, port);
    upper::unpack(Path::new(disk::UPPER), 0, &mut from).map_err(at(STEP))?;
    match from.buffer().is_empty() {
        true => Ok(()),
        false => Err(at(STEP)(Error::other("something follows them"))),
    }
}
