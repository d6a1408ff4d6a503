//! Test reports of a task: collected beside its artifacts, read once its sandbox is gone, and written with its end.
//!
//! ```text
//! plan.reports --each by itself: collect--> files, kept as artifacts --> ReportFile --contracts::test_report::read--> NewReport
//!                    \--matches nothing--> unmatched        \--too large, unreadable--> fault
//! ```
//! **No report changes how its task ended**: whatever is wrong with one is its fault.

use std::io::Cursor;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cofferdam_ambient::clock::Stopwatch;
use cofferdam_contracts::artifact::OutputFile;
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::sandbox::SandboxResult;
use cofferdam_contracts::test_report::{
    MAX_REPORT_BYTES, MAX_REPORTS, ReportBounds, ReportContent, ReportFaultKind, ReportKind,
    ReportSpec, TestReport, read,
};
use cofferdam_ledger::test_reports::NewReport;
use cofferdam_sandbox::{CollectBounds, CollectedFile, Excess, Plan, Sandbox, SandboxError};

use crate::checks::CheckSlots;

/// How long all of a task's reports may take to be read out: an agent that is slow holds its sandbox no longer.
const COLLECT_MS: u64 = 120_000;
const COLLECT: Duration = Duration::from_millis(COLLECT_MS);
/// How long the reports of a task wait for a processor: those before them take seconds each.
const PATIENCE: Duration = Duration::from_secs(120);

/// Apart from those of forms and recipes, which would otherwise wait for a tenant's reports.
static SLOTS: LazyLock<CheckSlots> = LazyLock::new(|| CheckSlots::of_host(PATIENCE));

/// A file that a task declared as a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportFile {
    /// Its path, or the glob whose files could not be collected.
    path: String,
    /// Its kind, where the recipe states one.
    kind: Option<ReportKind>,
    /// Why there is nothing to read.
    fault: Option<ReportFaultKind>,
}

/// Reads the files of a task's reports out of its sandbox, each once. They join `files`, which are kept.
pub(crate) async fn collect(
    sandbox: &Sandbox,
    plan: &Plan,
    files: &mut Vec<CollectedFile>,
    result: &mut SandboxResult,
) -> Vec<ReportFile> {
    let mut found = ReportSearch { left_bytes: MAX_REPORT_BYTES, ..ReportSearch::default() };
    let begun = Stopwatch::start();
    for (at, spec) in plan.reports.iter().enumerate() {
        let globs = [spec.path.clone()];
        let others = plan.reports.len().saturating_sub(at + 1);
        let bounds = CollectBounds { bytes: found.left_bytes, files: found.left(others) };
        let collected = sandbox.files().collect_at_most(&plan.task.cwd, &globs, bounds);
        let left = COLLECT.saturating_sub(begun.elapsed());
        let silent = |_| Err(SandboxError::Silent(COLLECT_MS));
        let collected = tokio::time::timeout(left, collected).await.unwrap_or_else(silent);
        if matches!(collected, Err(SandboxError::Killed)) {
            break;
        }
        found.add(spec, collected, files);
    }
    result.unmatched_reports = found.unmatched;
    found.reports
}

/// What the globs of a task's reports found so far.
#[derive(Debug, Default)]
struct ReportSearch {
    reports: Vec<ReportFile>,
    unmatched: Vec<String>,
    /// Bytes that the others may have.
    left_bytes: u64,
}

impl ReportSearch {
    /// How many files the next glob may find, so that each of `others` after it can still be said to have failed.
    fn left(&self, others: usize) -> u64 {
        let taken = self.reports.len().saturating_add(others);
        u64::try_from(MAX_REPORTS.saturating_sub(taken)).unwrap_or(0)
    }

