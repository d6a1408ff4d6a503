//! Builds of templates, as E2B's clients ask for them: opened, given their steps, and followed.

use axum::body::Body;
use axum::http::Response;
use cofferdam_contracts::error::ErrorCode;
use cofferdam_contracts::id::{BuildId, TemplateId, TemplateName};
use cofferdam_contracts::template_build::{BuildFrom, BuildPlan, MAX_TAGS, RawStep, tag, tagged};
use cofferdam_flows::Error;
use cofferdam_ledger::builds::{Build, LogEntry};
use cofferdam_ledger::keys::Principal;
use cofferdam_live::{BuildAsked, LiveClient, OpenBuild, StartBuild, ViewBuild};
use serde::Deserialize;
use serde_json::{Value, json};

use super::build_logs::from_level;
use super::control::{Asking, Outcome, class};
use super::{page, shape};

/// Log entries of one answer: clients ask for the next ones until there are none.
pub(super) const MAX_ENTRIES: i64 = 100;
/// CPUs and MiB that one may ask for; what a tenant may have is its ceiling's to say.
const MAX_CPUS: u32 = 256;
const MEM_MB: std::ops::RangeInclusive<u32> = 128..=1_048_576;

/// `POST /v3/templates`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct NewBuild {
    name: Option<String>,
    /// The older name of `name`.
    alias: Option<String>,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
    /// A layer is as large as its sandbox's memory allows.
    #[serde(rename = "minFreeDiskMb", alias = "minFreeDiskMB")]
    _min_free_disk_mb: Option<u64>,
    /// There are no teams: the key's tenant has it.
    #[serde(rename = "teamID")]
    _team_id: Option<String>,
}

/// `POST /v2/templates/{id}/builds/{build}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Steps {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
    #[serde(default)]
    steps: Vec<Step>,
    /// Every step runs, whatever ran before.
    force: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Step {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    files_hash: Option<String>,
    /// It and those after it run, whatever ran before.
    force: Option<bool>,
    /// What clients say to themselves.
    #[serde(rename = "forceUpload")]
    _force_upload: Option<bool>,
    #[serde(rename = "resolveSymlinks")]
    _resolve_symlinks: Option<bool>,
    #[serde(rename = "gzip")]
    _gzip: Option<bool>,
}

impl NewBuild {
    fn asked(self) -> Result<BuildAsked, String> {
        let name = self.name.or(self.alias).ok_or("name is missing")?;
        let (name, own) = tagged(&name).map_err(|why| format!("name: {why}"))?;
        let tags = self.tags.unwrap_or_default();
        if tags.len() >= MAX_TAGS {
            return Err(format!("tags: at most {MAX_TAGS}"));
        }
        let tags = tags.iter().map(|text| tag(text)).collect::<Result<Vec<_>, _>>();
        let mut tags = tags.map_err(|why| format!("tags: {why}"))?;
        tags.extend(own);
        if !self.cpu_count.is_none_or(|cpus| (1..=MAX_CPUS).contains(&cpus)) {
            return Err(format!("cpuCount must be between 1 and {MAX_CPUS}"));
        }
        if !self.memory_mb.is_none_or(|mem_mb| MEM_MB.contains(&mem_mb)) {
            return Err(format!(
                "memoryMB must be between {} and {}",
                MEM_MB.start(),
                MEM_MB.end()
            ));
        }
        Ok(BuildAsked { name, tags, cpu: self.cpu_count, mem_mb: self.memory_mb })
    }
}

