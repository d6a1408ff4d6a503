//! What is given to a sandbox and is not what programs expect: a huge project of many owners, programs that ask for more than there is,
//! agents that are no programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use cofferdam_tests::Home;
use cofferdam_tests::not_run::not_run;
use serde_json::json;
use tempfile::TempDir;

use crate::reports::exec;
use crate::reports_world::lines;
use crate::support::dispatches::{Project, ended, spawn};
use crate::support::said;

/// Files of the project, and their owners.
const FILES: u32 = 200_000;
const OWNERS: u32 = 10;

#[test]
fn a_project_of_200_000_files_of_ten_users_with_links_out_is_as_it_is_outside() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    let dir = project.path().canonicalize().unwrap();
    let secret = home.path().join("outside");
    fs::write(&secret, "not for tasks\n").unwrap();
    for at in 0..FILES / 1_000 {
        let below = dir.join(format!("d{at}"));
        fs::create_dir(&below).unwrap();
        for file in 0..1_000 {
            fs::write(below.join(format!("f{file}")), "x").unwrap();
        }
        chown(below.join("f0"), Some(1_000 + at % OWNERS), Some(1_000 + at % OWNERS)).unwrap();
    }
    symlink(&secret, dir.join("out")).unwrap();
    symlink("/nonesuch", dir.join("nowhere")).unwrap();
    symlink("/etc/passwd", dir.join("passwd")).unwrap();
    let script = r#"
find . -type f | wc -l
find . -name f0 -printf '%U\n' | sort -u | wc -l
cat out 2>&1 | sed 's/.*: //'; cat nowhere 2>&1 | sed 's/.*: //'
cmp passwd /etc/passwd && readlink passwd
rm -r d0 && mv d1 e1 && echo y >d2/f5 && find . -type f | wc -l
"#;
    let given = dir.to_str().unwrap();
    let args = ["--work", given, "--timeout", "100s", "--", "bash", "-ec", script];
    let output = exec(&home, &args);
    let absent = "No such file or directory";
    let wanted = ["200000", "10", absent, absent, "/etc/passwd", "199000"];
    assert_eq!(lines(&output), wanted, "{}", said(&output));
    assert_eq!(fs::read_dir(dir.join("d0")).unwrap().count(), 1_000);
    assert_eq!(fs::read_to_string(dir.join("d2/f5")).unwrap(), "x");
    assert!(!dir.join("e1").exists());
}

#[test]
fn a_jvm_that_asks_for_more_than_it_sees_ends_by_the_limit_and_is_told_which() {
    let home = Home::new();
    if !exec(&home, &["--", "java", "-version"]).status.success() {
        return not_run("java", "this host does not have it: apt-get install default-jdk-headless");
    }
    let program = r"
public class A { public static void main(String[] a) {
  System.out.println(Runtime.getRuntime().maxMemory() >> 20);
  if (a.length == 0) return;
  var all = new java.util.ArrayList<byte[]>();
  while (true) { byte[] b = new byte[16 << 20]; for (int i = 0; i < b.length; i += 4096) b[i] = 1; all.add(b); }
} }";
    let project = TempDir::new().unwrap();
    fs::write(project.path().join("A.java"), program).unwrap();
    let dir = project.path().to_str().unwrap();
    let run = |args: &[&str]| {
        let given = ["--work", dir, "--mem", "512", "--", "java"];
        exec(&home, &[&given[..], args].concat())
    };
    // Without a word it takes a quarter of what it sees.
    let usual = run(&["A.java"]);
    let heap = String::from_utf8_lossy(&usual.stdout).trim().parse::<u64>();
    assert!(heap.is_ok_and(|heap| heap <= 256), "{}", said(&usual));
    let greedy = run(&["-Xmx4g", "A.java", "all"]);
    assert_eq!(greedy.status.code(), Some(137), "{}", said(&greedy));
    let words = String::from_utf8_lossy(&greedy.stderr).into_owned();
    assert!(words.contains("memory limit") && words.contains("--mem raises it"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_no_program_ends_its_dispatch_and_says_why() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let dir = TempDir::new().unwrap();
    let file = |name: &str, bytes: &[u8], mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let absent = dir.path().join("absent").to_str().unwrap().to_owned();
    for (source, words) in [
        (file("text", b"these are words\n", 0o755), "exit status 127: "),
        (file("half", b"\x7fELF\x02\x01\x01\0 and no more", 0o755), "exit status "),
        (file("closed", b"#!/bin/sh\nexit 0\n", 0o644), "Permission denied"),
        (absent, "No such file or directory"),
    ] {
        let mounts = json!([{"source": source, "target": "/opt/agents/bin/codex"}]);
        let body = json!({"agent_type": "codex", "prompt": "x", "project_dir": project.path(),
            "sandbox_spec": {"mounts": mounts}});
        let id = spawn(&up, &body).await;
        let view = ended(&up, &id).await;
        assert_eq!(view["status"], "failed", "{source}: {view:#}");
        let cause = view["sandbox_effective"]["cause"].as_str().unwrap();
        assert!(cause.contains(words) && cause.len() > words.len(), "{source}: {cause}");
        assert!(cause.matches("(os error").count() <= 1, "{source}: said twice: {cause}");
        let waited = home.run(&["dispatch", "wait", &id]);
        assert_eq!(waited.stdout, b"failed\n", "{}", said(&waited));
        assert!(String::from_utf8_lossy(&waited.stderr).contains(words), "{}", said(&waited));
    }
}
