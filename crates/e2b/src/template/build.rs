//! The steps of a build, and its start.

use cofferdam_contracts::template_build::{BuildPlan, BuildSource, RawStep};
use cofferdam_live::StartBuild;
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{self, bad_request};
use crate::body;
use crate::call::{CLASS, Call, Outcome, class, header};
use crate::template::build_names::{found, missing, named, viewed};

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

impl Steps {
    fn plan(self) -> Result<BuildPlan, String> {
        if self.from_image_registry.is_some_and(|registry| !registry.is_null()) {
            return Err("fromImageRegistry is not supported: have the host's admin pull the image"
                .to_owned());
        }
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let from = match (given(self.from_image), given(self.from_template)) {
            (Some(image), None) => BuildSource::Image(image),
            (None, Some(template)) => BuildSource::Template(template),
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

pub(crate) async fn start(call: Call) -> Outcome {
    let template = &call.param("id");
    let build = &call.param("build");
    let (template, build) = named(template, build).ok_or_else(|| missing(build))?;
    let class_min = header(&call.headers, CLASS);
    let Call { services, who, body, .. } = call;
    let class_min = class_min.map(|name| class(&name)).transpose().map_err(bad_request)?;
    let steps: Steps = body::body(body).await?;
    let lives = &services.live;
    // Before its steps are looked at: who may not see it learns nothing of it.
    viewed(lives, &who, &template, &build).await?;
    let plan = steps.plan().map_err(bad_request)?;
    let build_of = build.clone();
    let started = lives.ask(StartBuild { who, template, build: build_of, plan, class_min }).await;
    started.map_err(|error| found(&build, error))?;
    Ok(answer::empty(202))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_taken_as_both_clients_send_them() {
        let plan = |body: Value| {
            serde_json::from_value::<Steps>(body).map_err(|why| why.to_string())?.plan()
        };
        let step = json!({"type": "RUN", "args": ["ls"], "force": false, "forceUpload": true, "gzip": true});
        let good =
            plan(json!({"fromImage": "e2bdev/base", "steps": [step], "force": false})).unwrap();
        assert_eq!(good.from, BuildSource::Image("e2bdev/base".into()));
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
}
