//! The apply gate, and the record of a patch that was written to a repository, bound to the approval of exactly it.
//!
//! ```text
//! start    the gate's run: its receipt is made again from the patch on record, and compared to its last byte
//! record   the same once more, with repository and branch; the commit's id is computed again of its tree
//! ```
//! **What a person sees is what the server would have written:** a caller writes no word of it but repository and branch.

use cofferdam_contracts::artifact::{ArtifactKind, ArtifactRow};
use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{Digest, RunId, TenantId};
use cofferdam_contracts::patch::{
    ApplyRecord, ApplyRow, CONTENTS, GitId, INDEX, PatchCommit, ReceiptFacts, TEXT, TaskEnd,
    VerifiedPatch, apply_recipe, is_apply_recipe, is_receipt_of, message_of, named_in,
};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::RunHeader;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::keys::Principal;
use cofferdam_ledger::recipes::RecipeQuery;
use serde_json::Value;

use crate::error::{Error, Result};

fn receipt_in(inputs: &Value) -> &str {
    inputs.get("receipt").and_then(Value::as_str).unwrap_or_default()
}

/// What a receipt is compared with besides its patch.
struct ReceiptContext {
    /// Repository and branch.
    at: Option<(String, String)>,
    /// How the run's tasks ended, until somebody agreed.
    tasks: Option<Vec<TaskEnd>>,
}

/// Patches that were written to repositories, each with the gate that let it.
#[derive(Debug, Clone)]
pub struct Applies {
    ledger: Ledger,
}

