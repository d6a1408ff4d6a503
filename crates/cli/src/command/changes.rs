//! `changes` and `revert`: what an agent's build changed, file by file, and the way back of some of it.
//!
//! The way back is a patch of the same form: what the build left is its `pre`, so that it says of each file what it
//! expects there.

use std::path::PathBuf;

use clap::Args;
use cofferdam_contracts::agent_plan::BUILDING;
use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::canonical::{canonical, digest_bytes};
use cofferdam_contracts::id::Digest;
use cofferdam_contracts::tree_change::{Image, PATCH_VERSION, TreeChange, TreeEntry};
use serde_json::json;

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse, Negative};
use super::locations::Locations;
use super::outfile::Target;
use super::output;

/// The artifact of a build.
const PATCH: &str = "patch.json";

#[derive(Debug, Args)]
pub(crate) struct ChangesArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    run: String,
    /// Print the patch itself, contents included, as one JSON object
    #[arg(long)]
    json: bool,
    /// Print hashes in place of sizes
    #[arg(long, conflicts_with = "json")]
    hashes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RevertArgs {
    #[arg(help = super::flag::RUN, value_parser = super::flag::run)]
    run: String,
    /// Paths to put back, as `changes` lists them; a directory's takes all below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// New file that gets the reversal, a patch of the form of patch.json
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace FILE where it exists
    #[arg(long)]
    force: bool,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

pub(crate) async fn changes(at: &Locations, args: &ChangesArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let (patch, digest) = fetch(&api.client, &args.run).await?;
        if args.json {
            output::json_value(&serde_json::to_value(&patch)?);
            return Ok(Exit::Ok);
        }
        list(&patch, args.hashes);
        let paths = patch.entries.len();
        output::note(&format!("patch sha256:{digest}, {paths} paths; see `cofferdam patch`"));
        Ok(Exit::Ok)
    })
    .await
}

pub(crate) async fn revert(at: &Locations, args: &RevertArgs) -> anyhow::Result<Exit> {
    let target = Target { path: &args.output, force: args.force };
    target.check()?;
    within(Connection::reading(at), async |api| {
        let (patch, digest) = fetch(&api.client, &args.run).await?;
        let back = patch.way_back(&args.paths).map_err(|path| {
            let why = format!("{path:?} is not in the patch; `cofferdam changes` lists its paths");
            Misuse(why)
        })?;
        let bytes = canonical(&back)?;
        target.write(&bytes)?;
        let reversal = digest_bytes(&bytes);
        if args.json {
            let paths: Vec<&str> = back.entries.iter().map(|entry| entry.path.as_str()).collect();
            output::json(&json!({
                "schemaVersion": 1, "patch": digest, "reversal": reversal, "paths": paths, "output": args.output,
            }));
            return Ok(Exit::Ok);
        }
        list(&back, false);
        output::note(&format!("wrote {} (sha256:{reversal})", args.output.display()));
        Ok(Exit::Ok)
    })
    .await
}

/// The patch of a run's newest build, held against its digest and its contents, both sides.
async fn fetch(client: &Client, run: &str) -> anyhow::Result<(TreeChange, Digest)> {
    let rows: Vec<ArtifactRow> =
        client.get(&format!("/api/runs/{}/artifacts", segment(run))).await?;
    let build = format!("ExecuteST:{BUILDING}");
    let is_ours = |row: &&ArtifactRow| {
        row.kind == ArtifactKind::Patch && row.name == PATCH && row.step_id.as_str() == build
    };
    let newest = rows.iter().filter(is_ours).max_by_key(|row| row.attempt);
    let newest = newest.ok_or_else(|| {
        Negative("the run has no build of an agent that left a patch; see `cofferdam patch`".into())
    })?;
    let bytes = client.artifact(&newest.uri).await?;
    if digest_bytes(&bytes) != newest.sha256 {
        return Err(Negative(format!("{PATCH} does not have the recorded digest")).into());
    }
    let patch: TreeChange =
        serde_json::from_slice(&bytes).map_err(|error| Negative(format!("{PATCH}: {error}")))?;
    if patch.version != PATCH_VERSION {
        let why = format!("{PATCH} has version {}; this reads {PATCH_VERSION}", patch.version);
        return Err(Negative(why).into());
    }
    for way in [&patch, &patch.reversed(|_| true)] {
        way.steps().map_err(|error| Negative(format!("{PATCH}: {error}")))?;
    }
    Ok((patch, newest.sha256.clone()))
}

/// One line a path: what becomes of it, both sides, and the path, which may hold anything.
fn list(patch: &TreeChange, hashes: bool) {
    for entry in &patch.entries {
        let (pre, post) = (side(entry.pre.as_ref(), hashes), side(entry.post.as_ref(), hashes));
        output::cells(&[what(entry), &pre, &post, &entry.path]);
    }
}

const fn what(entry: &TreeEntry) -> &'static str {
    match (&entry.pre, &entry.post) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    }
}

fn side(image: Option<&Image>, hashes: bool) -> String {
    match image {
        None => "-".to_owned(),
        Some(Image { mode, sha256: None, .. }) => format!("{mode:03o} directory"),
        Some(Image { mode, sha256: Some(sha256), .. }) if hashes => format!("{mode:03o} {sha256}"),
        Some(image) => format!("{:03o} {} bytes", image.mode, image.size()),
    }
}
