//! Somebody on the host keeps what a task wrote: the wipe is not verified, says who, and is when they let go.

use crate::support;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use cofferdam_contracts::sandbox::{WipeEvidence, WipeStatus};
use cofferdam_sandbox::{Plan, Sandbox, plan, provision, verify_again};
use nix::mount::{MsFlags, mount, umount};
use serde_json::json;
use support::{Bench, fresh_id, in_classes, request, sh, verified, with_bench};

/// A process that does something, says so, and ends with its standard input.
struct HostProcess(Child);

impl HostProcess {
    fn new(program: &str, args: &[&str], script: &str) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .args(["/bin/sh", "-c", &format!("{script}; echo ready; read x")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n", "{script}");
        Self(child)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// A sandbox whose task wrote a secret.
async fn secret(bench: &Bench) -> (Sandbox, Plan) {
    let (sandbox, plan) = bench.start(json!({})).await;
    assert_eq!(sh(&sandbox, &plan, "echo secret > /work/s").await.outcome.exit, 0);
    (sandbox, plan)
}

/// Why its one failed check failed.
fn why(evidence: &WipeEvidence, kind: &str) -> String {
    assert_eq!(evidence.status, WipeStatus::Failed, "{evidence:#?}");
    let failed: Vec<_> = evidence.checks.iter().filter(|check| !check.ok).collect();
    assert_eq!((failed.len(), failed[0].kind().as_str()), (1, kind), "{evidence:#?}");
    failed[0].observed.clone().unwrap()
}

async fn again(bench: &Bench, evidence: &WipeEvidence) -> WipeEvidence {
    verify_again(&bench.host, evidence, bench.state.path()).await
}

/// Once nobody has a copy, another look verifies the wipe.
async fn settles(bench: &Bench, evidence: &WipeEvidence) {
    let settled = again(bench, evidence).await;
    assert_eq!(settled.status, WipeStatus::Verified, "{settled:#?}");
}

/// A process of the host that has this file of the task's open is named by the wipe, which settles once it is gone.
async fn is_named(bench: &Bench, (sandbox, plan): (Sandbox, &Plan), file: &str) {
    let wrote = sh(&sandbox, plan, &format!("echo secret > {file}")).await;
    assert_eq!(wrote.outcome.exit, 0);
    let open = format!("exec 9< /proc/{}/root{file}", sandbox.init_pid());
    let process = HostProcess::new("/usr/bin/env", &[], &open);
    let evidence = sandbox.wipe("task-end").await;
    let said = why(&evidence, "layer");
    assert!(said.contains(&format!("process {} ", process.0.id())), "{said}");
    drop(process);
    settles(bench, &evidence).await;
}

#[test]
fn m5_an_open_file_of_a_host_process_is_a_copy_and_the_wipe_says_whose() {
    with_bench(|bench| async move {
        let (sandbox, _) = secret(&bench).await;
        let open = format!("exec 9< /proc/{}/root/work/s", sandbox.init_pid());
        let process = HostProcess::new("/usr/bin/env", &[], &open);
        let pid = process.0.id();
        let evidence = sandbox.wipe("task-end").await;
        let said = why(&evidence, "layer");
        assert!(said.contains(&format!("process {pid} (\"sh\") by descriptor 9")), "{said}");
        let mut still = fs::read_to_string(format!("/proc/{pid}/fd/9")).unwrap();
        assert_eq!(still, "secret\n", "which is why it is not verified");
        still.clear();
        let second = again(&bench, &evidence).await;
        let still = why(&second, "layer");
        assert!(still.contains(&format!("process {pid} (\"sh\")")), "{still}");
        drop(process);
        settles(&bench, &second).await;
    });
}

/// `/dev` of a container with ids of its own lies in its layer, with its shared memory.
#[test]
fn m5_an_open_file_beside_the_devices_or_in_shared_memory_is_a_copy_too() {
    with_bench(|bench| async move {
        for file in ["/dev/s", "/dev/shm/s"] {
            let (sandbox, plan) = bench.start(json!({})).await;
            is_named(&bench, (sandbox, &plan), file).await;
        }
    });
}

#[test]
fn m5_a_second_mount_in_any_namespace_is_a_copy_and_the_wipe_says_where() {
    with_bench(|bench| async move {
        let second = bench.shared("second");
        fs::create_dir(&second).unwrap();
        let (sandbox, plan) = secret(&bench).await;
        let (layer, none) = (&plan.traces.layer, None::<&str>);
        mount(Some(layer), &second, none, MsFlags::MS_BIND, none).unwrap();
        let evidence = sandbox.wipe("task-end").await;
        let said = why(&evidence, "layer");
        assert!(said.contains("a mount at") && said.contains("second"), "{said}");
        umount(&second).unwrap();
        settles(&bench, &evidence).await;
        // A program with mounts of its own has a copy of all that was mounted when it started.
        let (sandbox, _) = secret(&bench).await;
        let process = HostProcess::new("/usr/bin/unshare", &["--mount"], "true");
        let evidence = sandbox.wipe("task-end").await;
        let said = why(&evidence, "layer");
        assert!(said.contains(&format!("process {} ", process.0.id())), "{said}");
        drop(process);
        settles(&bench, &evidence).await;
    });
}

/// The root of one that lives long is in no table, and whoever has a file of it is found.
#[test]
fn m5_a_root_that_is_mounted_nowhere_is_looked_for_like_any_other() {
    with_bench(|bench| async move {
        for file in ["/work/s", "/dev/shm/s"] {
            let (mut sandbox, plan) = secret(&bench).await;
            let root = plan.traces.root.to_string_lossy().into_owned();
            let is_mounted =
                || fs::read_to_string("/proc/thread-self/mountinfo").unwrap().contains(&root);
            assert!(is_mounted());
            sandbox.let_root_go().await;
            assert!(!is_mounted());
            is_named(&bench, (sandbox, &plan), file).await;
        }
        let (mut sandbox, _) = secret(&bench).await;
        sandbox.let_root_go().await;
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn m5_a_descriptor_that_no_table_shows_is_still_a_copy() {
    with_bench(|bench| async move {
        use std::os::fd::AsFd as _;
        use std::os::unix::net::UnixStream;
        let (sandbox, _) = secret(&bench).await;
        let file = File::open(format!("/proc/{}/root/work/s", sandbox.init_pid())).unwrap();
        // On its way through a socket a file is in no process's table.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [std::io::IoSlice::new(b"x")];
        let flags = rustix::net::SendFlags::empty();
        rustix::net::sendmsg(&ours, &bytes, &mut control, flags).unwrap();
        drop(file);
        let evidence = sandbox.wipe("task-end").await;
        let said = why(&evidence, "layer");
        assert!(said.contains("nobody that can be seen"), "{said}");
        drop((ours, theirs));
        settles(&bench, &evidence).await;
    });
}

#[test]
fn m5_a_network_namespace_that_is_mounted_somewhere_is_not_gone() {
    with_bench(|bench| async move {
        let at = bench.shared("net");
        fs::write(&at, "").unwrap();
        let (sandbox, _) = bench.start(json!({})).await;
        let net = format!("/proc/{}/ns/net", sandbox.init_pid());
        mount(Some(net.as_str()), &at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let evidence = sandbox.wipe("task-end").await;
        let said = why(&evidence, "netns");
        assert!(said.contains("a mount at") && said.contains("net"), "{said}");
        umount(&at).unwrap();
        settles(&bench, &evidence).await;
    });
}

/// Starts of others copy all mounts for a moment: a wipe beside them waits for that and is verified.
#[test]
fn m5_wipes_beside_many_starts_are_verified() {
    with_bench(|bench| async move {
        const AT_ONCE: usize = 4;
        const ROUNDS: usize = 12;
        let all = (0..AT_ONCE).map(|_| {
            let bench = std::sync::Arc::clone(&bench);
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let (sandbox, _) = secret(&bench).await;
                    let evidence = sandbox.wipe("task-end").await;
                    verified(&evidence);
                    assert!(evidence.checks.iter().any(|check| check.kind() == "layer"));
                }
            })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap();
        }
    });
}

/// Whatever holds a sandbox of another class has no copy of this one's mounts.
#[test]
fn m5_a_sandbox_of_another_class_keeps_no_copy() {
    in_classes(&[], |bench| async move {
        let plan = plan(&request(json!({})), &fresh_id(), bench.host.facts()).unwrap();
        let first = provision(&bench.host, &plan, &[]).await.unwrap();
        assert_eq!(sh(&first, &plan, "echo secret > /work/s").await.outcome.exit, 0);
        let (beside, _) = bench.start(json!({})).await;
        verified(&first.wipe("task-end").await);
        verified(&beside.wipe("task-end").await);
    });
}
