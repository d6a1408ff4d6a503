//! What a tenant may write: recipes, their templates and forms, and the bodies of requests.

use cofferdam_contracts::config::settings;
use cofferdam_contracts::dispatch::{ImportRequest, SpawnRequest, check_spec};
use cofferdam_contracts::gate::{ApprovePlanRequest, ReplyRequest};
use cofferdam_contracts::id::TenantId;
use cofferdam_contracts::key::KeyRequest;
use cofferdam_contracts::link::{LinkReply, LinkRequest};
use cofferdam_contracts::model::{AnswerMeter, ModelProtocol, ModelRequest};
use cofferdam_contracts::patch::{
    self, GitId, GitRef, ObjectFormat, RefAdvert, Target, VerifiedPatch, receipt, why_refused,
};
use cofferdam_contracts::plan::compile;
use cofferdam_contracts::recipe::Recipe;
use cofferdam_contracts::run::{IntentRequest, RecipeRunRequest, RunRequest, RunStatus};
use cofferdam_contracts::schema::{Validator, parse_json, schema_of, unstorable, with_defaults};
use cofferdam_contracts::task_outputs::{
    MAX_OUTPUT_ITEMS, MAX_OUTPUTS, MAX_OUTPUTS_BYTES, OutputsKind, parse as read_outputs,
};
use cofferdam_contracts::template::{GlobError, RenderBudget, Scope, render, render_value};
use cofferdam_contracts::template_build::{
    BuildPlan, BuildSource, BuildState, BuildStep, RawStep, tagged,
};
use cofferdam_contracts::test_report::{
    ReportBounds, ReportContent, ReportKind, TestReport, merged, read,
};
use cofferdam_contracts::webhook::WebhookRequest;
use cofferdam_hostile::fuzz;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn no_files(_: &str, _: &str) -> Result<Vec<String>, GlobError> {
    Ok(vec!["a".to_owned(), "b".to_owned()])
}

#[test]
fn fuzz_a_recipe_is_compiled_or_refused() {
    let settings = settings(&[], &TenantId::parse("t").unwrap()).unwrap();
    let form = json!({"repo": "/srv/a", "cmd": "true", "shards": 3, "text": "x"});
    fuzz!("recipe", 1_000, |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(recipe) = Recipe::from_yaml("fuzz", &text) {
            recipe.hash().unwrap();
            if let Ok(plan) = compile(&recipe, &form, &settings, &no_files) {
                plan.digest().unwrap();
            }
        }
    });
}

#[test]
fn fuzz_a_template_is_rendered_or_refused() {
    let form = json!({"a": {"b": ["x", 1]}, "n": 3, "s": "${form.n}", "big": 1e300});
    let item = json!({"k": "v"});
    fuzz!("template", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let budget = RenderBudget::default();
        let scope = Scope {
            form: &form,
            item: Some((&item, 1, 2)),
            matrix: None,
            glob: &no_files,
            budget: &budget,
        };
        let _ = render_value(&text, &scope);
        let _ = render(&text, &scope);
    });
}

/// What a task wrote: within its bounds, or refused; and what is taken can be stored and read again.
#[test]
fn fuzz_outputs_of_a_task_are_read_or_refused() {
    fuzz!("task_outputs", |bytes: &[u8]| {
        for kind in [OutputsKind::Env, OutputsKind::Json] {
            let Ok(outputs) = read_outputs(bytes, kind) else { continue };
            assert!(bytes.len() <= MAX_OUTPUTS_BYTES && outputs.iter().count() <= MAX_OUTPUTS);
            let lists = outputs.iter().filter_map(|(_, value)| value.as_array());
            assert!(lists.map(Vec::len).all(|items| items <= MAX_OUTPUT_ITEMS));
            let text = serde_json::to_vec(&outputs).unwrap();
            assert_eq!(
                serde_json::from_slice::<cofferdam_contracts::task_outputs::TaskOutputs>(&text)
                    .unwrap(),
                outputs
            );
        }
    });
}

/// `{"schema": ..., "value": ...}`: both are a tenant's.
#[test]
fn fuzz_a_form_is_checked_by_its_own_schema() {
    fuzz!("form", |bytes: &[u8]| {
        let Ok(Value::Object(both)) = parse_json(bytes) else { return };
        let schema = both.get("schema").cloned().unwrap_or(Value::Bool(true));
        let mut value = both.get("value").cloned().unwrap_or_default();
        if let Ok(validator) = Validator::compile(&schema) {
            with_defaults(&schema, &mut value);
            let _ = validator.violations(&value);
        }
    });
}

