//! Ids of its own: what a sandbox's root is on the host, and what it leaves there.

use crate::support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cofferdam_contracts::sandbox::AccessMode;
use cofferdam_sandbox::{
    Class, ClassFact, Host, Offer, Runtime, enter_private_mounts, plan, provision,
};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde_json::{Value, json};
use support::not_run::not_run;
use support::{Bench, fresh_id, here, host, request, sh, verified};

/// With each runtime of the class `container`, where this host can give sandboxes ids of their own.
fn with_each<F: Future<Output = ()>>(test: impl Fn(Arc<Bench>) -> F) {
    enter_private_mounts().expect("these tests need root: run them as root");
    for runtime in Runtime::all() {
        here(runtime.path.to_str(), |bench| {
            let ids = bench.host.facts().ids.clone();
            let test = ids.is_ok().then(|| test(Arc::clone(&bench)));
            async move {
                match test {
                    Some(test) => test.await,
                    None => not_run("ids of a container's own", &ids.unwrap_err().to_string()),
                }
            }
        });
    }
}

/// Claims in the ledger whose end is within this bench.
fn claims(bench: &Bench) -> Vec<PathBuf> {
    let live = &bench.host.facts().live_dir;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let ledger = format!("/run/cofferdam/ids.{}", boot.trim());
    let all = fs::read_dir(ledger).unwrap().flatten();
    all.filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|holder| holder.starts_with(live))
        .collect()
}

