//! Who makes a host's path of a tenant's text, and who removes a tree: one module each.

use std::fs;

use super::source::product;
use super::{root, sources};

/// Who turns a text into a real path: files, how often, and whose text it is. A tenant's is `hostpath`'s.
const RESOLVED: &[(&str, usize, &str)] = &[
    ("crates/sandbox/src/host/agents.rs", 3, "the worker's own `PATH`, and its tests"),
    ("crates/sandbox/src/cache/identity.rs", 1, "constant paths of the host"),
    ("crates/sandbox/src/cache/store.rs", 1, "the state directory"),
    ("crates/sandbox/src/host/hostpath/tests.rs", 1, "a directory of the test's own"),
    ("crates/sandbox/src/host/hostpath/mod.rs", 2, "the operator's allowed directories"),
    ("crates/sandbox/src/host/hostpath/register.rs", 1, "the state directory"),
    ("crates/sandbox/src/life/host/detect.rs", 1, "the state directory"),
    ("crates/sandbox/src/images/store.rs", 1, "the state directory"),
    ("crates/sandbox/src/host/toolchains.rs", 4, "the operator's directories of toolchains"),
    ("crates/sandbox/src/host/traces.rs", 1, "the state directory"),
];
/// Where a tenant's text for a host path comes from, as source lines name it.
const TENANTS_TEXT: [&str; 4] =
    [".project_dir", "mount.source", "strip_prefix(\"host://\")", "strip_prefix(\"dir:\")"];
/// What makes a path of a text, or uses one.
const USES: [&str; 6] =
    ["PathBuf::from(", "Path::new(", "canonicalize(", "fs::", "File::", "open("];
/// Lines behind one with such a text in which it is still at hand.
const NEAR: usize = 4;

/// Files that may remove a tree by recursion, and whose trees these are.
const RECURSIVE: &[(&str, &str)] = &[
    ("sandbox/src/machine/monitor/mod.rs", "a trial of a monitor, in which no task ran"),
    ("sandbox/src/doctor/survey.rs", "an overlay that the survey made"),
    ("sandbox/src/host/base.rs", "a skeleton of ours"),
    ("sandbox/src/host/idrange/ledger.rs", "the register of ids"),
    ("sandbox/src/host/idrange/shift.rs", "a trial of a mount"),
    ("sandbox/src/template/packages.rs", "the package that is built into a template"),
    ("guest/src/agent/file.rs", "its tests"),
    (
        "guest/src/agent/tree.rs",
        "inside: a task that overflows its agent's stack ends its own sandbox",
    ),
    ("guest/src/machine/disk.rs", "the stage of a machine before its task"),
    ("flows/src/vault.rs", "its tests"),
];

/// A tenant's tree is as deep as it has room: what recursed over it would overflow the worker's stack.
#[test]
fn a3f4_no_tree_of_a_tenant_is_removed_by_recursion() {
    let crates = [
        "crates/sandbox/src",
        "crates/flows/src",
        "crates/live/src",
        "crates/planner/src",
        "crates/guest/src",
    ];
    for (name, text) in sources(&crates) {
        let code = product(&text);
        let listed = RECURSIVE.iter().any(|(file, _)| name.ends_with(file));
        assert!(!code.contains("remove_dir_all") || listed, "{name}: use removal::remove_tree");
    }
}

/// A tenant's text becomes a host path in `hostpath` alone: it travels as a `HostPath`, which gives nobody
/// else its text.
#[test]
fn c1_only_one_module_turns_a_tenants_text_into_a_host_path() {
    let crates = [
        "crates/flows/src",
        "crates/http/src",
        "crates/live/src",
        "crates/planner/src",
        "crates/sandbox/src",
        "crates/e2b/src",
        "crates/server/src",
    ];
    for (name, text) in sources(&crates) {
        let found = text.matches("canonicalize(").count();
        let may =
            RESOLVED.iter().find(|(file, ..)| *file == name).map_or(0, |(_, count, _)| *count);
        assert!(found <= may, "{name} resolves {found} paths, {may} are listed with a reason");
        if name.starts_with("crates/sandbox/src/host/hostpath/") {
            assert!(!text.contains("for HostPath {\n    type"), "{name}: HostPath is no Path");
            assert!(!text.contains("AsRef<Path> for HostPath"), "{name}: HostPath is no Path");
            assert!(!text.contains("pub fn path(") && !text.contains("HostPath(pub"), "{name}");
            continue;
        }
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if !TENANTS_TEXT.iter().any(|field| line.contains(field)) {
                continue;
            }
            for near in lines.iter().skip(index).take(NEAR) {
                let wrong = USES.iter().find(|usage| near.contains(**usage));
                let is_typed = near.contains("allowed.open(");
                assert!(wrong.is_none() || is_typed, "{name}:{}: {near}", index + 1);
            }
        }
    }
    let input = fs::read_to_string(root().join("crates/sandbox/src/spec/input.rs")).unwrap();
    let plan = fs::read_to_string(root().join("crates/sandbox/src/spec/plan.rs")).unwrap();
    assert!(input.contains("source: HostPath,") && plan.contains("pub source: HostPath,"));
}
