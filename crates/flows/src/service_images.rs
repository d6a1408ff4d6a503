//! Images that services of tasks run from.
//!
//! ```text
//! CompileST: plan --tags--> bound before? else ask the registry --> app.intent_images --> services of the plan name the digest
//! task:      digest --policy of now, TenantImages::pull--> roots on this host --> its sandbox
//! ```
//! **What is bound first stands for the intent**, so the plan digest, a consent and every task, retry and fork are of one image. A
//! digest in the recipe is taken as it is. The registry is asked by the worker, never by a sandbox: no phase needs a name for it.

use std::collections::BTreeSet;

use cofferdam_contracts::error::{ErrorCode, Refusal, error_chain};
use cofferdam_contracts::image_reference::{self, ImageReference, service_images};
use cofferdam_contracts::plan::Plan;
use cofferdam_contracts::sandbox::SandboxRequest;
use cofferdam_ledger::Ledger;
use cofferdam_ledger::images::IntentImage;
use cofferdam_ledger::runs::RunContext;
use cofferdam_ledger::tasks::TaskContext;
use cofferdam_sandbox::image::{ImageError, ServiceRoots, TenantImages, pin};
use serde_json::json;

use crate::config;
use crate::error::Result;
use crate::executor::Executor;
use crate::patience::patiently;

/// Tags that one plan binds, each by a question to its registry: a recipe names a few databases.
const MAX_TAGS: usize = 64;

/// Why a task gets no images.
pub(crate) enum PullError {
    /// Another attempt may get them.
    Passing(String),
    /// No attempt gets them.
    Lasting(String),
}

/// References of a plan's services that have no digest. Pure.
fn tags(plan: &Plan) -> BTreeSet<String> {
    let requests = plan.all_tasks().filter_map(|task| task.work.request());
    let images = requests.flat_map(service_images).map(|(_, image)| image);
    let is_tag = |image: &&str| {
        ImageReference::parse(image).is_ok_and(|reference| reference.digest().is_none())
    };
    images.filter(is_tag).map(str::to_owned).collect()
}

/// The plan whose services name the digests that they are bound to. Pure.
fn attached(mut plan: Plan, bound: &[IntentImage]) -> Plan {
    for task in plan.all_tasks_mut() {
        let Some(request) = task.work.request_mut() else { continue };
        let services = request.spec.as_mut().and_then(|spec| spec.services.as_mut());
        for service in services.into_iter().flatten() {
            let image = service.detail.as_mut().and_then(|detail| detail.image.as_mut());
            let Some(image) = image else { continue };
            if let Some(pin) = bound.iter().find(|one| one.reference == *image) {
                image.clone_from(&pin.pinned);
            }
        }
    }
    plan
}

/// A plan whose services run from what their tags stand for now, or stood for when the intent was first compiled.
pub(crate) async fn pinned(
    ledger: &Ledger,
    run: &RunContext,
    plan: Plan,
) -> Result<std::result::Result<Plan, Refusal>> {
    let wanted = tags(&plan);
    if wanted.is_empty() {
        return Ok(Ok(plan));
    }
    if wanted.len() > MAX_TAGS {
        let why = format!(
            "the plan names {} tags of images, at most {MAX_TAGS} are bound: write digests",
            wanted.len()
        );
        return Ok(Err(Refusal::new(ErrorCode::RecipeInvalid, why)));
    }
    let bound = ledger.images().of_intent(&run.intent_id).await?;
    let mut new = Vec::new();
    for reference in wanted {
        if bound.iter().any(|one| one.reference == reference) {
            continue;
        }
        match asked(&reference).await {
            Ok(pinned) => new.push(IntentImage { reference, pinned }),
            Err(error) => return Ok(Err(refusal(&reference, &error))),
        }
    }
    let bound = match new.is_empty() {
        true => bound,
        false => ledger.images().bind(&run.intent_id, &new).await?,
    };
    Ok(Ok(attached(plan, &bound)))
}

