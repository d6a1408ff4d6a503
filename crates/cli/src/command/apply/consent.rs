//! The apply gate: a run whose plan is the receipt of the patch, so that a yes is bound to it like any other.

use cofferdam_contracts::gate::{Choice, GateView};
use cofferdam_contracts::id::{Digest, RunId};
use cofferdam_contracts::plan::{Plan, Work};
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::{RunHeader, RunStatus};
use cofferdam_server::recipes::RecipeImportResponse;
use serde_json::json;

use super::super::client::{Client, segment};
use super::super::exit::{Exit, Negative};
use super::super::follow::{FollowEnd, FollowOptions, follow};
use super::super::{output, plan_show};

/// Times that a patch is asked for again after a no or a silence, before another branch must be named.
const MAX_ASKED: u32 = 32;

/// What is asked.
pub(super) struct Consent {
    /// The recipe of the gate, with its law.
    pub recipe: Recipe,
    /// Receipt that the gate shows; the approved plan must hold the same text.
    pub text: String,
    /// Digest of the patch.
    pub digest: Digest,
    /// Whether only one JSON object is wanted.
    pub quiet: bool,
}

impl Consent {
    /// Asks, unless a person has agreed before; the run in which they did.
    pub(super) async fn ask(
        &self,
        client: &Client,
        yes: bool,
    ) -> anyhow::Result<Result<RunId, Exit>> {
        let recipe = &self.recipe;
        let body = json!({"recipe": recipe, "origin": "cofferdam apply"});
        let imported: RecipeImportResponse = client.post("/api/recipes/import", &body).await?;
        let hash = recipe.hash()?;
        if imported.hash != hash.as_str() {
            return Err(Negative("the server has another text of the recipe".to_owned()).into());
        }
        let header = self.open(client, recipe, &hash).await?;
        let run = header.run_id.as_str();
        if !self.quiet {
            output::note(&format!("apply gate: run {run}"));
        }
        let options =
            FollowOptions { yes, quiet: self.quiet, for_output: false, no_progress: false };
        match follow(client, run, options).await? {
            FollowEnd::Ended { header, .. } if header.status == RunStatus::Succeeded => {
                self.agreed(client, run, &hash).await?;
                Ok(Ok(header.run_id))
            }
            ended @ FollowEnd::Ended { .. } => {
                output::note(&format!("not approved (run {run}); nothing was written"));
                Ok(Err(ended.exit()))
            }
            left => Ok(Err(left.exit())),
        }
    }

    /// The run that was agreed to or still asks; one that was refused is followed by the next.
    async fn open(
        &self,
        client: &Client,
        recipe: &Recipe,
        hash: &Digest,
    ) -> anyhow::Result<RunHeader> {
        for asked in 0..MAX_ASKED {
            let body = json!({
                "recipeRef": recipe.reference(), "recipeHash": hash, "formData": {"receipt": self.text},
                "opts": {"runKey": format!("apply:{}:{asked}", self.digest)},
            });
            let header: RunHeader = client.post("/api/run", &body).await?;
            if !header.status.is_terminal() || header.status == RunStatus::Succeeded {
                return Ok(header);
            }
        }
        let why = format!("this patch was refused {MAX_ASKED} times here; name another --branch");
        Err(Negative(why).into())
    }

    /// Whether what was agreed to is this receipt and nothing else.
    async fn agreed(&self, client: &Client, run: &str, hash: &Digest) -> anyhow::Result<()> {
        let plan = plan_show::fetch(client, run).await?;
        let path = format!("/api/runs/{}/gates", segment(run));
        let gates: Vec<GateView> = client.get(&path).await?;
        let said_yes = gates
            .iter()
            .any(|gate| gate.decision.as_ref().is_some_and(|made| made.decision == Choice::Yes));
        match plan.is_some_and(|plan| self.is_of(&plan, hash)) && said_yes {
            true => Ok(()),
            false => Err(Negative(format!("run {run} does not approve this patch")).into()),
        }
    }

    fn is_of(&self, plan: &Plan, hash: &Digest) -> bool {
        let [only] = plan.tasks.as_slice() else { return false };
        let is_receipt = matches!(&only.work, Work::Value(text) if *text == self.text);
        plan.recipe_hash == *hash && plan.gate.is_some() && is_receipt
    }
}