fn owner(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

#[test]
fn h7_the_root_of_a_sandbox_is_nobody_on_the_host_and_no_other_sandboxes_root() {
    with_each(|bench| async move {
        let (one, plan_of_one) = bench.start(json!({})).await;
        let (other, _) = bench.start(json!({})).await;
        let ids = [owner(one.init_pid()), owner(other.init_pid())];
        assert!(ids.iter().all(|id| *id >= 65_536), "{ids:?}");
        assert!(ids[0].abs_diff(ids[1]) >= 65_536, "{ids:?}");
        assert_eq!((one.first_id(), other.first_id()), (ids[0], ids[1]));
        assert_eq!(claims(&bench).len(), 2);
        let said = sh(
            &one,
            &plan_of_one,
            "id -u; stat -c %u /usr /etc /work /tmp; touch /work/x; stat -c %u /work/x",
        )
        .await;
        assert_eq!(said.stdout, "0\n".repeat(6), "{}", said.stderr);
        assert!(!one.effective().weak.iter().any(|text| text.contains("user namespace")));
        verified(&one.wipe("task-end").await);
        verified(&other.wipe("task-end").await);
        assert_eq!(claims(&bench), Vec::<PathBuf>::new());
        // The next one has the namespace of one that is gone.
        let (next, _) = bench.start(json!({})).await;
        assert!(ids.contains(&next.first_id()));
        verified(&next.wipe("task-end").await);
    });
}

#[test]
fn a_users_task_drops_to_another_user_and_owns_what_it_writes() {
    with_each(|bench| async move {
        let script = "chown 1000:1000 /work && cat > /tmp/s.py <<'P'\nimport os\nos.setgid(1000); os.setuid(1000)\n\
                      open('/work/mine', 'w').write('x')\nP\n/usr/bin/python3 /tmp/s.py && stat -c '%u %g' /work/mine";
        let said = bench.sh(script, json!({})).await;
        assert_eq!(said.stdout, "1000 1000\n", "{}", said.stderr);
    });
}

const INSTANCES: &str = r"
import ctypes, os, time
libc = ctypes.CDLL(None)
held = []
while True:
    fd = libc.inotify_init1(0)
    if fd < 0 or len(held) > 2000:
        break
    held.append(fd)
print(len(held), flush=True)
while not os.path.exists('/tmp/enough'):
    time.sleep(0.02)
";

#[test]
fn h7_what_a_sandbox_uses_up_of_a_users_kernel_objects_is_its_own() {
    with_each(|bench| async move {
        if !bench.host.facts().ids.as_ref().unwrap().is_owned() {
            assert!(
                bench.plan(json!({})).effective.weak.iter().any(|text| text.contains("inotify"))
            );
            return;
        }
        let (sandbox, plan) = bench.start(json!({})).await;
        let command = cofferdam_sandbox::Command {
            argv: ["/usr/bin/python3", "-c", INSTANCES].map(str::to_owned).to_vec(),
            ..plan.task.clone()
        };
        let (full, is_full) = tokio::sync::oneshot::channel();
        let mut full = Some(full);
        let taking = sandbox.exec(&command, |_, bytes| {
            if let Some(full) = full.take() {
                full.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
            }
        });
        let looking = async {
            let count: usize = is_full.await.unwrap().trim().parse().unwrap();
            assert!(count > 50, "{count}");
            // As root of the host: one more is its own first or tenth.
            let made = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
            assert!(made.is_ok(), "{made:?}");
            sandbox.agent().files().put("/tmp/enough", 0o644, bytes::Bytes::new()).await.unwrap();
        };
        let (ended, ()) = tokio::join!(taking, looking);
        assert_eq!(ended.unwrap().exit, 0);
        verified(&sandbox.wipe("task-end").await);
    });
}

#[test]
fn m2_a_socket_of_the_host_sees_no_root() {
    with_each(|bench| async move {
        let dir = bench.shared("sockets");
        fs::create_dir(&dir).unwrap();
        let path = dir.join("s");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        let inputs = [host("/data", dir, AccessMode::ReadOnly)];
        let (sandbox, plan) = bench.start_with(json!({}), &inputs).await;
        let script = "/usr/bin/python3 -c \"import socket; s = socket.socket(socket.AF_UNIX); s.connect('/data/s')\"";
        let said = sh(&sandbox, &plan, script).await;
        if said.outcome.exit == 0 {
            let (stream, _) = listener.accept().unwrap();
            let peer = getsockopt(&stream, PeerCredentials).unwrap();
            assert_eq!(peer.uid(), sandbox.first_id());
            assert_ne!(peer.uid(), 0);
        }
        verified(&sandbox.wipe("task-end").await);
    });
}

/// A plan whose task writes through to a directory, as only the host's own admin may ask.
fn through(whole: &Host, dir: &Path, fields: Value) -> cofferdam_sandbox::Plan {
    let mut fields = fields;
    fields["filesIn"] =
        json!([{"path": "/data", "uri": format!("host://{}", dir.display()), "access": "full"}]);
    plan(&request(fields), &fresh_id(), whole.facts()).unwrap()
}

#[test]
fn m4_what_a_task_writes_through_is_its_owners_and_never_set_user_id() {
    with_each(|bench| async move {
        for owner in [4_321, 0] {
            let dir = bench.shared(&format!("through-{owner}"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("before"), "before").unwrap();
            for path in [&dir, &dir.join("before")] {
                chown(path, Some(owner), Some(owner)).unwrap();
            }
            let whole = bench.host.with_allowed_roots(&["/".into()]).unwrap();
            let plan = through(&whole, &dir, json!({}));
            let inputs = [host("/data", dir.clone(), AccessMode::Full)];
            let sandbox = provision(&whole, &plan, &inputs).await.unwrap();
            let script = "cat /data/before; echo after > /data/before; stat -c %u /data; cp /usr/bin/id /data/id; \
                          chmod 755 /data/id && echo plain; chmod 4755 /data/id; chmod 2755 /data/id; chmod u+s /data/id; \
                          /usr/bin/python3 -c \"import os; os.close(os.open('/data/new', os.O_CREAT | os.O_RDWR, 0o4755))\"; \
                          mkdir -m 2755 /data/sub; install -m 4755 /usr/bin/id /data/other; stat -c %a /data/*; chmod 4755 /usr/bin/id";
            let said = sh(&sandbox, &plan, script).await;
            assert!(said.stdout.starts_with("before0\nplain\n"), "{}{}", said.stdout, said.stderr);
            verified(&sandbox.wipe("task-end").await);
            assert_eq!(fs::read_to_string(dir.join("before")).unwrap(), "after\n");
            let mut seen = 0;
            for entry in fs::read_dir(&dir).unwrap().flatten() {
                let found = entry.metadata().unwrap();
                assert_eq!(found.mode() & 0o6000, 0, "{:?} {:o}", entry.path(), found.mode());
                assert_eq!((found.uid(), found.gid()), (owner, owner), "{:?}", entry.path());
                seen += 1;
            }
            assert!(seen >= 2, "{seen}");
        }
    });
}

#[test]
fn s72_a_task_that_writes_through_marks_no_state_directory() {
    with_each(|bench| async move {
        let dir = bench.shared("marked");
        fs::create_dir(&dir).unwrap();
        let whole = bench.host.with_allowed_roots(&["/".into()]).unwrap();
        let plan = through(&whole, &dir, json!({}));
        let inputs = [host("/data", dir.clone(), AccessMode::Full)];
        let sandbox = provision(&whole, &plan, &inputs).await.unwrap();
        let script = "cd /data; : > .cofferdam-state; chmod 444 .cofferdam-state; chmod 2444 .cofferdam-state; \
                      mkdir -p sub; : > sub/.cofferdam-state; chmod g+s sub/.cofferdam-state; \
                      /usr/bin/python3 -c \"import os; os.open('/data/.cofferdam-state.2', os.O_CREAT, 0o2444); \
                      os.rename('/data/.cofferdam-state.2', '/data/.cofferdam-state')\"; ls -a /data";
        let said = sh(&sandbox, &plan, script).await;
        assert!(said.stdout.contains(".cofferdam-state"), "{}{}", said.stdout, said.stderr);
        // While it lives, too.
        let shows = async || {
            let plan = through(&whole, &dir, json!({}));
            let inputs = [host("/data", dir.clone(), AccessMode::ReadOnly)];
            let other = provision(&whole, &plan, &inputs).await.unwrap();
            assert_eq!(sh(&other, &plan, "ls -a /data | grep -c state").await.stdout, "1\n");
            verified(&other.wipe("task-end").await);
        };
        shows().await;
        verified(&sandbox.wipe("task-end").await);
        shows().await;
    });
}

#[test]
fn a_failed_start_gives_its_ids_back() {
    with_each(|bench| async move {
        let mut plan = bench.plan(json!({}));
        plan.config["process"]["args"] = json!(["/no/such/agent"]);
        let failed = provision(&bench.host, &plan, &[]).await.unwrap_err();
        verified_or_absent(&failed.evidence);
        assert_eq!(claims(&bench), Vec::<PathBuf>::new());
    });
}

fn verified_or_absent(evidence: &cofferdam_contracts::sandbox::WipeEvidence) {
    assert_eq!(
        evidence.status,
        cofferdam_contracts::sandbox::WipeStatus::Verified,
        "{evidence:#?}"
    );
}

/// The programs of gVisor that were started below this directory, by name.
fn gvisors(name: &str, below: &Path) -> Vec<u32> {
    let below = below.to_str().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(name) && line.contains(below)
    })
    .collect()
}