impl Applies {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        Self { ledger: ledger.clone() }
    }

    /// Refuses the run of an apply gate that would show a person another text than the server's own.
    pub(crate) async fn admit(
        &self,
        tenant: &TenantId,
        recipe: &Recipe,
        form: &Value,
    ) -> Result<()> {
        if recipe.id != apply_recipe(None)?.id {
            return Ok(());
        }
        let refused = |why: &str| Refusal::new(ErrorCode::PolicyViolation, why);
        if !is_apply_recipe(recipe)? {
            let why = "the id of the apply gate is for its own recipe; name yours otherwise";
            return Err(refused(why).into());
        }
        let text = receipt_in(form);
        let false_text = || refused("the receipt is not the one of a patch on record; apply it");
        let (digest, run, base) = named_in(text).ok_or_else(false_text)?;
        let header = self.ledger.runs().header(tenant, run.as_str()).await?;
        let header = header.ok_or_else(false_text)?;
        let opened = self.opened(tenant, &header.run_id, &digest, &base).await?;
        let (opened, task) = opened.ok_or_else(false_text)?;
        let tasks = Some(TaskEnd::of_run(&self.ledger.steps().list(&header.run_id).await?));
        match self
            .is_receipt(text, opened, &header.run_id, &task, ReceiptContext { at: None, tasks })
            .await?
        {
            true => Ok(()),
            false => Err(false_text().into()),
        }
    }

    /// A patch that a run left, with the step that left it, every digest compared again. That of a build is put upon the
    /// commit.
    async fn opened(
        &self,
        tenant: &TenantId,
        run: &RunId,
        digest: &Digest,
        base: &GitId,
    ) -> Result<Option<(VerifiedPatch, String)>> {
        let artifacts = self.ledger.artifacts();
        let rows: Vec<ArtifactRow> = artifacts.list(run).await?;
        let is_patch = |row: &&ArtifactRow| row.kind == ArtifactKind::Patch;
        let index = rows.iter().filter(is_patch);
        let index = index.filter(|row| row.name == INDEX && row.sha256 == *digest);
        let Some(index) = index.max_by_key(|row| row.attempt) else { return Ok(None) };
        let is_build = !rows
            .iter()
            .filter(is_patch)
            .any(|row| row.name == CONTENTS && row.task_key == index.task_key);
        let names: &[&str] = if is_build { &[INDEX] } else { &[INDEX, CONTENTS, TEXT] };
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let mut ours = rows.iter().filter(is_patch);
            let row = ours.find(|row| row.name == *name && row.task_key == index.task_key);
            let Some(row) = row else { return Ok(None) };
            let Some(stored) = self.ledger.artifacts().read(tenant, &row.uri).await? else {
                return Ok(None);
            };
            parts.push(stored.bytes);
        }
        let base = base.clone();
        // Megabytes are hashed.
        let opened = tokio::task::spawn_blocking(move || {
            let mut parts = parts.into_iter();
            let mut next = || parts.next().unwrap_or_default();
            let index = next();
            match is_build {
                true => VerifiedPatch::of_build(&index, &base),
                false => VerifiedPatch::open(&index, next(), next()),
            }
        })
        .await;
        let opened = opened.map_err(Error::corrupt("patch"))?.map_err(Error::corrupt("patch"))?;
        let is_it = opened.digest == *digest;
        Ok(is_it.then(|| (opened, index.step_id.to_string())))
    }

    async fn is_receipt(
        &self,
        text: &str,
        opened: VerifiedPatch,
        run: &RunId,
        task: &str,
        known: ReceiptContext,
    ) -> Result<bool> {
        let (text, run, task) = (text.to_owned(), run.clone(), task.to_owned());
        let compared = tokio::task::spawn_blocking(move || {
            let at = known.at.as_ref().map(|(repo, branch)| (repo.as_str(), branch.as_str()));
            let tasks = known.tasks.as_deref();
            is_receipt_of(&text, &opened, &ReceiptFacts { run: &run, task: &task, at, tasks })
        });
        compared.await.map_err(Error::corrupt("receipt"))
    }

    /// Records where a run's patch was written, once for each approval. Whoever says it again gets the row that stands.
    ///
    /// # Errors
    /// `state_conflict` where nobody agreed in the named run, or to something else; `conflict` where the approval was used
    /// for another commit, or the commit is not what it allows.
    pub async fn record(
        &self,
        who: &Principal,
        run: &RunHeader,
        new: &ApplyRecord,
    ) -> Result<ApplyRow> {
        let header = self.ledger.runs().header(&who.tenant, new.approved_in.as_str()).await?;
        let header = header.ok_or_else(|| Refusal::not_found("run"))?;
        let context = self.ledger.runs().context(header.workflow_id.as_str()).await?;
        let context = context.ok_or_else(|| Refusal::not_found("run"))?;
        let other = |why: &str| {
            let why = format!("run {} {why}", new.approved_in);
            Refusal::new(ErrorCode::StateConflict, why)
        };
        let wanted =
            RecipeQuery { id: &context.recipe_id, v: None, hash: Some(&context.recipe_hash) };
        let is_gate = match self.ledger.recipes().find(&who.tenant, wanted).await? {
            Some(recipe) => is_apply_recipe(&recipe)?,
            None => false,
        };
        let opened = self.opened(&who.tenant, &run.run_id, &new.patch, &new.base).await?;
        let receipt = receipt_in(&context.inputs);
        let is_shown = match opened {
            Some((opened, task))
                if is_gate && task == new.task.as_str() && opened.patch.base == new.base =>
            {
                let at = Some((new.repo.clone(), new.branch.clone()));
                let known = ReceiptContext { at, tasks: None };
                self.is_receipt(receipt, opened, &run.run_id, &task, known).await?
            }
            _ => false,
        };
        if !is_shown {
            return Err(other("is not the gate of this patch, repository and branch").into());
        }
        let message = message_of(receipt);
        let commit = PatchCommit {
            message: message.as_deref(),
            run: &run.run_id,
            task: new.task.as_str(),
            patch: &new.patch,
            approved: &new.approved_in,
            base: &new.base,
            at_s: run.created_at.div_euclid(1_000),
        };
        if new.tree.as_ref().is_none_or(|tree| commit.id(tree) != new.commit) {
            let why = "the commit is not the one of this patch, approval and tree; apply again";
            return Err(Refusal::new(ErrorCode::Conflict, why).into());
        }
        let row = self.ledger.applies().record(&run.run_id, &who.key_id, new).await?;
        let mut row = row.ok_or_else(|| other("did not approve it"))?;
        // A row of before trees were on record.
        row.written.tree = row.written.tree.or_else(|| new.tree.clone());
        if row.written != *new {
            let why = format!("the approval was used for commit {}", row.written.commit);
            return Err(Refusal::new(ErrorCode::Conflict, why).into());
        }
        Ok(row)
    }
}
