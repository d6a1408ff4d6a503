//! Real reports with their true totals, and hostile ones.

use std::io::{BufReader, Read};

use super::*;
use crate::printable;

fn content(bytes: &[u8]) -> ReportContent {
    read(&mut &*bytes, None, &ReportBounds::default())
}

fn fault(bytes: &[u8]) -> ReportFaultKind {
    let content = content(bytes);
    let report = &content.report;
    assert!(report.totals.is_none() && report.coverage.is_none() && content.lines.is_none());
    report.fault.expect("a fault").kind
}

/// Suites, cases, failed, errored, skipped and flaky.
fn totals(report: &TestReport) -> [u64; 6] {
    assert_eq!(report.fault, None);
    let totals = report.totals.as_ref().expect("totals");
    let TestTotals { suites, cases, failed, errored, skipped, flaky, .. } = *totals;
    [suites, cases, failed, errored, skipped, flaky]
}

fn names(report: &TestReport) -> Vec<&str> {
    report.failures.iter().map(|failure| failure.name.as_str()).collect()
}

macro_rules! real {
    ($name:literal) => {
        content(include_bytes!(concat!("../../corpus/test_report/", $name)))
    };
}

#[test]
fn reports_of_pytest_nextest_and_node_have_their_true_totals() {
    let pytest = real!("pytest.xml");
    assert_eq!(pytest.kind, Some(ReportKind::Junit));
    assert_eq!(totals(&pytest.report), [1, 8, 1, 1, 2, 0]);
    let [sign, error] = pytest.report.failures.as_slice() else { panic!("{pytest:#?}") };
    assert_eq!(
        (sign.name.as_str(), sign.class.as_deref()),
        ("test_sign_fails", Some("test_money"))
    );
    assert!(sign.message.starts_with("AssertionError: a #x1B[31mred"), "{}", sign.message);
    assert!(sign.detail.contains("assert sign(2) == \"minus\""), "{}", sign.detail);
    assert_eq!(error.kind, FailureKind::Error);
    assert_eq!(error.message, "failed on setup with \"RuntimeError: no database\"");
    assert_eq!(pytest.report.slowest[0].name, "test_add");

    let nextest = real!("nextest.xml").report;
    assert_eq!(totals(&nextest), [1, 3, 1, 0, 0, 1]);
    assert_eq!(names(&nextest), ["tests::fails"]);
    assert!(nextest.failures[0].detail.contains("sums <differ>"));
    assert!(!nextest.failures[0].detail.contains("running 1 test"), "captured output is left out");

    let node = real!("node.xml").report;
    assert_eq!(totals(&node), [2, 6, 2, 0, 2, 0]);
    assert_eq!(names(&node), ["fails # in its name", "inner fails"]);
}

#[test]
fn taps_of_node_and_perl_have_their_true_totals() {
    let node = real!("node.tap");
    assert_eq!(node.kind, Some(ReportKind::Tap));
    assert_eq!(totals(&node.report), [1, 5, 2, 0, 2, 0]);
    let [fails, suite] = node.report.failures.as_slice() else { panic!("{node:#?}") };
    assert_eq!(fails.name, "fails # in its name");
    assert_eq!(fails.message, "Expected values to be strictly equal:\n\n2 !== 3");
    assert_eq!((fails.file.as_deref(), fails.line), (Some("/src/node/sum.test.mjs"), Some(5)));
    assert_eq!((suite.name.as_str(), suite.message.as_str()), ("suite", "1 subtest failed"));
    assert!(suite.detail.contains("not ok 2 - inner fails"), "{}", suite.detail);
    assert_eq!(node.report.slowest[0].name, "suite");

    let perl = real!("perl.tap").report;
    assert_eq!(totals(&perl), [1, 5, 1, 0, 2, 0]);
    assert_eq!(names(&perl), ["two"]);
}

