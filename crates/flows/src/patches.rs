//! The patch of a task that works on a repository: git in the sandbox says what changed, and this side believes none
//! of it.
//!
//! ```text
//! DIFF      index of the base commit, `git add -A`, raw diff, sizes -> files in the sandbox, read within bounds
//! pure      contracts::patch: changes, sizes                        -> refused by name, or beyond a bound
//! CONTENTS  every blob                                              -> read within the bytes that the sizes told
//! pure      contracts::patch: contents                              -> ids computed again, patch, text
//! ```
//! Git has a directory of its own for it: no configuration, hook or filter of the repository or of the task takes part.

use cofferdam_contracts::artifact::ArtifactKind;
use cofferdam_contracts::canonical;
use cofferdam_contracts::limit::LimitKind;
use cofferdam_contracts::patch::{
    self, CONTENTS as BIN, INDEX, MAX_FILES, PatchError, RawError, RepoIn, TEXT,
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
/// Bytes of a line of sizes, of which each file has two.
const SIZE_LINE: u64 = 128;

/// Arguments: object format, base commit.
const DIFF: &str = r#"set -eu
d=/tmp/.cofferdam-patch
rm -rf "$d"
mkdir "$d"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_TERMINAL_PROMPT=0 LC_ALL=C
export GIT_DIR="$d/git" GIT_WORK_TREE=/work
git init -q --template= --object-format="$1"
# What some file system takes for git's directory is listed and refused by name, not skipped.
git config core.protectNTFS false
git config core.protectHFS false
mkdir -p "$d/git/objects/info"
echo /work/.git/objects >"$d/git/objects/info/alternates"
cd /work
git read-tree "$2"
git -c advice.addEmbeddedRepo=false add -A .
tree=$(git write-tree)
git diff-tree -r -z --raw --no-renames --no-abbrev "$2" "$tree" >"$d/raw"
git diff-tree -r --raw --no-renames --no-abbrev "$2" "$tree" |
  grep -E '^:(000000|100644|100755) (000000|100644|100755) ' |
  cut -d ' ' -f 3,4 | tr ' ' '\n' | grep -v '^0*$' | sort -u >"$d/ids"
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
    #[error(transparent)]
    Raw(#[from] RawError),
    #[error("it has no canonical form")]
    Canonical(#[from] canonical::CanonicalError),
}

impl NoPatch {
    fn is_too_large(&self) -> bool {
        matches!(self, Self::Raw(RawError::Patch(PatchError::TooLarge { .. })))
    }
}

/// The patch as artifacts. Where there is none, a task that would be a success fails: its changes are what it was for.
pub(crate) async fn patch(
    sandbox: &Sandbox,
    plan: &Plan,
    repo: &RepoIn,
    result: &mut SandboxResult,
) -> Vec<NewArtifact> {
    let error = match made(sandbox, plan, repo).await {
        Ok(artifacts) => return artifacts,
        Err(error) => error,
    };
    if error.is_too_large() {
        result.limits_reached.push(LimitKind::Artifacts);
        result.limits_reached.sort_unstable();
        result.limits_reached.dedup();
    }
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

async fn made(sandbox: &Sandbox, plan: &Plan, repo: &RepoIn) -> Result<Vec<NewArtifact>, NoPatch> {
    let format = repo.commit.format();
    git(sandbox, plan, DIFF, &[format.as_str(), repo.commit.as_str()]).await?;
    let raw = read(sandbox, "raw", MAX_RAW).await?;
    let changed = patch::changes(&raw, format)?;
    let most = u64::try_from(MAX_FILES).unwrap_or(u64::MAX).saturating_mul(4 * SIZE_LINE);
    let sizes = read(sandbox, "sizes", most).await?;
    let whole = patch::sizes(&sizes, &changed.blobs())?;
    let mut objects = Vec::new();
    if whole > 0 {
        git(sandbox, plan, CONTENTS, &[]).await?;
        objects = read(sandbox, "objects", whole).await?;
    }
    let (patch, bin, text) = patch::contents(&objects, &changed, &repo.commit)?;
    let artifact =
        |name: &str, bytes| NewArtifact { kind: ArtifactKind::Patch, name: name.into(), bytes };
    Ok(vec![
        artifact(INDEX, canonical::canonical(&patch)?),
        artifact(BIN, bin),
        artifact(TEXT, text.into_bytes()),
    ])
}

async fn read(sandbox: &Sandbox, name: &str, most: u64) -> Result<Vec<u8>, NoPatch> {
    let bytes = sandbox.agent().read(&format!("{PLACE}/{name}"), most).await;
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
