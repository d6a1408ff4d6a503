//! The house rules that a compiler does not hold: which crate may import which, who knows the
//! database, how long a file may be, and what is never said.

mod api_side;
mod arrows;
mod children;
mod circles;
mod class_names;
mod classified;
mod floors;
mod lengths;
mod messages;
mod nouns;
mod signatures;
pub(crate) mod source;
mod system_calls;
mod tenant_paths;
mod tenant_text;
mod test_lines;
mod word_forms;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_ambient::env;
use serde_json::Value;

/// Arrows of normal dependencies between our crates, without the `cofferdam-` in front.
const ARROWS: &[(&str, &[&str])] = &[
    ("ambient", &[]),
    ("contracts", &[]),
    ("guest", &[]),
    ("hostile", &[]),
    ("ledger", &["ambient", "contracts"]),
    ("opencode", &["contracts"]),
    ("probe", &["guest"]),
    ("sandbox", &["ambient", "contracts", "guest"]),
    ("store", &["ambient", "contracts"]),
    ("flows", &["ambient", "contracts", "ledger", "sandbox", "store"]),
    ("planner", &["ambient", "contracts", "flows", "ledger", "opencode", "sandbox"]),
    ("live", &["ambient", "contracts", "flows", "ledger", "sandbox"]),
    ("http", &["ambient", "contracts"]),
    ("e2b", &["ambient", "contracts", "flows", "http", "ledger", "live"]),
    ("server", &["ambient", "contracts", "flows", "http", "ledger", "live"]),
    (
        "cli",
        &[
            "ambient",
            "contracts",
            "e2b",
            "flows",
            "guest",
            "http",
            "ledger",
            "live",
            "planner",
            "sandbox",
            "server",
        ],
    ),
];

/// Crates of others that belong to few of ours.
const OWNERS: &[(&str, &[&str])] = &[
    ("sqlx", &["ledger"]),
    ("dbos", &["flows", "ledger"]),
    ("object_store", &["store"]),
    ("axum", &["e2b", "http", "server"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("serde-saphyr", &["contracts"]),
    ("jsonschema", &["contracts"]),
    ("serde_json_canonicalizer", &["contracts"]),
    ("quick-xml", &["contracts"]),
    ("croner", &["contracts"]),
    ("jiff", &["contracts"]),
    ("rand_chacha", &["ambient"]),
    ("getrandom", &["ambient"]),
    ("rusqlite", &["cli"]),
    ("indicatif", &["cli"]),
    ("unicode-width", &["cli"]),
    ("landlock", &["guest"]),
    ("io-uring", &["probe"]),
    ("linux-keyutils", &["probe"]),
    ("bollard", &["sandbox"]),
    ("bolero", &["hostile"]),
];

/// Tests that `make test` does not run by themselves: (file, how many, why).
const IGNORED: &[(&str, usize, &str)] = &[
    ("crates/ledger/tests/cluster.rs", 2, "processes that the other tests start and kill"),
    ("crates/sandbox/tests/cache_store.rs", 1, "a process that another test starts and kills"),
    (
        "crates/sandbox/tests/conformance.rs",
        1,
        "a list that a system test holds against a server of its own",
    ),
    (
        "crates/sandbox/tests/docker.rs",
        2,
        "processes that the other tests start, with engines of their own",
    ),
    ("crates/sandbox/tests/commands.rs", 1, "the worker of a test, in its parent's mounts"),
    ("crates/sandbox/tests/flood.rs", 1, "the worker of a test, whose memory is looked at"),
    ("crates/sandbox/tests/orphans.rs", 1, "a process that the other tests start and kill"),
    ("crates/sandbox/tests/large_layers.rs", 1, "a process that the other tests start and kill"),
    ("tests/tests/ahead.rs", 1, "installs what others take: scripts/test runs it beside them"),
    ("tests/tests/agents.rs", 2, "one agent in gVisor is enough there: `make contract` runs them"),
    ("tests/tests/e2b/classes.rs", 2, "a minute each: `make clients` runs them"),
    ("tests/tests/e2b/interpreter.rs", 2, "a minute each: `make clients` runs them"),
    ("tests/tests/e2b/mod.rs", 1, "JavaScript's client speaks it, too: `make clients` runs it"),
    ("tests/tests/chaos.rs", 1, "kills at random for minutes: `make chaos` runs it"),
    ("tests/tests/own_names.rs", 1, "190 MB by npm: `make contract` runs it"),
    ("tests/tests/planner.rs", 4, "a minute each of the real daemon: `make contract` runs them"),
    ("tests/tests/planner/golden.rs", 1, "a minute: `make contract` runs it"),
    ("tests/tests/planner/put_back.rs", 1, "a minute: `make contract` runs it"),
    ("tests/tests/skips.rs", 1, "a process that another test starts"),
    ("tests/tests/soak.rs", 1, "the same load for an hour: `make soak` runs it"),
    ("tests/tests/storm/graph.rs", 1, "minutes: `make storm` runs it"),
    ("tests/tests/storm/mod.rs", 1, "faults for minutes: `make storm` runs it"),
];

/// Rooms that end up holding everything.
const NO_ROOMS: [&str; 4] = ["utils", "common", "helpers", "types"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Our packages by short name, each with its dependencies of one kind.
fn packages(kind: Option<&str>) -> BTreeMap<String, BTreeSet<String>> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let short = |name: &Value| name.as_str().unwrap().trim_start_matches("cofferdam-").to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let names = dependencies
                .filter(|dependency| dependency["kind"].as_str() == kind)
                .map(|dependency| short(&dependency["name"]))
                .collect();
            (short(&package["name"]), names)
        })
        .collect()
}