type Reading = Box<dyn Fn(&Value)>;

/// As the server does it: the schema, then the type, which takes what the schema lets through.
fn body<T: DeserializeOwned + JsonSchema>() -> Reading {
    let validator = Validator::compile(&schema_of::<T>()).unwrap();
    Box::new(move |value| {
        if validator.check(value).is_ok() {
            let _ = serde_json::from_value::<T>(value.clone());
        }
    })
}

#[test]
fn fuzz_a_body_is_read_or_refused() {
    let bodies = [
        body::<IntentRequest>(),
        body::<RunRequest>(),
        body::<RecipeRunRequest>(),
        body::<ReplyRequest>(),
        body::<ApprovePlanRequest>(),
        body::<KeyRequest>(),
        body::<LinkRequest>(),
        body::<LinkReply>(),
        body::<SpawnRequest>(),
        body::<ImportRequest>(),
        body::<WebhookRequest>(),
        body::<Recipe>(),
    ];
    fuzz!("bodies", 1_000, |bytes: &[u8]| {
        let Ok(value) = parse_json(bytes) else { return };
        if unstorable(&value).is_some() {
            return;
        }
        for read in &bodies {
            read(&value);
        }
        for lenient in [false, true] {
            let _ = check_spec(&value, lenient);
        }
    });
}

/// What an agent in a sandbox writes.
#[test]
fn fuzz_a_call_of_a_model_is_read_or_refused() {
    fuzz!("model_request", |bytes: &[u8]| {
        for protocol in ModelProtocol::ALL {
            let _ = ModelRequest::parse(*protocol, bytes);
            let _ = cofferdam_contracts::model::bound(*protocol, bytes);
        }
    });
}

/// What a provider answers. A claim that is believed has a cost.
fn metered(bytes: &[u8], is_stream: bool) {
    for protocol in ModelProtocol::ALL {
        let mut meter = AnswerMeter::new(*protocol, is_stream);
        let (one, two) = bytes.split_at(bytes.len() / 2);
        meter.push(one);
        meter.push(two);
        if let Some(usage) = meter.end().usage {
            assert!(usage.cached + usage.written <= usage.input && usage.tokens() <= 200_000_000);
        }
    }
}

#[test]
fn fuzz_the_answer_of_a_model_is_read() {
    fuzz!("model_answer", |bytes: &[u8]| metered(bytes, false));
}

#[test]
fn fuzz_the_stream_of_a_model_is_read() {
    fuzz!("model_stream", |bytes: &[u8]| metered(bytes, true));
}

/// Between the parts of one input.
const CUT: &str = "\n--8<--\n";

fn parts(bytes: &[u8]) -> [Vec<u8>; 3] {
    let text = CUT.as_bytes();
    let mut rest = bytes;
    let mut part = || {
        let at = rest.windows(text.len()).position(|window| window == text);
        let (head, tail) = match at {
            Some(at) => (&rest[..at], &rest[at + text.len()..]),
            None => (rest, &rest[rest.len()..]),
        };
        rest = tail;
        head.to_vec()
    };
    [part(), part(), part()]
}

/// What a patch that was let through must keep.
fn holds(opened: &VerifiedPatch) {
    for (file, bytes) in opened.files() {
        assert_eq!(why_refused(file.path.as_bytes()), None);
        assert_eq!(bytes.is_some(), file.after.is_some());
    }
    let run = serde_json::from_value(json!(format!("rn_{}", "0".repeat(32)))).unwrap();
    let status = RunStatus::Succeeded;
    let (message, tasks) = (Some("said"), &[][..]);
    let target = Target { run: &run, status, task: "t", repo: "/r", branch: "b", message, tasks };
    let shown = receipt(opened, &target);
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{shown}");
}

#[test]
fn fuzz_what_git_in_a_sandbox_says_is_a_patch_or_refused() {
    let base = GitId::parse(&"a1".repeat(20)).unwrap();
    fuzz!("git", |bytes: &[u8]| {
        let [raw, sizes, objects] = parts(bytes);
        let Ok(changed) = patch::changes(&raw, ObjectFormat::Sha1) else { return };
        assert!(raw.starts_with(patch::whole_lines(&raw)));
        let _ = patch::uncounted(&sizes, &raw);
        if let Ok((kept, _)) = patch::fitting(&sizes, changed.clone()) {
            assert!(kept.files.len() <= changed.files.len());
        }
        let Ok((made, bin, text)) = patch::contents(&objects, &changed, &base) else { return };
        let index = cofferdam_contracts::canonical::canonical(&made).unwrap();
        holds(&VerifiedPatch::open(&index, bin, text.into_bytes()).unwrap());
    });
}