    fn add(
        &mut self,
        spec: &ReportSpec,
        collected: Result<Vec<CollectedFile>, SandboxError>,
        files: &mut Vec<CollectedFile>,
    ) {
        let report = |path, fault| ReportFile { path, kind: spec.kind, fault };
        let collected = match collected {
            Ok(collected) => collected,
            Err(error) => {
                let (path, fault) = fault_of(&spec.path, error);
                return self.reports.push(report(path, Some(fault)));
            }
        };
        if collected.is_empty() {
            self.unmatched.push(spec.path.clone());
        }
        for file in collected {
            // Of a glob before this one.
            if self.reports.iter().any(|report| report.path == file.path) {
                continue;
            }
            let size = u64::try_from(file.bytes.len()).unwrap_or(u64::MAX);
            self.left_bytes = self.left_bytes.saturating_sub(size);
            self.reports.push(report(file.path.clone(), None));
            // An artifact, too: one file, as it was found first.
            if !files.iter().any(|kept| kept.path == file.path) {
                files.push(file);
            }
        }
    }
}

/// Where a collection failed, and why.
fn fault_of(glob: &str, error: SandboxError) -> (String, ReportFaultKind) {
    match error {
        SandboxError::Excess(Excess::Bytes { path, .. }) => {
            (if path.is_empty() { glob.to_owned() } else { path }, ReportFaultKind::TooLarge)
        }
        SandboxError::Excess(Excess::Files { .. } | Excess::Entries { .. }) => {
            (glob.to_owned(), ReportFaultKind::TooMany)
        }
        error => {
            tracing::info!(%error, "the reports of a task were not collected");
            (glob.to_owned(), ReportFaultKind::Unreadable)
        }
    }
}

/// What the reports say. Their bytes are a tenant's, and so is the time that they take: a slot of his.
pub(crate) async fn contents(
    tenant: &TenantId,
    files: &mut Vec<CollectedFile>,
    reports: Vec<ReportFile>,
) -> Vec<NewReport> {
    if reports.is_empty() {
        return Vec::new();
    }
    let shared = Arc::new((std::mem::take(files), reports));
    let rows = match SLOTS.take(tenant).await {
        Ok(slot) => {
            let work = Arc::clone(&shared);
            slot.run_apart(move || read_all(&work.0, &work.1)).await
        }
        Err(_) => None,
    };
    let (whole, reports) = Arc::unwrap_or_clone(shared);
    *files = whole;
    rows.unwrap_or_else(|| {
        tracing::warn!(%tenant, "the reports of a task were not read");
        let unread = |file: &ReportFile| {
            row(file, None, TestReport::faulty(file.fault.unwrap_or(ReportFaultKind::Unreadable)))
        };
        reports.iter().map(unread).collect()
    })
}

fn read_all(files: &[CollectedFile], reports: &[ReportFile]) -> Vec<NewReport> {
    let bounds = ReportBounds::default();
    let one = |report: &ReportFile| {
        let file = files.iter().find(|file| file.path == report.path);
        match (report.fault, file) {
            (None, Some(file)) => {
                let ReportContent { kind, report: said, .. } =
                    read(&mut Cursor::new(&file.bytes), report.kind, &bounds);
                row(report, kind, said)
            }
            (fault, _) => {
                let fault = fault.unwrap_or(ReportFaultKind::Unreadable);
                row(report, None, TestReport::faulty(fault))
            }
        }
    };
    reports.iter().map(one).collect()
}

fn row(file: &ReportFile, kind: Option<ReportKind>, report: TestReport) -> NewReport {
    NewReport { path: file.path.clone(), kind: kind.or(file.kind), sha256: None, report }
}

