//! Test reports: what a task's tests say of themselves, as totals, failures, slowest tests and coverage.
//!
//! ```text
//! bytes of a tenant --kind: first 4 KiB--> junit | tap | lcov | cobertura --read to the end--> ReportContent
//!                                                \--a bound, a cut, an entity--> fault, and no totals
//! ReportContent of each shard --merged--> TestReport: sums; coverage as the union by file and line, where the lines are known
//! ```
//! **Totals exist only of a report that was read to its end**: a report that was cut or exceeds a bound has a
//! [`ReportFault`] instead, so a hostile file cannot show a part as the whole. Counts are those of the test cases; what a
//! report says of itself in attributes is ignored. No reader calls itself: depth is a number.
//!
//! Texts are the tests' own, with their control characters (NUL, which no row can store, is replaced by U+FFFD). Who shows
//! them passes them through [`crate::printable`].

mod bounds;
mod cobertura;
mod collector;
mod excerpt;
mod junit;
mod kind;
mod lcov;
mod line_input;
mod line_set;
mod reader;
mod run_reports;
mod spec;
mod summary;
mod tap;
#[cfg(test)]
mod tests;
mod xml;
mod xml_input;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;

pub use bounds::{
    MAX_DEPTH, MAX_DETAIL_BYTES, MAX_EVENTS, MAX_FAILURE_TEXT, MAX_FAILURES, MAX_FILES, MAX_LINES,
    MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_REPORT_BYTES, MAX_SLOWEST, MAX_TAG_BYTES,
    MAX_VALUE_BYTES, ReportBounds,
};
pub use line_set::LineSet;
pub use reader::{ReportContent, read};
pub use run_reports::{
    MAX_RUN_REPORT_BYTES, MAX_RUN_REPORTS, MAX_TASK_REPORT_BYTES, ReportRow, RunReports,
    TaskReports,
};
pub(crate) use spec::check;
pub use spec::{MAX_REPORT_SPECS, MAX_REPORTS, ReportSpec};
pub use summary::{ReportPart, merged};

named! {
    /// Format of a test report.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum ReportKind {
        /// JUnit's XML, as pytest, Surefire, cargo-nextest and others write it.
        Junit = "junit",
        /// The Test Anything Protocol, versions 12 to 14.
        Tap = "tap",
        /// Tracefile of lcov: coverage only.
        Lcov = "lcov",
        /// Cobertura's XML: coverage only.
        Cobertura = "cobertura",
    }
}

/// What one report says, or several of them together.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestReport {
    /// Counts of tests. Absent where the report has coverage only, or a fault.
    pub totals: Option<TestTotals>,
    /// Failed tests in the report's order, the first [`MAX_FAILURES`]. With a fault: those before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_FAILURES))]
    pub failures: Vec<TestFailure>,
    /// Slowest tests, the slowest first. Empty with a fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SLOWEST))]
    pub slowest: Vec<TestTime>,
    /// Covered lines and branches. Absent where the report has tests only, or a fault.
    pub coverage: Option<Coverage>,
    /// Why the report has no totals, if it was not read to its end.
    pub fault: Option<ReportFault>,
}

/// Counts of test cases; those that passed are the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestTotals {
    /// Suites that have a test case of their own.
    pub suites: u64,
    /// All test cases.
    pub cases: u64,
    /// Cases whose assertion failed.
    pub failed: u64,
    /// Cases that ended otherwise than by an assertion, such as in a fixture; for TAP, a plan that does not fit or a
    /// bail-out.
    pub errored: u64,
    /// Cases that did not run, or whose failure is expected (pytest's xfail, TAP's TODO).
    pub skipped: u64,
    /// Cases that passed when they were repeated.
    pub flaky: u64,
    /// Sum of the times of all cases, in ms: more than the elapsed time where tests run side by side.
    pub took_ms: u64,
}

named! {
    /// How a test failed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FailureKind {
        /// By an assertion.
        Failure = "failure",
        /// By anything else.
        Error = "error",
    }
}

/// One failed test.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestFailure {
    /// How it failed.
    pub kind: FailureKind,
    /// Name of the case, at most [`MAX_NAME_BYTES`].
    pub name: String,
    /// Class, module or binary that has the case.
    pub class: Option<String>,
    /// Source file, as the report writes it.
    pub file: Option<String>,
    /// Line of that file, as the report counts.
    pub line: Option<u32>,
    /// What failed, at most [`MAX_MESSAGE_BYTES`]; empty where the report says nothing.
    pub message: String,
    /// Everything else that the report says, such as a stack: at most [`MAX_DETAIL_BYTES`], and empty once all failures have
    /// [`MAX_FAILURE_TEXT`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// How long one test took.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestTime {
    /// Name of the case.
    pub name: String,
    /// Class, module or binary that has the case.
    pub class: Option<String>,
    /// Its time in ms.
    pub took_ms: u64,
}

/// Code that the tests executed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Coverage {
    /// Source files that were measured.
    pub files: u64,
    /// Lines with code.
    pub lines: Ratio,
    /// Branches, where the report has some.
    pub branches: Option<Ratio>,
}

/// A part of a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ratio {
    /// How many there are.
    pub total: u64,
    /// How many of them were executed.
    pub covered: u64,
}

/// Why a report was not read to its end.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[error("{kind}{}", near(*.byte))]
pub struct ReportFault {
    /// What is wrong.
    pub kind: ReportFaultKind,
    /// Bytes that were read until then.
    pub byte: u64,
}

/// Nothing was read of a file that could not be collected.
fn near(byte: u64) -> String {
    if byte == 0 { String::new() } else { format!(" (near byte {byte})") }
}

named! {
    /// What is wrong with a report.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
    pub enum ReportFaultKind {
        /// Its head fits no kind.
        #[error("the first 4 KiB are neither JUnit XML, TAP, lcov nor Cobertura XML")]
        Unknown = "unknown",
        /// Without a byte that is not white space.
        #[error("the report is empty")]
        Empty = "empty",
        /// Beyond [`MAX_REPORT_BYTES`], which all reports of a task share, or a tag or path beyond its own bound.
        #[error("the report, with those of its task before it, is larger than 64 MiB, or has a tag of more than 1 MiB or a path of more than 1 KiB")]
        TooLarge = "too_large",
        /// Elements beyond [`MAX_DEPTH`].
        #[error("the report nests more than 64 elements")]
        TooDeep = "too_deep",
        /// Beyond [`MAX_EVENTS`], [`MAX_FILES`], [`MAX_LINES`] or the attributes of one element, or more reports than are added up.
        #[error("the report has too many elements, lines, files or attributes, or there are too many reports")]
        TooMany = "too_many",
        /// A document type with declarations, or an entity that XML does not define.
        #[error("the report declares or uses XML entities of its own; write it without a document type")]
        Entities = "entities",
        /// UTF-16, another encoding in the XML declaration, or bytes that are not UTF-8.
        #[error("the report is not UTF-8; write it as UTF-8")]
        Encoding = "encoding",
        /// Not well-formed XML, or a line that its format does not allow.
        #[error("the report is malformed")]
        Malformed = "malformed",
        /// Ended within an element or a record.
        #[error("the report is incomplete: it ends within an element or a record")]
        Truncated = "truncated",
        /// The worker could not read the file.
        #[error("the report could not be read from its file")]
        Unreadable = "unreadable",
    }
}
