//! The memory of a machine in a stream behind its files.
//!
//! ```text
//! mark | files | memory      each in pieces (`cofferdam_guest::pieces`)
//! ```
//! The files come first, since only a machine that still runs hands them out. Its task stands still from before the first of them until
//! the next life goes on, so all three parts are of one moment. Files alone can be used whatever became of the memory.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

use cofferdam_guest::pieces::{PieceReader, PieceWriter, copied_whole};
use tokio::runtime::Handle;

pub(crate) use crate::machine::most;

use crate::agent::layer_stream::FrozenTask;
use crate::agent::{Agent, AgentError};
use crate::life::inside_layer::{self, MachineSize};
use crate::life::memory::{MAX_PIECE, unnamed};
use crate::life::snapshot::LayerSnapshotError;
use crate::machine::{MAX_MARK, Storable, differs};

/// Files are handed out in smaller pieces.
const FILE_PIECE: usize = 128 * 1024;

/// Writes all three. Where the memory could not be written the reason is given; and the sandbox, if it still stands. Blocking; once
/// `goes_on` says no, it is an error. `falls_asleep` is told before the sandbox cannot go on.
pub(crate) fn store(
    storable: &Storable,
    agent: &Agent,
    size: MachineSize,
    out: &mut dyn Write,
    goes_on: &dyn Fn() -> bool,
    falls_asleep: &dyn Fn(),
) -> Result<(Option<FrozenTask>, Option<io::Error>), LayerSnapshotError> {
    let files = LayerSnapshotError::Files;
    part(out, |out| out.write_all(storable.mark().as_bytes())).map_err(files)?;
    let mut pieces = BufWriter::with_capacity(FILE_PIECE, PieceWriter::to(&mut *out, FILE_PIECE));
    let standing = inside_layer::snapshot(agent, size, &mut pieces, goes_on)?;
    let pieces = pieces.into_inner().map_err(|error| files(error.into_error()))?;
    pieces.finish(true).map_err(files)?;
    match Handle::current().block_on(agent.sleep()) {
        Ok(()) => {}
        Err(AgentError::Refused { error, .. }) => {
            PieceWriter::to(out, MAX_PIECE).finish(false).map_err(files)?;
            return Ok((Some(standing), Some(io::Error::other(error))));
        }
        // It may sleep or not: it does not go on, and its files are all there.
        Err(error) => {
            falls_asleep();
            PieceWriter::to(out, MAX_PIECE).finish(false).map_err(files)?;
            return Ok((None, Some(io::Error::other(error))));
        }
    }
    falls_asleep();
    let mut pieces = PieceWriter::to(out, MAX_PIECE);
    let stored = storable.store(&mut pieces, size.mem_bytes, goes_on);
    pieces.finish(stored.is_ok()).map_err(files)?;
    Ok((None, stored.err()))
}

fn part(
    out: &mut dyn Write,
    write: impl FnOnce(&mut PieceWriter<&mut dyn Write>) -> io::Result<()>,
) -> io::Result<()> {
    let mut pieces = PieceWriter::to(out, MAX_PIECE);
    write(&mut pieces)?;
    pieces.finish(true)
}

/// The memory, for a machine with this mark; an error names what differs. Blocking.
pub(crate) fn read(from: &mut (dyn Read + Send + Sync), mark: &str) -> io::Result<File> {
    if let Some(why) = differs(&read_mark(from)?, mark) {
        return Err(io::Error::other(why));
    }
    // They are in the memory too.
    copied_whole(from, FILE_PIECE, &mut io::sink())?;
    let mut memory = unnamed()?;
    copied_whole(from, MAX_PIECE, &mut memory)?;
    Ok(memory)
}

/// The files alone. Blocking.
pub(crate) fn files(mut stream: Box<dyn Read + Send + Sync>) -> io::Result<Box<dyn Read + Send>> {
    read_mark(stream.as_mut())?;
    Ok(Box::new(PieceReader::of(stream, FILE_PIECE)))
}

fn read_mark(from: &mut dyn Read) -> io::Result<String> {
    let mut pieces = PieceReader::of(from, MAX_PIECE);
    let mut mark = String::new();
    pieces.by_ref().take(MAX_MARK).read_to_string(&mut mark)?;
    match pieces.read(&mut [0])? {
        0 => Ok(mark),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the mark of its memory is too long")),
    }
}

#[cfg(test)]
mod tests;
