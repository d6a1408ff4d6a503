//! The patch of a task that works on a repository: git in the sandbox says what changed, and this side believes none
//! of it.
//!
//! ```text
//! DIFF      index of the base commit, `git add -A`, raw diff -> a file in the sandbox, read within a bound
//! pure      contracts::patch: changes                        -> what is refused by name, and ids
//! SIZES     of these blobs                                   -> read within a bound
//! pure      contracts::patch: fitting                        -> what is beyond a bound by name, and fewer ids
//! CONTENTS  these blobs                                      -> read within the bytes that the sizes told
//! pure      contracts::patch: contents                       -> ids computed again, patch, text
//! ```
//! Git has a directory of its own for it: no configuration, hook or filter of the repository or of the task takes part.

use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::patch::{
    self, CONTENTS as BIN, GitId, INDEX, InputRepo, MAX_FILES, PathRefusal, RawDiff, RawError, TEXT,
};
use cofferdam_contracts::printable;
use cofferdam_contracts::sandbox::{ErrCode, Phase, SandboxResult};
use cofferdam_ledger::artifacts::NewArtifact;
use cofferdam_sandbox::{Command, ExecOutcome, Plan, Sandbox, SandboxError, Stream};

/// Wall time of each of the two commands: git hashes a working tree of 100,000 files in a few seconds.
const GIT_MS: u64 = 120_000;
/// Bytes of git's own words that a cause repeats.
const MAX_WORDS: usize = 512;
/// Bytes of a raw diff: two lines of ids and the longest path for each file, of both kinds.
const MAX_RAW: u64 = 2 * 5 * 1024 * 1_000;
/// Bytes of the number of its lines.
const COUNT: u64 = 32;
/// Bytes of a line of sizes, of which each file has two.
const SIZE_LINE: u64 = 128;

/// Arguments: object format, base commit, bytes of the answer. Files below a submodule are compared with the commit that the
/// base names for it, where that is there; git itself would skip them. Their submodule is named as changed besides, since no
/// patch of the repository can hold them.
const DIFF: &str = include_str!("patches/diff.sh");
/// Both read ids that this side wrote.
const SIZES: &str = r#"set -eu
d=/tmp/.cofferdam-patch
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_DIR="$d/git" LC_ALL=C
git cat-file --batch-check <"$d/ids" >"$d/sizes"
"#;
const CONTENTS: &str = r#"set -eu
d=/tmp/.cofferdam-patch
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_DIR="$d/git" LC_ALL=C
git cat-file --batch <"$d/ids" >"$d/objects"
"#;
const PLACE: &str = "/tmp/.cofferdam-patch";

