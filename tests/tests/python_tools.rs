//! Tools of Python that people bring along, by the numbers of their cases: they run in a task as they do outside.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, repository};
use tempfile::TempDir;

use crate::support::{ended, install, said};

const LIMIT: Duration = Duration::from_secs(300);
const NOTEBOOK: &str = r#"
import json, os, sys
import nbformat
from nbclient import NotebookClient
place = "/root/.local/share/jupyter/kernels/k"
os.makedirs(place)
words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
json.dump({"argv": words, "display_name": "k", "language": "python"}, open(place + "/kernel.json", "w"))
cells = [
    "x = 6 * 7; print(x)",
    "import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as p, os; p.plot([1, 2]); p.savefig('/tmp/a.png'); "
    "print(open('/tmp/a.png', 'rb').read(4))",
    "!echo from shell",
]
notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
NotebookClient(notebook, kernel_name="k", timeout=200).execute()
print(*["".join(one.get("text", "") for one in cell.outputs) for cell in notebook.cells], sep="")
"#;
const WORKERS: &str = r#"
import subprocess
import pytest

@pytest.mark.parametrize("n", range(40))
def test_tmp(tmp_path, n, capfd):
    (tmp_path / "f").write_text("x")
    assert oct(tmp_path.stat().st_mode)[-3:] == "700"
    print("x")
    assert capfd.readouterr().out == "x\n"
    assert subprocess.run(["true"]).returncode == 0
"#;

/// A directory with these packages, installed once.
fn tools(name: &str, packages: &[&str]) -> Result<PathBuf, String> {
    let dir = repository().join("target/python-tools").join(name);
    let lib = dir.join("lib");
    install::once(&dir, &packages.join(" "), &lib, || {
        let _ = fs::remove_dir_all(&lib);
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        pip.arg(&lib).args(packages);
        install::run(pip)
    })?;
    Ok(lib)
}

/// What a command says in a task whose project has this file and, in `lib`, these packages.
fn run(home: &Home, lib: PathBuf, (name, text): (&str, &str), command: &[&str]) -> String {
    let project = TempDir::new().unwrap();
    fs::write(project.path().join(name), text).unwrap();
    let copied = Command::new("cp").arg("-a").arg(lib).arg(project.path().join("lib")).status();
    assert!(copied.unwrap().success());
    let mut words = vec!["exec", "--no-stdin", "--mem", "1500", "--timeout", "250s", "--work"];
    words.extend([project.path().to_str().unwrap(), "--", "env", "PYTHONPATH=/work/lib"]);
    words.extend(command);
    let output = ended(home.command(&words), LIMIT);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn r48_a_notebook_runs_with_its_kernel_plot_and_shell() {
    let lib = match tools("notebook", &["nbclient", "ipykernel", "nbformat", "matplotlib"]) {
        Ok(lib) => lib,
        Err(why) => return not_run("a notebook in a task", &why),
    };
    let printed = run(&Home::new(), lib, ("t.py", NOTEBOOK), &["python3", "/work/t.py"]);
    for wanted in ["42\n", "b'\\x89PNG'\n", "from shell"] {
        assert!(printed.contains(wanted), "{printed}");
    }
}

#[test]
fn r76_tests_run_by_several_workers_at_once() {
    let lib = match tools("workers", &["pytest", "pytest-xdist"]) {
        Ok(lib) => lib,
        Err(why) => return not_run("tests by several workers in a task", &why),
    };
    let command =
        ["python3", "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "/work/test_x.py"];
    let printed = run(&Home::new(), lib, ("test_x.py", WORKERS), &command);
    assert!(printed.contains("40 passed"), "{printed}");
}
