//! What a container shares with its host is one kernel: what of it a task reaches, by what the host sees.
//!
//! One file: each way to the one kernel is a short test, and together they are the list of them.

use crate::support;

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use cofferdam_ambient::clock;
use cofferdam_contracts::sandbox::LimitKind;
use cofferdam_sandbox::{Class, Runtime, Sandbox, Tcp, enter_private_mounts};
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;
use support::not_run::not_run;
use support::{Bench, here, in_classes, run, sh, verified, with_bench};

/// Raw system calls, by number, with what they answer.
const CALLS: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def said(result):
    return 'done' if result >= 0 else errno.errorcode[ctypes.get_errno()]
def call(*args):
    return said(libc.syscall(*[ctypes.c_long(arg) for arg in args]))
"#;

fn python(body: &str) -> Vec<String> {
    ["/usr/bin/python3", "-c", &format!("{CALLS}\n{body}")].map(str::to_owned).to_vec()
}

async fn py(sandbox: &Sandbox, plan: &cofferdam_sandbox::Plan, body: &str) -> String {
    let command = cofferdam_sandbox::Command { argv: python(body), ..plan.task.clone() };
    let said = run(sandbox, &command).await;
    assert_eq!(said.outcome.exit, 0, "{}{}", said.stdout, said.stderr);
    said.stdout
}

/// With each runtime of the class `container` that is installed.
fn with_each<F: Future<Output = ()>>(test: impl Fn(std::sync::Arc<Bench>) -> F) {
    enter_private_mounts().expect("these tests need root: run them as root");
    for runtime in Runtime::all() {
        eprintln!("{}", runtime.version);
        here(runtime.path.to_str(), &test);
    }
}

const FILTERED: &str = r"
import socket, platform
assert platform.machine() == 'x86_64'
entry = ctypes.create_string_buffer(64)
print(call(154, 0, ctypes.addressof(entry), 64))            # modify_ldt
print(call(135, 8), call(135, 0x40000))                     # personality
context = ctypes.c_long(0)
print(call(206, 8, ctypes.addressof(context)))              # io_setup
print(call(425, 8, 0), call(250, 0, 0))                     # io_uring_setup, keyctl
print(call(435, 0, 88), call(56, 0x10000011, 0, 0, 0, 0))   # clone3, clone(NEWUSER)
print(call(900, 0))                                         # no call yet
fd = os.open('/usr/bin/env', os.O_RDONLY)
print(call(72, fd, 1024, 1), call(72, fd, 1 << 32 | 1024, 1), call(72, fd, 1026, 4))
print(call(72, fd, 1030, 10))                               # F_DUPFD_CLOEXEC
for family, protocol in [(1, 0), (2, 0), (10, 0), (16, 0), (16, 15), (16, 9), (38, 0), (40, 0), (17, 0)]:
    print(family, protocol, call(41, family, 2, protocol))
";

