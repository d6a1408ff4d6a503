//! Elements of hostile XML: entities are never expanded, depth and events are counted, and one root closes at the end.

use std::borrow::Cow;
use std::io::BufRead;

use quick_xml::errors::SyntaxError;
use quick_xml::escape::{EscapeError, resolve_predefined_entity};
use quick_xml::events::{BytesDecl, BytesRef, BytesStart, Event};
use quick_xml::{Error, Reader, XmlVersion};

use super::xml_input::XmlInput;
use super::{ReportBounds, ReportFaultKind};

/// Attributes of one element, each of which is compared with the others: real reports have ten.
const MAX_ATTRIBUTES: usize = 64;

/// An element with its attributes.
#[derive(Debug)]
pub(super) struct XmlElement {
    /// Name without its prefix.
    pub(super) name: String,
    attributes: Vec<(String, String)>,
}

impl XmlElement {
    /// Value of an attribute by its name without prefix.
    pub(super) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// What stands next.
#[derive(Debug)]
pub(super) enum XmlEvent {
    /// An element begins; the root is at depth 1.
    Open { element: XmlElement, depth: usize },
    /// The element at this depth ends.
    Close { depth: usize },
    /// Text within an element; the parts of one text come one after another.
    Text(String),
    /// The root is closed, and nothing stands behind it.
    End,
}

/// The events of one document.
pub(super) struct XmlEvents<'a> {
    reader: Reader<XmlInput<'a>>,
    buffer: Vec<u8>,
    max_depth: usize,
    events_left: u64,
    depth: usize,
    is_closed: bool,
}

impl<'a> XmlEvents<'a> {
    pub(super) fn new(source: &'a mut dyn BufRead, bounds: &ReportBounds) -> Self {
        let mut reader = Reader::from_reader(XmlInput::new(source, bounds.bytes));
        reader.config_mut().expand_empty_elements = true;
        Self {
            reader,
            buffer: Vec::new(),
            max_depth: bounds.depth,
            events_left: bounds.events,
            depth: 0,
            is_closed: false,
        }
    }

    /// Bytes that were read.
    pub(super) fn read(&self) -> u64 {
        self.reader.get_ref().read()
    }

    /// # Errors
    /// What is not one well-formed document without entities of its own, or exceeds a bound.
    pub(super) fn next(&mut self) -> Result<XmlEvent, ReportFaultKind> {
        loop {
            self.events_left = self.events_left.checked_sub(1).ok_or(ReportFaultKind::TooMany)?;
            self.buffer.clear();
            let event = match self.reader.read_event_into(&mut self.buffer) {
                Ok(event) => event,
                Err(Error::Io(_)) => {
                    let fault = self.reader.get_ref().fault();
                    return Err(fault.unwrap_or(ReportFaultKind::Unreadable));
                }
                Err(error) => return Err(fault_of(&error)),
            };
            let text = match event {
                Event::Start(start) | Event::Empty(start) => {
                    if self.is_closed {
                        return Err(ReportFaultKind::Malformed);
                    }
                    self.depth = self.depth.saturating_add(1);
                    if self.depth > self.max_depth {
                        return Err(ReportFaultKind::TooDeep);
                    }
                    return Ok(XmlEvent::Open { element: element(&start)?, depth: self.depth });
                }
                Event::End(_) => {
                    let depth = self.depth;
                    self.depth = depth.saturating_sub(1);
                    self.is_closed = self.depth == 0;
                    return Ok(XmlEvent::Close { depth });
                }
                Event::Eof if self.is_closed => return Ok(XmlEvent::End),
                Event::Eof => return Err(ReportFaultKind::Truncated),
                Event::Text(text) => text.xml10_content(),
                Event::CData(text) => text.xml10_content(),
                Event::GeneralRef(reference) => resolved(&reference)?,
                Event::Decl(declaration) => {
                    is_utf8(&declaration)?;
                    continue;
                }
                Event::DocType(_) | Event::Comment(_) | Event::PI(_) => continue,
            };
            if self.depth > 0 {
                return Ok(XmlEvent::Text(text.into_owned()));
            }
            if !text.trim().is_empty() {
                return Err(ReportFaultKind::Malformed);
            }
        }
    }
}

/// The element with all its attributes: one that is malformed is a fault whatever its name is.
fn element(start: &BytesStart<'_>) -> Result<XmlElement, ReportFaultKind> {
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|_| ReportFaultKind::Malformed)?;
        if attributes.len() == MAX_ATTRIBUTES {
            return Err(ReportFaultKind::TooMany);
        }
        let value = attribute.normalized_value(XmlVersion::Implicit1_0);
        let value = value.map_err(|error| fault_of(&error))?.into_owned();
        attributes.push((attribute.key.local_name().as_ref().to_owned(), value));
    }
    Ok(XmlElement { name: start.local_name().as_ref().to_owned(), attributes })
}

fn resolved(reference: &BytesRef<'_>) -> Result<Cow<'static, str>, ReportFaultKind> {
    if let Some(c) = reference.resolve_char_ref().map_err(|_| ReportFaultKind::Malformed)? {
        return Ok(Cow::Owned(c.to_string()));
    }
    let name = reference.xml10_content();
    resolve_predefined_entity(&name).map(Cow::Borrowed).ok_or(ReportFaultKind::Entities)
}

fn is_utf8(declaration: &BytesDecl<'_>) -> Result<(), ReportFaultKind> {
    let Some(encoding) = declaration.encoding() else { return Ok(()) };
    let encoding = encoding.map_err(|_| ReportFaultKind::Malformed)?;
    let is_utf8 = ["utf-8", "utf8", "us-ascii", "ascii"]
        .iter()
        .any(|name| encoding.eq_ignore_ascii_case(name));
    if is_utf8 { Ok(()) } else { Err(ReportFaultKind::Encoding) }
}

fn fault_of(error: &Error) -> ReportFaultKind {
    match error {
        Error::Syntax(SyntaxError::InvalidBangMarkup) => ReportFaultKind::Malformed,
        // The parser looks for the end of what is open until the input ends.
        Error::Syntax(_) => ReportFaultKind::Truncated,
        Error::Encoding(_) => ReportFaultKind::Encoding,
        Error::Escape(EscapeError::UnrecognizedEntity(..)) => ReportFaultKind::Entities,
        _ => ReportFaultKind::Malformed,
    }
}
