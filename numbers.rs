//! Numbers and texts of a stream. A text has a bound before there is memory for it.

use std::io::{self, Read};

use super::bounds::{MAX_ATTRIBUTE_NAME, MAX_VALUE};
use super::{attributes, wrong};

/// Reads them.
pub(super) struct Numbers<'a>(pub &'a mut dyn Read);

impl Numbers<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn wide(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn number(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn short(&mut self) -> io::Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn text(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let size = usize::from(self.short()?);
        self.some(size, most)
    }

    /// The name of an attribute and the size of its value.
    pub(super) fn attribute(&mut self) -> io::Result<(Vec<u8>, usize)> {
        let name = self.text(MAX_ATTRIBUTE_NAME)?;
        attributes::check(&name)?;
        Ok((name, usize::try_from(self.number()?).unwrap_or(usize::MAX)))
    }

    pub(super) fn value(&mut self, size: usize) -> io::Result<Vec<u8>> {
        self.some(size, MAX_VALUE)
    }

    fn some(&mut self, size: usize, most: usize) -> io::Result<Vec<u8>> {
        if size > most {
            return Err(wrong("a longer text than there can be"));
        }
        let mut bytes = vec![0; size];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
