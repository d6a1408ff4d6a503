//! `apply` and `patch`: what a run changed in a repository, shown, approved and written to a branch.
//!
//! ```text
//! fetch    patch.json, patch.bin, changes.patch -> contracts::patch::VerifiedPatch: every digest again
//! consent  a run of the built-in recipe, whose plan is the receipt: its gate shows it and is bound to it
//! write    plumbing of git alone: blobs, an index of our own, tree, raw diff against the patch, commit, one ref
//! ```
//! **No text of a diff is parsed, no working tree is touched, and no program that a repository names is started.**

mod consent;
mod fetch;
mod git;
mod write;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use cofferdam_contracts::dispatch::DispatchView;
use cofferdam_contracts::gate_spec::{GateSpec, SelfApproval};
use cofferdam_contracts::id::{DispatchId, GateKey, GroupId};
use cofferdam_contracts::patch::{
    ApplyRecord, ApplyRow, GitId, PatchCommit, Target, TaskEnd, apply_recipe, message_fault,
    receipt,
};
use cofferdam_contracts::printable;
use cofferdam_contracts::run::RunHeader;
use cofferdam_contracts::step::StepRow;
use serde_json::json;

use super::client::{Client, segment};
use super::connection::{Connection, within};
use super::exit::{Exit, Misuse, Negative};
use super::locations::Locations;
use super::{output, run_lookup};
use consent::Consent;
use fetch::PatchSource;
use git::Repository;

#[derive(Debug, Args)]
pub(crate) struct PatchArgs {
    #[arg(help = super::flag::RUN_OR_DISPATCH)]
    run: String,
    /// Task that left the patch; needed where several did
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// List where it was written instead: time, key, branch, commit, repository
    #[arg(long)]
    applied: bool,
    /// Print patch.json instead: base commit, paths, modes, ids, digests; with --applied the rows
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[arg(help = super::flag::RUN_OR_DISPATCH)]
    run: String,
    /// Branch to create; default: cofferdam/RUN
    #[arg(long, value_name = "BRANCH")]
    branch: Option<String>,
    /// Repository to write to; default: the one of the current directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    repo: PathBuf,
    /// Task that left the patch; needed where several did
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// Write the rest of a patch of which some paths are refused; the gate lists them
    #[arg(long)]
    partial: bool,
    /// Message of the commit; the gate shows it, and lines that name run, patch and approval follow it
    #[arg(long, short = 'm', value_name = "TEXT")]
    message: Option<String>,
    /// Only members of this group may approve it
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// People that must approve it
    #[arg(long, value_name = "N", default_value_t = 1)]
    quorum: u32,
    /// The caller's own key may not approve it
    #[arg(long, conflicts_with = "yes")]
    others: bool,
    /// Approve the patch without asking; with --quorum, others still have to
    #[arg(long, short = 'y')]
    yes: bool,
    #[arg(long, help = super::flag::JSON)]
    json: bool,
}

pub(crate) async fn patch(at: &Locations, args: &PatchArgs) -> anyhow::Result<Exit> {
    within(Connection::reading(at), async |api| {
        let run = run_of(&api.client, &args.run).await?;
        if args.applied {
            return applied(&api.client, args, &run).await;
        }
        let found = fetch::fetch(&api.client, &run, args.task.as_deref(), None).await?;
        match (args.json, found.is_build) {
            (true, _) => output::json_value(&serde_json::to_value(&found.opened.patch)?),
            (false, false) => output::raw(found.opened.text.as_bytes()),
            (false, true) => output::raw(found.opened.diff().as_bytes()),
        }
        for refused in &found.opened.patch.refused {
            let (path, why) = (refused.path.shown(), refused.why.as_str());
            output::note(&format!("not in the patch: {path} ({why})"));
        }
        Ok(Exit::Ok)
    })
    .await
}

/// Where a run's patches were written.
async fn applied(client: &Client, args: &PatchArgs, run: &str) -> anyhow::Result<Exit> {
    let rows = format!("/api/runs/{}/applies", segment(run));
    let rows: Vec<ApplyRow> = client.get(&rows).await?;
    if args.json {
        output::json(&json!({"schemaVersion": 1, "applied": rows}));
        return Ok(Exit::Ok);
    }
    for ApplyRow { written, by, at, .. } in &rows {
        let (branch, repo) = (printable::line(&written.branch), printable::line(&written.repo));
        let at = output::time(*at);
        output::line(&format!("{at}  {by}  {branch}  {}  {repo}", written.commit));
    }
    Ok(Exit::Ok)
}

impl ApplyArgs {
    /// The law of the gate, where it is another than any approver's yes.
    fn law(&self) -> anyhow::Result<Option<GateSpec>> {
        if self.group.is_none() && self.quorum == 1 && !self.others {
            return Ok(None);
        }
        let misuse = |error: String| anyhow::Error::from(Misuse(error));
        let group = self.group.as_deref().map(GroupId::parse).transpose();
        let mut law = GateSpec::plain(GateKey::parse("approve-plan").map_err(anyhow::Error::new)?);
        law.group = group.map_err(|error| misuse(format!("--group: {error}")))?;
        law.quorum = self.quorum;
        if self.others {
            law.self_approval = SelfApproval::Deny;
        }
        Ok(Some(law))
    }
}

