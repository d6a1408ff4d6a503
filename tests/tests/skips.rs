//! What a machine lacks is said by name at the end of `make test`, and no test has another way to pass without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cofferdam_tests::programs::write_program;
use cofferdam_tests::repository;

/// Helpers that say so themselves, each with `not_run` in its body.
const SAY_SO: [&str; 11] = [
    "is_absent(",
    "chromium()",
    "machines(",
    "installed()",
    "has_npm(",
    "has_psql(",
    "registry_here(",
    "has_program(",
    "has_class(",
    "has_memory(",
    "volume_here(",
];

/// Early ends of tests that pass over nothing: (file, what the line or those before it say, why).
const NO_SKIPS: [(&str, &str, &str); 3] = [
    ("sandbox/tests/users.rs", "is_owned()", "what holds in this case is asserted there"),
    (
        "sandbox/tests/kernel.rs",
        "Class::Microvm",
        "a machine's agent has no such limit: another kernel is below it",
    ),
    ("contracts/tests/fuzz.rs", "", "an input of chance that is not of the form in question"),
];

/// Tests that CI leaves to `make test`: there is no room for more.
const MOST_SLOW: usize = 51;

fn sources() -> Vec<(String, String)> {
    let root = repository();
    let mut dirs = vec![root.join("tests/tests")];
    for krate in fs::read_dir(root.join("crates")).unwrap().flatten() {
        dirs.extend(["tests", "src"].map(|dir| krate.path().join(dir)));
    }
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.is_dir() {
                true => dirs.push(path),
                false => found.extend(read(&root, path)),
            }
        }
    }
    found
}

fn read(root: &Path, path: PathBuf) -> Option<(String, String)> {
    path.extension().filter(|extension| *extension == "rs")?;
    let name = path.strip_prefix(root).ok()?.to_string_lossy().into_owned();
    Some((name, fs::read_to_string(path).ok()?))
}

/// The bodies of a file's tests, those that `make test` does not run by themselves excepted.
fn tests_of(text: &str) -> Vec<&str> {
    let marks = text.match_indices("#[test]").chain(text.match_indices("#[tokio::test"));
    let body = |at: usize| {
        let (before, rest) = text.split_at(at);
        let indent = before.rsplit('\n').next().unwrap_or_default();
        rest.split(&format!("\n{indent}}}\n")).next()
    };
    marks
        .filter_map(|(at, _)| body(at))
        .filter(|body| !body.lines().take(4).any(|line| line.contains("#[ignore")))
        .collect()
}

/// Whether a line ends its function, or hands on a reason why it did.
fn ends_early(line: &str) -> bool {
    let line = line.trim();
    line == "return;" || line.contains("else { return }") || line.starts_with("return ")
}

/// Ends of a test that nobody is told of, with the lines before each.
fn silent_ends<'a>(file: &str, test: &'a str) -> Vec<&'a str> {
    let lines: Vec<&str> = test.lines().collect();
    // Of what only belongs to the test's own servers and tasks, this looks at nothing.
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| ends_early(line)) {
        let before = lines.get(at.saturating_sub(4)..=at).unwrap_or_default().join("\n");
        let is_said =
            before.contains("not_run(") || SAY_SO.iter().any(|helper| before.contains(helper));
        let is_listed =
            NO_SKIPS.iter().any(|(f, says, _)| file.ends_with(f) && before.contains(says));
        if depth(line) <= depth(lines.get(1).unwrap_or(line)) + 12 && !is_said && !is_listed {
            found.push(*line);
        }
    }
    found
}

#[test]
fn b2_no_test_passes_over_what_is_missing_without_saying_so() {
    let sources = sources();
    assert!(sources.len() > 300, "the tests were not found");
    let mut silent = Vec::new();
    for (file, text) in sources.iter().filter(|(file, _)| !file.ends_with("skips.rs")) {
        for test in tests_of(text) {
            for line in silent_ends(file, test) {
                silent.push(format!(
                    "{file}: {} in {}",
                    line.trim(),
                    test.lines().find(|l| l.contains("fn ")).unwrap_or("?")
                ));
            }
        }
        // Words of a skip that go to nobody.
        for words in ["\"ABSENT", "\"absent: ", "NOT TESTED", "NOT RUN", "skipped: ", "absent here"]
        {
            let said = text.lines().filter(|line| line.contains("print") && line.contains(words));
            silent.extend(said.map(|line| format!("{file}: {}", line.trim())));
        }
    }
    assert!(silent.is_empty(), "say it with `not_run` (tests/src/not_run.rs): {silent:#?}");
    for helper in SAY_SO.map(|helper| helper.trim_end_matches([')', '(']).to_owned()) {
        let says = |text: &String| {
            let body = text.split(&format!("fn {helper}(")).nth(1)?.split("\n}\n").next()?;
            Some(body.contains("not_run("))
        };
        assert!(sources.iter().any(|(_, text)| says(text) == Some(true)), "{helper} says nothing");
    }
}

