//! JUnit's XML: `<testcase>` in `<testsuite>`, which may lie in others. Counts come from the cases; attributes with sums,
//! properties and captured output are ignored.
//!
//! ```text
//! <failure>, <error>              the case failed; the first of them is listed
//! <skipped>, status="notrun"      it did not run. With type="todo" (Node's) a failure beside it is expected
//! <flakyFailure>, <flakyError>    it passed when it was repeated (Surefire, cargo-nextest)
//! <rerunFailure>, <rerunError>    a repetition of one that failed: counts for nothing by itself
//! ```

use std::io::BufRead;

use super::collector::{CaseEnd, Collector, TestCase, ms_of_seconds};
use super::excerpt::{Excerpt, excerpt};
use super::xml::{XmlElement, XmlEvent, XmlEvents};
use super::{
    FailureKind, MAX_DETAIL_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, ReportBounds, ReportFault,
    ReportFaultKind, TestFailure, TestReport,
};

/// The case whose element is open.
struct Case {
    depth: usize,
    name: String,
    class: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    took_ms: Option<u64>,
    is_skipped: bool,
    /// Whether a failure of it is expected.
    is_todo: bool,
    is_flaky: bool,
    failure: Option<Failure>,
    /// Whether the text that follows is the failure's.
    is_within: bool,
}

struct Failure {
    kind: FailureKind,
    message: String,
    detail: Excerpt,
}

/// What is read so far.
struct JunitDocument {
    collector: Collector,
    /// Of each open element whether a case lies directly in it.
    open: Vec<bool>,
    case: Option<Case>,
}

/// Reads to the end.
pub(super) fn read(source: &mut dyn BufRead, bounds: &ReportBounds) -> TestReport {
    let mut events = XmlEvents::new(source, bounds);
    let mut document =
        JunitDocument { collector: Collector::new(bounds), open: Vec::new(), case: None };
    let end = document.read(&mut events);
    let fault = end.err().map(|kind| ReportFault { kind, byte: events.read() });
    document.collector.finish(fault)
}

impl JunitDocument {
    fn read(&mut self, events: &mut XmlEvents<'_>) -> Result<(), ReportFaultKind> {
        loop {
            match events.next()? {
                XmlEvent::Open { element, depth } => self.open(&element, depth)?,
                XmlEvent::Close { depth } => self.close(depth),
                XmlEvent::Text(text) => self.text(&text),
                XmlEvent::End => return Ok(()),
            }
        }
    }

    fn open(&mut self, element: &XmlElement, depth: usize) -> Result<(), ReportFaultKind> {
        match (element.name.as_str(), &mut self.case) {
            ("testcase", Some(_)) => return Err(ReportFaultKind::Malformed),
            ("testcase", None) => {
                let is_first =
                    self.open.last_mut().map(|has_case| !std::mem::replace(has_case, true));
                if is_first == Some(true) {
                    self.collector.suite();
                }
                self.case = Some(Case::new(element, depth));
            }
            (name, Some(case)) if depth == case.depth.saturating_add(1) => case.part(name, element),
            ("testsuites" | "testsuite", _) => {}
            (_, None) if depth == 1 => return Err(ReportFaultKind::Malformed),
            _ => {}
        }
        self.open.push(false);
        Ok(())
    }

    fn close(&mut self, depth: usize) {
        self.open.pop();
        match self.case.take_if(|case| case.depth == depth) {
            Some(case) => self.collector.case(case.whole()),
            None => {
                if let Some(case) = self.case.as_mut().filter(|case| case.depth + 1 == depth) {
                    case.is_within = false;
                }
            }
        }
    }

    fn text(&mut self, text: &str) {
        let case = self.case.as_mut().filter(|case| case.is_within);
        if let Some(failure) = case.and_then(|case| case.failure.as_mut()) {
            failure.detail.push(text);
        }
    }
}

impl Case {
    fn new(element: &XmlElement, depth: usize) -> Self {
        let attribute = |name: &str| {
            let value = element.attribute(name).filter(|value| !value.trim().is_empty());
            value.map(|value| excerpt(value, MAX_NAME_BYTES))
        };
        let status = element.attribute("status").unwrap_or_default();
        Self {
            depth,
            name: attribute("name").unwrap_or_default(),
            class: attribute("classname"),
            file: attribute("file"),
            line: element.attribute("line").and_then(|line| line.trim().parse().ok()),
            took_ms: element.attribute("time").and_then(ms_of_seconds),
            is_skipped: ["notrun", "disabled", "skipped"].contains(&status),
            is_todo: false,
            is_flaky: false,
            failure: None,
            is_within: false,
        }
    }

    /// An element directly in the case.
    fn part(&mut self, name: &str, element: &XmlElement) {
        match name {
            "failure" => self.fail(FailureKind::Failure, element),
            "error" => self.fail(FailureKind::Error, element),
            "skipped" => {
                self.is_skipped = true;
                self.is_todo |= element.attribute("type") == Some("todo");
            }
            "flakyFailure" | "flakyError" => self.is_flaky = true,
            _ => {}
        }
    }

    fn fail(&mut self, kind: FailureKind, element: &XmlElement) {
        if self.failure.is_none() {
            let given =
                |name: &str| element.attribute(name).filter(|value| !value.trim().is_empty());
            let message = given("message").or_else(|| given("type")).unwrap_or_default();
            let message = excerpt(message, MAX_MESSAGE_BYTES);
            self.failure = Some(Failure { kind, message, detail: Excerpt::new(MAX_DETAIL_BYTES) });
            self.is_within = true;
        }
    }

