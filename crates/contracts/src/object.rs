//! Objects of the artifact store, as proofs and errors name them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{Digest, ObjectId, RunId};

/// What is wrong with a store or an object, for a program to branch on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ObjectFault {
    /// The store takes no more bytes.
    Full,
    /// The file of an object is not there.
    Missing,
    /// The file is shorter or longer than its object.
    Cut,
    /// The file has other bytes than were stored, or another object's.
    Changed,
    /// The object lies in a store that this process does not have, or its key does not open here.
    Elsewhere,
    /// The store did not answer within 60 s.
    Slow,
    /// The host's system refused, for another reason; the operator's log has it.
    Failed,
}

impl ObjectFault {
    /// The fault as it stands in reports and error details.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Missing => "missing",
            Self::Cut => "cut",
            Self::Changed => "changed",
            Self::Elsewhere => "elsewhere",
            Self::Slow => "slow",
            Self::Failed => "failed",
        }
    }

    /// Whether it may be better a moment later.
    #[must_use]
    pub const fn is_passing(self) -> bool {
        matches!(self, Self::Full | Self::Slow | Self::Failed)
    }
}

/// A stored object that does not hold what its row says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultyObject {
    /// Id of the object; the end of its file's name.
    pub object: ObjectId,
    /// Digest of the bytes that were stored; the beginning of its file's name.
    pub sha256: Digest,
    /// Number of these bytes.
    pub size: u64,
    /// A run that has an artifact of it.
    pub run_id: Option<RunId>,
    /// URI of that artifact.
    pub uri: Option<String>,
    /// What is wrong.
    pub fault: ObjectFault,
}

/// What a reading of every stored object found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectReport {
    /// Objects that were looked at: all that are on record and not erased.
    pub looked_at: u64,
    /// Bytes that were read and hashed.
    pub bytes: u64,
    /// Objects that do not hold what their rows say.
    pub faulty: u64,
    /// The first 100 of these.
    pub faults: Vec<FaultyObject>,
}
