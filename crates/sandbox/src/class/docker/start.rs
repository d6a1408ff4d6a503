//! Making the container and putting the sandbox into it.

use std::fs;
use std::path::PathBuf;

use bollard::Docker;
use bollard::container::AttachContainerResults;
use bollard::query_parameters::{AttachContainerOptionsBuilder, CreateContainerOptionsBuilder};
use serde_json::Value;

use super::client::{EngineError, connect};
use super::stream::carry;
use super::wipe::Marker;
use super::{create, image, name, root};
use crate::class::isolation::LaunchResult;
use crate::host::task::blocking;
use crate::spec::plan::Plan;

/// Makes the container of a plan, in these cgroups, and shows it the root that was mounted for it with
/// these inputs. What is left of one that fails is found by its marker.
pub(super) async fn start(
    plan: &Plan,
    inputs: &[Value],
    groups: &[PathBuf],
    kept_bytes: usize,
) -> Result<LaunchResult, EngineError> {
    let socket = &plan.runtime.path;
    let docker = connect(socket).await?;
    let image = image::ensure(&docker).await?;
    // From here on the engine may hold something; before, whoever wipes need not ask it.
    let mut marker = Marker { engine: socket.clone(), id: None };
    marker.write(&plan.traces)?;
    let id = create(&docker, plan, image).await?;
    marker.id = Some(id.clone());
    marker.write(&plan.traces)?;
    let refused = |what| move |source| EngineError::Refused { what, source };
    let wanted =
        AttachContainerOptionsBuilder::default().stream(true).stdin(true).stdout(true).stderr(true);
    // Before it starts, so that nothing that its agent says is missed.
    let attached = docker.attach_container(&id, Some(wanted.build())).await;
    let attached = attached.map_err(refused("attaching to the container"))?;
    let started = docker.start_container(&id, None).await;
    started.map_err(refused("starting the container"))?;
    let seen = docker.inspect_container(&id, None).await;
    let seen = seen.map_err(refused("describing the container"))?;
    let pid = seen.state.and_then(|state| state.pid).unwrap_or(0);
    hold(plan, inputs, groups, pid, id).await?;
    stream(attached, kept_bytes)
}

fn stream(
    attached: AttachContainerResults,
    kept_bytes: usize,
) -> Result<LaunchResult, EngineError> {
    let fault = |source| EngineError::Root { what: "its stream".to_owned(), source };
    carry(attached, kept_bytes).map_err(fault)
}

async fn create(docker: &Docker, plan: &Plan, image: String) -> Result<String, EngineError> {
    let wanted = CreateContainerOptionsBuilder::default().name(&name(&plan.traces)).build();
    let body = create::body(&plan.config, image, &plan.traces);
    let made = docker.create_container(Some(wanted), body).await;
    let what = "making the container";
    Ok(made.map_err(|source| EngineError::Refused { what, source })?.id)
}

/// Everything about its process that is ours: cgroups, then the root.
async fn hold(
    plan: &Plan,
    inputs: &[Value],
    groups: &[PathBuf],
    pid: i64,
    id: String,
) -> Result<(), EngineError> {
    let elsewhere = || EngineError::Elsewhere { pid };
    let seen = u32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(elsewhere)?;
    let mounts = plan.config.get("mounts").and_then(Value::as_array).into_iter().flatten();
    let mounts: Vec<Value> = mounts.chain(inputs).cloned().collect();
    let (traces, groups) = (plan.traces.clone(), groups.to_vec());
    blocking(move || {
        let inside = root::Inside::of(seen, &id).ok_or(EngineError::Elsewhere { pid })?;
        for group in groups {
            let path = group.join("cgroup.procs");
            // The whole process, which has one thread.
            let entered = fs::write(&path, seen.to_string());
            entered.map_err(|source| EngineError::Files { what: "entering", path, source })?;
        }
        let tree = root::Tree::of(&traces, &mounts)?;
        inside.show(tree)
    })
    .await
}
