//! What a request names on the host, held against what the host allows: by real sandboxes.

use crate::support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cofferdam_contracts::sandbox::{AccessMode, ErrCode};
use cofferdam_sandbox::{Sandbox, provision};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use support::{Bench, host, sh, verified, with_bench, write};

/// A sandbox on this directory; nothing needs to run in it, since the agent collects its files.
async fn base_of(bench: &Bench, dir: &Path) -> Result<Sandbox, cofferdam_sandbox::ProvisionError> {
    let plan = bench.plan(json!({"envRef": format!("dir:{}", dir.display())}));
    provision(&bench.host, &plan, &[]).await
}

#[test]
fn c1_a_base_behind_a_link_is_refused() {
    with_bench(|bench| async move {
        write(&bench.shared("root/hello"), "hi");
        symlink("/etc", bench.shared("cfg")).unwrap();
        symlink(bench.state.path(), bench.shared("state")).unwrap();
        symlink("root", bench.shared("near")).unwrap();
        symlink("..", bench.shared("up")).unwrap();
        for name in ["cfg", "cfg/ssl", "state", "state/base", "near", "up", "missing"] {
            let error = base_of(&bench, &bench.shared(name)).await.unwrap_err();
            assert_eq!(error.code, ErrCode::BootFail, "{name}: {error}");
            assert!(error.message.contains("is not there, or not within"), "{name}: {error}");
            assert_eq!(error.evidence.checks.iter().filter(|check| !check.ok).count(), 0);
        }
        let sandbox = base_of(&bench, &bench.shared("root")).await.unwrap();
        assert_eq!(
            sandbox.files().collect("/", &["hello".to_owned()]).await.unwrap()[0].bytes,
            b"hi"
        );
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn c1_the_hosts_own_admin_gets_no_state_directory_either() {
    with_bench(|bench| async move {
        let open = bench.host.with_allowed_roots(&["/".into()]).unwrap();
        symlink(bench.state.path(), bench.shared("link")).unwrap();
        let (state, above) = (bench.state.path(), bench.state.path().parent().unwrap());
        for source in [state, &state.join("base"), above, &bench.shared("link")] {
            for access in [AccessMode::ReadOnly, AccessMode::WorkspaceWrite, AccessMode::Full] {
                let given = [host("/data", source.to_owned(), access)];
                let error = provision(&open, &bench.plan(json!({})), &given).await.unwrap_err();
                assert!(error.message.contains("a state directory"), "{source:?}: {error}");
            }
        }
        for source in ["/proc", "/sys/kernel", "/dev"] {
            let given = [host("/data", source.into(), AccessMode::ReadOnly)];
            let error = provision(&open, &bench.plan(json!({})), &given).await.unwrap_err();
            assert_eq!(error.code, ErrCode::UploadFail, "{source}: {error}");
        }
    });
}

#[test]
fn l2_a_source_outside_is_one_answer_whether_it_is_there_or_not() {
    with_bench(|bench| async move {
        symlink("/etc/passwd", bench.shared("there")).unwrap();
        symlink("/etc/no-such-file", bench.shared("missing")).unwrap();
        let mut said = Vec::new();
        for source in [
            "/etc/passwd".into(),
            "/etc/no-such-file".into(),
            bench.shared("there"),
            bench.shared("missing"),
            bench.shared("nothing"),
        ] {
            let text = source.to_str().unwrap().to_owned();
            let given = [host("/data", source, AccessMode::ReadOnly)];
            let error = provision(&bench.host, &bench.plan(json!({})), &given).await.unwrap_err();
            assert_eq!(error.code, ErrCode::UploadFail, "{error}");
            said.push(error.message.replace(&text, "X"));
        }
        said.dedup();
        assert_eq!(said.len(), 1, "{said:?}");
    });
}

/// As a local user who may write in an allowed directory would: the names of a directory and of a link to
/// what nobody may have change places all the time.
#[test]
fn h1_an_exchange_of_names_shows_a_sandbox_nothing_from_outside() {
    const STARTS: usize = 24;
    with_bench(|bench| async move {
        let outside = tempfile::tempdir().unwrap();
        write(&bench.shared("d/name"), "inside");
        write(&outside.path().join("name"), "outside");
        symlink(outside.path(), bench.shared("l")).unwrap();
        write(&bench.shared("file"), "inside");
        symlink(outside.path().join("name"), bench.shared("k")).unwrap();
        let is_over = AtomicBool::new(false);
        let swap = |a: &Path, b: &Path| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            }
        };
        let (d, l) = (bench.shared("d"), bench.shared("l"));
        let (file, k) = (bench.shared("file"), bench.shared("k"));
        let handle = tokio::runtime::Handle::current();
        let ended = thread::scope(|scope| {
            scope.spawn(|| swap(&d, &l));
            scope.spawn(|| swap(&file, &k));
            let starts = scope.spawn(|| {
                let all = (0..STARTS).map(|count| handle.block_on(seen(&bench, count)));
                all.filter(|was_made| *was_made).count()
            });
            let ended = starts.join();
            is_over.store(true, Ordering::Relaxed);
            ended
        });
        let shown = ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(shown <= STARTS);
    });
}

/// Whether a sandbox was made; what it saw must be from inside.
async fn seen(bench: &Bench, count: usize) -> bool {
    let access =
        if count.is_multiple_of(2) { AccessMode::ReadOnly } else { AccessMode::WorkspaceWrite };
    let name = if count % 4 < 2 { "d" } else { "file" };
    let plan = bench.plan(json!({}));
    let given = [host("/opt/x", bench.shared(name), access)];
    let Ok(sandbox) = provision(&bench.host, &plan, &given).await else { return false };
    let said = sh(&sandbox, &plan, "cat /opt/x 2>/dev/null || cat /opt/x/name").await;
    verified(&sandbox.wipe("task-end").await);
    assert_eq!(said.stdout, "inside", "{count}: {}", said.stderr);
    true
}

#[test]
fn what_is_mounted_below_a_shared_directory_stays_the_hosts() {
    with_bench(|bench| async move {
        write(&bench.shared("d/name"), "inside");
        fs::create_dir(bench.shared("d/sub")).unwrap();
        let tmpfs = nix::mount::MsFlags::empty();
        let at = bench.shared("d/sub");
        nix::mount::mount(Some("tmpfs"), &at, Some("tmpfs"), tmpfs, None::<&str>).unwrap();
        write(&at.join("secret"), "mounted");
        let given = [
            host("/opt/x", bench.shared("d"), AccessMode::ReadOnly),
            host("/opt/y", bench.shared("d"), AccessMode::WorkspaceWrite),
        ];
        let (sandbox, plan) = bench.start_with(json!({}), &given).await;
        let said = sh(&sandbox, &plan, "cat /opt/x/name; ls -A /opt/x/sub /opt/y/sub").await;
        assert_eq!(said.stdout, "inside/opt/x/sub:\n\n/opt/y/sub:\n", "{}", said.stderr);
        verified(&sandbox.wipe("task-end").await);
        nix::mount::umount(&at).unwrap();
    });
}
