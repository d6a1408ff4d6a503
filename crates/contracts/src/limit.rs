//! What a sandbox may use, by kind: which limit a task reached is its own answer beside `errCode`.
//!
//! `errCode` says how a task ended and is a closed list that clients know. A limit that was reached
//! may be why, and may as well have been survived, so it stands in a list of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::enum_names::named;

named! {
    /// A limit that a task reached, in the order in which a summary names them.
    #[derive(
        Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
    )]
    pub enum LimitKind {
        /// `timeoutMs`: the wall time ran out.
        Wall = "wall",
        /// `limits.memMB`: the kernel killed a process for memory.
        Memory = "memory",
        /// `limits.pids`: a process or thread was refused.
        Pids = "pids",
        /// `limits.diskMB`: the writable layer was full.
        Disk = "disk",
        /// `limits.nofile`: a file could not be opened, as the task's own output says.
        Nofile = "nofile",
        /// `limits.outputBytes`: output was not kept.
        Output = "output",
        /// Files or bytes of `artifacts`: those beyond were not kept.
        Artifacts = "artifacts",
    }
}

#[cfg(test)]
mod tests {
    use super::LimitKind;

    #[test]
    fn a_kind_reads_as_it_is_written() {
        for kind in LimitKind::ALL.iter().copied() {
            let text = serde_json::to_value(kind).unwrap();
            assert_eq!(text, kind.as_str());
            assert_eq!(serde_json::from_value::<LimitKind>(text).unwrap(), kind);
        }
    }
}
