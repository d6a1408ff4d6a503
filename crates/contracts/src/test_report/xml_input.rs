//! Bytes of hostile XML, cut to its bounds before the parser sees them: the parser has each tag and each text in memory as a
//! whole.
//!
//! ```text
//! text, CDATA, comment, attribute   beyond 64 KiB dropped up to its end
//! tag, instruction, document type   beyond 1 MiB: a fault
//! reference `&..;`                  beyond 64 bytes: a fault
//! document type with `[`            a fault: entities are declared there
//! the whole                         beyond the report's bound: a fault
//! ```

use std::io::{self, BufRead, Read};

use super::{MAX_TAG_BYTES, MAX_VALUE_BYTES, ReportFaultKind};

/// Bytes of a reference: names of entities and numbers of characters are shorter.
const MAX_REFERENCE_BYTES: usize = 64;
/// Bytes that are taken from the source at once.
const MAX_CHUNK_BYTES: usize = 64 * 1024;

/// Where in the markup a byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Region {
    Text,
    /// Behind `<`, as long as it is open what begins there; with the bytes since.
    Opening {
        seen: usize,
    },
    Tag,
    /// Within an attribute, up to this quote.
    Value {
        quote: u8,
    },
    /// Within a comment, CDATA or an instruction: up to `>` behind its mark, so many of which stand directly before.
    Comment {
        marks: u8,
    },
    Cdata {
        marks: u8,
    },
    Instruction {
        marks: u8,
    },
    Doctype,
    /// Within a name of a document type, up to this quote.
    DoctypeValue {
        quote: u8,
    },
}

/// A source of XML within bounds.
pub(super) struct XmlInput<'a> {
    source: &'a mut dyn BufRead,
    max_bytes: u64,
    read: u64,
    fault: Option<ReportFaultKind>,
    region: Region,
    /// First bytes behind `<!`.
    head: [u8; 8],
    /// Bytes of the text or attribute so far, and of the tag so far.
    value: usize,
    tag: usize,
    /// Whether some of the text or attribute was dropped; then the rest is dropped too.
    is_cut: bool,
    /// Bytes of a reference so far; 0 outside.
    reference: usize,
    ready: Vec<u8>,
    at: usize,
}

impl<'a> XmlInput<'a> {
    pub(super) fn new(source: &'a mut dyn BufRead, max_bytes: u64) -> Self {
        Self {
            source,
            max_bytes,
            read: 0,
            fault: None,
            region: Region::Text,
            head: [0; 8],
            value: 0,
            tag: 0,
            is_cut: false,
            reference: 0,
            ready: Vec::new(),
            at: 0,
        }
    }

    /// Bytes that were read of the source.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Why it gives no more bytes, if not because of the source's end.
    pub(super) fn fault(&self) -> Option<ReportFaultKind> {
        self.fault
    }

    /// Reads the next chunk into `ready`.
    fn refill(&mut self) -> Result<(), ReportFaultKind> {
        self.ready.clear();
        self.at = 0;
        while self.ready.is_empty() {
            let chunk = loop {
                match self.source.fill_buf() {
                    Ok(chunk) => break chunk.get(..MAX_CHUNK_BYTES).unwrap_or(chunk).to_vec(),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return Err(ReportFaultKind::Unreadable),
                }
            };
            if chunk.is_empty() {
                return Ok(());
            }
            self.source.consume(chunk.len());
            let length = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
            let left = self.max_bytes.saturating_sub(self.read);
            self.read = self.read.saturating_add(length);
            // The parser sees what is before a fault, so that chunks do not decide which fault is the first.
            let fits = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            self.feed(chunk.get(..fits).unwrap_or_default())?;
            if length > left {
                return Err(ReportFaultKind::TooLarge);
            }
        }
        Ok(())
    }

