//! Whom tasks run as, and whose their projects are then, by the numbers of the reported cases.

use crate::reports;
use crate::support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use cofferdam_tests::Home;
use reports::{LIMIT, exec, give};
use serde_json::Value;
use support::{ended, said};
use tempfile::TempDir;

/// Makes a small repository that belongs to the owner.
fn foreign_repository(dir: &Path) {
    let git = |args: &[&str]| {
        let by = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let done = Command::new("git").args(by).args(args).current_dir(dir).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q", "-b", "main", "."]);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/f"), "1\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "one"]);
    give(dir);
    fs::set_permissions(dir, Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn r05_r78_a_user_owns_the_project_that_it_works_in() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    foreign_repository(project.path());
    let dir = project.path().to_str().unwrap();
    let script = "id -u; id -g; echo $HOME; python3 -c 'import os, sys
for s in map(os.stat, sys.argv[1:]): print(\"%d:%d %o\" % (s.st_uid, s.st_gid, s.st_mode & 0o7777))' . sub sub/f /work; echo 2 >>sub/f; \
        GIT_CONFIG_SYSTEM=/dev/null git -c user.name=a -c user.email=a@example.org commit -qam two; \
        git log --oneline | wc -l; mkdir new; mv sub moved";
    // In gVisor only their owner opens the pipes of a command again, and that is root.
    let said_again = "; echo x >/dev/stderr; echo y >/dev/stdout";
    for (class, end) in [("container", said_again), ("gvisor", "; echo y")] {
        let script = format!("{script}{end}");
        for (user, numbers, at_home) in [
            ("user", "1000:1000", "/home/user"),
            ("33", "33:0", "/"),
            ("nobody:7", "65534:7", "/nonexistent"),
        ] {
            let args =
                ["--isolation", class, "--user", user, "--work", dir, "--", "bash", "-ec", &script];
            let output = exec(&home, &args);
            let (uid, gid) = numbers.split_once(':').unwrap();
            let top = format!("{numbers} 700");
            let wanted = format!(
                "{uid}\n{gid}\n{at_home}\n{top}\n{numbers} 755\n{numbers} 644\n{top}\n2\ny\n"
            );
            let words = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(words, wanted, "{class} {user}: {}", said(&output));
        }
    }
    assert_eq!(fs::read(project.path().join("sub/f")).unwrap(), b"1\n");
    assert!(!project.path().join("new").exists());
}

#[test]
fn r03_a_users_groups_and_places_are_its_own_and_an_unknown_one_is_refused() {
    let home = Home::new();
    let script = "id -G; touch /work/a ~/b; stat -c %U /work/a ~/b /proc/self/; sh -c 'kill -0 1' 2>&1 | tail -c 24";
    let output = exec(&home, &["--user", "user", "--", "sh", "-ec", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.starts_with("1000\nuser\nuser\nuser\n"), "{}", said(&output));
    for (user, why) in
        [("nobody-here", "no user \\\"nobody-here\\\""), ("user:none", "no group \\\"none\\\"")]
    {
        let output = exec(&home, &["--json", "--user", user, "--", "true"]);
        let words = said(&output);
        assert!(!output.status.success(), "{words}");
        assert!(
            words.contains("BOOT_FAIL") && words.contains(why) && words.contains("or a number"),
            "{words}"
        );
    }
    for bad in ["", "a b", "65536", "a:b:c"] {
        let output = exec(&home, &["--user", bad, "--", "true"]);
        assert_eq!(output.status.code(), Some(3), "{bad}: {}", said(&output));
    }
}

#[test]
fn r78_a_recipe_has_users_for_its_phases_its_services_and_its_checkout() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    foreign_repository(project.path());
    let head = Command::new("git")
        .args(["-c", "safe.directory=*", "rev-parse", "HEAD"])
        .current_dir(project.path())
        .output()
        .unwrap();
    let head = String::from_utf8(head.stdout).unwrap();
    let checkout = format!(
        r#"name: checkout
      user: ${{form.who}}
      repo: {{path: {path}, commit: "{commit}"}}
      build: {{run: id -u >built}}
      exec: {{run: "cat built; id -u; git status --short; echo 2 >>sub/f"}}"#,
        path = project.path().display(),
        commit = head.trim(),
    );
    let phases = r#"name: phases
      user: 1000
      build: {run: "id -u >/work/built", user: root}
      services:
        - {name: web, user: nobody, port: 8080, cmd: [sh, -c, "id -u >/tmp/who; exec python3 -m http.server 8080"]}
      files: [{text: given, to: /work/deep/given}]
      exec: {run: "cat /work/built /tmp/who; stat -c %u /work/deep /work/deep/given; id -u"}"#;
    for (task, wanted) in
        [(checkout.as_str(), "1000\n1000\n?? built\n"), (phases, "0\n65534\n1000\n1000\n1000\n")]
    {
        let text = format!(
            "id: users\nv: \"1\"\nform: {{type: object, properties: {{who: {{type: string, default: user}}}}}}\n\
             plan:\n  tasks:\n    - {task}\n"
        );
        let recipe = project.path().join("recipe.yaml");
        fs::write(&recipe, text).unwrap();
        let run = home.run_json(&["run", recipe.to_str().unwrap(), "--json"]);
        assert_eq!(run["status"], "succeeded", "{run}");
        let output = ended(home.command(&["logs", run["runId"].as_str().unwrap()]), LIMIT);
        assert_eq!(String::from_utf8_lossy(&output.stdout), wanted, "{run}");
    }
}

/// What a dispatched command prints, and its record.
fn dispatched(home: &Home, args: &[&str], script: &str) -> (String, Value) {
    let prompt = home.path().join("prompt");
    fs::write(&prompt, "x").unwrap();
    let prompt = prompt.to_str().unwrap();
    let head = ["dispatch", "spawn", "--prompt-file", prompt, "--type=command", "--json"];
    let tail = ["--", "/bin/sh", "-ec", script];
    let all: Vec<&str> = head.iter().chain(args).chain(&tail).copied().collect();
    let spawned = ended(home.command(&all), LIMIT);
    assert!(spawned.status.success(), "{}", said(&spawned));
    let spawned: Value = serde_json::from_slice(&spawned.stdout).unwrap();
    let id = spawned["id"].as_str().unwrap();
    let waited = ended(home.command(&["dispatch", "wait", id]), LIMIT);
    let view = home.run_json(&["dispatch", "status", id, "--json"]);
    let output = ended(home.command(&["logs", view["run_id"].as_str().unwrap()]), LIMIT);
    assert!(waited.status.success(), "{} {view} {}", said(&waited), said(&output));
    (String::from_utf8(output.stdout).unwrap(), view)
}

#[test]
fn r85_r86_a_dispatched_agent_has_its_project_at_its_own_path() {
    let home = Home::new();
    let _up = home.up();
    let top = TempDir::new().unwrap();
    let top = top.path().canonicalize().unwrap();
    let git = |args: &[&str]| {
        let by = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let done = Command::new("git").current_dir(&top).args(by).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?} {done:?}");
        String::from_utf8(done.stdout).unwrap().trim_end().to_owned()
    };
    git(&["init", "-q", "main"]);
    git(&["-C", "main", "commit", "-q", "--allow-empty", "-m", "one"]);
    git(&["-C", "main", "worktree", "add", "-q", "../linked"]);
    let linked = top.join("linked");
    let dir = linked.to_str().unwrap();
    let look = "pwd; echo a >f; cat /work/f; git log --oneline 2>/dev/null | wc -l";
    let (words, view) = dispatched(&home, &["--project", dir], look);
    assert_eq!(words, format!("{dir}\na\n0\n"), "{view}");
    let commit = "git add f; git -c user.name=a -c user.email=a@example.org commit -qm two; git log --oneline | wc -l";
    for class in ["container", "gvisor"] {
        let spec = format!(r#"{{"isolation": {{"class_min": "{class}"}}, "user": "user"}}"#);
        let args = ["--project", dir, "--worktree", "--sandbox-spec", &spec];
        let (words, view) = dispatched(&home, &args, &format!("id -u; {look}; {commit}"));
        assert_eq!(words, format!("1000\n{dir}\na\n1\n2\n"), "{class}: {view}");
        assert_eq!(view["base_repo_commit"], git(&["-C", "linked", "rev-parse", "HEAD"]).as_str());
        let run = view["run_id"].as_str().unwrap();
        let kept = home.run_json(&["show", run, "--json"]);
        assert!(kept.to_string().contains("files/f"), "{class}: {kept}");
    }
    let (words, _) = dispatched(&home, &["--project", dir, "--project-at", "work"], "pwd; ls");
    assert_eq!(words, "/work\n");
    assert_eq!(git(&["-C", "linked", "log", "--oneline"]).lines().count(), 1);
    assert!(!linked.join("f").exists());
    let prompt = home.path().join("prompt");
    let main = top.join("main");
    let args = ["dispatch", "spawn", "--type=command", "--worktree", "--prompt-file"];
    let mut refused = home.command(&args);
    refused.arg(&prompt).arg("--project").arg(&main);
    let refused = ended(refused, LIMIT);
    assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
    assert!(said(&refused).contains("not a linked git worktree"), "{}", said(&refused));
}