#[test]
fn coverage_of_one_run_is_equal_in_both_formats() {
    let ratio = |total, covered| Ratio { total, covered };
    let python = Coverage { files: 1, lines: ratio(10, 6), branches: Some(ratio(4, 1)) };
    let (lcov, cobertura) = (real!("coverage.info"), real!("coverage.xml"));
    assert_eq!((lcov.kind, cobertura.kind), (Some(ReportKind::Lcov), Some(ReportKind::Cobertura)));
    assert_eq!(lcov.report.coverage, Some(python.clone()));
    assert_eq!(cobertura.report.coverage, Some(python.clone()));
    let merged = merged(&[lcov, cobertura], &ReportBounds::default());
    assert_eq!(merged.coverage, Some(python), "the union of equal sets");
    let c = Coverage { files: 1, lines: ratio(9, 6), branches: Some(ratio(6, 2)) };
    assert_eq!(real!("geninfo.info").report.coverage, Some(c.clone()));
    assert_eq!(real!("gcovr.xml").report.coverage, Some(c), "with a document type");
}

#[test]
fn entities_are_never_expanded() {
    let mut laughs = "<?xml version='1.0'?>\n<!DOCTYPE lolz [<!ENTITY lol 'lol'>".to_owned();
    for (at, before) in ["lol", "l1", "l2", "l3", "l4", "l5", "l6", "l7", "l8"].iter().enumerate() {
        laughs += &format!("<!ENTITY l{} '{}'>", at + 1, format!("&{before};").repeat(10));
    }
    laughs += "]><testsuite><testcase name='&l9;'/></testsuite>";
    assert_eq!(fault(laughs.as_bytes()), ReportFaultKind::Entities);
    // Behind what the head shows, and as a kind that the recipe states.
    let padded = laughs.replacen('\n', &format!("<!--{}-->", " ".repeat(5_000)), 1);
    let stated = read(&mut padded.as_bytes(), Some(ReportKind::Junit), &ReportBounds::default());
    assert_eq!(stated.report.fault.unwrap().kind, ReportFaultKind::Entities);
    let external = "<!DOCTYPE testsuite SYSTEM 'file:///etc/passwd'><testsuite>&a;</testsuite>";
    assert_eq!(fault(external.as_bytes()), ReportFaultKind::Entities);
}

#[test]
fn depth_attributes_and_events_are_bounded() {
    let nested = |depth: usize| format!("<testsuite>{}", "<a>".repeat(depth - 1));
    assert_eq!(fault(nested(1_000_000).as_bytes()), ReportFaultKind::TooDeep);
    let whole = |depth: usize| nested(depth) + &"</a>".repeat(depth - 1) + "</testsuite>";
    assert_eq!(totals(&content(whole(MAX_DEPTH).as_bytes()).report), [0; 6]);
    assert_eq!(fault(whole(MAX_DEPTH + 1).as_bytes()), ReportFaultKind::TooDeep);
    let attributes: String = (0..65).map(|at| format!(" a{at}=''")).collect();
    assert_eq!(fault(format!("<testsuite{attributes}/>").as_bytes()), ReportFaultKind::TooMany);
    let bounds = ReportBounds { events: 10, ..ReportBounds::default() };
    for (text, kind) in [
        ("<testsuite><a/><a/><a/><a/><a/></testsuite>", ReportKind::Junit),
        (&"ok 1\n".repeat(11), ReportKind::Tap),
        (&"TN:\n".repeat(11), ReportKind::Lcov),
    ] {
        let content = read(&mut text.as_bytes(), Some(kind), &bounds);
        assert_eq!(content.report.fault.unwrap().kind, ReportFaultKind::TooMany, "{text}");
    }
}

#[test]
fn long_values_are_cut_and_counts_stay_true() {
    let long = "x".repeat(1 << 20);
    let xml = format!(
        "<testsuite name='{long}'><testcase name='{long}' time='1'><failure message='{long}'>{long}<![CDATA[{long}]]>\
         </failure></testcase><system-out>{long}</system-out><testcase name='b'/></testsuite>"
    );
    let report = content(xml.as_bytes()).report;
    assert_eq!(totals(&report), [1, 2, 1, 0, 0, 0]);
    let failure = &report.failures[0];
    assert_eq!((failure.name.len(), failure.message.len()), (MAX_NAME_BYTES, MAX_MESSAGE_BYTES));
    assert_eq!(
        (failure.detail.len(), report.slowest[0].name.len()),
        (MAX_DETAIL_BYTES, MAX_NAME_BYTES)
    );
    let tap = format!("1..1\nnot ok 1 - {long}\n  ---\n  message: {long}\n  ...\n");
    let report = content(tap.as_bytes()).report;
    assert_eq!(totals(&report), [1, 1, 1, 0, 0, 0]);
    assert_eq!(report.failures[0].message.len(), MAX_MESSAGE_BYTES);
    assert_eq!(fault(format!("SF:{long}\nend_of_record\n").as_bytes()), ReportFaultKind::TooLarge);
}

