//! The published JSON Schemas are goldens: a change of the contract is a change of a file that a
//! reviewer sees.

use crate::golden;

use std::collections::BTreeSet;
use std::fs;

use cofferdam_contracts::artifact::{ArtifactIndex, ArtifactRow};
use cofferdam_contracts::config::{ConfigEntry, ConfigPut, ConfigVersion};
use cofferdam_contracts::delegation::{DelegationEnd, DelegationRequest, DelegationRow};
use cofferdam_contracts::dispatch::{
    DispatchOutput, DispatchTokens, DispatchView, ImportRequest, ImportResponse, PruneRequest,
    PruneResponse, SandboxEffective, SpawnRequest,
};
use cofferdam_contracts::error::ErrorBody;
use cofferdam_contracts::gate::{
    ApprovePlanRequest, ApprovePlanResponse, Decision, GateView, HitlEvent, InboxRow,
    InteractionRow, Prompt, PromptResult, ReplyRequest, ReplyResponse,
};
use cofferdam_contracts::health::Health;
use cofferdam_contracts::input::{InputReceipt, TerminalSize};
use cofferdam_contracts::key::{KeyRequest, KeyResponse, KeyRevocation, KeyRow};
use cofferdam_contracts::link::{LinkReply, LinkRequest, LinkResponse, LinkView};
use cofferdam_contracts::model::{
    ModelCallRow, ModelProvider, ModelSpend, ProviderRemoval, ProviderRow,
};
use cofferdam_contracts::ops::{OpsRequest, OpsResponse, OpsStep, OpsWorkflow};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::policy::EgressSnapshot;
use cofferdam_contracts::profile::{Ceiling, Profile};
use cofferdam_contracts::proof::ProofReport;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::recipe_book::{RecipeRow, RecipeVersionRow};
use cofferdam_contracts::run::{
    IntentRequest, IntentResponse, RecipeRunRequest, Repro, RetryResponse, RunHeader, RunRequest,
};
use cofferdam_contracts::run_file::RunFiles;
use cofferdam_contracts::sandbox::{
    EffectivePolicy, SandboxRequest, SandboxResult, SandboxSpec, WipeEvidence,
};
use cofferdam_contracts::schema::{Validator, schema_of};
use cofferdam_contracts::secret::{
    SecretPut, SecretRemoval, SecretRotate, SecretRow, SecretUseRow,
};
use cofferdam_contracts::session::{SessionView, SettleRequest, Settlement, WipeView};
use cofferdam_contracts::step::{StepRow, TaskOutcome};
use cofferdam_contracts::test_report::RunReports;
use cofferdam_contracts::usage::UsageRow;
use cofferdam_contracts::webhook::{
    DeliveryReplay, DeliveryRow, GateEvent, RunEvent, WebhookRemoval, WebhookRequest,
    WebhookResponse, WebhookRow,
};
use serde_json::{Value, json};

macro_rules! schemas {
    ($($name:ident),+ $(,)?) => { vec![$((stringify!($name), schema_of::<$name>())),+] };
}

fn published() -> Vec<(&'static str, Value)> {
    schemas![
        ApprovePlanRequest,
        ArtifactIndex,
        ArtifactRow,
        Ceiling,
        ConfigEntry,
        ConfigPut,
        ConfigVersion,
        Decision,
        DeliveryReplay,
        DeliveryRow,
        DelegationEnd,
        DelegationRequest,
        DelegationRow,
        DispatchOutput,
        DispatchTokens,
        DispatchView,
        EffectivePolicy,
        EgressSnapshot,
        ErrorBody,
        GateView,
        Health,
        HitlEvent,
        ImportRequest,
        ImportResponse,
        InboxRow,
        InputReceipt,
        InteractionRow,
        IntentResponse,
        IntentRequest,
        KeyResponse,
        KeyRequest,
        KeyRevocation,
        KeyRow,
        LinkResponse,
        LinkReply,
        LinkRequest,
        LinkView,
        ModelCallRow,
        ModelProvider,
        ModelSpend,
        OpsResponse,
        OpsRequest,
        OpsStep,
        OpsWorkflow,
        Plan,
        ApprovePlanResponse,
        Profile,
        ProofReport,
        Prompt,
        PromptResult,
        ProviderRemoval,
        ProviderRow,
        PruneRequest,
        PruneResponse,
        Recipe,
        RecipeRunRequest,
        RecipeRow,
        RecipeVersionRow,
        ReplyResponse,
        ReplyRequest,
        Repro,
        RetryResponse,
        RunHeader,
        RunFiles,
        RunReports,
        RunRequest,
        SandboxEffective,
        SandboxRequest,
        SandboxResult,
        SandboxSpec,
        SecretPut,
        SecretRemoval,
        SecretRotate,
        SecretRow,
        SecretUseRow,
        SessionView,
        SettleRequest,
        Settlement,
        StepRow,
        TaskOutcome,
        TerminalSize,
        UsageRow,
        WebhookResponse,
        WebhookRemoval,
        WebhookRequest,
        WebhookRow,
        GateEvent,
        RunEvent,
        SpawnRequest,
        WipeEvidence,
        WipeView,
    ]
}

