//! The recipes of `examples/projects`, one for each language that needs no image: a real project, fetched, tested, counted; and again from
//! the cached base. Go's need a root of Debian, which takes minutes: `docs/projects.md` says how they are run.

use std::process::Command;
use std::time::Duration;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::install::run_within;
use crate::support::{assert_proven, code, said};

/// A registry that says nothing for so long says nothing.
const SOON: Duration = Duration::from_secs(60);

/// Whether this host's own client gets a package, without which a sandbox would not either.
fn reaches(program: &str, args: &[&str]) -> Result<(), String> {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new(program);
    command.args(args).current_dir(dir.path());
    run_within(command, SOON)
}

/// Runs a recipe twice: the first fills a base, the second starts with it, and both count these tests.
fn tested(name: &str, inputs: &[&str], passed: u64) {
    let home = Home::new();
    let up = home.up();
    let path = format!("examples/projects/{name}.yaml");
    let args = [&["run", &path, "--json"], inputs].concat();
    for outcome in ["kept", "hit"] {
        let output = home.run(&args);
        assert_eq!(code(&output), 0, "{name}: {}", said(&output));
        let run: Value = serde_json::from_slice(&output.stdout).unwrap();
        let totals = &run["reports"]["total"]["totals"];
        assert_eq!(totals["failed"], 0, "{run}");
        assert!(totals["cases"].as_u64().unwrap() >= passed, "{run}");
        let steps = run["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["name"] == "tests").unwrap();
        assert_eq!(step["output"]["cache"]["outcome"], outcome, "{step}");
    }
    drop(up);
    assert_proven(&home);
}

#[test]
fn a_python_project_is_fetched_once_and_tested_without_network() {
    let args = ["-m", "pip", "download", "--quiet", "--no-deps", "iniconfig"];
    if let Err(why) = reaches("python3", &args) {
        return not_run("pip's index", &why);
    }
    tested("msgpack", &[], 160);
}

#[test]
fn a_node_project_is_fetched_once_and_tested_without_network() {
    if let Err(why) = reaches("npm", &["view", "qs", "version"]) {
        return not_run("npm's registry", &why);
    }
    tested("qs", &[], 1_690);
}

#[test]
fn a_rust_project_is_fetched_and_compiled_once_and_tested_without_network() {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output();
    let Ok(rustc) = rustc else { return not_run("rustc", "it is not installed") };
    if let Err(why) = reaches("cargo", &["info", "--quiet", "semver"]) {
        return not_run("cargo's registry", &why);
    }
    let sysroot = String::from_utf8(rustc.stdout).unwrap();
    let input = format!("rust={}", sysroot.trim());
    tested("semver", &["-i", &input], 38);
}
