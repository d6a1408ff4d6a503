//! The whole surface as one table.

use cofferdam_contracts::artifact::ArtifactRow;
use cofferdam_contracts::cache::{CacheEntry, CacheEviction};
use cofferdam_contracts::config::{ConfigEntry, ConfigPut, ConfigVersion};
use cofferdam_contracts::delegation::{DelegationEnd, DelegationRequest, DelegationRow};
use cofferdam_contracts::dispatch::{
    DispatchOutput, DispatchTokens, DispatchView, ImportRequest, ImportResponse, PruneRequest,
    PruneResponse, SpawnRequest,
};
use cofferdam_contracts::gate::{
    ApprovePlanRequest, ApprovePlanResponse, GateView, HitlEvent, InboxRow, InteractionRow,
    ReplyRequest, ReplyResponse,
};
use cofferdam_contracts::health::Health;
use cofferdam_contracts::input::{InputReceipt, TerminalSize};
use cofferdam_contracts::key::{KeyRequest, KeyResponse, KeyRevocation, KeyRow, Role};
use cofferdam_contracts::link::{LinkReply, LinkRequest, LinkResponse, LinkView};
use cofferdam_contracts::live::{LiveExec, LiveExecResult, LiveExtend, LiveRequest, LiveView};
use cofferdam_contracts::live_network::{LiveNetwork, LiveNetworkChange};
use cofferdam_contracts::model::{
    ModelCallRow, ModelProvider, ModelSpend, ProviderRemoval, ProviderRow,
};
use cofferdam_contracts::ops::{
    OpsRequest, OpsResponse, OpsStep, OpsWorkflow, QueueDepth, Throughput,
};
use cofferdam_contracts::output::OutputPage;
use cofferdam_contracts::patch::{ApplyRecord, ApplyRow};
use cofferdam_contracts::policy::EgressSnapshot;
use cofferdam_contracts::proof::ProofReport;
use cofferdam_contracts::recipe_book::{RecipeRow, RecipeVersionRow};
use cofferdam_contracts::retention::{
    EraseRequest, ErasureRow, ErasureTotals, GcPreview, GcRequest, GcStep, SecretErasure,
    StorageReport,
};
use cofferdam_contracts::run::{
    IntentRequest, IntentResponse, RecipeRunRequest, Repro, RetryResponse, RunHeader, RunRequest,
};
use cofferdam_contracts::run_file::RunFiles;
use cofferdam_contracts::schema::schema_of;
use cofferdam_contracts::secret::{
    SecretPut, SecretRemoval, SecretRotate, SecretRow, SecretUseRow,
};
use cofferdam_contracts::session::{SessionView, SettleRequest, Settlement, WipeView};
use cofferdam_contracts::snapshot::{
    LiveFork, LiveForkResult, LivePause, LiveResume, SnapshotRequest, SnapshotView,
};
use cofferdam_contracts::step::StepRow;
use cofferdam_contracts::test_report::RunReports;
use cofferdam_contracts::tree_upload::{TreeUpload, UploadReceipt};
use cofferdam_contracts::trigger::{
    FiringRow, HookReceipt, HookRequest, HookRow, ScheduleRequest, ScheduleRow, TriggerRemoval,
};
use cofferdam_contracts::usage::UsageRow;
use cofferdam_contracts::webhook::{
    DeliveryReplay, DeliveryRow, WebhookRemoval, WebhookRequest, WebhookResponse, WebhookRow,
};
use schemars::JsonSchema;
use serde_json::Value;

use crate::handlers;
use crate::recipes::{
    RecipeExport, RecipeExportResponse, RecipeImport, RecipeImportResponse, RecipePromote,
    RecipePromoteResponse,
};
use crate::route::{Route, Schema};

const SUBMIT: &[Role] = &[Role::Submitter];
const APPROVE: &[Role] = &[Role::Approver];
const OPERATE: &[Role] = &[Role::Operator];
/// A submitter cancels what its own key submitted.
const CANCEL: &[Role] = &[Role::Submitter, Role::Operator];
const ADMIN: &[Role] = &[Role::Admin];
const READ: &[Role] = &[Role::Submitter, Role::Approver, Role::Operator, Role::Auditor];
const AUDIT: &[Role] = &[Role::Auditor, Role::Operator];

