//! What people reported of programs like this one, by the numbers of the cases: programs see inside what they see outside.

use crate::support;

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cofferdam_tests::Home;
use nix::sys::signal::Signal;
use support::{ended, has_class, said, signal};
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// As Python has it.
const EPERM: i32 = 1;
/// A user of the host who is not the one that a task runs as.
const OWNER: u32 = 1_000;

pub(crate) fn exec(home: &Home, args: &[&str]) -> Output {
    let all: Vec<&str> = ["exec", "--no-stdin"].iter().chain(args).copied().collect();
    ended(home.command(&all), LIMIT)
}

fn in_project(home: &Home, project: &Path, script: &str) -> String {
    let output = exec(home, &["--work", project.to_str().unwrap(), "--", "bash", "-ec", script]);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Gives all of a small tree to the owner.
pub(crate) fn give(dir: &Path) {
    chown(dir, Some(OWNER), Some(OWNER)).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path).unwrap().is_dir() {
            true => give(&path),
            false => chown(&path, Some(OWNER), Some(OWNER)).unwrap(),
        }
    }
}

#[test]
fn r05_git_works_in_a_project_of_another_user_and_in_clones_of_it() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    let git = |args: &[&str]| {
        let by = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let done =
            Command::new("git").args(by).args(args).current_dir(project.path()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    git(&["init", "-q", "-b", "main", "."]);
    fs::write(project.path().join("f"), "1\n").unwrap();
    git(&["add", "f"]);
    git(&["commit", "-q", "-m", "one"]);
    give(project.path());
    let script = "cd /work; git status --short; echo 2 >>f; git config --system core.abbrev 12; \
        git -c user.name=a -c user.email=a@example.org commit -qam two; git log --oneline | wc -l; \
        git clone -q /work /tmp/clone; cat /tmp/clone/f";
    assert_eq!(in_project(&home, project.path(), script), "2\n1\n2\n");
}

#[test]
fn r14_r17_r32_a_program_traces_its_own_children_and_sets_its_own_limits() {
    let home = Home::new();
    let script = r#"
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else ctypes.get_errno())
print("traced", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (256, 512))
print("limit", resource.getrlimit(resource.RLIMIT_NOFILE))
for pid, what in ((1, "agent"), (os.getppid(), "parent")):
    ok = libc.ptrace(0x4206, pid, 0, 0)
    print(what, ok, ctypes.get_errno() if ok else 0)
"#;
    let output = exec(&home, &["--", "sh", "-c", "python3 -c \"$0\"; true", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        words,
        format!("traced 0\nlimit (256, 512)\nagent -1 {EPERM}\nparent 0 0\n"),
        "{}",
        said(&output)
    );
}

#[test]
fn r34_a_status_is_the_one_that_a_shell_gives() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    fs::write(project.path().join("plain"), "text\n").unwrap();
    let dir = project.path().to_str().unwrap();
    for (cmd, wanted, words) in [
        (&["sh", "-c", "exit 255"][..], 255, ""),
        (&["sh", "-c", "kill -11 $$"], 139, ""),
        (&["nonesuch-program"], 127, "command not found"),
        (&["/nonesuch/program"], 127, "command not found"),
        (&["/work/plain"], 126, "not started"),
        (&["/work"], 126, "not started"),
        (&["sh", "-c", "/work/plain"], 126, ""),
    ] {
        let args: Vec<&str> = ["--work", dir, "--"].iter().chain(cmd).copied().collect();
        let output = exec(&home, &args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(wanted), "{cmd:?}: {}", said(&output));
        assert!(err.contains(words), "{cmd:?}: {err}");
    }
}