/// Every Rust file below these directories of the repository, by its path from there.
fn sources(dirs: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for dir in dirs {
        walk(&root().join(dir), &mut found);
    }
    found.sort();
    assert!(!found.is_empty());
    found
}

fn walk(dir: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            found.push((name, fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn crates_import_only_along_the_arrows() {
    let packages = packages(None);
    let ours: BTreeSet<&str> = packages.keys().map(String::as_str).collect();
    let drawn: BTreeSet<&str> = ARROWS.iter().map(|(name, _)| *name).chain(["tests"]).collect();
    assert_eq!(ours, drawn, "every crate has its arrows in this test, and its paragraph");
    for (name, may) in ARROWS {
        let wrong: Vec<&String> = packages[*name]
            .iter()
            .filter(|other| ours.contains(other.as_str()) && !may.contains(&other.as_str()))
            .collect();
        assert!(wrong.is_empty(), "{name} must not import {wrong:?}");
    }
}

#[test]
fn a_library_of_others_has_its_owner() {
    for (name, dependencies) in packages(None) {
        // The test crate looks at the database from outside, as an auditor would.
        if name == "tests" {
            continue;
        }
        for (library, owners) in OWNERS {
            let known = owners.contains(&name.as_str());
            assert!(known || !dependencies.contains(*library), "{name} must not use {library}");
        }
    }
}

/// The sandbox never sees the ledger, and the guest nothing of the host: not even in their tests.
#[test]
fn no_back_door_leads_from_the_sandbox_to_the_ledger() {
    for kind in [None, Some("dev"), Some("build")] {
        let packages = packages(kind);
        for name in ["ambient", "contracts", "guest", "probe", "sandbox"] {
            for never in "ledger flows e2b http live planner server cli sqlx dbos".split(' ') {
                assert!(!packages[name].contains(never), "{name} must not use {never}");
            }
        }
    }
}

#[test]
fn architecture_md_has_a_paragraph_for_every_crate() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in ARROWS.iter().map(|(name, _)| *name).chain(["tests"]) {
        assert!(text.contains(&format!("\n**`{name}`**")), "no paragraph begins with `{name}`");
    }
}

/// Pages whose promises name a test, each with the fewest tests that it names.
const PROMISES: &[(&str, usize)] = &[
    ("SPECIFICATION.md", 40),
    ("docs/reference/promises.md", 150),
    ("docs/reference/bounds.md", 40),
    ("docs/reference/conformance.md", 5),
    ("docs/sandbox.md", 0),
    ("docs/contract.md", 20),
];

/// Whether a source file is called so, or lies in a directory that is.
fn is_in(path: &str, name: &str) -> bool {
    path.split('/').any(|part| part.trim_end_matches(".rs") == name)
}

/// The tests that a page names as `file::function` or `directory::function`, and its constants; each must exist.
/// A promise whose test was renamed away is no longer held.
fn tests_named_in(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let sources = sources(&["crates", "tests"]);
    let mut tests = Vec::new();
    for name in text.split('`').skip(1).step_by(2) {
        if let Some(file) = name.strip_suffix(".rs") {
            let last = file.rsplit('/').next().unwrap();
            let found = sources.iter().any(|(path, _)| is_in(path, last));
            assert!(found, "{page}: {name}: no such file");
            continue;
        }
        let Some((place, last)) = name.rsplit_once("::") else { continue };
        assert!(!place.ends_with(".rs"), "{page}: {name}: a test is named file::function");
        let is_name = |text: &str| {
            text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !text.is_empty()
        };
        if last.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
            let defined = |(_, code): &(String, String)| code.contains(&format!("const {last}: "));
            assert!(sources.iter().any(defined), "{page}: {name}: no such constant");
        } else if is_name(place) && is_name(last) {
            let function = format!("fn {last}(");
            let test =
                sources.iter().any(|(path, code)| is_in(path, place) && code.contains(&function));
            let module = sources.iter().any(|(path, _)| is_in(path, last));
            assert!(test || module, "{page}: {name}: no such test");
            if test {
                tests.push(last.to_owned());
            }
        }
    }
    tests
}

#[test]
fn promises_name_tests_and_constants_that_exist() {
    for (page, fewest) in PROMISES {
        let tests = tests_named_in(page);
        assert!(tests.len() >= *fewest, "{page} names only {} tests", tests.len());
    }
}

/// Findings of the attack that `docs/security.md` lists.
const FINDINGS: usize = 29;
/// Tests that a row of it names; it counts the others.
const NAMED: usize = 3;

/// The number that a test's name begins with, such as `h10`; `None` where it begins otherwise.
fn finding_of(test: &str) -> Option<&str> {
    let (number, _) = test.split_once('_')?;
    let digits = number.strip_prefix(['c', 'h', 'm', 'l', 'i'])?;
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
}

/// Every test by its finding, those of the whole product first.
fn tests_of_findings() -> BTreeMap<String, Vec<String>> {
    let mut tests: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (path, text) in sources(&["tests", "crates"]) {
        let names = text.lines().filter_map(|line| {
            let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ")?;
            name.split_once('(').map(|(name, _)| name)
        });
        for name in names {
            if let Some(finding) = finding_of(name) {
                tests.entry(finding.to_owned()).or_default().push((path.clone(), name.to_owned()));
            }
        }
    }
    let named = |mut names: Vec<(String, String)>| {
        names.sort_by_key(|(path, _)| !path.starts_with("tests/"));
        names.iter().map(|(path, name)| format!("{}::{name}", place_of(path))).collect()
    };
    tests.into_iter().map(|(finding, names)| (finding, named(names))).collect()
}

/// The file or directory by which a page names the tests in it: `gates` of `gates.rs`, `shell` of `shell/tests.rs`.
fn place_of(path: &str) -> &str {
    const UNTOLD: [&str; 4] = ["tests", "main", "mod", "lib"];
    let mut parts = path.trim_end_matches(".rs").rsplit('/');
    parts.find(|part| !UNTOLD.contains(part)).unwrap_or(path)
}

/// `UPDATE_GOLDENS=1` writes the last column of the table anew.
#[test]
fn security_md_names_the_tests_of_every_finding() {
    let page = root().join("docs/security.md");
    let text = fs::read_to_string(&page).unwrap();
    let tests = tests_of_findings();
    let (mut wanted, mut rows) = (String::new(), 0);
    for line in text.lines() {
        let cells: Vec<&str> = line.split(" | ").collect();
        let number = cells[0].trim_start_matches("| ").to_ascii_lowercase();
        match (cells.as_slice(), finding_of(&format!("{number}_"))) {
            ([first, what, mending, _], Some(_)) => {
                rows += 1;
                let names = tests.get(&number).unwrap_or_else(|| panic!("{number} has no test"));
                let shown: Vec<String> =
                    names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
                let more = match names.len().saturating_sub(NAMED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let row = format!("{first} | {what} | {mending} | {}{more} |", shown.join(", "));
                wanted.push_str(&row);
            }
            _ => wanted.push_str(line),
        }
        wanted.push('\n');
    }
    assert_eq!(rows, FINDINGS, "a finding has one row");
    if env::var("UPDATE_GOLDENS").is_some() {
        fs::write(&page, &wanted).unwrap();
    } else {
        assert!(text == wanted, "docs/security.md: UPDATE_GOLDENS=1 writes the tests anew");
    }
}

#[test]
fn security_md_promises_what_a_test_holds() {
    let tests = tests_named_in("docs/security.md");
    assert!(tests.len() >= FINDINGS, "only {} tests are named", tests.len());
}

/// `make test` does not ask rustdoc for tests: what it would run is a test of its crate, or marked as text.
#[test]
fn documentation_has_no_block_that_is_a_test() {
    const TEXT: [&str; 2] = ["text", "yaml"];
    for (name, text) in sources(&["crates", "tests/src"]) {
        let mut is_open = false;
        for line in text.lines().map(str::trim_start) {
            let said = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
            let Some(fence) = said.and_then(|said| said.trim_start().strip_prefix("```")) else {
                continue;
            };
            is_open = !is_open;
            assert!(!is_open || TEXT.contains(&fence.trim()), "{name}: a block of `{fence}`");
        }
        assert!(!is_open, "{name}: a block without its end");
    }
}

#[test]
fn no_module_is_a_lumber_room() {
    for (name, _) in sources(&["crates"]) {
        let parts = name.split(['/', '.']);
        let room = parts.into_iter().find(|part| NO_ROOMS.contains(part));
        assert_eq!(room, None, "{name}: a thing lives with the noun it belongs to");
    }
}

/// Every binary is linked anew with all that it uses, and loses what others already waited for.
#[test]
fn a_crate_has_one_integration_test_binary() {
    for (manifest, _) in packages(None) {
        let dir = match manifest.as_str() {
            "tests" => root().join("tests/tests"),
            name => root().join("crates").join(name).join("tests"),
        };
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        let files: Vec<String> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".rs"))
            .collect();
        let Ok(main) = fs::read_to_string(dir.join("main.rs")) else {
            assert!(
                files.len() <= 1,
                "{manifest}: {files:?} are a binary each; join them in tests/main.rs"
            );
            continue;
        };
        for file in files.iter().filter(|file| *file != "main.rs") {
            let module = format!("mod {};", file.trim_end_matches(".rs"));
            assert!(
                main.lines().any(|line| line == module),
                "{manifest}: {file} is not run: tests/main.rs lacks it"
            );
        }
    }
}