macro_rules! route {
    ($method:literal $path:literal, $roles:expr, [$($query:literal),*], $request:expr, $success:literal, $response:expr, $handler:path, $summary:literal) => {
        Route {
            method: $method,
            path: $path,
            summary: $summary,
            roles: $roles,
            query: &[$($query),*],
            request: $request,
            success: $success,
            response: $response,
            handler: |call| Box::pin($handler(call)),
        }
    };
}

/// `OpsRequest` of a control that begins at no step.
fn stepless() -> Value {
    let mut schema = schema_of::<OpsRequest>();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.remove("stepN");
    }
    schema
}

/// `OpsRequest` of a fork, which begins at one.
fn forking() -> Value {
    let mut schema = schema_of::<OpsRequest>();
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.push(Value::from("stepN"));
    }
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("title".into(), Value::from("OpsFork"));
    }
    schema
}

const fn s<T: JsonSchema>() -> Option<Schema> {
    Some(schema_of::<T>)
}

/// Every endpoint; the router and the OpenAPI document are made from this table.
#[rustfmt::skip]
pub const ROUTES: &[Route] = &[
    route!("GET" "/healthz", &[], [], None, 200, s::<Health>(), handlers::health::healthz, "Whether database, queues and workers are well"),
    route!("POST" "/api/intents", SUBMIT, [], s::<IntentRequest>(), 201, s::<IntentResponse>(), handlers::runs::intent_create, "Writes an intent"),
    route!("POST" "/api/runs", SUBMIT, [], s::<RunRequest>(), 201, s::<RunHeader>(), handlers::runs::run_create, "Runs an intent; 200 where the same run exists"),
    route!("POST" "/api/run", SUBMIT, ["output"], s::<RecipeRunRequest>(), 201, s::<RunHeader>(), handlers::runs::recipe_run, "Runs a recipe; 200 where the same run exists"),
    route!("GET" "/api/runs", READ, ["status", "failed", "recipe", "since", "until", "tenant", "after", "limit"], None, 200, s::<Vec<RunHeader>>(), handlers::run_list::run_list, "Runs, newest first; the header Link leads to the page after"),
    route!("GET" "/api/runs/{id}", READ, [], None, 200, s::<RunHeader>(), handlers::runs::run_get, "One run, by its id, the beginning of it, its workflow's id, or `last`"),
    route!("GET" "/api/runs/{id}/steps", READ, [], None, 200, s::<Vec<StepRow>>(), handlers::runs::run_steps, "Its steps and its tasks' attempts"),
    route!("GET" "/api/runs/{id}/artifacts", READ, [], None, 200, s::<Vec<ArtifactRow>>(), handlers::runs::run_artifacts, "Its artifacts"),
    route!("GET" "/api/runs/{id}/files", READ, ["glob", "task", "format"], None, 200, s::<RunFiles>(), handlers::files::run_files, "What its tasks left, of their last attempts: a list, or an archive as it is read; with several tasks it has a directory for each"),
    route!("GET" "/api/runs/{id}/reports", READ, [], None, 200, s::<RunReports>(), handlers::runs::run_reports, "What its test reports say, by task, and their sum"),
    route!("GET" "/api/runs/{id}/wipes", READ, [], None, 200, s::<Vec<WipeView>>(), handlers::runs::run_wipes, "Its sandboxes and their wipe evidence"),
    route!("GET" "/api/runs/{id}/egress", READ, [], None, 200, s::<Vec<EgressSnapshot>>(), handlers::runs::run_egress, "Names its sandboxes may reach, by phase, with approver"),
    route!("GET" "/api/runs/{id}/models", READ, [], None, 200, s::<Vec<ModelSpend>>(), handlers::models::spent, "What its calls of models took, by model"),
    route!("GET" "/api/runs/{id}/models/calls", READ, [], None, 200, s::<Vec<ModelCallRow>>(), handlers::models::calls, "Its calls of models, refused ones included"),
    route!("GET" "/api/runs/{id}/applies", READ, [], None, 200, s::<Vec<ApplyRow>>(), handlers::runs::run_applies, "Where its patches were written, with approval, key and time"),
    route!("POST" "/api/runs/{id}/applies", SUBMIT, [], s::<ApplyRecord>(), 200, s::<ApplyRow>(), handlers::runs::run_applied, "Records where its approved patch was written, once for each approval"),
    route!("GET" "/api/runs/{id}/secrets", READ, [], None, 200, s::<Vec<SecretUseRow>>(), handlers::runs::run_secrets, "Secrets its sandboxes sent, by host, with counts"),
    route!("GET" "/api/runs/{id}/erasures", READ, [], None, 200, s::<Vec<ErasureRow>>(), handlers::retention::run_erasures, "What of it was erased: when, by whom and why"),
    route!("POST" "/api/runs/{id}/erase", OPERATE, [], s::<EraseRequest>(), 200, s::<ErasureTotals>(), handlers::retention::run_erase, "Erases its prompt, its output or both, everywhere; the record stays with hashes"),
    route!("GET" "/api/runs/{id}/gates", READ, [], None, 200, s::<Vec<GateView>>(), handlers::gates::gate_list, "Its gates"),
    route!("GET" "/api/runs/{id}/interactions", READ, ["limit"], None, 200, s::<Vec<InteractionRow>>(), handlers::gates::interaction_list, "The replies to its gates that are on record: accepted, votes, and those that came too late"),
    route!("GET" "/api/runs/{id}/proofs", READ, ["skipObjects"], None, 200, s::<ProofReport>(), handlers::proofs::run_proofs, "Every proof, for this run; its stored objects are read and hashed"),
    route!("GET" "/api/runs/{id}/repro", READ, [], None, 200, s::<Repro>(), handlers::runs::run_repro, "Inputs and versions needed to run it again"),
    route!("GET" "/api/runs/{id}/stream/{key}", READ, ["from", "follow"], None, 200, None, crate::stream::run_stream, "status of a run; stdout or stderr of a task, by its key; all that the tasks of a run write: NDJSON or SSE"),
    route!("PUT" "/api/runs/{id}/input", SUBMIT, ["at", "end"], None, 200, s::<InputReceipt>(), handlers::run_input::put, "Standard input of its command, for the key that started it with `output=true`: at most 256 KiB, sent again from `next` on"),
    route!("POST" "/api/runs/{id}/terminal", SUBMIT, [], s::<TerminalSize>(), 200, s::<TerminalSize>(), handlers::run_input::resize, "Gives the terminal of its command a size, for the key that started it"),
    route!("GET" "/api/runs/{id}/output", SUBMIT, ["from", "timeoutS"], None, 200, s::<OutputPage>(), handlers::runs::run_output, "Its whole output while it runs, for the key that started it with `output=true`; a command waits for a client that does not confirm"),
    route!("GET" "/api/runs/{id}/gates/{gate}", READ, ["timeoutS"], None, 200, s::<GateView>(), handlers::gates::gate_get, "One gate; waits up to timeoutS for a change"),
    route!("POST" "/api/runs/{id}/gates/{gate}/reply", APPROVE, [], s::<ReplyRequest>(), 200, s::<ReplyResponse>(), handlers::gates::gate_reply, "Answers a gate"),
    route!("POST" "/api/runs/{id}/gates/{gate}/links", APPROVE, [], s::<LinkRequest>(), 201, s::<LinkResponse>(), handlers::links::create, "Creates a link with which a person without a key answers the gate once"),
    route!("GET" "/api/links/{token}", &[], [], None, 200, s::<LinkView>(), handlers::links::view, "The gate of a reply link: JSON, or a page for browsers; changes nothing"),
    route!("POST" "/api/links/{token}", &[], [], s::<LinkReply>(), 200, s::<ReplyResponse>(), handlers::links::reply, "Answers a gate through a reply link, once"),
    route!("POST" "/api/runs/{id}/approve-plan", APPROVE, [], s::<ApprovePlanRequest>(), 202, s::<ApprovePlanResponse>(), handlers::gates::plan_approve, "Approves the run's plan"),
    route!("POST" "/api/runs/{id}/retry", OPERATE, [], None, 202, s::<RetryResponse>(), handlers::runs::run_retry, "Continues a failed run from its first step without success"),
    route!("POST" "/api/events/hitl", APPROVE, [], s::<HitlEvent>(), 200, s::<ReplyResponse>(), handlers::gates::hitl_event, "A webhook's reply to a gate"),
    route!("GET" "/api/hitl/inbox", READ, ["limit"], None, 200, s::<Vec<InboxRow>>(), handlers::gates::inbox, "Open gates, most urgent first"),
    route!("GET" "/api/delegations", READ, [], None, 200, s::<Vec<DelegationRow>>(), handlers::delegations::list, "Delegations of gate answers"),
    route!("POST" "/api/delegations", APPROVE, [], s::<DelegationRequest>(), 201, s::<DelegationRow>(), handlers::delegations::create, "Lets another key vote for the caller, until a time"),
    route!("DELETE" "/api/delegations/{delegation}", APPROVE, [], None, 200, s::<DelegationEnd>(), handlers::delegations::end, "Ends a delegation early"),
    route!("GET" "/api/artifacts/{*uri}", READ, [], None, 200, None, handlers::artifacts::artifact_get, "An artifact's bytes, or one range of them by `Range`; the ETag is the sha256 of all"),
    route!("GET" "/api/ops/wf", AUDIT, ["status", "name", "limit"], None, 200, s::<Vec<OpsWorkflow>>(), handlers::ops::list, "Workflows of the engine, newest first"),
    route!("GET" "/api/ops/wf/{wid}", AUDIT, [], None, 200, s::<OpsWorkflow>(), handlers::ops::get, "One workflow with its audit"),
    route!("GET" "/api/ops/wf/{wid}/steps", AUDIT, [], None, 200, s::<Vec<OpsStep>>(), handlers::ops::steps, "Its recorded steps"),
    route!("POST" "/api/ops/wf/{wid}/cancel", CANCEL, [], Some(stepless), 202, s::<OpsResponse>(), handlers::ops::cancel, "Cancels a workflow with its gates, tasks and sandboxes; a submitter: those of its own runs"),
    route!("POST" "/api/ops/wf/{wid}/resume", OPERATE, [], Some(stepless), 202, s::<OpsResponse>(), handlers::ops::resume, "Resumes a canceled workflow"),
    route!("POST" "/api/ops/wf/{wid}/fork", OPERATE, [], Some(forking), 202, s::<OpsResponse>(), handlers::ops::fork, "Repeats a run from a step, as a new run"),
    route!("GET" "/api/ops/queue-depth", AUDIT, [], None, 200, s::<Vec<QueueDepth>>(), handlers::ops::queue_depth, "Waiting and running work of the caller's tenant, by queue"),
    route!("GET" "/api/ops/throughput", AUDIT, ["windowS"], None, 200, s::<Throughput>(), handlers::ops::throughput, "Runs and tasks of the caller's tenant started and ended in the last windowS seconds"),
    route!("GET" "/api/sessions", READ, ["state", "limit"], None, 200, s::<Vec<SessionView>>(), handlers::sessions::list, "Sandboxes' sessions, newest first; state=REMOTE_WIPE_VERIFYING lists the held ones"),
    route!("GET" "/api/sessions/{sandbox}", READ, [], None, 200, s::<SessionView>(), handlers::sessions::get, "One session with every look at its wipe"),
    route!("POST" "/api/sessions/{sandbox}/settle", OPERATE, [], s::<SettleRequest>(), 200, s::<Settlement>(), handlers::sessions::settle, "Ends a session whose wipe could not be verified, on the operator's word"),
    route!("GET" "/api/sandboxes", READ, ["label", "state", "limit"], None, 200, s::<Vec<LiveView>>(), handlers::sandboxes::list, "Long-lived sandboxes, newest first"),
    route!("POST" "/api/sandboxes", SUBMIT, [], s::<LiveRequest>(), 201, s::<LiveView>(), handlers::sandboxes::create, "Creates a sandbox that lives until it is killed or its time is over; answers once it runs"),
    route!("GET" "/api/sandboxes/{live}", READ, [], None, 200, s::<LiveView>(), handlers::sandboxes::get, "One long-lived sandbox"),
    route!("DELETE" "/api/sandboxes/{live}", SUBMIT, [], None, 200, s::<LiveView>(), handlers::sandboxes::kill, "Kills a long-lived sandbox; answers once its wipe is verified"),
    route!("POST" "/api/sandboxes/{live}/exec", SUBMIT, [], s::<LiveExec>(), 200, s::<LiveExecResult>(), handlers::sandboxes::exec, "Runs a command in a long-lived sandbox and waits for its end"),
    route!("POST" "/api/sandboxes/{live}/fork", SUBMIT, [], s::<LiveFork>(), 201, s::<Vec<LiveForkResult>>(), handlers::sandboxes::fork, "Creates sandboxes with the files of one that runs or is paused"),
    route!("GET" "/api/sandboxes/{live}/network", READ, [], None, 200, s::<Vec<LiveNetworkChange>>(), handlers::sandboxes::networks, "Changes of a sandbox's network: who, when, from what to what, and what became of it"),
    route!("PUT" "/api/sandboxes/{live}/network", SUBMIT, [], s::<LiveNetwork>(), 200, s::<LiveView>(), handlers::sandboxes::network, "Replaces the names that a running sandbox reaches; answers once no connection to another one is left"),
    route!("POST" "/api/sandboxes/{live}/pause", SUBMIT, [], s::<LivePause>(), 200, s::<LiveView>(), handlers::sandboxes::pause, "Pauses a long-lived sandbox: its files are kept, and its memory where its class can"),
    route!("POST" "/api/sandboxes/{live}/resume", SUBMIT, [], s::<LiveResume>(), 200, s::<LiveView>(), handlers::sandboxes::resume, "Resumes a paused sandbox with what was kept; answers once it runs"),
    route!("POST" "/api/sandboxes/{live}/snapshots", SUBMIT, [], s::<SnapshotRequest>(), 201, s::<SnapshotView>(), handlers::sandboxes::snapshot, "Keeps the files of a long-lived sandbox, which goes on"),
    route!("GET" "/api/snapshots", READ, [], None, 200, s::<Vec<SnapshotView>>(), handlers::sandboxes::snapshots, "Kept files of sandboxes, newest first; at most 1,000"),
    route!("DELETE" "/api/snapshots/{snapshot}", SUBMIT, [], None, 200, s::<SnapshotView>(), handlers::sandboxes::snapshot_delete, "Deletes a snapshot: its key is destroyed and its file removed"),
    route!("POST" "/api/sandboxes/{live}/extend", SUBMIT, [], s::<LiveExtend>(), 200, s::<LiveView>(), handlers::sandboxes::extend, "Sets when a long-lived sandbox ends"),
    route!("GET" "/api/recipes", READ, [], None, 200, s::<Vec<RecipeRow>>(), handlers::recipes::list, "Recipes"),
    route!("GET" "/api/recipes/{id}/versions", READ, [], None, 200, s::<Vec<RecipeVersionRow>>(), handlers::recipes::versions, "A recipe's versions"),
    route!("POST" "/api/recipes/import", SUBMIT, [], s::<RecipeImport>(), 201, s::<RecipeImportResponse>(), handlers::recipes::import, "Imports a recipe as a draft"),
    route!("POST" "/api/recipes/export", READ, [], s::<RecipeExport>(), 200, s::<RecipeExportResponse>(), handlers::recipes::export, "A recipe in canonical form; without v a bundle of its versions"),
    route!("POST" "/api/recipes/{id}/promote", OPERATE, [], s::<RecipePromote>(), 200, s::<RecipePromoteResponse>(), handlers::recipes::promote, "Makes a version a candidate, or permanently stable"),
    route!("GET" "/api/trees/{tree}", SUBMIT, [], None, 200, s::<TreeUpload>(), handlers::trees::look, "A directory that a client sends: how far it has come, and which of its files lack"),
    route!("PUT" "/api/trees/{tree}/manifest", SUBMIT, ["at", "end"], None, 200, s::<TreeUpload>(), handlers::trees::manifest, "The manifest of a directory, in parts of at most 2 MiB; the last one is held against the tenant's bounds"),
    route!("PUT" "/api/trees/{tree}/files", SUBMIT, [], None, 200, s::<UploadReceipt>(), handlers::trees::files, "Files of its manifest, or parts of them, at most 2 MiB: each a line `SHA256 FROM LENGTH` and its bytes"),
    route!("GET" "/api/usage", READ, ["tenant", "since", "until", "by", "after", "limit"], None, 200, s::<Vec<UsageRow>>(), handlers::usage::usage_list, "What a tenant used, by day (UTC) or in all, newest day first; the header Link leads to the page after"),
    route!("GET" "/api/config", READ, [], None, 200, s::<Vec<ConfigEntry>>(), handlers::config::list, "The configuration in force for the caller's tenant"),
    route!("GET" "/api/config/{name}", READ, [], None, 200, s::<ConfigEntry>(), handlers::config::get, "One configuration key in force"),
    route!("GET" "/api/config/{name}/history", READ, ["limit"], None, 200, s::<Vec<ConfigVersion>>(), handlers::config::history, "A key's versions, newest first"),
    route!("PUT" "/api/config/{name}", OPERATE, [], s::<ConfigPut>(), 200, s::<ConfigEntry>(), handlers::config::put, "Writes a key's next version"),
    route!("GET" "/api/models", READ, [], None, 200, s::<Vec<ProviderRow>>(), handlers::models::list, "Providers of models"),
    route!("POST" "/api/models", OPERATE, [], s::<ModelProvider>(), 201, s::<ProviderRow>(), handlers::models::put, "Adds a provider of models, or changes one"),
    route!("DELETE" "/api/models/{provider}", OPERATE, [], None, 200, s::<ProviderRemoval>(), handlers::models::remove, "Removes a provider of models"),
    route!("GET" "/api/cache", READ, [], None, 200, s::<Vec<CacheEntry>>(), handlers::cache::list, "Cached dependencies, least recently used first"),
    route!("DELETE" "/api/cache", OPERATE, ["olderThanS"], None, 202, s::<CacheEviction>(), handlers::cache::evict, "Evicts cached dependencies unused for olderThanS seconds"),
    route!("DELETE" "/api/cache/{key}", OPERATE, [], None, 202, s::<CacheEviction>(), handlers::cache::forget, "Evicts the cached dependencies of one key"),
    route!("POST" "/api/dispatches", SUBMIT, [], s::<SpawnRequest>(), 201, s::<DispatchView>(), handlers::dispatches::spawn, "Starts an agent"),
    route!("GET" "/api/dispatches", READ, ["status", "active", "scope", "limit"], None, 200, s::<Vec<DispatchView>>(), handlers::dispatches::list, "Dispatches, newest first"),
    route!("POST" "/api/dispatches/prune", OPERATE, [], s::<PruneRequest>(), 200, s::<PruneResponse>(), handlers::dispatches::prune, "Removes ended dispatches older than an age"),
    route!("POST" "/api/dispatches/import", OPERATE, [], s::<ImportRequest>(), 200, s::<ImportResponse>(), handlers::dispatches::import, "Imports ended dispatches of another database"),
    route!("GET" "/api/dispatches/tokens", READ, ["id", "scope"], None, 200, s::<DispatchTokens>(), handlers::dispatches::tokens, "Tokens of one dispatch, of a scope, or of all"),
    route!("GET" "/api/dispatches/{id}", READ, ["timeoutS"], None, 200, s::<DispatchView>(), handlers::dispatches::get, "One dispatch; waits up to timeoutS for its end"),
    route!("GET" "/api/dispatches/{id}/output", READ, [], None, 200, s::<DispatchOutput>(), handlers::dispatches::output, "Location of its output"),
    route!("POST" "/api/dispatches/{id}/kill", OPERATE, [], None, 202, s::<DispatchView>(), handlers::dispatches::kill, "Ends a dispatch and its sandbox"),
    route!("POST" "/api/dispatches/{id}/retry", OPERATE, [], None, 201, s::<DispatchView>(), handlers::dispatches::retry, "Repeats a dispatch, as a new one that refers to it"),
    route!("GET" "/api/proofs", AUDIT, ["skipObjects"], None, 200, s::<ProofReport>(), handlers::proofs::all_proofs, "Every proof, over all data visible to the key; stored objects are read and hashed"),
    route!("GET" "/api/webhooks", AUDIT, [], None, 200, s::<Vec<WebhookRow>>(), handlers::webhooks::list, "Webhooks, without their secrets"),
    route!("POST" "/api/webhooks", OPERATE, [], s::<WebhookRequest>(), 201, s::<WebhookResponse>(), handlers::webhooks::add, "Creates a webhook; its secret is shown once"),
    route!("DELETE" "/api/webhooks/{webhook}", OPERATE, [], None, 200, s::<WebhookRemoval>(), handlers::webhooks::remove, "Removes a webhook"),
    route!("GET" "/api/webhooks/{webhook}/deliveries", AUDIT, ["state", "limit"], None, 200, s::<Vec<DeliveryRow>>(), handlers::webhooks::deliveries, "Its deliveries, newest first"),
    route!("POST" "/api/webhooks/{webhook}/deliveries/{delivery}/replay", OPERATE, [], None, 202, s::<DeliveryReplay>(), handlers::webhooks::replay, "Sends a delivered or dead delivery again"),
    route!("GET" "/api/schedules", READ, [], None, 200, s::<Vec<ScheduleRow>>(), handlers::triggers::schedules, "Schedules, by name, each with its newest firing"),
    route!("POST" "/api/schedules", SUBMIT, [], s::<ScheduleRequest>(), 201, s::<ScheduleRow>(), handlers::triggers::schedule_add, "Adds a schedule: runs of a recipe by the clock, with the rights of the caller's key"),
    route!("DELETE" "/api/schedules/{schedule}", CANCEL, [], None, 200, s::<TriggerRemoval>(), handlers::triggers::schedule_remove, "Removes a schedule; what waits of it is skipped, its firings stay on record"),
    route!("POST" "/api/schedules/{schedule}/pause", CANCEL, [], None, 200, s::<ScheduleRow>(), handlers::triggers::pause, "Pauses a schedule: instants until it is resumed are not firings"),
    route!("POST" "/api/schedules/{schedule}/resume", CANCEL, [], None, 200, s::<ScheduleRow>(), handlers::triggers::resume, "Resumes a schedule, from its next instant on"),
    route!("GET" "/api/schedules/{schedule}/firings", READ, ["limit"], None, 200, s::<Vec<FiringRow>>(), handlers::triggers::schedule_firings, "A schedule's firings, newest first: each with its run, or the reason why it has none"),
    route!("GET" "/api/hooks", READ, [], None, 200, s::<Vec<HookRow>>(), handlers::triggers::hooks, "Hooks, by name"),
    route!("POST" "/api/hooks", OPERATE, [], s::<HookRequest>(), 201, s::<HookRow>(), handlers::triggers::hook_add, "Adds a hook: runs of a recipe by signed deliveries, with the rights of the caller's key"),
    route!("POST" "/api/hooks/{hook}", &[], [], None, 201, s::<HookReceipt>(), handlers::triggers::deliver, "Takes a delivery of GitHub, GitLab or Standard Webhooks; its signature is its key"),
    route!("DELETE" "/api/hooks/{hook}", CANCEL, [], None, 200, s::<TriggerRemoval>(), handlers::triggers::hook_remove, "Removes a hook; its firings stay on record"),
    route!("GET" "/api/hooks/{hook}/firings", READ, ["limit"], None, 200, s::<Vec<FiringRow>>(), handlers::triggers::hook_firings, "Deliveries that started runs or were left out by their event, newest first"),
    route!("GET" "/api/secrets", AUDIT, [], None, 200, s::<Vec<SecretRow>>(), handlers::secrets::list, "Secrets, without their values"),
    route!("PUT" "/api/secrets/{secret}", OPERATE, [], s::<SecretPut>(), 200, s::<SecretRow>(), handlers::secrets::put, "Sets a secret: its next version"),
    route!("POST" "/api/secrets/{secret}/rotate", OPERATE, [], s::<SecretRotate>(), 200, s::<SecretRow>(), handlers::secrets::rotate, "Rotates a secret; running sandboxes send the new value within a second"),
    route!("DELETE" "/api/secrets/{secret}", OPERATE, [], None, 200, s::<SecretRemoval>(), handlers::secrets::remove, "Removes a secret; running sandboxes are refused it within a second"),
    route!("POST" "/api/secrets/{secret}/erase", OPERATE, [], s::<SecretErasure>(), 200, s::<ErasureTotals>(), handlers::retention::secret_erase, "Erases a secret's bytes; their hash and the reason stay on record"),
    route!("GET" "/api/gc", OPERATE, [], None, 200, s::<GcPreview>(), handlers::retention::gc_preview, "What a collection would take now, by tenant"),
    route!("POST" "/api/gc", OPERATE, [], s::<GcRequest>(), 200, s::<GcStep>(), handlers::retention::gc, "Collects for about two seconds what retention leaves no room for; `next` says where to go on"),
    route!("GET" "/api/storage", AUDIT, [], None, 200, s::<StorageReport>(), handlers::retention::storage, "Who uses what, by tenant"),
    route!("GET" "/api/keys", ADMIN, ["tenant"], None, 200, s::<Vec<KeyRow>>(), handlers::keys::list, "API keys, without their secrets; tenant: another tenant's, or * for all, for the host's admin"),
    route!("POST" "/api/keys", ADMIN, [], s::<KeyRequest>(), 201, s::<KeyResponse>(), handlers::keys::create, "Creates a key; its secret is shown once"),
    route!("DELETE" "/api/keys/{key}", ADMIN, ["tenant"], None, 200, s::<KeyRevocation>(), handlers::keys::revoke, "Revokes a key; tenant: another tenant's, for the host's admin"),
];
