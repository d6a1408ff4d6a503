//! Lives of sandboxes on record: each with its run and all that this begins with, in one statement.

use std::collections::BTreeMap;

use cofferdam_contracts::error::{ErrorCode, Refusal};
use cofferdam_contracts::id::{ExecutorId, LiveId, SnapshotId};
use cofferdam_contracts::sandbox::Egress;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::artifacts::INLINE_BYTES;
use crate::audit::Audit;
use crate::builds::{NewBuildAssignment, build_begins};
use crate::error::{OpResult, Result, json as column};
use crate::families::LiveRows;
use crate::intents::NewIntent;
use crate::policies::{NewPolicySnapshot, snapshots_json};
use crate::quota::{live_default, live_refusal};
use crate::runs::{NewRun, Query};
use crate::steps::CompileRecord;
use crate::tasks::NewTask;

/// What a resume is refused with whose sandbox has a life.
pub const NOT_PAUSED: &str =
    "the sandbox is not paused, or its last life is still being wiped; try again";

/// The run of a life.
#[derive(Debug, Clone, Copy)]
pub struct NewLife<'a> {
    /// Intent of the run, written in the same commit.
    pub intent: &'a NewIntent<'a>,
    /// Run that is the life, to be written.
    pub run: &'a NewRun,
    /// What the run begins with; `None`: its workflow compiles and queues.
    pub opening: Option<&'a InitialPlan<'a>>,
    /// The worker that was asked for it: no other one claims its task while this one lives.
    pub asked: &'a ExecutorId,
    /// Whether that takes the task at once, where the queue lets it.
    pub takes: bool,
}

/// What a run begins with whose plan is known at its start and asks nobody. Its workflow finds both, as after a crash behind them.
#[derive(Debug, Clone)]
pub struct InitialPlan<'a> {
    /// What CompileST would commit.
    pub compiled: CompileRecord<'a>,
    /// The first attempt of its only task.
    pub task: &'a NewTask,
    /// Its egress policies.
    pub snapshots: &'a [NewPolicySnapshot],
}

/// A sandbox with its first life.
#[derive(Debug, Clone, Copy)]
pub struct NewLive<'a> {
    /// New name of the sandbox: 20 letters and digits, the same in all lives.
    pub id: &'a LiveId,
    /// Intent and run of the first life.
    pub life: NewLife<'a>,
    /// Root file system.
    pub template: &'a str,
    /// Labels by which lists are filtered.
    pub metadata: &'a BTreeMap<String, String>,
    /// Names that it may reach.
    pub egress: &'a Egress,
    /// Time to live from its start, in ms.
    pub timeout_ms: i64,
    /// Whether the end of its time pauses it.
    pub pauses: bool,
    /// Whether a request resumes it.
    pub resumes: bool,
    /// The caller's key of this creation.
    pub dedup: Option<&'a str>,
    /// The build of a template whose steps it runs.
    pub build: Option<NewBuildAssignment<'a>>,
}

/// The next life of a paused sandbox.
#[derive(Debug, Clone, Copy)]
pub struct NextLife<'a> {
    /// Sandbox that must be paused, or the resume is refused.
    pub id: &'a LiveId,
    /// Intent and run of the life that begins.
    pub life: NewLife<'a>,
    /// The files that it goes on from.
    pub snapshot: &'a SnapshotId,
    /// Time to live from its start, in ms.
    pub timeout_ms: i64,
    /// Whether the end of its time pauses it; `None`: as before.
    pub pauses: Option<bool>,
    /// Who asked for it.
    pub audit: &'a Audit<'a>,
}

/// A life that is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeRecord {
    /// Whether its task is claimed already.
    pub is_taken: bool,
}

impl NewLife<'_> {
    fn opening_row(&self) -> Result<Option<Value>> {
        // A plan that is no row of its own is its workflow's to write.
        let inline = |opening: &&InitialPlan<'_>| opening.compiled.plan.len() <= INLINE_BYTES;
        let Some(InitialPlan { compiled, task, snapshots }) = self.opening.filter(inline) else {
            return Ok(None);
        };
        let CompileRecord { task_key, plan, digest, uri, output, .. } = compiled;
        Ok(Some(json!({
            "output": output,
            "card": {"task_key": task_key, "inline": plan, "sha256": digest, "uri": uri},
            "task": task.row()?,
            "snapshots": snapshots_json(snapshots)?,
            "takes": self.takes,
        })))
    }
}

fn recorded(row: &PgRow) -> OpResult<LifeRecord> {
    if let Some(refusal) = live_refusal(row.try_get("over")?) {
        return Err(refusal.into());
    }
    let is_taken: Option<bool> = row.try_get("claimed")?;
    Ok(LifeRecord { is_taken: is_taken.unwrap_or(false) })
}

impl LiveRows<'_> {
    /// Writes a sandbox with its intent, its run and its workflow, or nothing at all: its tenant has as many as it may.
    pub async fn create(self, new: &NewLive<'_>) -> OpResult<LifeRecord> {
        let Some(build) = &new.build else {
            return create_on(&mut *self.pool().acquire().await?, new).await;
        };
        let mut tx = self.pool().begin().await?;
        let created = create_on(&mut tx, new).await?;
        build_begins(&mut tx, build, new.id, &new.life.run.tenant).await?;
        tx.commit().await?;
        Ok(created)
    }

    /// Writes the next life of a paused sandbox, or nothing at all: it is not paused, its last life is still being wiped,
    /// another request was faster, or its tenant has as many live ones as it may.
    pub async fn resume(self, next: &NextLife<'_>) -> OpResult<LifeRecord> {
        let run = next.life.run;
        let live = json!({
            "id": next.id, "tenant_id": run.tenant, "run_id": run.id, "snapshot_id": next.snapshot,
            "timeout_ms": next.timeout_ms, "pauses": next.pauses,
        });
        let query = "SELECT over, rests, claimed FROM app.live_resume($1, $2, $3, $4, $5, $6, $7)";
        let query = life_query(query, live, &next.life)?.bind(next.audit.row());
        let row = query.fetch_one(self.pool()).await?;
        let recorded = recorded(&row)?;
        if row.try_get::<Option<bool>, _>("rests")? != Some(true) {
            return Err(Refusal::new(ErrorCode::StateConflict, NOT_PAUSED).into());
        }
        Ok(recorded)
    }
}

async fn create_on(conn: &mut PgConnection, new: &NewLive<'_>) -> OpResult<LifeRecord> {
    let run = new.life.run;
    let live = json!({
        "id": new.id, "tenant_id": run.tenant, "run_id": run.id, "key_id": run.key_id, "template": new.template,
        "metadata": column("live_sandboxes.metadata", new.metadata)?,
        "egress": column("live_sandboxes.egress", new.egress)?, "timeout_ms": new.timeout_ms, "dedup": new.dedup,
        "origin": run.origin.as_str(), "pauses": new.pauses, "resumes": new.resumes,
    });
    let query = "SELECT over, claimed FROM app.live_create($1, $2, $3, $4, $5, $6)";
    recorded(&life_query(query, live, &new.life)?.fetch_one(conn).await?)
}

/// What both begin with.
fn life_query(query: &'static str, live: Value, life: &NewLife<'_>) -> Result<Query> {
    Ok(sqlx::query(query)
        .bind(live)
        .bind(life.intent.row()?)
        .bind(life.run.row()?)
        .bind(life.opening_row()?)
        .bind(life.asked.as_str().to_owned())
        .bind(live_default()))
}
