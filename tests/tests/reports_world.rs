//! What people reported and what has held here since: the same reports by their numbers, so that it stays so. In a container and, where
//! this host has it, in gVisor.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use cofferdam_tests::not_run::not_run;
use cofferdam_tests::{Home, text};
use serde_json::json;
use tempfile::TempDir;

use crate::reports::{LIMIT, exec};
use crate::support::dispatches::{Project, ended as dispatch_ended, script, spawn};
use crate::support::gates::{prompt, say};
use crate::support::{ended, has_class, said};

/// Runs a program in a project in each class; its output, which must be that of every class.
fn in_each(home: &Home, project: &TempDir, program: &[&str], wanted: &[&str]) {
    for class in ["container", "gvisor"] {
        if !has_class(class) {
            continue;
        }
        let dir = project.path().to_str().unwrap();
        let given =
            ["--isolation", class, "--work", dir, "--mem", "1024", "--timeout", "100s", "--"];
        let output = exec(home, &[&given[..], program].concat());
        assert_eq!(lines(&output), wanted, "{class}: {}", said(&output));
        assert!(output.status.success(), "{class}: {}", said(&output));
    }
}

pub(crate) fn lines(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn r21_r22_names_are_text_and_zones_are_known() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    fs::write(project.path().join("größe-日本.txt"), "ä\n").unwrap();
    let script = r#"
locale 2>&1 | grep -c 'LC_CTYPE=.*UTF-8'; ls | grep -c größe; printf 'ä' | wc -m
python3 -c 'import sys; print(sys.stdout.encoding, sys.getfilesystemencoding(), "ä日本")'
perl -e 'print "ok\n"' 2>&1
export TZ=America/New_York; date -d @0 +%H:%M
python3 -c 'import zoneinfo, datetime as d; print(d.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset())'
"#;
    let wanted = ["1", "1", "1", "utf-8 utf-8 ä日本", "ok", "19:00", "2:00:00"];
    in_each(&home, &project, &["bash", "-ec", script], &wanted);
}

#[test]
fn r24_loopback_has_both_families_and_what_leads_nowhere_fails_at_once() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    let script = r#"
import socket, time
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.2")):
    server = socket.socket(family); server.bind((address, 0)); server.listen()
    socket.create_connection(server.getsockname()[:2])
    one = socket.socket(family, socket.SOCK_DGRAM); one.bind((address, 0))
    socket.socket(family, socket.SOCK_DGRAM).sendto(b"x", one.getsockname()[:2])
    print(address, one.recv(2).decode())
both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
socket.create_connection(("127.0.0.1", both.getsockname()[1])); print("both")
def fails(what, ask):
    begun = time.time()
    try: ask(); print(what, "was reached")
    except OSError: print(what, "quick" if time.time() - begun < 5 else "slow")
fails("name", lambda: socket.getaddrinfo("no-such-name.invalid", 80))
fails("address", lambda: socket.create_connection(("192.0.2.1", 80), 30))
"#;
    let wanted = ["127.0.0.1 x", "::1 x", "127.0.0.2 x", "both", "name quick", "address quick"];
    in_each(&home, &project, &["python3", "-c", script], &wanted);
}

#[test]
fn r29_locks_on_a_projects_files_hold_between_processes() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    fs::write(project.path().join("f"), "below\n").unwrap();
    let script = r#"
import fcntl, os, struct
def other(look):
    child = os.fork()
    if child == 0:
        look(open("f", "r+")); os._exit(0)
    os.waitpid(child, 0)
def refused(what, ask):
    try: ask(); print(what, "was had", flush=True)
    except OSError: print(what, "held", flush=True)
record = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
own = open("f", "r+"); fcntl.flock(own, fcntl.LOCK_EX)
other(lambda file: refused("flock", lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)))
fcntl.lockf(own, fcntl.LOCK_EX)
def asks(file):
    found = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, record))
    print("holder", found[4] == os.getppid(), flush=True)
    refused("description", lambda: fcntl.fcntl(file, 37, record))
other(asks)
"#;
    let wanted = ["flock held", "holder True", "description held"];
    in_each(&home, &project, &["python3", "-c", script], &wanted);
}

#[test]
fn r30_a_watcher_sees_what_happens_in_a_project_of_many_directories() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    fs::create_dir_all(project.path().join("a/b")).unwrap();
    fs::write(project.path().join("a/b/f"), "1\n").unwrap();
    for at in 0..1_500 {
        fs::create_dir_all(project.path().join(format!("m/{at}"))).unwrap();
    }
    let script = r#"