#[test]
fn failures_are_listed_up_to_their_number_and_their_bytes() {
    let case = "<testcase name='a'><failure message='m'/></testcase>";
    let report =
        content(format!("<testsuite>{}</testsuite>", case.repeat(1_001)).as_bytes()).report;
    assert_eq!(totals(&report)[2], 1_001);
    assert_eq!(report.failures.len(), MAX_FAILURES);
    let text = "y".repeat(MAX_DETAIL_BYTES);
    let case = format!("<testcase name='a'><failure message='m'>{text}</failure></testcase>");
    let report = content(format!("<testsuite>{}</testsuite>", case.repeat(100)).as_bytes()).report;
    let details =
        |report: &TestReport| -> usize { report.failures.iter().map(|one| one.detail.len()).sum() };
    assert_eq!(report.failures.len(), 100);
    assert_eq!(details(&report) / MAX_DETAIL_BYTES, MAX_FAILURE_TEXT / MAX_DETAIL_BYTES - 1);
    assert!(report.failures.iter().all(|failure| failure.message == "m"));
    let content = ReportContent { kind: None, report, lines: None };
    let merged = merged(&[content.clone(), content], &ReportBounds::default());
    assert_eq!((merged.failures.len(), details(&merged) <= MAX_FAILURE_TEXT), (200, true));
}

#[test]
fn only_utf8_is_read() {
    let utf16: Vec<u8> = "<testsuite/>".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(fault(&utf16), ReportFaultKind::Encoding);
    assert_eq!(fault(&[b"\xff\xfe", utf16.as_slice()].concat()), ReportFaultKind::Encoding);
    let stated = read(&mut utf16.as_slice(), Some(ReportKind::Junit), &ReportBounds::default());
    assert_eq!(stated.report.fault.unwrap().kind, ReportFaultKind::Encoding);
    assert_eq!(fault(b"<testsuite><testcase name='\xe4'/></testsuite>"), ReportFaultKind::Encoding);
    assert_eq!(totals(&content(b"1..1\nnot ok 1 - \xe4\n").report), [1, 1, 1, 0, 0, 0]);
    let message = ReportFaultKind::Encoding.to_string();
    assert_eq!(message, "the report is not UTF-8; write it as UTF-8");
}

#[test]
fn control_characters_stay_as_data_and_nul_goes() {
    let xml = "<testsuite><testcase name='\x1b[31m&#27;]0;x&#7;'><failure message='a\0b'>\0</failure></testcase></testsuite>";
    let report = content(xml.as_bytes()).report;
    let name = &report.failures[0].name;
    assert_eq!(name, "\x1b[31m\x1b]0;x\x07");
    assert_eq!(printable::line(name), "\\x1b[31m\\x1b]0;x\\x07");
    for bytes in [xml.as_bytes(), b"1..1\nnot ok 1 - a\0\n# b\0\n"] {
        let value = serde_json::to_value(content(bytes).report).unwrap();
        assert_eq!(crate::schema::unstorable(&value), None);
    }
    let content = content(b"SF:a\0b\nDA:1,1\nend_of_record\n");
    assert_eq!(content.report.coverage.unwrap().files, 1);
}

