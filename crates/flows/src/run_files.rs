//! Which files of a run are meant: by a glob, and by the task that left them.
//!
//! A glob matches a path as those of `artifacts` do, and what lies below what it matches: `dist` is `dist/**`, too.

use std::cell::Cell;

use cofferdam_contracts::error::{ErrorCode, Refusal, Violation};
use cofferdam_contracts::run_file::RunFile;
use cofferdam_sandbox::{Glob, glob_names};
pub use cofferdam_sandbox::{decode_name, encode_name};

/// Comparisons of one request: a glob of 1,024 characters and 100,000 paths of 4,096 could take minutes.
const MAX_STEPS: u64 = 500_000_000;

/// Files that are meant.
#[derive(Debug, Clone)]
pub struct FileChoice {
    glob: Option<Glob>,
    steps: u64,
}

impl FileChoice {
    /// By a glob; without one all of them.
    ///
    /// # Errors
    /// A glob that leads out of the directory, or is too long.
    pub fn parse(glob: Option<&str>) -> Result<Self, Refusal> {
        let glob = glob.map(|text| {
            Glob::parse(text.trim_end_matches('/')).map_err(|error| {
                Refusal::violations(&[Violation {
                    instance_path: "?glob".to_owned(),
                    message: error.to_string(),
                }])
            })
        });
        Ok(Self { glob: glob.transpose()?, steps: MAX_STEPS })
    }

    /// Whether a file is meant.
    ///
    /// # Errors
    /// The comparisons of this choice are used up.
    pub fn has(&mut self, file: &RunFile) -> Result<bool, Refusal> {
        let Some(glob) = &self.glob else { return Ok(true) };
        let steps = Cell::new(self.steps);
        let bytes = decode_name(&file.path);
        let seen = String::from_utf8_lossy(&bytes);
        // As the agent compares: with the name as it is written, and with one character for what is not UTF-8.
        let mut is = false;
        let seen = (seen != file.path).then_some(&*seen);
        for text in std::iter::once(file.path.as_str()).chain(seen) {
            let names = glob_names(text);
            for upto in (1..=names.len()).rev() {
                let part = names.get(..upto).unwrap_or_default();
                is = is || glob.matches_within(part, &steps).ok_or_else(costly)?;
            }
        }
        self.steps = steps.get();
        Ok(is)
    }
}

fn costly() -> Refusal {
    let why = "the glob takes too long for so many files: write fewer `*`, or name a task";
    Refusal::new(ErrorCode::SchemaViolation, why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(path: &str) -> RunFile {
        let key = "a".repeat(64);
        let row = json!({"task": "t", "stepId": "ExecuteST:t", "taskKey": key, "attempt": 1, "path": path,
            "sha256": key, "size": 3, "uri": "artifact://x", "createdAt": 5});
        serde_json::from_value(row).unwrap()
    }

    fn has(glob: &str, path: &str) -> bool {
        FileChoice::parse(Some(glob)).unwrap().has(&file(path)).unwrap()
    }

    #[test]
    fn a_glob_matches_a_path_and_what_lies_below_it() {
        assert!(FileChoice::parse(None).unwrap().has(&file("a/b")).unwrap());
        assert!(has("dist/*.whl", "dist/a.whl") && !has("dist/*.whl", "dist/a.txt"));
        assert!(has("dist", "dist/sub/a") && has("dist/", "dist/a") && !has("dist", "disto/a"));
        assert!(has("**/*.xml", "a/b/c.xml") && !has("*.xml", "a/c.xml"));
        assert!(has("a?b", "a\nb"), "a newline is a character");
        assert!(has("a%80", "a%80") && has("a?", "a%80"), "as it is written, and as one character");
        for bad in ["../x", "/etc", "a/../b", "", "a//b"] {
            assert!(FileChoice::parse(Some(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_glob_that_takes_too_long_is_refused() {
        let mut choice = FileChoice::parse(Some("*a*a*a*a*b")).unwrap();
        choice.steps = 1_000;
        let path = "a".repeat(4_000);
        assert!(choice.has(&file(&path)).is_err());
    }
}
