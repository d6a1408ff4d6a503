//! The agent's routes beyond a command's output, against real sandboxes.

use crate::support;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_guest::process::Size;
use cofferdam_guest::tree::{ChangeKind, NodeKind};
use cofferdam_guest::wire::{CommandExit, ExecEnd, ExecRequest, User};
use cofferdam_sandbox::{AgentError, CommandHandle, ExecOptions, Sandbox};
use serde_json::json;
use support::{sh, verified, with_bench};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

fn script(text: &str) -> ExecRequest {
    let path = ("PATH".to_owned(), "/usr/bin:/bin".to_owned());
    ExecRequest {
        argv: ["/bin/sh", "-c", text].map(str::to_owned).to_vec(),
        env: BTreeMap::from([path]),
        cwd: "/work".into(),
        timeout_ms: 20_000,
        stream_limit_bytes: 1 << 20,
        user: None,
        groups: Vec::new(),
        stdin_file: None,
        jail: None,
    }
}

/// Follows a command in a task of its own.
fn follow(running: CommandHandle) -> JoinHandle<(ExecEnd, String)> {
    tokio::spawn(async move {
        let mut said = Vec::new();
        let end = running.follow(|_, bytes| said.extend_from_slice(bytes)).await.unwrap();
        (end, String::from_utf8_lossy(&said).into_owned())
    })
}

