//! The line of an agent's events that is being read.

/// A line that is longer is no event of ours: it is skipped to its end.
pub(super) const MAX_LINE_BYTES: usize = 1024 * 1024;

/// As much of a line as has come.
#[derive(Debug, Default)]
pub(super) struct EventLine {
    bytes: Vec<u8>,
    skipping: bool,
}

impl EventLine {
    /// Takes more of it.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > MAX_LINE_BYTES {
            self.skipping = true;
            self.bytes.clear();
        }
        if !self.skipping {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The whole line, and the next one begins; `None`: it was too long.
    pub(super) fn end(&mut self) -> Option<Vec<u8>> {
        let bytes = std::mem::take(&mut self.bytes);
        (!std::mem::take(&mut self.skipping)).then_some(bytes)
    }
}
