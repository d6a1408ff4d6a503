//! Files that a task leaves, as its result and the ledger have them.

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactMode, OutputFile};
use cofferdam_contracts::canonical::digest_bytes;
use cofferdam_contracts::run_file::FILES;
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_sandbox::{CollectedFile, encode_name};

/// The files in their order: what the result says of each, and what is kept of it.
pub(crate) fn records(files: Vec<CollectedFile>) -> (Vec<OutputFile>, Vec<NewArtifact>) {
    files.into_iter().map(record).unzip()
}

fn record(file: CollectedFile) -> (OutputFile, NewArtifact) {
    let (mode, encoded) = (file.mode, file.is_encoded());
    let target = (mode == ArtifactMode::Link).then(|| encode_name(&file.bytes));
    let kept = OutputFile {
        path: file.path.clone(),
        encoded,
        sha256: digest_bytes(&file.bytes),
        size: u64::try_from(file.bytes.len()).unwrap_or(u64::MAX),
        mode,
        target: target.clone(),
    };
    let (kind, name) = (ArtifactKind::File, format!("{FILES}{}", file.path));
    (kept, NewArtifact { kind, name, bytes: file.bytes, mode, target })
}
