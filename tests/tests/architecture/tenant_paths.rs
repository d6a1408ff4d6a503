//! No path of the host is made by joining to a tree that a tenant may have written: any name in it may be a link, which the
//! host would follow from its own root. `TenantRoot` (crates/sandbox/src/host/tenant_root.rs) gives descriptors instead.

use super::source::product;
use super::sources;

const CRATES: &[&str] = &[
    "crates/sandbox/src",
    "crates/flows/src",
    "crates/live/src",
    "crates/planner/src",
    "crates/cli/src",
];
/// Names that a sandbox's root, its upper layer or an overlay of it have in our code.
const TREES: [&str; 8] = [
    "root",
    "upper",
    "merged",
    "traces.root",
    "rootfs",
    "new_root",
    "plan.traces.root",
    "below_root",
];
/// Files that join to a tree of such a name, how often, and why that leads nowhere.
const JOINS: &[(&str, usize, &str)] = &[
    (
        "crates/sandbox/src/doctor/survey.rs",
        2,
        "an overlay that `doctor` made a moment before; no task was in it",
    ),
    ("crates/sandbox/src/template/packages.rs", 1, "where a link leads is read, and not followed"),
    (
        "crates/sandbox/src/host/holders.rs",
        1,
        "a mount point that the kernel named, whose file system alone is asked for",
    ),
];

/// How often a text joins to such a tree.
fn joins(text: &str) -> usize {
    let code = product(text);
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.trim().chars())
        .collect();
    code.match_indices(".join(")
        .filter(|(at, _)| {
            let before = &code[..*at];
            let name =
                before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).next();
            let name = name.unwrap_or_default();
            TREES.iter().any(|tree| name == *tree || name.ends_with(&format!(".{tree}")))
        })
        .count()
}

#[test]
fn a3f1_no_path_is_joined_to_a_tree_that_a_tenant_wrote() {
    assert_eq!(
        joins("let a = wanted.root.join(\"tmp\"); let b = root\n    .join(x); shoot.join(y)"),
        2
    );
    let mut found = Vec::new();
    for (name, text) in sources(CRATES) {
        if name.ends_with("/tests.rs") || name.ends_with("/fuzz.rs") {
            continue;
        }
        let count = joins(&text);
        if count > 0 {
            found.push((name, count));
        }
    }
    let mut allowed: Vec<(String, usize)> =
        JOINS.iter().map(|(name, count, _)| ((*name).to_owned(), *count)).collect();
    allowed.sort();
    assert_eq!(found, allowed, "open it by `TenantRoot`, or say here why this one leads nowhere");
}
