//! A stream of somebody else, passed on as it comes: what is not of this form goes no further.

use std::io::{self, Read, Write};

use super::bounds::PIECE;
use super::numbers::Numbers;
use super::read::LayerReader;
use super::{StreamForm, earlier};

/// Copies a stream of at most so many bytes, to its end and no further.
///
/// # Errors
/// What is not of a form that [`super::unpack`] takes, is cut off or too long; what cannot be written.
pub fn pass(from: &mut dyn Read, to: &mut dyn Write, most: u64) -> io::Result<()> {
    let mut copied = Copied { from, to, left: most, most };
    let form = StreamForm::read(&mut copied)?;
    let (from, mut piece) = (Numbers(&mut copied), vec![0; PIECE]);
    match form {
        StreamForm::Paths => earlier::pass_over(from, &mut piece),
        StreamForm::Names => {
            let mut layer = LayerReader::after_magic(from, 0);
            while let Some(item) = layer.item()? {
                layer.pass_over(&item, &mut piece)?;
            }
            Ok(())
        }
    }
}

/// What is read is written.
struct Copied<'a> {
    from: &'a mut dyn Read,
    to: &'a mut dyn Write,
    left: u64,
    most: u64,
}

impl Read for Copied<'_> {
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
