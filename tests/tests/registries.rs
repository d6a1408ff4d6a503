//! Package managers and the real registries, by the numbers of their reports: what they do outside they do in a sandbox with `@pip` or
//! `@npm` alone.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use tempfile::TempDir;

use crate::support::{ended, said};

const LIMIT: Duration = Duration::from_secs(300);

const UNREACHED: &str = "this host's client reaches no registry";

/// Whether this host's own client reaches its registry.
fn is_reached(program: &str, args: &[&str]) -> bool {
    let asked = Command::new(program).args(args).stdin(Stdio::null()).output();
    asked.is_ok_and(|output| output.status.success())
}

fn has_pip() -> bool {
    let dir = TempDir::new().unwrap();
    let to = dir.path().to_str().unwrap();
    let args = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", to, "iniconfig==2.0.0"];
    is_reached("python3", &args)
}

fn exec(project: &Path, mirror: &str, script: &str) -> Output {
    let home = Home::new();
    let mut words = vec!["exec", "--no-stdin", "--egress", mirror, "--mem", "1500", "--timeout"];
    words.extend(["250s", "--work", project.to_str().unwrap(), "--", "bash", "-ec", script]);
    ended(home.command(&words), LIMIT)
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", said(output));
    crate::reports_world::lines(output)
}

#[test]
fn r45_pip_builds_from_source_and_holds_to_hashes_and_constraints() {
    if !has_pip() {
        return not_run("packages by pip in a task", UNREACHED);
    }
    let script = r#"
cd /tmp; python3 -m venv v; . v/bin/activate
pip install -q --no-binary iniconfig iniconfig==2.0.0; python -c 'import iniconfig; print("source")'
pip download -q --no-deps -d d pluggy==1.5.0; sum=$(pip hash d/*.whl | grep -o 'sha256:.*')
echo "pluggy==1.5.0 --hash=$sum" >r.txt; pip install -q --require-hashes -r r.txt; echo hashed
echo "six==1.16.0 --hash=sha256:$(printf 0%.0s $(seq 64))" >w.txt
pip install -q --require-hashes -r w.txt 2>/dev/null || echo refused
pip install -q six -c <(echo 'six==1.16.0'); python -c 'import six; print(six.__version__)'
"#;
    let project = TempDir::new().unwrap();
    let output = exec(project.path(), "@pip", script);
    assert_eq!(lines(&output), ["source", "hashed", "refused", "1.16.0"], "{}", said(&output));
}

#[test]
fn r73_a_version_from_git_is_found_in_a_project_of_another_user() {
    if !has_pip() {
        return not_run("packages by pip in a task", UNREACHED);
    }
    let project = TempDir::new().unwrap();
    let dir = project.path();
    let toml = "[build-system]\nrequires = [\"setuptools>=61\", \"setuptools-scm>=8\"]\nbuild-backend = \"setuptools.build_meta\"\n\
        [project]\nname = \"told\"\ndynamic = [\"version\"]\n[tool.setuptools_scm]\n";
    fs::write(dir.join("pyproject.toml"), toml).unwrap();
    fs::create_dir(dir.join("told")).unwrap();
    fs::write(dir.join("told/__init__.py"), "").unwrap();
    for args in [
        &["init", "-q", "."][..],
        &["add", "-A"],
        &["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-qm", "one"],
        &["tag", "v1.2.3"],
    ] {
        assert!(Command::new("git").args(args).current_dir(dir).status().unwrap().success());
    }
    crate::reports::give(dir);
    chown(dir, Some(1_000), Some(1_000)).unwrap();
    let output = exec(
        dir,
        "@pip",
        "pip install -q --target /tmp/t . 2>/dev/null; cd /tmp/t; echo told*.dist-info",
    );
    assert_eq!(lines(&output), ["told-1.2.3.dist-info"], "{}", said(&output));
}

#[test]
fn r46_npm_installs_and_repeats_a_lock_and_runs_a_program() {
    if !is_reached("npm", &["view", "is-odd@3.0.1", "version"]) {
        return not_run("packages by npm in a task", UNREACHED);
    }
    let script = r#"
mkdir /tmp/n; cd /tmp/n; npm init -y >/dev/null
npm i -s is-odd@3.0.1; node -e 'console.log(require("is-odd")(3))'
rm -rf node_modules; npm ci -s; node -e 'console.log(require("is-odd")(2))'
npx -y semver@7.6.0 1.2.3
"#;
    let project = TempDir::new().unwrap();
    let output = exec(project.path(), "@npm", script);
    assert_eq!(lines(&output), ["true", "false", "1.2.3"], "{}", said(&output));
}