#[test]
fn l4_calls_that_no_task_needs_are_refused_and_usual_ones_are_not() {
    with_each(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let said = py(&sandbox, &plan, FILTERED).await;
        let lines: Vec<&str> = said.lines().collect();
        let refused = |line: &str| line.split(' ').all(|word| ["EPERM", "ENOSYS"].contains(&word));
        assert!(lines[..7].iter().all(|line| refused(line)), "{said}");
        assert_eq!((lines[4], lines[7]), ("ENOSYS EPERM", "done"), "{said}");
        assert_eq!(lines[8..12], ["1 0 done", "2 0 done", "10 0 done", "16 0 done"]);
        let families = &lines[12..];
        assert!(families.iter().all(|line| !line.ends_with("done")), "{said}");
        assert_eq!(families.len(), 5);
        // crun was given a program, which answers so; a list that a runtime compiles says ENOSYS here.
        if plan.runtime.name == "crun" {
            assert_eq!(lines[1], "EPERM EPERM", "{said}");
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

const WATCH: &str = r"
import select, sys, time
fd = libc.inotify_init1(os.O_CLOEXEC)
assert libc.inotify_add_watch(fd, b'/usr/bin', 0x1 | 0x20 | 0x10) > 0
print('watching', flush=True)
while not os.path.exists('/tmp/enough'):
    time.sleep(0.01)
print(len(os.read(fd, 65536)) if select.select([fd], [], [], 0)[0] else 0)
";

#[test]
fn m3_a_watch_on_usr_hears_nothing_of_the_host_or_of_a_neighbour() {
    with_each(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let (other, theirs) = bench.start(json!({})).await;
        let command = cofferdam_sandbox::Command { argv: python(WATCH), ..plan.task.clone() };
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let mut ready = Some(ready);
        let mut heard = Vec::new();
        let watching = sandbox.exec(&command, |_, bytes| {
            heard.extend_from_slice(bytes);
            if let Some(ready) = ready.take() {
                ready.send(()).unwrap();
            }
        });
        let acting = async {
            is_ready.await.unwrap();
            fs::read("/usr/bin/env").unwrap();
            assert!(Command::new("/usr/bin/true").status().unwrap().success());
            assert_eq!(
                sh(&other, &theirs, "/usr/bin/true && cat /usr/bin/env | wc -c").await.outcome.exit,
                0
            );
            // It ends by this, which it does not watch.
            sandbox.agent().files().put("/tmp/enough", 0o644, bytes::Bytes::new()).await.unwrap();
        };
        let (ended, ()) = tokio::join!(watching, acting);
        let said = String::from_utf8(heard).unwrap();
        assert_eq!((ended.unwrap().exit, said.as_str()), (0, "watching\n0\n"));
        verified(&sandbox.wipe("task-end").await);
        verified(&other.wipe("task-end").await);
    });
}

#[test]
fn h7_a_lock_on_usr_is_a_lock_of_the_sandbox_alone() {
    with_each(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let script = "exec 9< /usr/bin/env; flock -n 9 && echo held; \
                      while [ ! -e /tmp/enough ]; do sleep 0.02; done";
        let command = cofferdam_sandbox::Command {
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            ..plan.task.clone()
        };
        let (held, is_held) = tokio::sync::oneshot::channel();
        let mut held = Some(held);
        let locking = sandbox.exec(&command, |_, bytes| {
            assert_eq!(bytes, b"held\n");
            held.take().unwrap().send(()).unwrap();
        });
        let looking = async {
            is_held.await.unwrap();
            let file = File::open("/usr/bin/env").unwrap();
            assert!(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok(), "the host waits");
            sandbox.agent().files().put("/tmp/enough", 0o644, bytes::Bytes::new()).await.unwrap();
        };
        let (ended, ()) = tokio::join!(locking, looking);
        assert_eq!(ended.unwrap().exit, 0);
        verified(&sandbox.wipe("task-end").await);
    });
}

const NODES: &str = r"
import fcntl, select, stat, time
nodes = ['null', 'zero', 'full', 'random', 'urandom', 'tty']
fd = libc.inotify_init1(os.O_CLOEXEC)
for node in nodes:
    found = os.stat('/dev/' + node)
    assert stat.S_ISCHR(found.st_mode) and found.st_mode & 0o777 == 0o666, node
    assert libc.inotify_add_watch(fd, ('/dev/' + node).encode(), 0x1 | 0x2 | 0x20) > 0
assert open('/dev/zero', 'rb').read(3) == bytes(3) and open('/dev/null', 'rb').read() == b''
assert len(open('/dev/urandom', 'rb').read(8)) == 8 and os.path.exists('/dev/fd/0')
try:
    open('/dev/full', 'wb', buffering=0).write(b'x')
    raise SystemExit('full is not')
except OSError as error:
    assert error.errno == errno.ENOSPC
held = [open('/dev/' + node) for node in nodes if node != 'tty']
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.read(fd, 65536)
print('watching', flush=True)
while not os.path.exists('/tmp/enough'):
    time.sleep(0.01)
print(len(os.read(fd, 65536)) if select.select([fd], [], [], 0)[0] else 0)
";

#[test]
fn s49_a_watch_and_a_lock_on_a_device_node_concern_the_sandbox_alone() {
    with_each(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let (other, theirs) = bench.start(json!({})).await;
        let command = cofferdam_sandbox::Command { argv: python(NODES), ..plan.task.clone() };
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let mut ready = Some(ready);
        let mut heard = Vec::new();
        let watching = sandbox.exec(&command, |_, bytes| {
            heard.extend_from_slice(bytes);
            if let Some(ready) = ready.take() {
                let _ = ready.send(());
            }
        });
        let acting = async {
            if is_ready.await.is_err() {
                return;
            }
            for node in ["null", "zero", "full", "random", "urandom"] {
                let file = File::options().read(true).write(true).open(format!("/dev/{node}"));
                let held = Flock::lock(file.unwrap(), FlockArg::LockExclusiveNonblock);
                assert!(held.is_ok(), "the host waits for {node}");
            }
            let script =
                "for n in null zero full random urandom; do flock -n /dev/$n true || echo $n; done";
            assert_eq!(sh(&other, &theirs, script).await.stdout, "", "a neighbour waits");
            // It ends by this, which it does not watch.
            sandbox.agent().files().put("/tmp/enough", 0o644, bytes::Bytes::new()).await.unwrap();
        };
        let (ended, ()) = tokio::join!(watching, acting);
        let said = String::from_utf8(heard).unwrap();
        assert_eq!((ended.unwrap().exit, said.as_str()), (0, "watching\n0\n"));
        verified(&sandbox.wipe("task-end").await);
        verified(&other.wipe("task-end").await);
    });
}