import ctypes, os, struct, subprocess
c = ctypes.CDLL(None, use_errno=True); fd = c.inotify_init1(0o4000)
assert c.inotify_add_watch(fd, b"a/b", 0xfff) > 0
subprocess.run("echo 2 >>a/b/f; mv a/b/f a/b/g; rm a/b/g; touch a/b/new", shell=True, check=True)
data, at, seen = os.read(fd, 65536), 0, set()
while at < len(data):
    _, mask, _, size = struct.unpack_from("iIII", data, at)
    seen.add((mask, data[at + 16:at + 16 + size].rstrip(b"\0").decode())); at += 16 + size
wanted = {(0x2, "f"), (0x40, "f"), (0x80, "g"), (0x200, "g"), (0x100, "new")}
print("missed", sorted(wanted - seen))
print("watches", sum(c.inotify_add_watch(fd, dir.encode(), 0xfff) > 0 for dir, _, _ in os.walk(".")))
"#;
    in_each(&home, &project, &["python3", "-c", script], &["missed []", "watches 1504"]);
}

#[test]
fn r36_what_is_not_given_ends_at_once_and_what_is_given_arrives() {
    let home = Home::new();
    let none =
        exec(&home, &["--", "sh", "-c", "timeout 5 cat; echo $?; [ -t 0 ] || echo no terminal"]);
    assert_eq!(lines(&none), ["0", "no terminal"], "{}", said(&none));
    let mut child = home
        .command(&["exec", "--", "sh", "-c", "wc -l"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for at in 0..10_000 {
        writeln!(input, "{at}").unwrap();
    }
    drop(input);
    let counted = child.wait_with_output().unwrap();
    assert_eq!(lines(&counted), ["10000"], "{}", said(&counted));
}

#[test]
fn r37_a_program_sees_no_terminal_and_can_make_one() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    let script = r#"
[ -t 1 ] || echo none
script -qec '[ -t 0 ] && [ -t 1 ] && echo both' /dev/null | tr -d '\r'
"#;
    in_each(&home, &project, &["bash", "-c", script], &["none", "both"]);
    // In gVisor of 2022 the end of a terminal's other side is not heard.
    let script =
        "import pty, os; print(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', 'exit 4'])))";
    let spawned = exec(&home, &["--", "python3", "-c", script]);
    assert_eq!(lines(&spawned), ["4"], "{}", said(&spawned));
    let colours = exec(&home, &["--", "ls", "--color=auto", "/"]);
    assert!(!colours.stdout.contains(&0x1b), "{}", said(&colours));
}

#[test]
fn r41_a_test_starts_a_postgresql_of_its_own() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    if fs::read_dir("/usr/lib/postgresql").is_err() {
        return not_run("postgresql", "this host does not have it");
    }
    let script = r#"
for bin in /usr/lib/postgresql/*/bin; do :; done; mkdir -m 700 /tmp/pg; chown 1000:1000 /tmp/pg
as() { setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/tmp "$@"; }
as "$bin/initdb" -D /tmp/pg/d -A trust -U user >/tmp/log 2>&1 || { tail -3 /tmp/log; exit 1; }
as "$bin/pg_ctl" -D /tmp/pg/d -o "-k /tmp -c listen_addresses=localhost" -w -l /tmp/pg/log start >/dev/null
psql -h localhost -U user -d postgres -Atc 'select 6 * 7'
psql -h /tmp -U user -d postgres -qAtc 'create table t as select generate_series(1, 100000) a; select count(*) from t'
as "$bin/pg_ctl" -D /tmp/pg/d -m fast stop | tail -1
"#;
    let wanted = ["42", "100000", "server stopped"];
    in_each(&home, &project, &["bash", "-ec", script], &wanted);
}

#[test]
fn r50_what_would_make_a_sandbox_in_a_sandbox_is_refused_in_words() {
    let home = Home::new();
    for program in [
        &["unshare", "-Ur", "true"][..],
        &["unshare", "-n", "true"],
        &["mount", "-t", "tmpfs", "x", "/mnt"],
        &["hostname", "x"],
        &["date", "-s", "2001-01-01"],
        &["dmesg"],
    ] {
        let output = exec(&home, &[&["--"], program].concat());
        let words = said(&output);
        assert!(!output.status.success(), "{program:?}: {words}");
        assert!(
            ["not permitted", "denied", "must be root"].iter().any(|one| words.contains(one)),
            "{program:?}: {words}"
        );
    }
}

/// A run that waits for a yes to one task.
const GATED: &str = r#"{"id": "gated", "v": "1", "plan": {"gate": "approve-plan",
    "tasks": [{"name": "hello", "exec": {"run": "echo approved-and-run", "timeout": "60s"}}]}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn r65_r89_an_approval_counts_once_also_over_a_restart() {
    let home = Home::new();
    let mut up = home.up();
    let run = up.run_recipe(GATED, json!({}), json!({})).await;
    prompt(&up, &run, "approve-plan").await;
    up.stop();
    let up = home.up();
    let (one, two) =
        tokio::join!(say(&up, &up.key, &run, "a", "yes"), say(&up, &up.key, &run, "b", "yes"));
    let statuses = [one.0, two.0];
    assert!(statuses.contains(&200), "{one:?} {two:?}");
    let id = text(&run, "runId");
    let header = up.wait_terminal(&id).await;
    assert_eq!(header["status"], "succeeded", "{header}");
    let late = say(&up, &up.key, &run, "c", "no").await;
    assert_ne!(late.0, 200, "{late:?}");
    let ran = crate::support::count(&up.sql().await, "SELECT count(*) FROM app.sbx_runs").await;
    assert_eq!(ran, 1);
    let proven = home.run(&["prove", "--run", &id]);
    assert!(said(&proven).lines().any(|line| line.starts_with("GO")), "{}", said(&proven));
}

#[tokio::test(flavor = "multi_thread")]
async fn r74_a_command_of_a_dispatch_has_a_home_and_a_name() {
    let (home, project) = (Home::new(), Project::new());
    let up = home.up();
    let words = "touch \"$HOME/x\" && python3 -c 'import pathlib; print(pathlib.Path.home().is_dir())'; id -un; \
        git init -q /tmp/g && git -C /tmp/g commit -q --allow-empty -m x 2>&1 | grep -c 'tell me who you are'";
    let id = spawn(&up, &script(words, None, &project)).await;
    let view = dispatch_ended(&up, &id).await;
    let out = home.path().join("out");
    let waited = home.run(&["dispatch", "wait", &id, "--output", out.to_str().unwrap()]);
    let shown = fs::read_to_string(&out).unwrap_or_default();
    assert_eq!(shown, "True\nroot\n1\n", "{} {view:#}", said(&waited));
}

#[test]
fn r75_the_usual_tools_work_in_gvisor_as_in_a_container() {
    let (home, project) = (Home::new(), TempDir::new().unwrap());
    let script = r#"
python3 -c 'import sqlite3; c = sqlite3.connect("/tmp/d"); print(*c.execute("pragma journal_mode=wal").fetchone()); c.execute("create table t(a)")'
flock /tmp/l echo locked
mkdir -p d/e && mv d d2 && find d2 -mindepth 1 -printf '%f\n'
git init -q . && git status --short | wc -l
"#;
    let (mut script, mut wanted) = (script.to_owned(), vec!["wal", "locked", "e", "0"]);
    let compiles =
        "echo 'int main(){return 3;}' >/tmp/a.c; gcc /tmp/a.c -o /tmp/a; /tmp/a || echo $?\n";
    let begets = "node -e 'console.log(require(\"child_process\").execSync(\"echo kid\").toString().trim())'\n";
    for (program, part, said) in [("gcc", compiles, "3"), ("node", begets, "kid")] {
        if !Path::new("/usr/bin").join(program).exists() {
            not_run(program, "this host does not have it below /usr");
            continue;
        }
        script.push_str(part);
        wanted.push(said);
    }
    in_each(&home, &project, &["bash", "-ec", &script], &wanted);
}

#[test]
fn r87_a_program_of_a_home_that_is_not_there_is_said_to_be_absent() {
    let home = Home::new();
    let user = TempDir::new().unwrap();
    let bin = user.path().join(".pyenv/bin");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join("cofferdam-test-tool");
    fs::write(&program, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut command = home.command(&["exec", "--no-stdin", "--", "cofferdam-test-tool"]);
    command.env("PATH", path).env("HOME", user.path());
    let output = ended(command, LIMIT);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(127), "{}", said(&output));
    assert!(words.contains("not found in the sandbox") && words.contains(".pyenv"), "{words}");
}
