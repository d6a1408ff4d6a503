use super::*;
use crate::test_report::TestTotals;

fn report(text: &str) -> TestReport {
    let report = read(&mut text.as_bytes(), &ReportBounds::default());
    assert_eq!(report.fault, None);
    report
}

/// Cases, failed, errored, skipped.
fn counts(text: &str) -> [u64; 4] {
    let totals = report(text).totals.unwrap();
    [totals.cases, totals.failed, totals.errored, totals.skipped]
}

/// Names and messages of what failed.
fn failures(text: &str) -> Vec<(String, String)> {
    report(text).failures.into_iter().map(|one| (one.name, one.message)).collect()
}

#[test]
fn versions_12_to_14_are_read() {
    let points =
        "ok 1 - a\nnot ok 2 - b\nok 3 - c # SKIP no\nnot ok 4 - d # TODO later\nok 5 # TODO\n";
    for head in ["", "TAP version 13\n", "TAP version 14\npragma +strict\n"] {
        assert_eq!(counts(&format!("{head}1..5\n{points}")), [5, 1, 0, 2], "{head}");
        assert_eq!(counts(&format!("{head}{points}1..5 # all\n")), [5, 1, 0, 2], "{head}");
    }
    assert_eq!(counts("noise\n\n1..2\nok\r\n# a comment\nnot ok\r\nother noise\n"), [2, 1, 0, 0]);
    assert_eq!(counts("1..3\nok 2\nok 3\nok 1"), [3, 0, 0, 0], "in any order");
    assert_eq!(counts("1..1\nnot ok 1 # SKIP\n"), [1, 0, 0, 1], "as version 14 has it");
    let names = failures("1..2\nnot ok\nnot ok 2\n");
    assert_eq!(names.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["test 1", "test 2"]);
}

#[test]
fn a_plan_that_does_not_fit_is_an_error() {
    for (text, message) in [
        ("1..3\nok 1\nok 2\n", "2 of 3 planned tests ran"),
        ("1..3\n", "0 of 3 planned tests ran"),
        ("1..1\nok 1\nok 2\n", "2 tests ran and 1 were planned"),
        ("1..0\nok 1\n", "1 tests ran and 0 were planned"),
        ("1..2\nok 1\nok 4\n", "test 4 is outside the plan 1..2"),
        ("ok 1\nok 2\n", "2 tests ran and no plan says how many there are"),
        ("TAP version 13\n", "0 tests ran and no plan says how many there are"),
        ("1..1\nok 1\n1..1\n", "the plan stands twice"),
        ("1..x\nok 1\n", "1 tests ran and no plan says how many there are"),
    ] {
        assert_eq!(failures(text), [("plan".to_owned(), message.to_owned())], "{text:?}");
        assert_eq!(counts(text)[2], 1, "{text:?}");
    }
    for text in ["1..0 # SKIP no database\n", "1..0\n"] {
        let totals = TestTotals { suites: 1, ..TestTotals::default() };
        assert_eq!(report(text).totals, Some(totals), "everything was skipped");
    }
}

#[test]
fn a_bail_out_ends_the_report_and_is_an_error() {
    let text = "1..9\nok 1\nBail out! No database.\nnot ok 2\n";
    assert_eq!(failures(text), [("Bail out!".to_owned(), "No database.".to_owned())]);
    assert_eq!(counts(text), [2, 0, 1, 0]);
    let text = "1..1\nok 1\nBail out!\n";
    assert_eq!(failures(text), [("Bail out!".to_owned(), "without a reason".to_owned())]);
    assert_eq!(counts("1..1\nok 1 - Bail out!\n    Bail out!\n"), [1, 0, 0, 0]);
}

#[test]
fn a_block_gives_message_time_and_location() {
    let text = "TAP version 14\n1..4\nnot ok 1 - a\n  ---\n  message: 'it''s: \"red\"'\n  severity: fail\n  \
                data:\n    message: other\n    got: |\n      ...\n  at:\n    file: t/a.c\n    line: 142\n  \
                duration_ms: 1.6\n  ...\nnot ok 2 - b\n  ---\n  error: |-\n    one\n      two: 2\n    \n    ok 7\n  \
                location: '/src/b.js:8:1'\n  ...\nok 3\n  ---\n  duration_ms: 20\n  message: fine\n  ...\n\
                not ok 4\n  ---\n  message: \"no end\"\nok 5 - extra\n";
    let report = report(text);
    let [a, b, open, plan] = report.failures.as_slice() else { panic!("{report:#?}") };
    assert_eq!(
        (a.message.as_str(), a.file.as_deref(), a.line),
        ("it's: \"red\"", Some("t/a.c"), Some(142))
    );
    assert!(a.detail.contains("got: |\n    ...\nat:"), "{}", a.detail);
    assert_eq!(b.message, "one\ntwo: 2\n\nok 7");
    assert_eq!((b.file.as_deref(), b.line), (Some("/src/b.js"), Some(8)));
    assert_eq!(open.message, "no end");
    assert_eq!(plan.message, "5 tests ran and 4 were planned");
    let times: Vec<u64> = report.slowest.iter().map(|time| time.took_ms).collect();
    assert_eq!((times, report.totals.unwrap().took_ms), (vec![20, 2], 22));
}

#[test]
fn comments_behind_a_failed_point_are_its_detail() {
    let text = "1..2\nnot ok 1 - a\n#   Failed test 'a'\n#   at t/a.t line 3.\nok 2\n# the end\n";
    let report = report(text);
    let failure = &report.failures[0];
    assert_eq!(failure.message, "Failed test 'a'");
    assert_eq!(failure.detail, "  Failed test 'a'\n  at t/a.t line 3.");
}

#[test]
fn only_the_top_level_counts_and_failed_subtests_are_its_detail() {
    let text = "1..2\n# Subtest: one\n    1..2\n    ok 1 - fine\n      ---\n      message: 'not this'\n      ...\n    \
                not ok 2 - inner\n      ---\n      message: 'this'\n      ...\n    # Subtest: deeper\n        ok 1\n\
                not ok 1 - one\n  ---\n  error: '1 subtest failed'\n  ...\n    not ok 1 - of two # TODO\n\
                ok 2 - two\n";
    assert_eq!(counts(text), [2, 1, 0, 0]);
    let failure = &report(text).failures[0];
    assert_eq!((failure.name.as_str(), failure.message.as_str()), ("one", "1 subtest failed"));
    assert!(failure.detail.starts_with("    not ok 2 - inner\n      ---\n      message: 'this'\n"));
    assert!(!failure.detail.contains("not this") && !failure.detail.contains("deeper"));
}
