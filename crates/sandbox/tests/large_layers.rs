//! Layers that are too large for memory: on disk as ciphertext alone, and gone with their key.

use crate::support;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cofferdam_ambient::env;
use cofferdam_contracts::id::SandboxId;
use cofferdam_contracts::sandbox::{WipeCheck, WipeEvidence, WipeStatus};
use cofferdam_sandbox::{
    Grade, Host, HostConfig, LargeLayers, enter_private_mounts, locate, plan, provision, reconcile,
    survey, verify_absent,
};
use serde_json::{Value, json};
use support::not_run::not_run;
use support::{Bench, sh, test_process, verified, with_bench};

const STATE: &str = "COFFERDAM_TEST_STATE";
const MARKER: &str = "the-plaintext-marker-of-a-tenant";

/// Beyond what any host holds in memory; the image is sparse.
fn large() -> Value {
    json!({"limits": {"memMB": 256, "diskMB": 4_200, "pids": 64}})
}

fn is_absent(bench: &Bench) -> bool {
    if let LargeLayers::Absent { why, .. } = &bench.host.facts().large {
        not_run("encrypted layers on disk (fscrypt)", why);
        return true;
    }
    false
}

/// grep reads no holes.
fn holds(image: &Path, text: &str) -> bool {
    let found = Command::new("grep").args(["-qaF", text]).arg(image).status().unwrap();
    assert!(found.code().is_some_and(|code| code < 2), "grep reads the image");
    found.success()
}

fn of<'a>(evidence: &'a WipeEvidence, kind: &str) -> &'a WipeCheck {
    let mut all = evidence.checks.iter().filter(|check| check.kind() == kind);
    all.next().expect(kind)
}

fn devices(image: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir("/sys/block").unwrap().flatten();
    let behind =
        |path: &Path| fs::read_to_string(path.join("loop/backing_file")).unwrap_or_default();
    all.map(|one| one.path()).filter(|one| behind(one).contains(image.to_str().unwrap())).collect()
}

#[test]
fn a_large_layer_is_ciphertext_on_disk_and_its_key_is_destroyed_by_the_wipe() {
    with_bench(|bench| async move {
        if is_absent(&bench) {
            return;
        }
        let (sandbox, plan) = bench.start(large()).await;
        let image = plan.traces.image.clone();
        let script = format!(
            "mkdir {MARKER} && for i in 1 2 3 4 5 6 7 8; do echo {MARKER} > {MARKER}/$i; done; \
             yes {MARKER} | head -c 20000000 > {MARKER}/{MARKER}; rm /usr/../etc/hostname; \
             ln -s {MARKER} link; sync; df -m . | tail -1 | awk '{{print $2}}'; cat {MARKER}/7"
        );
        let said = sh(&sandbox, &plan, &script).await;
        let (size, read) = said.stdout.split_once('\n').unwrap();
        assert_eq!(read.trim(), MARKER, "{}", said.stderr);
        let size: u64 = size.parse().unwrap();
        assert!((3_900..=4_200).contains(&size), "{size}");
        let layer = fs::File::open(&plan.traces.layer).unwrap();
        nix::unistd::syncfs(&layer).unwrap();
        drop(layer);
        assert!(!holds(&image, MARKER));
        assert!(holds(&image, "lost+found"), "what is in the clear would be found");
        assert_eq!(devices(&image).len(), 1);

        let evidence = sandbox.wipe("task-end").await;
        verified(&evidence);
        assert_eq!(evidence.method, "fscrypt-key-destroyed");
        assert!(evidence.upper_bytes >= 20_000_000 && evidence.upper_inodes > 8);
        let key = of(&evidence, "key").observed.clone().unwrap();
        assert_eq!(key, "before: present; removal: no file busy; after: absent");
        for kind in ["loop-device", "image"] {
            assert_eq!(of(&evidence, kind).subject(), image.display().to_string());
        }
        assert!(evidence.checks.iter().any(|check| {
            check.kind() == "mount" && Path::new(&check.subject()) == plan.traces.disk
        }));
        assert!(evidence.not_recheckable.iter().any(|said| said.contains("extended attributes")));
        assert!(!image.exists() && devices(&image).is_empty());
    });
}

