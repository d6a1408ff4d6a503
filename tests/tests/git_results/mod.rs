//! Results as patches: a task works on a commit, what it changed is a patch, and `apply` writes that to a branch.
//!
//! One file: one repository and what may be made of it.

mod hostile;
mod record;
mod refs;
pub(crate) mod world;

use std::fs;
use std::path::Path;

use cofferdam_tests::programs::write_program;
use cofferdam_tests::{Home, text};
use serde_json::{Value, json};

use crate::secrets::forge::{Forge, VALUE, piped};
use crate::support::{assert_proven, assert_wiped};
use world::{World, git, git_in, recipe, said};

/// Every kind of change, as a shell makes it.
const EDITS: &str = r#"set -e
printf 'added\n' >added.txt
sed -i 's/two/TWO/' README
sed -i -e 's/^a$/A/' -e '/^h$/d' src/main.txt
rm gone.txt
mkdir -p deep/er && mv old-name.txt 'deep/er/new name.txt'
chmod +x run.sh
printf '\000\001\377binary\n' >image.bin
: >empty
printf 'odd\n' >"$(printf 'bytes\377\376')"
printf 'odd\n' >"$(printf 'a\ttab')"
printf 'odd\n' >"$(printf 'new\nline')"
printf 'odd\n' >'quo"te\back'
printf 'odd\n' >./-x
printf 'caf\303\251\n' >"$(printf 'caf\303\251 ')"
printf 'line one\r\nline 2\r\n' >dos.txt
printf 'mixed\r\nends\n' >mixed.txt
printf 'still no newline' >not-ended
printf '\nFrom 0123 Mon Sep 17 00:00:00 2001\nFrom: x\n---\n-- \ndiff --git a/x b/x\n' >mail.txt
mkdir target && echo built >target/out && echo noise >x.log
"#;