impl Steps {
    fn plan(self) -> Result<BuildPlan, String> {
        if self.from_image_registry.is_some_and(|registry| !registry.is_null()) {
            return Err("fromImageRegistry is not supported: have the host's admin pull the image"
                .to_owned());
        }
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let from = match (given(self.from_image), given(self.from_template)) {
            (Some(image), None) => BuildFrom::Image(image),
            (None, Some(template)) => BuildFrom::Template(template),
            _ => return Err("exactly one of fromImage and fromTemplate is meant".to_owned()),
        };
        let raw = |step: Step| RawStep {
            kind: step.kind,
            args: step.args,
            files: step.files_hash,
            force: step.force == Some(true),
        };
        let steps = self.steps.into_iter().map(raw).collect();
        BuildPlan::parse(from, steps, self.start_cmd, self.ready_cmd, self.force == Some(true))
    }
}

pub(super) fn refused(why: impl Into<String>) -> Response<Body> {
    shape::error(400, why)
}

pub(super) async fn open(call: Asking<'_>) -> Outcome {
    let asked: NewBuild = shape::body(call.body).await?;
    let asked = asked.asked().map_err(refused)?;
    let name: TemplateName = asked.name.clone();
    let opened = call.front.shared.live.ask(OpenBuild { who: call.who, asked }).await;
    let opened = opened.map_err(shape::refused)?;
    let value = json!({
        "templateID": opened.template, "buildID": opened.build, "public": false, "names": [name], "aliases": [name],
        "tags": opened.tags,
    });
    Ok(shape::json_of(202, &value))
}

/// Both ids of a path; `None`: one of them is malformed, so it names nothing.
pub(super) fn named(template: &str, build: &str) -> Option<(TemplateId, BuildId)> {
    Some((TemplateId::parse(template).ok()?, BuildId::parse(build).ok()?))
}

pub(super) fn missing(build: &str) -> Response<Body> {
    let build: String = build.chars().take(64).collect();
    shape::error(404, format!("build {build:?} not found"))
}

pub(super) fn found(build: &BuildId, error: Error) -> Response<Body> {
    match &error {
        Error::Refused(refusal) if refusal.code == ErrorCode::NotFound => missing(build.as_str()),
        _ => shape::refused(error),
    }
}

/// A build of the caller's tenant.
pub(super) async fn viewed(
    lives: &LiveClient,
    who: &Principal,
    template: &TemplateId,
    build: &BuildId,
) -> Result<Build, Response<Body>> {
    let view = ViewBuild { who: who.clone(), template: template.clone(), build: build.clone() };
    lives.ask(view).await.map_err(|error| found(build, error))
}

pub(super) async fn start(call: Asking<'_>, template: &str, build: &str) -> Outcome {
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let Asking { front, who, class_min, body, .. } = call;
    let class_min = class_min.map(|name| class(&name)).transpose().map_err(refused)?;
    let steps: Steps = shape::body(body).await?;
    let lives = &front.shared.live;
    // Before its steps are looked at: who may not see it learns nothing of it.
    viewed(lives, &who, &template, &build).await?;
    let plan = steps.plan().map_err(refused)?;
    let build_of = build.clone();
    let started = lives.ask(StartBuild { who, template, build: build_of, plan, class_min }).await;
    started.map_err(|error| found(&build, error))?;
    Ok(shape::empty(202))
}

pub(super) fn entry(entry: &LogEntry) -> Value {
    let mut value = json!({
        "timestamp": shape::time(entry.at_ms), "message": entry.message, "level": entry.level,
    });
    if let (Some(fields), Some(step)) = (value.as_object_mut(), &entry.step) {
        fields.insert("step".into(), step.clone().into());
    }
    value
}

/// Which entries a query asks for.
#[derive(Debug, PartialEq, Eq)]
struct Entries {
    from: i32,
    limit: i64,
    levels: Option<&'static [&'static str]>,
}

fn entries(query: &str) -> Result<Entries, String> {
    let mut entries = Entries { from: 0, limit: MAX_ENTRIES, levels: None };
    for (name, value) in page::pairs(query) {
        match name {
            "logsOffset" => {
                let offset = value.parse().ok().filter(|offset| *offset >= 0);
                entries.from = offset.ok_or("logsOffset is not a number from 0")?;
            }
            "limit" => {
                entries.limit = page::bounded(name, value, MAX_ENTRIES)?;
            }
            "level" => entries.levels = Some(from_level(value)?),
            other => return Err(format!("the query's {other} is not supported")),
        }
    }
    Ok(entries)
}

