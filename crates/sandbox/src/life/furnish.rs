//! What the commands of a sandbox find: their files, the proxy, and services.

use std::sync::Arc;
use std::time::Duration;

use super::error::BootError;
use crate::agent::Agent;
use crate::class::Attempts;
use crate::class::input_mounts::{ResolvedInputs, UploadContent};
use crate::egress::{EgressSetup, NoRouteAttempts};
use crate::life::network;
use crate::life::sandbox::Sandbox;
use crate::life::service;
use crate::life::service_root;
use crate::life::write::{pour, put, put_dir};
use crate::spec::plan::{DEFAULT_WORKDIR, Plan};

/// The home of the user whom `envRef: host` has beside root.
const SKELETON_HOME: &str = "/home/user";
/// A short answer, from a machine whose processor is emulated on a busy host.
const METRICS_MS: u64 = 5_000;

/// Gives a sandbox files, the proxy, then services, which may need both.
pub(super) async fn furnish(
    sandbox: &mut Sandbox,
    resolved: &ResolvedInputs<'_>,
    plan: &Plan,
    prepared: Option<EgressSetup>,
) -> Result<(), BootError> {
    settle(&sandbox.agent, resolved, plan).await?;
    if let Some(prepared) = prepared {
        let is_shown = !plan.isolation().snapshots.has_layer_inside();
        network::furnish(&sandbox.agent, &prepared, is_shown).await?;
        sandbox.network.open(prepared)?;
    }
    let init = sandbox.subject.observed.as_ref().map(|observed| observed.process);
    service_root::show_kernel(init, plan).await?;
    service::start(&sandbox.agent, &plan.services, &mut sandbox.services).await?;
    // Last, so that what a service tried while it started is not laid at a command's door.
    match plan.isolation().supervision.attempts() {
        Attempts::Namespace => {
            sandbox.unrouted = Some(Arc::new(NoRouteAttempts::in_namespace(sandbox.init_pid)));
        }
        Attempts::Agent => {
            let is_new = plan.services.is_empty() && !sandbox.went_on;
            let before = if is_new { 0 } else { no_routes(&sandbox.agent).await };
            sandbox.unrouted = Some(Arc::new(NoRouteAttempts::in_machine(before)));
        }
        Attempts::Each => {}
    }
    Ok(())
}

/// What a machine's services tried so far, or its earlier lives. An agent that does not say it has them laid at a command's door,
/// which is no reason to start no sandbox.
async fn no_routes(agent: &Agent) -> u64 {
    let limit = Duration::from_millis(METRICS_MS);
    match tokio::time::timeout(limit, agent.metrics()).await {
        Ok(Ok(usage)) => usage.no_routes,
        _ => 0,
    }
}

/// Gives the task its files, which are its user's as its places are.
async fn settle(
    agent: &Agent,
    resolved: &ResolvedInputs<'_>,
    plan: &Plan,
) -> Result<(), BootError> {
    let user = plan.task.user;
    if let Some(user) = user {
        for dir in own_dirs(resolved, plan) {
            put_dir(agent, dir, 0o755, user).await?;
        }
    }
    for file in &resolved.uploads {
        if let UploadContent::Stream(content) = &file.content {
            pour(agent, file.path, file.mode, user, content).await?;
            continue;
        }
        let path = || file.path.to_owned();
        let bytes =
            file.bytes().await.map_err(|source| BootError::Read { path: path(), source })?;
        put(agent, file.path, file.mode, user, bytes).await?;
    }
    Ok(())
}

/// The directories of the sandbox's own that a user has to write in: where it works unless it says otherwise, and a home of the
/// host's skeleton. One that is given keeps what was given.
fn own_dirs<'a>(resolved: &ResolvedInputs<'_>, plan: &'a Plan) -> Vec<&'a str> {
    let is_mount = |dir: &str| {
        let runtimes = resolved.mounts.iter().map(|mount| &mount["destination"]);
        let machines = resolved.given.iter().map(|given| given.target.as_str());
        runtimes.into_iter().any(|at| at == dir) || machines.into_iter().any(|at| at == dir)
    };
    let home = plan.task.env.get("HOME").map(String::as_str);
    let home = home.filter(|home| plan.host_usr && *home == SKELETON_HOME);
    // A project at a place of its own is at the usual one as well.
    let work = Some(DEFAULT_WORKDIR).filter(|_| !is_mount(&plan.task.cwd));
    work.into_iter().chain(home).filter(|dir| !is_mount(dir)).collect()
}