#[test]
fn every_published_schema_is_its_golden() {
    for (name, schema) in published() {
        let path = format!("schemas/{name}.json");
        let manifest_dir = env!("CARGO_MANIFEST_DIR");
        golden::hold(manifest_dir, &path, &schema, "contracts", "schemas");
    }
}

#[test]
fn no_golden_is_left_over() {
    let want: BTreeSet<String> =
        published().iter().map(|(name, _)| format!("{name}.json")).collect();
    let have: BTreeSet<String> = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/schemas"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(have, want);
}

#[test]
fn every_published_schema_compiles() {
    for (name, schema) in published() {
        let refused = Validator::compile(&schema).err().map(|refusal| refusal.message);
        assert_eq!(refused, None, "{name}");
    }
}

/// What the types refuse, the published schemas must refuse too: a caller validates with them.
#[test]
fn every_object_of_a_published_schema_refuses_unknown_fields() {
    for (name, schema) in published() {
        let mut open = Vec::new();
        open_objects(&schema, String::new(), &mut open);
        assert!(open.is_empty(), "{name}: additionalProperties is not false at {open:?}");
    }
}

fn open_objects(schema: &Value, at: String, open: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let closed = fields.contains_key("additionalProperties");
            if fields.contains_key("properties") && fields.contains_key("type") && !closed {
                open.push(at.clone());
            }
            for (name, value) in fields {
                open_objects(value, format!("{at}/{name}"), open);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                open_objects(item, format!("{at}/{index}"), open);
            }
        }
        _ => {}
    }
}

/// Recipes write `mem_mb`, requests `memMB`: both are read, so both are published.
#[test]
fn a_recipe_that_parses_fits_the_published_schema() {
    let text = "
id: all
v: \"1\"
title: Every field
form: {type: object, properties: {n: {type: integer}}}
caps: {concurrency: 2, steps: 4, sandbox_minutes: 3}
queue: {lane: batch}
plan:
  gate: approve-plan
  tasks:
    - name: t-${item}
      each: ${range(form.n)}
      image: host
      files: [{text: hi, to: /work/a, access: workspace-write}]
      build: {run: make, egress: [\"@pip\"], cache: lock, timeout: 5m}
      exec: {run: [sh, -c, x], env: {A: b}, egress: none, timeout: python, workdir: /work}
      profile: python
      limits: {cpu: 0.5, mem_mb: 512, pids: 64, disk_mb: 64, output_bytes: 9, nofile: 64}
      services: [postgres]
      cache: {org: o, repo: r}
      isolation: {class_min: container}
      artifacts: [\"logs/**\"]
    - {name: v, value: x}
";
    let recipe = Recipe::from_yaml("all.yaml", text).unwrap();
    let written: Value = serde_json::to_value(&recipe).unwrap();
    let validator = Validator::compile(&schema_of::<Recipe>()).unwrap();
    assert_eq!(validator.violations(&written), vec![], "as we write it");
    let mut by_hand = written;
    by_hand["plan"]["tasks"][0]["limits"] =
        json!({"cpu": 0.5, "mem_mb": 512, "disk_mb": 64, "output_bytes": 9});
    assert_eq!(validator.violations(&by_hand), vec![], "as people write it");
}
