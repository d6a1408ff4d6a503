//! The clients' packages, each version in a directory of its own, installed once.

use std::path::PathBuf;
use std::process::Command;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::repository;

use super::{JAVASCRIPT, PYTHON, cli, interpreter};
use crate::support::has_npm;
use crate::support::install::{self, npm};

/// A version of the Python client in an environment of its own, installed once; `None` where that is not possible, which is
/// reported.
pub(super) fn installed(version: &str) -> Option<PathBuf> {
    install_python(&format!("e2b=={version}"))
}

/// Installs what the tests of the clients take.
pub fn install_clients() {
    PYTHON.iter().for_each(|version| drop(installed(version)));
    if has_npm("the JavaScript client of E2B") {
        JAVASCRIPT.iter().for_each(|version| drop(modules(version)));
        drop(install_modules(cli::PACKAGE));
    }
}

/// Installs what the tests of the code interpreter take.
pub fn install_interpreter() {
    drop(interpreter::built());
    drop(install_python(interpreter::PYTHON));
    if has_npm("the JavaScript client of the code interpreter") {
        drop(install_modules(interpreter::JAVASCRIPT));
    }
}

/// A package of PyPI, `NAME==VERSION`, in an environment of its own; `None` where that is not possible, which is reported.
pub(super) fn install_python(wanted: &str) -> Option<PathBuf> {
    let dir = repository().join("target/e2b").join(place("python", wanted, "=="));
    let python = dir.join("env/bin/python");
    let made = install::once(&dir, wanted, &python, || {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv", "--clear"]).arg(dir.join("env"));
        install::run(venv)?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted]);
        install::run(pip)
    });
    if let Err(why) = made {
        not_run("the Python client of E2B", &why);
        return None;
    }
    Some(python)
}

/// Where a package is installed: `python-2.63.0` for the client itself, with its name for another.
pub(super) fn place(language: &str, wanted: &str, mark: &str) -> String {
    let (name, version) = wanted.rsplit_once(mark).unwrap_or((wanted, ""));
    match name {
        "e2b" => format!("{language}-{version}"),
        name => format!("{language}-{}-{version}", name.replace(['@', '/'], "")),
    }
}

/// The directory with a version of the JavaScript client, installed once.
pub(super) fn modules(version: &str) -> Option<PathBuf> {
    install_modules(&format!("e2b@{version}"))
}

/// The directory with a package of npm, `NAME@VERSION`, installed once.
pub(super) fn install_modules(wanted: &str) -> Option<PathBuf> {
    let dir = repository().join("target/e2b").join(place("javascript", wanted, "@"));
    if let Err(why) = install::once(&dir, wanted, &dir.join("node_modules"), || {
        install::run(npm(&dir, &[wanted]))
    }) {
        not_run("the JavaScript client of E2B", &why);
        return None;
    }
    Some(dir)
}
