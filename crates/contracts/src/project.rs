//! Where a project of the host lies in a sandbox.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent_plan::PROJECT;
use crate::enum_names::named;

named! {
    /// Where an agent finds its project.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
    pub enum ProjectLocation {
        /// At its own path, and at `/work` as well.
        #[default]
        Own = "own",
        /// At `/work` alone.
        Work = "work",
    }
}

/// Directories that a sandbox has of its own.
const OWN: [&str; 15] = [
    "/.cofferdam",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
    "/work",
];
/// Its own path, as virtual environments, build caches and linked worktrees have it in their files. Where that is a place of
/// the sandbox's own, `/work`.
#[must_use]
pub fn place(dir: &str) -> &str {
    let (path, top) = (Path::new(dir), ["/", "/home", "/root", "/tmp", "/var"]);
    match OWN.iter().any(|own| path.starts_with(own)) || top.contains(&dir) {
        true => PROJECT,
        false => dir,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_lies_at_its_own_path_unless_the_sandbox_has_that() {
        for own in ["/home/ann/a", "/root/a", "/tmp/a/b", "/srv/usr", "/workspace", "/usrlocal"] {
            assert_eq!(place(own), own);
        }
        for theirs in [
            "/",
            "/home",
            "/tmp",
            "/root",
            "/usr/src/a",
            "/etc",
            "/dev/shm/a",
            "/run/user/0/a",
            "/work/a",
        ] {
            assert_eq!(place(theirs), "/work", "{theirs}");
        }
    }
}
