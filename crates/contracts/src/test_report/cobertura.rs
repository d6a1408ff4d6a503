//! Cobertura's XML: `<class filename>` has `<line number hits branch condition-coverage="50% (1/2)">`, once for the class and
//! once more for its methods. Rates and sums in attributes are ignored.

use std::io::BufRead;

use super::lcov::is_hit;
use super::line_set::{FileLines, LineBranches, LineSet};
use super::xml::{XmlElement, XmlEvent, XmlEvents};
use super::{ReportBounds, ReportFault, ReportFaultKind};

/// The class whose element is open.
struct Class {
    depth: usize,
    path: String,
    lines: FileLines,
}

/// Reads to the end.
///
/// # Errors
/// The fault, with the bytes that were read.
pub(super) fn read(
    source: &mut dyn BufRead,
    bounds: &ReportBounds,
) -> Result<LineSet, ReportFault> {
    let mut events = XmlEvents::new(source, bounds);
    classes(&mut events, bounds).map_err(|kind| ReportFault { kind, byte: events.read() })
}

fn classes(events: &mut XmlEvents<'_>, bounds: &ReportBounds) -> Result<LineSet, ReportFaultKind> {
    let mut set = LineSet::default();
    let mut open: Option<Class> = None;
    loop {
        match events.next()? {
            XmlEvent::Open { element, depth: 1 } if element.name != "coverage" => {
                return Err(ReportFaultKind::Malformed);
            }
            XmlEvent::Open { element, depth } => match (element.name.as_str(), &mut open) {
                ("class", None) => {
                    let path = element.attribute("filename").ok_or(ReportFaultKind::Malformed)?;
                    let path = path.to_owned();
                    open = Some(Class { depth, path, lines: FileLines::default() });
                }
                ("line", Some(class)) => line(&element, &mut class.lines)?,
                _ => {}
            },
            XmlEvent::Close { depth } => {
                if let Some(class) = open.take_if(|class| class.depth == depth) {
                    set.add(&class.path, class.lines, bounds)?;
                }
            }
            XmlEvent::Text(_) => {}
            XmlEvent::End => break,
        }
    }
    set.merge(bounds)?;
    Ok(set)
}

fn line(element: &XmlElement, lines: &mut FileLines) -> Result<(), ReportFaultKind> {
    let number = element.attribute("number").and_then(|number| number.trim().parse().ok());
    let is_covered = element.attribute("hits").and_then(is_hit);
    let (Some(line), Some(is_covered)) = (number, is_covered) else {
        return Err(ReportFaultKind::Malformed);
    };
    lines.line(line, is_covered)?;
    let is_branch = element.attribute("branch").is_some_and(|is| is.eq_ignore_ascii_case("true"));
    if let Some(conditions) = element.attribute("condition-coverage").filter(|_| is_branch) {
        let branches = branches(line, conditions).ok_or(ReportFaultKind::Malformed)?;
        lines.branches(branches);
    }
    Ok(())
}

/// Branches as Cobertura says them beside a line: `50% (1/2)`.
fn branches(line: u32, conditions: &str) -> Option<LineBranches> {
    let (_, inner) = conditions.split_once('(')?;
    let (inner, _) = inner.split_once(')')?;
    let (covered, total) = inner.split_once('/')?;
    let (covered, total) = (covered.trim().parse().ok()?, total.trim().parse().ok()?);
    (covered <= total).then_some(LineBranches { line, total, covered })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::{Coverage, Ratio};

    fn coverage(inner: &str) -> Result<Coverage, ReportFaultKind> {
        let text = format!("<coverage line-rate='1'><packages>{inner}</packages></coverage>");
        let read = read(&mut text.as_bytes(), &ReportBounds::default());
        read.map(|set| set.coverage()).map_err(|fault| fault.kind)
    }

    #[test]
    fn lines_of_classes_in_one_file_are_counted_once() {
        let line = "<line number='3' hits='1' branch='true' condition-coverage='50% (1/2)'/>";
        let inner = format!(
            "<class name='A' filename='a.py'><methods><method><lines>{line}</lines></method></methods>\
             <lines>{line}<line number='4' hits='0' branch='false'/></lines></class>\
             <class name='A$1' filename='a.py'><lines><line number='4' hits='2'/></lines></class>\
             <class name='B' filename='b.py'/><line number='9' hits='9'/>"
        );
        let coverage = coverage(&inner).unwrap();
        assert_eq!(coverage.files, 2);
        assert_eq!(coverage.lines, Ratio { total: 2, covered: 2 });
        assert_eq!(coverage.branches, Some(Ratio { total: 2, covered: 1 }));
    }

    #[test]
    fn a_line_without_its_numbers_is_a_fault() {
        for line in [
            "<line hits='1'/>",
            "<line number='1'/>",
            "<line number='x' hits='1'/>",
            "<line number='-1' hits='1'/>",
            "<line number='1' hits='many'/>",
            "<line number='1' hits='1' branch='true' condition-coverage='50%'/>",
            "<line number='1' hits='1' branch='true' condition-coverage='150% (3/2)'/>",
        ] {
            let inner = format!("<class filename='a'>{line}</class>");
            assert_eq!(coverage(&inner).unwrap_err(), ReportFaultKind::Malformed, "{line}");
        }
        assert_eq!(coverage("<class/>").unwrap_err(), ReportFaultKind::Malformed);
        let text = "<other><coverage/></other>";
        let fault = read(&mut text.as_bytes(), &ReportBounds::default()).unwrap_err();
        assert_eq!(fault.kind, ReportFaultKind::Malformed);
    }
}