#[test]
fn r52_loopback_is_reached_beside_a_proxy_by_all_its_names() {
    let home = Home::new();
    let script = r#"
import http.server, socket, threading, urllib.request
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(204); self.end_headers()
    def log_message(self, *_): pass
class Six(http.server.HTTPServer):
    address_family = socket.AF_INET6
for server in (http.server.HTTPServer(("0.0.0.0", 8333), Answer), Six(("::1", 8334), Answer)):
    threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ("localhost:8333", "127.0.0.1:8333", "cofferdam:8333", "0.0.0.0:8333", "[::1]:8334"):
    print(host, urllib.request.urlopen(f"http://{host}/", timeout=5).status)
"#;
    let output = exec(&home, &["--egress", "example.org", "--", "python3", "-c", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(words.lines().filter(|line| line.ends_with(" 204")).count(), 5, "{}", said(&output));
}

#[test]
fn r79_what_is_left_out_of_a_commands_output_and_which_limit_it_met_is_said() {
    let home = Home::new();
    let output = exec(&home, &["--", "sh", "-c", "yes | head -c 20971520; echo END >&2; exit 3"]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(err.contains("END") && err.contains("limit reached: output"), "{err}");
    assert!(err.contains("all of it was shown"), "{err}");
    assert_eq!(output.stdout.len(), 20_971_520);
    assert!(output.stdout.chunks(2).all(|line| line == b"y\n"));
    let script = "python3 -c 'x=bytearray(1<<30)'; echo inner $?";
    let output = exec(&home, &["--mem", "256", "--", "sh", "-c", script]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.stdout, b"inner 137\n", "{err}");
    assert!(output.status.success() && err.contains("limit reached: memory"), "{err}");
    assert!(err.contains("--mem raises it"), "{err}");
}

#[test]
fn r79_bytes_arrive_as_they_are_and_json_says_what_is_kept() {
    let home = Home::new();
    let script = "import sys; all = bytes(range(256)) * 40960; sys.stdout.buffer.write(all)";
    let output = exec(&home, &["--", "python3", "-c", script]);
    let all: Vec<u8> = (0..=255).collect();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(output.stdout.len(), 256 * 40_960);
    assert!(output.stdout.chunks(256).all(|part| part == all));
    let output = exec(&home, &["--json", "--", "python3", "-c", script]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(shown.to_string().contains("\"limitsReached\":[\"output\"]"), "{shown}");
}

#[test]
fn r79_a_slow_reader_gets_all_of_it_and_one_that_leaves_ends_the_command() {
    let home = Home::new();
    let script = "head -c 6291456 /dev/zero | tr '\\0' x; echo done >&2";
    let mut started = home
        .command(&["exec", "--no-stdin", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = started.stdout.take().unwrap();
    let (mut all, mut piece) = (0, vec![0; 64 * 1024]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        all += out.read(&mut piece).unwrap();
    }
    let mut rest = Vec::new();
    all += out.read_to_end(&mut rest).unwrap();
    let output = started.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(all, 6_291_456);
    let first = "yes | head -c 1073741824";
    let mut started = home
        .command(&["exec", "--no-stdin", "--", "sh", "-c", first])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(started.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    drop(lines);
    let output = started.wait_with_output().unwrap();
    assert_eq!((line.as_str(), output.status.code()), ("y\n", Some(141)), "{}", said(&output));
}

#[test]
fn r25_directories_of_a_project_are_renamed_and_linked_files_stay_linked() {
    let home = Home::new();
    for class in ["container", "gvisor"] {
        if !has_class(class) {
            continue;
        }
        let project = TempDir::new().unwrap();
        fs::create_dir_all(project.path().join("d/e")).unwrap();
        fs::write(project.path().join("d/e/f"), "a\n").unwrap();
        fs::hard_link(project.path().join("d/e/f"), project.path().join("h")).unwrap();
        let script = r#"
import os
os.chdir("/work"); os.rename("d", "d2"); print(os.listdir("d2"), os.path.exists("d"))
os.link("d2/e/f", "l2"); open("l2", "a").write("b"); print(open("d2/e/f").read() == open("l2").read())
os.rename("d2/e", "e"); os.rename("e", "d2/e"); print(os.listdir("d2/e"))
"#;
        let dir = project.path().to_str().unwrap();
        let output =
            exec(&home, &["--isolation", class, "--work", dir, "--", "python3", "-c", script]);
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(shown, "['e'] False\nTrue\n['f']\n", "{class}: {}", said(&output));
        assert_eq!(fs::read_to_string(project.path().join("d/e/f")).unwrap(), "a\n");
    }
}

#[test]
fn r38_open_files_are_those_that_doctor_names() {
    let home = Home::new();
    let output = exec(&home, &["--", "sh", "-c", "ulimit -Hn; ulimit -Sn"]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let (hard, soft) = words.trim().split_once('\n').unwrap();
    assert_eq!(soft, "1024");
    let doctor = ended(home.command(&["doctor"]), LIMIT);
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let line = told.lines().find(|line| line.contains("open-files")).unwrap();
    assert!(line.contains(&format!("{hard} for each of 256 processes")), "{line}");
}

#[test]
fn r40_archives_of_other_machines_unpack_and_known_owners_are_kept() {
    let home = Home::new();
    let script = r#"
import io, os, subprocess, tarfile
os.chdir("/tmp")
archive = tarfile.open("a.tar", "w")
for name, owner in (("small", 1000), ("big", 1516583083)):
    entry = tarfile.TarInfo(name); entry.size = 2; entry.uid = entry.gid = owner
    archive.addfile(entry, io.BytesIO(b"x\n"))
archive.close()
print("tar", subprocess.run(["tar", "xf", "a.tar"]).returncode, os.stat("small").st_uid, os.stat("big").st_uid)
try:
    os.setuid(1516583083); print("became it")
except OSError as error:
    print("errno", error.errno)
"#;
    let output = exec(&home, &["--", "python3", "-c", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(words, "tar 0 1000 0\nerrno 22\n", "{}", said(&output));
}

#[test]
fn r47_a_toolchain_in_a_home_is_named_and_mounted() {
    let home = Home::new();
    let person = TempDir::new().unwrap();
    let bin = person.path().join(".tools/bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("r47-tool"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(bin.join("r47-tool"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", std::env::var("PATH").unwrap(), bin.display());
    let run = |args: &[&str]| {
        let all: Vec<&str> = ["exec", "--no-stdin"].iter().chain(args).copied().collect();
        let mut command = home.command(&all);
        command.env("PATH", &path);
        ended(command, LIMIT)
    };
    let hint = format!("r47-tool is in {0}, which is not mounted: --mount {0}", bin.display());
    for args in [&["--", "r47-tool"][..], &["--", "sh", "-c", "r47-tool; true"]] {
        let output = run(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(err.matches(&hint).count(), 1, "{err}");
    }
    let output = run(&["--mount", bin.to_str().unwrap(), "--", "r47-tool"]);
    assert_eq!(output.stdout, b"ran\n", "{}", said(&output));
}

#[test]
fn r84_a_command_whose_runner_or_shell_ends_takes_its_sandbox_along() {
    let home = Home::new();
    let _up = home.up();
    // The shell is ended, and not what it started; then the command itself, by each signal.
    for (through_shell, how, wanted) in [
        (true, Signal::SIGKILL, None),
        (false, Signal::SIGTERM, Some(143)),
        (false, Signal::SIGHUP, Some(129)),
    ] {
        let mut command =
            home.command(&["exec", "--no-stdin", "--", "sh", "-c", "echo up; sleep 600"]);
        // Below nohup it would ignore what it is told here, as it should.
        let inner = std::mem::replace(&mut command, Command::new("env"));
        command.arg("--default-signal=HUP");
        if through_shell {
            command.args(["sh", "-c", "\"$@\" & wait", "sh"]);
        }
        command.arg(inner.get_program()).args(inner.get_args());
        command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        signal(i32::try_from(child.id()).unwrap(), how);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), wanted, "{how}");
        // The pipe is the command's as well: it ends with the last of both.
        out.read_to_string(&mut line).unwrap();
        let runs = home.run_json(&["ps", "--json"]);
        assert_eq!(runs["runs"][0]["status"], "canceled", "{how}: {runs}");
    }
}

#[test]
fn r90_the_top_of_a_project_keeps_its_owner_and_mode() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    chown(project.path(), Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(project.path(), Permissions::from_mode(0o2770)).unwrap();
    let said = in_project(&home, project.path(), "stat -c '%a %u:%g' . /work; touch /work/new");
    assert_eq!(said, "2770 1000:1000\n2770 1000:1000\n");
    assert_eq!(fs::read_dir(project.path()).unwrap().count(), 0, "its changes are not the host's");
}

#[test]
fn r26_r27_r80_image_host_has_what_its_programs_look_for() {
    let home = Home::new();
    let script = r#"
for d in /var/run /var/lib /var/cache /run/lock /var/lock /mnt /srv /var/spool; do [ -d $d ] || echo "absent $d"; done
touch /var/run/a.pid && ls /run/a.pid
readlink -f /etc/localtime; stat -c %a /etc/shadow 2>/dev/null
python3 - <<'END'
import platform
print(bool(platform.freedesktop_os_release()["ID"]))
END
su user -c 'id -un'
"#;
    let output = exec(&home, &["--", "bash", "-c", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = "/run/a.pid\n/usr/share/zoneinfo/Etc/UTC\nTrue\nuser\n";
    assert_eq!(words, wanted, "{}", said(&output));
    // Not every host has the packages that put these there; one that has them shows the same inside.
    let look = "python3 -c 'import socket; print(socket.getservbyname(\"https\"), socket.getprotobyname(\"tcp\"))'";
    let outside = Command::new("sh").args(["-c", look]).output().unwrap();
    if outside.status.success() {
        let inside = exec(&home, &["--", "sh", "-c", look]);
        assert_eq!(inside.stdout, outside.stdout, "{}", said(&inside));
    }
}

#[test]
fn r18_r19_r20_r83_programs_see_their_own_limits() {
    let home = Home::new();
    let script = r#"
nproc; python3 -c 'import os; print(len(os.sched_getaffinity(0)))'
cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null
cat /sys/fs/cgroup/cpu.max 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us
cat /sys/fs/cgroup/cpu.weight 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.shares
cut -d: -f3 /proc/self/cgroup | sort -u
grep -E ' cgroup2? ' /proc/self/mountinfo | cut -d' ' -f4 | sort -u
for at in /sys/fs/cgroup /sys/fs/cgroup/memory; do mkdir $at/a 2>/dev/null && echo made; done; true
"#;
    let output = exec(&home, &["--cpu", "0.5", "--mem", "300", "--", "bash", "-c", script]);
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = words.lines().collect();
    // Of version 2, and of version 1. Half a processor weighs half of what one does.
    let [quota, weight] = match lines.get(3) {
        Some(&"50000 100000") => ["50000 100000", "50"],
        _ => ["50000", "512"],
    };
    assert_eq!(lines, ["1", "1", "314572800", quota, weight, "/", "/"], "{}", said(&output));
    // All of the host's are no limit.
    let output = exec(&home, &["--", "nproc"]);
    let host = Command::new("nproc").output().unwrap();
    assert_eq!(output.stdout, host.stdout, "{}", said(&output));
}

/// The nice value of a process, and of those that it started.
fn nices(pid: i32) -> Vec<String> {
    let pid = pid.to_string();
    let shown = Command::new("ps").args(["-o", "ni=", "--pid", &pid, "--ppid", &pid]).output();
    let shown = shown.unwrap();
    String::from_utf8(shown.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn r15_a_server_goes_first_and_its_sandboxes_do_not() {
    let home = Home::new();
    let up = home.up();
    let nices = nices(up.pid());
    assert!(nices.len() > 1 && nices.iter().all(|nice| nice == "-5"), "{nices:?}");
    for class in ["container", "gvisor"] {
        if !has_class(class) {
            continue;
        }
        let output = exec(&home, &["--isolation", class, "--", "nice"]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{class}: {}", said(&output));
    }
}

#[test]
fn r83_programs_in_gvisor_see_their_memory_and_their_processors() {
    let home = Home::new();
    if !has_class("gvisor") {
        return;
    }
    let class = ["--isolation", "gvisor", "--cpu", "0.5", "--mem", "300"];
    let script = "import os; print(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')); \
        print(open('/proc/meminfo').readline().split()[1]); print(len(os.sched_getaffinity(0)))";
    let output = exec(&home, &[&class[..], &["--", "python3", "-c", script]].concat());
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(words, "314572800\n307200\n1\n", "{}", said(&output));
}

#[test]
fn r44_packages_of_the_host_are_refused_at_submission() {
    let home = Home::new();
    let output = exec(&home, &["--egress", "@apt", "--", "apt-get", "update"]);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(err.contains("image `host`") && err.contains("image pull"), "{err}");
}

#[test]
fn r68_a_full_layer_is_no_space_left_and_not_a_death() {
    let home = Home::new();
    for class in ["container", "gvisor"] {
        let fill = "dd if=/dev/zero of=/tmp/x bs=1M count=600 2>&1 | grep -o 'No space left'; \
            rm /tmp/x && echo on";
        let output = exec(&home, &["--isolation", class, "--", "sh", "-c", fill]);
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(words, "No space left\non\n", "{class}: {}", said(&output));
    }
}

#[test]
fn r85_a_linked_worktree_has_its_repository_and_the_host_keeps_its_own() {
    let home = Home::new();
    let top = TempDir::new().unwrap();
    let top = top.path().canonicalize().unwrap();
    let git = |args: &[&str]| {
        let by = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        let done = Command::new("git").current_dir(&top).args(by).args(args).output().unwrap();
        assert!(done.status.success(), "{args:?} {done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    git(&["init", "-q", "main"]);
    git(&["-C", "main", "commit", "-q", "--allow-empty", "-m", "one"]);
    git(&["-C", "main", "worktree", "add", "-q", "../linked"]);
    let script = "pwd; git status --short; echo a >f; git add f; \
        git -c user.name=a -c user.email=a@example.org commit -qm two; git log --oneline | wc -l; \
        cd /work; cat f";
    let words = in_project(&home, &top.join("linked"), script);
    assert_eq!(words, format!("{}\n2\na\n", top.join("linked").display()));
    assert_eq!(git(&["-C", "linked", "log", "--oneline"]).lines().count(), 1);
    assert!(!top.join("linked/f").exists());
    // Its repository is gone: git says so, and nothing else breaks.
    fs::remove_dir_all(top.join("main")).unwrap();
    let words = in_project(&home, &top.join("linked"), "git status 2>&1 || echo none");
    assert!(words.contains("not a git repository") && words.ends_with("none\n"), "{words}");
}

#[test]
fn r86_a_virtual_environment_of_the_project_runs_its_tools() {
    let home = Home::new();
    let project = TempDir::new().unwrap();
    let dir = project.path().canonicalize().unwrap();
    let venv = ["-m", "venv", "--without-pip", ".venv"];
    let made = Command::new("/usr/bin/python3").args(venv).current_dir(&dir).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let tool = dir.join(".venv/bin/tool");
    let python = dir.join(".venv/bin/python");
    let text = format!("#!{}\nimport sys\nprint(sys.prefix)\n", python.display());
    fs::write(&tool, text).unwrap();
    fs::set_permissions(&tool, Permissions::from_mode(0o755)).unwrap();
    let prefix = format!("{}\n", dir.join(".venv").display());
    for command in [".venv/bin/tool", "/work/.venv/bin/tool"] {
        assert_eq!(in_project(&home, &dir, command), prefix, "{command}");
    }
}