fn refused(error: AgentError) -> u16 {
    match error {
        AgentError::Refused { status, .. } => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn input_is_streamed_and_its_end_is_seen() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let options = ExecOptions { stdin: true, ..ExecOptions::default() };
        let running = sandbox.agent().start(script("wc -c; echo done"), options).await.unwrap();
        let remote = running.remote();
        let ended = follow(running);
        let (pieces, body) = mpsc::channel(1);
        let given = tokio::spawn({
            let remote = remote.clone();
            async move { remote.stdin(body).await }
        });
        for _ in 0..100 {
            pieces.send(Bytes::from(vec![b'x'; 50_000])).await.unwrap();
        }
        drop(pieces);
        given.await.unwrap().unwrap();
        let (end, said) = ended.await.unwrap();
        assert_eq!((end.ended, said.as_str()), (CommandExit::Exit(0), "5000000\ndone\n"));
        // Whoever it was, it takes nothing more.
        let (_, none) = mpsc::channel(1);
        assert_eq!(refused(remote.stdin(none).await.unwrap_err()), 404);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn input_that_is_never_read_or_not_wanted_holds_nobody() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let agent = sandbox.agent();
        let options = ExecOptions { stdin: true, ..ExecOptions::default() };
        let running = agent.start(script("sleep 0.3"), options).await.unwrap();
        let remote = running.remote();
        let ended = follow(running);
        let (pieces, body) = mpsc::channel(1);
        let given = tokio::spawn(async move { remote.stdin(body).await });
        let flood = tokio::spawn(async move {
            while pieces.send(Bytes::from(vec![0; 60_000])).await.is_ok() {}
        });
        assert_eq!(ended.await.unwrap().0.ended, CommandExit::Exit(0));
        assert_eq!(refused(given.await.unwrap().unwrap_err()), 410);
        flood.await.unwrap();
        let running = agent.start(script("cat"), ExecOptions::default()).await.unwrap();
        let remote = running.remote();
        let (_, body) = mpsc::channel(1);
        assert_eq!(refused(remote.stdin(body).await.unwrap_err()), 404);
        assert_eq!(follow(running).await.unwrap().1, "");
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Follows a command whose words are of interest while it runs.
fn listened(
    running: CommandHandle,
) -> (JoinHandle<Result<ExecEnd, AgentError>>, mpsc::UnboundedReceiver<String>) {
    let (sender, said) = mpsc::unbounded_channel();
    let ended = tokio::spawn(running.follow(move |_, bytes| {
        // Nobody may be listening to its last words.
        let _ = sender.send(String::from_utf8_lossy(bytes).into_owned());
    }));
    (ended, said)
}

/// Waits until a command has said this.
async fn heard(said: &mut mpsc::UnboundedReceiver<String>, all: &mut String, part: &str) {
    while !all.contains(part) {
        all.push_str(&said.recv().await.unwrap_or_else(|| panic!("no {part:?} in {all:?}")));
    }
}

#[test]
fn a_terminal_has_a_size_takes_keys_and_signals() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let size = Size { rows: 30, cols: 90 };
        let options = ExecOptions { stdin: true, terminal: Some(size), ..ExecOptions::default() };
        let text = "test -t 0 && test -t 1 && tty; trap 'stty size' WINCH; stty size; \
                    read line || read line; echo got $line; cat > /dev/null; echo end";
        let running = sandbox.agent().start(script(text), options).await.unwrap();
        let remote = running.remote();
        let (ended, mut said) = listened(running);
        let mut all = String::new();
        heard(&mut said, &mut all, "30 90").await;
        assert!(all.contains("/dev/pts/"), "{all}");
        remote.resize(Size { rows: 40, cols: 100 }).await.unwrap();
        heard(&mut said, &mut all, "40 100").await;
        let (pieces, body) = mpsc::channel(1);
        let given = tokio::spawn(async move { remote.stdin(body).await });
        pieces.send(Bytes::from_static(b"hello\n")).await.unwrap();
        heard(&mut said, &mut all, "got hello").await;
        drop(pieces);
        heard(&mut said, &mut all, "end").await;
        given.await.unwrap().unwrap();
        assert_eq!(ended.await.unwrap().unwrap().ended, CommandExit::Exit(0), "{all}");
        // The terminal's key for an interrupt reaches its foreground group.
        let text = "echo begun; exec sleep 100";
        let running = sandbox.agent().start(script(text), options).await.unwrap();
        let remote = running.remote();
        let (ended, mut said) = listened(running);
        heard(&mut said, &mut String::new(), "begun").await;
        let (pieces, body) = mpsc::channel(1);
        pieces.send(Bytes::from_static(&[3])).await.unwrap();
        let given = tokio::spawn(async move { remote.stdin(body).await });
        assert_eq!(ended.await.unwrap().unwrap().ended, CommandExit::Signal(2));
        drop(pieces);
        let _ = given.await.unwrap();
        let left = sh(&sandbox, &plan, "ls -d /proc/[0-9]*").await;
        assert_eq!(left.stdout.lines().count(), 2, "{}", left.stdout);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_signal_reaches_a_running_command_and_nobody_else() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let agent = sandbox.agent();
        let text = "trap 'echo usr1; exit 7' USR1; echo begun; while :; do sleep 0.05; done";
        let running = agent.start(script(text), ExecOptions::default()).await.unwrap();
        let other =
            agent.start(script("sleep 1; echo unhurt"), ExecOptions::default()).await.unwrap();
        let remote = running.remote();
        let ((ended, mut words), other) = (listened(running), follow(other));
        let mut said = String::new();
        heard(&mut words, &mut said, "begun").await;
        assert_eq!(refused(remote.signal(99).await.unwrap_err()), 400);
        assert_eq!(refused(remote.resize(Size { rows: 1, cols: 1 }).await.unwrap_err()), 409);
        remote.signal(10).await.unwrap();
        let end = ended.await.unwrap().unwrap();
        while let Some(more) = words.recv().await {
            said.push_str(&more);
        }
        // The shell also says what ended its `sleep`, on its other stream: of two that are ready at once either may come first.
        assert_eq!(end.ended, CommandExit::Exit(7));
        assert!(said.contains("\nusr1\n"), "{said}");
        assert!([404, 410].contains(&refused(remote.signal(9).await.unwrap_err())));
        assert_eq!(other.await.unwrap().1, "unhurt\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn another_user_has_no_rights_of_root() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let user = Some(User { uid: 1_000, gid: 1_000 });
        let text = "id -u; id -G; touch /etc/x 2>/dev/null || echo denied";
        let request = ExecRequest { user, ..script(text) };
        let running = sandbox.agent().start(request, ExecOptions::default());
        let (_, said) = follow(running.await.unwrap()).await.unwrap();
        assert_eq!(said, "1000\n1000\ndenied\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_dropped_command_is_killed() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let running =
            sandbox.agent().start(script("sleep 1000"), ExecOptions::default()).await.unwrap();
        drop(running);
        let clock = Stopwatch::start();
        while sandbox.agent().metrics().await.unwrap().processes > 1 {
            assert!(clock.elapsed_ms() < 5_000, "it still runs");
            clock::sleep(Duration::from_millis(10)).await;
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn files_are_read_listed_made_moved_and_removed() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let agent = sandbox.agent();
        agent.files().mkdir("/work/a/b", 0o750, Some(User { uid: 5, gid: 6 })).await.unwrap();
        agent.files().put("/work/a/b/f", 0o640, Bytes::from(vec![7; 100_000])).await.unwrap();
        assert_eq!(agent.files().read("/work/a/b/f", 100_000).await.unwrap(), vec![7; 100_000]);
        assert_eq!(refused(agent.files().read("/work/a/b/f", 99_999).await.unwrap_err()), 413);
        let found = agent.files().stat("/work/a/b/f").await.unwrap();
        assert_eq!((found.kind, found.size, found.mode), (NodeKind::File, 100_000, 0o640));
        assert_eq!(sh(&sandbox, &plan, "stat -c '%a %u %g' /work/a/b").await.stdout, "750 5 6\n");
        agent.files().rename("/work/a/b/f", "/work/a/g").await.unwrap();
        sh(&sandbox, &plan, "ln -s /etc a/link; mkfifo a/pipe").await;
        let names: Vec<_> = agent.files().list("/work/a", 10).await.unwrap();
        let names: Vec<_> = names.iter().map(|entry| (entry.name.as_str(), entry.kind)).collect();
        assert_eq!(
            names,
            [
                ("b", NodeKind::Dir),
                ("g", NodeKind::File),
                ("link", NodeKind::Link),
                ("pipe", NodeKind::Other),
            ],
        );
        assert_eq!(refused(agent.files().read("/work/a/pipe", 9).await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().remove("/work/a", false).await.unwrap_err()), 409);
        agent.files().remove("/work/a/link", false).await.unwrap();
        agent.files().remove("/work/a", true).await.unwrap();
        assert_eq!(refused(agent.files().stat("/work/a").await.unwrap_err()), 404);
        assert_eq!(sh(&sandbox, &plan, "ls /etc/passwd").await.outcome.exit, 0);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn hostile_paths_lead_nowhere() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let agent = sandbox.agent();
        sh(&sandbox, &plan, "ln -s /etc d; ln -s /etc/passwd f; ln -s loop loop").await;
        let long = format!("/work/{}", "n".repeat(300));
        let vast = format!("/{}", "n/".repeat(100_000));
        for path in ["/work/d/passwd", "/work/f", "/work/loop", "/proc/self/root/etc/passwd"] {
            assert_eq!(refused(agent.files().read(path, 99_999).await.unwrap_err()), 409, "{path}");
        }
        for path in ["/work/../etc/passwd", "etc/passwd", "/work//x", "/", &vast] {
            assert_eq!(refused(agent.files().read(path, 9).await.unwrap_err()), 400, "{path:.30}");
        }
        assert_eq!(refused(agent.files().read(&long, 9).await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().mkdir("/work/d/x", 0o755, None).await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().mkdir("/work/x", 0o4755, None).await.unwrap_err()), 400);
        assert_eq!(refused(agent.files().remove("/work/d/passwd", false).await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().rename("/work/f", "/work/d/x").await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().list("/work/d", 9).await.unwrap_err()), 409);
        assert_eq!(refused(agent.files().watch(&["/work/d"], 9).await.unwrap_err()), 409);
        assert_eq!(agent.health().await.unwrap().level, cofferdam_guest::wire::LEVEL);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_hundred_thousand_entries_are_bounded_listed_and_removed() {
    with_bench(|bench| async move {
        let limits = json!({"limits": {"memMB": 512, "diskMB": 64, "pids": 64}});
        let (sandbox, plan) = bench.start(limits).await;
        let make = "mkdir many; cd many; perl -e 'for (1..100000) { open F, \">f$_\" or die $! }'";
        assert_eq!(sh(&sandbox, &plan, make).await.outcome.exit, 0);
        let agent = sandbox.agent();
        let error = agent.files().list("/work/many", 1_000).await.unwrap_err();
        assert!(matches!(&error, AgentError::Collect(text) if text.contains("1000")), "{error:?}");
        assert_eq!(agent.files().list("/work/many", 200_000).await.unwrap().len(), 100_000);
        // The agent held none of them.
        let usage = agent.metrics().await.unwrap();
        assert!(usage.agent_rss_kb < 8_192, "{usage:?}");
        agent.files().remove("/work/many", true).await.unwrap();
        assert_eq!(refused(agent.files().stat("/work/many").await.unwrap_err()), 404);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn changes_are_watched_and_a_flood_ends_where_it_was_told_to() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let mut watching = sandbox.agent().files().watch(&["/work", "/tmp"], 1_000).await.unwrap();
        sh(&sandbox, &plan, "echo x > a; mv a /tmp/b; rm /tmp/b").await;
        let mut seen = Vec::new();
        while seen.len() < 5 {
            let change = watching.next().await.unwrap().unwrap();
            seen.push((change.path, change.kind));
        }
        let expected = [
            ("/work/a", ChangeKind::Made),
            ("/work/a", ChangeKind::Written),
            ("/work/a", ChangeKind::Gone),
            ("/tmp/b", ChangeKind::Made),
            ("/tmp/b", ChangeKind::Gone),
        ];
        assert_eq!(seen, expected.map(|(path, kind)| (path.to_owned(), kind)));
        drop(watching);
        // 60,000 changes while nobody reads: the queues are bounded and say that they overflowed.
        let mut watching = sandbox.agent().files().watch(&["/work"], 100_000).await.unwrap();
        let flood = "perl -e 'for (1..20000) { open F, \">f$_\"; close F; unlink \"f$_\" }'";
        let said = sh(&sandbox, &plan, flood).await;
        assert_eq!(said.outcome.exit, 0, "{:?} {}", said.outcome, said.stderr);
        let mut lost = false;
        for _ in 0..60_000 {
            if watching.next().await.unwrap().unwrap().kind == ChangeKind::Lost {
                lost = true;
                break;
            }
        }
        assert!(lost, "nothing was dropped");
        drop(watching);
        let mut watching = sandbox.agent().files().watch(&["/work"], 3).await.unwrap();
        sh(&sandbox, &plan, "touch x y z").await;
        for _ in 0..3 {
            assert!(watching.next().await.unwrap().is_some());
        }
        assert!(watching.next().await.unwrap().is_none());
        verified(&sandbox.wipe("task-end").await);
    });
}

const ECHO: &str = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \
                    \"127.0.0.1\", LocalPort => 7777) or exit 1; $| = 1; print \"up\\n\"; \
                    while ($c = $l->accept) { $n = 0; while (sysread($c, $b, 65536)) { \
                    $n += length $b; syswrite($c, $b) } syswrite($c, \" $n\"); close $c }'";

/// Starts a server in the sandbox and returns when it listens.
async fn serve(sandbox: &Sandbox, text: &str) {
    // It serves as long as its test dials, which on a busy machine is longer than any command takes.
    let service = ExecRequest { timeout_ms: 300_000, ..script(text) };
    let running = sandbox.agent().start(service, ExecOptions::default()).await.unwrap();
    let ended = tokio::spawn(running.follow(|_, _| {}));
    let clock = Stopwatch::start();
    while sandbox.agent().dial(7_777).await.is_err() {
        assert!(clock.elapsed_ms() < 10_000 && !ended.is_finished(), "it does not listen");
        clock::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn a_port_is_dialled_both_ways_and_a_silent_one_is_an_error() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        assert_eq!(refused(sandbox.agent().dial(7_777).await.unwrap_err()), 502);
        assert_eq!(refused(sandbox.agent().dial(0).await.unwrap_err()), 400);
        serve(&sandbox, ECHO).await;
        let stream = sandbox.agent().dial(7_777).await.unwrap();
        let (mut from, mut to) = tokio::io::split(stream);
        let writing = tokio::spawn(async move {
            for _ in 0..64 {
                to.write_all(&[9; 65_536]).await.unwrap();
            }
            to.shutdown().await.unwrap();
        });
        let mut back = Vec::new();
        from.read_to_end(&mut back).await.unwrap();
        writing.await.unwrap();
        let total = 64 * 65_536;
        assert_eq!(back.len(), total + 8);
        assert_eq!(&back[total..], b" 4194304");
        // A stream that its host closes in the middle leaves the next one alone.
        drop(sandbox.agent().dial(7_777).await.unwrap());
        let mut stream = sandbox.agent().dial(7_777).await.unwrap();
        stream.write_all(b"again").await.unwrap();
        let mut back = [0; 5];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"again");
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Says a lot to whoever comes, and hears nothing.
const TALKER: &str = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 5, LocalAddr => \
                      \"127.0.0.1\", LocalPort => 7777) or exit 1; $SIG{PIPE} = \"IGNORE\"; \
                      while ($c = $l->accept) { for (1..8) { syswrite($c, \"x\" x 65536) or last } \
                      close $c }'";

/// What is on its way when its stream is let go meets nobody; a library that counts such gives the
/// connection up at a thousand.
#[test]
fn streams_that_are_let_go_in_the_middle_never_end_the_sandbox_however_many_they_are() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        serve(&sandbox, TALKER).await;
        for _ in 0..2_500 {
            let mut stream = sandbox.agent().dial(7_777).await.unwrap();
            stream.read_exact(&mut [0; 1]).await.unwrap();
        }
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn an_agent_that_dies_ends_every_stream() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        serve(&sandbox, ECHO).await;
        let mut stream = sandbox.agent().dial(7_777).await.unwrap();
        let mut watching = sandbox.agent().files().watch(&["/work"], 9).await.unwrap();
        sandbox.kill_handle().kill();
        assert!(watching.next().await.is_err());
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.is_empty());
        assert!(sandbox.agent().files().read("/etc/passwd", 9_999).await.is_err());
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn the_sandbox_measures_itself() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let before = sandbox.agent().metrics().await.unwrap();
        assert_eq!(before.processes, 1);
        assert!(before.agent_rss_kb > 0 && before.agent_rss_kb <= before.rss_kb);
        assert_eq!(before.disk_bytes, 64 * 1024 * 1024);
        let burn = "perl -e '1 while times < 0.3'; head -c 8000000 /dev/zero > big";
        sh(&sandbox, &plan, burn).await;
        let after = sandbox.agent().metrics().await.unwrap();
        assert!(after.cpu_ms >= before.cpu_ms + 200, "{before:?} {after:?}");
        assert!(before.disk_free_bytes - after.disk_free_bytes >= 8_000_000);
        println!("resident memory of an idle agent: {} KiB", before.agent_rss_kb);
        verified(&sandbox.wipe("task-end").await);
    });
}