/// Why a task that works on a repository leaves no patch.
#[derive(Debug, thiserror::Error)]
enum NoPatch {
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("git: {0}")]
    Git(String),
    #[error("its repository is bound to no commit")]
    Unbound,
    #[error(transparent)]
    Raw(#[from] RawError),
    #[error("it has no canonical form")]
    Canonical(#[from] canonical::CanonicalError),
}

/// The patch as artifacts. Where there is none, a task that would be a success fails: its changes are what it was for. What does
/// not fit is named in the patch, and the limit is on record.
pub(crate) async fn patch(
    sandbox: &Sandbox,
    plan: &Plan,
    repo: &InputRepo,
    result: &mut SandboxResult,
) -> Vec<NewArtifact> {
    let made = match &repo.commit {
        Some(commit) => made(sandbox, plan, commit).await,
        None => Err(NoPatch::Unbound),
    };
    match made {
        Ok((artifacts, 0)) => artifacts,
        Ok((artifacts, left_out)) => {
            result.limits_reached.push(LimitKind::Artifacts);
            result.limits_reached.sort_unstable();
            result.limits_reached.dedup();
            let why = format!("{left_out} changed files are beyond the bounds of its patch");
            result.cause.get_or_insert(why);
            artifacts
        }
        Err(error) => {
            if result.err_code == ErrCode::None {
                result.err_code = ErrCode::DownloadFail;
                result.cause = Some(format!("its changes are no patch: {error}"));
                // It would leave the same another time, wherever.
                let is_lasting = !matches!(error, NoPatch::Sandbox(_));
                result.permanent = is_lasting;
                result.permanent_everywhere = is_lasting;
            }
            Vec::new()
        }
    }
}

/// The artifacts, and how many changed files are beyond a bound.
async fn made(
    sandbox: &Sandbox,
    plan: &Plan,
    base: &GitId,
) -> Result<(Vec<NewArtifact>, u64), NoPatch> {
    let format = base.format();
    let most = MAX_RAW.to_string();
    git(sandbox, plan, DIFF, &[format.as_str(), base.as_str(), &most]).await?;
    let raw = read(sandbox, "raw", MAX_RAW).await?;
    // One that was not cut has no half line: what looks so is no diff, and is refused as that.
    let cut = u64::try_from(raw.len()).is_ok_and(|len| len == MAX_RAW);
    let raw = if cut { patch::whole_lines(&raw) } else { &raw };
    let mut changed = patch::changes(raw, format)?;
    let count = read(sandbox, "count", COUNT).await?;
    changed.unlisted = changed.unlisted.saturating_add(patch::uncounted(&count, raw)?);
    let mut whole = 0;
    if asked(sandbox, &changed).await? {
        git(sandbox, plan, SIZES, &[]).await?;
        let most = u64::try_from(MAX_FILES).unwrap_or(u64::MAX).saturating_mul(4 * SIZE_LINE);
        let sizes = read(sandbox, "sizes", most).await?;
        (changed, whole) = patch::fitting(&sizes, changed)?;
    }
    let mut objects = Vec::new();
    if asked(sandbox, &changed).await? {
        git(sandbox, plan, CONTENTS, &[]).await?;
        objects = read(sandbox, "objects", whole).await?;
    }
    let (patch, bin, text) = patch::contents(&objects, &changed, base)?;
    let beyond = patch.refused.iter().filter(|one| one.why == PathRefusal::Bounds).count();
    let left_out = patch.unlisted.saturating_add(u64::try_from(beyond).unwrap_or(u64::MAX));
    let artifact = |name: &str, bytes| NewArtifact::plain(ArtifactKind::Patch, name, bytes);
    let artifacts = vec![
        artifact(INDEX, canonical::canonical(&patch)?),
        artifact(BIN, bin),
        artifact(TEXT, text.into_bytes()),
    ];
    Ok((artifacts, left_out))
}

/// Tells git the blobs of these changes. `false`: there is none.
async fn asked(sandbox: &Sandbox, changed: &RawDiff) -> Result<bool, NoPatch> {
    let ids: String = changed.blobs().iter().map(|id| format!("{}\n", id.as_str())).collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let told = sandbox.agent().files().put(&format!("{PLACE}/ids"), 0o644, ids.into()).await;
    told.map_err(|error| NoPatch::Git(format!("its questions: {error}")))?;
    Ok(true)
}

async fn read(sandbox: &Sandbox, name: &str, most: u64) -> Result<Vec<u8>, NoPatch> {
    let bytes = sandbox.agent().files().read(&format!("{PLACE}/{name}"), most).await;
    bytes.map_err(|error| NoPatch::Git(format!("its answer ({name}): {error}")))
}

async fn git(
    sandbox: &Sandbox,
    plan: &Plan,
    script: &str,
    words: &[&str],
) -> Result<ExecOutcome, NoPatch> {
    let fixed = ["/bin/sh", "-c", script, "patch"].into_iter().chain(words.iter().copied());
    // As the build phase ran, which checked the commit out.
    let like = plan.build.as_ref().unwrap_or(&plan.task);
    let command = Command {
        argv: fixed.map(str::to_owned).collect(),
        env: like.env.clone(),
        cwd: "/".to_owned(),
        timeout_ms: GIT_MS,
        phase: Phase::Exec,
        user: like.user,
        groups: like.groups.clone(),
        stdin_file: None,
        jail: None,
    };
    let mut words = Vec::new();
    let outcome = sandbox
        .exec(&command, |stream, chunk| {
            if matches!(stream, Stream::Stderr) && words.len() < MAX_WORDS {
                words.extend(chunk.iter().take(MAX_WORDS - words.len()));
            }
        })
        .await?;
    if outcome.err_code == ErrCode::None {
        return Ok(outcome);
    }
    let words = String::from_utf8_lossy(&words);
    let cause = outcome.cause.unwrap_or_default();
    Err(NoPatch::Git(printable::line(&format!("{cause}: {}", words.trim())).into_owned()))
}