    fn feed(&mut self, chunk: &[u8]) -> Result<(), ReportFaultKind> {
        let mut rest = chunk;
        while let Some((first, behind)) = rest.split_first() {
            match self.quiet(rest) {
                0 => {
                    self.step(*first)?;
                    rest = behind;
                }
                quiet => {
                    let (run, behind) = rest.split_at(quiet);
                    self.emit(run)?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// How many bytes change nothing but counts.
    fn quiet(&self, rest: &[u8]) -> usize {
        if self.reference > 0 {
            return 0;
        }
        let next = match self.region {
            Region::Text => memchr::memchr2(b'<', b'&', rest),
            Region::Tag => memchr::memchr3(b'>', b'"', b'\'', rest),
            Region::Value { quote } => memchr::memchr2(quote, b'&', rest),
            Region::Comment { marks: 0 } => memchr::memchr(b'-', rest),
            Region::Cdata { marks: 0 } => memchr::memchr(b']', rest),
            Region::Instruction { marks: 0 } => memchr::memchr(b'?', rest),
            Region::Doctype => rest.iter().position(|b| matches!(b, b'[' | b'>' | b'"' | b'\'')),
            Region::DoctypeValue { quote } => memchr::memchr(quote, rest),
            Region::Opening { .. }
            | Region::Comment { .. }
            | Region::Cdata { .. }
            | Region::Instruction { .. } => Some(0),
        };
        next.unwrap_or(rest.len())
    }

    /// Takes one byte that may change the region.
    fn step(&mut self, byte: u8) -> Result<(), ReportFaultKind> {
        if self.reference > 0 {
            self.reference = self.reference.saturating_add(1);
            if self.reference > MAX_REFERENCE_BYTES {
                return Err(ReportFaultKind::Malformed);
            }
            let ends = match self.region {
                Region::Value { quote } => byte == quote,
                _ => byte == b'<',
            };
            if !ends {
                self.reference = if byte == b';' { 0 } else { self.reference };
                return self.write(&[byte]);
            }
            self.reference = 0;
        }
        match (self.region, byte) {
            (Region::Text | Region::Value { .. }, b'&') => {
                // One that would be cut is dropped with the text around it.
                self.is_cut |= self.value >= MAX_VALUE_BYTES;
                if self.is_cut {
                    return Ok(());
                }
                (self.reference, self.value) = (1, self.value.saturating_add(1));
                self.write(b"&")
            }
            (Region::Text, _) => {
                (self.tag, self.region) = (0, Region::Opening { seen: 0 });
                self.write(b"<")
            }
            (Region::Opening { seen }, _) => self.open(seen, byte),
            (Region::Tag | Region::Doctype, b'>') => self.end(b">"),
            (Region::Tag, _) => self.enter(Region::Value { quote: byte }, byte),
            (Region::Value { .. }, _) => self.enter(Region::Tag, byte),
            (Region::Doctype, b'[') => Err(ReportFaultKind::Entities),
            (Region::Doctype, _) => self.enter(Region::DoctypeValue { quote: byte }, byte),
            (Region::DoctypeValue { .. }, _) => self.enter(Region::Doctype, byte),
            (Region::Comment { marks }, b'-') => {
                self.mark(Region::Comment { marks: more(marks) }, b'-')
            }
            (Region::Cdata { marks }, b']') => {
                self.mark(Region::Cdata { marks: more(marks) }, b']')
            }
            (Region::Instruction { .. }, b'?') => self.mark(Region::Instruction { marks: 1 }, b'?'),
            (Region::Comment { marks: 2 }, b'>') => self.end(b"-->"),
            (Region::Cdata { marks: 2 }, b'>') => self.end(b"]]>"),
            (Region::Instruction { marks: 1 }, b'>') => self.end(b"?>"),
            (Region::Comment { .. }, _) => self.mark(Region::Comment { marks: 0 }, byte),
            (Region::Cdata { .. }, _) => self.mark(Region::Cdata { marks: 0 }, byte),
            (Region::Instruction { .. }, _) => self.mark(Region::Instruction { marks: 0 }, byte),
        }
    }

    /// Finds out what begins behind `<`.
    fn open(&mut self, seen: usize, byte: u8) -> Result<(), ReportFaultKind> {
        const COMMENT: &[u8] = b"!--";
        const CDATA: &[u8] = b"![CDATA[";
        if let Some(slot) = self.head.get_mut(seen) {
            *slot = byte;
        }
        let count = seen.saturating_add(1);
        let head = self.head.get(..count).unwrap_or_default();
        (self.value, self.is_cut) = (0, false);
        self.region = match head {
            [b'?'] => Region::Instruction { marks: 0 },
            COMMENT => Region::Comment { marks: 0 },
            CDATA => Region::Cdata { marks: 0 },
            head if COMMENT.starts_with(head) || CDATA.starts_with(head) => {
                Region::Opening { seen: count }
            }
            [b'!', b'[', ..] => return Err(ReportFaultKind::Malformed),
            [b'!', ..] => Region::Doctype,
            _ => Region::Tag,
        };
        match self.region {
            // It may be what the tag or type cannot have quietly.
            Region::Tag | Region::Doctype if matches!(byte, b'>' | b'"' | b'\'' | b'[') => {
                self.step(byte)
            }
            _ => self.write(&[byte]),
        }
    }

    fn enter(&mut self, region: Region, byte: u8) -> Result<(), ReportFaultKind> {
        (self.region, self.value, self.is_cut) = (region, 0, false);
        self.write(&[byte])
    }

    /// Remains in a region that ends by a mark.
    fn mark(&mut self, region: Region, byte: u8) -> Result<(), ReportFaultKind> {
        self.region = region;
        self.emit(&[byte])
    }

    /// Ends what began with `<`; of what was cut the whole end is written.
    fn end(&mut self, end: &[u8]) -> Result<(), ReportFaultKind> {
        let is_cut = self.is_cut;
        (self.region, self.value, self.is_cut) = (Region::Text, 0, false);
        self.write(if is_cut { end } else { b">" })
    }

    /// Writes what the region may still have. A value is cut before the first byte of a character.
    fn emit(&mut self, run: &[u8]) -> Result<(), ReportFaultKind> {
        let is_value = matches!(
            self.region,
            Region::Text | Region::Value { .. } | Region::Comment { .. } | Region::Cdata { .. }
        );
        if !is_value {
            return self.write(run);
        }
        if self.is_cut {
            return Ok(());
        }
        // Up to three more bytes end a character; a fourth is not UTF-8.
        let fits = MAX_VALUE_BYTES.saturating_sub(self.value).min(run.len());
        let most = MAX_VALUE_BYTES.saturating_add(3).saturating_sub(self.value).min(run.len());
        let over = run.get(fits..most).unwrap_or_default();
        let tail = over.iter().take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
        let kept = fits.saturating_add(tail);
        self.is_cut = kept < run.len();
        self.value = self.value.saturating_add(kept);
        self.write(run.get(..kept).unwrap_or_default())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ReportFaultKind> {
        let is_tag =
            !matches!(self.region, Region::Text | Region::Comment { .. } | Region::Cdata { .. });
        if is_tag {
            self.tag = self.tag.saturating_add(bytes.len());
            if self.tag > MAX_TAG_BYTES {
                return Err(ReportFaultKind::TooLarge);
            }
        }
        self.ready.extend_from_slice(bytes);
        Ok(())
    }
}

/// One more mark; `>` needs two.
fn more(marks: u8) -> u8 {
    marks.saturating_add(1).min(2)
}

impl BufRead for XmlInput<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.ready.len() && self.fault.is_none() {
            self.fault = self.refill().err();
        }
        match self.ready.get(self.at..).unwrap_or_default() {
            [] if self.fault.is_some() => Err(io::ErrorKind::Other.into()),
            rest => Ok(rest),
        }
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
    }
}

impl Read for XmlInput<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the parser sees, or the fault.
    fn seen(xml: &[u8]) -> Result<String, ReportFaultKind> {
        let seen = |step: usize| {
            let mut source = io::BufReader::with_capacity(step, xml);
            let mut input = XmlInput::new(&mut source, u64::MAX);
            let mut text = Vec::new();
            match input.read_to_end(&mut text) {
                Ok(_) => Ok(String::from_utf8(text).unwrap()),
                Err(_) => Err(input.fault().unwrap()),
            }
        };
        let whole = seen(1 << 20);
        if xml.len() < 200_000 {
            assert_eq!(seen(1), whole, "whatever the chunks are");
        }
        whole
    }

    #[test]
    fn what_is_within_its_bounds_passes_unchanged() {
        for xml in [
            "<?xml version='1.0' encoding=\"UTF-8\"?><!DOCTYPE a SYSTEM '[>]'><a b='>' c=\"'<&amp;\">t&lt;</a>",
            "<!-- a > -- b ---><a/><![CDATA[ ]] > ]>]]]><b></b>",
            "<a><!----><!--> --></a>",
            "<?a ? > ??>text & <b",
            "",
            "<>",
            "<!>",
        ] {
            assert_eq!(seen(xml.as_bytes()).as_deref(), Ok(xml));
        }
    }

    #[test]
    fn a_value_is_cut_at_its_bound_and_ends_as_it_did() {
        let long = "ä".repeat(MAX_VALUE_BYTES);
        let kept = "ä".repeat(MAX_VALUE_BYTES / 2);
        for (before, after) in
            [("<a b=\"", "\"/>"), ("<a>", "</a>"), ("<![CDATA[", "]]>"), ("<!--", "-->")]
        {
            let text = seen(format!("{before}{long}{after}<c/>").as_bytes()).unwrap();
            assert_eq!(text, format!("{before}{kept}{after}<c/>"), "{before}");
            let text = seen(format!("{before}x{long}{after}<c/>").as_bytes()).unwrap();
            assert_eq!(text, format!("{before}x{kept}{after}<c/>"), "within a character");
        }
        let text = seen(format!("<a>{}&amp;&lt;</a>", "x".repeat(MAX_VALUE_BYTES - 1)).as_bytes());
        assert!(text.unwrap().ends_with("x&amp;</a>"), "a reference is whole or dropped");
    }

    #[test]
    fn a_tag_a_reference_and_a_document_type_have_bounds() {
        let attributes = format!("<a {}/>", "b='c' ".repeat(MAX_TAG_BYTES / 5));
        assert_eq!(seen(attributes.as_bytes()), Err(ReportFaultKind::TooLarge));
        let name = format!("<{}", "a".repeat(MAX_TAG_BYTES + 1));
        assert_eq!(seen(name.as_bytes()), Err(ReportFaultKind::TooLarge));
        let instruction = format!("<?a {}", "?".repeat(MAX_TAG_BYTES));
        assert_eq!(seen(instruction.as_bytes()), Err(ReportFaultKind::TooLarge));
        let reference = format!("<a>&{};", "b".repeat(MAX_REFERENCE_BYTES));
        assert_eq!(seen(reference.as_bytes()), Err(ReportFaultKind::Malformed));
        for doctype in ["<!DOCTYPE a [", "<!DOCTYPE a SYSTEM \"]\" [", "<!["] {
            let fault = seen(format!("{doctype}<!ENTITY b 'c'>]>").as_bytes());
            let wanted = match doctype {
                "<![" => ReportFaultKind::Malformed,
                _ => ReportFaultKind::Entities,
            };
            assert_eq!(fault, Err(wanted), "{doctype}");
        }
    }
}
