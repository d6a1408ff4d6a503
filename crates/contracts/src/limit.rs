//! What a sandbox may use, by kind: which limit a task reached is its own answer beside `errCode`.
//!
//! `errCode` says how a task ended and is a closed list that clients know. A limit that was reached
//! may be why, and may as well have been survived, so it stands in a list of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A limit that a task reached, in the order in which a summary names them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LimitKind {
    /// `timeoutMs`: the wall time ran out.
    Wall,
    /// `limits.memMB`: the kernel killed a process for memory.
    Memory,
    /// `limits.pids`: a process or thread was refused.
    Pids,
    /// `limits.diskMB`: the writable layer was full.
    Disk,
    /// `limits.nofile`: a file could not be opened, as the task's own output says.
    Nofile,
    /// `limits.outputBytes`: output was dropped.
    Output,
}

impl LimitKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Wall, Self::Memory, Self::Pids, Self::Disk, Self::Nofile, Self::Output];

    /// The kind as it stands in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Disk => "disk",
            Self::Nofile => "nofile",
            Self::Output => "output",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LimitKind;

    #[test]
    fn a_kind_reads_as_it_is_written() {
        for kind in LimitKind::ALL {
            let text = serde_json::to_value(kind).unwrap();
            assert_eq!(text, kind.as_str());
            assert_eq!(serde_json::from_value::<LimitKind>(text).unwrap(), kind);
        }
    }
}
