//! A stream of somebody else, passed on as it comes: what is not of this form goes no further.

use std::io::{self, Read, Write};

use super::read::EntryReader;
use super::words::Extent;
use super::{EntryKind, MAGIC, PIECE, first, wrong};

/// Copies a stream of at most so many bytes, to its end and no further.
///
/// # Errors
/// What is not of the form that [`super::unpack`] takes, is cut off or too long; what cannot be written.
pub fn pass(from: &mut dyn Read, to: &mut dyn Write, most: u64) -> io::Result<()> {
    let mut copied = CopyReader { from, to, left: most, most };
    let mut magic = [0; MAGIC.len()];
    copied.read_exact(&mut magic)?;
    match &magic {
        MAGIC => check(&mut copied),
        first::MAGIC => first::check(&mut copied),
        _ => Err(wrong("another form, or another version of it")),
    }
}

fn check(from: &mut dyn Read) -> io::Result<()> {
    let mut entries = EntryReader::begin(from, 0);
    let mut piece = vec![0; PIECE];
    while let Some(entry) = entries.entry()? {
        if entry.kind == EntryKind::File {
            while let Extent::Bytes(..) = entries.extent(&mut piece)? {}
        }
        while entries.attribute()?.is_some() {}
    }
    Ok(())
}

/// What is read is written.
struct CopyReader<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
    left: u64,
    most: u64,
}

impl Read for CopyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        let left = u64::try_from(count).ok().and_then(|count| self.left.checked_sub(count));
        self.left = left.ok_or_else(|| {
            let why = format!("the files take more than {} bytes", self.most);
            io::Error::new(io::ErrorKind::FileTooLarge, why)
        })?;
        self.to.write_all(buffer.get(..count).unwrap_or_default())?;
        Ok(count)
    }
}