#[test]
fn no_test_is_ignored_without_a_reason() {
    for (name, text) in sources(&["crates", "tests"]) {
        let ignores = text.lines().filter(|line| line.trim_start().starts_with("#[ignore")).count();
        let listed =
            IGNORED.iter().find(|(file, ..)| *file == name).map_or(0, |(_, count, _)| *count);
        assert!(
            ignores <= listed,
            "{name} ignores {ignores} tests, {listed} are listed with a reason"
        );
    }
}

/// The determinism law has one home: these calls are refused everywhere but in `ambient`.
#[test]
fn clippy_still_holds_the_determinism_law() {
    let text = fs::read_to_string(root().join("clippy.toml")).unwrap();
    for method in [
        "std::time::SystemTime::now",
        "std::time::Instant::now",
        "std::env::var",
        "std::env::var_os",
        "std::env::vars",
        "std::thread::sleep",
        "tokio::time::sleep",
        "tokio::time::Instant::now",
    ] {
        assert!(text.contains(&format!("path = \"{method}\"")), "clippy.toml allows {method}");
    }
    for (name, dependencies) in packages(None) {
        let wild = dependencies
            .iter()
            .find(|d| ["rand", "chrono", "time", "fastrand"].contains(&d.as_str()));
        assert_eq!(wild, None, "{name} has a clock or randomness of its own");
    }
}

/// Lints are denied for the whole workspace; a crate that does not inherit them escapes them.
#[test]
fn every_crate_inherits_the_workspace_lints() {
    let manifests = fs::read_dir(root().join("crates")).unwrap();
    let manifests = manifests.map(|entry| entry.unwrap().path().join("Cargo.toml"));
    for manifest in manifests.chain([root().join("tests/Cargo.toml")]) {
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.contains("[lints]\nworkspace = true"), "{}", manifest.display());
    }
}