#[test]
fn b2_a_silent_end_is_found() {
    let silent =
        "#[test]\nfn one() {\n    if !has_redis() {\n        return;\n    }\n    looks();\n}\n";
    let said =
        silent.replace("        return;", "        not_run(\"redis\", \"why\");\n        return;");
    let ends = |text: &str| {
        tests_of(text).iter().map(|test| silent_ends("a.rs", test).len()).sum::<usize>()
    };
    assert_eq!((ends(silent), ends(&said)), (1, 0));
    assert_eq!(
        ends("#[tokio::test]\nasync fn one() {\n    let Some(x) = redis() else { return };\n}\n"),
        1
    );
}

fn summary(file: &Path, release: Option<&str>) -> Output {
    let mut command = Command::new(repository().join("scripts/not-run"));
    command.arg(file).env_remove("COFFERDAM_RELEASE");
    if let Some(release) = release {
        command.env("COFFERDAM_RELEASE", release);
    }
    command.output().unwrap()
}

#[test]
fn b2_what_was_not_run_is_printed_by_name_and_a_release_refuses_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("not-run");
    for release in [None, Some("1")] {
        let nothing = summary(&file, release);
        assert!(nothing.status.success(), "{}", String::from_utf8_lossy(&nothing.stderr));
    }
    // As a test does it, in a process of its own.
    let said = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "skips::a_part_that_no_machine_has", "--ignored", "--test-threads=2"])
        .env(cofferdam_tests::not_run::FILE, &file)
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    for (release, passes) in
        [(None, true), (Some("0"), true), (Some("1"), false), (Some("yes"), false)]
    {
        let output = summary(&file, release);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), passes, "{release:?}: {words}");
        if release != Some("yes") {
            for name in ["a_part_that_no_machine_has", "a unicorn: none was seen", "1 tests"] {
                assert!(words.contains(name), "{release:?}: {words}");
            }
        }
    }
}

#[test]
#[ignore = "a process that another test starts"]
fn a_part_that_no_machine_has() {
    cofferdam_tests::not_run::not_run("a unicorn", "none was seen");
}

/// What `scripts/test` says with a cargo that is a script: what it prints for the tests, its status, what is not run.
/// Beside it, whether it left the tree's id for `make dist`.
fn tests_of_a_cargo(said: &str, status: i32, part: bool) -> (Output, bool) {
    tests_of_a_hung_cargo(said, "", status, part)
}

/// The same, with what it does between its last words and its end.
fn tests_of_a_hung_cargo(said: &str, last: &str, status: i32, part: bool) -> (Output, bool) {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("scripts")).unwrap();
    fs::create_dir_all(tree.join("target")).unwrap();
    for script in ["test", "not-run", "tested.sh"] {
        let text = fs::read_to_string(repository().join("scripts").join(script)).unwrap();
        write_program(&tree.join("scripts").join(script), &text);
    }
    fs::write(dir.path().join("said"), said).unwrap();
    let program = |path: &Path, text: &str| write_program(path, &format!("#!/bin/sh\n{text}\n"));
    let (cargo, said) = (dir.path().join("cargo"), dir.path().join("said"));
    fs::create_dir(tree.join("tests")).unwrap();
    fs::write(tree.join("tests/slow"), "# why\na::slow a::b\n").unwrap();
    let why = "printf 'one\\tredis\\twhy\\n' >>\"$COFFERDAM_NOT_RUN\"";
    // Without that file it installs what the tests take.
    let tests = format!(
        "[ -n \"$COFFERDAM_NOT_RUN\" ] || exit 0\n{why}\necho \"$*\"\ncat {}\n{last}\nexit {status}",
        said.display()
    );
    program(&cargo, &tests);
    program(&tree.join("target/debug/leftovers"), "exit 0");
    fs::write(tree.join(".gitignore"), "/target\n").unwrap();
    let commit = "git init --quiet && git add --all && \
                  git -c user.name=t -c user.email=t@example.invalid commit --quiet --message state";
    let committed = Command::new("sh").args(["-c", commit]).current_dir(&tree).status().unwrap();
    assert!(committed.success());
    let mut test = Command::new(tree.join("scripts/test"));
    test.env("COFFERDAM_TEST_QUIET_S", "2");
    test.env("CARGO", &cargo).env_remove("CARGO_TARGET_DIR").env_remove("TEST_TIMES");
    match part {
        true => test.env("COFFERDAM_TEST_PART", "1"),
        false => test.env_remove("COFFERDAM_TEST_PART"),
    };
    let output = test.output().unwrap();
    (output, tree.join("target/tested").exists())
}