pub(super) async fn status(call: Asking<'_>, template: &str, build: &str) -> Outcome {
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let Entries { from, limit, levels } = entries(&call.query).map_err(refused)?;
    let (flows, lives) = (&call.front.shared.flows, &call.front.shared.live);
    // The state first: the log of a build that has ended is whole.
    let view = viewed(lives, &call.who, &template, &build).await?;
    let log = flows.ledger.builds().log(&build, from, limit, levels).await;
    let log = log.map_err(|error| shape::refused(error.into()))?;
    let mut value = json!({
        "templateID": template, "buildID": build, "status": view.status.as_str(), "logs": [],
        "logEntries": log.iter().map(entry).collect::<Vec<_>>(),
    });
    if let (Some(fields), Some(message)) = (value.as_object_mut(), view.reason) {
        let reason = match view.step {
            Some(step) => json!({"message": message, "step": step}),
            None => json!({"message": message}),
        };
        fields.insert("reason".into(), reason);
    }
    Ok(shape::json_of(200, &value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_named_within_bounds() {
        let asked = |body: Value| {
            serde_json::from_value::<NewBuild>(body).map_err(|why| why.to_string())?.asked()
        };
        let good =
            asked(json!({"name": "web:v1", "tags": ["Stable"], "cpuCount": 2, "memoryMB": 1024}))
                .unwrap();
        assert_eq!(
            (good.name.as_str(), good.tags),
            ("web", vec!["stable".to_owned(), "v1".to_owned()])
        );
        assert!(asked(json!({"alias": "web", "teamID": "x", "minFreeDiskMb": 0})).is_ok());
        for bad in [
            json!({}),
            json!({"name": "We b"}),
            json!({"name": "a/b"}),
            json!({"name": "a", "tags": vec!["x"; MAX_TAGS]}),
            json!({"name": "a", "tags": ["x y"]}),
            json!({"name": "a", "cpuCount": 0}),
            json!({"name": "a", "memoryMB": 1}),
            json!({"name": "a", "surprise": 1}),
        ] {
            assert!(asked(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn steps_are_taken_as_both_clients_send_them() {
        let plan = |body: Value| {
            serde_json::from_value::<Steps>(body).map_err(|why| why.to_string())?.plan()
        };
        let step = json!({"type": "RUN", "args": ["ls"], "force": false, "forceUpload": true, "gzip": true});
        let good =
            plan(json!({"fromImage": "e2bdev/base", "steps": [step], "force": false})).unwrap();
        assert_eq!(good.from, BuildFrom::Image("e2bdev/base".into()));
        for bad in [
            json!({"steps": []}),
            json!({"fromImage": "a", "fromTemplate": "b"}),
            json!({"fromImage": "a", "fromImageRegistry": {"type": "registry"}}),
            json!({"fromImage": "a", "steps": [{"type": "SLEEP"}]}),
            json!({"fromImage": "a", "steps": [{"type": "RUN", "args": "ls"}]}),
            json!({"fromImage": "a", "steps": [{"type": "RUN", "args": ["ls"], "surprise": 1}]}),
        ] {
            assert!(plan(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_log_is_read_from_an_entry_on() {
        let of = |from, limit, levels| Entries { from, limit, levels };
        assert_eq!(entries("").unwrap(), of(0, MAX_ENTRIES, None));
        let warn: Option<&[&str]> = Some(&["warn", "error"]);
        assert_eq!(entries("logsOffset=7&limit=3&level=warn").unwrap(), of(7, 3, warn));
        for bad in ["logsOffset=-1", "logsOffset=x", "limit=101", "level=x", "x=1"] {
            assert!(entries(bad).is_err(), "{bad}");
        }
    }
}
