//! Names that nobody guesses.

use cofferdam_ambient::random::secret_bytes;
use cofferdam_contracts::id::{LiveId, SnapshotId};
use cofferdam_flows::{Error, Result};

const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// Letters of an id. 36^20 names: more than 100 bits, so that none is guessed.
const ID_LETTERS: usize = 20;

/// An unguessable name: never from the seed, as with names of sandboxes.
pub(crate) fn fresh_letters() -> String {
    let bytes: [u8; ID_LETTERS] = secret_bytes();
    let letter =
        |byte: &u8| LETTERS.get(usize::from(*byte) % LETTERS.len()).map(|b| char::from(*b));
    bytes.iter().filter_map(letter).collect()
}

/// Of a new sandbox.
pub(crate) fn fresh_live() -> Result<LiveId> {
    LiveId::parse(&fresh_letters()).map_err(Error::corrupt("id"))
}

/// Of a new snapshot.
pub(crate) fn fresh() -> Result<SnapshotId> {
    SnapshotId::parse(&fresh_letters()).map_err(Error::corrupt("id"))
}
