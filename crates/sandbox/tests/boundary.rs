//! What a task can reach, and what it cannot.

use crate::support;

use std::fs;
use std::os::unix::net::UnixListener;

use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::sandbox::{AccessMode, ErrCode};
use cofferdam_sandbox::{Input, SandboxError, provision};
use serde_json::json;
use support::not_run::not_run;
use support::{assert_given, given, host, sh, verified, with_bench, write};

#[test]
fn there_is_no_network_but_loopback() {
    with_bench(|bench| async move {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = |host: &str, port: u16| {
            format!(
                "perl -MIO::Socket::INET -e 'exit(IO::Socket::INET->new(PeerAddr => \"{host}\", \
                 PeerPort => {port}, Timeout => 2) ? 0 : 7)'"
            )
        };
        let (sandbox, plan) = bench.start(json!({})).await;
        for (host, port) in [("127.0.0.1", port), ("1.1.1.1", 443), ("169.254.169.254", 80)] {
            assert_eq!(sh(&sandbox, &plan, &connect(host, port)).await.outcome.exit, 7, "{host}");
        }
        // Sockets that no network namespace holds: vsock reaches the hypervisor, 38 is AF_ALG.
        for family in [40, 38, 17, 15] {
            let open = format!("perl -e 'socket(my $s, {family}, 1, 0) and exit 1; exit $!'");
            assert_eq!(sh(&sandbox, &plan, &open).await.outcome.exit, 97, "{family}");
        }
        let links = sh(&sandbox, &plan, "tail -n +3 /proc/net/dev | cut -d: -f1").await;
        assert_eq!(links.stdout.trim(), "lo");
        // Its own loopback works: tests start servers.
        let own = "perl -MIO::Socket::INET -e '$l = IO::Socket::INET->new(Listen => 1, LocalAddr => \
                   \"127.0.0.1\") or exit 1; exit(IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", \
                   PeerPort => $l->sockport) ? 0 : 2)'";
        assert_eq!(sh(&sandbox, &plan, own).await.outcome.exit, 0);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn the_host_file_system_is_read_only_or_absent() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        for script in [
            "touch /usr/x",
            "rm /usr/bin/true",
            "touch /etc/alternatives/x",
            "echo 1 > /proc/sys/vm/drop_caches",
            "echo b > /proc/sysrq-trigger",
            "mknod /tmp/sda b 8 0",
            "mount -t tmpfs none /mnt",
            "unshare -U true",
            "unshare -m true",
            "ls /proc/1/root/",
        ] {
            assert_ne!(sh(&sandbox, &plan, script).await.outcome.exit, 0, "{script}");
        }
        let state = bench.host.facts().live_dir.display();
        let said = sh(&sandbox, &plan, &format!("ls {state} /home /root /srv; ls -A /root")).await;
        assert!(!said.stdout.contains("sandboxes"), "{}", said.stdout);
        let said =
            sh(&sandbox, &plan, "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status").await;
        assert_eq!(
            said.stdout.split_whitespace().collect::<Vec<_>>(),
            ["CapEff:", "00000000000004fb", "NoNewPrivs:", "1", "Seccomp:", "2"],
        );
        verified(&sandbox.wipe("task-end").await);
    });
}

