//! What a dispatch's own run finds out: the agent's verdict, the commit that it began from, and whether the project
//! changed meanwhile.

use cofferdam_contracts::dispatch::Findings;
use cofferdam_contracts::printable;

/// How a verdict begins, and the line that ends it.
const BEGIN: &str = "--- VERDICT ---";
const END: &str = "---";
/// Verdicts that orchestrators know.
const STATUSES: [&str; 3] = ["pass", "warn", "fail"];
/// Characters of a summary that are kept.
const MAX_SUMMARY: usize = 1_000;

/// Reads verdicts, the last of which counts:
///
/// ```text
/// --- VERDICT ---
/// STATUS: pass|warn|fail
/// SUMMARY: one line
/// ---
/// ```
#[derive(Debug, Default)]
pub(super) struct Verdict {
    inside: bool,
    status: Option<String>,
    summary: Option<String>,
}

impl Verdict {
    pub(super) fn text(&mut self, text: &str) {
        // A message is whole: one that was not ended ends here.
        self.inside = false;
        text.lines().for_each(|line| self.line(line));
        self.inside = false;
    }

    pub(super) fn line(&mut self, line: &str) {
        let line = line.trim();
        match (self.inside, line) {
            (_, BEGIN) => *self = Self { inside: true, ..Self::default() },
            (true, END) => self.inside = false,
            (true, line) => {
                if let Some(status) = line.strip_prefix("STATUS: ") {
                    self.status = STATUSES.contains(&status).then(|| status.to_owned());
                } else if let Some(summary) = line.strip_prefix("SUMMARY: ") {
                    self.summary =
                        Some(printable::line(summary).chars().take(MAX_SUMMARY).collect());
                }
            }
            (false, _) => {}
        }
    }

    /// Without a status there is no verdict.
    pub(super) fn findings(&self) -> Findings {
        Findings {
            verdict_status: self.status.clone(),
            verdict_summary: self.summary.clone().filter(|_| self.status.is_some()),
            ..Findings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(text: &str) -> (Option<String>, Option<String>) {
        let mut verdict = Verdict::default();
        verdict.text(text);
        let findings = verdict.findings();
        (findings.verdict_status, findings.verdict_summary)
    }

    #[test]
    fn a_verdict_stands_in_its_block_and_the_last_one_counts() {
        let block =
            "Done.\n--- VERDICT ---\nSTATUS: warn\nFILES: 2\nSUMMARY: two tests are slow\n---\n";
        assert_eq!(verdict(block), (Some("warn".into()), Some("two tests are slow".into())));
        let twice = format!("{block}--- VERDICT ---\nSTATUS: pass\n---\nSUMMARY: outside\n");
        assert_eq!(verdict(&twice), (Some("pass".into()), None));
        for none in ["STATUS: pass\n", "--- VERDICT ---\nSTATUS: great\nSUMMARY: x\n---\n", ""] {
            assert_eq!(verdict(none), (None, None), "{none}");
        }
    }
}
