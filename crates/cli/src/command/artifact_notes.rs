//! What is said of artifacts that are not there: globs that matched nothing, and files beyond a bound. Pure.

use cofferdam_contracts::step::StepRow;

use super::task_choice::newest_attempts;

/// Lines of them: a run may have thousands of tasks.
const MAX_LINES: usize = 20;

/// The lines of a run with these steps.
///
/// # Errors
/// An output that is not a task's.
pub(crate) fn lines(steps: &[StepRow]) -> Result<Vec<String>, serde_json::Error> {
    let newest = newest_attempts(steps);
    let mut all = Vec::new();
    for step in &newest {
        let outcome = step.outcome()?.unwrap_or_default();
        let of = match newest.len() {
            1 => String::new(),
            _ => format!(" of {}", step.task_name()),
        };
        let unmatched = outcome.unmatched.iter();
        all.extend(unmatched.map(|glob| format!("artifacts{of}: `{glob}` matched nothing")));
        all.extend(outcome.omitted.iter().map(|omitted| format!("artifacts{of}: {}", omitted)));
    }
    let more = all.len().saturating_sub(MAX_LINES);
    all.truncate(MAX_LINES);
    if more > 0 {
        all.push(format!(
            "artifacts: and {more} more lines like these (cofferdam show RUN --json)"
        ));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::task_choice::attempt;
    use super::*;

    fn step(name: &str, n: i32, output: serde_json::Value) -> StepRow {
        StepRow { output: Some(output), ..attempt(name, n, "ok") }
    }

    #[test]
    fn the_newest_attempts_say_what_they_lack() {
        let none = json!({"unmatched": ["dist/*"]});
        let one = [step("a", 1, json!({"unmatched": ["old"]})), step("a", 2, none.clone())];
        assert_eq!(lines(&one).unwrap(), ["artifacts: `dist/*` matched nothing"]);
        let over = json!({"omitted": {"files": 3, "bytes": 9, "first": "b", "bound": "files", "most": 1_000}});
        let two = [step("a", 1, none), step("b", 1, over)];
        let want = [
            "artifacts of a: `dist/*` matched nothing",
            "artifacts of b: 3 files with 9 bytes were not kept, the first \"b\": at most 1000 files are",
        ];
        assert_eq!(lines(&two).unwrap(), want);
        let many: Vec<String> = (0..30).map(|n| format!("g{n}")).collect();
        let many = lines(&[step("a", 1, json!({"unmatched": many}))]).unwrap();
        assert_eq!((many.len(), many[20].contains("and 10 more")), (21, true));
        assert!(lines(&[step("a", 1, json!({}))]).unwrap().is_empty());
    }
}
