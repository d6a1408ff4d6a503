//! Commands in real sandboxes: what they print, how they end, and what ends them.

use crate::support;

use std::time::Duration;

use cofferdam_ambient::clock::{self, Stopwatch};
use cofferdam_contracts::sandbox::{AccessMode, ErrCode, WipeStatus};
use cofferdam_sandbox::{Command, SandboxError, enter_private_mounts};
use serde_json::json;
use support::{host, run, sh, test_process, verified, with_bench, with_runtime, write};

#[test]
fn a_command_prints_on_both_streams_and_exits() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({"env": {"WHO": "world"}})).await;
        let said = sh(&sandbox, &plan, "echo hello $WHO; echo oops >&2; pwd; exit 3").await;
        assert_eq!(said.stdout, "hello world\n/work\n");
        assert_eq!(said.stderr, "oops\n");
        assert_eq!((said.outcome.exit, said.outcome.err_code), (3, ErrCode::CmdNonzero));
        assert!(said.outcome.cause.unwrap().contains("exit status 3"));
        assert!(sandbox.peak_mem_mb() > 0);
        assert_eq!(sandbox.effective().runtime, bench.host.facts().runtime.name);
        let evidence = sandbox.wipe("task-end").await;
        verified(&evidence);
        assert_eq!(evidence.method, "tmpfs-unmount");
        assert!(evidence.base_before.is_some() && evidence.base_before == evidence.base_after);
        assert!(evidence.checks.iter().any(|check| check.kind() == "netns"));
    });
}

#[test]
fn runc_holds_sandboxes_too() {
    with_runtime(Some("runc"), |bench| async move {
        let said = bench.sh("echo hello; exit 4", json!({})).await;
        assert_eq!((said.stdout.as_str(), said.outcome.exit), ("hello\n", 4));
    });
}

/// In mounts that no test beside this one has a copy of, and that are its parent's too.
#[test]
fn without_private_mounts_a_sandbox_lives_and_says_that_it_is_weaker() {
    enter_private_mounts().unwrap();
    let test = test_process("commands::in_its_parents_mounts");
    let mut parent = std::process::Command::new("sh");
    parent.args(["-c", "\"$@\"; exit $?", "sh"]).arg(test.get_program()).args(test.get_args());
    assert!(parent.status().unwrap().success());
}