const LOWER: &str = r"
limit = (ctypes.c_ulong * 2)(5, 5)
for pid in (1, 1 << 32 | 1):
    print(call(302, pid, 7, ctypes.addressof(limit), 0))
print(call(302, 0, 4, 0, ctypes.addressof(limit)))
";

#[test]
fn l5_a_task_lowers_no_limit_of_its_agent() {
    in_classes(&[], |bench| async move {
        if bench.class == Class::Microvm {
            return;
        }
        let fields = bench.classed(json!({"artifacts": ["out"]}));
        let (sandbox, plan) = bench.start(fields).await;
        assert_eq!(py(&sandbox, &plan, LOWER).await, "EPERM\nEPERM\ndone\n");
        let said = sh(
            &sandbox,
            &plan,
            "echo kept > out; i=0; while [ $i -lt 40 ]; do : > f$i; i=$((i+1)); done",
        )
        .await;
        assert_eq!(said.outcome.exit, 0, "{}", said.stderr);
        let read = sandbox.agent().files().read("/work/out", 100).await.unwrap();
        assert_eq!(read, b"kept\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn h7_signals_queues_and_core_dumps_have_small_limits() {
    with_each(|bench| async move {
        let said = bench.sh("cat /proc/self/limits", json!({})).await.stdout;
        let limit = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            let mut words = line.split_whitespace().map(str::to_owned);
            (words.next().unwrap(), words.next().unwrap())
        };
        let ceilings = bench.host.facts().ceilings;
        let both = |value: u64| (value.to_string(), value.to_string());
        assert_eq!(limit("Max pending signals"), both(ceilings.signals));
        assert_eq!(limit("Max msgqueue size"), both(ceilings.queue_bytes));
        assert!(ceilings.signals <= 4_096 && ceilings.queue_bytes <= 409_600);
        // With 0 a program that takes dumps would be started on the host.
        assert_eq!(limit("Max core file size"), both(1));
        let (_, files) = limit("Max open files");
        let most = 64 + 1;
        assert!(files.parse::<u64>().unwrap() * most <= ceilings.files / 2, "{files}");
    });
}

/// Pairs of connected sockets on the sandbox's loopback that nobody reads from, filled.
const FLOOD: &str = r"
import socket
server = socket.create_server(('127.0.0.1', 0), backlog=64)
held = []
for _ in range(200):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    one.connect(server.getsockname())
    held += [one, server.accept()[0]]
    one.setblocking(False)
    try:
        while True:
            one.send(b'x' * 65536)
    except BlockingIOError:
        pass
print('filled')
";

#[test]
fn h8_buffers_of_connections_are_within_the_memory_limit() {
    with_each(|bench| async move {
        let tcp = bench.host.facts().ceilings.tcp;
        if tcp != Tcp::Limited {
            not_run("a limit of TCP's buffers", &format!("{tcp:?}"));
            return;
        }
        let fields = json!({"limits": {"memMB": 64, "diskMB": 16, "pids": 16}});
        let (sandbox, plan) = bench.start(fields).await;
        let trees = &bench.host.facts().cgroups.hierarchies;
        let tree = trees.iter().find(|tree| tree.controllers.iter().any(|name| name == "memory"));
        let dir = tree.unwrap().mount.join(&plan.traces.cgroup);
        let number = |file: &str| -> u64 {
            fs::read_to_string(dir.join(file)).unwrap().trim().parse().unwrap()
        };
        assert_eq!(number("memory.kmem.tcp.limit_in_bytes"), 64 << 20);
        let command = cofferdam_sandbox::Command { argv: python(FLOOD), ..plan.task.clone() };
        let said = run(&sandbox, &command).await;
        let most = number("memory.kmem.tcp.max_usage_in_bytes");
        // The kernel goes on for a moment where it must: without a limit this takes 800 MiB.
        assert!(most <= 96 << 20, "{most}");
        if number("memory.kmem.tcp.failcnt") > 0 {
            assert!(said.outcome.reached.contains(&LimitKind::Memory), "{:?}", said.outcome);
        } else {
            assert!(most > 0, "nothing was counted: {}{}", said.stdout, said.stderr);
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Queues that no cgroup counts: acknowledgements of netlink, an error queue (copies of what was sent, with a time stamp),
/// and data on connections that nobody accepts.
const UNREAD: &str = r"
import resource, socket, struct, sys, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(('127.0.0.1', 0))
def netlink():
    one = socket.socket(16, 3, 0)
    one.setsockopt(1, 8, 1 << 30)
    one.bind((0, 0))
    one.setblocking(False)
    held.append(one)
    for _ in range(12):
        one.sendto(struct.pack('IHHII', 16, 0x7fff, 5, 1, 0) * 2000, (0, 0))
def errors():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(1, 8, 1 << 30)
    one.setblocking(False)
    held.append(one)
    for _ in range(150):
        one.sendmsg([b'x' * 60000], [(1, 37, struct.pack('I', 2))], 0, sink.getsockname())
def unaccepted():
    server = socket.socket()
    server.bind(('127.0.0.1', 0))
    server.listen(4096)
    held.append(server)
    for _ in range(300):
        with socket.create_connection(server.getsockname(), 2) as one:
            one.setblocking(False)
            one.send(b'x' * (1 << 20))
for _ in range(int(sys.argv[2])):
    try:
        globals()[sys.argv[1]]()
    except OSError:
        pass
print('held', flush=True)
time.sleep(60)
";

/// Bytes that wait in queues of this namespace, by the host's own tables: all of them, and the most in one socket.
fn unread(init: u32) -> (u64, u64) {
    let (mut all, mut most) = (0, 0);
    for (table, column, radix) in
        [("netlink", 4, 10), ("udp", 4, 16), ("tcp", 4, 16), ("tcp6", 4, 16)]
    {
        let text = fs::read_to_string(format!("/proc/{init}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let word = line.split_whitespace().nth(column).unwrap();
            let word = word.rsplit(':').next().unwrap();
            let bytes = u64::from_str_radix(word, radix).unwrap();
            (all, most) = (all + bytes, most.max(bytes));
        }
    }
    (all, most)
}

/// What a command said, and what of [`unread`] there was meanwhile at most.
async fn watched(
    init: u32,
    running: impl Future<Output = support::Said>,
) -> (support::Said, u64, u64) {
    tokio::pin!(running);
    let (mut all, mut most) = (0, 0);
    loop {
        tokio::select! {
            said = &mut running => return (said, all, most),
            () = clock::sleep(Duration::from_millis(20)) => {
                let seen = unread(init);
                (all, most) = (all.max(seen.0), most.max(seen.1));
            }
        }
    }
}

#[test]
fn s6_queues_that_no_cgroup_counts_stay_near_the_memory_limit() {
    const LIMIT: u64 = 64 << 20;
    with_each(|bench| async move {
        for (way, sockets) in [("netlink", "300"), ("errors", "300"), ("unaccepted", "8")] {
            let fields =
                json!({"limits": {"memMB": 64, "diskMB": 16, "pids": 16}, "timeoutMs": 50_000});
            let (sandbox, plan) = bench.start(fields).await;
            let argv = ["/usr/bin/python3", "-c", UNREAD, way, sockets].map(str::to_owned);
            let command = cofferdam_sandbox::Command { argv: argv.to_vec(), ..plan.task.clone() };
            let init = sandbox.init_pid();
            let (said, all, most) = watched(init, run(&sandbox, &command)).await;
            eprintln!("{way}: {all} bytes, at most {most} in one; {:?}", said.outcome.cause);
            assert!(said.outcome.reached.contains(&LimitKind::Memory), "{way}: {:?}", said.outcome);
            assert!(said.outcome.oom && !said.outcome.timed_out, "{way}: {:?}", said.outcome);
            // Twice what the kernel lets a socket have, for its own rounding; connections grow by themselves.
            let each = 2 * bench.host.facts().ceilings.socket_bytes;
            assert!(way == "unaccepted" || most <= each, "{way}: {most}");
            assert!(all <= 6 * LIMIT, "{way}: {all}");
            // The sandbox itself goes on, and what was held is gone.
            assert_eq!(sh(&sandbox, &plan, "true").await.outcome.exit, 0, "{way}");
            assert!(unread(init).0 < LIMIT / 8, "{way}");
            verified(&sandbox.wipe("task-end").await);
        }
    });
}

/// gVisor's `epoll` tells of registrations that were ended before a checkpoint, whose memory the agent has freed (decision 0115).
#[test]
fn the_agent_waits_by_poll_where_the_kernel_keeps_addresses_of_its_memory() {
    let is_epoll = |name: &str| name.contains("eventpoll");
    in_classes(&[], |bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let names = match bench.class {
            Class::Container => {
                let at = format!("/proc/{}/fd", sandbox.init_pid());
                let open = fs::read_dir(at).unwrap().flatten();
                let open = open.map(|entry| fs::read_link(entry.path()).unwrap_or_default());
                open.map(|path| path.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\n")
            }
            // From outside the descriptors are those of the kernel in between.
            _ => sh(&sandbox, &plan, "for at in /proc/1/fd/*; do readlink $at; done").await.stdout,
        };
        let is_seen = names.lines().count() > 2;
        match bench.class {
            Class::Container => assert!(is_seen && is_epoll(&names), "{names}"),
            Class::Gvisor => assert!(is_seen && !is_epoll(&names), "{names}"),
            _ => {}
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

/// The agent's priority, its scheduling class and what the kernel kills first, as low as a task may set them.
const STARVE: &str = r"
print(call(141, 0, 1, 19), call(251, 1, 1, 3 << 13))
nothing = ctypes.c_int(0)
print(call(144, 1, 5, ctypes.addressof(nothing)))
with open('/proc/1/oom_score_adj', 'w') as score:
    score.write('1000')
with open('/proc/1/oom_score_adj') as score:
    print(score.read().strip(), flush=True)
held = []
while True:
    held.append(b'x' * (1 << 20))
";

#[test]
fn s45_a_task_that_starves_its_agent_ends_its_own_run_alone() {
    with_each(|bench| async move {
        let (sandbox, plan) =
            bench.start(json!({"limits": {"memMB": 64, "diskMB": 16, "pids": 16}})).await;
        let (other, theirs) = bench.start(json!({})).await;
        let command = cofferdam_sandbox::Command { argv: python(STARVE), ..plan.task.clone() };
        let said = run(&sandbox, &command).await;
        assert!(said.stdout.ends_with("1000\n"), "{}{}", said.stdout, said.stderr);
        assert!(said.outcome.oom && !said.outcome.timed_out, "{:?}", said.outcome);
        assert_eq!(sh(&other, &theirs, "true").await.outcome.exit, 0);
        let score = |pid: u32| fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        assert_eq!(score(other.init_pid()).trim(), "0");
        verified(&sandbox.wipe("task-end").await);
        verified(&other.wipe("task-end").await);
    });
}

#[test]
fn l3_the_kernels_own_tables_are_empty_and_mounts_do_not_say_where_they_lie() {
    with_bench(|bench| async move {
        let tables = "/proc/kpageflags /proc/kpagecount /proc/kpagecgroup /proc/slabinfo /proc/config.gz \
                      /proc/timer_list /proc/sched_debug /proc/keys /proc/latency_stats /proc/kallsyms \
                      /proc/vmallocinfo /proc/iomem /sys/kernel/vmcoreinfo";
        let script = format!(
            "for f in {tables}; do n=$(head -c 64 $f 2>/dev/null | wc -c); [ $n = 0 ] || echo $f; done; \
             ls /sys/firmware /sys/kernel/debug /sys/kernel/tracing /sys/kernel/security /sys/fs/ext4 2>/dev/null \
             | grep -v : ; cat /proc/self/mountinfo"
        );
        let said = bench.sh(&script, json!({})).await.stdout;
        let facts = bench.host.facts();
        for dir in [&facts.state_dir, &facts.live_dir] {
            assert!(!said.contains(dir.to_str().unwrap()), "{said}");
        }
        let tables: Vec<&str> = said.lines().take_while(|line| !line.contains(" - ")).collect();
        assert!(tables.iter().all(|line| line.trim().is_empty()), "{tables:?}");
        // A mask that is a file system costs room in every memory cgroup of the host. One that is a directory of the layer, which is
        // there anyway, is mounted from below that file system's root.
        let is_own = |line: &str| line.split(' ').nth(3) == Some("/");
        let is_mask =
            |line: &&str| line.contains(" /sys/") && line.contains(" - tmpfs ") && is_own(line);
        assert_eq!(said.lines().find(is_mask), None);
    });
}

#[test]
fn processes_times_files_stay_below_half_of_the_hosts_or_are_refused() {
    with_bench(|bench| async move {
        let facts = bench.host.facts();
        let most = facts.ceilings.nofile(64);
        if most < facts.nofile_most {
            let fields =
                json!({"limits": {"memMB": 128, "diskMB": 64, "pids": 64, "nofile": most + 1}});
            let refused =
                cofferdam_sandbox::plan(&support::request(fields), &support::fresh_id(), facts);
            assert_eq!(refused.unwrap_err().field, "limits.nofile");
        }
        let plan = bench.plan(json!({"limits": {"pids": 64}}));
        assert!(plan.effective.limits.nofile.unwrap() * 65 <= facts.ceilings.files / 2);
    });
}