#[test]
fn b2_make_test_ends_with_what_was_not_run_and_what_failed() {
    let green =
        "test a::b ... ok\n\ntest result: ok. 3 passed; 0 failed\ntest result: ok. 4 passed;\n";
    let (output, is_tested) = tests_of_a_cargo(green, 0, false);
    assert!(is_tested);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    assert!(words.contains("redis: why") && words.ends_with("tests: 7 passed\n"), "{words}");

    let red = "failures:\n\n---- a::b stdout ----\n    said\n\nfailures:\n    a::b\n    whole\n\n\
               test result: FAILED. 1 passed; 2 failed\n";
    let (output, is_tested) = tests_of_a_cargo(red, 101, false);
    assert!(!is_tested);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}");
    let (_, end) = words.split_once("redis: why").unwrap();
    assert!(end.contains("FAILED: a::b\nFAILED: whole\n"), "{words}");

    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let test =
        makefile.split("\ntest: ").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    assert!(test.contains("scripts/test"), "{test}");
    assert!(makefile.contains("release: export COFFERDAM_RELEASE = 1"));
}

#[test]
fn a_test_that_hangs_is_named_and_the_verdict_is_heard() {
    let said = "test a::b ... ok\ntest a::c has been running for over 60 seconds\n\
                test a::d has been running for over 60 seconds\ntest a::d ... ok\n";
    // As a test's server has, what it started has its output.
    let hangs = "mkdir deps\ncp /bin/bash deps/system-0123456789abcdef\n\
                 ./deps/system-0123456789abcdef -c 'sleep 600 & setsid sleep 600 & wait' || exit 101";
    let (output, is_tested) = tests_of_a_hung_cargo(said, hangs, 0, false);
    assert!(!is_tested);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words}");
    assert!(words.contains("none ended for 2 s"), "{words}");
    assert!(words.contains("FAILED: a::c hangs\n") && !words.contains("a::d"), "{words}");
    assert!(words.contains("thread system-01234567: "), "{words}");
}

/// Tests that CI leaves out, each with the nearest that it runs.
fn slow_tests() -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join("tests/slow")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (slow, nearest) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        (slow.to_owned(), nearest.to_owned())
    };
    lines.map(pair).collect()
}

#[test]
fn ci_leaves_out_the_slow_tests_alone_and_says_so() {
    let slow = slow_tests();
    assert!(slow.len() <= MOST_SLOW && slow.is_sorted(), "{} are left out", slow.len());
    let sources = sources();
    let exists = |test: &str| {
        let (module, name) = test.rsplit_once("::").unwrap_or_else(|| panic!("{test}"));
        let module = module.replace("::", "/");
        let name = format!("fn {name}(");
        sources.iter().any(|(file, text)| {
            let file = file.trim_end_matches(".rs").trim_end_matches("/mod");
            let place = file.rsplit("tests/").next();
            place == Some(&module) && tests_of(text).iter().any(|test| test.contains(&name))
        })
    };
    for (test, nearest) in &slow {
        assert!(exists(test), "{test} is no test");
        assert!(exists(nearest), "{nearest} is no test");
        assert!(slow.iter().all(|(other, _)| other != nearest), "CI does not run {nearest}");
    }
    let (output, is_tested) = tests_of_a_cargo("test result: ok. 3 passed\n", 0, true);
    let (said, words) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(
        output.status.success() && said.contains("-- --exact --skip a::slow\n"),
        "{said}{words}"
    );
    assert!(words.contains("the slow tests: COFFERDAM_TEST_PART=1\n    a::slow\n"), "{words}");
    assert!(!is_tested, "a part of the tests is not all of them");
    let ci = fs::read_to_string(repository().join(".ci/run")).unwrap();
    assert!(ci.contains("\nexport COFFERDAM_TEST_PART=1\n"));
}
