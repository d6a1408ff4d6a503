//! The steps of a build, and its start.

use cofferdam_contracts::template_build::{BuildPlan, BuildSource, RawStep};
use cofferdam_live::StartBuild;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::answer::{self, bad_request};
use crate::body;
use crate::call::{CLASS, Call, Outcome, class, header};
use crate::template::build_names::{found, missing, named, viewed};

/// The base of a build and its steps.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct BuildSteps {
    /// An image of the host. Exactly one of this and `fromTemplate` is given.
    from_image: Option<String>,
    /// A template of the tenant or the host.
    from_template: Option<String>,
    /// Not supported: leave it out.
    #[schemars(with = "Option<()>")]
    from_image_registry: Option<Value>,
    /// The program that each sandbox begins with.
    start_cmd: Option<String>,
    /// Succeeds once that program is ready.
    ready_cmd: Option<String>,
    /// In their order.
    #[serde(default)]
    steps: Vec<BuildStep>,
    /// `true` repeats every step, cached or not.
    force: Option<bool>,
}

/// A step of a build.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct BuildStep {
    /// `RUN`, `COPY`, `ENV`, `WORKDIR` or `USER`.
    #[serde(rename = "type")]
    kind: String,
    /// Arguments by position: of `COPY` its source, target, user and mode.
    #[serde(default)]
    args: Vec<String>,
    /// Of a `COPY`: the SHA-256 by which its archive was sent.
    files_hash: Option<String>,
    /// `true` repeats this step and those after it, cached or not.
    force: Option<bool>,
    /// For the client alone.
    #[serde(rename = "forceUpload")]
    _force_upload: Option<bool>,
    /// For the client alone.
    #[serde(rename = "resolveSymlinks")]
    _resolve_symlinks: Option<bool>,
    /// For the client alone.
    #[serde(rename = "gzip")]
    _gzip: Option<bool>,
}

impl BuildSteps {
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
        let raw = |step: BuildStep| RawStep {
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
    let steps: BuildSteps = body::body(body).await?;
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
            serde_json::from_value::<BuildSteps>(body).map_err(|why| why.to_string())?.plan()
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