async fn asked(reference: &str) -> std::result::Result<String, ImageError> {
    let parsed = ImageReference::parse(reference)
        .map_err(|why| ImageError::Malformed { what: "the reference".to_owned(), why })?;
    pin(&parsed).await.map(|pinned| pinned.to_string())
}

fn refusal(reference: &str, error: &ImageError) -> Refusal {
    let code = match error.is_permanent() {
        true => ErrorCode::RecipeInvalid,
        false => ErrorCode::Unavailable,
    };
    let why = format!(
        "the image {reference} of a service could not be bound: {}; correct the reference, or start the run again when its \
         registry answers",
        error_chain(error)
    );
    Refusal::new(code, why).with(json!({"image": reference}))
}

/// The images of a request's services on this host, by the names of the services. The policy is looked at again: it may have changed
/// since the plan was compiled.
pub(crate) async fn pulled(
    executor: &Executor,
    task: &TaskContext,
    request: &SandboxRequest,
) -> std::result::Result<ServiceRoots, PullError> {
    let mut roots = ServiceRoots::new();
    if service_images(request).next().is_none() {
        return Ok(roots);
    }
    let ledger = &executor.flows.ledger;
    let settings = patiently(|| config::settings(ledger, &task.tenant)).await;
    let settings = settings.map_err(|error| PullError::Passing(error_chain(&error)))?;
    let checked = image_reference::check("the task", request, settings.registries());
    checked.map_err(|refusal| {
        PullError::Lasting(format!("{}: {}", refusal.code.as_str(), refusal.message))
    })?;
    let images = TenantImages::of(&executor.host.facts().state_dir, &task.tenant);
    let services = request.spec.as_ref().and_then(|spec| spec.services.as_deref());
    for (index, image) in service_images(request) {
        let Some(service) = services.unwrap_or_default().get(index) else { continue };
        let reference = ImageReference::parse(image).map_err(PullError::Lasting)?;
        let found = images.pull(&reference).await.map_err(|error| {
            let why =
                format!("the image of the service `{}`: {}", service.name, error_chain(&error));
            match error.is_permanent() {
                true => PullError::Lasting(why),
                false => PullError::Passing(why),
            }
        })?;
        let (digest, fetched) = (&found.image.digest, found.image.fetched_bytes);
        tracing::info!(task = %task.key, image, %digest, fetched, "the image of a service is here");
        roots.insert(service.name.clone(), found);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use cofferdam_contracts::plan;
    use cofferdam_contracts::profile::Settings;
    use cofferdam_contracts::recipe::Recipe;

    use super::*;

    #[test]
    fn tags_of_every_task_are_bound_once_and_digests_stay() {
        let digest = "ab".repeat(32);
        let text = format!(
            "id: r\nv: \"1\"\nplan:\n  tasks:\n    - {{name: a, exec: {{run: x}}, services: [{{name: db, image: 'r.example/db:1', \
             port: 1}}, {{name: own, image: host, cmd: [x], port: 2}}]}}\n    - {{name: b, exec: {{run: x}}, services: [{{name: db, \
             image: 'r.example/db:1', port: 1}}, {{name: q, image: 'r.example/q@sha256:{digest}', port: 2}}]}}\n"
        );
        let recipe = Recipe::from_yaml("r.yaml", &text).unwrap();
        let plan = plan::compile(&recipe, &json!({}), &Settings::default(), &|_, _| Ok(Vec::new()));
        let plan = plan.unwrap();
        assert_eq!(tags(&plan).into_iter().collect::<Vec<_>>(), ["r.example/db:1"]);
        let pinned = format!("r.example/db:1@sha256:{digest}");
        let bound =
            [IntentImage { reference: "r.example/db:1".to_owned(), pinned: pinned.clone() }];
        let plan = attached(plan, &bound);
        assert!(tags(&plan).is_empty());
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(text.matches(&pinned).count(), 2);
        assert!(
            text.contains(&format!("r.example/q@sha256:{digest}")) && text.contains("\"host\"")
        );
    }
}
