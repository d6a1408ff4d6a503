//! What it costs to bind a directory of the host by its content, beside `cp -r` and `sha256sum` of the same files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cofferdam_contracts::id::TenantId;
use cofferdam_sandbox::{
    AllowedPaths, BoundTree, HostHandle, HostPath, Links, TreeBounds, TreeShare, TreeStore,
};
use serde_json::json;

use crate::figures::{emit, median};

const DIRS: u32 = 200;
const FILES: u32 = 100;
/// 20,000 of them are 500 MB.
const BYTES: usize = 25_000;
const ROUNDS: usize = 3;

fn fill(dir: &Path) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for outer in 0..DIRS {
        let at = dir.join(format!("d{outer}"));
        fs::create_dir_all(&at).expect("a directory");
        for inner in 0..FILES {
            let mut bytes = Vec::with_capacity(BYTES + 8);
            while bytes.len() < BYTES {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes.extend_from_slice(&state.to_le_bytes());
            }
            bytes.truncate(BYTES);
            fs::write(at.join(format!("f{inner}")), bytes).expect("a file");
        }
    }
}

fn timed(mut command: Command) -> f64 {
    let begun = Instant::now();
    let status = command.stdout(Stdio::null()).status().expect("a program of the host");
    assert!(status.success(), "{command:?}");
    begun.elapsed().as_secs_f64() * 1_000.0
}

fn shell(text: &str, dir: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", text, "sh"]).arg(dir);
    command
}

fn bind(store: &TreeStore, opened: &HostHandle) -> (f64, BoundTree) {
    // As the default of `quota.trees_mb`.
    let tenant = TenantId::parse("default").expect("a tenant");
    let share = TreeShare::of(store, &tenant, 32 << 30);
    let begun = Instant::now();
    let bound = store.bind(opened, TreeBounds::default(), &share).expect("a tree");
    (begun.elapsed().as_secs_f64() * 1_000.0, bound)
}

/// A tree that was just written is bound again.
fn young(opened: &HostHandle, state: &Path) -> f64 {
    let store = TreeStore::of(state);
    let (_, bound) = bind(&store, opened);
    let (ms, same) = bind(&store, opened);
    assert_eq!(same, bound);
    fs::remove_dir_all(state).expect("its copies");
    ms
}

/// `trees_new_ms`: the first binding, in a fresh state directory. `trees_again_ms`: of what did not change, and had not for a minute when
/// it was bound; `young_ms`: of what had. `trees_one_ms`: with one file changed.
pub fn run() {
    let dir = tempfile::tempdir().expect("a directory");
    let source = dir.path().join("source");
    fill(&source);
    let allowed = AllowedPaths::resolved(&["/".into()], Vec::new());
    let said = HostPath::said(source.to_str().expect("a name"));
    let opened = allowed.open(&said, Links::Beneath).expect("a directory");
    let young = young(&opened, &dir.path().join("young"));
    // Every file is older than what is read again.
    std::thread::sleep(Duration::from_secs(65));
    let (mut new, mut again, mut one) = (Vec::new(), Vec::new(), Vec::new());
    let (mut copies, mut sums) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        nix::unistd::sync();
        let state = dir.path().join(format!("state{round}"));
        let store = TreeStore::of(&state);
        let bind = || bind(&store, &opened);
        let (ms, bound) = bind();
        new.push(ms);
        let (ms, same) = bind();
        again.push(ms);
        assert_eq!(same, bound);
        fs::write(source.join("d0/f0"), format!("{round}")).expect("a file");
        std::thread::sleep(Duration::from_millis(200));
        one.push(bind().0);
        fs::remove_dir_all(&state).expect("its copies");
        nix::unistd::sync();
        let copy = dir.path().join("copy");
        let mut cp = Command::new("cp");
        cp.arg("-r").arg(&source).arg(&copy);
        copies.push(timed(cp));
        fs::remove_dir_all(&copy).expect("the copy");
        sums.push(timed(shell("find \"$1\" -type f -print0 | xargs -0 sha256sum", &source)));
    }
    let floor = json!({"files": DIRS * FILES, "n": ROUNDS, "cp_ms": median(copies), "sha256sum_ms": median(sums)});
    emit("trees_new_ms", median(new), "ms", 1_500.0, floor);
    emit("trees_again_ms", median(again), "ms", 200.0, json!({"n": ROUNDS, "young_ms": young}));
    emit("trees_one_ms", median(one), "ms", 1_000.0, json!({"n": ROUNDS}));
}
