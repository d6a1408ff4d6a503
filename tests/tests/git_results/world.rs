//! Repositories of a test, runs on them, and what `apply` makes of those.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use cofferdam_tests::{Home, Server, text};
use serde_json::{Value, json};

pub use crate::support::git::{git, git_in};

/// Files of the base commit.
const BASE: &[(&str, &str)] = &[
    ("README", "one\ntwo\nthree\n"),
    ("src/main.txt", "a\nb\nc\nd\ne\nf\ng\nh\n"),
    ("gone.txt", "to be removed\n"),
    ("old-name.txt", "the same text under another name\n"),
    ("run.sh", "#!/bin/sh\necho run\n"),
    ("dos.txt", "line one\r\nline two\r\n"),
    ("not-ended", "no newline"),
    (".gitignore", "target/\n*.log\n"),
];

pub fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

pub struct World {
    /// Stopped before its home is looked at.
    pub up: Server,
    pub home: Home,
    dir: tempfile::TempDir,
    pub base: String,
}

impl World {
    pub fn new() -> Self {
        let (home, dir) = (Home::new(), tempfile::tempdir().unwrap());
        let up = home.up();
        let repo = dir.path().join("repo");
        fs::create_dir_all(repo.join("src")).unwrap();
        git(&repo, &["init", "-q", "-b", "main"]);
        for (name, content) in BASE {
            fs::write(repo.join(name), content).unwrap();
        }
        fs::write(repo.join("image.bin"), (0..=255).collect::<Vec<u8>>()).unwrap();
        git(&repo, &["-c", "core.safecrlf=false", "add", "-A"]);
        git(&repo, &["commit", "-q", "-m", "base"]);
        let base = git(&repo, &["rev-parse", "HEAD"]);
        Self { up, home, dir, base }
    }

    /// The repository that tasks read and `apply` writes to.
    pub fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    /// A place for other files of the test.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A clone of the repository.
    pub fn clone_as(&self, name: &str) -> PathBuf {
        let to = self.beside(name);
        let source = self.repo();
        git(self.dir.path(), &["clone", "-q", source.to_str().unwrap(), to.to_str().unwrap()]);
        to
    }

    pub fn recipe(&self, script: &str) -> String {
        recipe(json!({"path": self.repo(), "commit": self.base}), script)
    }

    /// The run of a task that executes this script at the base commit.
    pub async fn run(&self, script: &str) -> Value {
        let run = self.up.run_recipe(&self.recipe(script), json!({}), json!({})).await;
        self.up.wait_terminal(&text(&run, "runId")).await
    }

    /// The id of a run of it that succeeded.
    pub async fn done(&self, script: &str) -> String {
        let header = self.run(script).await;
        let run = text(&header, "runId");
        if header["status"] != "succeeded" {
            let logs = said(&self.home.run(&["show", &run, "--steps"]));
            panic!("{header}\n{logs}\n{}", said(&self.home.run(&["logs", &run])));
        }
        run
    }

    /// `apply RUN --repo ..` with more flags.
    pub fn apply(&self, run: &str, flags: &[&str]) -> Output {
        self.apply_to(&self.repo(), run, flags)
    }

    pub fn apply_to(&self, repo: &Path, run: &str, flags: &[&str]) -> Output {
        let mut args = vec!["apply", run, "--repo", repo.to_str().unwrap()];
        args.extend(flags);
        self.home.run(&args)
    }

    /// The same, approved and well; its commit.
    pub fn applied(&self, run: &str, branch: &str) -> String {
        let done = self.apply(run, &["--yes", "--json", "--branch", branch]);
        assert!(done.status.success(), "{}", said(&done));
        let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
        text(&answer, "commit")
    }

    /// Where the branch is; `None` where there is none.
    pub fn branch(&self, name: &str) -> Option<String> {
        let asked = git_in(&self.repo(), &["rev-parse", "-q", "--verify", name], b"");
        asked.status.success().then(|| String::from_utf8(asked.stdout).unwrap().trim().to_owned())
    }

    /// All references, the index, the working tree and what is checked out, in words.
    pub fn state(&self) -> String {
        let repo = self.repo();
        let ask = |args: &[&str]| git(&repo, args);
        [
            ask(&["for-each-ref"]),
            ask(&["status", "--porcelain", "--ignored"]),
            ask(&["ls-files", "-s"]),
            fs::read_to_string(repo.join(".git/HEAD")).unwrap(),
        ]
        .join("\n--\n")
    }
}

pub fn recipe(repo: Value, script: &str) -> String {
    json!({
        "id": "work", "v": "1",
        "plan": {"tasks": [{
            "name": "work", "repo": repo,
            "exec": {"run": script, "timeout": "60s"},
            "limits": {"mem_mb": 256, "disk_mb": 96},
        }]},
    })
    .to_string()
}