fn tree(repo: &Path, of: &str) -> String {
    git(repo, &["rev-parse", &format!("{of}^{{tree}}")])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_change_comes_back_as_the_tree_that_git_itself_makes() {
    let world = World::new();
    // What git makes of the edits, by hand.
    let by_hand = world.clone_as("by-hand");
    let script = world.beside("edits.sh");
    fs::write(&script, EDITS).unwrap();
    let shell = std::process::Command::new("/bin/sh").arg(&script).current_dir(&by_hand).status();
    assert!(shell.unwrap().success());
    git(&by_hand, &["-c", "core.safecrlf=false", "add", "-A"]);
    let wanted = git(&by_hand, &["write-tree"]);

    let run = world.done(EDITS).await;
    let before = world.state();
    let commit = world.applied(&run, "result");
    assert_eq!(tree(&world.repo(), "result"), wanted);
    assert_eq!(world.branch("result^"), Some(world.base.clone()));
    // Nothing but the new branch.
    git(&world.repo(), &["update-ref", "refs/keep/result", "refs/heads/result"]);
    git(&world.repo(), &["branch", "-q", "-D", "result"]);
    git(&world.repo(), &["update-ref", "-d", "refs/keep/result"]);
    assert_eq!(world.state(), before);
    assert!(!world.repo().join(".git/cofferdam-apply").exists());
    // The same patch is the same commit, and once it is there nothing is written twice.
    assert_eq!(world.applied(&run, "result"), commit);
    let again = world.apply(&run, &["--yes", "--branch", "result"]);
    assert!(
        again.status.success() && said(&again).contains("was there already"),
        "{}",
        said(&again)
    );
    git(&world.repo(), &["fsck", "--strict", "--no-dangling"]);

    // The text gives the same tree to everybody's `git am`.
    let mailed = world.clone_as("mailed");
    let patch = world.home.run(&["patch", &run]);
    assert!(patch.status.success(), "{}", said(&patch));
    let am = git_in(&mailed, &["am", "-q"], &patch.stdout);
    assert!(am.status.success(), "{}\n{}", said(&am), String::from_utf8_lossy(&patch.stdout));
    assert_eq!(tree(&mailed, "HEAD"), wanted);
    assert_eq!(git(&mailed, &["rev-list", "--count", "HEAD"]), "2");

    let index: Value =
        serde_json::from_slice(&world.home.run(&["patch", &run, "--json"]).stdout).unwrap();
    assert_eq!(index["base"], json!(world.base));
    let kinds = world.up.get(&format!("/api/runs/{run}/artifacts")).await.1;
    let patches = kinds.as_array().unwrap().iter().filter(|row| row["kind"] == "patch");
    assert_eq!(patches.count(), 3);
    assert_wiped(&world.home, &world.up.sql().await).await;
    assert_proven(&world.home);
}

/// The gate behind a build shows how each task ended and what is left out; the commit says what whoever applied said.
#[tokio::test(flavor = "multi_thread")]
async fn a2_b5_b6_an_apply_gate_shows_the_tasks_ends_the_message_and_what_is_left_out() {
    let world = World::new();
    let mut recipe: Value =
        serde_json::from_str(&world.recipe("ln -s /etc/passwd link; echo more >>README")).unwrap();
    let test = json!({"name": "unit", "exec": {"run": "exit 3", "timeout": "60s"}});
    recipe["plan"]["tasks"].as_array_mut().unwrap().push(test);
    let run = text(&world.up.run_recipe(&recipe.to_string(), json!({}), json!({})).await, "runId");
    world.up.wait_terminal(&run).await;
    let before = world.state();
    for (more, why) in [
        (&[][..], "--partial"),
        (&["--partial", "-m", ""], "--message: it is empty"),
        (&["--partial", "-m", "a\nApproved-In: rn_1"], "--message: a line begins"),
        (&["--partial", "-m", "\u{1b}[2J"], "no terminal shows"),
    ] {
        let refused = world.apply(&run, &[&["--yes", "--branch", "b"], more].concat());
        assert!(
            !refused.status.success() && said(&refused).contains(why),
            "{why}: {}",
            said(&refused)
        );
    }
    assert_eq!(world.state(), before);
    let message = "Say more\n\nThe README was short.";
    let args = ["--yes", "--branch", "b", "--partial", "-m", message, "--json"];
    let applied = world.apply(&run, &args);
    assert!(applied.status.success(), "{}", said(&applied));
    let applied: Value = serde_json::from_slice(&applied.stdout).unwrap();
    let gate = text(&applied, "approvedIn");
    let shown = said(&world.home.run(&["gate", "show", &gate]));
    for line in [
        "message:",
        "Say more",
        "The README was short.",
        "unit: failed, exit 3",
        "work: ok, exit 0",
        "not written (link): link",
        "+more",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let (repo, commit) = (world.repo(), git(&world.repo(), &["cat-file", "commit", "b"]));
    let (_, words) = commit.split_once("\n\n").unwrap();
    assert!(
        words.starts_with(&format!("{message}\n\nRun: {run}\nTask: ExecuteST:work\nPatch: ")),
        "{words}"
    );
    assert!(words.ends_with(&format!("\nApproved-In: {gate}")), "{words}");
    let paths = git(&repo, &["diff", "--name-only", &world.base, "b"]);
    assert_eq!(paths, "README");
    // Asked for with the same words, it is the same commit; the record has it once.
    let again = world.apply(&run, &args);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&again["commit"], &again["created"]), (&applied["commit"], &json!(false)));
    assert_proven(&world.home);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_is_written_only_after_a_yes_to_exactly_it() {
    let world = World::new();
    let run = world.done("printf '\\033[2Kevil\\nbranch main\\n' >'a b'; echo x >>README").await;
    let before = world.state();
    // Without a person to ask, the gate waits; somebody says no.
    let repo = world.repo();
    let args = ["apply", &run, "--repo", repo.to_str().unwrap(), "--branch", "b"];
    let mut waiting =
        world.home.command(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let gate = gate_run(&world).await;
    let shown = said(&world.home.run(&["gate", "show", &gate]));
    for line in [
        "added 100644 21 bytes",
        "changed 100644 14 bytes to 100644 16 bytes",
        "branch b",
        "+\\x1b[2Kevil",
        "base commit",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains('\u{1b}') && shown.contains(&world.base), "{shown}");
    let reply = ["gate", "reply", &gate, "approve-plan", "--choice", "no"];
    assert!(world.home.run(&reply).status.success());
    assert!(!waiting.wait().unwrap().success());
    assert_eq!(world.state(), before, "a no writes nothing");
    // Asked again, it is another gate; a yes elsewhere lets the command go on.
    let mut waiting =
        world.home.command(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let next = gate_run(&world).await;
    assert_ne!(next, gate);
    let reply = ["gate", "reply", &next, "approve-plan", "--choice", "yes"];
    assert!(world.home.run(&reply).status.success());
    assert!(waiting.wait().unwrap().success());
    assert!(world.branch("b").is_some());
    // The yes was for this branch of this repository.
    let other = world.clone_as("other");
    let mut asks =
        world.home.command(&["apply", &run, "--repo", other.to_str().unwrap(), "--branch", "b"]);
    let mut asks = asks.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let third = gate_run(&world).await;
    assert_ne!(third, next);
    let reply = ["gate", "reply", &third, "approve-plan", "--choice", "no"];
    assert!(world.home.run(&reply).status.success());
    assert!(!asks.wait().unwrap().success());
    assert_proven(&world.home);
}

/// The run whose gate is open.
pub(super) async fn gate_run(world: &World) -> String {
    let mut found = None;
    crate::support::until("a gate is open", std::time::Duration::from_secs(60), async || {
        let (_, inbox) = world.up.get("/api/hitl/inbox").await;
        found = inbox.as_array().and_then(|rows| rows.first()).map(|row| text(row, "runId"));
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_new_branch_is_written_and_a_dirty_target_stays_as_it_is() {
    let world = World::new();
    let run = world.done("echo x >>README; echo y >new").await;
    let repo = world.repo();
    fs::write(repo.join("README"), "my own edit\n").unwrap();
    fs::write(repo.join("new"), "not yet added\n").unwrap();
    fs::write(repo.join("staged"), "staged\n").unwrap();
    git(&repo, &["add", "staged"]);
    git(&repo, &["branch", "taken"]);
    git(&repo, &["symbolic-ref", "refs/heads/linked", "refs/heads/taken"]);
    git(
        &repo,
        &["worktree", "add", "-q", "-b", "elsewhere", world.beside("tree").to_str().unwrap()],
    );
    let before = world.state();
    for (branch, why) in [
        ("main", "is checked out"),
        ("elsewhere", "is checked out"),
        ("taken", "is at"),
        ("linked", "is a symbolic reference"),
        ("-x", "is not a branch name"),
        ("a..b", "is not a branch name"),
        ("../x", "is not a branch name"),
        ("taken/below", "was not created"),
    ] {
        let refused = world.apply(&run, &["--yes", &format!("--branch={branch}")]);
        assert!(
            !refused.status.success() && said(&refused).contains(why),
            "{branch}: {}",
            said(&refused)
        );
        assert_eq!(world.state(), before, "{branch}");
    }
    let commit = world.applied(&run, "fresh/result");
    let after = world.state();
    let more: Vec<&str> = after.lines().filter(|line| !before.contains(line)).collect();
    assert_eq!(more, [format!("{commit} commit\trefs/heads/fresh/result")]);
    // Somebody moved it: what is there is theirs.
    git(&repo, &["update-ref", "refs/heads/fresh/result", &world.base]);
    let refused = world.apply(&run, &["--yes", "--branch", "fresh/result"]);
    assert!(said(&refused).contains("is at"), "{}", said(&refused));
    assert_eq!(world.branch("fresh/result"), Some(world.base.clone()));
    // A repository without the base commit, and a directory that is none.
    let empty = world.beside("empty");
    fs::create_dir(&empty).unwrap();
    let refused = world.apply_to(&empty, &run, &["--yes"]);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    git(&empty, &["init", "-q"]);
    let refused = world.apply_to(&empty, &run, &["--yes"]);
    assert!(
        said(&refused).contains("fetch it") && refused.status.code() == Some(1),
        "{}",
        said(&refused)
    );
    // A bare one takes a branch as well.
    let bare = world.beside("bare.git");
    git(&repo, &["clone", "-q", "--bare", ".", bare.to_str().unwrap()]);
    let done = world.apply_to(&bare, &run, &["--yes", "--branch", "b"]);
    assert!(done.status.success(), "{}", said(&done));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_applies_at_once_write_one_commit_and_a_killed_one_leaves_nothing_half_written() {
    let world = World::new();
    let run = world.done("echo x >>README; echo y >new; rm gone.txt").await;
    let commit = world.applied(&run, "first");
    let repo = world.repo();
    git(&repo, &["branch", "-q", "-D", "first"]);
    let args = ["apply", &run, "--repo", repo.to_str().unwrap(), "--yes", "--branch", "first"];
    let both: Vec<_> = (0..2).map(|_| world.home.command(&args).spawn().unwrap()).collect();
    for mut one in both {
        assert!(one.wait().unwrap().success());
    }
    assert_eq!(world.branch("first"), Some(commit.clone()));
    git(&repo, &["branch", "-q", "-D", "first"]);
    // Killed before its first, second, .. call of git.
    let bin = world.beside("bin");
    fs::create_dir(&bin).unwrap();
    let (count, at) = (world.beside("count"), world.beside("at"));
    let script = format!(
        "#!/bin/sh\nn=$(($(cat {0}) + 1))\necho $n >{0}\n[ $n != $(cat {1}) ] || kill -9 $PPID\nexec /usr/bin/git \"$@\"\n",
        count.display(),
        at.display()
    );
    write_program(&bin.join("git"), &script);
    let before = world.state();
    let mut kills = 0;
    for step in 1.. {
        fs::write(&count, "0").unwrap();
        fs::write(&at, step.to_string()).unwrap();
        let path = format!("{}:/usr/bin:/bin", bin.display());
        let done = world.home.command(&args).env("PATH", path).output().unwrap();
        if done.status.success() {
            break;
        }
        assert_eq!(done.status.code(), None, "{}", said(&done));
        kills += 1;
        // Its last call of git may still have gone through.
        std::thread::sleep(std::time::Duration::from_millis(100));
        match world.branch("first") {
            None => assert_eq!(world.state(), before, "killed before call {step}"),
            found => {
                assert_eq!(found, Some(commit.clone()));
                git(&repo, &["branch", "-q", "-D", "first"]);
            }
        }
    }
    assert!(kills >= 15, "killed {kills} times");
    assert_eq!(world.branch("first"), Some(commit));
    assert!(!repo.join(".git/cofferdam-apply").exists());
    git(&repo, &["fsck", "--strict", "--no-dangling"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn b6_an_empty_patch_writes_nothing_and_of_a_huge_one_what_fits_is_kept() {
    let world = World::new();
    let before = world.state();
    let run = world.done("touch README; mkdir target; echo x >target/x").await;
    let done = world.apply(&run, &["--yes"]);
    assert!(done.status.success() && said(&done).contains("nothing to write"), "{}", said(&done));
    for (script, files, refused) in [
        ("head -c 9000000 /dev/zero >large; echo x >>README", 1, 1),
        ("for n in 1 2 3 4 5; do head -c 7000000 /dev/urandom >large$n; done", 2, 3),
        ("for n in $(seq 1100); do echo $n >f$n; done", 1_000, 100),
        ("for n in $(seq 2500); do echo $n >f$n; done", 1_000, 1_000),
    ] {
        let run = world.done(script).await;
        let patch = world.home.run_json(&["patch", &run, "--json"]);
        let count = |list: &Value| list.as_array().unwrap().len();
        assert_eq!(
            (count(&patch["files"]), count(&patch["refused"])),
            (files, refused),
            "{script}"
        );
        assert!(patch["refused"].as_array().unwrap().iter().all(|one| one["why"] == "bounds"));
        let unlisted = if script.contains("2500") { json!(500) } else { Value::Null };
        assert_eq!(patch["unlisted"], unlisted, "{script}");
        let shown = said(&world.home.run(&["show", &run]));
        assert!(shown.contains("beyond the bounds of its patch"), "{script}: {shown}");
        let applied = world.apply(&run, &["--yes"]);
        assert!(said(&applied).contains("(bounds)"), "{}", said(&applied));
    }
    let header = world.run("rm -rf .git").await;
    assert_ne!(header["status"], "succeeded", "{header}");
    let shown = said(&world.home.run(&["show", &text(&header, "runId"), "--steps"]));
    assert!(format!("{header} {shown}").contains("its changes are no patch: git:"), "{shown}");
    let refused = world.apply(&text(&header, "runId"), &["--yes"]);
    assert!(said(&refused).contains("left no patch"), "{}", said(&refused));
    assert_eq!(world.state(), before);
    let none = world.home.run(&[
        "patch",
        &text(
            &world
                .up
                .run_recipe(
                    "id: v\nv: '1'\nplan: {tasks: [{name: t, value: x}]}\n",
                    json!({}),
                    json!({}),
                )
                .await,
            "runId",
        ),
    ]);
    assert!(said(&none).contains("left no patch"), "{}", said(&none));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_on_a_commit_leaves_a_patch_and_names_its_base() {
    let world = World::new();
    let repo = world.repo();
    // What lies in the directory now is not what the agent works on.
    fs::write(repo.join("README"), "changed since\n").unwrap();
    let prompt = world.beside("prompt");
    fs::write(&prompt, "x").unwrap();
    let project = repo.to_str().unwrap();
    let args = [
        "dispatch",
        "spawn",
        "--prompt-file",
        prompt.to_str().unwrap(),
        "--type=command",
        "--json",
        "--project",
        project,
        "--commit",
        &world.base,
        "--",
        "/bin/sh",
        "-c",
        "cat README >seen && chmod +x run.sh",
    ];
    let spawned = world.home.run(&args);
    assert!(spawned.status.success(), "{}", said(&spawned));
    let id = text(&serde_json::from_slice(&spawned.stdout).unwrap(), "id");
    let waited = world.home.run(&["dispatch", "wait", &id]);
    assert!(waited.status.success(), "{}", said(&waited));
    let (_, view) = world.up.get(&format!("/api/dispatches/{id}")).await;
    assert_eq!(view["base_repo_commit"], json!(world.base), "{view}");
    let commit = world.applied(&text(&view, "run_id"), "agent");
    assert_eq!(git(&repo, &["show", &format!("{commit}:seen")]), "one\ntwo\nthree");
    let mode = git(&repo, &["ls-tree", &commit, "run.sh"]);
    assert!(mode.starts_with("100755"), "{mode}");
    // A name of git's stands for its commit, and a dispatch for its run.
    let by_name = |name: &str| {
        let spawn = ["dispatch", "spawn", "--prompt-file", prompt.to_str().unwrap()];
        let of = ["--type=command", "--project", project, "--commit", name];
        let what = ["--", "/bin/sh", "-c", "echo more >more"];
        world.home.run(&[&spawn[..], &of, &what].concat())
    };
    let spawned = by_name("HEAD");
    assert!(spawned.status.success(), "{}", said(&spawned));
    let id = String::from_utf8(spawned.stdout).unwrap().trim().to_owned();
    let waited = world.home.run(&["dispatch", "wait", &id]);
    assert!(waited.status.success(), "{}", said(&waited));
    let patch = said(&world.home.run(&["patch", &id]));
    assert!(patch.contains("diff --git a/more b/more"), "{patch}");
    let unknown = by_name("no-such-branch");
    assert!(said(&unknown).contains("not a commit of"), "{}", said(&unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_url_is_fetched_in_the_build_phase_with_a_secret_that_stays_outside() {
    let (forge, home) = (Forge::start(), Home::new());
    let up = forge.up(&home);
    let set = piped(&home, &["secret", "set", "forge", "--for", "git.example"], VALUE);
    assert!(set.status.success(), "{}", said(&set));
    let bare = forge.repository();
    let base = git(&bare, &["rev-parse", "HEAD"]);
    let uses = json!([{"name": "forge", "for": "git.example", "as": "basic ci"}]);
    let mut recipe: Value = serde_json::from_str(&recipe(
        json!({"url": "https://git.example/repo.git", "commit": base}),
        "echo more >>README; git remote -v; cat .git/config",
    ))
    .unwrap();
    recipe["plan"]["tasks"][0]["build"] =
        json!({"run": "true", "egress": ["git.example"], "secrets": uses, "timeout": "100s"});
    let run = up.run_recipe(&recipe.to_string(), json!({}), json!({})).await;
    let run = text(&run, "runId");
    let header = up.wait_terminal(&run).await;
    assert_eq!(header["status"], "succeeded", "{header} {:?}", forge.heard());
    let clone = home.path().join("clone");
    git(&bare, &["clone", "-q", ".", clone.to_str().unwrap()]);
    let done =
        home.run(&["apply", &run, "--yes", "--repo", clone.to_str().unwrap(), "--branch", "b"]);
    assert!(done.status.success(), "{}", said(&done));
    assert_eq!(git(&clone, &["show", "b:README"]), "a private file\nmore");
    let logs = said(&home.run(&["logs", &run]));
    assert!(!logs.contains(VALUE) && logs.contains("repositoryformatversion"), "{logs}");
}

#[tokio::test]
async fn a_repository_that_is_not_one_is_refused_before_anything_is_written() {
    let world = World::new();
    let commit = &world.base;
    let wrong = |repo: Value, more: &str| {
        recipe(repo, "true").replace("\"exec\"", &format!("{more}\"exec\""))
    };
    for (yaml, why) in [
        (wrong(json!({"commit": commit}), ""), "exactly one of"),
        (
            wrong(json!({"path": "/r", "url": "https://a.example/r", "commit": commit}), ""),
            "exactly one of",
        ),
        (wrong(json!({"url": "https://a.example/r", "commit": commit}), ""), "build.egress"),
    ] {
        let (status, answer) = world.up.post("/api/recipes/import", &json!({"yaml": yaml})).await;
        assert!(status == 400 && answer.to_string().contains(why), "{why}: {answer}");
    }
    let build = "\"build\": {\"run\": \"true\", \"egress\": [\"a.example\"]}, ";
    for (yaml, why) in [
        (wrong(json!({"path": "/r", "commit": "main"}), ""), "repo.commit"),
        (wrong(json!({"path": "r", "commit": commit}), ""), "repo.path"),
        (wrong(json!({"url": "ssh://a.example/r", "commit": commit}), build), "repo.url"),
        (wrong(json!({"url": "https://u:p@a.example/r", "commit": commit}), build), "credentials"),
        (
            wrong(json!({"url": "https://b.example/r", "commit": commit}), build),
            "does not list its host",
        ),
    ] {
        let (status, answer) =
            world.up.start_recipe_as(&world.up.key, &yaml, json!({}), json!({})).await;
        assert!(status == 400 && answer.to_string().contains(why), "{why}: {answer}");
    }
    // A commit that is not there ends the run with git's own words.
    let absent = recipe(json!({"path": world.repo(), "commit": "a".repeat(40)}), "true");
    let run = world.up.run_recipe(&absent, json!({}), json!({})).await;
    let header = world.up.wait_terminal(&text(&run, "runId")).await;
    assert_eq!(header["status"], "failed", "{header}");
    assert!(header.to_string().contains("in the build phase"), "{header}");
}
