//! Globs of artifacts and reports, as far as their text can be judged: the agent, which matches them, has the same rule
//! and would refuse them only after the task ran.

use crate::sandbox::SandboxRequest;

/// Characters of a glob.
pub const MAX_GLOB_CHARS: usize = 1024;
/// Components of a glob, between slashes.
pub const MAX_GLOB_PARTS: usize = 64;

/// Whether a glob stays in the working directory.
///
/// # Errors
/// What is wrong with it, and what to write.
pub fn check(glob: &str) -> Result<(), String> {
    if glob.is_empty() || glob.chars().count() > MAX_GLOB_CHARS {
        return Err(format!("a glob has 1 to {MAX_GLOB_CHARS} characters"));
    }
    if glob.starts_with('/') {
        return Err(format!("{glob:?} is absolute: write it relative to the working directory"));
    }
    if let Some(directory) = glob.strip_suffix('/') {
        return Err(format!("{glob:?} names a directory: write \"{directory}/**\""));
    }
    let parts = || glob.split('/');
    if parts().any(|part| part == "..") {
        return Err(format!(
            "{glob:?} leaves the working directory: keep files in it, or set `exec.workdir`"
        ));
    }
    if parts().any(|part| part.is_empty() || part == "." || part.contains('\0')) {
        return Err(format!("{glob:?} has an empty or `.` component: remove it"));
    }
    match parts().count() > MAX_GLOB_PARTS {
        true => Err(format!("a glob has at most {MAX_GLOB_PARTS} components")),
        false => Ok(()),
    }
}

/// The same of a text of a recipe. One with expressions is judged once they are filled in.
pub(crate) fn check_text(text: &str) -> Result<(), String> {
    if text.contains("${") { Ok(()) } else { check(text) }
}

/// The same of what a task asks for; the error names the field.
pub(crate) fn check_request(request: &SandboxRequest) -> Result<(), String> {
    for (i, artifact) in request.artifacts.iter().enumerate() {
        check(&artifact.path).map_err(|why| format!("artifacts[{i}]: {why}"))?;
    }
    for (i, report) in request.reports.iter().enumerate() {
        check(&report.path).map_err(|why| format!("reports[{i}]: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_that_could_leave_the_directory_is_refused_with_what_to_write() {
        for good in ["a", "**", "logs/**", "..x/y..", "a*/?.xml", "${x}"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let parts = vec!["a"; MAX_GLOB_PARTS + 1].join("/");
        for (bad, word) in [
            ("", "1 to 1024"),
            ("/work/a", "relative"),
            ("../a", "leaves"),
            ("a/../../b", "leaves"),
            ("./a", "remove it"),
            ("a//b", "remove it"),
            ("logs/", "logs/**"),
            ("a/\0", "remove it"),
            (&"a".repeat(MAX_GLOB_CHARS + 1), "1 to 1024"),
            (&parts, "64 components"),
        ] {
            let why = check(bad).unwrap_err();
            assert!(why.contains(word), "{bad:?}: {why}");
        }
        assert_eq!(check_text("/${form.x}"), Ok(()), "judged once it is filled in");
        assert!(check_text("/x").is_err());
    }
}
