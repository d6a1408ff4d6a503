//! The house rules that a compiler does not hold: which crate may import which, who knows the
//! database, how long a file may be, and what is never said.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a helper of tests fails its test"
)]

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
    ("ledger", &["ambient", "contracts"]),
    ("sandbox", &["ambient", "contracts", "guest"]),
    ("flows", &["ambient", "contracts", "ledger", "sandbox"]),
    ("server", &["ambient", "contracts", "flows", "ledger"]),
    ("cli", &["ambient", "contracts", "flows", "guest", "ledger", "sandbox", "server"]),
];

/// Crates of others that belong to few of ours.
const OWNERS: &[(&str, &[&str])] = &[
    ("sqlx", &["ledger"]),
    ("dbos", &["flows", "ledger"]),
    ("axum", &["server"]),
    ("clap", &["cli"]),
    ("anyhow", &["cli"]),
    ("serde-saphyr", &["contracts"]),
    ("jsonschema", &["contracts"]),
    ("serde_json_canonicalizer", &["contracts"]),
    ("rand_chacha", &["ambient"]),
    ("getrandom", &["ambient"]),
    ("rusqlite", &["cli"]),
    ("landlock", &["guest"]),
    ("bollard", &["sandbox"]),
];

/// Tests that `make test` does not run by themselves: (file, how many, why).
const IGNORED: &[(&str, usize, &str)] = &[
    ("crates/ledger/tests/cluster.rs", 1, "a process that the other tests start and kill"),
    ("crates/sandbox/tests/cache_store.rs", 1, "a process that another test starts and kills"),
    (
        "crates/sandbox/tests/docker.rs",
        2,
        "processes that the other tests start, with engines of their own",
    ),
    ("crates/sandbox/tests/orphans.rs", 1, "a process that the other tests start and kill"),
    ("crates/sandbox/tests/large_layers.rs", 1, "a process that the other tests start and kill"),
    ("tests/tests/chaos.rs", 1, "kills at random for minutes: `make chaos` runs it"),
];

/// Lines of a source file; beyond it a module is two modules.
const MAX_LINES: usize = 600;
const MAX_MAIN_LINES: usize = 15;
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
        for name in ["ambient", "contracts", "guest", "sandbox"] {
            for never in ["ledger", "flows", "server", "cli", "sqlx", "dbos"] {
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

/// A promise whose test was renamed away is no promise.
#[test]
fn specification_md_names_tests_and_constants_that_exist() {
    let text = fs::read_to_string(root().join("SPECIFICATION.md")).unwrap();
    let sources = sources(&["crates", "tests"]);
    let mut tests = 0;
    for name in text.split('`').skip(1).step_by(2) {
        if let Some((file, test)) = name.split_once(".rs::") {
            let wanted = format!("{file}.rs");
            let found = sources.iter().find(|(path, _)| {
                *path == wanted || path.strip_prefix("crates/") == Some(wanted.as_str())
            });
            let (_, code) = found.unwrap_or_else(|| panic!("{name}: no such file"));
            assert!(code.contains(&format!("fn {test}(")), "{name}: no such test");
            tests += 1;
        } else if let Some((_, last)) = name.rsplit_once("::") {
            let constant = last.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            let defined = |(_, code): &(String, String)| code.contains(&format!("const {last}: "));
            assert!(!constant || sources.iter().any(defined), "{name}: no such constant");
        }
    }
    assert!(tests > 20, "only {tests} tests are named");
}

#[test]
fn a_main_is_a_door_and_not_a_room() {
    for (name, text) in sources(&["crates"]) {
        let lines = text.lines().count();
        if name.ends_with("src/main.rs") {
            assert!(lines <= MAX_MAIN_LINES, "{name} has {lines} lines");
        }
    }
}

#[test]
fn no_file_is_longer_than_a_reader_follows() {
    for (name, text) in sources(&["crates", "tests"]) {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines");
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