/// Debian 13's pip reads them as it starts, before it knows where it goes.
#[test]
fn b1_the_hosts_authorities_are_where_programs_look_for_them() {
    const USUAL: &str = "/etc/ssl/certs/ca-certificates.crt";
    let Ok(trusted) = fs::read(USUAL) else {
        return not_run("the host's authorities", "apt-get install ca-certificates");
    };
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let said = sh(&sandbox, &plan, &format!("sha256sum < {USUAL}")).await;
        let digest = digest_bytes(&trusted);
        assert_eq!(said.stdout, format!("{}  -\n", digest.as_str()), "{}", said.stderr);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_full_layer_is_enospc_and_leaves_the_sandbox_usable() {
    with_bench(|bench| async move {
        let (sandbox, plan) =
            bench.start(json!({"limits": {"memMB": 256, "diskMB": 16, "pids": 64}})).await;
        let said = sh(&sandbox, &plan, "head -c 50000000 /dev/zero > /work/big").await;
        assert_ne!(said.outcome.exit, 0);
        assert!(said.stderr.contains("No space left"), "{}", said.stderr);
        assert_eq!(sh(&sandbox, &plan, "rm /work/big; echo ok").await.stdout, "ok\n");
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn a_host_directory_is_copied_on_write_or_read_only() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start_with(json!({}), &given(&bench)).await;
        assert_given(&bench, sandbox, &plan, verified).await;
    });
}

/// What perl ends with where nobody listens.
const ECONNREFUSED: i32 = 111;

/// A read-only directory shows a socket of the host, and leads to no listener: the task is the host's root
/// to whoever asks who connects.
#[test]
fn m2_a_read_only_directory_leads_to_no_socket_of_the_host() {
    with_bench(|bench| async move {
        write(&bench.shared("ro/sub/b.txt"), "read");
        let listener = UnixListener::bind(bench.shared("ro/sub/s")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let access = [AccessMode::ReadOnly, AccessMode::WorkspaceWrite];
        let given = access.map(|access| {
            let at = if access == AccessMode::ReadOnly { "/data" } else { "/copy" };
            host(at, bench.shared("ro"), access)
        });
        let (sandbox, plan) = bench.start_with(json!({}), &given).await;
        for at in ["/data", "/copy"] {
            let connect = format!(
                "perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 1; \
                 connect($s, pack_sockaddr_un(\"{at}/sub/s\")) or exit $!; exit 0'"
            );
            let said = sh(&sandbox, &plan, &connect).await;
            assert_eq!(said.outcome.exit, ECONNREFUSED, "{at}");
        }
        assert!(listener.accept().is_err(), "nobody came");
        let script = "cat /data/sub/b.txt; ls -A /data/sub; echo x > /data/sub/b.txt || echo no; \
                      mkdir /data/x || echo no; rm /data/sub/b.txt || echo no; chmod 0 /data || echo no";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(said.stdout, "readb.txt\ns\nno\nno\nno\nno\n", "{}", said.stderr);
        verified(&sandbox.wipe("task-end").await);
        // The socket itself is nothing that is given.
        let alone = [host("/data/s", bench.shared("ro/sub/s"), AccessMode::ReadOnly)];
        let error = provision(&bench.host, &bench.plan(json!({})), &alone).await.unwrap_err();
        assert!(error.message.contains("neither a file nor a directory"), "{error}");
        assert_eq!(fs::read_to_string(bench.shared("ro/sub/b.txt")).unwrap(), "read");
    });
}

#[test]
fn a_source_outside_the_allowed_roots_is_an_upload_failure_with_evidence() {
    with_bench(|bench| async move {
        std::os::unix::fs::symlink("/etc", bench.shared("link")).unwrap();
        for source in ["link", "../../etc", "missing"] {
            let plan = bench.plan(json!({}));
            let input = host("/data", bench.shared(source), AccessMode::ReadOnly);
            let error = provision(&bench.host, &plan, &[input]).await.unwrap_err();
            assert_eq!(error.code, ErrCode::UploadFail, "{error}");
            assert!(error.evidence.checks.iter().all(|check| check.ok));
        }
    });
}

#[test]
fn a_file_that_does_not_fit_is_an_upload_failure_and_wiped() {
    with_bench(|bench| async move {
        let plan = bench.plan(json!({"limits": {"memMB": 128, "diskMB": 1, "pids": 8}}));
        let input =
            Input::Bytes { path: "/work/big".into(), bytes: vec![7; 3_000_000], mode: 0o644 };
        let error = provision(&bench.host, &plan, &[input]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::UploadFail);
        assert!(error.message.contains("No space left"), "{error}");
        verified(&error.evidence);
        assert_eq!(error.evidence.reason, "boot-fail");
    });
}

#[test]
fn a_root_that_cannot_run_is_a_boot_failure_and_wiped() {
    with_bench(|bench| async move {
        // Not a directory of allowed roots' making: it vanishes between plan and start.
        let root = bench.shared("root");
        fs::create_dir(&root).unwrap();
        let plan = bench.plan(json!({"envRef": format!("dir:{}", root.display())}));
        fs::remove_dir(&root).unwrap();
        let error = provision(&bench.host, &plan, &[]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::BootFail, "{error}");
        assert_eq!(error.evidence.status, cofferdam_contracts::sandbox::WipeStatus::Verified);
    });
}

#[test]
fn an_input_below_proc_is_a_boot_failure_that_names_it() {
    with_bench(|bench| async move {
        write(&bench.shared("one.txt"), "one");
        let plan = bench.plan(json!({}));
        let input = host("/proc/self/one", bench.shared("one.txt"), AccessMode::ReadOnly);
        let error = provision(&bench.host, &plan, &[input]).await.unwrap_err();
        assert_eq!(error.code, ErrCode::BootFail, "{error}");
        assert!(error.message.contains("/proc"), "{error}");
        // Refused by us or by the runtime, as the sandbox has ids of its own or not: there may be no process.
        assert_eq!(error.evidence.status, cofferdam_contracts::sandbox::WipeStatus::Verified);
    });
}

#[test]
fn a_directory_is_a_root_file_system() {
    with_bench(|bench| async move {
        write(&bench.shared("root/hello"), "hi");
        fs::copy("/bin/true", bench.shared("root/true")).unwrap();
        let root = bench.shared("root");
        let (sandbox, plan) =
            bench.start(json!({"envRef": format!("dir:{}", root.display())})).await;
        let files = sandbox.files().collect("/", &["hello".to_owned()]).await.unwrap();
        assert_eq!(files[0].bytes, b"hi");
        let said = sh(&sandbox, &plan, "true").await;
        assert!(said.outcome.cause.unwrap().contains("not found"));
        verified(&sandbox.wipe("task-end").await);
        assert_eq!(fs::read_dir(bench.shared("root")).unwrap().count(), 2);
    });
}

#[test]
fn files_are_collected_in_order_and_links_are_not_followed() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let script = "mkdir -p logs/deep out; echo 2 > logs/b.txt; echo 1 > logs/a.txt; \
                      echo 3 > logs/deep/c.txt; ln -s /etc/passwd logs/p.txt; ln -s /etc logs/etc; \
                      mkfifo logs/f.txt; ln -s /etc /tmp/root; head -c 200000 /dev/zero > out/z.txt";
        assert_eq!(sh(&sandbox, &plan, script).await.outcome.exit, 0);
        let globs = |list: &[&str]| list.iter().map(|g| (*g).to_owned()).collect::<Vec<_>>();
        let files =
            sandbox.files().collect("/work", &globs(&["logs/**", "out/*.txt"])).await.unwrap();
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["logs/a.txt", "logs/b.txt", "logs/deep/c.txt", "out/z.txt"]);
        assert_eq!(files[0].bytes, b"1\n");
        assert_eq!(files[3].bytes.len(), 200_000);
        for bad in ["../etc/passwd", "/etc/passwd", "logs/../../etc/passwd"] {
            assert!(sandbox.files().collect("/work", &globs(&[bad])).await.is_err(), "{bad}");
        }
        let linked = sandbox.files().collect("/tmp/root", &globs(&["passwd"])).await.unwrap_err();
        assert!(matches!(linked, SandboxError::Agent(_)));
        assert!(linked_text(&linked).contains("symbolic link"), "{}", linked_text(&linked));
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn ten_thousand_files_are_more_than_one_collection_takes() {
    with_bench(|bench| async move {
        let (sandbox, plan) = bench.start(json!({})).await;
        let script = "mkdir many; cd many; seq 1 10000 | xargs touch; mkdir ../few; cd ../few; \
                      seq 1 1000 | xargs touch";
        assert_eq!(sh(&sandbox, &plan, script).await.outcome.exit, 0);
        let error = sandbox.files().collect("/work", &["many/*".to_owned()]).await.unwrap_err();
        let words = error.to_string();
        assert!(words.contains("10000 files match") && words.contains("at most 1000"), "{words}");
        assert_eq!(
            sandbox.files().collect("/work", &["few/*".to_owned()]).await.unwrap().len(),
            1_000
        );
        assert_eq!(sh(&sandbox, &plan, "truncate -s 70000000 few/1").await.outcome.exit, 0);
        let error = sandbox.files().collect("/work", &["few/1".to_owned()]).await.unwrap_err();
        let words = error.to_string();
        assert!(words.contains("70000000 bytes up to \"few/1\""), "{words}");
        assert!(words.contains("at most 67108864"), "{words}");
        verified(&sandbox.wipe("task-end").await);
    });
}

fn linked_text(error: &dyn std::error::Error) -> String {
    let inner = error.source().map(linked_text).unwrap_or_default();
    format!("{error}: {inner}")
}