#[test]
#[ignore = "another test starts it as a process of its own"]
fn in_its_parents_mounts() {
    support::here(None, |bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        assert_eq!(sh(&sandbox, &plan, "echo hello").await.stdout, "hello\n");
        let weak = &sandbox.effective().weak;
        assert!(weak.iter().any(|text| text.contains("no private mount namespace")), "{weak:?}");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn threads_and_the_smallest_limits_work() {
    with_bench(|bench| async move {
        let limits = json!({"limits": {"memMB": 64, "diskMB": 1, "pids": 3, "cpu": 0.2}});
        let script = "python3 -c 'import threading; t = threading.Thread(target=print, args=(7,)); \
                      t.start(); t.join()'";
        assert_eq!(bench.sh(script, limits).await.stdout, "7\n");
        let limits = json!({"limits": {"memMB": 16, "diskMB": 1, "pids": 1, "cpu": 0.05}});
        assert_eq!(bench.sh("echo 8", limits).await.stdout, "8\n");
    });
}

#[test]
fn a_signal_is_128_and_its_number() {
    with_bench(|bench| async move {
        for (script, exit) in [("kill -SEGV $$", 139), ("kill -KILL $$", 137), ("kill -40 $$", 168)]
        {
            let said = bench.sh(script, json!({})).await;
            assert_eq!((said.outcome.exit, said.outcome.err_code), (exit, ErrCode::CmdNonzero));
        }
    });
}

#[test]
fn a_missing_command_or_directory_is_said_clearly() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        for (argv, cwd, part, exit) in [
            ("no-such-program", "/work", "\"no-such-program\" was not found", 127),
            ("/no/such/program", "/work", "was not found", 127),
            ("true", "/nowhere", "working directory \"/nowhere\" does not exist", 127),
            ("/etc/passwd", "/work", "could not be started", 126),
        ] {
            let command = Command { argv: vec![argv.into()], cwd: cwd.into(), ..plan.task.clone() };
            let outcome = run(&sandbox, &command).await.outcome;
            assert_eq!((outcome.exit, outcome.err_code), (exit, ErrCode::CmdNonzero));
            assert!(outcome.cause.as_ref().unwrap().contains(part), "{outcome:?}");
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn the_wall_time_ends_what_ignores_sigterm_and_what_hides() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({"timeoutMs": 300})).await;
        for script in [
            "trap '' TERM INT HUP; while :; do sleep 1; done",
            "setsid sh -c 'trap \"\" TERM; sleep 1000' & setsid sleep 1000 & sleep 1000",
        ] {
            let clock = Stopwatch::start();
            let said = sh(&sandbox, &plan, script).await;
            assert_eq!(said.outcome.err_code, ErrCode::Timeout);
            assert!(said.outcome.timed_out);
            assert!((300..3_000).contains(&said.outcome.wall_ms), "{:?}", said.outcome);
            assert!(clock.elapsed_ms() < 5_000);
        }
        // A daemon that outlived its command would be seen here.
        let said = sh(&sandbox, &plan, "ls -d /proc/[0-9]*").await;
        assert_eq!(said.stdout.lines().count(), 2, "{}", said.stdout);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_daemon_that_keeps_the_pipes_open_does_not_hold_its_command() {
    with_bench(|bench| async move {
        let clock = Stopwatch::start();
        let said = bench.sh("(setsid sleep 1000 &) ; echo done", json!({})).await;
        assert_eq!((said.stdout.as_str(), said.outcome.exit), ("done\n", 0));
        assert!(clock.elapsed_ms() < 5_000);
    });
}

#[test]
fn a_memory_bomb_is_an_oom() {
    with_bench(|bench| async move {
        let said = bench.sh("perl -e 'my $x = \"a\" x 500_000_000; sleep 5'", json!({})).await;
        assert_eq!(said.outcome.err_code, ErrCode::Oom, "{:?} {}", said.outcome, said.stderr);
        assert!(said.outcome.oom);
        assert!(said.outcome.cause.unwrap().contains("memory limit"));
    });
}

#[test]
fn a_fork_bomb_stays_within_its_processes() {
    with_bench(|bench| async move {
        // Of each fork that is refused the kernel frees the memory later, on a busy host by tens of megabytes later.
        let limits = json!({"memMB": 512, "diskMB": 64, "pids": 64});
        let (sandbox, plan) = bench.start(json!({"timeoutMs": 1_000, "limits": limits})).await;
        let bomb = "perl -e 'while (1) { fork }'";
        let outcome = sh(&sandbox, &plan, bomb).await.outcome;
        assert_eq!(outcome.err_code, ErrCode::Timeout);
        assert!(outcome.cause.as_ref().unwrap().contains("limit on processes"), "{outcome:?}");
        // The sandbox is usable again, so every process of the bomb is gone.
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_flood_is_bounded_and_counted() {
    with_bench(|bench| async move {
        let said = bench.sh("head -c 20000000 /dev/zero; head -c 9000000 /dev/zero >&2", json!({}));
        let said = said.await;
        let limit = 8 * 1024 * 1024;
        assert_eq!((said.stdout.len(), said.stderr.len()), (limit, limit));
        assert_eq!(said.outcome.dropped.stdout, 20_000_000 - 8 * 1024 * 1024);
        assert_eq!(said.outcome.dropped.stderr, 9_000_000 - 8 * 1024 * 1024);
        assert_eq!(said.outcome.exit, 0);
    });
}

#[test]
fn r25_a_renamed_directory_is_told_whole_and_its_mark_is_the_kernels_alone() {
    with_bench(|bench| async move {
        let project = bench.shared("moved");
        for name in ["dir/in/a", "dir/in/gone", "dir/b", "kept"] {
            write(&project.join(name), "before");
        }
        let input = host("/work", project.clone(), AccessMode::WorkspaceWrite);
        let (sandbox, plan) = bench.start_with(json!({}), &[input]).await;
        let script = "perl -e 'rename(\"dir\", \"other\") or die \"$!\"; rename(\"other/in\", \"in\") or die \"$!\"' \
                      && echo after >other/b && rm in/gone && mkdir new";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(said.outcome.exit, 0, "{}", said.stderr);
        let forge = "import os\nfor name in ('trusted.overlay.redirect', 'trusted.overlay.opaque'):\n  \
                     try: os.setxattr('/work/new', name, b'/kept'); print('forged')\n  \
                     except OSError as e: print('refused')";
        let command = Command {
            argv: ["python3", "-c", forge].map(str::to_owned).to_vec(),
            ..plan.task.clone()
        };
        assert_eq!(run(&sandbox, &command).await.stdout, "refused\nrefused\n");
        let told = sandbox.files().changes("/work").await.unwrap();
        let written: Vec<(&str, &[u8])> =
            told.written.iter().map(|file| (file.path.as_str(), file.bytes.as_slice())).collect();
        assert_eq!(written, [("in/a", b"before".as_slice()), ("other/b", b"after\n")]);
        assert_eq!(told.removed, ["dir"]);
        verified(&sandbox.wipe("task-end").await);
        assert_eq!(std::fs::read(project.join("dir/b")).unwrap(), b"before");
    });
}

#[test]
fn a_task_cannot_kill_read_or_starve_its_agent() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let said = sh(&sandbox, &plan, "kill -9 1; sleep 0.1; echo still here").await;
        assert_eq!(said.stdout, "still here\n");
        let said = sh(&sandbox, &plan, "kill -9 -1; sleep 0.1; echo still here").await;
        assert!(said.stdout.contains("still here") || said.outcome.exit == 137);
        for path in ["/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0"] {
            let said = sh(&sandbox, &plan, &format!("head -c 1 {path}")).await;
            assert_ne!(said.outcome.exit, 0, "{path}");
        }
        assert_eq!(sh(&sandbox, &plan, "echo alive").await.stdout, "alive\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn an_agent_that_dies_ends_its_command() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let pid = nix::unistd::Pid::from_raw(sandbox.init_pid().try_into().unwrap());
        let killer = tokio::spawn(async move {
            clock::sleep(Duration::from_millis(100)).await;
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        });
        let outcome = sh(&sandbox, &plan, "sleep 1000").await.outcome;
        killer.await.unwrap();
        assert_eq!((outcome.exit, outcome.err_code), (137, ErrCode::CmdNonzero));
        assert!(outcome.cause.unwrap().contains("agent ended"));
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_kill_from_outside_ends_a_command_at_once() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let kill = sandbox.kill_handle();
        let killer = tokio::spawn(async move {
            clock::sleep(Duration::from_millis(100)).await;
            kill.kill();
            kill
        });
        let clock = Stopwatch::start();
        let command = Command { argv: vec!["sleep".into(), "1000".into()], ..plan.task };
        let ended = sandbox.exec(&command, |_, _| {}).await;
        assert!(matches!(ended, Err(SandboxError::Killed)));
        assert!(clock.elapsed_ms() < 2_000);
        let kill = killer.await.unwrap();
        let evidence = sandbox.wipe("canceled").await;
        verified(&evidence);
        assert_eq!(evidence.reason, "canceled");
        kill.kill();
    });
}

#[test]
fn eight_sandboxes_live_beside_each_other() {
    with_bench(|bench| async move {
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..8 {
            let bench = std::sync::Arc::clone(&bench);
            tasks.spawn(async move {
                let script = format!("echo {index} > /tmp/x; sleep 0.2; cat /tmp/x");
                assert_eq!(bench.sh(&script, json!({})).await.stdout, format!("{index}\n"));
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
}

#[test]
fn a_dropped_sandbox_stops_and_is_an_orphan() {
    with_bench(|bench| async move {
        let (sandbox, _) = bench.start(json!({})).await;
        let (id, pid) = (sandbox.id().clone(), sandbox.init_pid());
        drop(sandbox);
        let evidence = cofferdam_sandbox::reconcile(&bench.host, |_| false).await;
        assert_eq!(evidence.len(), 1);
        assert_eq!((&evidence[0].sandbox_id, evidence[0].status), (&id, WipeStatus::Verified));
        assert!(!support::is_running(pid));
    });
}
