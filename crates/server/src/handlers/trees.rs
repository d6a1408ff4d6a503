//! Directories that clients send: a manifest, then the files that lack.

use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_manifest::MAX_MANIFEST_BYTES;
use cofferdam_flows::ManifestPart;

use crate::answer::{AnswerResult, ok};
use crate::call::Call;

/// How far a directory has come.
pub(crate) async fn look(call: Call) -> AnswerResult {
    let tree: Digest = call.id("tree")?;
    ok(&call.flows().uploads.look(&call.who.tenant, &tree).await?)
}

/// Takes a part of a manifest.
pub(crate) async fn manifest(mut call: Call) -> AnswerResult {
    let tree: Digest = call.id("tree")?;
    let most = i64::try_from(MAX_MANIFEST_BYTES).unwrap_or(i64::MAX);
    let at = u64::try_from(call.number("at", 0..=most, 0)?).unwrap_or(0);
    let is_last = call.flag("end")?;
    let part = ManifestPart { at, bytes: std::mem::take(&mut call.bytes), is_last };
    ok(&call.flows().uploads.take_manifest(&call.who.tenant, &tree, part).await?)
}

/// Takes files of a manifest.
pub(crate) async fn files(mut call: Call) -> AnswerResult {
    let tree: Digest = call.id("tree")?;
    let bytes = std::mem::take(&mut call.bytes);
    ok(&call.flows().uploads.take_files(&call.who.tenant, &tree, bytes).await?)
}