    fn whole(self) -> TestCase {
        let Self {
            name, class, file, line, took_ms, is_skipped, is_todo, is_flaky, failure, ..
        } = self;
        let end = match failure {
            Some(failure) if !is_todo => {
                let Failure { kind, mut message, detail } = failure;
                if message.is_empty() {
                    message = excerpt(detail.first_line(), MAX_MESSAGE_BYTES);
                }
                let detail = detail.finish();
                let (name, class) = (String::new(), None);
                CaseEnd::Failed(TestFailure { kind, name, class, file, line, message, detail })
            }
            _ if is_skipped => CaseEnd::Skipped,
            _ if is_flaky => CaseEnd::Flaky,
            _ => CaseEnd::Passed,
        };
        TestCase { name, class, took_ms, end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::TestTotals;

    fn report(xml: &str) -> TestReport {
        read(&mut xml.as_bytes(), &ReportBounds::default())
    }

    #[test]
    fn counts_are_of_cases_and_not_of_attributes() {
        let report = report(
            "<testsuites tests='99' failures='0'><testsuite name='outer' tests='50'>\
             <properties><property name='a' value='b'/></properties>\
             <testsuite name='a' errors='7'><testcase name='1' time='0.5'/><testcase name='2'>\
             <failure/></testcase></testsuite>\
             <testsuite name='b'><testcase name='3' time='1,000.25'><error message='e'/></testcase>\
             <testcase name='4' time='-3'><skipped/></testcase>\
             <testcase name='5' time='NaN' status='notrun'/></testsuite>\
             <testsuite name='empty'/></testsuite></testsuites>",
        );
        let totals = TestTotals {
            suites: 2,
            cases: 5,
            failed: 1,
            errored: 1,
            skipped: 2,
            flaky: 0,
            took_ms: 1_000_750,
        };
        assert_eq!((report.totals, report.fault), (Some(totals), None));
        let slowest: Vec<&str> = report.slowest.iter().map(|time| time.name.as_str()).collect();
        assert_eq!(slowest, ["3", "1"]);
    }

    #[test]
    fn a_failure_has_its_place_message_and_detail() {
        let report = report(
            "<testsuite><testcase name='n' classname='c' file='f.py' line='7'>\
             <system-out>out</system-out>\
             <failure message='&quot;a&quot; &lt; &#98;' type='t'>one &amp; <![CDATA[<two> &amp;]]>\n</failure>\
             <system-err>err</system-err><error message='later'>second</error></testcase>\
             <testcase name='typed'><failure type='Type'>x</failure></testcase>\
             <testcase name='bare'><error>\n  first line\nsecond</error></testcase></testsuite>",
        );
        let failure = TestFailure {
            kind: FailureKind::Failure,
            name: "n".into(),
            class: Some("c".into()),
            file: Some("f.py".into()),
            line: Some(7),
            message: "\"a\" < b".into(),
            detail: "one & <two> &amp;".into(),
        };
        assert_eq!(report.failures[0], failure);
        assert_eq!(report.failures[1].message, "Type");
        let bare = &report.failures[2];
        assert_eq!((bare.kind, bare.message.as_str()), (FailureKind::Error, "first line"));
        assert_eq!(bare.detail, "  first line\nsecond");
        let totals = report.totals.unwrap();
        assert_eq!((totals.cases, totals.failed, totals.errored), (3, 2, 1), "one end a case");
    }

    #[test]
    fn a_repeated_case_counts_by_its_last_end() {
        let report = report(
            "<testsuite><testcase name='flaky'><flakyFailure message='m'>d</flakyFailure></testcase>\
             <testcase name='error'><flakyError/></testcase>\
             <testcase name='rerun'><rerunFailure message='m'/></testcase>\
             <testcase name='failed'><failure message='m'/><rerunFailure><failure/></rerunFailure></testcase>\
             <testcase name='todo'><skipped type='todo'/><failure/></testcase>\
             <testcase name='both'><skipped/><failure/></testcase></testsuite>",
        );
        let totals = report.totals.unwrap();
        assert_eq!((totals.cases, totals.flaky, totals.failed, totals.skipped), (6, 2, 2, 1));
        let names: Vec<&str> = report.failures.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["failed", "both"]);
    }

    #[test]
    fn what_is_no_report_is_a_fault_and_has_no_totals() {
        use ReportFaultKind::{Encoding, Entities, Malformed, Truncated};
        for (xml, kind) in [
            ("<testsuite><testcase name='a'><testcase/></testcase></testsuite>", Malformed),
            ("<html><testcase/></html>", Malformed),
            ("<testsuite/><testsuite/>", Malformed),
            ("<testsuite/>text", Malformed),
            ("<testsuite></other>", Malformed),
            ("<testsuite><testcase name='a' name='b'/></testsuite>", Malformed),
            ("<testsuite><testcase name=a/></testsuite>", Malformed),
            ("<testsuite>&#xffffffff;</testsuite>", Malformed),
            ("<testsuite>a & b</testsuite>", Malformed),
            ("<testsuite><testcase name='a'/>", Truncated),
            ("<testsuite><testcase name='a'/><testcase na", Truncated),
            ("<testsuite><system-out><![CDATA[ ]] ></system-out></testsuite>", Truncated),
            ("<testsuite><system-out>&other;</system-out></testsuite>", Entities),
            ("<testsuite hostname='&other;'/>", Entities),
            ("<?xml version='1.0' encoding='ISO-8859-1'?><testsuite/>", Encoding),
        ] {
            let report = report(xml);
            assert_eq!(report.fault.map(|fault| fault.kind), Some(kind), "{xml}");
            assert!(report.totals.is_none() && report.slowest.is_empty(), "{xml}");
        }
        assert!(report("<?xml version='1.0' encoding='utf-8'?><testsuite/> \n").fault.is_none());
    }
}