#[test]
fn empty_unknown_and_unreadable_files_are_faults() {
    assert_eq!(fault(b""), ReportFaultKind::Empty);
    assert_eq!(fault(b" \n"), ReportFaultKind::Empty);
    assert_eq!(fault(b"<html></html>"), ReportFaultKind::Unknown);
    for kind in [ReportKind::Junit, ReportKind::Cobertura] {
        let empty = read(&mut &b""[..], Some(kind), &ReportBounds::default());
        assert_eq!(empty.report.fault.unwrap().kind, ReportFaultKind::Empty);
    }
    for (head, kind) in [("1..1\n", ReportKind::Tap), ("<testsuite>", ReportKind::Junit)] {
        let padded = format!("{head}{}", " ".repeat(10_000));
        let mut source = BufReader::new(padded.as_bytes().chain(Broken));
        let content = read(&mut source, None, &ReportBounds::default());
        assert_eq!(content.kind, Some(kind));
        assert_eq!(content.report.fault.unwrap().kind, ReportFaultKind::Unreadable);
    }
}

/// A file whose disk fails.
struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::Other.into())
    }
}

/// A head, and one byte up to 65 MiB.
fn large(head: &'static str, fill: u8) -> impl Read {
    head.as_bytes().chain(std::io::repeat(fill).take(65 << 20))
}

#[test]
fn a_file_beyond_64_mib_is_a_fault_and_is_not_read_to_its_end() {
    for (head, fill) in [
        ("<testsuite><testcase name='a'/><system-out>", b'x'),
        ("<testsuite><testcase name='a'/><system-out><![CDATA[", b']'),
        ("1..1\nok 1\n", b'x'),
        ("SF:a\nDA:1,1\nend_of_record\nTN:", b'x'),
        ("<coverage line-rate='0'><!-- ", b'-'),
    ] {
        let mut source = BufReader::with_capacity(1 << 16, large(head, fill));
        let report = read(&mut source, None, &ReportBounds::default()).report;
        let fault = report.fault.unwrap();
        assert_eq!(fault.kind, ReportFaultKind::TooLarge, "{head}");
        assert!(fault.byte <= MAX_REPORT_BYTES + (1 << 17), "{head}: {}", fault.byte);
        assert!(report.totals.is_none() && report.coverage.is_none(), "{head}");
    }
    let whole = b"<testsuite><testcase name='a'/></testsuite>";
    let bounds = |bytes: usize| {
        let bytes = u64::try_from(bytes).unwrap();
        ReportBounds { bytes, ..ReportBounds::default() }
    };
    let kept = read(&mut &whole[..], None, &bounds(whole.len())).report;
    assert_eq!(totals(&kept), [1, 1, 0, 0, 0, 0]);
    let over = read(&mut &whole[..], None, &bounds(whole.len() - 1)).report;
    assert_eq!(over.fault.unwrap().kind, ReportFaultKind::TooLarge);
}

/// A fault names bytes near which it is, and a cut anywhere is one.
#[test]
fn a_report_that_is_cut_anywhere_is_not_whole() {
    let junit = include_bytes!("../../corpus/test_report/pytest.xml");
    let end = junit.len() - 1;
    for cut in (60..end).step_by(37).chain([end - 1]) {
        let report = content(&junit[..cut]).report;
        assert_eq!(report.fault.map(|fault| fault.kind), Some(ReportFaultKind::Truncated), "{cut}");
    }
    let tap = include_str!("../../corpus/test_report/node.tap");
    let plan = tap.find("\n1..5").unwrap();
    for cut in (30..plan).step_by(41) {
        let report = content(&tap.as_bytes()[..cut]).report;
        assert_ne!(report.totals.map(|totals| totals.errored), Some(0), "{cut}: no plan");
    }
    let lcov = include_bytes!("../../corpus/test_report/geninfo.info");
    for cut in 8..lcov.len() - 2 {
        let report = content(&lcov[..cut]).report;
        assert!(report.coverage.is_none() && report.fault.is_some(), "{cut}");
    }
}

#[test]
fn a_report_survives_its_own_json() {
    let bounds = ReportBounds::default();
    let all = [real!("pytest.xml"), real!("node.tap"), real!("gcovr.xml"), content(b"")];
    for report in all.iter().map(|one| one.report.clone()).chain([merged(&all[..3], &bounds)]) {
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(serde_json::from_value::<TestReport>(json).unwrap(), report);
    }
    let json = serde_json::to_value(&all[3].report).unwrap();
    assert_eq!(json, serde_json::json!({"fault": {"kind": "empty", "byte": 0}}));
    assert!(serde_json::from_str::<TestReport>("{\"passed\": 1}").is_err());
}