pub(crate) async fn apply(at: &Locations, args: &ApplyArgs) -> anyhow::Result<Exit> {
    // What the repository alone can get wrong is said before anybody is asked.
    let repository = Repository::find(&args.repo)?;
    let message = args.message.as_deref();
    if let Some(why) = message.and_then(message_fault) {
        return Err(Misuse(format!("--message: {why}")).into());
    }
    let recipe = apply_recipe(args.law()?.as_ref()).map_err(|why| Misuse(why.to_string()))?;
    within(Connection::executing(at), async |api| {
        let client = &api.client;
        let run = run_of(client, &args.run).await?;
        let header: RunHeader = client.get(&format!("/api/runs/{}", segment(&run))).await?;
        if !header.status.is_terminal() {
            let why = format!("run {} has not ended; wait for it", header.run_id);
            return Err(Negative(why).into());
        }
        let task = args.task.as_deref();
        let found = fetch::fetch(client, header.run_id.as_str(), task, Some(&repository)).await?;
        if found.opened.patch.is_empty() {
            return nothing(args, &found);
        }
        if !args.partial || found.opened.patch.files.is_empty() {
            whole(&found)?;
        }
        let branch = args.branch.clone().unwrap_or_else(|| format!("cofferdam/{}", header.run_id));
        let name = repository.may_take(&branch, &found.opened.patch.base)?;
        repository.may_hold(&name, &found.opened.digest)?;
        let steps = format!("/api/runs/{}/steps", segment(header.run_id.as_str()));
        let steps: Vec<StepRow> = client.get(&steps).await?;
        let text = receipt(
            &found.opened,
            &Target {
                run: &header.run_id,
                status: header.status,
                task: found.step.as_str(),
                repo: &repository.shown(),
                branch: &branch,
                message,
                tasks: &TaskEnd::of_run(&steps),
            },
        );
        let digest = found.opened.digest.clone();
        let consent = Consent { recipe, text, digest, quiet: args.json };
        let approved = match consent.ask(client, args.yes).await? {
            Ok(run) => run,
            Err(exit) => return Ok(exit),
        };
        // A retry of the run may have left another patch meanwhile, to which nobody agreed.
        let now = fetch::fetch(client, header.run_id.as_str(), task, Some(&repository)).await?;
        if now.opened.digest != found.opened.digest
            || now.opened.patch.base != found.opened.patch.base
        {
            let why = "the run has another patch than the approved one; apply again to ask for it";
            return Err(Negative(why.to_owned()).into());
        }
        let commit = PatchCommit {
            run: &header.run_id,
            task: found.step.as_str(),
            patch: &found.opened.digest,
            approved: &approved,
            base: &found.opened.patch.base,
            at_s: header.created_at.div_euclid(1_000),
            message,
        };
        let written = write::write(&repository, &found.opened, &branch, &commit)?;
        let record = ApplyRecord {
            approved_in: approved.clone(),
            task: found.step.clone(),
            patch: found.opened.digest.clone(),
            repo: repository.shown(),
            branch: branch.clone(),
            base: found.opened.patch.base.clone(),
            tree: Some(written.tree.clone()),
            commit: written.commit.clone(),
        };
        let rows = format!("/api/runs/{}/applies", segment(header.run_id.as_str()));
        let row: ApplyRow = client.post(&rows, &serde_json::to_value(&record)?).await.with_context(|| {
            format!("branch {branch} is at {}, and is not on record: apply again", written.commit)
        })?;
        if args.json {
            output::json(&json!({
                "schemaVersion": 1, "runId": header.run_id, "approvedIn": approved, "patch": found.opened.digest,
                "base": found.opened.patch.base, "branch": branch, "commit": written.commit, "created": written.created,
                "by": row.by, "at": row.at,
            }));
        } else {
            let was = if written.created { "" } else { " (it was there already)" };
            output::line(&format!("branch {} at {}{was}", printable::line(&branch), written.commit));
        }
        Ok(Exit::Ok)
    })
    .await
}

fn nothing(args: &ApplyArgs, found: &PatchSource) -> anyhow::Result<Exit> {
    match args.json {
        true => output::json(&json!({
            "schemaVersion": 1, "patch": found.opened.digest, "base": found.opened.patch.base, "created": false,
        })),
        false => output::line("the patch is empty: nothing to write"),
    }
    Ok(Exit::Ok)
}

/// A patch without a part of what the task did is none that a person should agree to.
fn whole(found: &PatchSource) -> anyhow::Result<()> {
    let mut refused = found.opened.patch.refused.iter();
    let Some(first) = refused.next() else { return Ok(()) };
    let more = match refused.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (path, why) = (first.path.shown(), first.why.as_str());
    Err(Negative(format!(
        "refused: the task changed {path} ({why}){more}, which no patch may hold; the rest: --partial"
    ))
    .into())
}

/// The full id of the commit that a name means in the repository of a directory; an id stays what it is.
pub(crate) fn commit_of(dir: &Path, name: &str) -> anyhow::Result<String> {
    if GitId::parse(name).is_ok() {
        return Ok(name.to_owned());
    }
    let found = Repository::find(dir)?.commit(name)?;
    let found = found.ok_or_else(|| {
        let why = format!("--commit {name:?}: not a commit of {}", dir.display());
        Misuse(why)
    })?;
    Ok(found.to_string())
}

/// The run of an argument: its own id, the beginning of it, its workflow's, the newest, or that of its dispatch. Eight digits without
/// `rn_` are a dispatch's.
pub(crate) async fn run_of(client: &Client, said: &str) -> anyhow::Result<String> {
    if DispatchId::parse(said).is_err() {
        return run_lookup::run_id(client, said).await;
    }
    let path = format!("/api/dispatches/{}", segment(said));
    let view: DispatchView = client.get(&path).await?;
    let run = view.run_id.map(|run| run.to_string());
    run.ok_or_else(|| Negative(format!("dispatch {said} was imported and has no run here")).into())
}
