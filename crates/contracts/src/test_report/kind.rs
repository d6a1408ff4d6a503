//! The kind of a report, by the first bytes of its content: a name says what its author meant.

use super::{ReportFaultKind, ReportKind};

/// Bytes that are looked at: a root element stands behind a declaration, a comment and a document type at most.
pub(super) const HEAD_BYTES: usize = 4 * 1024;

/// Finds the kind of a report that begins so.
///
/// # Errors
/// A head that is empty, is UTF-16, declares entities or fits no kind.
pub(super) fn find(head: &[u8]) -> Result<ReportKind, ReportFaultKind> {
    check(head)?;
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let kind = if text.starts_with('<') { of_root(root(text)?) } else { of_lines(text) };
    kind.ok_or(ReportFaultKind::Unknown)
}

/// Looks whether there is a text at all.
///
/// # Errors
/// A head without one, or in UTF-16 with or without its mark.
pub(super) fn check(head: &[u8]) -> Result<(), ReportFaultKind> {
    let inner = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    match inner {
        [0xfe, 0xff, ..] | [0xff, 0xfe, ..] | [b'<', 0, ..] | [0, b'<', ..] => {
            Err(ReportFaultKind::Encoding)
        }
        inner if inner.trim_ascii().is_empty() && head.len() < HEAD_BYTES => {
            Err(ReportFaultKind::Empty)
        }
        _ => Ok(()),
    }
}

/// What follows the `<` of the root element, if the head has some of it.
fn root(text: &str) -> Result<&str, ReportFaultKind> {
    let mut rest = text;
    loop {
        let Some(inner) = rest.trim_start().strip_prefix('<') else { return Ok("") };
        let end = match inner {
            inner if inner.starts_with("!--") => "-->",
            inner if inner.starts_with('?') => "?>",
            inner if inner.starts_with('!') => {
                let name = inner.split('>').next().unwrap_or_default();
                if name.contains('[') {
                    return Err(ReportFaultKind::Entities);
                }
                ">"
            }
            inner => return Ok(inner),
        };
        rest = inner.split_once(end).map_or("", |(_, behind)| behind);
    }
}

fn of_root(root: &str) -> Option<ReportKind> {
    let tag = root.split('>').next().unwrap_or_default();
    let name = tag.split(|c: char| c.is_whitespace() || c == '/').next().unwrap_or_default();
    // Elements may have the prefix of a name space.
    match name.rsplit(':').next().unwrap_or_default() {
        "testsuites" | "testsuite" => Some(ReportKind::Junit),
        // Clover's root has this name too, without rates.
        "coverage" if tag.contains("line-rate") => Some(ReportKind::Cobertura),
        _ => None,
    }
}

/// The first line that only one of the formats has; programs say other things before.
fn of_lines(text: &str) -> Option<ReportKind> {
    text.lines().find_map(|line| {
        let is_point = |line: &str| line.starts_with(|c: char| c.is_ascii_digit());
        let is_tap = line.starts_with("TAP version ")
            || line.strip_prefix("1..").is_some_and(is_point)
            || line.strip_prefix("ok ").is_some_and(is_point)
            || line.strip_prefix("not ok ").is_some_and(is_point);
        let is_lcov = line.starts_with("SF:") || line.starts_with("TN:");
        if is_tap {
            return Some(ReportKind::Tap);
        }
        is_lcov.then_some(ReportKind::Lcov)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_content() {
        for (head, kind) in [
            ("<testsuites>", ReportKind::Junit),
            (
                "\u{feff} \n<?xml version='1.0'?><!-- <coverage> --><testsuite name='a'>",
                ReportKind::Junit,
            ),
            ("<j:testsuite xmlns:j='x'/>", ReportKind::Junit),
            ("<!DOCTYPE coverage SYSTEM 'a'><coverage line-rate='1'>", ReportKind::Cobertura),
            ("> npm test\n\nTAP version 13\n", ReportKind::Tap),
            ("1..0 # SKIP all\n", ReportKind::Tap),
            ("not ok 1 - a\n1..1", ReportKind::Tap),
            ("TN:\nSF:a.c\n", ReportKind::Lcov),
            ("SF:1..2\n", ReportKind::Lcov),
        ] {
            assert_eq!(find(head.as_bytes()), Ok(kind), "{head}");
        }
    }

    #[test]
    fn other_heads_are_faults() {
        use ReportFaultKind::{Empty, Encoding, Entities, Unknown};
        for (head, fault) in [
            (&b""[..], Empty),
            (b"\xef\xbb\xbf \n", Empty),
            (b"\xff\xfe<\0", Encoding),
            (b"\xfe\xff\0<", Encoding),
            (b"<\0?\0", Encoding),
            (b"\0<\0?", Encoding),
            (b"<!DOCTYPE a [<!ENTITY b 'c'>]><testsuite/>", Entities),
            (b"<html>", Unknown),
            (b"<testsuitess>", Unknown),
            (b"<coverage generated='1' clover='3'>", Unknown),
            (b"<!-- a", Unknown),
            (b"ok\nokay 1\n1..x\nDA:1,1\n", Unknown),
            (b"{\"a\": 1}", Unknown),
        ] {
            assert_eq!(find(head), Err(fault), "{}", String::from_utf8_lossy(head));
        }
    }
}
