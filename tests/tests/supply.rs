//! What is built from: a release is made only where it could be looked at.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use cofferdam_tests::programs::write_program;
use cofferdam_tests::repository;

/// `scripts/advisories` with a `cargo-deny` that says this and fails, or says nothing and does not.
fn advisories(dir: &Path, fails_with: Option<&str>, release: Option<&str>) -> Output {
    let fake = dir.join("fake-cargo-deny");
    let script = match fails_with {
        Some(words) => format!("#!/bin/sh\necho '{words}' >&2\nexit 1\n"),
        None => "#!/bin/sh\nexit 0\n".to_owned(),
    };
    write_program(&fake, &script);
    let mut command = Command::new(repository().join("scripts/advisories"));
    command.arg(&fake).env_remove("COFFERDAM_RELEASE");
    if let Some(release) = release {
        command.env("COFFERDAM_RELEASE", release);
    }
    command.output().unwrap()
}

const UNFETCHED: &str = "error: failed to fetch advisory database https://example.invalid/";
const APPLIES: &str = "error[vulnerability]: a crate has a hole";

#[test]
fn l7_a_release_is_not_made_where_advisories_could_not_be_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    for (fails_with, release, passes, says) in [
        (None, Some("1"), true, ""),
        (None, None, true, ""),
        (Some(UNFETCHED), Some("1"), false, "ERROR: advisories NOT CHECKED"),
        (Some(UNFETCHED), None, true, "NOTICE: advisories NOT CHECKED"),
        (Some(UNFETCHED), Some("0"), true, "NOTICE: advisories NOT CHECKED"),
        // An unknown value is an error, never "no release".
        (Some(UNFETCHED), Some("yes"), false, "COFFERDAM_RELEASE"),
        (Some(APPLIES), Some("1"), false, "a crate has a hole"),
        (Some(APPLIES), None, false, "a crate has a hole"),
    ] {
        let output = advisories(dir.path(), fails_with, release);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), passes, "{fails_with:?} {release:?}: {said}");
        assert!(said.contains(says), "{fails_with:?} {release:?}: {said}");
    }
}

#[test]
fn l7_a_release_asks_for_the_check_that_fails_closed() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    assert!(makefile.contains("release: export COFFERDAM_RELEASE = 1"));
    assert!(makefile.contains("release: check test\n"));
    let check = makefile.split("\ncheck: ").nth(1).and_then(|rest| rest.split("\n\n").next());
    assert!(check.unwrap().contains("scripts/advisories"));
}