#[test]
fn the_survey_makes_and_destroys_one_and_leaves_nothing() {
    with_bench(|bench| async move {
        let findings = survey(bench.host.facts());
        let found = findings.iter().find(|one| one.id == "large-layers").unwrap();
        match &bench.host.facts().large {
            LargeLayers::Absent { why, .. } => {
                assert!(found.grade == Grade::Weak && found.found.contains(why), "{found:?}");
            }
            LargeLayers::Present { .. } => {
                assert!(found.grade == Grade::Fact && found.found.contains("tried"), "{found:?}");
                let images = bench.host.facts().state_dir.join("layers");
                assert_eq!(fs::read_dir(images).unwrap().count(), 0);
            }
        }
    });
}

/// The worker: makes a sandbox, says so, and hangs until it is killed.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn worker() {
    enter_private_mounts().unwrap();
    let state_dir = PathBuf::from(env::var(STATE).unwrap());
    let host = Host::detect(HostConfig { state_dir, ..HostConfig::default() }).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut fields = large();
        fields["cmd"] = json!(["sleep", "1000"]);
        fields["timeoutMs"] = json!(1_000_000);
        let plan = plan(&support::request(fields), &support::fresh_id(), host.facts()).unwrap();
        let sandbox = provision(&host, &plan, &[]).await.unwrap();
        println!("\nready {}", sandbox.id());
        std::io::stdout().flush().unwrap();
        sandbox.exec(&plan.task, |_, _| {}).await.unwrap();
    });
}

fn start_worker(bench: &Bench) -> (Child, SandboxId) {
    let mut command = test_process("large_layers::worker");
    let mut child = command.env(STATE, bench.state.path()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = lines
        .map(Result::unwrap)
        .find_map(|line| SandboxId::parse(line.strip_prefix("ready ")?).ok());
    (child, ready.expect("the worker makes a sandbox"))
}

#[test]
fn the_image_of_a_killed_worker_is_an_orphan_whose_key_went_with_its_file_system() {
    with_bench(|bench| async move {
        if is_absent(&bench) {
            return;
        }
        let (mut child, id) = start_worker(&bench);
        let image = locate(bench.state.path(), &id).image;
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(image.exists());
        let evidence = reconcile(&bench.host, |_| false).await;
        assert_eq!(evidence.len(), 1);
        let evidence = &evidence[0];
        assert_eq!((&evidence.sandbox_id, evidence.reason.as_str()), (&id, "orphan"));
        verified(evidence);
        assert!(evidence.method.as_str().starts_with("fscrypt-"), "{:?}", evidence.method);
        assert!(of(evidence, "image").ok && of(evidence, "loop-device").ok);
        assert!(!image.exists() && devices(&image).is_empty());
        assert!(reconcile(&bench.host, |_| false).await.is_empty());
    });
}

#[test]
fn an_image_alone_is_an_orphan_too() {
    with_bench(|bench| async move {
        let id = support::fresh_id();
        let image = locate(bench.state.path(), &id).image;
        support::write(&image, "ciphertext");
        let evidence = reconcile(&bench.host, |_| false).await;
        assert_eq!(evidence.len(), 1);
        assert_eq!((&evidence[0].sandbox_id, evidence[0].status), (&id, WipeStatus::Verified));
        assert_eq!(evidence[0].method, "fscrypt-image-deleted");
        assert!(!image.exists());
    });
}

#[test]
fn the_key_that_the_namespace_of_a_hanging_worker_holds_is_destroyed() {
    with_bench(|bench| async move {
        if is_absent(&bench) {
            return;
        }
        let (mut child, id) = start_worker(&bench);
        let image = locate(bench.state.path(), &id).image;
        // Stopped, it keeps its namespace, and in it the file system.
        let worker = nix::unistd::Pid::from_raw(child.id().try_into().unwrap());
        nix::sys::signal::kill(worker, nix::sys::signal::Signal::SIGSTOP).unwrap();
        assert_eq!(devices(&image).len(), 1);
        let evidence = verify_absent(&bench.host, &id, bench.state.path(), "orphan").await;
        let left = devices(&image);
        child.kill().unwrap();
        child.wait().unwrap();
        verified(&evidence);
        assert!(left.is_empty() && !image.exists());
        assert_eq!(evidence.method, "fscrypt-key-destroyed");
        let key = of(&evidence, "key").observed.clone().unwrap();
        assert_eq!(key, "before: present; removal: no file busy; after: absent");
    });
}
