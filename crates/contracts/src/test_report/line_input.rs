//! Lines of hostile text: each cut to a bound, and counted.

use std::borrow::Cow;
use std::io::{self, BufRead};

use super::{MAX_VALUE_BYTES, ReportBounds, ReportFaultKind};

/// The lines of one report.
pub(super) struct LineInput<'a> {
    source: &'a mut dyn BufRead,
    max_bytes: u64,
    lines_left: u64,
    read: u64,
    line: Vec<u8>,
}

impl<'a> LineInput<'a> {
    pub(super) fn new(source: &'a mut dyn BufRead, bounds: &ReportBounds) -> Self {
        let (max_bytes, lines_left) = (bounds.bytes, bounds.events);
        Self { source, max_bytes, lines_left, read: 0, line: Vec::new() }
    }

    /// Bytes that were read.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// The next line without its end, cut at [`MAX_VALUE_BYTES`]. What is not UTF-8 becomes U+FFFD, and a mark of UTF-8 before
    /// the first line is left out. `None` at the end.
    ///
    /// # Errors
    /// More bytes or lines than the bounds allow, or a source that fails.
    pub(super) fn next(&mut self) -> Result<Option<Cow<'_, str>>, ReportFaultKind> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let is_first = self.read == 0;
        if !self.fill()? {
            return Ok(None);
        }
        self.lines_left = self.lines_left.checked_sub(1).ok_or(ReportFaultKind::TooMany)?;
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let line = line.strip_prefix(MARK).filter(|_| is_first).unwrap_or(line);
        Ok(Some(String::from_utf8_lossy(line)))
    }

    /// Reads up to the end of a line; `false` where nothing is left.
    fn fill(&mut self) -> Result<bool, ReportFaultKind> {
        self.line.clear();
        let mut is_any = false;
        loop {
            let chunk = match self.source.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Err(ReportFaultKind::Unreadable),
            };
            if chunk.is_empty() {
                return Ok(is_any);
            }
            is_any = true;
            let end = memchr::memchr(b'\n', chunk);
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            let fits = part.len().min(MAX_VALUE_BYTES.saturating_sub(self.line.len()));
            self.line.extend_from_slice(part.get(..fits).unwrap_or_default());
            let used = part.len().saturating_add(usize::from(end.is_some()));
            self.source.consume(used);
            self.read = self.read.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
            if self.read > self.max_bytes {
                return Err(ReportFaultKind::TooLarge);
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8], bounds: &ReportBounds) -> Result<Vec<String>, ReportFaultKind> {
        let mut source = io::BufReader::with_capacity(3, bytes);
        let mut input = LineInput::new(&mut source, bounds);
        let mut lines = Vec::new();
        while let Some(line) = input.next()? {
            lines.push(line.into_owned());
        }
        Ok(lines)
    }

    #[test]
    fn lines_are_whole_whatever_the_chunks_are_and_the_last_needs_no_end() {
        let bounds = ReportBounds::default();
        let found = lines(b"\xef\xbb\xbfabcdef\r\n\ng\xff\nh", &bounds).unwrap();
        assert_eq!(found, ["abcdef", "", "g\u{fffd}", "h"]);
        assert_eq!(lines(b"", &bounds).unwrap(), [""; 0]);
        let long = [vec![b'x'; MAX_VALUE_BYTES + 9], b"\ny".to_vec()].concat();
        let found = lines(&long, &bounds).unwrap();
        assert_eq!(found.iter().map(String::len).collect::<Vec<_>>(), [MAX_VALUE_BYTES, 1]);
    }

    #[test]
    fn bytes_and_lines_are_bounded() {
        let bytes = ReportBounds { bytes: 5, ..ReportBounds::default() };
        assert_eq!(lines(b"ab\ncd", &bytes).unwrap(), ["ab", "cd"]);
        assert_eq!(lines(b"ab\ncd\n", &bytes), Err(ReportFaultKind::TooLarge));
        let events = ReportBounds { events: 2, ..ReportBounds::default() };
        assert_eq!(lines(b"\n\n", &events).unwrap().len(), 2);
        assert_eq!(lines(b"\n\n\n", &events), Err(ReportFaultKind::TooMany));
    }
}