#[test]
fn a3f2_the_file_server_of_gvisor_has_a_user_namespace_of_its_own() {
    enter_private_mounts().expect("these tests need root: run them as root");
    here(None, |bench| async move {
        if let Err(why) = &bench.host.facts().ids {
            return not_run("ids of a sandbox's own", &why.to_string());
        }
        let classes = &bench.host.facts().classes;
        let is_here = |fact: &&ClassFact| matches!(fact.offer, Offer::Present(_));
        if !classes.iter().filter(is_here).any(|fact| fact.class == Class::Gvisor) {
            return not_run("the class gvisor", "there is no runsc");
        }
        let (sandbox, plan) =
            bench.start(json!({"spec": {"isolation": {"class_min": "gvisor"}}})).await;
        let first = sandbox.first_id();
        assert!(first >= 65_536, "{first}");
        let gofers = gvisors("runsc-gofer", &bench.host.facts().live_dir);
        assert_eq!(gofers.len(), 1, "{gofers:?}");
        let map = fs::read_to_string(format!("/proc/{}/uid_map", gofers[0])).unwrap();
        let map: Vec<&str> = map.split_whitespace().collect();
        assert_eq!(map, ["0", first.to_string().as_str(), "65536"]);
        assert_eq!(owner(gofers[0]), first);
        // Its `statx` knows fewer flags than coreutils use.
        let script = "id -u; touch /work/x /tmp/y; chown 1000 /work/x; /usr/bin/python3 -c \"import os\nfor at in ['/usr', '/etc', \
                      '/work', '/tmp', '/work/x', '/tmp/y']: print(os.stat(at).st_uid)\"";
        let said = sh(&sandbox, &plan, script).await;
        assert_eq!(said.stdout, "0\n0\n0\n0\n0\n1000\n0\n", "{}", said.stderr);
        verified(&sandbox.wipe("task-end").await);
        assert_eq!(claims(&bench), Vec::<PathBuf>::new());
    });
}