#[test]
fn fuzz_names_of_a_git_server_are_read_or_refused() {
    let name = GitRef::parse("main").unwrap();
    fuzz!("refs", |bytes: &[u8]| {
        if let Ok(RefAdvert::Listed(refs)) = patch::advert(bytes, &name) {
            assert!(refs.len() <= name.full_names().len());
        }
        let _ = patch::listed(bytes, &name);
        let text = String::from_utf8_lossy(bytes);
        let _ = patch::packed_refs(&text, "refs/heads/main");
        if let Ok(name) = GitRef::parse(&text) {
            assert!(patch::ls_refs(&name, ObjectFormat::Sha1).ends_with("0000"));
        }
    });
}

#[test]
fn fuzz_a_stored_patch_is_opened_or_refused() {
    fuzz!("patch", |bytes: &[u8]| {
        let [index, contents, text] = parts(bytes);
        if let Ok(opened) = VerifiedPatch::open(&index, contents, text) {
            holds(&opened);
        }
    });
}

/// A step a line: its type and its arguments between tabs, and behind `#` the name of its upload.
#[test]
fn fuzz_steps_of_a_template_are_taken_or_refused() {
    fuzz!("template_steps", |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let step = |line: &str| {
            let mut parts = line.split('\t').map(str::to_owned);
            let kind = parts.next().unwrap_or_default();
            let (files, args): (Vec<_>, Vec<_>) = parts.partition(|part| part.starts_with('#'));
            let files = files.first().map(|name| name.trim_start_matches('#').to_owned());
            RawStep { kind, args, files, force: false }
        };
        let steps = text.lines().map(step).collect();
        let _ = tagged(&text);
        let from = BuildSource::Template("base".to_owned());
        let Ok(plan) = BuildPlan::parse(from, steps, None, None, false) else { return };
        let mut state = BuildState::default();
        for step in &plan.steps {
            match step {
                BuildStep::Env(variables) => {
                    let _ =
                        state.set(variables, |name| (name == "PATH").then(|| "/bin".to_owned()));
                }
                BuildStep::Workdir(path) => state.workdir = Some(state.absolute(path)),
                BuildStep::User(user) => state.user = *user,
                BuildStep::Copy { from, to, .. } => {
                    assert!(!from.starts_with('/') && !from.split('/').any(|part| part == ".."));
                    assert!(state.absolute(to).starts_with('/'));
                }
                BuildStep::Run { command, .. } => assert!(!command.contains('\0')),
            }
        }
        assert!(state.cwd().starts_with('/'));
    });
}

/// Where a report has a fault it has no totals, and those of a whole one agree.
fn is_honest(report: &TestReport) {
    let has_totals = report.totals.is_some() || report.coverage.is_some();
    assert!(report.fault.is_none() || !has_totals && report.slowest.is_empty());
    if let Some(totals) = &report.totals {
        let failed = totals.failed + totals.errored;
        assert!(failed + totals.skipped + totals.flaky <= totals.cases);
        assert!(u64::try_from(report.failures.len()).unwrap() <= failed);
    }
    let ratios = report.coverage.iter().flat_map(|all| [Some(all.lines), all.branches]);
    assert!(ratios.flatten().all(|ratio| ratio.covered <= ratio.total));
    assert_eq!(unstorable(&serde_json::to_value(report).unwrap()), None);
}

/// As each kind, whatever its content is, and in chunks that cut everything.
#[test]
fn fuzz_a_test_report_is_read_or_has_a_fault() {
    let bounds = ReportBounds {
        bytes: 1 << 16,
        events: 5_000,
        files: 20,
        lines: 2_000,
        ..ReportBounds::default()
    };
    fuzz!("test_report", |bytes: &[u8]| {
        let stated = ReportKind::ALL.iter().copied().map(Some).chain([None]);
        let contents: Vec<ReportContent> =
            stated.clone().map(|kind| read(&mut &*bytes, kind, &bounds)).collect();
        for (content, kind) in contents.iter().zip(stated) {
            is_honest(&content.report);
            let mut chunks = std::io::BufReader::with_capacity(7, bytes);
            let again = read(&mut chunks, kind, &bounds);
            let kind = |content: &ReportContent| content.report.fault.map(|fault| fault.kind);
            assert_eq!(kind(&again), kind(content));
            let report = TestReport { fault: content.report.fault, ..again.report };
            assert_eq!(report, content.report);
        }
        is_honest(&merged(&contents, &bounds));
    });
}