/// The digests of the files, which are artifacts by now.
pub(crate) fn with_digests(reports: &mut [NewReport], kept: &[OutputFile]) {
    for report in reports {
        let file = kept.iter().find(|file| file.path == report.path);
        report.sha256 = file.map(|file| file.sha256.clone());
    }
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::artifact::ArtifactMode;
    use cofferdam_contracts::canonical::digest_bytes;

    use super::*;

    fn file(path: &str, text: &str) -> CollectedFile {
        CollectedFile {
            path: path.to_owned(),
            bytes: text.as_bytes().to_vec(),
            mode: ArtifactMode::File,
        }
    }

    fn spec(path: &str, kind: Option<ReportKind>) -> ReportSpec {
        ReportSpec { path: path.to_owned(), kind }
    }

    fn found() -> ReportSearch {
        ReportSearch { left_bytes: 100, ..ReportSearch::default() }
    }

    #[test]
    fn a_report_that_is_an_artifact_too_is_one_file() {
        let (mut found, mut files) = (found(), vec![file("a.xml", "as an artifact")]);
        let globs = spec("*.xml", None);
        found.add(&globs, Ok(vec![file("a.xml", "later"), file("b.xml", "b")]), &mut files);
        found.add(&spec("b.xml", Some(ReportKind::Tap)), Ok(vec![file("b.xml", "b")]), &mut files);
        found.add(&spec("c/*", None), Ok(Vec::new()), &mut files);
        let paths: Vec<_> = found.reports.iter().map(|one| (one.path.as_str(), one.kind)).collect();
        assert_eq!(paths, [("a.xml", None), ("b.xml", None)], "the first entry that matches says");
        assert_eq!(files, [file("a.xml", "as an artifact"), file("b.xml", "b")]);
        assert_eq!(found.unmatched, ["c/*"]);
        assert_eq!(found.left_bytes, 100 - 6);
    }

    #[test]
    fn a_collection_that_fails_is_a_fault_and_leaves_a_row_to_each_other_glob() {
        let (mut found, mut files) = (found(), Vec::new());
        assert_eq!(found.left(19), 81);
        let path = || "big.xml".to_owned();
        let excess = |excess| Err(SandboxError::Excess(excess));
        let large = Excess::Bytes { most: 1, found: 2, path: path() };
        found.add(&spec("*.xml", None), excess(large), &mut files);
        let many = Excess::Files { most: 1, found: 2, path: path() };
        found.add(&spec("**", None), excess(many), &mut files);
        found.add(&spec("x", None), Err(SandboxError::Silent(1)), &mut files);
        let faults: Vec<_> =
            found.reports.iter().map(|one| (one.path.as_str(), one.fault.unwrap())).collect();
        let want = [
            ("big.xml", ReportFaultKind::TooLarge),
            ("**", ReportFaultKind::TooMany),
            ("x", ReportFaultKind::Unreadable),
        ];
        assert_eq!((faults.as_slice(), files.len(), found.left(0)), (&want[..], 0, 97));
    }

    #[tokio::test]
    async fn what_reports_say_has_the_digest_of_its_file_and_files_stay() {
        let tenant = TenantId::parse("t").unwrap();
        let (mut found, kept) = (found(), vec![file("a.tap", "1..1\nok 1\n"), file("b", "?")]);
        let mut files = Vec::new();
        found.add(&spec("*", None), Ok(kept.clone()), &mut files);
        let gone = ReportFile { path: "c".into(), kind: Some(ReportKind::Lcov), fault: None };
        let reports = [found.reports, vec![gone]].concat();
        let mut rows = contents(&tenant, &mut files, reports).await;
        assert_eq!(files, kept);
        let output = OutputFile {
            path: "a.tap".into(),
            encoded: false,
            sha256: digest_bytes(b"1..1\nok 1\n"),
            size: 10,
            mode: ArtifactMode::File,
            target: None,
        };
        with_digests(&mut rows, std::slice::from_ref(&output));
        let [tap, unknown, gone] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((tap.kind, &tap.sha256), (Some(ReportKind::Tap), &Some(output.sha256)));
        assert_eq!(tap.report.totals.as_ref().unwrap().cases, 1);
        let fault = |row: &NewReport| row.report.fault.unwrap().kind;
        assert_eq!((unknown.kind, fault(unknown)), (None, ReportFaultKind::Unknown));
        assert_eq!((gone.kind, fault(gone)), (Some(ReportKind::Lcov), ReportFaultKind::Unreadable));
    }
}
